"""The data of a comparison: arms, tasks and finished runs, in one JSON file.

Predictions are kept for every test example, so that any metric can be computed again on resampled examples. The table
in `labels/scoring.py` has their form for each kind of task, and its metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import field
from typing import Annotated, Any, cast

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from maskwright.core import storage
from maskwright.core.errors import InputError
from maskwright.labels.scoring import METRICS, Kind, Metric, Outcomes, Scoring

FORMAT = 1
Name = Annotated[str, Field(min_length=1)]
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
RUN_AGAIN = "run the same `maskwright compare` again: it creates missing runs"


@dataclass(frozen=True, config=STRICT)
class Arm:
    name: Name
    description: str
    """The start of fine-tuning: a run, an exported folder or random weights."""
    pretraining_runs: Annotated[tuple[Name, ...], Field(min_length=1)]
    """One for the question about this checkpoint, several for the question about the recipe."""
    seconds: float | None = None
    """Duration of its pretraining, all runs together; None where it was not recorded."""
    tokens: int | None = None
    """Tokens that its pretraining read, all runs together."""
    transformer: bool = True
    """False for a linear model, and for BM25."""


@dataclass(frozen=True, config=STRICT)
class ComparedTask:
    name: Name
    kind: Kind
    metric: Metric
    labels: tuple[str, ...]
    """Names by index; empty for `regression` and `scores`."""
    gold: Outcomes
    """Outcomes of the test examples; empty for `scores`."""
    test_examples: Annotated[int, Field(ge=1)]
    train_examples: int
    validation_examples: int
    positive: int = 1
    """The label of the metric `f1`."""
    score: str = ""
    """Only for `scores`: what an example's own score is, such as nDCG@10."""
    example: str = "example"
    """What one is called: an example, or a question."""
    chance: float | None = None
    """The training loss of guessing, in nats; None where guessing has no such loss."""

    @property
    def scoring(self) -> Scoring:
        return Scoring(self.kind, self.metric, self.labels, self.gold, self.positive)


@dataclass(frozen=True, config=STRICT)
class LearningRateSearch:
    """The choice of one arm's learning rate for one task; of a linear model's penalty."""

    arm: Name
    task: Name
    rates: tuple[tuple[float, float], ...]
    """(learning rate or penalty, score on validation) of the whole grid."""
    chosen: float


@dataclass(frozen=True, config=STRICT)
class ScoredRun:
    """One fine-tuning, with its answers on the test set."""

    arm: Name
    pretraining_run: Name
    task: Name
    seed: int
    score: float
    """The task's metric on the test set, between 0 and 1 (correlations: -1 and 1)."""
    predictions: Outcomes
    final_loss: float | None = None
    """On the training examples, as the last line of the log has it."""
    lowest_loss: float | None = None
    """The lowest training loss of the log, whose lines are means over several steps."""
    tokens: int | None = None
    """Tokens that this fine-tuning read. Seconds would differ between two executions of the same run."""
    fault: str = ""
    """A fault, such as a stop by the health check; empty for none."""
    beside: dict[str, float] = field(default_factory=dict)
    """Other metrics on the test set, by name, which no verdict is about."""


@dataclass(frozen=True, config=STRICT)
class Protocol:
    """Settings that all arms shared. Each is a sentence for the page, or empty."""

    budget: str = ""
    """Epochs or steps, batch size, schedule."""
    validation: str = ""
    """Source of the validation examples."""
    test: str = ""
    """Use of the test set."""


@dataclass(frozen=True, config=STRICT)
class Results:
    """All data of a comparison. The first arm is the one that the others are compared with."""

    arms: Annotated[tuple[Arm, ...], Field(min_length=2)]
    tasks: Annotated[tuple[ComparedTask, ...], Field(min_length=1)]
    runs: tuple[ScoredRun, ...]
    searches: tuple[LearningRateSearch, ...] = ()
    protocol: Protocol = Protocol()
    format: int = FORMAT

    def of(self, arm: Arm, task: ComparedTask) -> list[ScoredRun]:
        """Runs by pretraining run as the arm names them, then by seed. The order of `runs` does not matter."""
        rank = {name: index for index, name in enumerate(arm.pretraining_runs)}
        runs = [run for run in self.runs if (run.arm, run.task) == (arm.name, task.name)]
        return sorted(runs, key=lambda run: (rank[run.pretraining_run], run.seed))

    @property
    def without_transformer(self) -> list[str]:
        """The names of the arms that have none."""
        return [arm.name for arm in self.arms if not arm.transformer]

    def seeds(self, task: ComparedTask) -> list[int]:
        return sorted({run.seed for run in self.runs if run.task == task.name})


def write_results(path: str, results: Results) -> None:
    with storage.atomic_writer(path) as file:
        file.write(TypeAdapter(Results).dump_json(results) + b"\n")


def read_results(path: str) -> Results:
    """Reads the file. Raises `InputError` for one of another kind or format, or one that contradicts itself."""
    content = storage.read_json(path)
    version = content.get("format") if isinstance(content, dict) else None
    if version != FORMAT:
        what = f"has format {str(version)[:20]}, this version reads {FORMAT}"
        what = what if version else "holds no comparison's results"
        raise InputError(what, where=path, fix="use the maskwright that wrote it, or give the file `results.json`")
    with storage.open_binary(path) as file:
        text = file.read()
    try:
        results = TypeAdapter(Results).validate_json(text)
    except ValidationError as error:
        first_error = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first_error["loc"]) or "it"
        raise InputError(f"{key}: {first_error['msg']}", where=path, fix="restore the file") from None
    check(results, where=path)
    return results


def check(results: Results, *, where: str | None = None) -> None:
    """Raises `InputError` unless every arm has the same seeds in each task, and every run what its task needs."""
    arms, tasks = results.arms, {task.name: task for task in results.tasks}
    for what, names in (("arms", [arm.name for arm in arms]), ("tasks", [task.name for task in results.tasks])):
        if (repeated := _repeated(names)) is not None:
            raise InputError(f"two {what} are called {repeated}", where=where, fix="give them different names")
    for arm in arms:
        if (repeated := _repeated(arm.pretraining_runs)) is not None:
            fix = "name each pretraining run once: a copy is no further evidence"
            raise InputError(f"arm {arm.name} names {repeated} twice", where=where, fix=fix)
    single = [arm.name for arm in arms if len(arm.pretraining_runs) == 1]
    if single and len(single) < len(arms):
        what = f"{single[0]} has one pretraining run where another arm has several"
        fix = "give every arm several, to ask about the recipe, or every arm one, to ask about these checkpoints"
        raise InputError(what, where=where, fix=fix)
    for task in results.tasks:
        _check_task(task, where)
    known = {(arm.name, run) for arm in arms for run in arm.pretraining_runs}
    for run in results.runs:
        if run.task not in tasks or (run.arm, run.pretraining_run) not in known:
            what = f"a run is of {run.arm} ({run.pretraining_run}) on {run.task}, which the file does not name"
            raise InputError(what, where=where, fix="name every arm, pretraining run and task that has runs")
        _check_outcomes(tasks[run.task], run.predictions, f"{run.arm}, seed {run.seed}, predictions", where)
    for search in results.searches:
        if search.chosen not in [rate for rate, _ in search.rates]:
            what = f"the rate chosen for {search.arm} on {search.task} is not in its grid"
            raise InputError(what, where=where, fix="choose among the rates that were tried")
    _check_pairs(results, where)


def _check_pairs(results: Results, where: str | None) -> None:
    """Raises `InputError` if a seed of a task is missing in an arm or occurs twice."""
    for task in results.tasks:
        seeds_of_task = results.seeds(task)
        if not seeds_of_task:
            raise InputError(f"{task.name} has no runs", where=where, fix=RUN_AGAIN)
        for arm in results.arms:
            for name in arm.pretraining_runs:
                seeds = [run.seed for run in results.of(arm, task) if run.pretraining_run == name]
                if missing := sorted(set(seeds_of_task) - set(seeds)):
                    run_name = f"{arm.name} ({name})" if name != arm.name else name
                    what = f"{run_name} on {task.name} lacks the seeds {', '.join(map(str, missing))}"
                    raise InputError(what, where=where, fix=RUN_AGAIN)
                if (repeated := _repeated(seeds)) is not None:
                    fix = "keep one run of each seed"
                    raise InputError(f"{arm.name} on {task.name} has seed {repeated} twice", where=where, fix=fix)


def _check_task(task: ComparedTask, where: str | None) -> None:
    if task.metric not in METRICS[task.kind]:
        fix = f"choose one of {', '.join(METRICS[task.kind])}"
        raise InputError(f"{task.name}: {task.metric} is not a metric of {task.kind}", where=where, fix=fix)
    if task.metric == "f1" and (len(task.labels) != 2 or task.positive not in (0, 1)):
        what = f"{task.name}: f1 is about one of two labels, not of {len(task.labels)}"
        raise InputError(what, where=where, fix="use f1_macro, or set `positive` to 0 or 1")
    min_labels = {"regression": 0, "scores": 0, "spans": 1, "multi_label": 1}.get(task.kind, 2)
    if len(task.labels) < min_labels or (not min_labels and task.labels):
        fix = "name the labels of a task that has some, and none for regression and scores"
        raise InputError(f"{task.name}: {len(task.labels)} labels for {task.kind}", where=where, fix=fix)
    if task.kind != "scores":
        _check_outcomes(task, task.gold, "gold", where)


def _check_outcomes(task: ComparedTask, outcomes: Outcomes, whose: str, where: str | None) -> None:
    fix = f"write one entry for each test example, as the kind {task.kind} has them"
    if len(outcomes) != task.test_examples:
        what = f"{task.name}, {whose}: {len(outcomes):,} entries for {task.test_examples:,} test examples"
        raise InputError(what, where=where, fix=fix)
    are_lists = task.kind in ("multi_label", "tokens", "spans")
    if any(isinstance(entry, tuple) != are_lists for entry in outcomes):
        raise InputError(f"{task.name}, {whose}: entries of another kind", where=where, fix=fix)
    if task.kind == "tokens" and list(map(len, cast(Any, outcomes))) != list(map(len, cast(Any, task.gold))):
        raise InputError(f"{task.name}, {whose}: not one label for each word", where=where, fix=fix)
    if task.labels:
        indices = labels_of(outcomes)
        min_index = -1 if task.kind == "tokens" and whose != "gold" else 0  # a word that no row held has no prediction
        bad_index = next((index for index in indices if not min_index <= index < len(task.labels)), None)
        if bad_index is not None:
            what = f"{task.name}, {whose}: {bad_index} is not an index of {len(task.labels)} labels"
            raise InputError(what, where=where, fix=fix)


def labels_of(outcomes: Outcomes) -> list[Any]:
    """The labels of all examples, words or spans; of numbers, the numbers."""
    if outcomes and not isinstance(outcomes[0], tuple):
        return list(outcomes)
    return [label[2] if isinstance(label, tuple) else label for labels in cast(Any, outcomes) for label in labels]


def _repeated(names: Sequence[Any]) -> Any:
    return next((name for name, count in Counter(names).items() if count > 1), None)
