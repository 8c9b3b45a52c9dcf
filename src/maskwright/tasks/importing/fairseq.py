"""fairseq's `masked_lm` training, and the flags that its branch for TPUs had."""

from __future__ import annotations

import os
from typing import Any

from maskwright.config.foreign_names import VALUES
from maskwright.core.console import several, typed
from maskwright.core.errors import InputError
from maskwright.tasks.importing.hydra import read_hydra
from maskwright.tasks.importing.taken import FlagFate, Taken, number_of
from maskwright.tasks.importing.typed import XLA_DIST, ScriptSignature, Typed

_SWITCHES = """
fp16 bf16 tpu cpu use_gpu mask_whole_words freq_weighted_replacement no_epoch_checkpoints metrics_debug
suppress_loss_report skip_invalid_size_inputs_valid_test memory_efficient_fp16 memory_efficient_bf16
reset_optimizer reset_lr_scheduler reset_dataloader reset_meters no_save no_save_optimizer_state
no_last_checkpoints untie_weights_roberta find_unused_parameters fast_stat_sync no_progress_bar
disable_validation
"""
HYDRA = ("fairseq-hydra-train", "hydra_train.py", "fairseq_cli.hydra_train")
SCRIPT = ScriptSignature(
    ("fairseq-train", "train.py", *HYDRA[:2]),
    modules=("fairseq_cli.train", HYDRA[2]),
    switches=frozenset(_SWITCHES.split()),
    several_values=frozenset({"input_shapes"}),
)
SIZES = {"roberta_base": "base", "roberta_large": "large", "roberta": "base"}
INVERSE_SQRT_WARMUP = 4000
"""The default of --warmup-updates for fairseq's inverse_sqrt; for its other schedules it is 0."""
TOKENIZER = "hf://FacebookAI/roberta-base"
TASKS = ("masked_lm", "multilingual_masked_lm")
ELSEWHERE = {
    "sentence_prediction": "`maskwright finetune` trains on labels",
    "sentence_ranking": "`maskwright finetune` trains on labels",
}
"""The fix for other tasks that have a command of their own here."""
NUM_CORES = 8
"""The default of --num_cores in the branch for TPUs."""
NOT_NEEDED = {
    "optimizer": "adam is optimizer.kind: adamw",
    "max_positions": "texts are cut into rows of data.seq_len, so none is too long",
    "reset_optimizer reset_lr_scheduler reset_dataloader reset_meters": (
        "the same command continues the run exactly; `pretrain --from RUN` begins another from its weights"
    ),
    "num_cores": "engine.* decides",
    "tpu": "`submit slice NAME` names the slice",
    "bpe": "the store keeps the tokenizer that its ids are of",
}


def fairseq(command: Typed, devices: int | None) -> Taken:
    if os.path.basename(command.script) in HYDRA:
        read_hydra(command)
    taken = Taken(command)
    _require_masked_lm(taken)
    taken.run_in("save_dir")
    _data(taken)
    _model(taken)
    taken.keys(weight_decay=0.0, adam_eps=1e-8, dropout=0.1, attention_dropout=0.1, mask_prob=0.15)
    taken.keys(tokens_per_sample=512, log_interval=100, seed=1)
    _masking(taken)
    _optimizer(taken)
    _batch(taken, devices)
    _rest(taken)
    taken.close(NOT_NEEDED)
    return taken


def _require_masked_lm(taken: Taken) -> None:
    """Raises `InputError` for a command that does not train a masked language model."""
    for flag, known in (("task", TASKS), ("criterion", TASKS[:1]), ("arch", ("roberta", "xlmr"))):
        given = taken.text(flag)
        if given is not None and not (given.startswith(known) if flag == "arch" else given in known):
            shown = "roberta*, xlmr*" if flag == "arch" else " or ".join(known)
            what = f"{given} is not what is trained here: {shown}, masked tokens alone"
            fix = ELSEWHERE.get(given, "take the program that the command is for")
            raise InputError(what, where=taken.typed.spelling.get(flag, f"--{flag}"), fix=fix)
    if "task" not in taken.typed.flags:
        taken.row("task", "default", "masked_lm; fairseq's own default is translation")


def _languages(folders: list[str]) -> list[str]:
    """The folders of languages in a multilingual shard, as fairseq finds them: those of the first, if it is here."""
    first = folders[0]
    names = os.listdir(first) if os.path.isdir(first) else []
    return sorted(name for name in names if os.path.isfile(os.path.join(first, name, "train.idx")))


def _data(taken: Taken) -> None:
    """Adds the lines that convert fairseq's shards of binarised text, once: into a store, or into one for each
    language."""
    if not taken.typed.words:
        raise InputError("names no folder of data", where="fairseq", fix="put it behind the name of the script")
    data = taken.typed.known(taken.typed.words[0])
    taken.typed.words.pop(0)
    folders = [folder for folder in data.split(":") if folder]
    if not folders:
        raise InputError("names no folder of data", where="fairseq", fix="put it behind the name of the script")
    languages = _languages(folders)
    stores = {language: f"data/store-{language}" for language in languages} or {"": "data/store"}
    what = "a store of all shards" if not languages else "a store for each language"
    what += ", by data convert, with the tokenizer that its ids are to be looked up in"
    taken.rows.append(FlagFate("DATA", data, "mapped", what))
    for language, store in stores.items():
        shards = ":".join(os.path.join(folder, language) if language else folder for folder in folders)
        taken.before.append(typed(["data", "convert", shards, "--tokenizer", TOKENIZER, "--to", store]))
    if not languages:
        taken.values["data.store"] = stores[""]
        what = f"it weighs languages, never shards: import this where {folders[0]} has its folders of languages"
        taken.note("multilang_sampling_alpha", f"{what}, and each of them becomes a store of data.mixture")
        return
    taken.values["data.mixture"] = stores
    if "multilang_sampling_alpha" in taken.typed.flags:
        alpha = taken.number("multilang_sampling_alpha", 1.0)
        taken.set("multilang_sampling_alpha", {"data.mixture_alpha": alpha})


def _model(taken: Taken) -> None:
    name = taken.text("arch") or "roberta_base"
    if name in SIZES:
        taken.set("arch", {"model.architecture": "roberta", "model.size": SIZES[name]})
    else:
        taken.values |= {"model.architecture": "roberta", "model.size": "base"}
        taken.note("arch", "is not known; model.size: base takes its place")
    for flag in ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads"):
        if flag in taken.typed.flags:
            taken.set(flag, {taken.key(flag): taken.whole(flag, 0)})
    taken.note("activation_fn", "gelu", "not needed" if taken.text("activation_fn") == "gelu" else "left out")
    taken.note("user_dir", "code of the user's own is not run")
    for name in ("activation_dropout", "encoder_layerdrop"):
        fate_of_zero = "not needed" if not taken.number(name, 0.0) else "left out"
        taken.note(name, "there is no such dropout", fate_of_zero)  # type: ignore[arg-type]


def _masking(taken: Taken) -> None:
    unmasked, drawn = taken.number("leave_unmasked_prob", 0.1), taken.number("random_token_prob", 0.1)
    shares = {"masking.mask_share": round(1.0 - unmasked - drawn, 6), "masking.random_share": drawn}
    taken.set("leave_unmasked_prob", shares, "the rest is left unchanged")
    taken.note("random_token_prob", "masking.random_share", "mapped")
    if taken.has("mask_whole_words"):
        taken.set("mask_whole_words", {"masking.kind": "whole_word"})
        taken.note("bpe", "whole words are the tokenizer's own", "not needed")
    taken.note("freq_weighted_replacement", "random tokens are drawn evenly")
    mode = taken.text("sample_break_mode") or "none"
    note = "rows of full sentences; convert or prepare the text with its sentences" if mode == "complete" else ""
    taken.set("sample_break_mode", {"data.packing": VALUES["data.packing"].get(mode, "documents")}, note)


def _optimizer(taken: Taken) -> None:
    taken.betas("adam_betas", "(0.9, 0.999)")
    clip = taken.number("clip_norm", 0.0)
    taken.set("clip_norm", {"optimizer.max_grad_norm": clip or None}, "" if clip else "nothing is clipped")
    if "optimizer" in taken.typed.flags and taken.text("optimizer") not in ("adam", "adamw"):
        taken.note("optimizer", "AdamW takes its place: it may need another learning rate")
    if "lr" in taken.typed.flags:
        taken.set("lr", {"optimizer.learning_rate": taken.positive("lr", 0.0)})
    else:
        taken.row(
            "lr", "left out", "it is not given, and fairseq's own is for other models: set optimizer.learning_rate"
        )
    peak = taken.values.get("optimizer.learning_rate", 1.0)
    steps = taken.whole("max_update", 0) or taken.whole("total_num_update", 0)
    total = taken.whole("total_num_update", 0)
    if steps:
        note = f"the schedule ends there too, where fairseq's ends at {total:,}" if total not in (0, steps) else ""
        taken.set("max_update" if taken.whole("max_update", 0) else "total_num_update", {"schedule.steps": steps}, note)
        taken.note("max_epoch", "--max-update decides", "not needed")
    else:
        taken.set("max_epoch", {"schedule.epochs": taken.number("max_epoch", 1.0)})
    if "total_num_update" in taken.unnamed:
        taken.note("total_num_update", "schedule.steps", "mapped")
    _schedule(taken, peak)


def _schedule(taken: Taken, peak: float) -> None:
    kind, power = taken.text("lr_scheduler") or "fixed", taken.number("power", 1.0)
    end = taken.number("end_learning_rate", 0.0) / peak
    known: dict[str, dict[str, Any]] = {
        "polynomial_decay": {"schedule.kind": "linear"}
        if power == 1.0
        else {"schedule.kind": "polynomial", "schedule.power": power},
        "inverse_sqrt": {"schedule.kind": "inverse_sqrt"},
        "cosine": {"schedule.kind": "cosine"},
        "fixed": {"schedule.kind": "constant"},
    }
    values = known.get(kind)
    if values is None:
        taken.values["schedule.kind"] = "linear"
        taken.note("lr_scheduler", "there is none of its kind; schedule.kind: linear takes its place")
    else:
        taken.set("lr_scheduler", values | ({"schedule.final_lr_share": end} if end else {}))
    for name in ("power", "end_learning_rate"):
        taken.note(name, "see --lr-scheduler", "mapped")
    warmup = taken.whole("warmup_updates", INVERSE_SQRT_WARMUP if kind == "inverse_sqrt" else 0)
    taken.set("warmup_updates", {"schedule.warmup_steps": warmup})


def _batch(taken: Taken, devices: int | None) -> None:
    length = int(taken.positive("tokens_per_sample", 512))
    if shape := taken.text("input_shapes"):
        rows, _, tokens = shape.split()[0].partition("x")
        if not rows.isdigit() or not tokens.isdigit():
            raise InputError(f"{shape} is not ROWSxTOKENS", where="--input_shapes", fix="write it as 2x512")
        note = f"{len(shape.split()) - 1} more shapes are left out" if " " in shape else ""
        taken.set("input_shapes", {"batch.micro_batch_rows": int(rows)}, note)
        taken.note("max_sentences", "--input_shapes decides", "not needed")
    else:
        row_flags = [flag for flag in ("max_sentences", "batch_size") if flag in taken.typed.flags]
        name: str = row_flags[0] if row_flags else "max_tokens"
        rows_given = taken.whole("max_tokens", 8 * length) // length if name == "max_tokens" else taken.whole(name, 0)
        taken.set(name, {"batch.micro_batch_rows": max(1, rows_given)})
        if row_flags:
            taken.note("max_tokens", "--max-sentences decides", "not needed")
    cores = devices or taken.whole("distributed_world_size", 0)
    source = taken.typed.counted_by if devices else "--distributed-world-size"
    if not cores and taken.typed.gpus:
        cores, source = taken.typed.gpus, "CUDA_VISIBLE_DEVICES"
    if not cores:
        is_tpu, sees = bool(taken.typed.flags.keys() & TPU), "it takes all GPUs that it sees"
        sees = "xla_dist starts it on each host of the slice" if taken.typed.launcher == XLA_DIST else sees
        cores = taken.whole("num_cores", NUM_CORES) if is_tpu else 1
        source = f"this command alone ({sees}: give --devices)"
    first, *later = (taken.text("update_freq") or "1").split(",")
    frequency = int(number_of(first, "--update-freq"))
    rows_a_step = taken.values["batch.micro_batch_rows"] * frequency * cores
    note = (
        f"{frequency} x {several(cores, 'device')}, by {source}: {rows_a_step:,} rows of {length} tokens in an update"
    )
    note += "; that of later epochs is left out" if later else ""
    taken.set("update_freq", {"batch.virtual_workers": frequency * cores}, note)
    taken.note("distributed_world_size", "batch.virtual_workers", "mapped")
    if cores > 1 and taken.typed.flags.keys() & TPU:
        taken.values["engine.kind"] = "jax"
        taken.row(
            "num_cores", "mapped" if "num_cores" in taken.typed.flags else "default", "engine.kind: jax, for TPUs"
        )


TPU = {"input_shapes", "num_cores", "tpu"}


def _rest(taken: Taken) -> None:
    for name in ("fp16", "bf16"):
        if taken.has(name):
            taken.set(name, {"engine.dtype": name})
    if "save_interval_updates" in taken.typed.flags:
        every = taken.whole("save_interval_updates", 0)
        taken.set("save_interval_updates", {"checkpoint.save_every_steps": every} if every else {})
    if "keep_interval_updates" in taken.typed.flags:
        taken.set("keep_interval_updates", {"checkpoint.keep": max(1, taken.whole("keep_interval_updates", 2))})
    if "validate_interval_updates" in taken.typed.flags:
        every = taken.whole("validate_interval_updates", 1000)
        taken.set("validate_interval_updates", {"evaluation.every_steps": every})
    if "wandb_project" in taken.typed.flags:
        taken.set("wandb_project", {"logging.report_to": ["wandb"]}, "the variable WANDB_PROJECT names the project")
    for name in ("mask_multiple_length", "mask_stdev"):
        taken.note(name, "tokens or whole words are masked, never spans of a length")
    if file := taken.text("restore_file"):
        run_folder = taken.text("save_dir") or "checkpoints"
        if os.path.dirname(file) in ("", run_folder.rstrip("/")):
            taken.note("restore_file", "the same command continues the run exactly", "not needed")
        else:
            made = f"{typed(['import', 'weights', file, '--to', 'FOLDER'])} makes a folder for model.init_from of it"
            taken.note("restore_file", made)
    if "tensorboard_logdir" in taken.typed.flags:
        taken.note("tensorboard_logdir", "logging.report_to: [tensorboard], in the run directory", "mapped")
    if "patience" in taken.typed.flags and "evaluation.every_steps" not in taken.values:
        taken.note("patience", "it counts validations: set evaluation.patience and evaluation.every_steps")
    elif "patience" in taken.typed.flags:
        taken.set("patience", {"evaluation.patience": max(1, taken.whole("patience", 1))})
