"""The runs of a comparison: their list, their making, and their results.

Each is a run of its own below FOLDER/runs, made by `maskwright finetune` in a process of its own, or one without a
transformer, made here: first a search of learning rates, or of penalties, that never reads a test set, then fresh seeds
with what did best on validation. A run that has ended is not made again, and a stopped run is continued (in a retrieval
task, begun again), so the same command continues from any point.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from maskwright.config.pretraining import OF_ONE_RUN
from maskwright.config.settings import in_flow
from maskwright.core import storage
from maskwright.core.console import note, progress, say, warn
from maskwright.core.errors import HealthError, InputError, JobError, stopped
from maskwright.processes.child import FinetuneCommand, last_words, run_side_by_side
from maskwright.report.words import rate as rate_text
from maskwright.run.directory import RESULTS, RunDirectory
from maskwright.tasks.compare import linear
from maskwright.tasks.compare.arms import ArmStart
from maskwright.tasks.compare.plan import ComparedOn, ComparisonPlan
from maskwright.tasks.compare.retrieval import LexicalRuns, RetrievalTask

MAKE_AGAIN = "remove the run's folder and run the same command again"
Chosen = dict[tuple[str, str], float]
"""By task and arm: the learning rate, or the penalty, that did best on validation."""


@dataclass(frozen=True)
class ComparedRun:
    """One run below FOLDER/runs."""

    task: ComparedOn
    start: ArmStart
    number: int
    """Number of the arm's pretraining run."""
    rate: float
    """The learning rate, or the penalty of a linear model; BM25 ignores it."""
    seed: int
    search: bool
    folder: str
    more: tuple[str, ...] = ()

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory(self.folder)

    @property
    def log(self) -> str:
        return f"{self.folder}.log"

    @property
    def name(self) -> str:
        which = f", run {self.number + 1}" if len(self.start.locations) > 1 else ""
        return f"{self.task.name}, {self.start.name}{which}, {os.path.basename(self.folder)}"

    @property
    def results(self) -> str:
        return self.directory.path(RESULTS)

    @property
    def weights(self) -> str:
        return self.directory.path("model") if isinstance(self.task, RetrievalTask) else self.directory.checkpoints

    @property
    def split(self) -> str:
        """The split that it is scored on."""
        return "validation" if self.search else "test"

    def read(self, name: str, *keys: str) -> list[Any]:
        """The values of dotted keys in one of its JSON files. Raises `InputError` if the file is damaged."""
        path = self.directory.path(name)
        values = [storage.read_json(path, fix=MAKE_AGAIN)] * len(keys)
        for number, dotted in enumerate(keys):
            for key in dotted.split("."):
                if not isinstance(values[number], dict) or key not in values[number]:
                    raise InputError(f"has no {dotted}", where=path, fix=MAKE_AGAIN)
                values[number] = values[number][key]
        return values

    def command(self, overrides: Sequence[str]) -> FinetuneCommand:
        alone = [*(f"{key}={in_flow(value)}" for key, value in OF_ONE_RUN.items()), "checkpoint.keep=1"]
        alone = [] if isinstance(self.task, RetrievalTask) else alone
        keys = [*alone, *overrides, *self.start.keys(self.number)]
        keys += [f"optimizer.learning_rate={self.rate!r}", f"seed={self.seed}", *self.more]
        keys += ["data.test=null"] if self.search else []
        return FinetuneCommand(self.task.location, self.folder, tuple(keys), self.log)


@dataclass(frozen=True)
class EndedRun:
    """A run and its result."""

    run: ComparedRun
    score: float
    """By its task's metric, on validation for a search, else on the test set."""
    fault: str = ""
    """Why its health check stopped it. The score is then the best of a search until that point, or 0; in other runs, it
    belongs to the last finite weights."""
    scored: ComparedRun | None = None
    """The run that scored these weights."""

    @property
    def has_scores(self) -> bool:
        """Whether it scored its own weights."""
        return os.path.exists(self.run.results)


def searches(plan: ComparisonPlan) -> list[ComparedRun]:
    """One run for each task, arm, and learning rate or penalty, from the first of several pretraining runs. None for
    one rate."""
    runs = []
    for task in plan.tasks:
        for start in plan.starts:
            grid, name = _grid(plan, task, start)
            for value in grid if len(grid) > 1 else ():
                folder = _folder(plan, task, start, f"{name}-{value!r}")
                runs.append(ComparedRun(task, start, 0, value, plan.budget.search_seed, True, folder))
    return runs


def _grid(plan: ComparisonPlan, task: ComparedOn, start: ArmStart) -> tuple[tuple[float, ...], str]:
    """(values that are tried on validation, their name)"""
    if not start.fitted:
        return plan.budget.rates, "rate"
    return ((), "") if isinstance(task, RetrievalTask) else (linear.PENALTIES, "penalty")


def finals(plan: ComparisonPlan, chosen: Chosen) -> list[ComparedRun]:
    """Arms take turns, so that a stop leaves equally many runs of each."""
    runs = []
    for task in plan.tasks:
        for seed in plan.budget.fresh_seeds:
            for start in plan.starts:
                for number in range(max(1, len(start.locations))):
                    several = [f"pretraining-{number + 1}"] if len(start.locations) > 1 else []
                    folder = _folder(plan, task, start, *several, f"seed-{seed}")
                    rate = chosen[task.name, start.name]
                    runs.append(ComparedRun(task, start, number, rate, seed, False, folder))
    return runs


def _folder(plan: ComparisonPlan, task: ComparedOn, start: ArmStart, *parts: str) -> str:
    return os.path.join(plan.folder, "runs", task.name, start.name, *parts)


def choose(plan: ComparisonPlan, tried: Sequence[EndedRun]) -> Chosen:
    """The rate or penalty with the best score on validation for each task and arm. Ties go to the lower rate, or to the
    higher penalty, which gives the simpler model."""
    chosen: Chosen = {}
    for task in plan.tasks:
        for start in plan.starts:
            scores = scores_by_rate(tried, task, start)
            in_order = sorted(scores, reverse=start.fitted)
            best = max(in_order, key=lambda rate: scores[rate]) if scores else plan.budget.rates[0]
            chosen[task.name, start.name] = best
            if scores:
                what = "penalty" if start.fitted else "learning rate"
                note(f"{task.name}: {start.name} uses the {what} {rate_text(best)}")
    return chosen


def scores_by_rate(tried: Sequence[EndedRun], task: ComparedOn, start: ArmStart) -> dict[float, float]:
    of = (task.name, start.name)
    return {ended.run.rate: ended.score for ended in tried if (ended.run.task.name, ended.run.start.name) == of}


# ---- making them -----------------------------------------------------------------------------------------------------


def run(runs: Sequence[ComparedRun], plan: ComparisonPlan, label: str) -> list[EndedRun]:
    """Makes the missing runs, and reads all results, in the order of the runs. Raises `JobError` for a run that failed,
    `StoppedEarly` for one that was stopped."""
    results = _run_missing(runs, plan, label)
    stopped = [ended for ended in results if ended.fault and not ended.run.search and not ended.has_scores]
    if not stopped:
        return results
    scorings = [_with_last_finite_weights(ended.run) for ended in stopped]
    scored = _run_missing(scorings, plan, "score")
    for scoring in scored:
        if scoring.fault:
            what = f"{scoring.run.name}, scores weights that are not finite: {scoring.fault}"
            fix = "leave out that learning rate or that arm, in a new folder"
            raise JobError(what, 1, where=scoring.run.log, fix=fix)
    by_folder = {
        ended.run.folder: replace(ended, score=scoring.score, scored=scoring.run)
        for ended, scoring in zip(stopped, scored, strict=True)
    }
    return [by_folder.get(ended.run.folder, ended) for ended in results]


def _run_missing(runs: Sequence[ComparedRun], plan: ComparisonPlan, label: str) -> list[EndedRun]:
    ends = {number: end for number, run in enumerate(runs) if (end := _end(run))}
    missing = [number for number in range(len(runs)) if number not in ends]
    fitted, left = ([n for n in missing if runs[n].start.fitted == is_fitted] for is_fitted in (True, False))
    for number in missing:
        storage.make_folder(os.path.dirname(runs[number].folder))
    commands = [runs[number].command(plan.overrides) for number in left]
    with progress(label, len(runs), "runs", done=len(ends)) as bar:
        for number in _fit([runs[number] for number in fitted]):
            ends[fitted[number]] = _require_end(runs[fitted[number]], 0)
            bar.advance()
        with closing(run_side_by_side(commands, plan.budget.at_once)) as codes:
            for number, code in codes:
                ends[left[number]] = _require_end(runs[left[number]], code)
                bar.advance()
    for end in ends.values():
        if not end.fault:  # the same keys give the same weights again, bit by bit
            shutil.rmtree(end.run.weights, ignore_errors=True)
    return [ends[number] for number in range(len(runs))]


def _fit(runs: Sequence[ComparedRun]) -> Iterator[int]:
    """Makes runs without a transformer. Yields the index of each as it ends."""
    fits: dict[str, linear.LinearFits | LexicalRuns] = {}
    for number, run in enumerate(runs):
        if number and run.task is not runs[number - 1].task:
            fits.clear()
        if run.start.name not in fits:
            if isinstance(run.task, RetrievalTask):
                fits[run.start.name] = LexicalRuns(run.task, run.start.name)
            else:
                fits[run.start.name] = linear.LinearFits(run.task.config)
        made = fits[run.start.name]
        if isinstance(made, LexicalRuns):
            made.make(run.folder, seed=run.seed, search=run.search)
        else:
            made.make(run.folder, penalty=run.rate, seed=run.seed, search=run.search)
        yield number


def _end(run: ComparedRun) -> EndedRun | None:
    """None before its end."""
    metric = run.task.metric
    if os.path.exists(run.results):
        (score,) = run.read(RESULTS, f"{run.split}.{metric}")
        fault = run.read(RESULTS, "fault")[0] if isinstance(run.task, RetrievalTask) else ""
        return EndedRun(run, float(score), fault)
    status = run.directory.read_status()
    if status is None or status.exit != HealthError.exit_code or not status.message:
        return None
    lines = run.directory.read_metrics() if run.search else []
    best = max((line[f"valid_{metric}"] for line in lines if f"valid_{metric}" in line), default=0.0)
    return EndedRun(run, best, status.message)


def _require_end(run: ComparedRun, code: int) -> EndedRun:
    end = _end(run)
    if end and end.fault:
        warn(f"{run.name}: {end.fault}")
        return end
    if end and code == 0:
        say(f"{run.name}: {run.split} {run.task.metric} {end.score:.4f}")
        return end
    if kind := stopped(code):
        raise kind(f"{run.name} was stopped; the same command continues")
    fix = "fix the error, then run the same command again; finished runs are kept"
    what = f"{run.name}, ended with code {code} ({last_words(run.log)})"
    raise JobError(what, 2 if code == 2 else 1, where=run.log, fix=fix)


def _with_last_finite_weights(run: ComparedRun) -> ComparedRun:
    """A run that only scores the last save of a run that its health check stopped, or else that run's first weights, by
    one step at a negligible rate."""
    start = replace(run.start, locations=(run.start.locations[run.number],))
    if run.directory.newest_step():
        start = ArmStart(run.start.name, (run.folder,))
    decay = ("schedule.kind=linear", "schedule.decay_steps=null", "schedule.decay_share=null", "schedule.power=null")
    more = ("schedule.steps=1", "schedule.warmup_steps=0", *decay)
    return replace(run, start=start, number=0, rate=1e-30, folder=f"{run.folder}-last-finite", more=more)
