"""A number that is not known exactly, with its interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from maskwright.core.console import plain_number, time_unit
from maskwright.verdict.statistics import t_quantile

Kind = Literal["measured", "projected"]
"""measured: of real steps of this configuration, here and now. projected: by the model."""


@dataclass(frozen=True)
class Interval:
    low: float
    mid: float
    high: float

    def over(self, amount: float) -> Interval:
        """The time for `amount` at this rate: the fastest rate gives the lowest number."""
        return Interval(amount / self.high, amount / self.mid, amount / self.low)

    def times(self, factor: float) -> Interval:
        return Interval(self.low * factor, self.mid * factor, self.high * factor)

    def plus(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.mid + other.mid, self.high + other.high)

    def text(self, show: Callable[[float], str], unit: str = "") -> str:
        """The interval in words; the unit stands once."""
        return f"{show(self.mid)}{unit and f' {unit}'} ({show(self.low)} to {show(self.high)})"

    def time(self) -> str:
        """Seconds in words, in the unit that suits the middle: `5.4 days (4.5 to 8.3)`."""
        length, unit = time_unit(self.mid)
        return self.times(1 / length).text(plain_number, unit)


def mean_of(values: Sequence[float]) -> Interval:
    """The mean with its 95 % interval by Student's t, which does not go below the least value. Raises `ValueError` for
    fewer than two values."""
    n = len(values)
    if n < 2:
        raise ValueError("two values at least")
    mean = sum(values) / n
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    half = t_quantile(n - 1) * deviation / math.sqrt(n)
    return Interval(max(mean - half, min(values)), mean, mean + half)
