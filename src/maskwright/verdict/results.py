"""The data of a comparison: arms, tasks and finished runs, in one JSON file.

Predictions are kept for every test example, so that any metric can be computed again on resampled examples. The table
in `labels/scoring.py` lists their form and metrics for each kind of task.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from maskwright.core import storage
from maskwright.labels.metrics import score
from maskwright.labels.scoring import Kind, Metric, Outcomes, Scoring

LEAST_GROUPS = 20
"""Groups from which on each is drawn as a whole; of fewer, the draws are too alike."""


@dataclass(frozen=True)
class Arm:
    name: str
    description: str
    """The start of fine-tuning: a run, an exported folder or random weights."""
    pretraining_runs: tuple[str, ...]
    """One for the question about this checkpoint, several for the question about the recipe."""
    seconds: float | None = None
    """Duration of its pretraining, all runs together; None if it was not recorded."""
    tokens: int | None = None
    """Tokens that its pretraining read, all runs together."""
    transformer: bool = True
    """False for a linear model, and for BM25."""


@dataclass(frozen=True)
class ComparedTask:
    name: str
    kind: Kind
    metric: Metric
    labels: tuple[str, ...]
    """Names by index; empty for `regression` and `scores`."""
    gold: Outcomes
    """Outcomes of the test examples; empty for `scores`."""
    test_examples: int
    train_examples: int
    validation_examples: int
    positive: int = 1
    """The label of the metric `f1`."""
    score: str = ""
    """Only for `scores`: the name of an example's own score, such as nDCG@10."""
    example: str = "example"
    """The noun for one: an example, or a question."""
    guessing: float | None = None
    """The training loss of a model that gives every label the same probability; None if undefined."""
    groups: tuple[int, ...] = ()
    """The number of each test example's group, from 0; empty without groups."""

    @property
    def scoring(self) -> Scoring:
        return Scoring(self.kind, self.metric, self.labels, self.gold, self.positive)

    @property
    def by_group(self) -> bool:
        """Whether the examples of a group are drawn together."""
        return len({*self.groups}) >= LEAST_GROUPS

    @property
    def units(self) -> NDArray[np.int64]:
        """[test examples]: the same number for examples that are drawn together."""
        return np.array(self.groups if self.by_group else range(self.test_examples))

    @property
    def majority(self) -> tuple[str, float] | None:
        """(the most frequent label of the test examples or their words, the score of giving it to each); None if there
        is no other, and where one example or word may have several."""
        counts = Counter(labels_of(self.gold))
        if self.kind not in ("single_label", "tokens") or len(counts) < 2:
            return None
        label = counts.most_common(1)[0][0]
        same: Any = tuple((label,) * len(each) if isinstance(each, tuple) else label for each in self.gold)
        return self.labels[label], score(self.kind, self.metric, self.labels, self.gold, same)


@dataclass(frozen=True)
class LearningRateSearch:
    """The choice of one arm's learning rate for one task; of a linear model's penalty."""

    arm: str
    task: str
    rates: tuple[tuple[float, float], ...]
    """(learning rate or penalty, score on validation) of the whole grid."""
    chosen: float


@dataclass(frozen=True)
class ScoredRun:
    """One fine-tuning, with its answers on the test set."""

    arm: str
    pretraining_run: str
    task: str
    seed: int
    score: float
    """The task's metric on the test set, between 0 and 1 (correlations: -1 and 1)."""
    predictions: Outcomes
    final_loss: float | None = None
    """Loss on the training examples in the last line of the log."""
    lowest_loss: float | None = None
    """The lowest training loss of the log, whose lines are means over several steps."""
    tokens: int | None = None
    """Tokens that this fine-tuning read. Seconds would differ between two executions of the same run."""
    fault: str = ""
    """A fault, such as a stop by the health check; empty for none."""
    beside: dict[str, float] = field(default_factory=dict)
    """Other metrics on the test set, by name, without a verdict."""


@dataclass(frozen=True)
class Protocol:
    """Settings that all arms shared. Each is a sentence for the page, or empty."""

    budget: str = ""
    """Epochs or steps, batch size, schedule."""
    validation: str = ""
    """Source of the validation examples."""
    test: str = ""
    """Use of the test set."""


@dataclass(frozen=True)
class Results:
    """All data of a comparison. The other arms are compared with the first."""

    arms: tuple[Arm, ...]
    tasks: tuple[ComparedTask, ...]
    runs: tuple[ScoredRun, ...]
    searches: tuple[LearningRateSearch, ...] = ()
    protocol: Protocol = Protocol()
    format: int = 1

    def of(self, arm: Arm, task: ComparedTask) -> list[ScoredRun]:
        """Runs by pretraining run as the arm names them, then by seed. The order of `runs` does not matter."""
        rank = {name: index for index, name in enumerate(arm.pretraining_runs)}
        runs = [run for run in self.runs if (run.arm, run.task) == (arm.name, task.name)]
        return sorted(runs, key=lambda run: (rank[run.pretraining_run], run.seed))

    @property
    def without_transformer(self) -> list[str]:
        """The names of the arms without a transformer."""
        return [arm.name for arm in self.arms if not arm.transformer]

    def seeds(self, task: ComparedTask) -> list[int]:
        return sorted({run.seed for run in self.runs if run.task == task.name})


def write_results(path: str, results: Results) -> None:
    with storage.atomic_writer(path) as file:
        file.write(TypeAdapter(Results).dump_json(results) + b"\n")


def labels_of(outcomes: Outcomes) -> list[Any]:
    """The labels of all examples, words or spans; of numbers, the numbers."""
    if outcomes and not isinstance(outcomes[0], tuple):
        return list(outcomes)
    return [label[2] if isinstance(label, tuple) else label for labels in cast(Any, outcomes) for label in labels]
