"""fairseq's `masked_lm` training, and the flags that its branch for TPUs had."""

from __future__ import annotations

import os
from typing import Any

from maskwright.config.foreign_names import VALUES
from maskwright.core.console import typed
from maskwright.core.errors import InputError
from maskwright.tasks.importing.taken import FlagFate, Taken, number_of
from maskwright.tasks.importing.typed import ALONE, XLA_DIST, ScriptSignature, Typed

_SWITCHES = """
fp16 bf16 tpu cpu use_gpu mask_whole_words freq_weighted_replacement no_epoch_checkpoints metrics_debug
suppress_loss_report skip_invalid_size_inputs_valid_test memory_efficient_fp16 memory_efficient_bf16
reset_optimizer reset_lr_scheduler reset_dataloader reset_meters no_save no_save_optimizer_state
no_last_checkpoints untie_weights_roberta find_unused_parameters fast_stat_sync no_progress_bar
disable_validation
"""
SCRIPT = ScriptSignature(
    ("fairseq-train", "train.py"),
    modules=("fairseq_cli.train",),
    switches=frozenset(_SWITCHES.split()),
    several_values=frozenset({"input_shapes"}),
)
SIZES = {"roberta_base": "base", "roberta_large": "large", "roberta": "base"}
INVERSE_SQRT_WARMUP = 4000
"""The default of --warmup-updates for fairseq's inverse_sqrt; for its other schedules it is 0."""
MULTIPLE = "required_batch_size_multiple"
TOKENIZER = "hf://FacebookAI/roberta-base"
TASKS = ("masked_lm", "multilingual_masked_lm")
ON_LABELS = ("sentence_prediction", "sentence_ranking")
"""Tasks for `maskwright finetune`."""
NUM_CORES = 8
"""The default of --num_cores in the branch for TPUs."""
TPU = {"input_shapes", "num_cores", "tpu"}
"""Flags of that branch alone."""
MAPPED = {
    "random_token_prob": "masking.random_share",
    "power end_learning_rate": "see --lr-scheduler",
    "distributed_world_size": "batch.virtual_workers",
    "num_cores": "batch.virtual_workers",
    "tensorboard_logdir": "logging.report_to: [tensorboard], in the run directory",
    "total_num_update": "schedule.steps",
}
LEFT_OUT = {
    "activation_fn": "unsupported",
    "user_dir": "maskwright does not run your own code",
    "activation_dropout encoder_layerdrop": "unsupported",
    "freq_weighted_replacement": "random tokens are drawn evenly",
    "mask_multiple_length mask_stdev": "tokens or whole words are masked, never spans of a length",
    "multilang_sampling_alpha": "weighs languages, not shards: if the shards contain folders of languages, import this "
    "where they are, and each language becomes a store of data.mixture",
}
NOT_NEEDED = {
    "optimizer": "adam is optimizer.kind: adamw",
    "max_positions": "texts are cut into rows of data.seq_len, so none is too long",
    "reset_optimizer reset_lr_scheduler reset_dataloader reset_meters": (
        "the same command continues the run exactly; `pretrain --from RUN` begins another from its weights"
    ),
    "tpu": "`submit slice NAME` names the slice",
    "bpe": "the store keeps the tokenizer that its ids are of",
    "max_epoch": "the number of updates decides",
    "max_sentences batch_size max_tokens required_batch_size_multiple": "another flag decides the rows",
}


def fairseq(command: Typed) -> Taken:
    taken = Taken(command)
    _require_masked_lm(taken)
    taken.run_in("save_dir")
    _data(taken)
    name = taken.text("arch") or "roberta_base"
    taken.set("arch", {"model.architecture": "roberta", "model.size": SIZES.get(name, "base")})
    if name not in SIZES:
        taken.row("arch", "left out", "unknown; replaced by model.size: base")
    sizes = ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads")
    intervals = ("save_interval_updates", "keep_interval_updates", "validate_interval_updates")
    taken.take(dict.fromkeys((*sizes, *intervals), int))
    decay = taken.number("weight_decay", 0.0)
    note = "fairseq also decays biases and LayerNorms" if decay else ""
    taken.set("weight_decay", {"optimizer.weight_decay": decay}, note)
    taken.take({"adam_eps": 1e-8, "dropout": 0.1, "attention_dropout": 0.1, "mask_prob": 0.15})
    taken.take({"tokens_per_sample": 512, "log_interval": 100, "seed": 1})
    _masking(taken)
    _optimizer(taken)
    _batch(taken)
    _restored(taken)
    taken.precision()
    if "wandb_project" in taken.typed.flags:
        taken.set("wandb_project", {"logging.report_to": ["wandb"]}, "the variable WANDB_PROJECT names the project")
    taken.patience("patience")
    if taken.text("activation_fn") == "gelu":
        taken.note("activation_fn", "gelu", "not needed")
    taken.close(MAPPED, LEFT_OUT, NOT_NEEDED)
    return taken


def _require_masked_lm(taken: Taken) -> None:
    """Raises `InputError` for a command that does not train a masked language model."""
    for flag, known in (("task", TASKS), ("criterion", TASKS[:1]), ("arch", ("roberta", "xlmr"))):
        given = taken.text(flag)
        if given is not None and not (given.startswith(known) if flag == "arch" else given in known):
            shown = "roberta*, xlmr*" if flag == "arch" else " or ".join(known)
            what = f"{given} is unsupported here; {shown} trains on masked tokens alone"
            fix = "for labels, run `maskwright finetune`" if given in ON_LABELS else "use the program that it is for"
            raise InputError(what, where=taken.typed.spelling.get(flag, f"--{flag}"), fix=fix)
    if "task" not in taken.typed.flags:
        taken.row("task", "default", "masked_lm; fairseq's own default is translation")


def _languages(folders: list[str]) -> list[str]:
    """The folders of languages in a multilingual shard, as fairseq finds them: from the first shard, if it is here."""
    first = folders[0]
    names = os.listdir(first) if os.path.isdir(first) else []
    return sorted(name for name in names if os.path.isfile(os.path.join(first, name, "train.idx")))


def _data(taken: Taken) -> None:
    """Adds the lines that convert fairseq's shards of binarised text to one store, or to a store for each language."""
    data = taken.typed.known(taken.typed.words.pop(0)) if taken.typed.words else ""
    folders = [folder for folder in data.split(":") if folder]
    if not folders:
        raise InputError("names no folder of data", where="fairseq", fix="name it after the script")
    languages = _languages(folders)
    stores = {language: f"data/store-{language}" for language in languages} or {"": "data/store"}
    what = "a store of all shards" if not languages else "a store for each language"
    what += ", made by data convert with the tokenizer of its IDs"
    taken.rows.append(FlagFate("DATA", data, "mapped", what))
    for language, store in stores.items():
        shards = ":".join(os.path.join(folder, language) if language else folder for folder in folders)
        taken.before.append(typed(["data", "convert", shards, "--tokenizer", TOKENIZER, "--to", store]))
    taken.values |= {"data.mixture": stores} if languages else {"data.store": stores[""]}
    if languages and "multilang_sampling_alpha" in taken.typed.flags:
        alpha = taken.number("multilang_sampling_alpha", 1.0)
        taken.set("multilang_sampling_alpha", {"data.mixture_alpha": alpha})


def _masking(taken: Taken) -> None:
    unmasked, drawn = taken.number("leave_unmasked_prob", 0.1), taken.number("random_token_prob", 0.1)
    shares = {"masking.mask_share": round(1.0 - unmasked - drawn, 6), "masking.random_share": drawn}
    taken.set("leave_unmasked_prob", shares, "the rest is left unchanged")
    taken.switch({"mask_whole_words": {"masking.kind": "whole_word"}})
    mode = taken.text("sample_break_mode") or "none"
    note = "rows of full sentences; convert or prepare the text with its sentences" if mode == "complete" else ""
    taken.set("sample_break_mode", {"data.packing": VALUES["data.packing"].get(mode, "documents")}, note)


def _optimizer(taken: Taken) -> None:
    taken.betas("adam_betas", "(0.9, 0.999)")
    clip = taken.number("clip_norm", 0.0)
    taken.set("clip_norm", {"optimizer.max_grad_norm": clip or None}, "" if clip else "nothing is clipped")
    if (taken.text("optimizer") or "adam") not in ("adam", "adamw"):
        taken.note("optimizer", "replaced by AdamW, which may need another learning rate")
    if "lr" in taken.typed.flags:
        taken.set("lr", {"optimizer.learning_rate": taken.positive("lr", 0.0)})
    else:
        what = "not given, and fairseq's default is for other models: set optimizer.learning_rate"
        taken.row("lr", "left out", what)
    total, steps = taken.whole("total_num_update", 0), taken.whole("max_update", 0)
    if steps or total:
        taken.set("max_update" if steps else "total_num_update", {"schedule.steps": steps or total})
    else:
        taken.take({"max_epoch": 1.0})
    _schedule(taken, taken.values.get("optimizer.learning_rate", 1.0), steps, total)


def _schedule(taken: Taken, peak: float, steps: int, total: int) -> None:
    """`total`: the update at which fairseq's decay would end, after or before its last one, `steps`; 0 if unknown."""
    kind, power = taken.text("lr_scheduler") or "fixed", taken.number("power", 1.0)
    ours = {"polynomial_decay": "linear" if power == 1.0 else "polynomial", "fixed": "constant"}.get(kind, kind)
    values: dict[str, Any] = {"schedule.kind": ours} | ({"schedule.power": power} if ours == "polynomial" else {})
    end, warmup = taken.number("end_learning_rate", 0.0) / peak, taken.whole("warmup_updates", 0)
    if ours == "linear" and warmup < steps < total:
        end += (1.0 - end) * (total - steps) / (total - warmup)
        taken.note("total_num_update", f"schedule.final_lr_share: the rate that is left at {steps:,}", "mapped")
    elif ours in ("linear", "polynomial") and steps and total not in (0, steps):
        taken.note("total_num_update", f"the decay ends with the run, at {steps:,}")
    if end:
        values["schedule.final_lr_share"] = end
    if ours in ("linear", "polynomial", "constant", "cosine", "inverse_sqrt"):
        taken.set("lr_scheduler", values)
    else:
        taken.values["schedule.kind"] = "linear"
        taken.note("lr_scheduler", "unsupported; replaced by schedule.kind: linear")
    taken.take({"warmup_updates": INVERSE_SQRT_WARMUP if kind == "inverse_sqrt" else 0})


def _batch(taken: Taken) -> None:
    command, length = taken.typed, int(taken.positive("tokens_per_sample", 512))
    given = [name for name in ("input_shapes", "max_sentences", "batch_size") if name in command.flags]
    name, note = next(iter(given), "max_tokens"), ""
    if name == "input_shapes":
        first, *others = (taken.text(name) or "").split()
        rows, _, tokens = first.partition("x")
        if not rows.isdigit() or not tokens.isdigit():
            raise InputError(f"{first} is not ROWSxTOKENS", where="--input_shapes", fix="write it as 2x512")
        count, note = int(rows), f"{len(others)} more shapes are left out" if others else ""
    else:
        in_all, multiple = taken.whole("max_tokens", 0), max(1, taken.whole(MULTIPLE, 8))
        limits = {name: taken.whole(name, 8)} if given else {}
        limits |= {"max_tokens": in_all // length} if in_all else {}
        name, most = min(limits.items(), key=lambda limit: limit[1], default=("max_tokens", 8))
        count = max(most - most % multiple, most % multiple)
        if count < most:
            note = f"not {most}: --required-batch-size-multiple is {multiple}"
        taken.note(MULTIPLE, "batch.micro_batch_rows", "mapped")
    taken.set(name, {"batch.micro_batch_rows": max(1, count)}, note)
    cores, source = command.devices, command.counted_by
    is_tpu = bool(command.flags.keys() & TPU)
    if not source and (cores := taken.whole("distributed_world_size", 0)):
        source = "--distributed-world-size"
    elif not source:
        sees = "this command alone (xla_dist starts it on each host of the slice: give --devices)"
        cores = taken.whole("num_cores", NUM_CORES) if is_tpu else 1
        source = sees if command.launcher == XLA_DIST else ALONE
    first, *later = (taken.text("update_freq") or "1").split(",")
    workers = int(number_of(first, "--update-freq")) * cores
    note = f"{first} x {cores} devices, by {source}: {max(1, count) * workers:,} rows of {length} tokens in an update"
    note += "; the values of later epochs are left out" if later else ""
    taken.set("update_freq", {"batch.virtual_workers": workers}, note)
    if is_tpu and cores > 1:
        taken.set("num_cores", {"engine.kind": "jax"}, "for TPUs")


def _restored(taken: Taken) -> None:
    file, folder = taken.text("restore_file"), taken.text("save_dir") or "checkpoints"
    if file and os.path.dirname(file) not in ("", folder.rstrip("/")):
        made = f"{typed(['import', 'weights', file, '--to', 'FOLDER'])} makes it a folder for model.init_from"
        taken.note("restore_file", made)
    taken.note("restore_file", "the same command continues the run exactly", "not needed")
