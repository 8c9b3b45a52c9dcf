"""What a service is to the forwarder, and what it is told about a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Outcome = Literal["done", "failed", "stopped"]
"""stopped: the same command continues the run, in the same run of the service."""
PROJECT = "maskwright"
"""The project, or experiment, where the service's own variable names none."""


@dataclass(frozen=True)
class MetricsLine:
    """A line of `metrics.jsonl` that is to be sent."""

    step: int
    time: float
    """Unix seconds; 0 if the line has none."""
    values: dict[str, float]
    """By the Trainer's names."""


@dataclass(frozen=True)
class About:
    """What a service is told of a run before its first line."""

    name: str
    folder: str
    """Of the run directory; the forwarder may write into it."""
    config: dict[str, Any]
    """The resolved configuration by dotted key, without secrets."""


class Service(Protocol):
    """A run of a service that is open. Whatever goes wrong raises any exception: the lines are then sent again."""

    @property
    def run_id(self) -> str:
        """What `begin` takes to continue it."""
        ...

    def send(self, lines: Sequence[MetricsLine]) -> None: ...

    def finish(self, outcome: Outcome) -> None:
        """Returns when all that was sent has arrived."""
        ...


class Begin(Protocol):
    def __call__(self, about: About, run_id: str | None) -> Service:
        """Opens a new run, or that of `run_id` again."""
        ...
