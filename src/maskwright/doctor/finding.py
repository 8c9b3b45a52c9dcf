"""A finding of `doctor`, and the report of all findings."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from maskwright.core.secrets import redact

State = Literal["ok", "warn", "fail"]
Case = tuple[bool, State, str, str | None]
"""(whether it holds, state, what it adds to the detail, fix)"""
WIDTH = 112


@dataclass(frozen=True)
class DoctorFinding:
    """One finding. `fail`: a run would end, or would silently ignore existing hardware. `warn`: it works, but worse or
    slower than it could. `ok`: also for absent things that only a few commands need, named in `detail`."""

    area: str
    """software, hardware or network"""
    name: str
    state: State
    detail: str
    fix: str | None = None
    """What to do, in one line; None if there is nothing to do."""
    values: dict[str, Any] = field(default_factory=dict)
    """The detail as values for programs; units are in the names."""


def first_of(area: str, name: str, detail: str, values: dict[str, Any], cases: Iterable[Case]) -> DoctorFinding:
    """The finding of the first of `cases` that holds, `ok` if none does."""
    found = next((case for case in cases if case[0]), (True, "ok", "", None))
    return DoctorFinding(area, name, found[1], detail + found[2], found[3], values)


@dataclass(frozen=True)
class DoctorReport:
    findings: list[DoctorFinding]
    seconds: float

    @property
    def state(self) -> State:
        """The worst state of all findings."""
        states = {finding.state for finding in self.findings}
        return "fail" if "fail" in states else "warn" if "warn" in states else "ok"

    def to_json(self) -> dict[str, Any]:
        findings = [
            asdict(one) | {"detail": redact(one.detail), "fix": redact(one.fix) if one.fix else None}
            for one in self.findings
        ]
        return {"state": self.state, "seconds": round(self.seconds, 2), "findings": findings}

    def text(self) -> str:
        lines: list[str] = []
        for area in dict.fromkeys(finding.area for finding in self.findings):
            lines.append(area)
            lines += [line for one in self.findings if one.area == area for line in _lines(one)]
        counts = {state: sum(finding.state == state for finding in self.findings) for state in ("ok", "warn", "fail")}
        summary = ", ".join(f"{count} {state}" for state, count in counts.items())
        return "\n".join([*lines, f"{summary}; {self.seconds:.1f} s"])


def _lines(finding: DoctorFinding) -> list[str]:
    head = f"  {finding.state:<4}  {finding.name:<12}  "
    lines = textwrap.wrap(
        redact(finding.detail), WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False
    )
    if finding.fix:
        # One line, so that a command in it can be copied.
        lines.append(f"{' ' * len(head)}Fix: {redact(finding.fix)}")
    return lines
