"""What figures say of the measurements that they show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results"


def read(name: str) -> dict[str, Any]:
    """`benchmarks/results/NAME.json`."""
    found: dict[str, Any] = json.loads(Path(RESULTS, f"{name}.json").read_text(encoding="utf-8"))
    return found


def measured_on(records: list[dict[str, Any]]) -> str:
    """Processors, versions and days."""
    processors = sorted({one["machine"]["cpu"] for one in records})
    cores = sorted({one["machine"]["cores"] for one in records})
    torch = sorted({one["versions"]["torch"] for one in records})
    days = sorted({one["date"] for one in records})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    of = f"{' or '.join(map(str, cores))} core{'s' * (cores != [1])} of {' and '.join(processors)}"
    return f"Measured on {of}, with torch {', '.join(torch)}, {when}."
