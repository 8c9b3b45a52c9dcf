"""The loop: what happens at step k, top to bottom."""

from __future__ import annotations

import json
import math
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from maskwright.core import storage
from maskwright.core.config import RunConfig
from maskwright.core.console import Progress, note, progress, warn
from maskwright.core.errors import HealthError, StoppedEarly, StopReason
from maskwright.data.batch import Batch
from maskwright.data.loader import Loader
from maskwright.engines.base import Engine, EvalStats, StepStats, TrainState
from maskwright.engines.schedules import learning_rate
from maskwright.model.config import ModelConfig, training_flops
from maskwright.run.directory import Phase, RunDirectory, Status
from maskwright.training import checkpoint
from maskwright.training.beats import Beats
from maskwright.training.health import HEALTH_FIX, LossWatch, Rollback, Rollbacks
from maskwright.training.metrics import Counters, Speed, TensorBoard
from maskwright.training.saver import Saver
from maskwright.training.stop import StopRequest

STATUS_EVERY_SECONDS = 2.0
FIRST_MEASURED_SECONDS = 10.0
REPORT_EVERY_SECONDS = 30.0
PROFILE_AFTER_STEPS = 5
MOST_EMPTY_STEPS = 10
WISH_STEPS = 2
"""Between a process's wish and the step after which all know of it."""
SAVE, STOP = 1, 2
"""What a process may wish for; all do what the largest wish says, after the same step."""


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
    """FLOP/s of plain matrix multiplication: the best measured so far."""
    record: dict[str, Any]
    saver: Saver | None
    """None but in process 0, which alone writes."""
    step: int = 0
    whole: bool = False
    """Whether the engine holds the state of `step`; not while it goes back."""
    evaluated: set[int] = field(default_factory=set)
    """Steps whose validation is in the metrics already, so that a restart neither repeats nor skips one."""
    counters: Counters = field(default_factory=Counters)
    speed: Speed = field(default_factory=Speed)
    status: Status = field(default_factory=Status)
    status_written: float = 0.0
    reported: float = 0.0
    measured: float = 0.0
    """Seconds of training after which `ceiling` was measured last."""

    def __post_init__(self) -> None:
        self.watch = LossWatch(self.model.vocab_size, self.config.schedule.warmup_steps)
        self.rollbacks = Rollbacks(self.directory)
        self.beats = Beats(self.directory)

    @property
    def alone(self) -> bool:
        return self.engine.processes.count == 1

    @property
    def first(self) -> bool:
        """Whether this is process 0."""
        return self.engine.processes.number == 0


def train(job: Job, stop: StopRequest) -> None:
    """Runs to the last step. Raises `StoppedEarly` after saving when asked to stop, `HealthError` before a bad
    update."""
    config, steps = job.config, job.config.schedule.steps
    board = TensorBoard(job.directory.path("events"), job.step) if config.logging.tensorboard and job.first else None
    workers = job.engine.workers(config.batch.virtual_workers)
    saved_at, saved_step, first = time.monotonic(), job.step, job.step
    job.status.of, job.status.began, job.whole = steps, job.step, True
    try:
        if job.step == 0 or _due(config.evaluation.every_steps, job.step):
            evaluate(job, board, stop)
        _beat(job, "training", force=True)  # before the first step, which may compile for a minute
        own = agreed = _wish(job, stop, saved_at) if job.alone else 0
        profile = _Profile(job, stop.profile_steps)
        with profile, progress("pretrain", steps, "steps", done=job.step) as bar:
            while job.step < steps and agreed != STOP:
                profile.look(job.step - first)
                stats = _update(job, workers, stop, own)
                if stats is None:  # nothing has changed: the step is made after the restart
                    break
                log = job.step % config.logging.every_steps == 0 or job.step == steps
                if log and _log(job, board, bar, stats) and _roll_back(job, bar):
                    saved_step = job.step
                    continue
                bar.advance()
                _beat(job, "training")
                stop.look(job.directory if job.first else None, job.step - first)
                own = _wish(job, stop, saved_at)
                agreed = own if job.alone else STOP if stop.everywhere else stats.wish
                if _due(config.evaluation.every_steps, job.step) and job.step < steps:
                    evaluate(job, board, stop)
                if job.step < steps and (
                    _due(config.checkpoint.save_every_steps, job.step)
                    or (agreed == SAVE and (job.alone or job.step > saved_step + WISH_STEPS))
                ):
                    save(job)
                    saved_at, saved_step, stop.save_wanted = time.monotonic(), job.step, False
        save(job)
        _finish(job, board, stop)
    finally:
        job.beats.look("saving" if job.saver else "waiting", job.step)
        write_report(job)
        if job.saver:
            job.saver.wait()
        if board:
            board.close()


class _Profile(ExitStack):
    """A trace of some steps, once those that compile are over, in `profile/` of the run directory."""

    def __init__(self, job: Job, steps: int) -> None:
        super().__init__()
        self._job, self._steps = job, steps if job.first else 0

    def look(self, done: int) -> None:
        """Before each step; `done` of this start."""
        if self._steps and done == PROFILE_AFTER_STEPS:
            self._job.engine.check()
            self.enter_context(self._job.engine.profile(self._job.directory.path("profile")))
        if self._steps and done == PROFILE_AFTER_STEPS + self._steps:
            self._job.engine.check()  # so that the device has done what the host asked for
            self.close()
            note(f"profile of {self._steps} steps: {self._job.directory.path('profile')}")


def _finish(job: Job, board: TensorBoard | None, stop: StopRequest) -> None:
    """After the last save."""
    if job.saver:
        job.saver.finish()
    steps = job.config.schedule.steps
    if job.step < steps:
        if job.saver:
            job.saver.wait_for_copy()  # for as long as the grace period lets it
        raise StoppedEarly(
            f"{stop.why or 'another host was asked to'}: stopped at step {job.step:,} of {steps:,}, saved; "
            "the same command continues",
            reason=stop.reason or "agreed",
        )
    evaluate(job, board, stop)
    if stop.requested and job.alone:
        what = f"{stop.why}: trained to the end and saved; the same command evaluates"
        raise StoppedEarly(what, reason=stop.reason)
    if job.saver and (failed := job.saver.wait_for_copy()):
        raise failed


def write_report(job: Job) -> None:
    """`engine.json`: what was compiled, memory, and where the host's time went since this start."""
    if not job.first:
        return
    seconds = {name: round(value, 3) for name, value in job.speed.parts.items()}
    report = {"engine": job.engine.description, "seconds": seconds, **job.engine.report()}
    with suppress(OSError):  # a full disk is for the next save to speak of
        storage.write_json(job.directory.path("engine.json"), report)


def _update(job: Job, workers: list[int], stop: StopRequest, wish: int) -> StepStats | None:
    job.speed.start()
    job.beats.begin_step(job.step)
    data_step = job.rollbacks.data_step(job.step)
    with job.speed.part("data"):
        batches = job.loader.batches(job.step, data_step, workers)
    rate = learning_rate(job.config.schedule, job.config.optimizer.learning_rate, job.step)
    with job.speed.part("step"):
        stats = job.engine.step(batches, rate, lambda: stop.urgent, wish)
    if stats is None:
        return None
    job.step += 1
    if job.step % job.config.logging.every_steps == 0 or job.step == job.config.schedule.steps:
        with job.speed.part("wait"):
            job.engine.check()
    job.beats.end_step(job.step)
    tokens, pairs = job.loader.work(data_step)
    predicted = tokens * job.loader.masking_rate(job.step - 1)
    job.speed.stop(tokens, training_flops(job.model, tokens, pairs, predicted))
    job.counters.add(stats, tokens)
    if job.saver:
        job.saver.look()
    return stats


def _wish(job: Job, stop: StopRequest, saved_at: float) -> int:
    if stop.requested:
        return STOP
    due = job.first and time.monotonic() - saved_at >= (job.config.checkpoint.save_every_seconds or math.inf)
    return SAVE if due or stop.save_wanted else 0


def _watch_empty(job: Job) -> None:
    """Raises `HealthError` when too many steps in a row had nothing to predict for it to be chance."""
    empty = job.counters.empty_steps
    if empty:
        warn(f"step {job.step - 1}: no token was masked in the last {empty} whole batches, so they taught nothing")
    if empty >= MOST_EMPTY_STEPS:
        raise HealthError(
            f"no token was masked in {MOST_EMPTY_STEPS} steps in a row",
            fix="start a new run with a higher masking.rate, data.seq_len or batch.micro_batch_rows",
        )


def _due(every: int | None, step: int) -> bool:
    return every is not None and step % every == 0


def _log(job: Job, board: TensorBoard | None, bar: Progress, stats: StepStats) -> bool:
    """Whether this line makes the run go back."""
    tokens_per_second, flops = job.speed.take()
    loss = job.counters.take_loss()
    _watch_empty(job)
    record = {
        "step": job.step,
        "loss": loss,
        "learning_rate": learning_rate(job.config.schedule, job.config.optimizer.learning_rate, job.step - 1),
        "grad_norm": float(stats.grad_norm),
        "masking_rate": job.loader.masking_rate(job.step - 1),
        "epoch": round(job.loader.epoch(job.rollbacks.data_step(job.step - 1) + 1), 6),
        "tokens": job.counters.tokens,
        "tokens_per_second": round(tokens_per_second, 1),
        "ceiling_share": round(flops / job.ceiling, 4),
        "time": round(time.time(), 3),
    }
    job.status.loss, job.status.tokens_per_second = record["loss"], record["tokens_per_second"]
    _write(job, board, record)
    if time.monotonic() - job.reported >= REPORT_EVERY_SECONDS:
        job.reported = time.monotonic()
        write_report(job)
    bar.note = f"loss {record['loss']:.3f}  {tokens_per_second:,.0f} tokens/s"
    if job.engine.device != "cpu":  # what a CPU can do depends on its neighbours of the moment
        bar.note += f"  {record['ceiling_share']:.0%} of measured matmul"
    _measure_again(job)
    return job.watch.look(job.step, record["loss"]) and job.config.health.on_spike == "rollback"


def _measure_again(job: Job) -> None:
    """On a CPU, after 10 seconds of training, 20, 40, …: a neighbour that is busy at one moment does not decide what
    the run's speed is compared with. Processes do so after the same line, side by side as they train."""
    if job.engine.device == "cpu" and job.speed.total_seconds >= max(FIRST_MEASURED_SECONDS, 2.0 * job.measured):
        job.measured = job.speed.total_seconds
        job.ceiling = max(job.ceiling, job.engine.ceiling())


def _roll_back(job: Job, bar: Progress) -> bool:
    """Goes on from a checkpoint before the spike with data that comes after it, if there is one. Raises `HealthError`
    when the run has done so too often."""
    seen, done = job.step, job.rollbacks.all
    if len(done) >= job.config.health.max_rollbacks:
        raise HealthError(f"step {seen}: the loss spiked again after {len(done)} rollbacks", fix=HEALTH_FIX)
    if job.saver:
        job.saver.finish()
    job.whole = False  # what is there has the spike in it
    loaded = _checkpoint_before(job, seen) if job.first else None
    if not job.engine.processes.share(b"found" if loaded else b""):
        warn("there is no checkpoint to go back to yet; going on")
        job.whole = True
        return False
    if loaded:
        # First the note, then the state: a kill in between continues from the same checkpoint with the same data.
        job.rollbacks.add(Rollback(seen, loaded[0].step, job.rollbacks.data_step(seen)))
        if job.saver:
            job.saver.forget_after(loaded[0].step)
    restore(job, *(loaded or FROM_PROCESS_0))
    job.whole = True
    bar.advance(job.step - seen + 1)
    note(f"going back to step {job.step:,}; the data of the {seen - job.step:,} steps since then is left out")
    return True


def _checkpoint_before(job: Job, seen: int) -> tuple[TrainState, dict[str, Any]] | None:
    # A checkpoint since the last ordinary log line may hold what made the loss spike; the one that was gone back to
    # does not.
    done = job.rollbacks.all
    ordinary = max(seen - job.config.logging.every_steps, done[-1].step if done else 0)
    kept = checkpoint.set_aside_after(
        job.directory.checkpoints, ordinary, job.config.checkpoint.save_every_steps or 1, "spiked"
    )
    return checkpoint.load_newest(job.directory.checkpoints, set_aside=True) if kept else None


FROM_PROCESS_0: tuple[TrainState, dict[str, Any]] = TrainState(0, {}), {}
"""What the other processes bring to `restore`."""


def restore(job: Job, state: TrainState, record: dict[str, Any]) -> int:
    """Puts a checkpoint in place, as if nothing had been computed after it; how many log lines that takes back.

    Process 0 brings the checkpoint and what the run directory knows; all processes get it."""
    job.engine.write(state)
    history = _history(job, state, record) if job.first else {}
    history = json.loads(job.engine.processes.share(json.dumps(history).encode()))
    job.engine.rows_at_once = history["rows_at_once"]
    job.step, job.counters = history["step"], Counters(**history["counters"])
    job.rollbacks.all = [Rollback(**rollback) for rollback in history["rollbacks"]]
    job.evaluated = set(history["evaluated"])
    job.watch = LossWatch(job.model.vocab_size, job.config.schedule.warmup_steps, history["losses"])
    return int(history["again"])


def _history(job: Job, state: TrainState, record: dict[str, Any]) -> dict[str, Any]:
    again = job.directory.forget_metrics_after(state.step)
    lines = job.directory.read_metrics()
    return {
        "step": state.step,
        "again": again,
        "rows_at_once": record.get("rows_at_once"),
        "counters": record["counters"],
        "rollbacks": [asdict(rollback) for rollback in job.rollbacks.all],
        "evaluated": [line["step"] for line in lines if "valid_loss" in line],
        "losses": [line["loss"] for line in lines if "loss" in line],
    }


def _write(job: Job, board: TensorBoard | None, record: dict[str, Any]) -> None:
    if not job.first:
        return
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
    began = time.perf_counter()
    together = job.engine.spread
    with progress("validate", len(job.validation), "batches") as bar:
        for begin in range(0, len(job.validation), together):
            if stop.requested and job.alone:
                return
            batches = job.validation[begin : begin + together]
            stats += job.engine.evaluate(batches)
            bar.advance(len(batches))
            _beat(job, "evaluating")
    job.speed.add("evaluate", time.perf_counter() - began)
    if not math.isfinite(stats.loss_sum):
        raise HealthError(f"step {job.step}: the held-out loss is not finite ({stats.loss_sum})", fix=HEALTH_FIX)
    record = {
        "step": job.step,
        "valid_loss": stats.loss,
        "valid_accuracy": stats.accuracy,
        "time": round(time.time(), 3),
    }
    _write(job, board, record)
    job.evaluated.add(job.step)
    note(f"step {job.step}: held-out loss {record['valid_loss']:.4f}, masked accuracy {record['valid_accuracy']:.2%}")


def save(job: Job) -> None:
    """Hands the state over to be written; training goes on meanwhile."""
    _beat(job, "saving", force=True)
    job.engine.check()
    with job.speed.part("save"):
        state = job.engine.read()
    if job.saver:
        counters = job.counters.to_json()
        job.saver.begin(state, {**job.record, "counters": counters, "rows_at_once": job.engine.rows_at_once})


def _beat(job: Job, phase: Phase, *, force: bool = False) -> None:
    now = time.monotonic()
    job.beats.look(phase, job.step)
    if job.first and (force or now - job.status_written >= STATUS_EVERY_SECONDS):
        job.status_written = now
        update_status(job, phase)


def update_status(
    job: Job, phase: Phase, message: str = "", exit_code: int | None = None, reason: StopReason = ""
) -> None:
    status = job.status
    status.phase, status.step, status.tokens = phase, job.step, job.counters.tokens
    status.message, status.exit, status.reason = message, exit_code, reason
    speed = job.speed
    done_here = speed.total_tokens / max(speed.total_seconds, 1e-9)
    per_step = job.counters.tokens / max(job.step, 1)
    left = job.config.schedule.steps - job.step
    status.eta_seconds = round(left * per_step / done_here, 1) if done_here else None
    job.directory.write_status(status)
