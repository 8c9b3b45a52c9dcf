"""`python -m pretrain` of allenai/tpu_pretrain, on its folder of pregenerated epochs; pytorch-transformers' script for
GPUs, which reads the same folders; and the script that writes them, whose place `data prepare` takes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

from maskwright.core import hub
from maskwright.core.console import several
from maskwright.core.console import typed as typed_command
from maskwright.data.foreign.pregenerated import read_metrics
from maskwright.tasks.importing.taken import FlagFate, Taken
from maskwright.tasks.importing.typed import GPUS, ScriptSignature, Typed

FOR_GPUS, WRITER = "finetune_on_pregenerated.py", "pregenerate_training_data.py"
SCRIPT = ScriptSignature(
    ("pretrain.py", FOR_GPUS, WRITER),
    modules=("pretrain",),
    switches=frozenset(
        {"reduce_memory", "one_tpu", "tpu_report", "track_learning_rate", "do_lower_case", "fp16", "no_cuda"}
        | {"do_whole_word_mask", "do_next_sent_prediction"}
    ),
    several_values=frozenset({"betas"}),
    writer=WRITER,
)
NUM_CORES = 8
"""Cores of the v2-8 and v3-8 that the script was written for."""


def tpu_pretrain(typed: Typed) -> Taken:
    taken, script = Taken(typed), os.path.basename(typed.script)
    taken.set("bert_model", {"model.init_from": hub.as_location(taken.text("bert_model") or "roberta-base")})
    if script == WRITER:
        taken.set("epochs_to_generate", {"schedule.epochs": taken.number("epochs_to_generate", 3.0)})
        taken.set("learning_rate", {"optimizer.learning_rate": 3e-5}, "of pretrain.py")
        return _of_text(taken)
    taken.run_in("output_dir")
    folder = taken.text("pregenerated_data") or "training_data"
    is_written = _written_before(taken, folder)
    kind = {} if is_written else {"data.format": "pregenerated"}
    taken.set("pregenerated_data", {"data.store": folder} | kind)
    taken.values |= {"model.hidden_dropout": 0.1, "model.attention_dropout": 0.1}
    taken.take({"learning_rate": 3e-5, "adam_epsilon": 1e-8, "epochs": 3.0, "seed": 42})
    for_gpus = script == FOR_GPUS
    taken.betas("betas", f"0.9 {0.999 if for_gpus else 0.98}")
    taken.values["schedule.kind"] = "linear"
    taken.set("weight_decay", {"optimizer.weight_decay": 0.01})
    taken.set("max_grad_norm", {"optimizer.max_grad_norm": None}, "the script does not clip")
    taken.take({"warmup_proportion": float} if taken.number("warmup_proportion", 0.0) else {"warmup_steps": 0})
    (_of_gpus if for_gpus else _of_cores)(taken)
    taken.values["engine.dtype"] = "fp32"
    taken.precision()
    if not is_written:
        _of_folder(taken, folder)
    taken.close(
        not_needed={
            "tpu_ip": "a TPU's hosts find their own chips",
            "warmup_steps warmup_proportion": "the other warm-up flag decides",
        },
    )
    return taken


def _of_folder(taken: Taken, folder: str) -> None:
    """Takes over the folder's settings: the length of its rows, if it is here. The masks are drawn again."""
    lengths = [read_metrics(folder, epoch)[1] for epoch in _epochs_here(folder)]
    unsaid = "set it to the value that made the examples"
    source = f"from {folder}/epoch_*_metrics.json" if lengths else unsaid
    taken.set("max_seq_len", {"data.seq_len": max(lengths, default=512)}, source)
    taken.set("masked_lm_prob", {"masking.rate": 0.15}, unsaid)
    taken.set("do_whole_word_mask", {"masking.kind": "token"}, unsaid)


def _written_before(taken: Taken, folder: str) -> bool:
    """Takes over the command before it that writes the folder, if there is one."""
    if taken.typed.written_by is None:
        return False
    writer = _of_text(Taken(taken.typed.written_by))
    store = writer.values["data.store"]
    if os.path.normpath(store) != os.path.normpath(folder):
        what = f"{WRITER} writes {store}, and the training reads {folder}: import each in single quotes"
        taken.rows.append(FlagFate(writer.typed.script, "", "left out", what))
        return False
    taken.values |= writer.values
    taken.rows += writer.rows
    taken.before += writer.before
    return True


def _of_text(taken: Taken) -> Taken:
    """Takes over the script that writes the epochs: `data prepare` reads its text, and `pretrain` draws the masks."""
    text, store = taken.text("train_corpus") or "corpus.txt", taken.text("output_dir") or "training_data"
    tokenizer = hub.as_location(taken.text("bert_model") or "roberta-base")
    words = ["--tokenizer", tokenizer, "--to", store, "--layout", "sentences"]
    taken.before.append(typed_command(["data", "prepare", text, *words]))
    taken.note("train_corpus", "data prepare reads it once; pretrain masks it again in each epoch", "mapped")
    taken.set("output_dir", {"data.store": store})
    taken.set("max_seq_len", {"data.seq_len": taken.whole("max_seq_len", 128)})
    taken.set("masked_lm_prob", {"masking.rate": taken.number("masked_lm_prob", 0.15)})
    taken.set("do_whole_word_mask", {"masking.kind": "whole_word" if taken.has("do_whole_word_mask") else "token"})
    taken.close(
        mapped={"bert_model": f"data prepare --tokenizer {tokenizer}"},
        left_out={
            "short_seq_prob": "documents share rows of data.seq_len",
            "max_predictions_per_seq": "masking.rate decides",
            "do_next_sent_prediction": "next-sentence prediction is unsupported; only masked tokens are predicted",
        },
        not_needed={
            "epochs_to_generate": "pretrain masks the text again in each epoch",
            "num_workers": "data prepare uses all cores; --workers sets their number",
        },
    )
    return taken


def _epochs_here(folder: str) -> Iterator[int]:
    """The epochs whose metrics exist here; none where the folder is on another machine."""
    return itertools.takewhile(
        lambda n: os.path.exists(os.path.join(folder, f"epoch_{n}_metrics.json")), itertools.count()
    )


def _of_cores(taken: Taken) -> None:
    """Takes over the batch. The script's --train_batch_size counts for one core, contrary to its help."""
    cores = 1 if taken.has("one_tpu") else taken.typed.devices if taken.typed.counted_by else NUM_CORES
    taken.switch({"one_tpu": {"engine.devices": 1}})
    what = "for TPUs; on any other machine, --set engine.kind=torch"
    taken.set("num_cores", {"engine.kind": "jax"}, what)
    taken.set("train_batch_size", {"batch.micro_batch_rows": taken.whole("train_batch_size", 32)}, "of one core")
    steps = max(1, taken.whole("gradient_accumulation_steps", 1))
    note = f"{steps} accumulated x {several(cores, 'core')}"
    taken.set("gradient_accumulation_steps", {"batch.virtual_workers": steps * cores}, note)


def _of_gpus(taken: Taken) -> None:
    """Takes over the batch of the script for GPUs. Its --train_batch_size counts for an update, or for each process's
    part if a launcher starts several."""
    steps, processes = max(1, taken.whole("gradient_accumulation_steps", 1)), taken.typed.devices
    rows = max(1, taken.whole("train_batch_size", 32) // steps)
    if taken.typed.counted_by in ("--devices", GPUS) and not taken.typed.launcher and rows % processes == 0:
        rows //= processes
    values = {"batch.micro_batch_rows": rows, "batch.virtual_workers": steps * processes}
    taken.set("train_batch_size", values, f"{steps} accumulated x {taken.count}")
    taken.note("gradient_accumulation_steps", "see --train_batch_size", "mapped")
    taken.row("is_next", "left out", "next-sentence prediction is unsupported; only masked tokens are predicted")
    if not {"warmup_steps", "warmup_proportion"} & taken.typed.flags.keys():
        what = "pytorch-pretrained-BERT's script warms up for 0.1 of its steps, later ones do not"
        taken.row("warmup_proportion", "left out", f"{what}: set schedule.warmup_share")
