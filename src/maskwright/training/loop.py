"""The loop: what happens at step k, top to bottom."""

from __future__ import annotations

import json
import math
import time
from contextlib import ExitStack, suppress
from typing import Any

from maskwright.config.finetuning import FinetuneConfig
from maskwright.core import storage
from maskwright.core.console import Progress, note, progress, warn
from maskwright.core.errors import HealthError, StoppedEarly, StopReason
from maskwright.engines.base import AtOnce, StepStats, TrainState
from maskwright.engines.muon import products_flops
from maskwright.model.config import training_flops
from maskwright.run.directory import Phase
from maskwright.run.metric_names import trainer_names
from maskwright.run.record import evaluations
from maskwright.training import checkpoint
from maskwright.training.health import HEALTH_FIX, LossWatch
from maskwright.training.job import Job
from maskwright.training.metrics import Counters, TensorBoard
from maskwright.training.objective import UpdateCounts
from maskwright.training.prefetch import BatchPrefetcher
from maskwright.training.stop import StopRequest
from maskwright.training.vote import END, Vote, is_due

STATUS_EVERY_SECONDS = 2.0
REPORT_EVERY_SECONDS = 30.0
LONG_DRY_RUN_SECONDS = 10.0
PROFILE_AFTER_STEPS = 5
MOST_EMPTY_STEPS = 10


def train(job: Job, stop: StopRequest) -> None:
    """Runs to the last step. Raises `StoppedEarly` after saving when asked to stop, `HealthError` before a bad
    update."""
    config, steps, first = job.config, job.steps, job.step
    board = (
        TensorBoard(job.directory.path("events"), first)
        if "tensorboard" in config.logging.report_to and job.is_rank_0
        else None
    )
    local = job.engine.local_virtual_workers(config.batch.virtual_workers)
    vote = Vote(config.checkpoint, stop, job.engine.processes, first)
    profile = _Profile(job, stop.profile_steps)
    prefetcher = BatchPrefetcher(job.objective, local)
    job.status.of, job.status.began = steps, first
    try:
        _dry_run(job, local, stop)
        if is_due(config.evaluation.every_steps, job.step) if job.step else job.objective.evaluates_at_start:
            evaluate(job, board, stop)
        _beat(job, "training", force=True)
        if not job.ended:
            stop.look(None, job.step)  # the last start may have been interrupted at its limit
        vote.begin()
        with profile, progress("train", steps, "steps", done=first) as bar:
            job.speed.start()
            while not job.ended and not vote.stops:
                # ---- one step: this rank's micro-batches, one update of the weights in all ranks
                profile.look(job.step - first)
                begun = _begin_step(job, prefetcher, stop, vote.own)
                if begun is None:  # nothing has changed: the step is computed after the restart
                    break

                # ---- after each step: what others ask for, and what all ranks agree on
                stats, work = begun
                _count(job, stats, work)
                bar.advance()
                _beat(job, "training")
                stop.look(job.directory if job.is_rank_0 else None, job.step)
                vote.take(stats.vote)

                # ---- once in a while: a log line, an evaluation, a save
                evaluates = is_due(config.evaluation.every_steps, job.step) and job.step < steps
                saves = vote.due_to_save(job.step) and job.step < steps
                if is_due(config.logging.every_steps, job.step) or job.step == steps:
                    _write_line(job, board, bar, stats)
                if evaluates:
                    evaluate(job, board, stop)
                    saves = saves or job.objective.best_step == job.step
                if saves:
                    save(job)
                    vote.saved(job.step)
            job.speed.pause()
        save(job)
        _finish(job, board, stop, is_final=vote.agreed == END)
    finally:
        prefetcher.close()
        job.beats.look("saving" if job.saver else "waiting", job.step)
        write_report(job)
        if job.saver:
            job.saver.wait()
        if board:
            board.close()


def _dry_run(job: Job, local: list[int], stop: StopRequest) -> None:
    """Tries the run's shapes, so that compiling and running out of memory happen before the first step, not at
    the first evaluation some hours later. It costs about one micro-batch; no number of the run depends on it."""
    _set_rope_theta(job, max(job.step - 1, 0))
    if job.ended or (stop.requested and job.alone):
        return
    began = time.perf_counter()
    held_out, tried = job.objective.held_out[: job.engine.dp_degree], set[float]()
    for step, batches in job.objective.trials(job.step, local):
        theta = _set_rope_theta(job, step)
        job.engine.dry_run(batches, held_out if theta not in tried else [])
        tried.add(theta)
    _set_rope_theta(job, max(job.step - 1, 0))
    if not job.alone:
        job.engine.read()  # as a save does: rank 0 then holds the shares of all
    seconds = time.perf_counter() - began
    job.speed.add("dry_run", seconds)
    message = f"largest shapes tried before step {job.step + 1}: {seconds:.1f} s"
    if job.is_rank_0:
        job.directory.log(message)
    if seconds >= LONG_DRY_RUN_SECONDS:
        note(message)


def _set_rope_theta(job: Job, step: int) -> float:
    """Gives the engine the base of rotary positions that update `step` is computed with; returns it."""
    theta = job.objective.rope_theta(step) or job.model.rope_theta
    job.engine.use_rope_theta(theta)
    return theta


class _Profile(ExitStack):
    """Traces some steps into `profile/` of the run directory, once the first steps are over."""

    def __init__(self, job: Job, steps: int) -> None:
        super().__init__()
        self._job, self._steps, self._is_written = job, steps, False

    def look(self, done: int) -> None:
        """Starts or ends the trace, on rank 0; called before each step, after `done` steps of this start."""
        due = PROFILE_AFTER_STEPS, PROFILE_AFTER_STEPS + self._steps
        if not self._steps or done not in due or not self._job.is_rank_0:
            return
        folder = self._job.directory.path("profile")
        self._job.engine.check()  # so that the trace holds whole steps
        with self._job.speed.paused():
            if done == PROFILE_AFTER_STEPS:
                self.enter_context(self._job.engine.profile(folder))
            else:
                self.close()
                self._is_written = True
                note(f"profile of {self._steps} steps: {folder}")

    def __exit__(self, *error: Any) -> bool:
        suppressed = super().__exit__(*error)
        if self._steps and not self._is_written and self._job.is_rank_0:
            needed = PROFILE_AFTER_STEPS + self._steps + 1
            warn(f"--profile-steps {self._steps}: no whole profile, which needs a start of {needed} steps or more")
        return bool(suppressed)


def _finish(job: Job, board: TensorBoard | None, stop: StopRequest, *, is_final: bool) -> None:
    """Ends the run after its last save: with an evaluation, or with the reason to stop. `is_final`: whether all ranks
    have agreed on an end."""
    if job.saver:
        job.saver.finish()
    if not job.ended:
        if job.saver:
            job.saver.wait_for_copy()  # the grace period ends a wait that takes too long
            stop.take_request(job.directory)  # it may have come just after the signal
        what = f"{stop.why or 'another host was asked to'}: step {job.step:,} of {job.steps:,} is saved; "
        raise stop.error(f"{what}the same command continues", is_final=is_final)
    evaluate(job, board, stop)
    if stop.urgent and job.alone:
        raise StoppedEarly(f"{stop.why}: trained to the end and saved; the same command evaluates", reason="signal")
    if job.saver and (failed := job.saver.wait_for_copy()):
        raise failed


def write_report(job: Job) -> None:
    """Writes `engine.json`: compiled programs, memory, and how the host spent its time since this start."""
    if not job.is_rank_0:
        return
    seconds = {name: round(value, 3) for name, value in job.speed.parts.items()}
    report = {"engine": job.engine.description, "seconds": seconds, **job.engine.report}
    with suppress(OSError):  # the next save reports a full disk
        storage.write_json(job.directory.path("engine.json"), report)


def _begin_step(
    job: Job, prefetcher: BatchPrefetcher, stop: StopRequest, vote: int
) -> tuple[StepStats, UpdateCounts] | None:
    """Gives the engine the micro-batches of this rank for one update; None if the update was given up."""
    job.beats.begin_step(job.step)
    _set_rope_theta(job, job.step)
    with job.speed.part("data"):
        batches, work = prefetcher.take(job.step, ahead=job.engine.leaves_host_free and job.step + 1 < job.steps)
    with job.speed.part("step"):
        stats = job.engine.step(batches, job.config.learning_rate_at(job.step), lambda: stop.urgent, vote)
    return (stats, work) if stats else None


def _count(job: Job, stats: StepStats, work: UpdateCounts) -> None:
    """Counts a begun update as done."""
    job.step += 1
    job.beats.end_step(job.step)
    job.speed.count(work.tokens, training_flops(job.model, work.tokens, work.pairs, work.predicted))
    job.counters.add(stats, work.tokens)
    if job.saver:
        job.saver.look()


def _write_line(job: Job, board: TensorBoard | None, bar: Progress, stats: StepStats) -> None:
    """Writes the log line of the last step, after waiting for its numbers."""
    with job.speed.part("wait"):
        job.engine.check()
    record = _line(job, stats)
    _watch_empty(job)
    _write(job, board, record)
    _show(job, bar, record)
    if job.watch.look(job.step, record["loss"], int(record.get("phase") or 0)) and job.is_rank_0:
        job.directory.append_history("spiked", job.step, loss=record["loss"])


def _watch_empty(job: Job) -> None:
    """Raises `HealthError` once more steps in a row had nothing to predict than chance explains, or all of a short
    run."""
    empty = job.counters.empty_steps
    if not empty:
        return
    what = f"no token was masked in the last {empty} global batches"
    keys = "masking.rate, data.seq_len or batch.micro_batch_rows"
    if isinstance(job.config, FinetuneConfig):
        what, keys = f"no word had a label in the last {empty} global batches", "batch.examples"
    warn(f"step {job.step - 1}: {what}, so they taught nothing")
    if empty >= min(MOST_EMPTY_STEPS, job.steps):
        raise HealthError(what, fix=f"start a new run with a higher {keys}")


def _line(job: Job, stats: StepStats) -> dict[str, Any]:
    """The numbers of a line of metrics, since the one before it."""
    tokens_per_second, flops, updates = job.speed.take()
    examples = job.config.batch.examples if isinstance(job.config, FinetuneConfig) else None
    with_muon = flops + updates * products_flops(job.model) if job.config.optimizer.kind == "muon" else 0.0
    job.status.busy = job.usage.take()
    norm = float(stats.grad_norm)
    return {
        "step": job.step,
        "loss": job.counters.take_loss(),
        "learning_rate": job.config.learning_rate_at(job.step - 1),
        "grad_norm": norm if math.isfinite(norm) else None,  # fp16 may have skipped this very update
        **job.engine.scaling(),
        **job.objective.logged(job.step - 1),
        "epoch": round(job.objective.epoch(job.step), 6),
        "tokens": job.counters.tokens,
        "tokens_per_second": round(tokens_per_second, 1),
        **({"examples_per_second": round(updates * examples, 1)} if examples else {}),
        "matmul_share": round(job.ceiling.share(flops), 4),
        **({"matmul_share_with_muon": round(job.ceiling.share(with_muon), 4)} if with_muon else {}),
        **job.status.busy,
        "time": round(time.time(), 3),
    }


def _show(job: Job, bar: Progress, record: dict[str, Any]) -> None:
    """Passes a line's numbers on to `status.json`, `engine.json` and the progress bar."""
    job.status.loss, job.status.tokens_per_second = record["loss"], record["tokens_per_second"]
    job.status.examples_per_second = record.get("examples_per_second")
    job.status.skipped_updates = int(record.get("skipped_updates") or 0)
    if time.monotonic() - job.reported >= REPORT_EVERY_SECONDS:
        job.reported = time.monotonic()
        write_report(job)
    bar.note = f"loss {record['loss']:.3f}  {record['tokens_per_second']:,.0f} tokens/s"
    if job.engine.device != "cpu":  # a CPU's speed depends on its neighbours of the moment
        bar.note += f"  {record['matmul_share']:.0%} of measured matmul"


FROM_RANK_0: tuple[TrainState, dict[str, Any]] = TrainState(0, {}), {}
"""The other ranks' arguments of `restore`."""


def restore(job: Job, state: TrainState, record: dict[str, Any]) -> int:
    """Restores a checkpoint as if nothing had been computed after it. Returns how many log lines that removes.

    Rank 0 broadcasts the checkpoint and the run directory's records to all ranks."""
    job.engine.write(state)
    history = _history(job, state, record) if job.is_rank_0 else {}
    history = json.loads(job.engine.processes.broadcast(json.dumps(history).encode()))
    job.engine.at_once = AtOnce(**history["at_once"])
    job.step, job.counters = history["step"], Counters(**history["counters"])
    job.evaluated = set(history["evaluated"])
    job.objective.remember(history["evaluations"], history["saved"])
    job.watch = LossWatch(job.objective.chance, job.config.schedule.warmup_steps or 0, history["losses"])
    return int(history["again"])


def _history(job: Job, state: TrainState, record: dict[str, Any]) -> dict[str, Any]:
    again = job.directory.drop_metrics_after(state.step)
    lines = job.directory.read_metrics()
    judged = evaluations(lines, job.record.judges) if job.record else []
    return {
        "step": state.step,
        "again": again,
        "at_once": record["at_once"],
        "counters": record["counters"],
        "evaluated": [line["step"] for line in judged],
        "evaluations": judged,
        "saved": checkpoint.whole_steps(job.directory.checkpoints),
        "losses": [(line["loss"], line.get("phase", 0)) for line in lines if "loss" in line],
    }


def _write(job: Job, board: TensorBoard | None, record: dict[str, Any]) -> None:
    if not job.is_rank_0:
        return
    job.directory.append_metrics(record)
    if board:
        board.add(job.step, trainer_names(record))
    numbers = "  ".join(
        f"{key} {value:.6g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in record.items()
        if key not in ("time", "judges")
    )
    job.directory.log(numbers)


def evaluate(job: Job, board: TensorBoard | None, stop: StopRequest) -> None:
    """Evaluates on the validation split. A single rank that is asked to stop gives up without a record; at the end of
    the run, only after a signal."""
    if job.step in job.evaluated:
        return
    _beat(job, "evaluating", force=True)
    job.engine.check()

    def look() -> bool:
        _beat(job, "evaluating")
        return job.alone and (stop.urgent or (stop.requested and not job.ended))

    with job.speed.paused(), job.speed.part("evaluate"):
        metrics = job.objective.evaluate(job.engine, job.step, look)
    if not metrics:
        return
    if bad := [f"{name} {value}" for name, value in metrics.items() if "loss" in name and not math.isfinite(value)]:
        raise HealthError(f"step {job.step}: the held-out loss is not finite ({bad[0]})", fix=HEALTH_FIX)
    judges = {"judges": job.record.judges} if job.record else {}
    _write(job, board, {"step": job.step, **metrics, **judges, "time": round(time.time(), 3)})
    job.evaluated.add(job.step)


def save(job: Job) -> None:
    """Hands the state to the saver; training continues while it writes."""
    _beat(job, "saving", force=True)
    job.engine.check()
    with job.speed.paused():
        with job.speed.part("save"):
            if job.saver:
                job.saver.finish()  # before there is another copy of the state
            state = job.engine.read()
        if job.saver:
            best, of_run = job.objective.best_step, job.record.to_json() if job.record else {}
            progress_record = {"counters": job.counters.to_json(), "at_once": job.engine.at_once._asdict()}
            best_record = {} if best is None else {"best_step": best}
            job.saver.begin(state, of_run | progress_record | best_record, best)


def _beat(job: Job, phase: Phase, *, force: bool = False) -> None:
    now = time.monotonic()
    job.beats.look(phase, job.step)
    if job.is_rank_0 and (force or now - job.status_written >= STATUS_EVERY_SECONDS):
        job.status_written = now
        update_status(job, phase)


def update_status(
    job: Job, phase: Phase, message: str = "", exit_code: int | None = None, reason: StopReason = ""
) -> None:
    """Writes `status.json`."""
    status = job.status
    status.saved |= job.saver is not None and job.saver.saved
    status.phase, status.step, status.tokens = phase, job.step, job.counters.tokens
    status.message, status.exit, status.reason = message, exit_code, reason
    speed = job.speed
    tokens_per_second = speed.total_tokens / max(speed.total_seconds, 1e-9)
    tokens_left = 0 if job.ended else job.counters.tokens * job.left_for_done
    status.eta_seconds = round(tokens_left / tokens_per_second, 1) if tokens_per_second else None
    job.directory.write_status(status)
    if exit_code is not None:
        job.directory.append_history("ended", job.step, phase=phase, exit=exit_code, reason=reason, message=message)
