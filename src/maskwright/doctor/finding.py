"""A finding of `doctor`, and the report of all findings."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import Any, Literal

from maskwright.core.secrets import redact

State = Literal["ok", "warn", "fail"]
WIDTH = 112


@dataclass(frozen=True)
class DoctorFinding:
    """One finding. `fail`: a run would end, or would silently ignore existing hardware. `warn`: it works, but worse or
    slower than it could. `ok`: also things that are absent and needed by a few commands only, named in `detail`."""

    area: str
    """software, hardware or network"""
    name: str
    state: State
    detail: str
    fix: str | None = None
    """What to do, in one line; None if there is nothing to do."""
    values: dict[str, Any] = field(default_factory=dict)
    """The detail as values for programs; units are in the names."""


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
            {
                "area": finding.area,
                "name": finding.name,
                "state": finding.state,
                "detail": redact(finding.detail),
                "fix": redact(finding.fix) if finding.fix else None,
                "values": finding.values,
            }
            for finding in self.findings
        ]
        return {"state": self.state, "seconds": round(self.seconds, 2), "findings": findings}

    def text(self) -> str:
        lines: list[str] = []
        for area in dict.fromkeys(finding.area for finding in self.findings):
            lines.append(area)
            for finding in self.findings:
                if finding.area == area:
                    lines += _lines(finding)
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
