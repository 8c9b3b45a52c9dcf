"""`maskwright compare`: several starts fine-tuned under the same rules and the same budget, and a verdict.

Every fine-tuning is a run of its own below FOLDER/runs, made by `maskwright finetune` in a process of its own: first a
search of learning rates that never reads a test set, then fresh seeds with the rate that did best on validation. A run
that has ended is not made again, and one that was stopped is continued, so the same command goes on at any point.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, cast

from maskwright.config.finetuning import LATER, FinetuneConfig, read_finetune_config
from maskwright.config.pretraining import OF_ONE_RUN
from maskwright.config.settings import flat
from maskwright.core import storage
from maskwright.core.console import note, progress, say, warn
from maskwright.core.errors import ConfigError, HealthError, InputError, JobError, StoppedEarly
from maskwright.core.hub import is_hub
from maskwright.labels.dataset import Dataset
from maskwright.labels.metrics import LOWER_IS_BETTER, default_metric
from maskwright.model.hf.config import to_hf_config
from maskwright.model.initial import initial_parameters
from maskwright.processes.child import FinetuneCommand, SideBySide, last_words
from maskwright.report.words import rate as rate_text
from maskwright.run.directory import RunDirectory
from maskwright.tasks.finetune.objective import chosen_metric
from maskwright.tasks.finetune.prepare import FinetuneRun, prepare_finetuning
from maskwright.tasks.models.hub import pinned
from maskwright.tasks.models.load import RESULTS, load_model
from maskwright.text.tokenizer import copy_tokenizer
from maskwright.training.tensor_file import write_tensors

FORMAT = 1
RANDOM = "random"
NOT_JUDGED = ("loss", "precision", "recall", *LOWER_IS_BETTER)
"""Metrics that choose a checkpoint but are no metric of `labels.scoring`."""
OURS = ("seed", "model.init_from", "model.weights", "optimizer.learning_rate", *OF_ONE_RUN)
"""What differs between the runs of a comparison."""
MAKE_AGAIN = "remove the run's folder and run the same command again"
SEEN_SECONDS = 60.0
"""In which a network file system shows what another machine has written (`acdirmax` of NFS)."""


@dataclass(frozen=True)
class Start:
    """One arm: what its fine-tunings start from."""

    name: str
    locations: tuple[str, ...]
    """A run or model folder for each pretraining run. For random weights, where shape and tokenizer are from."""
    random: bool = False

    def keys(self, number: int) -> list[str]:
        """`--set` for its pretraining run of that number."""
        weights = "random" if self.random else "pretrained"
        return [f"model.init_from={json.dumps(self.locations[number])}", f"model.weights={weights}"]


@dataclass(frozen=True)
class LabelledTask:
    name: str
    location: str
    """Of its YAML."""
    config: FinetuneConfig
    """The resolved one of the first arm."""
    dataset: Dataset
    metric: str
    """What it is judged by, as `results.json` of a run names it."""
    starts: dict[str, list[dict[str, Any]]]
    """By arm, for each of its pretraining runs: class, step and checksum of the weights."""
    arms: dict[str, ArmTraining]


@dataclass(frozen=True)
class ArmTraining:
    """What one arm's fine-tunings on a task are like, where it can differ between arms."""

    steps: int
    """Of questions, it follows from the windows, whose number is the tokenizer's."""
    max_seq_len: int
    """Of a row, which without `data.max_seq_len` is what the model takes, up to a limit."""


@dataclass(frozen=True)
class Budget:
    """Numbers of any kind that reads as one will do, such as text and NumPy's. Raises `InputError` for others, for a
    grid that is empty or has a rate twice, and for a number of runs below 1."""

    learning_rates: Sequence[float | str]
    seeds: int
    search_seed: int = 0
    at_once: int = 1
    """Fine-tunings side by side, which decides no number."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "learning_rates", _grid(self.learning_rates))
        for name, least in (("seeds", 1), ("search_seed", 0), ("at_once", 1)):
            given = getattr(self, name)
            if not isinstance(given, Integral) or isinstance(given, bool) or given < least:
                what = f"{name.replace('_', ' ')} is {given!r:.40}"
                raise InputError(what, fix=f"give an integer ≥ {least}")
            object.__setattr__(self, name, int(given))

    @property
    def rates(self) -> tuple[float, ...]:
        return cast(tuple[float, ...], self.learning_rates)

    @property
    def fresh_seeds(self) -> range:
        return range(self.search_seed + 1, self.search_seed + 1 + self.seeds)

    def record(self) -> dict[str, Any]:
        """What decides numbers."""
        return {"learning_rates": self.rates, "seeds": self.seeds, "search_seed": self.search_seed}


def _grid(given: Any) -> tuple[float, ...]:
    listed: list[Any] = []
    rates: tuple[float, ...] = ()
    with suppress(TypeError, ValueError):
        listed = [] if isinstance(given, str) else list(given)
        rates = tuple(float(one) for one in listed if not isinstance(one, bool))
    positive = all(0.0 < rate < float("inf") for rate in rates)
    if not rates or not positive or len(set(rates)) < len(listed):
        shown = given if isinstance(given, str) else ",".join(map(str, listed)) or given
        fix = "give positive learning rates, each once, as in 1e-4,3e-4,1e-3"
        raise InputError(f"{shown!s:.60} is no grid of learning rates", fix=fix)
    return rates


@dataclass(frozen=True)
class ComparisonPlan:
    folder: str
    starts: tuple[Start, ...]
    """The first is what the others are compared with."""
    tasks: tuple[LabelledTask, ...]
    budget: Budget
    overrides: tuple[str, ...] = ()


Chosen = dict[tuple[str, str], float]
"""By task and arm: the learning rate that did best on validation."""


@dataclass(frozen=True)
class ComparedRun:
    """One run below FOLDER/runs."""

    task: LabelledTask
    start: Start
    number: int
    """Which of the arm's pretraining runs."""
    rate: float
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

    def read(self, name: str, *keys: str) -> list[Any]:
        """The values of dotted keys in one of its files of JSON. Raises `InputError` where a disk or somebody has
        damaged it."""
        path = self.directory.path(name)
        found = [storage.read_json(path, fix=MAKE_AGAIN)] * len(keys)
        for place, dotted in enumerate(keys):
            for key in dotted.split("."):
                if not isinstance(found[place], dict) or key not in found[place]:
                    raise InputError(f"has no {dotted}", where=path, fix=MAKE_AGAIN)
                found[place] = found[place][key]
        return found

    @property
    def ended(self) -> bool:
        """Whether it has scores."""
        return os.path.exists(self.results)

    @property
    def fault(self) -> str:
        """Why its health check stopped it; empty if it did not."""
        status = self.directory.read_status()
        return status.message if status and status.exit == HealthError.exit_code else ""

    def command(self, overrides: Sequence[str]) -> FinetuneCommand:
        alone = [f"{key}={json.dumps(value)}" for key, value in OF_ONE_RUN.items()]
        keys = [*alone, "checkpoint.keep=1", *overrides, *self.start.keys(self.number)]
        keys += [f"optimizer.learning_rate={self.rate!r}", f"seed={self.seed}", *self.more]
        keys += ["data.test=null"] if self.search else []
        return FinetuneCommand(self.task.location, self.folder, tuple(keys), self.log, self.results)


# ---- what is compared ------------------------------------------------------------------------------------------------


def read_starts(given: Sequence[str], base: str | None) -> tuple[Start, ...]:
    """From PATH, NAME=PATH, NAME=RUN1,RUN2,… and `random`; `base` is the name of the arm that comes first."""
    starts: list[Start] = []
    named = [text for text in given if text != RANDOM]
    for text in named:
        name, separator, places = text.partition("=")
        if not separator or "/" in name:
            name, places = os.path.basename(os.path.abspath(text)), text
            name = name.partition("@")[0] if is_hub(text) else name
        locations = places.split(",") if separator and places != text else [places]
        if not all(place.strip() for place in locations):
            raise InputError(f"{text!r} lacks a folder", where="MODEL", fix="write NAME=PATH, or NAME=RUN1,RUN2,…")
        starts.append(Start(name, tuple(map(_place, locations))))
    if not starts:
        raise InputError("random alone is nothing to compare", where="MODEL", fix="name at least one model")
    if len(named) < len(given) or base == RANDOM:
        place = given.index(RANDOM) if RANDOM in given else 0
        starts.insert(place, Start(RANDOM, starts[0].locations, random=True))
    _refuse_twice(starts, given)
    if base is not None:
        if base not in [start.name for start in starts]:
            fix = f"take random, or one of {', '.join(start.name for start in starts)}"
            raise InputError(f"{base} is no arm of this comparison", where="--base", fix=fix)
        starts.sort(key=lambda start: start.name != base)
    if len(starts) < 2:
        fix = "name another model, or say --base random"
        raise InputError(f"{starts[0].name} alone is nothing to compare", where="MODEL", fix=fix)
    return tuple(starts)


def _place(given: str) -> str:
    """The same from any folder."""
    if is_hub(given):
        return pinned(given)
    return given.rstrip("/") if storage.is_url(given) else os.path.abspath(given)


def _refuse_twice(starts: Sequence[Start], given: Sequence[str]) -> None:
    seen: set[str] = {RANDOM} if given.count(RANDOM) > 1 else set()
    for start in starts:
        if start.name in seen or (start.name == RANDOM and not start.random):
            fix = "name each arm once; NAME=PATH gives one another name"
            raise InputError(f"two arms are called {start.name}", where="MODEL", fix=fix)
        seen.add(start.name)
        if not start.name.strip() or start.name.startswith("."):
            raise InputError(f"{start.name!r} is no name", where="MODEL", fix="write NAME=PATH")
    places: set[str] = set()
    for place in (place for start in starts if not start.random for place in start.locations):
        place = place if is_hub(place) or storage.is_url(place) else os.path.realpath(place)
        if place in places:
            fix = "name each once: runs with the same weights and seeds are the same, bit by bit"
            raise InputError("is named twice", where=place, fix=fix)
        places.add(place)
    if len({len(start.locations) > 1 for start in starts}) > 1:
        one = next(start.name for start in starts if len(start.locations) == 1)
        fix = "give every arm several (NAME=RUN1,RUN2,…), to ask about the recipe, or every arm one"
        raise InputError(f"{one} has one pretraining run where another arm has several", where="MODEL", fix=fix)


def read_tasks(
    locations: Sequence[str], starts: Sequence[Start], overrides: Sequence[str], budget: Budget
) -> tuple[LabelledTask, ...]:
    """Checks all that can be checked before the first run. Raises kinds of `InputError` (exit 2)."""
    for key in (override.partition("=")[0].strip() for override in overrides):
        if key in OURS:
            raise ConfigError(f"{key} is what a comparison sets itself", where="--set", fix="leave it out")
    tasks: dict[str, LabelledTask] = {}
    for location in locations:
        name = os.path.splitext(os.path.basename(location))[0]
        if name in tasks:
            raise InputError(f"two tasks are called {name}", where=location, fix="give the YAMLs different names")
        tasks[name] = _read_task(name, location, starts, overrides, budget)
    return tuple(tasks.values())


def _read_task(
    name: str, location: str, starts: Sequence[Start], overrides: Sequence[str], budget: Budget
) -> LabelledTask:
    found: dict[str, list[dict[str, Any]]] = {}
    arms: dict[str, ArmTraining] = {}
    first: FinetuneRun | None = None
    for start in starts:
        for number in range(len(start.locations)):
            own = [*start.keys(number), f"seed={budget.search_seed}"]
            config = read_finetune_config(location, [*overrides, *own])
            if config.data.test is None:
                fix = "name a file that no run has seen as data.test"
                raise ConfigError("has no test set, which a verdict is about", where=location, fix=fix)
            ready = prepare_finetuning(config, RunDirectory(""), None)
            found.setdefault(start.name, []).append(ready.base_weights()["base"])
            arms.setdefault(start.name, ArmTraining(ready.config.steps, ready.max_seq_len))
            first = first or ready
    assert first is not None
    metric = chosen_metric(first.config, first.dataset.labels)
    multi = first.config.task.kind == "multi_label_classification"
    if metric in NOT_JUDGED or (multi and metric == "accuracy"):
        other = default_metric(first.config.task, first.dataset.labels)
        note(f"{name} is judged by {other}: {metric} chooses its checkpoints, but no verdict is made of it")
        metric = other
    for line in first.dataset.report.warnings():
        warn(f"{name}: {line}")
    return LabelledTask(name, location, first.config, first.dataset, metric, found, arms)


# ---- the folder ------------------------------------------------------------------------------------------------------


def record(comparison: ComparisonPlan) -> dict[str, Any]:
    """What decides the numbers of a comparison, under dotted names."""
    found: dict[str, Any] = {"format": FORMAT, "base": comparison.starts[0].name, **comparison.budget.record()}
    for start in comparison.starts:
        found[f"{start.name}.locations"] = list(start.locations)
        found[f"{start.name}.random"] = start.random
        found[f"{start.name}.weights"] = [one["sha256"] for one in comparison.tasks[0].starts[start.name]]
    for task in comparison.tasks:
        found[f"{task.name}.examples"] = task.dataset.fingerprint
        keys = [(key, value) for key, value in flat(task.config).items() if key not in LATER or value != LATER[key]]
        found |= {f"{task.name}.{key}": value for key, value in keys if key not in OURS}
    return cast(dict[str, Any], json.loads(json.dumps(found)))


def open_folder(comparison: ComparisonPlan) -> None:
    """Begins the folder, or checks that it holds this comparison. Raises `InputError` naming what differs."""
    folder, now = comparison.folder, record(comparison)
    path = os.path.join(folder, "compare.json")
    if os.path.exists(path):
        before = storage.read_json(path)
        for key in [*now, *before]:
            if key not in before or key not in now or before[key] != now[key]:
                old, new = (f"{values.get(key, 'not there')!r:.60}" for values in (before, now))
                what = f"holds another comparison: {key} was {old} and is {new} now"
                raise InputError(what, where=folder, fix="put it back, or give --to a new folder")
    elif others := [name for name in sorted(os.listdir(folder)) if name != "lock" and not storage.is_temporary(name)]:
        what = f"holds {others[0]}, which is not of a comparison"
        raise InputError(what, where=folder, fix="give --to a new folder")
    else:
        storage.write_json(path, now)


def random_folders(comparison: ComparisonPlan) -> ComparisonPlan:
    """For the question about the recipe, random weights have as many draws as other arms have pretraining runs: each is
    a model folder. For the question about checkpoints, each seed draws its own."""
    random = next((start for start in comparison.starts if start.random and len(start.locations) > 1), None)
    if random is None:
        return comparison
    folders = []
    for number, location in enumerate(random.locations):
        folder = os.path.join(comparison.folder, RANDOM, f"{number + 1}")
        folders.append(folder)
        if not os.path.exists(os.path.join(folder, "config.json")):  # which is written last
            model = load_model(location, bare=True)
            storage.make_folder(folder)
            weights = initial_parameters(model.config, number)
            write_tensors(os.path.join(folder, "model.safetensors"), weights, {"format": "pt"})
            copy_tokenizer(model.tokenizer_folder, folder)
            storage.write_json(os.path.join(folder, "config.json"), to_hf_config(model.config, model.labels))
    drawn = Start(RANDOM, tuple(folders))
    return replace(comparison, starts=tuple(drawn if start is random else start for start in comparison.starts))


# ---- the runs --------------------------------------------------------------------------------------------------------


def searches(comparison: ComparisonPlan) -> list[ComparedRun]:
    """One run for each task, arm and learning rate; of several pretraining runs, from the first. None for one rate."""
    rates = comparison.budget.rates
    return [
        fine_tuning(comparison, task, start, 0, rate, comparison.budget.search_seed, search=True)
        for task in comparison.tasks
        for start in comparison.starts
        for rate in (rates if len(rates) > 1 else ())
    ]


def finals(comparison: ComparisonPlan, chosen: Chosen) -> list[ComparedRun]:
    """Arms take turns, so that a stop leaves as much of each."""
    return [
        fine_tuning(comparison, task, start, number, chosen[task.name, start.name], seed)
        for task in comparison.tasks
        for seed in comparison.budget.fresh_seeds
        for start in comparison.starts
        for number in range(len(start.locations))
    ]


def fine_tuning(
    comparison: ComparisonPlan,
    task: LabelledTask,
    start: Start,
    number: int,
    rate: float,
    seed: int,
    search: bool = False,
) -> ComparedRun:
    several = [f"pretraining-{number + 1}"] if len(start.locations) > 1 and not search else []
    last = f"rate-{rate!r}" if search else f"seed-{seed}"
    folder = os.path.join(comparison.folder, "runs", task.name, start.name, *several, last)
    return ComparedRun(task, start, number, rate, seed, search, folder)


def with_last_finite_weights(run: ComparedRun) -> ComparedRun:
    """A run that only scores what a run stopped by its health check has saved, or else what that began with: one step
    at a rate of next to nothing."""
    start = replace(run.start, locations=(run.start.locations[run.number],))
    if run.directory.newest_step():
        start = Start(run.start.name, (run.folder,))
    still = ("schedule.epochs=null", "schedule.steps=1", "schedule.warmup_share=null", "schedule.warmup_steps=0")
    more = (*still, "schedule.kind=linear", "schedule.decay_steps=null", "schedule.power=null")
    return replace(run, start=start, number=0, rate=1e-30, folder=f"{run.folder}-last-finite", more=more)


def make_all(comparison: ComparisonPlan, side_by_side: SideBySide) -> tuple[Chosen, list[ComparedRun]]:
    """(the rates, the runs of the fresh seeds)."""
    tried = searches(comparison)
    make(tried, comparison, side_by_side, "search")
    chosen = choose_rates(comparison, tried)
    runs = finals(comparison, chosen)
    make(runs, comparison, side_by_side, "fine-tune")
    if stopped := [with_last_finite_weights(run) for run in runs if not run.ended]:
        make(stopped, comparison, side_by_side, "score")
        for run in stopped:
            if not run.ended:
                what = f"{run.name}, scores weights that are not finite: {run.fault}"
                fix = "leave that learning rate or that arm out, in a new folder"
                raise JobError(what, 1, where=run.log, fix=fix)
    return chosen, runs


def make(runs: Sequence[ComparedRun], comparison: ComparisonPlan, side_by_side: SideBySide, label: str) -> None:
    """Makes what is missing. Raises `JobError` for a run that failed, `StoppedEarly` for one that somebody stopped."""
    left = [run for run in runs if not run.ended and not run.fault]
    for run in left:
        storage.make_folder(os.path.dirname(run.folder))
    commands = [run.command(comparison.overrides) for run in left]
    with (
        progress(label, len(runs), "runs", done=len(runs) - len(left)) as bar,
        closing(side_by_side(commands, comparison.budget.at_once)) as ends,
    ):
        for number, code in ends:
            _require_end(left[number], code)
            bar.advance()
    for run in runs:
        if run.ended:  # its weights come again, bit by bit, with the same keys
            shutil.rmtree(run.directory.checkpoints, ignore_errors=True)


def _require_end(run: ComparedRun, code: int) -> None:
    until = time.monotonic() + SEEN_SECONDS
    while code in (0, HealthError.exit_code) and not (run.ended or run.fault) and time.monotonic() < until:
        time.sleep(0.2)
    if run.ended and code in (0, StoppedEarly.exit_code):  # which is also what is said of a job that nobody knows
        split = "validation" if run.search else "test"
        (score,) = run.read(RESULTS, f"{split}.{run.task.metric}")
        say(f"{run.name}: {split} {run.task.metric} {score:.4f}")
    elif run.fault:
        warn(f"{run.name}: {run.fault}")
    elif code == StoppedEarly.exit_code:
        raise StoppedEarly(f"{run.name} was stopped; the same command goes on", reason="asked")
    elif code == 0:
        fix = "give --to a folder that all machines of the cluster see under the same path"
        raise JobError(f"{run.name}, has ended, and its results are not there", 2, where=run.folder, fix=fix)
    else:
        fix = "mend it, then run the same command again; finished runs are kept"
        what = f"{run.name}, ended with code {code} ({last_words(run.log)})"
        raise JobError(what, 2 if code == 2 else 1, where=run.log, fix=fix)


def validation_score(run: ComparedRun) -> float:
    """Of its best checkpoint; of a run that its health check stopped, the best that it came to, or else 0."""
    if run.ended:
        (score,) = run.read(RESULTS, f"validation.{run.task.metric}")
        return float(score)
    key = f"valid_{run.task.metric}"
    return max((line[key] for line in run.directory.read_metrics() if key in line), default=0.0)


def choose_rates(comparison: ComparisonPlan, tried: Sequence[ComparedRun]) -> Chosen:
    """The rate with the best score on validation for each task and arm; the lower one of equals."""
    chosen: Chosen = {}
    for task in comparison.tasks:
        for start in comparison.starts:
            own = {run.rate: validation_score(run) for run in tried if (run.task, run.start) == (task, start)}
            rate = max(sorted(own), key=lambda one: own[one]) if own else comparison.budget.rates[0]
            chosen[task.name, start.name] = rate
            if own:
                note(f"{task.name}: {start.name} takes the learning rate {rate_text(rate)}")
    return chosen
