"""The forwarder's view of a service, and the facts about a run that it sends there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Outcome = Literal["done", "failed", "stopped"]
"""stopped: the same command continues the run, in the same run of the service."""
PROJECT = "maskwright"
"""The default project or experiment, if the service's own variable names none."""


@dataclass(frozen=True)
class MetricsLine:
    """One line of `metrics.jsonl` to send."""

    step: int
    time: float
    """Unix seconds; 0 if the line has none."""
    values: dict[str, float]
    """Numbers by the Trainer's names."""


@dataclass(frozen=True)
class About:
    """The facts about a run that a service gets before its first line."""

    name: str
    folder: str
    """A folder in the run directory that the forwarder may write to."""
    config: dict[str, Any]
    """The resolved configuration by dotted key, without secrets."""


class Service(Protocol):
    """An open run of a service. Any exception means failure: the lines are then sent again."""

    @property
    def run_id(self) -> str:
        """The id with which `begin` continues the run."""
        ...

    def send(self, lines: Sequence[MetricsLine]) -> None: ...

    def finish(self, outcome: Outcome) -> None:
        """Returns when all sent lines have arrived."""
        ...


Begin = Callable[[About, str | None], Service]
"""Opens a new run, or reopens the run of this id."""
