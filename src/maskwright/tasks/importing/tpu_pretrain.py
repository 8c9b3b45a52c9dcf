"""`python -m pretrain` of allenai/tpu_pretrain, on its folder of pregenerated epochs, and
pytorch-transformers' script for GPUs, which reads the same folders."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

from maskwright.core import hub
from maskwright.core.console import several
from maskwright.data.foreign.pregenerated import RECORD, read_metrics, read_record
from maskwright.tasks.importing.taken import Taken
from maskwright.tasks.importing.typed import ScriptSignature, Typed

FOR_GPUS = "finetune_on_pregenerated.py"
SCRIPT = ScriptSignature(
    ("pretrain.py", FOR_GPUS),
    modules=("pretrain",),
    switches=frozenset(
        {"reduce_memory", "one_tpu", "tpu_report", "track_learning_rate", "do_lower_case", "fp16", "no_cuda"}
    ),
    several_values=frozenset({"betas"}),
)
NUM_CORES = 8
"""Cores of the v2-8 and v3-8 that the script was written for."""


def tpu_pretrain(typed: Typed, devices: int | None) -> Taken:
    taken = Taken(typed)
    taken.run_in("output_dir")
    folder = taken.text("pregenerated_data") or "training_data"
    taken.set("pregenerated_data", {"data.store": folder, "data.format": "pregenerated"})
    lengths = [read_metrics(folder, epoch)[1] for epoch in _epochs_here(folder)]
    taken.values["data.seq_len"] = max(lengths, default=512)
    source = f"as {folder}/epoch_*_metrics.json say" if lengths else "set it to what the examples were made with"
    taken.row("max_seq_len", "default", f"data.seq_len: {taken.values['data.seq_len']}; {source}")
    _masks(taken, folder)
    taken.set("bert_model", {"model.init_from": hub.as_location(taken.text("bert_model") or "roberta-base")})
    taken.values |= {"model.hidden_dropout": 0.1, "model.attention_dropout": 0.1}
    taken.keys(learning_rate=3e-5, adam_epsilon=1e-8, epochs=3.0, seed=42)
    for_gpus = os.path.basename(typed.script) == FOR_GPUS
    taken.betas("betas", f"0.9 {0.999 if for_gpus else 0.98}")
    taken.values |= {"optimizer.weight_decay": 0.01, "optimizer.max_grad_norm": None, "schedule.kind": "linear"}
    taken.row("weight_decay", "default", "optimizer.weight_decay: 0.01")
    taken.row("max_grad_norm", "default", "optimizer.max_grad_norm: null (it clips nothing)")
    if share := taken.number("warmup_proportion", 0.0):
        taken.set("warmup_proportion", {"schedule.warmup_share": share})
        taken.note("warmup_steps", "--warmup_proportion decides", "not needed")
    else:
        taken.set("warmup_steps", {"schedule.warmup_steps": taken.whole("warmup_steps", 0)})
    if for_gpus:
        _of_gpus(taken, devices)
    else:
        _batch(taken, devices)
    taken.values["engine.dtype"] = "fp16" if taken.has("fp16") else "fp32"
    taken.note("fp16", "engine.dtype: fp16", "mapped")
    if taken.has("no_cuda"):
        taken.set("no_cuda", {"engine.device": "cpu"})
    taken.close({"tpu_ip": "a TPU's hosts find their own chips"})
    return taken


def _epochs_here(folder: str) -> Iterator[int]:
    """The epochs whose metrics exist here; none where the folder is on another machine."""
    return itertools.takewhile(
        lambda n: os.path.exists(os.path.join(folder, f"epoch_{n}_metrics.json")), itertools.count()
    )


def _masks(taken: Taken, folder: str) -> None:
    """Takes over how the folder was masked, if `data pregenerate` wrote it. The masks themselves are drawn anew."""
    record = read_record(folder)
    options = record.get("options") or record.get("repaired") or {}
    where = f"as {folder}/{RECORD} says" if options else "set it to what the examples were made with"
    rate, whole_words = options.get("masked_lm_prob", 0.15), options.get("do_whole_word_mask") is True
    values = {"masking.rate": rate, "masking.kind": "whole_word" if whole_words else "token"}
    taken.values |= values
    for flag, (key, value) in zip(("masked_lm_prob", "do_whole_word_mask"), values.items(), strict=True):
        taken.row(flag, "default", f"{key}: {value}; {where}")


def _batch(taken: Taken, devices: int | None) -> None:
    """Takes over the batch. The script's --train_batch_size is that of one core, though its help says otherwise."""
    cores = 1 if taken.has("one_tpu") else devices or NUM_CORES
    taken.values["engine.kind"] = "jax"
    if taken.has("one_tpu"):
        taken.set("one_tpu", {"engine.devices": 1})
    what = "engine.kind: jax, for TPUs; `--set engine.kind=torch` trains on any other machine"
    taken.row("num_cores", "default", what)
    taken.set("train_batch_size", {"batch.micro_batch_rows": taken.whole("train_batch_size", 32)}, "of one core")
    steps = max(1, taken.whole("gradient_accumulation_steps", 1))
    note = f"{steps} accumulated x {several(cores, 'core')}"
    taken.set("gradient_accumulation_steps", {"batch.virtual_workers": steps * cores}, note)


def _of_gpus(taken: Taken, devices: int | None) -> None:
    """Takes over the batch of the script for GPUs. Its --train_batch_size is that of an update, or of an update of each
    process that a launcher starts."""
    steps, processes = max(1, taken.whole("gradient_accumulation_steps", 1)), taken.typed.world_size
    rows = max(1, taken.whole("train_batch_size", 32) // steps)
    parts = steps * processes
    if processes == 1 and devices and rows % devices == 0:
        rows, parts = rows // devices, steps * devices
    note = f"{rows} x {parts} are its rows of an update" if processes == 1 else f"of each of {processes} processes"
    taken.set("train_batch_size", {"batch.micro_batch_rows": rows, "batch.virtual_workers": parts}, note)
    taken.note("gradient_accumulation_steps", "see --train_batch_size", "mapped")
    taken.row(
        "is_next", "left out", "the loss of next sentences, which its model has besides: masked tokens are trained"
    )
    if not {"warmup_steps", "warmup_proportion"} & taken.typed.flags.keys():
        what = "pytorch-pretrained-BERT's script warms up for 0.1 of its steps, later ones do not"
        taken.row("warmup_proportion", "left out", f"{what}: set schedule.warmup_share")
