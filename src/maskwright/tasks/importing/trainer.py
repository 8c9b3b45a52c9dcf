"""The arguments of transformers' Trainer (5.x) that matter for a run, for run_mlm.py and run_glue.py."""

from __future__ import annotations

import json
import math
import os
from typing import Any, get_args

from maskwright.config.foreign_names import VALUES
from maskwright.config.pretraining import KEYS, Reported
from maskwright.core import hub
from maskwright.core.errors import InputError
from maskwright.core.secrets import HIDDEN
from maskwright.core.storage import read_json
from maskwright.tasks.importing.taken import ON_CPU, Taken, number_of, shown
from maskwright.tasks.importing.typed import ALONE, GPUS, SECRET

ALIASES = {
    "max_train_steps": "max_steps",
    "num_warmup_steps": "warmup_steps",
    "max_length": "max_seq_length",
    "checkpointing_steps": "save_steps",
    "evaluation_strategy": "eval_strategy",
    "activation_checkpointing": "gradient_checkpointing",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "train_data_file": "train_file",
    "train_data_files": "train_file",
    "eval_data_file": "validation_file",
    "block_size": "max_seq_length",
    "push_to_hub_model_id": "hub_model_id",
    "use_auth_token": "token",
    "hub_token": "token",
    "tb_log_dir": "logging_dir",
    "warmup_proportion": "warmup_ratio",
    "text_column_name": "text_column_names",
    "metric_name": "metric_for_best_model",
}
"""The Trainer's names of today, by the names in scripts without a Trainer and by the Trainer's older and newer
names."""
_SWITCHES = """
do_train do_eval do_predict bf16 fp16 tf32 use_cpu no_cuda torch_compile gradient_checkpointing line_by_line
pad_to_max_length overwrite_output_dir overwrite_cache streaming push_to_hub hub_private_repo hub_always_push
load_best_model_at_end greater_is_better group_by_length dataloader_drop_last dataloader_pin_memory
dataloader_persistent_workers disable_tqdm trust_remote_code use_fast_tokenizer ignore_data_skip adafactor
auto_find_batch_size full_determinism remove_unused_columns ignore_mismatched_sizes do_regression
save_only_model save_safetensors prediction_loss_only activation_checkpointing logging_first_step
bf16_full_eval fp16_full_eval low_cpu_mem_usage mlm evaluate_during_training do_lower_case use_auth_token
tpu_metrics_debug shuffle_train_dataset
"""
SWITCHES = frozenset(_SWITCHES.split())
MAPPED = {
    "lr_scheduler_kwargs": "schedule.*",
    "save_strategy": "checkpoint.save_every_steps and save_every_seconds",
    "eval_strategy evaluate_during_training": "evaluation.every_steps",
    "push_to_hub": "`export --push`, after the proof",
    "hub_model_id": "export --push OWNER/NAME",
    "model_revision": "part of model.init_from, after @",
    "dataset_config_name": "the folder of the data set's files",
    "gradient_accumulation_steps": "see --per_device_train_batch_size",
    "optim": "optimizer.kind: adamw",
}
LEFT_OUT = {
    "adafactor": "replaced by AdamW in fp32, which may need another learning rate",
    "cache_dir": "set the variable HF_HUB_CACHE to it, where models of the Hub are kept",
    "trust_remote_code": "code that comes with a model is never run",
}
NOT_NEEDED = {
    "logging_strategy run_name": "the run directory contains log.txt, metrics.jsonl and events/",
    "data_seed": "one seed decides everything",
    "dtype": "weights stay in fp32; engine.dtype sets the precision of the products",
    "fsdp fsdp_config deepspeed": "processes always shard the fp32 weights and the moments",
    "max_steps num_train_epochs": "the other flag of the length decides",
    "warmup_steps warmup_ratio": "the schedule or the other warm-up flag decides",
    "save_steps eval_steps": "the strategy decides",
    "ignore_mismatched_sizes": "a head for other labels always starts from random weights",
}


def _require_training(taken: Taken) -> None:
    """Raises `InputError` for a command that evaluates or predicts alone."""
    if "no_trainer" in taken.typed.script or taken.has("do_train"):
        return
    asked = [f"--{name}" for name in ("do_eval", "do_predict") if taken.has(name)]
    if not asked:
        return taken.row("do_train", "default", "not given, so the script would not train: here the run does")
    store = "`maskwright evaluate MODEL --store STORE`, after `data prepare FILE --valid-fraction 1 … --to STORE`"
    labels = "`maskwright evaluate MODEL --input FILE`, or `maskwright predict MODEL --input FILE --to OUT`"
    fix = f"use {store if taken.verb == 'pretrain' else labels}; to train, add --do_train"
    raise InputError(f"without --do_train, it only evaluates ({' '.join(asked)})", where=taken.typed.script, fix=fix)


def training(taken: Taken) -> None:
    """Takes over all arguments of the Trainer but the sizes of its batches. Raises `InputError` for a command that does
    not train."""
    _require_training(taken)
    script = taken.typed.script
    taken.take(
        {"learning_rate": 5e-5, "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8, "weight_decay": 0.0}
    )
    taken.take({"seed": 42, "save_total_limit": int})
    clip, note = taken.number("max_grad_norm", 1.0), ""
    if "no_trainer" in script:
        clip, note = 0.0, "that script does not clip"
    taken.set("max_grad_norm", {"optimizer.max_grad_norm": clip or None}, note)
    if VALUES["optimizer.kind"].get(taken.text("optim") or "adamw_torch") != "adamw":
        taken.note("optim", LEFT_OUT["adafactor"])
    steps = taken.whole("max_steps", -1)
    taken.take({"max_steps": int} if steps > 0 else {"num_train_epochs": 3.0})
    _schedule(taken)
    taken.precision()
    taken.switch(
        {
            "torch_compile": {"engine.compile": "on"},
            "gradient_checkpointing": {"engine.activation_checkpointing": "on"},
        }
    )
    if "engine.dtype" not in taken.values:
        taken.set("bf16", {"engine.dtype": "fp32"}, "auto uses bf16 if the hardware supports it, and is faster")
    _often(taken, steps if steps > 0 else None)
    _reports(taken)
    if taken.has("push_to_hub"):
        name = taken.text("hub_model_id") or "NAME"
        taken.push_to = name if "/" in name else f"OWNER/{name}"
        hub.require_name(taken.push_to, "--hub_model_id")


def _schedule(taken: Taken) -> None:
    kind = taken.text("lr_scheduler_type") or "linear"
    keywords, peak = _keywords(taken), taken.positive("learning_rate", 5e-5)
    name, values = "lr_scheduler_type", dict[str, Any]({"schedule.kind": VALUES["schedule.kind"].get(kind, kind)})
    if kind in ("cosine_with_min_lr", "cosine_warmup_with_min_lr") and keywords.keys() & {"min_lr_rate", "min_lr"}:
        share = keywords.pop("min_lr", 0.0) / peak
        values = {"schedule.kind": "cosine", "schedule.final_lr_share": keywords.pop("min_lr_rate", share)}
    elif kind == "polynomial":  # transformers always ends at 1e-7
        end = keywords.pop("lr_end", 1e-7) / peak
        values |= {"schedule.power": keywords.pop("power", 1.0), "schedule.final_lr_share": end}
    elif kind == "warmup_stable_decay":
        values["schedule.final_lr_share"] = keywords.pop("min_lr_ratio", 0.0)
        if "num_decay_steps" in keywords:
            values["schedule.decay_steps"] = int(keywords.pop("num_decay_steps"))
        taken.row(name, "left out", "the shape of its decay; here the rate falls as 1 - sqrt")
    if KEYS["schedule.kind"].accepts(str(values["schedule.kind"])):
        taken.set(name, values)
    else:
        taken.values["schedule.kind"] = "linear"
        taken.note(name, "unsupported; replaced by schedule.kind: linear")
    if keywords:
        taken.note("lr_scheduler_kwargs", f"left out: {', '.join(sorted(keywords))}")
    if kind == "constant":  # the only one without warm-up, even if flags set it
        taken.values["schedule.warmup_steps"] = 0
        return
    ratio, amount = max(0.0, taken.number("warmup_ratio", 0.0)), max(0.0, taken.number("warmup_steps", 0.0))
    name, amount = ("warmup_ratio", ratio) if ratio and not amount else ("warmup_steps", amount)
    is_share = 0.0 < amount < 1.0 or name == "warmup_ratio"
    taken.set(name, {"schedule.warmup_share": amount} if is_share else {"schedule.warmup_steps": int(amount)})


def _keywords(taken: Taken) -> dict[str, Any]:
    text = taken.text("lr_scheduler_kwargs")
    try:
        content = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        fix = """write it in quotes: --lr_scheduler_kwargs '{"min_lr_rate": 0.1}'"""
        raise InputError(f"{text} is not a JSON object", where="--lr_scheduler_kwargs", fix=fix)
    for name in ("min_lr_rate", "min_lr", "power", "lr_end", "num_decay_steps", "min_lr_ratio"):
        if content.get(name) is not None:
            content[name] = number_of(str(content[name]), f"--lr_scheduler_kwargs {name}")
    return {name: value for name, value in content.items() if value is not None}


def _often(taken: Taken, steps: int | None) -> None:
    """Takes over the intervals of logging, saving and evaluation."""
    logged = _every(taken, "logging_steps", "logging.every_steps", 500, steps)
    if (taken.text("save_strategy") or "steps") == "steps":
        _every(taken, "save_steps", "checkpoint.save_every_steps", 500, steps, "and every ten minutes")
    evaluated = taken.text("eval_strategy") or ("steps" if taken.has("evaluate_during_training") else "no")
    if evaluated == "steps":
        _every(taken, "eval_steps", "evaluation.every_steps", logged or 500, steps)
    elif evaluated == "no":
        taken.note("eval_strategy", "a run still evaluates at its start and end", "not needed")
    elif taken.verb == "pretrain":
        taken.note("eval_strategy", "set evaluation.every_steps")


def _every(taken: Taken, name: str, key: str, default: int, steps: int | None, note: str = "") -> int | None:
    """Takes over a number of steps or, below 1, a share of all of them. Returns it; None if the number needs the
    data."""
    if (taken.text(name) or "").isalpha():  # `epoch`, in the scripts without a Trainer
        taken.note(name, f"set {key}")
        return None
    amount = taken.positive(name, default)
    if amount < 1 and not steps:
        taken.note(name, f"set {key} to {amount:g} of the steps that `maskwright {taken.verb} … --dry-run` prints")
        return None
    every = math.ceil(amount * steps) if amount < 1 and steps else int(amount)
    note = f"more than the run's {steps:,} steps, so only at its end" if steps and every > steps else note
    taken.set(name, {key: every}, f"{amount:g} of {steps:,} steps" if amount < 1 else note)
    return every


def _reports(taken: Taken) -> None:
    services = (taken.text("report_to") or "none").split()
    known = [name for name in get_args(Reported) if name in services]
    if "all" in services:  # all that are installed on that machine
        known = list(dict.fromkeys(["tensorboard", *known]))
    others = [name for name in services if name not in (*known, "all", "none")]
    taken.values["logging.report_to"] = known
    became = f"logging.report_to: {shown(known)}"
    if others:
        taken.note("report_to", f"{became}; {' and '.join(others)} can read RUN/metrics.jsonl", "left out")
    taken.note("report_to", became, "mapped")


def begin(taken: Taken) -> None:
    """Adds the flags of the JSON file that may replace all others, by today's names, and counts the cores of a TPU.
    Raises `InputError` where the file is absent."""
    for word in [word for word in taken.typed.words if word.endswith(".json")]:
        if not os.path.isfile(word):
            raise InputError("no such file", where=word, fix="give the file's path from here")
        content = read_json(word)
        for name, value in content.items() if isinstance(content, dict) else ():
            values = [] if value is None else value if isinstance(value, list) else [value]
            texts = [json.dumps(item) if isinstance(item, dict) else str(item) for item in values]
            if value is not None:
                taken.typed.flags[name] = [HIDDEN] if SECRET.search(name) else texts
        taken.typed.words.remove(word)
    taken.rename(ALIASES)
    if cores := taken.whole("tpu_num_cores", 0):
        taken.typed.devices, taken.typed.counted_by = cores, "--tpu_num_cores"
    one = "no_trainer" in taken.typed.script or any(map(taken.has, ON_CPU))
    if cores or "xla_spawn.py" in taken.typed.original:
        taken.set("tpu_num_cores", {"engine.kind": "jax"}, "for TPUs")
    elif one and taken.typed.counted_by == GPUS:
        taken.typed.devices = 1
    elif not (one or taken.typed.launcher):
        taken.typed.counted_by = taken.typed.counted_by or ALONE  # the Trainer multiplies the batch by their number
