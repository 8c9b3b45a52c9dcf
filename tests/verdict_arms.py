"""Made-up arms whose true scores are known, for tests of the verdict.

A run gets an example right where difficulty + the arm's own way with the example + the seed's luck + chance exceeds 0.
All are normal, so an arm's true score is a normal distribution's value and a difference can be planted exactly.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from maskwright.labels.scoring import Outcomes, scorer
from maskwright.verdict.results import Arm, ComparedTask, Results, ScoredRun

NORMAL = NormalDist()


@dataclass(frozen=True)
class World:
    """Standard deviations on one scale. With these a seed moves the accuracy by 0.8 points (0.6 of its own, besides
    what both arms share), and two runs of an arm disagree on one example in eleven."""

    examples: int = 1_000
    seeds: int = 8
    accuracy: float = 0.85
    difficulty: float = 1.5
    arm_by_example: float = 0.3
    seed_of_both: float = 0.035
    seed: float = 0.04
    run: float = 0.0
    """Of a pretraining run."""
    chance: float = 0.4

    def shift(self, accuracy: float) -> float:
        parts = (self.difficulty, self.arm_by_example, self.seed_of_both, self.seed, self.run, self.chance)
        return NORMAL.inv_cdf(accuracy) * sum(part**2 for part in parts) ** 0.5

    def right(self, random: np.random.Generator, *gains: float, runs: int = 1) -> NDArray[np.bool_]:
        """Arms × runs × seeds × examples. Each arm's true accuracy is `accuracy` and its gain."""
        arms, k, n = len(gains), self.seeds, self.examples
        normal = random.standard_normal
        shifts = np.array([self.shift(self.accuracy + gain) for gain in gains])[:, None, None, None]
        return (
            shifts
            + self.difficulty * normal(n)
            + self.arm_by_example * normal((arms, 1, 1, n))
            + self.seed_of_both * normal((k, 1))
            + self.seed * normal((arms, runs, k, 1))
            + self.run * normal((arms, runs, 1, 1))
            + self.chance * normal((arms, runs, k, n))
        ) > 0


def results_of(right: NDArray[np.bool_], **task: Any) -> Results:
    """`right`: arms × runs × seeds × examples. The task is one of two labels, which take turns."""
    gold = np.arange(right.shape[-1]) % 2
    answers = np.where(right, gold, 1 - gold)
    kind = {"kind": "single_label", "metric": "accuracy", "labels": ("no", "yes"), "guessing": math.log(2), **task}
    return results_from(
        {f"arm {number}": own.tolist() for number, own in enumerate(answers)}, tuple(gold.tolist()), **kind
    )


def results_from(arms: dict[str, Any], gold: Outcomes, **task: Any) -> Results:
    """`arms`: by name, predictions by pretraining run and seed."""
    made = ComparedTask(
        **{
            "name": "task",
            "gold": gold,
            "test_examples": len(gold),
            "train_examples": 500,
            "validation_examples": 100,
            **task,
        }
    )
    runs = []
    for arm, pretrainings in arms.items():
        for number, seeds in enumerate(pretrainings):
            predictions = [tuple(one) for one in seeds]
            scores = scorer(made.scoring, predictions)(np.ones((1, made.test_examples), np.float32))[0].tolist()
            runs += [
                ScoredRun(arm, f"{arm} {number}", made.name, seed, score, own)
                for seed, (own, score) in enumerate(zip(predictions, scores, strict=True))
            ]
    named = tuple(
        Arm(name, f"folder of {name}", tuple(f"{name} {number}" for number in range(len(own))))
        for name, own in arms.items()
    )
    return Results(named, (made,), tuple(runs))


def read_results(path: Path) -> Results:
    """What a comparison has written for other programs."""
    return TypeAdapter(Results).validate_json(path.read_bytes())
