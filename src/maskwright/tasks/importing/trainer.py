"""The arguments of transformers' Trainer (5.x) that matter for a run, for run_mlm.py and run_glue.py alike."""

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
from maskwright.tasks.importing.taken import FlagFate, Taken, number_of, shown
from maskwright.tasks.importing.typed import SECRET

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
"""The Trainer's names of today, by names in scripts without a Trainer and by its own older and newer ones."""
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
NOT_NEEDED = {
    "logging_strategy run_name": "the run directory has log.txt, metrics.jsonl and events/",
    "data_seed": "one seed decides everything, and a run gives the same bits again",
    "dtype": "weights are kept in fp32, and engine.dtype is that of the products",
    "fsdp fsdp_config deepspeed": "processes share out the fp32 weights and the moments by themselves",
}


def devices(taken: Taken) -> None:
    """Counts the GPUs that the Trainer would use without a launcher, and TPUs where xla_spawn starts it."""
    typed = taken.typed
    if typed.gpus and not typed.started_by and "no_trainer" not in typed.script and typed.world_size == 1:
        typed.world_size = typed.gpus
        if typed.gpus > 1:
            became = f"{typed.gpus} devices: without a launcher the Trainer computes on all of them"
            taken.rows.append(FlagFate("CUDA_VISIBLE_DEVICES", "", "mapped", became))
    if typed.started_by == "xla_spawn.py" or taken.whole("tpu_num_cores", 0):
        typed.world_size = max(typed.world_size, taken.whole("tpu_num_cores", 1))
        taken.values["engine.kind"] = "jax"
        taken.rows.append(FlagFate("xla_spawn.py", "", "mapped", "engine.kind: jax, for TPUs"))
        taken.note("tpu_num_cores", "batch.virtual_workers", "mapped")


def training(taken: Taken) -> None:
    """Takes over all arguments of the Trainer but the sizes of its batches."""
    taken.keys(learning_rate=5e-5, adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-8, weight_decay=0.0, seed=42)
    clips = "no_trainer" not in taken.typed.script
    clip = taken.number("max_grad_norm", 1.0) if clips else 0.0
    note = "" if clips else "that script clips nothing"
    taken.set("max_grad_norm", {"optimizer.max_grad_norm": clip or None}, note)
    _optimizer(taken)
    steps = _length(taken)
    _schedule(taken)
    _precision(taken)
    _saving(taken, steps)
    _elsewhere(taken)


def _optimizer(taken: Taken) -> None:
    if VALUES["optimizer.kind"].get(taken.text("optim") or "adamw_torch") == "adamw":
        taken.note("optim", "optimizer.kind: adamw", "mapped")
    else:
        taken.note("optim", "AdamW takes its place, in fp32: it may need another learning rate")
    taken.note("adafactor", "AdamW takes its place, in fp32: it may need another learning rate")


def _length(taken: Taken) -> int | None:
    """Takes over the length. Returns the number of steps, where it is known without the data."""
    steps = taken.whole("max_steps", -1)
    if steps > 0:
        taken.set("max_steps", {"schedule.steps": steps})
        taken.note("num_train_epochs", "--max_steps decides", "not needed")
        return steps
    taken.note("max_steps", "--num_train_epochs decides", "not needed")
    taken.set("num_train_epochs", {"schedule.epochs": taken.number("num_train_epochs", 3.0)})
    return None


def _schedule(taken: Taken) -> None:
    kind = taken.text("lr_scheduler_type") or "linear"
    keywords, peak = _keywords(taken), taken.positive("learning_rate", 5e-5)
    names = {*keywords}
    ours = VALUES["schedule.kind"].get(kind, kind)
    if KEYS["schedule.kind"].accepts(ours):
        taken.set("lr_scheduler_type", {"schedule.kind": ours})
    elif kind in ("cosine_with_min_lr", "cosine_warmup_with_min_lr") and keywords.keys() & {"min_lr_rate", "min_lr"}:
        share = keywords.pop("min_lr_rate", None)
        share = keywords.pop("min_lr", 0.0) / peak if share is None else share
        taken.set("lr_scheduler_type", {"schedule.kind": "cosine", "schedule.final_lr_share": share})
    else:
        taken.values["schedule.kind"] = "linear"
        taken.note("lr_scheduler_type", "there is none of its kind; schedule.kind: linear takes its place")
    if kind == "polynomial":
        # transformers ends at 1e-7 whatever the peak is.
        values = {
            "schedule.power": keywords.pop("power", 1.0),
            "schedule.final_lr_share": keywords.pop("lr_end", 1e-7) / peak,
        }
        taken.values |= values
    if kind == "warmup_stable_decay":
        if "num_decay_steps" in keywords:
            taken.values["schedule.decay_steps"] = int(keywords.pop("num_decay_steps"))
        taken.values["schedule.final_lr_share"] = keywords.pop("min_lr_ratio", 0.0)
        taken.row("lr_scheduler_type", "left out", "the curve of its decay: it falls as 1 - sqrt here")
    used = sorted(names - keywords.keys())
    left = f"left out: {', '.join(sorted(keywords))}" if keywords else ""
    became = "; ".join(part for part in (f"schedule.*: {', '.join(used)}" if used else "", left) if part)
    taken.note("lr_scheduler_kwargs", became or "nothing in it", "left out" if keywords else "mapped")
    if kind == "constant":  # the one that has no warm-up, whatever the flags say
        taken.values["schedule.warmup_steps"] = 0
        for name in ("warmup_steps", "warmup_ratio"):
            taken.note(name, "transformers' constant schedule has no warm-up", "not needed")
        return
    _warmup(taken)


def _keywords(taken: Taken) -> dict[str, Any]:
    text = taken.text("lr_scheduler_kwargs")
    try:
        content = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        fix = """write it in quotes: --lr_scheduler_kwargs '{"min_lr_rate": 0.1}'"""
        raise InputError(f"{text} is not a JSON object", where="--lr_scheduler_kwargs", fix=fix)
    numbers = ("min_lr_rate", "min_lr", "power", "lr_end", "num_decay_steps", "min_lr_ratio")
    return {
        name: number_of(str(value), f"--lr_scheduler_kwargs {name}") if name in numbers and value is not None else value
        for name, value in content.items()
        if value is not None
    }


def _warmup(taken: Taken) -> None:
    name = (
        "warmup_ratio" if taken.number("warmup_ratio", 0.0) and taken.number("warmup_steps", 0) <= 0 else "warmup_steps"
    )
    amount = max(0.0, taken.number(name, 0.0))  # -1 is an older script's word for none
    taken.note("warmup_ratio" if name == "warmup_steps" else "warmup_steps", f"--{name} decides", "not needed")
    if name == "warmup_steps" and (amount >= 1 or not amount):
        taken.set(name, {"schedule.warmup_steps": int(amount)})
    else:
        taken.set(name, {"schedule.warmup_share": amount})


def _precision(taken: Taken) -> None:
    for name in ("bf16", "fp16"):
        if taken.has(name):
            taken.set(name, {"engine.dtype": name})
    if "engine.dtype" not in taken.values:
        taken.set("bf16", {"engine.dtype": "fp32"}, "auto takes bf16 where the hardware has it, and is faster")
    if taken.has("use_cpu") or taken.has("no_cuda"):
        taken.set("use_cpu" if taken.has("use_cpu") else "no_cuda", {"engine.device": "cpu"})
    for name in ("torch_compile", "gradient_checkpointing"):
        if taken.has(name):
            key = "engine.compile" if name == "torch_compile" else "engine.activation_checkpointing"
            taken.set(name, {key: "on"})


def _saving(taken: Taken, steps: int | None) -> None:
    logged = _every(taken, "logging_steps", "logging.every_steps", 500, steps)
    strategy = taken.text("save_strategy") or "steps"
    if strategy == "steps":
        _every(taken, "save_steps", "checkpoint.save_every_steps", 500, steps, "and every ten minutes besides")
        taken.note("save_strategy", "checkpoint.save_every_steps", "mapped")
    else:
        taken.note("save_strategy", "checkpoint.save_every_seconds: 600, and at the end", "mapped")
        taken.note("save_steps", f"--save_strategy {strategy} decides", "not needed")
    if "save_total_limit" in taken.typed.flags:
        taken.set("save_total_limit", {"checkpoint.keep": max(1, taken.whole("save_total_limit", 2))})
    name = "eval_strategy"
    evaluated = taken.text(name) or ("steps" if taken.has("evaluate_during_training") else "no")
    taken.note("evaluate_during_training", "evaluation.every_steps", "mapped")
    if evaluated == "steps":
        _every(taken, "eval_steps", "evaluation.every_steps", logged or 500, steps)
        taken.note(name, "evaluation.every_steps", "mapped")
        return
    if evaluated == "epoch":
        became = (
            "once an epoch is what a fine-tuning run does" if taken.verb == "finetune" else "set evaluation.every_steps"
        )
        taken.note(name, became, "mapped" if taken.verb == "finetune" else "left out")
    else:
        taken.note(name, "a run is judged at its start and its end all the same", "not needed")
    taken.note("eval_steps", f"--{name} is {evaluated}", "not needed")


def _every(taken: Taken, name: str, key: str, default: int, steps: int | None, note: str = "") -> int | None:
    """Takes over a number of steps or, below 1, a share of all of them. Returns it; None if it is not known without the
    data."""
    if (taken.text(name) or "").isalpha():  # `epoch`, in the scripts without a Trainer
        taken.note(name, f"set {key}")
        return None
    amount = taken.positive(name, default)
    if amount < 1 and not steps:
        taken.note(name, f"set {key} to {amount:g} of the steps that `maskwright {taken.verb} … --dry-run` prints")
        return None
    every = math.ceil(amount * steps) if amount < 1 and steps else int(amount)
    taken.set(name, {key: every}, f"{amount:g} of {steps:,} steps" if amount < 1 else note)
    return every


def _elsewhere(taken: Taken) -> None:
    services = (taken.text("report_to") or "none").split()
    known = [name for name in get_args(Reported) if name in services]
    if "all" in services:  # of what is installed, which another machine cannot know
        known = list(dict.fromkeys(["tensorboard", *known]))
    others = [name for name in services if name not in (*known, "all", "none")]
    taken.values["logging.report_to"] = known
    became = f"logging.report_to: {shown(known)}"
    if others:
        taken.note("report_to", f"{became}; for {' and '.join(others)} there is RUN/metrics.jsonl", "left out")
    else:
        taken.note("report_to", became, "mapped")
    if taken.has("push_to_hub"):
        name = taken.text("hub_model_id") or "NAME"
        taken.push_to = name if "/" in name else f"OWNER/{name}"
        hub.require_name(taken.push_to, "--hub_model_id")
        taken.note("push_to_hub", "`export --push`, after the proof", "mapped")
    taken.note("cache_dir", "set HF_HUB_CACHE to it: models of the Hub are kept there, and found without network")
    taken.note("hub_model_id", "export --push OWNER/NAME", "mapped")


def from_json(taken: Taken) -> None:
    """Adds the flags of the JSON file that may replace all others. Raises `InputError` where the file is absent."""
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
