"""From finished runs to a verdict for each task and pair of arms.

*helped* and *hurt* need both: an interval that excludes 0, and p < 0.05 in the exact test after Holm's correction over
all comparisons of the page. The interval is about new seeds and new test examples; the exact test does not need the
interval's large numbers. If no outcome of the test could reach p < 0.05, the verdict is *cannot conclude*.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from maskwright.core.errors import InputError
from maskwright.labels.scoring import ClassCounts, Floats, f1, scorer
from maskwright.verdict import power, statistics
from maskwright.verdict.results import Arm, ComparedTask, Results, ScoredRun, labels_of

Word = Literal["helped", "hurt", "no difference shown", "cannot conclude"]
Question = Literal["checkpoints", "recipe"]
CLASS_DRAWS = 2_000
"""Draws for the intervals of single classes."""
CLASSES_AT_ONCE = 32
AGREES = 1e-5
"""Tolerance between a run's recorded score and the score of its predictions."""
NOT_BY_CLASS = ("regression", "scores")
"""Kinds of tasks without a score of each class."""


@dataclass(frozen=True)
class Score:
    """The scores of one arm on one task."""

    arm: str
    task: str
    mean: float
    deviation: float | None
    """Standard deviation over seeds; for recipes, of the means of pretraining runs. None for a single one."""
    runs: tuple[tuple[float, ...], ...]
    """By pretraining run, then by seed."""


@dataclass(frozen=True)
class ClassChange:
    """The F1 score of one class, mean over runs. The interval is not corrected for the number of classes."""

    label: str
    examples: int
    """Occurrences of the label in the test set."""
    base: float
    other: float
    low: float
    high: float


@dataclass(frozen=True)
class ArmDifference:
    """`other` less `base` on one task; differences as fractions of 1."""

    task: str
    base: str
    other: str
    difference: float
    low: float
    high: float
    pairs: tuple[float, ...]
    """The difference of each seed; for recipes, of each seed's mean over pretraining runs."""
    p: float
    p_holm: float
    smallest_p: float
    smallest_difference: float | None
    same_answers: bool
    """Whether every run of one arm has the same predictions as the other's."""
    classes: tuple[ClassChange, ...]
    """The largest change first; empty if a task has no classes."""
    verdict: Word = "cannot conclude"


@dataclass(frozen=True)
class Degenerate:
    """A run that learned nothing or has another fault. It counts like any other."""

    task: str
    arm: str
    pretraining_run: str
    seed: int
    why: str


@dataclass(frozen=True)
class VerdictReport:
    question: Question
    comparisons: tuple[ArmDifference, ...]
    scores: tuple[Score, ...]
    degenerate: tuple[Degenerate, ...]
    seeds: dict[str, int]
    """By task."""
    least: int
    """Seeds (for the recipe: pretraining runs of each arm) that a verdict needs."""
    draws: int
    class_draws: int
    random_seed: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class _Plan:
    """Settings of the statistics of all tasks."""

    comparisons: int
    draws: int
    class_draws: int
    random_seed: int

    def random(self, task: ComparedTask, *words: str) -> np.random.Generator:
        return statistics.generator(self.random_seed, task.name, *words)


@dataclass(frozen=True)
class _Measured:
    """One arm on one task. P pretraining runs, k seeds, B draws, C classes."""

    arm: Arm
    runs: list[ScoredRun]
    table: Floats
    """P × k: the scores."""
    resampled: Floats
    """B × P × k: the scores on resampled examples."""
    means: Floats
    """B: the mean over resampled runs and seeds on resampled examples."""
    classes: Floats
    """C: the F1 score of each class, mean over runs and seeds."""
    class_means: Floats
    """Draws of classes × C: as `means`."""


def judge(
    results: Results, *, draws: int = statistics.DRAWS, class_draws: int = CLASS_DRAWS, random_seed: int = 0
) -> VerdictReport:
    """Computes the verdicts. Every arm has the same seeds in each task. Raises `InputError` for a score that differs
    from the predictions' score. The same results and random seed give the same report, for any order of the runs."""
    recipe = len(results.arms[0].pretraining_runs) > 1
    count = len(results.tasks) * (len(results.arms) - 1)
    class_draws = min(draws, class_draws)
    plan = _Plan(count, draws, class_draws, random_seed)
    comparisons: list[ArmDifference] = []
    scores: list[Score] = []
    for task in results.tasks:
        base, *others = _measure(results, task, plan)
        comparisons += [_compare(task, base, other, plan) for other in others]
        scores += [_score(task, measured) for measured in (base, *others)]
    adjusted = statistics.holm([comparison.p for comparison in comparisons])
    best = statistics.holm([comparison.smallest_p for comparison in comparisons])
    with_verdicts = [
        _with_verdict(replace(comparison, p_holm=p), lowest)
        for comparison, p, lowest in zip(comparisons, adjusted, best, strict=True)
    ]
    return VerdictReport(
        question="recipe" if recipe else "checkpoints",
        comparisons=tuple(with_verdicts),
        scores=tuple(scores),
        degenerate=tuple(run for task in results.tasks for run in degenerate_runs(results, task)),
        seeds={task.name: len(results.seeds(task)) for task in results.tasks},
        least=(statistics.least_pretraining_runs if recipe else statistics.least_seeds)(count),
        draws=draws,
        class_draws=class_draws,
        random_seed=random_seed,
    )


def _measure(results: Results, task: ComparedTask, plan: _Plan) -> list[_Measured]:
    """Measures all arms on the same resampled examples and seeds."""
    seeds = len(results.seeds(task))
    runs = [results.of(arm, task) for arm in results.arms]
    scorers = [scorer(task.scoring, [run.predictions for run in arm_runs]) for arm_runs in runs]
    random = plan.random(task, "examples")
    resampled = statistics.scores_on_resamples(scorers, random, task.units, plan.draws)
    by_seed = statistics.shares(plan.random(task, "seeds"), seeds, plan.draws)
    measured = []
    for arm, arm_runs, score, drawn in zip(results.arms, runs, scorers, resampled, strict=True):
        shape = (len(arm.pretraining_runs), seeds)
        by_run = statistics.shares(plan.random(task, "pretraining runs", arm.name), shape[0], plan.draws)
        table = score(np.ones((1, task.test_examples), np.float32))[0]
        _require_agreement(task, arm_runs, table)
        draws = drawn.reshape(-1, *shape)
        means = np.einsum("bpk,bp,bk->b", draws, by_run, by_seed)
        classes = _by_class(task, arm_runs, by_run[: plan.class_draws], by_seed[: plan.class_draws], plan)
        measured.append(_Measured(arm, arm_runs, table.reshape(shape), draws, means, *classes))
    return measured


def _require_agreement(task: ComparedTask, runs: list[ScoredRun], scores: Floats) -> None:
    for run, score in zip(runs, scores.tolist(), strict=True):
        if abs(run.score - score) > AGREES:
            what = f"{run.arm}, seed {run.seed}: a score of {run.score:.5f}, but its predictions have {score:.5f}"
            raise InputError(f"{task.name}: {what} ({task.metric})", fix="score these predictions with that metric")


def _by_class(
    task: ComparedTask, runs: list[ScoredRun], by_run: Floats, by_seed: Floats, plan: _Plan
) -> tuple[Floats, Floats]:
    """The F1 score of each class, and the same on resamples (draws × classes)."""
    if task.kind in NOT_BY_CLASS or not plan.class_draws:
        return np.zeros(0), np.zeros((0, 0))
    shape = (by_run.shape[1], by_seed.shape[1])
    observed, drawn = [], []
    for start in range(0, len(task.labels), CLASSES_AT_ONCE):
        classes = range(start, min(start + CLASSES_AT_ONCE, len(task.labels)))
        counts = ClassCounts(task.scoring, [run.predictions for run in runs], classes)
        observed.append(f1(*counts.sums(np.ones((1, task.test_examples), np.float32)))[0].mean(0))
        random = plan.random(task, "examples")  # the same resamples for each block of classes
        weights = statistics.resamples(random, task.units, len(by_run))
        by_draw = np.concatenate([f1(*counts.sums(block)) for block in weights])
        drawn.append(np.einsum("bpkc,bp,bk->bc", by_draw.reshape(len(by_draw), *shape, -1), by_run, by_seed))
    return np.concatenate(observed), np.concatenate(drawn, 1)


def _compare(task: ComparedTask, base: _Measured, other: _Measured, plan: _Plan) -> ArmDifference:
    theta = other.means - base.means
    pairs = other.table.mean(0) - base.table.mean(0)
    recipe = len(base.table) > 1
    sizes = (len(base.table), len(other.table)) if recipe else (len(pairs),)
    if recipe:
        p = statistics.permutation_p(base.table.mean(1), other.table.mean(1))
    else:
        p = statistics.sign_flip_p(pairs)
    smallest_p, smallest = power.smallest_p(sizes), None
    if smallest_p * plan.comparisons < statistics.ALPHA:
        if recipe:
            tables, resampled = (base.table, other.table), (base.resampled, other.resampled)
            spread = power.of_recipes(theta, resampled, tables)
        else:
            spread = power.of_pairs(theta, other.resampled[:, 0] - base.resampled[:, 0], pairs)
        random = plan.random(task, "smallest difference", other.arm.name)
        smallest = power.smallest_difference(spread, plan.comparisons, random)
    low, high = statistics.interval(theta)
    return ArmDifference(
        task=task.name,
        base=base.arm.name,
        other=other.arm.name,
        difference=float(pairs.mean()),
        low=low,
        high=high,
        pairs=tuple(pairs.tolist()),
        p=p,
        p_holm=p,
        smallest_p=smallest_p,
        smallest_difference=smallest,
        same_answers=[run.predictions for run in base.runs] == [run.predictions for run in other.runs],
        classes=_changes(task, base, other),
    )


def _with_verdict(difference: ArmDifference, lowest: float) -> ArmDifference:
    """`lowest`: its corrected p if each comparison had the smallest that its test can give."""
    verdict: Word = "no difference shown"
    if lowest >= statistics.ALPHA:
        verdict = "cannot conclude"
    elif difference.p_holm < statistics.ALPHA and difference.low > 0:
        verdict = "helped"
    elif difference.p_holm < statistics.ALPHA and difference.high < 0:
        verdict = "hurt"
    return replace(difference, verdict=verdict)


def _score(task: ComparedTask, measured: _Measured) -> Score:
    units = measured.table.mean(1) if len(measured.table) > 1 else measured.table[0]
    deviation = float(units.std(ddof=1)) if len(units) > 1 else None
    rows = tuple(tuple(row) for row in measured.table.tolist())
    return Score(measured.arm.name, task.name, float(measured.table.mean()), deviation, rows)


def _changes(task: ComparedTask, base: _Measured, other: _Measured) -> tuple[ClassChange, ...]:
    if not len(base.classes):
        return ()
    gold_counts = Counter(labels_of(task.gold))
    bounds = [statistics.interval(column) for column in (other.class_means - base.class_means).T]
    changes = [
        ClassChange(label, gold_counts[index], float(base.classes[index]), float(other.classes[index]), *bounds[index])
        for index, label in enumerate(task.labels)
    ]
    return tuple(sorted(changes, key=lambda change: -abs(change.other - change.base)))


def degenerate_runs(results: Results, task: ComparedTask) -> list[Degenerate]:
    """Runs that have a fault, give one answer to everything, do no better than the most frequent label, or whose
    training loss was never below a guess's."""
    degenerate = []
    for arm in results.arms:
        for run in results.of(arm, task):
            if why := _why_degenerate(task, run):
                degenerate.append(Degenerate(task.name, arm.name, run.pretraining_run, run.seed, why))
    return degenerate


def _why_degenerate(task: ComparedTask, run: ScoredRun) -> str:
    """The reasons, a clause each; empty for a run that learned."""
    reasons = [run.fault.rstrip(".")] if run.fault else []
    gold = Counter(labels_of(task.gold))
    labels = {label for label in labels_of(run.predictions) if not task.labels or label >= 0}
    sets = task.kind in ("multi_label", "spans")  # one label everywhere may still be at the right places only
    answers, right = (set(run.predictions), set(task.gold)) if sets else (labels, set(gold))
    if task.kind == "scores":
        if not any(run.predictions):
            reasons.append("it scores 0 on every example")
    elif not labels:
        reasons.append("it predicts nothing at all")
    elif len(answers) == 1 and len(right) > 1:
        named = " and ".join(task.labels[label] for label in sorted(labels))
        answer = f"the label{'s' * (len(labels) > 1)} {named}" if task.labels else f"{next(iter(labels)):.3g}"
        reasons.append(f"it gives one answer to everything, {answer}")
    elif task.metric == "accuracy" and task.majority and run.score <= task.majority[1]:
        reasons.append("its score is no better than the most frequent label's")
    if run.lowest_loss is not None and task.guessing is not None and run.lowest_loss >= task.guessing:
        reasons.append(f"its training loss was never below {task.guessing:.3f}, a guess's loss")
    return "; ".join(reasons)
