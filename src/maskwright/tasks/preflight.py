"""What can be known before a run: whether configuration, data, model and machine fit together; what it will take."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Any

from maskwright.core import config as run
from maskwright.core import hardware
from maskwright.core.config import RunConfig, flat, refuse_changes
from maskwright.core.console import human_bytes, human_count, note
from maskwright.core.errors import ConfigError, MaskwrightError, StoreError
from maskwright.data.loader import Loader
from maskwright.data.store import TokenStore
from maskwright.engines.base import is_out_of_memory
from maskwright.engines.muon import GROWTH, INITIAL_RMS, LARGE_RMS, UPDATE_RMS
from maskwright.engines.processes import launch_variables
from maskwright.engines.tree import most_kept
from maskwright.model.config import ModelConfig, model_config, recorded_config, training_flops
from maskwright.model.hf.config import read_hf_config
from maskwright.model.hf.folder import read_hf_parameters
from maskwright.model.hf.names import count_parameters
from maskwright.run.directory import RunDirectory
from maskwright.text.vocabulary import read_vocabulary
from maskwright.training import checkpoint
from maskwright.training.copies import Copies


@dataclass(frozen=True)
class Prepared:
    """A configuration whose data and model have been checked and fit together. Nothing is written yet."""

    config: RunConfig
    model: ModelConfig
    store: TokenStore
    loader: Loader


def prepare_run(config: RunConfig, before: dict[str, Any] | None = None) -> Prepared:
    """Checks everything that can be checked without a device. Raises `InputError` kinds (exit 2).

    `before`: the record of a run that is continued; the folder that it once began from is then no longer needed.
    """
    store = TokenStore(config.data.store)
    vocabulary = store.vocabulary
    if before is not None and config.model.init_from == before["config"].get("model.init_from") is not None:
        model = recorded_config(before["model"], "config.resolved.json")
    elif config.model.init_from is None:
        model = model_config(config.model, vocabulary.size, config.data.seq_len)
    else:
        model = _continued(config, store)
    if (vocabulary.bos, vocabulary.pad, vocabulary.eos) != (
        model.bos_token_id,
        model.pad_token_id,
        model.eos_token_id,
    ):
        what = "its tokenizer is not in RoBERTa's layout (<s> 0, <pad> 1, </s> 2)"
        raise StoreError(what, where=store.tokenizer_folder, fix="train one with `maskwright tokenizer train`")
    return Prepared(config, model, store, Loader(config, store))


def dry_run(config: RunConfig, run: str) -> Prepared:
    """Raises what a start would raise before it makes anything. The store's checksums and the device are left to it."""
    directory = RunDirectory(run)
    before = directory.read_config() if directory.exists() else None
    ready = prepare_run(config, before)
    if config.checkpoint.copy_to is not None:
        Copies(config.checkpoint.copy_to, reach=False)
    if before is not None:
        refuse_changes(before["config"], flat(config), directory.location)
        return ready
    directory.require_fresh()
    if config.model.init_from is not None:
        read_hf_parameters(config.model.init_from, ready.model)
    return ready


def _continued(config: RunConfig, store: TokenStore) -> ModelConfig:
    folder = config.model.init_from or ""
    model = continued_model(config, folder)
    if os.path.exists(os.path.join(folder, "tokenizer.json")):
        store.require_tokenizer(read_vocabulary(folder), folder)
    if store.vocabulary.size > model.vocab_size:
        what = f"its tokenizer has {store.vocabulary.size:,} tokens, the model in {folder} only {model.vocab_size:,}"
        raise StoreError(what, where=store.location, fix="prepare the text with that model's own tokenizer")
    return model


def continued_model(config: RunConfig, folder: str) -> ModelConfig:
    """The model of `folder`, with the run's dropout instead of the folder's."""
    model = read_hf_config(folder)
    if config.data.seq_len > model.max_seq_len:
        what = f"data.seq_len {config.data.seq_len} is above the {model.max_seq_len} tokens that {folder} can take"
        raise ConfigError(what, where="data.seq_len", fix=f"set it to {model.max_seq_len}")
    own = config.model
    return replace(model, hidden_dropout_prob=own.hidden_dropout, attention_probs_dropout_prob=own.attention_dropout)


def state_bytes(ready: Prepared) -> int:
    """Bytes in a rank that holds the full model: fp32 weights, two moments, and the gradients that its sums keep."""
    config, launch = ready.config, launch_variables()
    world_size, V = launch.world_size if launch else 1, config.batch.virtual_workers
    exact = config.engine.kind == "torch" and config.engine.reproducibility == "exact" and V % world_size == 0
    return (12 + 4 * (most_kept(V // world_size, V) if exact else 1)) * count_parameters(ready.model)


MOST_EPOCHS = 40
"""BERT saw its text so often (arXiv:1810.04805, A.2). At RoBERTa's rate a token was then predicted six times."""
LEAST_HELD_OUT_DOCUMENTS = 100
"""A share of right predictions lies in 0 … 1, so its spread between documents is 0.5 at most. The error of its mean
over so many documents is then 5 points at most."""


def unusual_settings(config: RunConfig, ready: Prepared | None = None) -> list[str]:
    """Warnings about values that are allowed, but most often a slip; with `ready`, also about the run's data."""
    found, highest = _unusual_data(ready) if ready else [], config.masking.highest_rate
    if highest > 0.5:
        found.append(f"masking.rate {highest:g}: rows keep less than half of their tokens, short ones may keep none")
    if config.optimizer.learning_rate > 0.05:
        found.append(
            f"optimizer.learning_rate {config.optimizer.learning_rate:g} is far above what trains: 1e-4 to 1e-2"
        )
    if config.optimizer.kind == "muon" and (rms := muon_rms(config, config.optimizer.weight_decay)) > LARGE_RMS:
        decays = (0.03, 0.1, 0.3, 1.0, 3.0)
        enough = next((decay for decay in decays if muon_rms(config, decay) < 0.75 * LARGE_RMS), 10.0)
        found.append(
            f"optimizer.weight_decay {config.optimizer.weight_decay:g}: Muon's updates make the matrices some "
            f"{rms / INITIAL_RMS:.0f} times as large as they begin, and such a model fine-tunes badly: "
            f"--set optimizer.weight_decay={enough:g}, or a lower optimizer.learning_rate as well"
        )
    if config.masking.mask_share == 0.0:
        found.append(
            "masking.mask_share 0: the model never sees <mask>, so `fill` and most evaluations are out of reach"
        )
    return found


def muon_rms(config: RunConfig, weight_decay: float) -> float:
    """About the root mean square of Muon's matrices at the end of the run: each update adds its square and decay takes
    its share (Kosson et al. 2023, arXiv 2305.17212, have the equilibrium)."""
    steps, square = config.schedule.steps, 0.0
    length = max(1, steps // 1000)
    for step in range(0, steps, length):
        rate = config.learning_rate_at(step)
        lost = 2.0 * rate * weight_decay * length
        added = (GROWTH * UPDATE_RMS * rate) ** 2 * length
        square = square * math.exp(-lost) + (added * -math.expm1(-lost) / lost if lost else added)
    return math.sqrt(square)


def _unusual_data(ready: Prepared) -> list[str]:
    found = []
    if (epochs := ready.loader.epoch(ready.config.schedule.steps)) > MOST_EPOCHS:
        found.append(
            f"the run reads its text {epochs:,.0f} times, and BERT read its own {MOST_EPOCHS} times: "
            "prepare more text, or lower schedule.steps"
        )
    held_out = ready.store.manifest["splits"]["valid"]["documents"]
    if 0 < held_out < LEAST_HELD_OUT_DOCUMENTS:
        found.append(
            f"only {held_out} documents are held out, too few to compare runs by: "
            "prepare into another folder with a larger --valid-fraction"
        )
    return found


def describe(ready: Prepared) -> str:
    """Describes what the run will do, for `--dry-run` and the beginning of each run."""
    config, model, rows = ready.config, ready.model, ready.loader.rows.plan
    per_step, parameters, state = config.rows_per_step, count_parameters(model), state_bytes(ready)
    return "\n".join(
        [
            f"model: {model.num_hidden_layers} layers x {model.hidden_size}, "
            f"{human_count(parameters)} parameters, vocabulary {model.vocab_size:,}, {model.max_seq_len} tokens",
            f"data: {human_count(rows.text_tokens)} tokens in {rows.rows:,} rows of {rows.seq_len} "
            f"({config.data.packing}, {rows.waste:.1%} unused)",
            f"run: {config.schedule.steps:,} steps of {per_step:,} rows ({config.batch.virtual_workers} x "
            f"{config.batch.micro_batch_rows}), {human_count(config.schedule.steps * per_step * rows.seq_len)} tokens, "
            f"{ready.loader.epoch(config.schedule.steps):.2f} epochs",
            f"memory for weights and optimizer: {human_bytes(state)}; each checkpoint: {human_bytes(12 * parameters)}",
        ]
    )


def compiles(config: RunConfig) -> bool:
    """Whether the run compiles its layers (torch) or all of it (JAX)."""
    if config.engine.kind == "jax":
        return True
    from maskwright.engines.torch.prepare import choose_compile, choose_device

    flops = run_flops(config, prepare_run(config).model)
    return choose_compile(config.engine.compile, choose_device(config.engine.device), flops)


def engine_config(config: RunConfig, before: dict[str, Any] | None, threads: int | None) -> run.Engine:
    """`dtype: auto` is decided once: a continued run keeps the precision that it started with, on any machine.
    `threads`: see `exact_threads`."""
    decided: dict[str, Any] = {} if threads is None else {"threads": threads}
    if before is not None and config.engine.dtype == "auto":
        decided["dtype"] = {"bfloat16": "bf16", "float32": "fp32"}[before["dtype"]]
    return config.engine.model_copy(update=decided)


def exact_threads(config: RunConfig, before: dict[str, Any] | None) -> int | None:
    """CPU threads of each rank of a run whose sums are exact; None if their number does not matter.

    torch sums a tensor in as many parts as there are threads: 1, 2 and 4 threads give three results (measured). A run
    keeps the number that it began with, unless engine.threads gives one.
    """
    if config.engine.kind != "torch" or config.engine.reproducibility != "exact":
        return None
    from maskwright.engines.torch.prepare import choose_device, cpu_threads

    if choose_device(config.engine.device) != "cpu":
        return None
    here = cpu_threads()
    kept = config.engine.threads or (before or {}).get("threads") or here
    if kept != here and not config.engine.threads:
        note(
            f"computing with {kept} threads in each process, as this run began, instead of {here}: another number "
            f"changes the last bits. Set engine.threads: {here} to take {here} all the same"
        )
    return int(kept)


def run_flops(config: RunConfig, model: ModelConfig) -> float:
    """Model FLOPs of the whole run if each row is full, and one segment."""
    steps, seq_len = config.schedule.steps, config.data.seq_len
    tokens = float(steps) * config.rows_per_step * seq_len
    mean_rate = (config.masking_at(0).rate + config.masking_at(steps - 1).rate) / 2.0  # it moves in a straight line
    return training_flops(model, tokens, tokens * seq_len, tokens * mean_rate)


def require_room(ready: Prepared, directory: RunDirectory) -> None:
    """Checks memory and disk before anything is computed: room for weights and optimizer, and for one checkpoint more
    than are kept. Raises `MaskwrightError` or `CheckpointError`."""
    needed, there = state_bytes(ready), hardware.memory_bytes()
    if ready.config.engine.device == "cpu" and needed > there:
        raise too_large(ready, MemoryError())
    kept = len(checkpoint.whole_steps(directory.checkpoints))
    most = min(ready.config.checkpoint.keep, ready.config.schedule.steps)
    more = max(most + 1 - kept, 1)
    place = directory.location
    while not os.path.exists(place):
        place = os.path.dirname(place)
    checkpoint.require_space(place, more * (12 * count_parameters(ready.model) + checkpoint.SMALL_FILES_BYTES))


def too_large(ready: Prepared, error: Exception) -> Exception:
    """The error to raise when the engine cannot be made: `error` itself unless memory ran out."""
    if not is_out_of_memory(error):
        return error
    needed, parameters = human_bytes(state_bytes(ready)), human_count(count_parameters(ready.model))
    return MaskwrightError(
        f"weights, gradient and optimizer state of {parameters} parameters take {needed}, more than there is",
        where="model.size",
        fix="take a smaller model, or a device with more memory",
    )
