"""The smallest difference that a comparison could have shown, so that "no difference shown" says something.

It is the true difference that the same experiment, repeated with new seeds and new test examples, would call
*helped* with a probability of 80 %: a minimum detectable effect (Bloom 1995, doi 10.1177/0193841X9501900504), here for
the actual rule, interval and exact test, found by simulation from the observed spread. A standard deviation from eight
seeds is uncertain by a quarter, and a power that ignores this is too high on average, so each simulated experiment
draws it again from its uncertainty (σ² = s²·(k-1)/χ², as in the
assurance of O'Hagan et al. 2005, doi 10.1002/pst.175).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from maskwright.labels.scoring import Floats
from maskwright.verdict import statistics

POWER = 0.8
EXPERIMENTS = 1_000
ARRANGEMENTS = 1_024
"""Number of signs or divisions in a simulated experiment, which are drawn if there are more."""
NORMAL_95 = 1.959964


@dataclass(frozen=True)
class Spread:
    """The spread of one comparison's differences: standard deviations, as fractions of 1 (0.01 is a point)."""

    sizes: tuple[int, ...]
    """Number of pairs of seeds; or numbers of pretraining runs of the two arms."""
    units: float
    """Between pairs; or between pretraining runs of an arm."""
    shared: float
    """Of the choice of test examples, which all pairs or runs share, but a new experiment would not."""
    interval: float
    """The part of the interval's standard deviation that is not from `units`."""


def smallest_p(sizes: tuple[int, ...]) -> float:
    """The smallest p of the exact test; `sizes` as in `Spread`."""
    if len(sizes) == 1:
        return statistics.smallest_sign_flip_p(sizes[0])
    return statistics.smallest_permutation_p(*sizes)


def smallest_difference(spread: Spread, comparisons: int, random: np.random.Generator) -> float | None:
    """The difference as a fraction of 1; None if no size could be shown. Of the `comparisons` that Holm's correction
    counts, only this one is assumed to differ."""
    if smallest_p(spread.sizes) * comparisons >= statistics.ALPHA:
        return None
    count = sum(spread.sizes)
    rows, effect = _arrangements(spread.sizes, max(ARRANGEMENTS, 40 * comparisons), random)
    freedom = count - len(spread.sizes)
    sigma = spread.units * np.sqrt(freedom / random.chisquare(freedom, EXPERIMENTS))
    noise = random.standard_normal((EXPERIMENTS, count)) * sigma[:, None]
    shared = random.standard_normal(EXPERIMENTS) * spread.shared
    groups = np.split(noise, np.cumsum(spread.sizes)[:-1], axis=1)
    of_units = sum(group.var(1) / group.shape[1] for group in groups)
    half = NORMAL_95 * np.sqrt(of_units + spread.interval**2)
    gain = rows @ effect
    start = noise @ rows.T + shared[:, None] * gain
    # Each experiment is followed while the difference grows. An arrangement is as far from 0 as the actual one until
    # its mean, which grows by `gain` of the difference, falls behind; the test is passed when few enough remain.
    with np.errstate(divide="ignore", invalid="ignore"):
        behind = np.fmax((start - start[:, :1]) / (1 - gain), (-start - start[:, :1]) / (1 + gain))
    behind[:, np.abs(gain) > 1 - statistics.ROUNDING] = np.inf  # the actual arrangement and its opposite always are
    allowed = math.ceil(statistics.ALPHA * len(rows) / comparisons) - 1
    passed = -np.partition(-behind, allowed, axis=1)[:, allowed]
    return float(np.quantile(np.maximum(passed, half - start[:, 0]), POWER).clip(0))


def _arrangements(sizes: tuple[int, ...], limit: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Rows that give the mean difference under each arrangement, the actual one first; and the units that an effect
    moves. The opposite of each choice of signs is as far from 0 and left out."""
    count = sum(sizes)
    if len(sizes) == 1:
        sign_count = 2 ** (count - 1)
        bits = np.arange(sign_count) if sign_count <= limit else np.append(0, random.integers(1, sign_count, limit - 1))
        return (1.0 - 2.0 * (bits[:, None] >> np.arange(count) & 1)) / count, np.ones(count)
    first, second = sizes
    if math.comb(count, first) <= limit:
        first_arms = np.array(list(combinations(range(count), first)))
    else:
        first_arms = np.argsort(random.random((limit, count)), axis=1)[:, :first]
        first_arms[0] = np.arange(first)
    rows = np.full((len(first_arms), count), 1 / second)
    np.put_along_axis(rows, first_arms, -1 / first, axis=1)
    return rows, (np.arange(count) >= first).astype(np.float64)


def of_pairs(draws: Floats, resampled: Floats, differences: Floats) -> Spread:
    """`draws`: the Multi-Bootstrap's; `resampled`: each seed's difference on resampled examples (draws × seeds);
    `differences`: each seed's, as measured."""
    seeds = len(differences)
    shared = resampled.mean(1).var() - _interplay(resampled)
    interval_variance = draws.var() - differences.var() / seeds
    return Spread((seeds,), _root(differences.var(ddof=1)), _root(shared), _root(interval_variance))


def of_recipes(draws: Floats, resampled: tuple[Floats, Floats], scores: tuple[Floats, Floats]) -> Spread:
    """The spread of two arms with several pretraining runs. `resampled`: draws × runs × seeds; `scores`: runs × seeds,
    as measured. The effect of fine-tuning seeds on all runs of an arm is shared too."""
    means = [table.mean(1) for table in scores]
    sizes = tuple(map(len, means))
    first, second = (draw.mean(2) for draw in resampled)
    shared = (second.mean(1) - first.mean(1)).var() - _interplay(first) - _interplay(second)
    by_seed = scores[1].mean(0) - scores[0].mean(0)
    if len(by_seed) > 1:
        residual = sum(_residual(table) / len(table) for table in scores)
        shared = max(shared, 0) + max(by_seed.var(ddof=1) - residual, 0) / len(by_seed)
    pooled = sum(float(((mean - mean.mean()) ** 2).sum()) for mean in means) / (sum(sizes) - 2)
    interval_variance = draws.var() - sum(mean.var() / len(mean) for mean in means)
    return Spread(sizes, _root(pooled), _root(shared), _root(interval_variance))


def _interplay(resampled: Floats) -> float:
    """The part of the variance of the mean over units (draws × units) that is noise of single units on single examples,
    and so is already in the spread of the units."""
    units = resampled.shape[1]
    return float((resampled.var(0).mean() - resampled.mean(1).var()) / (units - 1))


def _residual(scores: Floats) -> float:
    """Variance of runs × seeds that is neither the run's nor the seed's."""
    rest = scores - scores.mean(0) - scores.mean(1, keepdims=True) + scores.mean()
    return float((rest**2).sum() / ((scores.shape[0] - 1) * (scores.shape[1] - 1)))


def _root(variance: float) -> float:
    return float(np.sqrt(max(variance, 0.0)))
