"""The plan of a comparison, read and checked before its first run: arms with their models, tasks, and the budget."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, cast

from maskwright.config.finetuning import OF_A_COMPARISON, FinetuneConfig
from maskwright.config.retrieval import RetrievalConfig, read_task_config
from maskwright.core import storage
from maskwright.core.console import note, several, warn
from maskwright.core.errors import ConfigError, InputError
from maskwright.core.extras import require
from maskwright.labels.dataset import Dataset, read_dataset
from maskwright.labels.example import Example, Reading
from maskwright.labels.files import split_files
from maskwright.labels.metrics import LOWER_IS_BETTER, metric_names
from maskwright.run.directory import RunDirectory
from maskwright.tasks.compare import linear
from maskwright.tasks.compare.arms import BM25, LINEAR, ArmStart, ArmTraining, read_starts
from maskwright.tasks.compare.retrieval import RetrievalTask, read_retrieval_task
from maskwright.tasks.finetune.objective import chosen_metric
from maskwright.tasks.finetune.prepare import FinetuneRun, prepare_finetuning, weights_digest, with_its_splits
from maskwright.tasks.models.load import TrainedModel, load_model
from maskwright.text.vocabulary import tokenizer_file
from maskwright.verdict.statistics import least_seeds

NOT_JUDGED = ("precision", "recall", *LOWER_IS_BETTER)
"""Metrics that choose a checkpoint but are no metric of `labels.scoring`."""


@dataclass(frozen=True)
class ArmModel:
    """The model from which the fine-tunings of one pretraining run start."""

    model: TrainedModel
    """The model without its weights."""
    sha256: str
    """Digest of its weights."""
    reads: tuple[Any, ...]
    """Its shape and tokenizer, equal for models that make the same rows from the same examples."""


@dataclass(frozen=True)
class LabelledTask:
    name: str
    location: str
    """The name of its YAML."""
    config: FinetuneConfig
    """The resolved configuration of the first arm with a model."""
    dataset: Dataset
    metric: str
    """The metric that it is judged by, as `results.json` of a run names it."""
    arms: dict[str, ArmTraining]
    """Except a linear arm, which has neither steps nor rows."""

    @property
    def fingerprint(self) -> str:
        return self.dataset.fingerprint


ComparedOn = LabelledTask | RetrievalTask


@dataclass(frozen=True)
class Budget:
    """Accepts anything that can be converted to a number, such as text and NumPy's types. Raises `InputError` for other
    values, for a grid that is empty or has a rate twice, and for a number of runs below 1."""

    learning_rates: Sequence[float | str]
    seeds: int
    search_seed: int = 0
    at_once: int = 1
    """Fine-tunings side by side. It does not affect any number."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "learning_rates", _grid(self.learning_rates))
        for name, least in (("seeds", 1), ("search_seed", 0), ("at_once", 1)):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
                what = f"{name.replace('_', ' ')} is {value!r:.40}"
                raise InputError(what, fix=f"give an integer ≥ {least}")
            object.__setattr__(self, name, int(value))

    @property
    def rates(self) -> tuple[float, ...]:
        return cast(tuple[float, ...], self.learning_rates)

    @property
    def fresh_seeds(self) -> range:
        return range(self.search_seed + 1, self.search_seed + 1 + self.seeds)

    def record(self) -> dict[str, Any]:
        """The settings that decide numbers."""
        return {"learning_rates": self.rates, "seeds": self.seeds, "search_seed": self.search_seed}


def _grid(grid: Any) -> tuple[float, ...]:
    listed: list[Any] = []
    rates: tuple[float, ...] = ()
    with suppress(TypeError, ValueError):
        listed = [] if isinstance(grid, str) else list(grid)
        rates = tuple(float(rate) for rate in listed if not isinstance(rate, bool))
    positive = all(0.0 < rate < float("inf") for rate in rates)
    if not rates or not positive or len(set(rates)) < len(listed):
        shown = grid if isinstance(grid, str) else ",".join(map(str, listed)) or grid
        fix = "give positive learning rates, each once, as in 1e-4,3e-4,1e-3"
        raise InputError(f"{shown!s:.60} is not a grid of learning rates", fix=fix)
    return rates


@dataclass(frozen=True)
class ComparisonPlan:
    folder: str
    starts: tuple[ArmStart, ...]
    """The others are compared with the first."""
    models: dict[str, tuple[ArmModel, ...]]
    """Models by arm, for each of its pretraining runs; none for an arm without a transformer."""
    tasks: tuple[ComparedOn, ...]
    budget: Budget
    overrides: tuple[str, ...] = ()


def read(
    models: Sequence[str],
    on: Sequence[str],
    folder: str,
    *,
    base: str | None,
    budget: Budget,
    overrides: Sequence[str] = (),
) -> ComparisonPlan:
    """Checks all that can be checked before the first run. Raises kinds of `InputError` (exit 2)."""
    starts = read_starts(models, base)
    with_model = next(start for start in starts if not start.fitted)
    for package, arm in (("sklearn", LINEAR), ("bm25s", BM25)):
        if any(start.name == arm for start in starts):
            require(package, arm)
    for key in (override.partition("=")[0].strip() for override in overrides):
        if key in OF_A_COMPARISON:
            raise ConfigError(f"{key} is set by the comparison itself", where="--set", fix="leave it out")
    named: dict[str, str] = {}
    for location in on:
        name = os.path.splitext(os.path.basename(location))[0]
        if name in named:
            raise InputError(f"two tasks are called {name}", where=location, fix="give the YAMLs different names")
        named[name] = location
    keys = [*overrides, *with_model.keys(0), f"seed={budget.search_seed}"]
    configs = {name: read_task_config(location, keys) for name, location in named.items()}
    for name, config in configs.items():
        if isinstance(config, RetrievalConfig):
            require("sentence_transformers", "task.kind retrieval")
        else:
            _refuse_other_kinds(config, starts, named[name])
    configs = {name: _with_test(config, named[name]) for name, config in configs.items()}
    known = _read_models(starts)
    tasks = tuple(_read_task(name, named[name], config, known) for name, config in configs.items())
    comparisons = len(tasks) * (len(starts) - 1)
    needed = least_seeds(comparisons)
    if len(with_model.locations) == 1 and budget.seeds < needed:
        what = f"with {several(budget.seeds, 'seed')}, {several(comparisons, 'comparison')} cannot conclude anything"
        warn(f"{what}. Fix: give --seeds {needed} or more, and a new folder with --to")
    return ComparisonPlan(os.path.abspath(folder), starts, known, tasks, budget, tuple(overrides))


def _with_test(config: FinetuneConfig | RetrievalConfig, location: str) -> FinetuneConfig | RetrievalConfig:
    """The configuration with the splits of its folder. Raises `ConfigError` without a test set that only the last runs
    read."""
    if isinstance(config, FinetuneConfig):
        config = with_its_splits(config)
    if config.data.test is None:
        fix = "set data.test to a file that no run has seen"
        raise ConfigError("has no test set, which a verdict needs", where=location, fix=fix)
    if isinstance(config, FinetuneConfig):
        data, searched = config.data, config.data.model_copy(update={"test": None})
        files, of_search = (split_files(each, Reading(each, config.task))["train"] for each in (data, searched))
        if len(files) < len(of_search):
            what = (
                f"data.train, {data.train}, holds the test set: runs that choose a learning rate read no test set, and "
            )
            fix = "name the training files alone under data.train, by another folder or a glob"
            raise ConfigError(f"{what}would train on it", where=location, fix=fix)
    return config


def _refuse_other_kinds(config: FinetuneConfig, starts: Sequence[ArmStart], location: str) -> None:
    """Raises `InputError` for an arm that cannot do this kind of task."""
    for start in starts:
        if start.name == BM25:
            what = f"{BM25} ranks passages, but does not support {config.task.kind}"
            raise InputError(what, where=location, fix=f"leave {BM25} out, or this task")
        if start.name == LINEAR and config.task.kind not in linear.KINDS:
            what = f"{LINEAR} predicts labels or a number for a text or a pair, but does not support {config.task.kind}"
            raise InputError(what, where=location, fix=f"leave {LINEAR} out, or this task")


def _read_models(starts: Sequence[ArmStart]) -> dict[str, tuple[ArmModel, ...]]:
    """Reads each model once, since random weights share the shape of another arm."""
    known: dict[str, ArmModel] = {}
    for location in (place for start in starts for place in start.locations):
        if location not in known:
            model = load_model(location, bare=True)
            tokenizer = storage.sha256_of_file(tokenizer_file(model.tokenizer_folder))
            reads = (model.config, model.vocabulary.fingerprint, tokenizer)
            known[location] = ArmModel(replace(model, parameters={}), weights_digest(model.parameters), reads)
    return {start.name: tuple(known[place] for place in start.locations) for start in starts}


def _read_task(
    name: str, location: str, config: FinetuneConfig | RetrievalConfig, models: dict[str, tuple[ArmModel, ...]]
) -> ComparedOn:
    if isinstance(config, FinetuneConfig):
        return _read_labelled_task(name, location, config, models)
    longest = {arm: min(each.model.config.max_seq_len for each in of_arm) for arm, of_arm in models.items() if of_arm}
    return read_retrieval_task(name, location, config, longest)


def _require_same_test(test: Sequence[Example], of_first: Sequence[Example], arm: str) -> None:
    """Raises `InputError` if one model cannot read a question that another one reads."""
    if differing := {example.where for example in test} ^ {example.where for example in of_first}:
        what = f"this question is too long for the rows of one model: {arm} reads others than the first arm"
        raise InputError(what, where=min(differing), fix="raise data.max_seq_len, or delete the record")


def _read_labelled_task(
    name: str, location: str, config: FinetuneConfig, models: dict[str, tuple[ArmModel, ...]]
) -> LabelledTask:
    """Reads the examples once, and encodes them once for models of the same shape and tokenizer."""
    arms: dict[str, ArmTraining] = {}
    known: dict[Any, ArmTraining] = {}
    first: FinetuneRun | None = None
    dataset = read_dataset(config.data, config.task, config.seed)
    for arm, model in ((arm, model) for arm, arm_models in models.items() for model in arm_models):
        if model.reads not in known:
            start = config.model.model_copy(update={"init_from": model.model.location})
            arm_config = config.model_copy(update={"model": start})
            ready = prepare_finetuning(arm_config, RunDirectory(""), start=model.model, dataset=dataset)
            known[model.reads] = ArmTraining(ready.config.steps, ready.max_seq_len)
            first = first or ready
            _require_same_test(ready.dataset.test, first.dataset.test, arm)
            for line in ready.unread:
                warn(f"{name}, {arm}: {line}")
        arms.setdefault(arm, known[model.reads])
    assert first is not None
    metric = chosen_metric(first.config, first.dataset.labels)
    multi = first.config.task.kind == "multi_label_classification"
    names = metric_names(first.config.task, first.dataset.labels)
    judges = [one for one in names if one not in NOT_JUDGED and not (multi and one == "accuracy")]
    if metric not in judges:
        note(f"{name} is judged by {judges[0]}: {metric} only chooses its checkpoints")
        metric = judges[0]
    for line in first.dataset.report.warnings():
        warn(f"{name}: {line}")
    return LabelledTask(name, location, first.config, first.dataset, metric, arms)
