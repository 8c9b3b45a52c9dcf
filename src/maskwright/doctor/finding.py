"""One thing that `doctor` looked at, and how all of them are shown."""

from __future__ import annotations

import os
import stat
import textwrap
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from maskwright.core.secrets import redact

State = Literal["ok", "warn", "fail"]
WIDTH = 112


@dataclass(frozen=True)
class DoctorFinding:
    """`fail`: a run would end, or would silently leave out hardware that is here. `warn`: it works, but worse or slower
    than it could. `ok`: also what is absent and needed by a few commands only, which `detail` names."""

    area: str
    """software, hardware, network, credentials or tools"""
    name: str
    state: State
    detail: str
    fix: str | None = None
    """What to do, in one line; None where nothing is to be done."""
    values: dict[str, Any] = field(default_factory=dict)
    """The same for programs; units are in the names."""


def credential(name: str, detail: str, files: list[str], **values: Any) -> DoctorFinding:
    """`files` hold secrets: nobody else may read them."""
    for path in files:
        with suppress(OSError):
            if os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH):
                return DoctorFinding(
                    "credentials", name, "warn", f"{detail}; others may read {path}", f"chmod 600 {path}", values
                )
    return DoctorFinding("credentials", name, "ok", detail, None, values)


@dataclass(frozen=True)
class DoctorReport:
    findings: list[DoctorFinding]
    seconds: float

    @property
    def state(self) -> State:
        """The worst."""
        states = {finding.state for finding in self.findings}
        return "fail" if "fail" in states else "warn" if "warn" in states else "ok"

    def to_json(self) -> dict[str, Any]:
        findings = [
            {
                "area": found.area,
                "name": found.name,
                "state": found.state,
                "detail": redact(found.detail),
                "fix": redact(found.fix) if found.fix else None,
                "values": found.values,
            }
            for found in self.findings
        ]
        return {"state": self.state, "seconds": round(self.seconds, 2), "findings": findings}

    def text(self) -> str:
        lines: list[str] = []
        for area in dict.fromkeys(found.area for found in self.findings):
            lines.append(area)
            for found in self.findings:
                if found.area == area:
                    lines += _lines(found)
        counts = {state: sum(found.state == state for found in self.findings) for state in ("ok", "warn", "fail")}
        told = ", ".join(f"{count} {state}" for state, count in counts.items())
        return "\n".join([*lines, f"{told}; {self.seconds:.1f} s"])


def _lines(found: DoctorFinding) -> list[str]:
    head = f"  {found.state:<4}  {found.name:<12}  "
    lines = textwrap.wrap(
        redact(found.detail), WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False
    )
    if found.fix:
        # One line, so that a command in it can be copied.
        lines.append(f"{' ' * len(head)}Fix: {redact(found.fix)}")
    return lines
