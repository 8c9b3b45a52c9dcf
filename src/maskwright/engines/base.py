"""The engine seam: what the loop asks of torch today and of any other framework later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, SupportsFloat

from maskwright.data.batch import Batch
from maskwright.model.hf_names import Parameters


@dataclass(frozen=True)
class StepStats:
    """Of one optimizer update: sum of the losses, their weight, and the gradient's norm before clipping.

    What a device that runs ahead has yet to compute is a number only when `float()` asks for it, and waits then.
    """

    loss_sum: SupportsFloat
    weight: float
    grad_norm: SupportsFloat


@dataclass(frozen=True)
class EvalStats:
    """Sum of the losses, weight, and how many were predicted right; those of several batches add up."""

    loss_sum: float = 0.0
    weight: float = 0.0
    correct: float = 0.0

    def __add__(self, other: EvalStats) -> EvalStats:
        return EvalStats(self.loss_sum + other.loss_sum, self.weight + other.weight, self.correct + other.correct)

    @property
    def loss(self) -> float:
        return self.loss_sum / max(self.weight, 1.0)

    @property
    def accuracy(self) -> float:
        return self.correct / max(self.weight, 1.0)


@dataclass
class TrainState:
    """All that training depends on besides the configuration and the data: `step` finished updates, parameters and
    optimizer moments as fp32 arrays under Hugging Face names. `moments` maps a kind (`exp_avg`) to such arrays."""

    step: int
    parameters: Parameters
    moments: dict[str, Parameters] = field(default_factory=dict)


class Engine(Protocol):
    description: str
    """Device, precision and threads that were chosen, for a person."""

    rows_at_once: int | None
    """Of a micro-batch; None for all. Smaller after running out of memory, and kept by checkpoints: it decides low
    bits."""

    def step(self, batches: Sequence[Batch], learning_rate: float, give_up: Callable[[], bool]) -> StepStats | None:
        """One optimizer update. The loss is the sum over all predicted positions divided once by their weight.

        `give_up` is asked before each micro-batch; once it says so, None is returned and nothing has changed.

        When the loss or the gradient is not finite, nothing changes, now or in later steps: `HealthError` is raised
        here, or by `check` where the device runs ahead of the host.
        """
        ...

    def check(self) -> None:
        """Waits for the device, and raises `HealthError` when a step was not finite."""
        ...

    def evaluate(self, batch: Batch) -> EvalStats: ...

    def read(self) -> TrainState:
        """A copy: later steps do not change it."""
        ...

    def write(self, state: TrainState) -> None: ...

    def close(self) -> None: ...
