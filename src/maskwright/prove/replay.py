"""`maskwright replay`: computes one step of a run again, and names its text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from maskwright.core.console import progress, say, warn
from maskwright.core.errors import CheckpointError, HealthError, InputError
from maskwright.data.loader import Loader
from maskwright.data.opening import Store
from maskwright.engines.base import AtOnce, Engine, TrainState
from maskwright.run.directory import RunDirectory, step_folder
from maskwright.tasks.pretrain.prepare import PretrainRun, prepare_run
from maskwright.tasks.start.capacity import exact_threads
from maskwright.tasks.start.engine import start_engine
from maskwright.text.tokenizer import load_tokenizer
from maskwright.training import checkpoint
from maskwright.training.replay import RowOrigin, origins

ROWS_SHOWN, DOCUMENTS_SHOWN, BEGINNING_TOKENS = 10, 4, 24


@dataclass(frozen=True)
class RowLoss:
    """One row before the update."""

    origin: RowOrigin
    loss: float
    """Mean over its predicted tokens, without dropout."""
    text: str
    """The beginning of the row, before masking."""


@dataclass(frozen=True)
class Replay:
    step: int
    start: str
    """The checkpoint from which it was computed again."""
    again: int
    """Steps that were computed again before it."""
    loss: float | None
    """None if the step cannot be computed."""
    grad_norm: float | None
    error: str | None
    logged_loss: float | None
    """The run's own logged loss of this step, if it logged each step."""
    rows: list[RowLoss]
    """Rows with the highest loss first."""

    def report(self) -> str:
        lines = [f"step {self.step:,}: from {self.start}, {self.again:,} steps computed again before it"]
        if self.error:
            lines.append(f"reproduced: {self.error}")
        else:
            logged = "" if self.logged_loss is None else f"; the run logged {self.logged_loss:.9g}, the same"
            if self.logged_loss not in (None, self.loss):
                logged = f"; the run logged {self.logged_loss:.9g}, NOT the same: other hardware, versions or threads"
            lines.append(f"loss {self.loss:.9g}, gradient norm {self.grad_norm:.6g}: an ordinary step{logged}")
        lines.append(f"rows by loss, highest first ({min(ROWS_SHOWN, len(self.rows))} of {len(self.rows)}):")
        for row in self.rows[:ROWS_SHOWN]:
            documents = row.origin.documents
            places = ", ".join(
                f"{document.place} (document {document.document})" for document in documents[:DOCUMENTS_SHOWN]
            )
            more = f" and {len(documents) - DOCUMENTS_SHOWN} more" if len(documents) > DOCUMENTS_SHOWN else ""
            where = f"virtual worker {row.origin.virtual_worker} row {row.origin.row}"
            lines.append(f"  {where}: loss {row.loss:.4f}  {places}{more}")
            lines.append(f"      {row.text}")
        return "\n".join(lines)


def replay(run: str, step: int) -> Replay:
    """Computes from the newest complete checkpoint at or before `step` up to it, in this process. The run does not
    change.

    Raises `InputError` if the run has no such step, or its store is gone or another.
    """
    directory = RunDirectory(run)
    before = directory.read_record()
    if before.kind == "finetune":
        fix = "if its health check stopped it, read the examples of that step in RUN/replay"
        raise InputError("was fine-tuned, but replay computes only steps of pretraining", where=run, fix=fix)
    config = before.pretraining
    if not 0 <= step < config.steps:
        raise InputError(f"step {step} is not one of the run's {config.steps:,}", where=run, fix="count steps from 0")
    ready = prepare_run(config, before)
    before.train.require(ready.store.fingerprint)
    engine = start_engine(ready, before, exact_threads(ready.config, before))
    state, record = _state_before(directory, step)
    start = step_folder(state.step) if state else "the beginning"
    engine.write(state or ready.starting_state())
    engine.at_once = AtOnce(**record.get("at_once", {}))
    first = state.step if state else 0
    say(f"from {start} to step {step:,} on {engine.description}")
    with progress("replay", step - first, "steps") as bar:
        for number in range(first, step):
            _step(engine, ready, number)
            bar.advance()
    engine.use_rope_theta(ready.loader.rope_theta(step) or ready.model.rope_theta)
    rows = _rows(engine, ready.loader, ready.store, step)
    loss, norm, error = None, None, None
    try:
        loss, norm = _step(engine, ready, step)
        engine.check()
    except HealthError as failure:
        loss, norm, error = None, None, failure.what
    lines = directory.read_metrics() if config.logging.every_steps == 1 else []
    logged = next((line["loss"] for line in lines if line["step"] == step + 1 and "loss" in line), None)
    return Replay(step, start, step - first, loss, norm, error, logged, rows)


def _state_before(directory: RunDirectory, step: int) -> tuple[TrainState | None, dict[str, Any]]:
    """The newest complete checkpoint at or before `step`, and its record."""
    for saved in reversed(checkpoint.whole_steps(directory.checkpoints)):
        if saved <= step:
            try:
                return checkpoint.load(f"{directory.checkpoints}/{step_folder(saved)}")
            except CheckpointError as error:
                warn(str(error))
    return None, {}


def _step(engine: Engine, ready: PretrainRun, step: int) -> tuple[float, float]:
    engine.use_rope_theta(ready.loader.rope_theta(step) or ready.model.rope_theta)
    stats = engine.step(ready.loader.batches(step), ready.config.learning_rate_at(step), lambda: False)
    assert stats is not None
    return float(stats.loss_sum) / (float(stats.weight) or 1.0), float(stats.grad_norm)


def _rows(engine: Engine, loader: Loader, store: Store, step: int) -> list[RowLoss]:
    """Losses of the rows: first rows that cannot be computed, then the others by falling loss."""
    tokenizer = load_tokenizer(store.tokenizer_folder, special_tokens_are_text=False)
    batches, losses = loader.batches(step), []
    for place in origins(loader, store, step):
        _, rows = loader.row_numbers(step, place.virtual_worker)
        ids = loader.rows_at(step).materialize(rows[place.row : place.row + 1])[0][0, :BEGINNING_TOKENS]
        text = " ".join(tokenizer.decode(ids.tolist(), skip_special_tokens=True).split())
        stats = engine.evaluate([batches[place.virtual_worker].part(place.row, place.row + 1)])
        losses.append(RowLoss(place, stats.loss, text))
    return sorted(losses, key=lambda row: -row.loss if math.isfinite(row.loss) else -math.inf)
