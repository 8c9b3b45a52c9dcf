"""Numbers and lists in words, for all pages."""

from __future__ import annotations

from collections.abc import Sequence

from maskwright.core.console import human_count, several

MINUS = "\N{MINUS SIGN}"
FIXED = "\N{NO-BREAK SPACE}"
"""Space between a sign and its number, which stay on one line."""
NOTHING = "\N{EN DASH}"
"""In a table, for unknown or absent values."""


def number(value: float, digits: int, *, sign: bool = False) -> str:
    """A number with a real minus sign, and none before a zero."""
    text = f"{abs(value):.{digits}f}"
    zero = not float(text)
    return ("" if zero else MINUS if value < 0 else "+" if sign else "") + text


def duration(seconds: float | None) -> str:
    if seconds is None:
        return NOTHING
    if not seconds:
        return "0 s"
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.{0 if seconds >= 10 * size else 1}f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else "< 1 s"


def known(value: float | None, form: str) -> str:
    """The value in this format, for a table."""
    return NOTHING if value is None else format(value, form)


def tokens(count: int | None) -> str:
    return NOTHING if count is None else human_count(count)


def rate(value: float) -> str:
    """A learning rate, as recipes write it: 3e-5, 1.5e-3, 0.01."""
    text = f"{value:.3g}" if 1e-2 <= value < 1e3 else f"{value:.2e}"
    mantissa, _, exponent = text.partition("e")
    return f"{float(mantissa):g}e{int(exponent)}" if exponent else text


def span(low: int, high: int, noun: str) -> str:
    """A range, both ends included."""
    return f"{low:,} to {high:,} {noun}s" if low < high else several(low, noun)


def listed(names: Sequence[str]) -> str:
    """Joins names: a; a and b; a, b and c."""
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
