"""`run_mlm.py` of transformers' examples: pretraining from its text files or from a data set of the Hub."""

from __future__ import annotations

import os
import re
import shlex
from typing import Any, get_args

from maskwright.config.pretraining import Architecture
from maskwright.core import hub
from maskwright.core.console import several
from maskwright.core.errors import InputError, ModelError
from maskwright.model.hf.config import read_hf_config
from maskwright.tasks.importing.taken import Fate, FlagFate, Taken, number_of
from maskwright.tasks.importing.trainer import NOT_NEEDED, SWITCHES, devices, from_json, training
from maskwright.tasks.importing.typed import ScriptSignature, Typed

WHOLE_WORDS = "run_mlm_wwm.py"
OLDER = "run_language_modeling.py"
"""Its name before transformers 4, in which --mlm chose between two tasks."""
SCRIPT = ScriptSignature(("run_mlm.py", "run_mlm_no_trainer.py", WHOLE_WORDS, OLDER), switches=SWITCHES)
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
HAS_VALIDATION = ("wikitext",)
"""Data sets of the scripts' pages that have a held-out part of their own."""
STORE, TOKENIZER = "data/store", "tokenizer"
BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
OTHER_BASES = {
    "modernbert": {"num_hidden_layers": 22, "intermediate_size": 1152},
    "distilbert": {"num_hidden_layers": 6},
}
UNREAD = ("deberta", "albert", "electra", "xlnet", "longformer", "big_bird", "bigbird", "nezha", "funnel")
"""Families that run_mlm.py trains and maskwright does not, by the names of their models."""
READ_DEBERTAS = ("deberta-v2", "deberta-v3")
"""Parts of the names of DeBERTas that can be continued. Their first version cannot."""
OFFSET = ("roberta", "xlm-roberta", "camembert")
POSITION_OFFSET = 2
"""RoBERTa's first two positions belong to no token, so 514 positions are rows of 512."""


def run_mlm(typed: Typed) -> Taken:
    taken = Taken(typed)
    from_json(taken)
    devices(taken)
    taken.run_in("output_dir")
    taken.values["data.store"] = STORE
    _kind(taken)
    model = _model(taken)
    _rows(taken, model)
    _batch(taken)
    training(taken)
    if "early_stopping_patience" in taken.typed.flags and "evaluation.every_steps" in taken.values:
        patience = int(taken.positive("early_stopping_patience", 1))
        taken.set("early_stopping_patience", {"evaluation.patience": patience})
    elif "early_stopping_patience" in taken.typed.flags:
        taken.note("early_stopping_patience", "set evaluation.patience and evaluation.every_steps")
    fate: Fate = "left out" if taken.number("label_smoothing_factor", 0.0) else "not needed"
    taken.note("label_smoothing_factor", "masked tokens are predicted without label smoothing", fate)
    for name in ("load_best_model_at_end", "metric_for_best_model", "greater_is_better"):
        taken.note(name, "with evaluation.patience, the best checkpoint by held-out loss is kept and exported")
    taken.close(NOT_NEEDED)
    return taken


def _kind(taken: Taken) -> None:
    """The kind of prediction, which the older scripts and the one of whole words decide otherwise."""
    script = os.path.basename(taken.typed.script)
    if script == OLDER and not taken.has("mlm"):
        fix = "add --mlm, if masked tokens are what you want"
        raise InputError("without --mlm it trains a causal model, which is not here", where=script, fix=fix)
    taken.note("mlm", "masked tokens are what a run predicts", "mapped")
    if script == OLDER and not {"num_train_epochs", "max_steps"} & taken.typed.flags.keys():
        what = "transformers 2 took 1 epoch, and 4 rows a device: set schedule.epochs, batch.micro_batch_rows"
        taken.rows.append(FlagFate(OLDER, "", "left out", what))
    if script == WHOLE_WORDS:
        taken.values["masking.kind"] = "whole_word"
        taken.rows.append(FlagFate(WHOLE_WORDS, "", "mapped", "masking.kind: whole_word"))
    for name in ("train_ref_file", "validation_ref_file"):
        taken.note(name, "words of several Chinese characters; whole words are the tokenizer's own here")


# ---- the model -----------------------------------------------------------------------------------------------------


def _model(taken: Taken) -> str:
    """The model's architecture, as far as the flags say it. Notes the model's place."""
    name_or_path = taken.text("model_name_or_path")
    architecture = taken.text("model_type") or _guess(name_or_path or taken.text("config_name") or "")
    tokenizer = taken.text("tokenizer_name")
    taken.note("trust_remote_code", "code that comes with a model is never run")
    named = (name_or_path or architecture).lower()
    is_read = bool(name_or_path) and any(name in named for name in READ_DEBERTAS)
    if (unread := next((name for name in UNREAD if name in named), None)) and not is_read:
        taken.row("model_type", "left out", f"{unread} is not among the families that are read (docs/encoders.md)")
    if name_or_path:
        folder = hub.as_location(name_or_path, taken.text("model_revision"))
        taken.set("model_name_or_path", {"model.init_from": folder})
        taken.note("model_revision", "model.init_from has it, behind an @", "mapped")
        for name in ("model_type", "config_name", "config_overrides"):
            taken.note(name, "the folder of --model_name_or_path decides", "not needed")
    else:
        folder = TOKENIZER
        _shape(taken, architecture)
    _prepare(taken, hub.as_location(tokenizer) if tokenizer else folder)
    if "model.hidden_dropout" not in taken.values:
        dropout = 0.0 if architecture == "modernbert" else 0.1
        taken.values |= {"model.hidden_dropout": dropout, "model.attention_dropout": dropout}
    return architecture


def _guess(name_or_path: str) -> str:
    """`modernbert` where the name or the folder's config.json says so; the others have one dropout and one offset."""
    try:
        return (
            read_hf_config(name_or_path, head=False).architecture
            if os.path.isdir(name_or_path)
            else _by_name(name_or_path)
        )
    except ModelError:  # the run says what is wrong with it
        return _by_name(name_or_path)


def _by_name(name_or_path: str) -> str:
    return (
        "modernbert" if any(part in name_or_path.lower() for part in ("modernbert", "ettin", "mmbert")) else "roberta"
    )


def _on_hub(name_or_path: str) -> bool:
    """Whether it is a name on the Hub and not a path: a path has more slashes, one at its end, or exists here."""
    return (
        bool(HUB_NAME.fullmatch(name_or_path)) and not name_or_path.startswith(".") and not os.path.isdir(name_or_path)
    )


def _shape(taken: Taken, architecture: str) -> None:
    """The shape of a model from scratch: that of the family's class in transformers, with the overrides."""
    known = architecture if architecture in get_args(Architecture) else "roberta"
    values: dict[str, Any] = {taken.key(name): size for name, size in (BASE | OTHER_BASES.get(known, {})).items()}
    if known == "modernbert":
        values["model.global_attn_every_n_layers"] = 3
    overrides = dict(part.partition("=")[::2] for part in (taken.text("config_overrides") or "").split(",") if part)
    for name in [name for name in (*BASE, "hidden_dropout_prob", "attention_probs_dropout_prob") if name in overrides]:
        number = number_of(overrides.pop(name), f"--config_overrides {name}")
        values[taken.key(name)] = number if "dropout" in name else int(number)
    if positions := int(number_of(overrides.pop("max_position_embeddings", "0"), "--config_overrides")):
        values["model.max_seq_len"] = positions - (POSITION_OFFSET if known in OFFSET else 0)
    overrides.pop("vocab_size", None)  # that of the tokenizer, as in the script
    taken.values |= {"model.architecture": known, **values}
    if not taken.text("model_type") and not taken.text("config_name"):
        taken.row("model_type", "left out", f"the command names no model; model.architecture: {known} takes its place")
    if known == architecture:
        taken.note("model_type", f"model.architecture: {known}", "mapped")
    else:
        taken.note("model_type", f"there is no {architecture} here; model.architecture: roberta takes its place")
    left = f"; left out: {', '.join(f'{name}={value}' for name, value in overrides.items())}" if overrides else ""
    taken.note("config_overrides", f"model.*{left}", "mapped")
    taken.note("config_name", "give its shape as model.hidden_size, model.num_hidden_layers and their neighbours")


# ---- the text ------------------------------------------------------------------------------------------------------


def _prepare(taken: Taken, tokenizer: str) -> None:
    """Adds the lines that fetch the text and prepare the store."""
    words = ["maskwright", "data", "prepare"]
    taken.note("tokenizer_name", f"data prepare --tokenizer {tokenizer}", "mapped")
    validation = taken.text("validation_file")
    name = taken.text("dataset_name")
    if name:
        part = taken.text("dataset_config_name")
        folder = f"{fetched_data(taken)}/{part + '/' if part else ''}"
        words.append(f"{folder}train-*.parquet")
        if not validation and name.rpartition("/")[2] in HAS_VALIDATION:
            validation = f"{folder}validation-*.parquet"
        taken.note("dataset_name", "data prepare reads its Parquet files; look where the folder has them", "mapped")
        taken.note("dataset_config_name", "the folder of those files", "mapped")
    elif file := taken.text("train_file"):
        words.append(file)
        taken.note("train_file", "data prepare reads it once, and keeps one of equal texts", "mapped")
    else:
        words.append("corpus.txt")
        taken.row("train_file", "left out", "the command names no text; corpus.txt stands for it")
    words += ["--tokenizer", tokenizer, "--to", STORE]
    if taken.has("line_by_line") or os.path.basename(taken.typed.script) == WHOLE_WORDS:
        words += ["--layout", "lines"]
        taken.row("line_by_line", _fate(taken, "line_by_line"), "data prepare --layout lines: each line is a document")
        what = "a row for each line: here lines share rows, so an epoch has fewer updates, and each reads more text"
        taken.row("line_by_line", "left out", f"{what}; schedule.steps sets their number")
    if validation:
        words += ["--valid-files", validation]
        taken.row("validation_file", _fate(taken, "validation_file"), f"data prepare --valid-files {validation}")
        taken.note("validation_split_percentage", "the text has a held-out part of its own", "not needed")
    else:
        share = taken.number("validation_split_percentage", 5) / 100
        words += ["--valid-fraction", f"{share:g}"]
        became = f"data prepare --valid-fraction {share:g}"
        became += "; if the data set has a validation part, the script takes that: --valid-files" if name else ""
        taken.row("validation_split_percentage", _fate(taken, "validation_split_percentage"), became)
    taken.before.append(shlex.join(words))
    taken.note("max_train_samples", "prepare a part of the text instead")


def fetched_data(taken: Taken) -> str:
    """The folder of --dataset_name. If it is a name on the Hub, adds the line that fetches it."""
    name = str(taken.text("dataset_name"))
    if not _on_hub(name):
        return name.rstrip("/")
    folder = f"data/{name.rpartition('/')[2]}"
    taken.before.append(f"hf download {shlex.quote(name)} --repo-type dataset --local-dir {shlex.quote(folder)}")
    return folder


def _fate(taken: Taken, name: str) -> Fate:
    return "mapped" if name in taken.typed.flags else "default"


def _rows(taken: Taken, architecture: str) -> None:
    row_length = taken.whole("max_seq_length", 0)
    note = "" if row_length else "the tokenizer's own limit, and at most 1,024"
    length = row_length or (1024 if architecture == "modernbert" else 512)
    taken.set("max_seq_length", {"data.seq_len": length}, note)
    taken.set("mlm_probability", {"masking.rate": taken.number("mlm_probability", 0.15)})
    if "max_eval_samples" in taken.typed.flags:
        taken.set("max_eval_samples", {"evaluation.max_rows": taken.whole("max_eval_samples", 512)})


def _batch(taken: Taken) -> None:
    taken.set("per_device_train_batch_size", {"batch.micro_batch_rows": taken.whole("per_device_train_batch_size", 8)})
    steps, processes = taken.whole("gradient_accumulation_steps", 1), taken.typed.world_size
    note = f"{steps} accumulated x {several(processes, 'process', 'processes')}"
    taken.set("gradient_accumulation_steps", {"batch.virtual_workers": steps * processes}, note)
