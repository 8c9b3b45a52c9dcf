"""The loop: what happens at step k, top to bottom."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from maskwright.core.config import RunConfig
from maskwright.core.console import Progress, progress, say, warn
from maskwright.core.errors import HealthError, StoppedEarly
from maskwright.core.run_directory import Phase, RunDirectory, Status
from maskwright.data.batch import Batch
from maskwright.data.loader import Loader
from maskwright.engines.base import Engine, EvalStats, TrainState
from maskwright.engines.schedules import learning_rate
from maskwright.model.config import ModelConfig, training_flops
from maskwright.training import checkpoint
from maskwright.training.health import HEALTH_FIX, LossWatch, Rollback, Rollbacks
from maskwright.training.metrics import Counters, Speed, TensorBoard
from maskwright.training.saver import Saver
from maskwright.training.stop import StopRequest

STATUS_EVERY_SECONDS = 2.0
MOST_EMPTY_STEPS = 10


@dataclass
class Job:
    """Everything one run trains with. `step` counts finished updates; `record` goes into each checkpoint."""

    config: RunConfig
    model: ModelConfig
    directory: RunDirectory
    engine: Engine
    loader: Loader
    validation: list[Batch]
    ceiling: float
    """Measured FLOP/s of plain matrix multiplication."""
    record: dict[str, Any]
    saver: Saver
    step: int = 0
    evaluated: set[int] = field(default_factory=set)
    """Steps whose validation is in the metrics already, so that a restart neither repeats nor skips one."""
    counters: Counters = field(default_factory=Counters)
    speed: Speed = field(default_factory=Speed)
    status: Status = field(default_factory=Status)
    status_written: float = 0.0

    def __post_init__(self) -> None:
        self.watch = LossWatch(self.model.vocab_size, self.config.schedule.warmup_steps)
        self.rollbacks = Rollbacks(self.directory)


def train(job: Job, stop: StopRequest) -> None:
    """Runs to the last step. Raises `StoppedEarly` after saving when asked to stop, `HealthError` before a bad
    update."""
    config, steps = job.config, job.config.schedule.steps
    board = TensorBoard(job.directory.path("events"), job.step) if config.logging.tensorboard else None
    saved_at, empty, first = time.monotonic(), 0, job.step
    job.status.of = steps
    try:
        if job.step == 0 or _due(config.evaluation.every_steps, job.step):
            evaluate(job, board, stop)
        _beat(job, "training", force=True)  # before the first step, which may compile for a minute
        with progress("pretrain", steps, "steps", done=job.step) as bar:
            while job.step < steps and not stop.requested:
                job.speed.start()
                batches = job.loader.batches(job.step, job.rollbacks.data_step(job.step))
                rate = learning_rate(config.schedule, config.optimizer.learning_rate, job.step)
                stats = job.engine.step(batches, rate, lambda: stop.urgent)
                if stats is None:  # nothing has changed: the step is made after the restart
                    break
                tokens = sum(batch.text_tokens for batch in batches)
                log = (job.step + 1) % config.logging.every_steps == 0 or job.step + 1 == steps
                if log:
                    job.engine.check()
                job.speed.stop(tokens, _flops(job.model, batches))
                job.counters.add(stats, tokens)
                job.step += 1
                job.saver.look()
                empty = _watch_empty(job, stats.weight, empty)

                if log and _log(job, board, bar, rate, float(stats.grad_norm)) and _roll_back(job, bar):
                    continue
                bar.advance()
                _beat(job, "training")
                stop.look(job.directory, job.step - first)
                if _due(config.evaluation.every_steps, job.step) and job.step < steps:
                    evaluate(job, board, stop)
                if job.step < steps and (
                    _due(config.checkpoint.save_every_steps, job.step)
                    or time.monotonic() - saved_at >= (config.checkpoint.save_every_seconds or math.inf)
                    or stop.save_wanted
                ):
                    save(job)
                    saved_at, stop.save_wanted = time.monotonic(), False
        save(job)
        job.saver.finish()
        if job.step < steps:
            job.saver.wait_for_copy()  # for as long as the grace period lets it
            raise StoppedEarly(
                f"{stop.reason}: stopped at step {job.step:,} of {steps:,}, saved; the same command continues"
            )
        evaluate(job, board, stop)
        if stop.requested:
            raise StoppedEarly(f"{stop.reason}: trained to the end and saved; the same command evaluates")
        if failed := job.saver.wait_for_copy():
            raise failed
    finally:
        job.saver.wait()
        if board:
            board.close()


def _watch_empty(job: Job, weight: float, before: int) -> int:
    """How many steps in a row had nothing to predict. Raises `HealthError` when there are too many to be chance."""
    if weight:
        return 0
    warn(f"step {job.step - 1}: no token was masked in the whole batch, so it taught nothing")
    if before + 1 >= MOST_EMPTY_STEPS:
        raise HealthError(
            f"no token was masked in {MOST_EMPTY_STEPS} steps in a row",
            fix="start a new run with a higher masking.rate, data.seq_len or batch.micro_batch_rows",
        )
    return before + 1


def _due(every: int | None, step: int) -> bool:
    return every is not None and step % every == 0


def _flops(model: ModelConfig, batches: Sequence[Batch]) -> float:
    return sum(
        training_flops(model, batch.text_tokens, attended_pairs(batch.segment_ids), batch.predicted)
        for batch in batches
    )


def attended_pairs(segment_ids: np.ndarray) -> float:
    """(query, key) pairs inside segments: the sum of squared segment lengths; padding does not count."""
    M, T = segment_ids.shape
    numbered = np.arange(M, dtype=np.int64)[:, None] * (T + 1) + segment_ids
    lengths = np.bincount(numbered[segment_ids > 0], minlength=1).astype(np.float64)
    return float(np.square(lengths).sum())


def _log(job: Job, board: TensorBoard | None, bar: Progress, rate: float, grad_norm: float) -> bool:
    """Whether this line makes the run go back."""
    tokens_per_second, flops = job.speed.take()
    record = {
        "step": job.step,
        "loss": job.counters.take_loss(),
        "learning_rate": rate,
        "grad_norm": grad_norm,
        "masking_rate": job.loader.masking_rate(job.step - 1),
        "epoch": round(job.loader.epoch(job.rollbacks.data_step(job.step - 1) + 1), 6),
        "tokens": job.counters.tokens,
        "tokens_per_second": round(tokens_per_second, 1),
        "ceiling_share": round(flops / job.ceiling, 4),
        "time": round(time.time(), 3),
    }
    job.status.loss, job.status.tokens_per_second = record["loss"], record["tokens_per_second"]
    _write(job, board, record)
    bar.note = f"loss {record['loss']:.3f}  {tokens_per_second:,.0f} tokens/s  {record['ceiling_share']:.0%} of GEMM"
    return job.watch.look(job.step, record["loss"]) and job.config.health.on_spike == "rollback"


def _roll_back(job: Job, bar: Progress) -> bool:
    """Goes on from a checkpoint before the spike with data that comes after it, if there is one. Raises `HealthError`
    when the run has done so too often."""
    seen, done = job.step, job.rollbacks.all
    if len(done) >= job.config.health.max_rollbacks:
        raise HealthError(f"step {seen}: the loss spiked again after {len(done)} rollbacks", fix=HEALTH_FIX)
    job.saver.finish()
    # A checkpoint since the last ordinary log line may hold what made the loss spike; the one that was gone back to
    # does not.
    ordinary = max(seen - job.config.logging.every_steps, done[-1].step if done else 0)
    kept = checkpoint.set_aside_after(
        job.directory.checkpoints, ordinary, job.config.checkpoint.save_every_steps or 1, "spiked"
    )
    loaded = checkpoint.load_newest(job.directory.checkpoints, set_aside=True) if kept else None
    if loaded is None:
        warn("there is no checkpoint to go back to yet; going on")
        return False
    # First the note, then the state: a kill in between continues from the same checkpoint with the same data.
    job.rollbacks.add(Rollback(seen, loaded[0].step, job.rollbacks.data_step(seen)))
    job.saver.forget_after(loaded[0].step)
    restore(job, *loaded)
    bar.advance(job.step - seen + 1)
    say(f"going back to step {job.step:,}; the data of the {seen - job.step:,} steps since then is left out")
    return True


def restore(job: Job, state: TrainState, record: dict[str, Any]) -> int:
    """Puts a checkpoint in place, as if nothing had been computed after it; how many log lines that takes back."""
    job.engine.write(state)
    job.engine.rows_at_once = record.get("rows_at_once")
    job.step, job.counters = state.step, Counters(**record["counters"])
    again = job.directory.forget_metrics_after(state.step)
    lines = job.directory.read_metrics()
    job.evaluated = {line["step"] for line in lines if "valid_loss" in line}
    job.watch = LossWatch(
        job.model.vocab_size, job.config.schedule.warmup_steps, [line["loss"] for line in lines if "loss" in line]
    )
    return again


def _write(job: Job, board: TensorBoard | None, record: dict[str, Any]) -> None:
    job.directory.append_metrics(record)
    if board:
        board.add(job.step, {key: value for key, value in record.items() if key != "time"})
    numbers = "  ".join(
        f"{key} {value:.6g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in record.items()
        if key != "time"
    )
    job.directory.log(numbers)


def evaluate(job: Job, board: TensorBoard | None, stop: StopRequest) -> None:
    """Held-out loss and masked accuracy on fixed rows and masks; given up without a record when asked to stop."""
    if not job.validation or job.step in job.evaluated:
        return
    _beat(job, "evaluating", force=True)
    job.engine.check()
    stats = EvalStats()
    with progress("validate", len(job.validation), "batches") as bar:
        for batch in job.validation:
            if stop.requested:
                return
            stats += job.engine.evaluate(batch)
            bar.advance()
            _beat(job, "evaluating")
    if not math.isfinite(stats.loss_sum):
        raise HealthError(f"step {job.step}: the held-out loss is {stats.loss_sum}", fix=HEALTH_FIX)
    record = {
        "step": job.step,
        "valid_loss": stats.loss,
        "valid_accuracy": stats.accuracy,
        "time": round(time.time(), 3),
    }
    _write(job, board, record)
    job.evaluated.add(job.step)
    say(f"step {job.step}: held-out loss {record['valid_loss']:.4f}, masked accuracy {record['valid_accuracy']:.2%}")


def save(job: Job) -> None:
    """Hands the state over to be written; training goes on meanwhile."""
    _beat(job, "saving", force=True)
    job.engine.check()
    job.saver.begin(
        job.engine.read(), {**job.record, "counters": job.counters.to_json(), "rows_at_once": job.engine.rows_at_once}
    )


def _beat(job: Job, phase: Phase, *, force: bool = False) -> None:
    now = time.monotonic()
    if force or now - job.status_written >= STATUS_EVERY_SECONDS:
        job.status_written = now
        update_status(job, phase)


def update_status(job: Job, phase: Phase, message: str = "", exit_code: int | None = None) -> None:
    status = job.status
    status.phase, status.step, status.tokens = phase, job.step, job.counters.tokens
    status.message, status.exit = message, exit_code
    speed = job.speed
    done_here = speed.total_tokens / max(speed.total_seconds, 1e-9)
    per_step = job.counters.tokens / max(job.step, 1)
    left = job.config.schedule.steps - job.step
    status.eta_seconds = round(left * per_step / done_here, 1) if done_here else None
    job.directory.write_status(status)
