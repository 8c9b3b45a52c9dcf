"""`run_mlm.py` of transformers' examples: pretraining from its text files or from a data set of the Hub."""

from __future__ import annotations

import os
import re
import shlex
from contextlib import suppress
from typing import Any, get_args

from maskwright.config.pretraining import Architecture
from maskwright.core import hub
from maskwright.core.console import typed
from maskwright.core.errors import InputError, ModelError
from maskwright.model.hf.config import read_hf_config
from maskwright.tasks.importing.taken import Fate, Taken, number_of
from maskwright.tasks.importing.trainer import LEFT_OUT, MAPPED, NOT_NEEDED, SWITCHES, begin, training
from maskwright.tasks.importing.typed import ScriptSignature, Typed

WHOLE_WORDS = "run_mlm_wwm.py"
OLDER = "run_language_modeling.py"
"""Its name before transformers 4, in which --mlm chose between two tasks."""
SCRIPT = ScriptSignature(("run_mlm.py", "run_mlm_no_trainer.py", WHOLE_WORDS, OLDER), switches=SWITCHES)
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
HAS_VALIDATION = ("wikitext",)
"""Data sets named on the scripts' pages that come with a held-out split."""
STORE, TOKENIZER = "data/store", "tokenizer"
BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
OTHER_BASES = {
    "modernbert": {"num_hidden_layers": 22, "intermediate_size": 1152},
    "distilbert": {"num_hidden_layers": 6},
}
OFFSET = ("roberta", "xlm-roberta", "camembert")
POSITION_OFFSET = 2
"""RoBERTa's first two positions belong to no token, so 514 positions mean rows of 512."""


def run_mlm(command: Typed) -> Taken:
    taken, script = Taken(command), os.path.basename(command.script)
    begin(taken)
    if script == OLDER and not taken.has("mlm"):
        fix = "add --mlm, if masked tokens are what you want"
        raise InputError("without --mlm it trains a causal model, which maskwright does not", where=script, fix=fix)
    taken.run_in("output_dir")
    taken.values["data.store"] = STORE
    if script == WHOLE_WORDS:
        taken.set("mlm", {"masking.kind": "whole_word"})
    architecture = _model(taken)
    length = taken.whole("max_seq_length", 0)
    limit = 1024 if architecture == "modernbert" else 512
    note = "" if length else "the tokenizer's limit, at most 1,024"
    taken.set("max_seq_length", {"data.seq_len": length or limit}, note)
    steps, devices = taken.whole("gradient_accumulation_steps", 1), command.devices
    taken.take({"mlm_probability": 0.15, "max_eval_samples": int, "per_device_train_batch_size": 8})
    workers = {"batch.virtual_workers": steps * devices}
    taken.set("gradient_accumulation_steps", workers, f"{steps} accumulated x {taken.count}")
    training(taken)
    taken.patience("early_stopping_patience")
    best = "with evaluation.patience, the best checkpoint by held-out loss is kept and exported"
    left_out = {
        "train_ref_file validation_ref_file": "in Chinese each character is a word: set masking.kind=span",
        "max_train_samples": "prepare a part of the text instead",
        "label_smoothing_factor": "unsupported in pretraining",
        "load_best_model_at_end metric_for_best_model greater_is_better": best,
        "config_name": "give its shape as model.hidden_size, model.num_hidden_layers and related keys",
    }
    mapped = {"mlm": "a run always predicts masked tokens", "config_overrides": "model.*"}
    if not taken.number("label_smoothing_factor", 0.0):
        taken.note("label_smoothing_factor", "it is off", "not needed")
    not_needed = {"plm_probability max_span_length": "it is for XLNet"}
    taken.close(MAPPED | mapped, LEFT_OUT | left_out, NOT_NEEDED | not_needed)
    return taken


# ---- the model -----------------------------------------------------------------------------------------------------


def _model(taken: Taken) -> str:
    """The model's architecture, as far as the flags give it. Adds the row of the model's location."""
    name_or_path, tokenizer = taken.text("model_name_or_path"), taken.text("tokenizer_name")
    architecture = taken.text("model_type") or _guess(name_or_path or taken.text("config_name") or "")
    folder = TOKENIZER
    if name_or_path:
        folder = hub.as_location(name_or_path, taken.text("model_revision"))
        taken.set("model_name_or_path", {"model.init_from": folder})
        taken.note("model_type config_name config_overrides", "the folder of the model decides", "not needed")
    else:
        _shape(taken, architecture)
    _prepare(taken, hub.as_location(tokenizer) if tokenizer else folder)
    dropout = 0.0 if architecture == "modernbert" else 0.1
    dropouts = {"model.hidden_dropout": dropout, "model.attention_dropout": dropout}
    taken.values = dropouts | taken.values
    return architecture


def _guess(name_or_path: str) -> str:
    """`modernbert` where the name or the folder's config.json says so; the others have one dropout and one offset."""
    if os.path.isdir(name_or_path):
        with suppress(ModelError):  # the run will report the error
            return read_hf_config(name_or_path, head=False).architecture
    return "modernbert" if re.search("modernbert|ettin|mmbert", name_or_path.lower()) else "roberta"


def _shape(taken: Taken, architecture: str) -> None:
    """The shape of a model from scratch: the defaults of the family's class in transformers, with the overrides."""
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
    overrides.pop("vocab_size", None)  # the tokenizer decides, as in the script
    taken.values |= {"model.architecture": known, **values}
    if known != architecture or not (taken.text("model_type") or taken.text("config_name")):
        taken.row("model_type", "left out", f"replaced by model.architecture: {known}; change it if it is another")
    taken.note("model_type", f"model.architecture: {known}", "mapped")
    if overrides:
        left = ", ".join(f"{name}={value}" for name, value in overrides.items())
        taken.note("config_overrides", f"model.*; left out: {left}", "mapped")


# ---- the text ------------------------------------------------------------------------------------------------------


def _prepare(taken: Taken, tokenizer: str) -> None:
    """Adds the lines that fetch the text and prepare the store."""
    validation, name, file = (taken.text(flag) for flag in ("validation_file", "dataset_name", "train_file"))
    taken.note("tokenizer_name", f"data prepare --tokenizer {tokenizer}", "mapped")
    text, part = file or "corpus.txt", taken.text("dataset_config_name")
    if name:
        folder = f"{fetched_data(taken)}/{part + '/' if part else ''}"
        text = f"{folder}train-*.parquet"
        if not validation and name.rpartition("/")[2] in HAS_VALIDATION:
            validation = f"{folder}validation-*.parquet"
        taken.note("dataset_name", "data prepare reads its Parquet files; check their path in the folder", "mapped")
    elif not file:
        taken.row("train_file", "left out", "the command does not name the text: replace corpus.txt")
    taken.note("train_file", "data prepare reads it once and drops duplicates", "mapped")
    words = ["data", "prepare", text, "--tokenizer", tokenizer, "--to", STORE]
    if taken.has("line_by_line") or os.path.basename(taken.typed.script) == WHOLE_WORDS:
        words += ["--layout", "lines"]
        taken.note("line_by_line", "data prepare --layout lines: each line is a document", "mapped")
        what = "one row per line; here lines share rows, so an epoch has fewer updates, each with more text"
        taken.row("line_by_line", "left out", f"{what}; schedule.steps sets their number")
    if validation:
        words += ["--valid-files", validation]
        taken.note("validation_split_percentage", "the text has its own held-out split", "not needed")
    else:
        share = taken.number("validation_split_percentage", 5) / 100
        words += ["--valid-fraction", f"{share:g}"]
        became = f"data prepare --valid-fraction {share:g}"
        became += "; if the data set has a validation split, the script uses it: add --valid-files" if name else ""
        fate: Fate = "mapped" if "validation_split_percentage" in taken.typed.flags else "default"
        taken.row("validation_split_percentage", fate, became)
    taken.note("validation_file", f"data prepare --valid-files {validation}", "mapped")
    taken.before.append(typed(words))


def fetched_data(taken: Taken) -> str:
    """The folder of --dataset_name. If it is a name on the Hub, adds the line that fetches it: a path has more slashes,
    one at its end, or exists here."""
    name = str(taken.text("dataset_name"))
    if not HUB_NAME.fullmatch(name) or name.startswith(".") or os.path.isdir(name):
        return name.rstrip("/")
    folder = f"data/{name.rpartition('/')[2]}"
    taken.before.append(shlex.join(["hf", "download", name, "--repo-type", "dataset", "--local-dir", folder]))
    return folder
