"""Draws the figures of the documentation into docs/pictures, from what benchmarks/results has and from nothing else.

python docs/site/figures
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from curves import curves
from diagrams import flow, step, ways
from learning import learning
from session import session
from speed import rows, speed
from training import ends, packing, phases
from verdicts import forest, verdict

PICTURES = Path(__file__).resolve().parents[2] / "pictures"
DRAWN: dict[str, Callable[[], str]] = {
    "flow.svg": flow,
    "ways.svg": ways,
    "exact-resume.svg": step,
    "resume-curves.svg": curves,
    "kill.svg": session,
    "speed.svg": speed,
    "packing.svg": packing,
    "phases.svg": phases,
    "exit-codes.svg": ends,
    "verdict.svg": verdict,
    "verdicts.svg": forest,
    "learning.svg": learning,
}
MEASURED: dict[str, tuple[list[str], list[str]]] = {
    "resume-curves.svg": (["curves"], ["kill -9", "fp32"]),
    "kill.svg": (["kill-session"], []),
    "speed.svg": ([one["row"] for *_, one in rows()], [words for row in rows() for words in row[:2]]),
    "verdict.svg": (["vocabulary"], ["5,600", "600", "2,000", "95 %"]),
    "verdicts.svg": (
        ["verdicts", "forgetting", "vocabulary"],
        ["AG News, 600", "1,500", "10 %", "50 %", "2,000", "95 %"],
    ),
    "learning.svg": (["learning"], ["128", "64", "15 %", "step 0"]),
}
"""The results behind a figure, and its words that have a number without being a measurement."""

if __name__ == "__main__":
    for name, draw in DRAWN.items():
        (PICTURES / name).write_text(draw(), encoding="utf-8")
