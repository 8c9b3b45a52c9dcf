"""The Multi-Bootstrap, exact tests over seeds, and Holm's correction.

Two things differ from one experiment to the next: the seeds (or the pretraining runs) and the test examples. An
interval from one alone is too narrow. The Multi-Bootstrap (Sellam et al. 2021, arXiv:2106.16163) resamples both
together: a draw takes seeds with replacement and examples with replacement, and averages the metric on those examples
over those seeds. Both arms get the same seeds and examples, since they are paired; pretraining runs of two recipes are
not paired, and each recipe's are resampled on their own.

The tests over seeds are exact. If an arm's change of weights did nothing, each seed's difference could as well have had
the other sign: the p-value is the share of all 2^k signs that give a mean at least as far from 0 (Fisher's
randomization test). For recipes, all ways to divide the pretraining runs between the arms replace the signs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from maskwright.labels.scoring import Floats, Scorer

DRAWS = 10_000
LEVEL = 0.95
"""Level of intervals; 1 less the level of tests."""
ALPHA = 0.05
WEIGHTS_AT_ONCE = 4_000_000
"""Resamples are drawn in parts, so that their weights fit 16 MB."""
ROUNDING = 1e-9
"""Sums with a smaller relative difference are equal, since they add the same differences in another order."""


def generator(seed: int, *words: str) -> np.random.Generator:
    """Random numbers of one use, so that one more task or arm leaves the intervals of the others unchanged."""
    digest = hashlib.sha256("\0".join(words).encode()).digest()
    return np.random.Generator(np.random.PCG64([seed, *np.frombuffer(digest, np.uint32).tolist()]))


def resamples(random: np.random.Generator, units: NDArray[np.int64], draws: int) -> Iterator[NDArray[np.float32]]:
    """Counts of draws of each example, `draws` rows in all. `units` [examples]: from 0, the same for examples that are
    drawn together."""
    size, at_once = int(units.max()) + 1, max(1, WEIGHTS_AT_ONCE // len(units))
    for start in range(0, draws, at_once):
        taken = random.integers(0, size, (min(at_once, draws - start), size))
        weights = np.empty(taken.shape, np.float32)
        for row, indices in zip(weights, taken, strict=True):  # one bincount of all rows takes twice as long
            row[:] = np.bincount(indices, minlength=size)
        yield weights if size == len(units) else weights[:, units]


def scores_on_resamples(
    scorers: Sequence[Scorer], random: np.random.Generator, units: NDArray[np.int64], draws: int
) -> list[Floats]:
    """The scores of each scorer, draws × runs, on the same resamples."""
    parts = [[scorer(weights) for scorer in scorers] for weights in resamples(random, units, draws)]
    return [np.concatenate(scores_of_parts) for scores_of_parts in zip(*parts, strict=True)]


def shares(random: np.random.Generator, size: int, draws: int) -> Floats:
    """Each seed's (or pretraining run's) share in a draw: draws × size, rows add up to 1."""
    return random.multinomial(size, np.full(size, 1 / size), draws) / size


def interval(draws: Floats) -> tuple[float, float]:
    """Percentile interval at `LEVEL`."""
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def sign_flip_p(differences: Sequence[float] | Floats) -> float:
    """The exact two-sided p-value of seeds' differences."""
    values = np.asarray(differences, np.float64)
    total = float(values.sum())
    # The sum with some signs flipped is 2 × (the sum of those kept) - total.
    high, low = (abs(total) + total) / 2, (total - abs(total)) / 2
    return _subsets_outside(values, low, high) / 2 ** len(values)


def permutation_p(first: Sequence[float] | Floats, second: Sequence[float] | Floats) -> float:
    """The exact two-sided p-value of a difference of two means, over all ways to divide the values."""
    values, a, b = np.concatenate([first, second]).astype(np.float64), len(first), len(second)
    observed = abs(float(np.mean(first) - np.mean(second)))
    # With S the sum of the first: S/a - (total - S)/b is `observed` or more where S is outside of these.
    centre, half = float(values.sum()) * a / (a + b), observed * a * b / (a + b)
    return _subsets_outside(values, centre - half, centre + half, a) / math.comb(a + b, a)


def _subsets_outside(values: Floats, low: float, high: float, size: int | None = None) -> int:
    """Counts the subsets (of `size`, if given) with a sum of at most `low` or at least `high`. The sums of both halves'
    subsets are sorted, which takes 2^(k/2) steps instead of 2^k."""
    slack = ROUNDING * float(np.abs(values).sum())
    if high - low <= 2 * slack:
        return 2 ** len(values) if size is None else math.comb(len(values), size)
    first_half, second_half = _subset_sums(values[: len(values) // 2]), _subset_sums(values[len(values) // 2 :])
    count = 0
    for members, sums in first_half.items():
        for other_members, other_sums in second_half.items():
            if size is None or members + other_members == size:
                below = np.searchsorted(other_sums, low + slack - sums, side="right")
                above = len(other_sums) - np.searchsorted(other_sums, high - slack - sums, side="left")
                count += int((below + above).sum())
    return count


def _subset_sums(values: Floats) -> dict[int, Floats]:
    """Sorted sums of all subsets, by their number of members."""
    sums = np.zeros(1)
    members = np.zeros(1, np.int64)
    for value in values:
        sums, members = np.concatenate([sums, sums + value]), np.concatenate([members, members + 1])
    return {int(count): np.sort(sums[members == count]) for count in np.unique(members)}


def smallest_sign_flip_p(seeds: int) -> float:
    return 2.0 ** (1 - seeds)


def smallest_permutation_p(first: int, second: int) -> float:
    """The smallest two-sided p-value. With equal numbers, the opposite division is as far from 0."""
    return min(1.0, (2 if first == second else 1) / math.comb(first + second, first))


def least_seeds(comparisons: int) -> int:
    """The least number of seeds with which Holm's first step can be passed."""
    return next(k for k in range(1, 100) if smallest_sign_flip_p(k) * comparisons <= ALPHA)


def least_pretraining_runs(comparisons: int) -> int:
    """The least number of pretraining runs of each of two recipes."""
    return next(k for k in range(1, 100) if smallest_permutation_p(k, k) * comparisons <= ALPHA)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values (Holm 1979), in the order given: each is compared with `ALPHA` as it is."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def t_above_p(t: float, degrees: int) -> float:
    """P(T >= t) of Student's distribution with `degrees` degrees of freedom.

    The finite series in cosines of arctan(t / sqrt(degrees)), Abramowitz and Stegun 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(degrees))
    square, odd = math.cos(angle) ** 2, degrees % 2
    term = total = 1.0 if degrees > 1 else 0.0
    for n in range(2 + odd, degrees, 2):
        term *= square * (n - 1) / n
        total += term
    within = math.sin(angle) * total * (math.cos(angle) if odd else 1.0)
    if odd:
        within = 2.0 / math.pi * (angle + within)
    return (1.0 - within) / 2.0


def t_quantile(degrees: int) -> float:
    """The t with P(T >= t) = 0.025, by halving: half the width of a two-sided 95 % interval in standard errors."""
    low, high = 0.0, 1e3
    while high - low > 1e-9 * high:
        t = (low + high) / 2.0
        low, high = (t, high) if t_above_p(t, degrees) > 0.025 else (low, t)
    return high
