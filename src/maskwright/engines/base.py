"""The engine seam: what the loop asks of torch and of JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, SupportsFloat

from maskwright.core.errors import HealthError, MaskwrightError
from maskwright.data.batch import Batch
from maskwright.engines.processes import Processes
from maskwright.model.hf.names import Parameters

DROPOUT_PURPOSE = 7
"""Of the keys that dropout is drawn by."""


@dataclass(frozen=True)
class StepStats:
    """Of one optimizer update: sum of the losses, their weight, and the gradient's norm before clipping.

    What a device that runs ahead has yet to compute is a number only when `float()` asks for it, and waits then.
    """

    loss_sum: SupportsFloat
    weight: SupportsFloat
    grad_norm: SupportsFloat
    wish: int = 0
    """What all processes now know that one of them wished: that of this step where there is one process, else of the
    step before."""


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

    device: str
    dtype_name: str
    """Of the multiplications: `bfloat16` or `float32`."""

    processes: Processes

    spread: int
    """Devices that each compute a micro-batch at the same time, in all processes together."""

    reads_alone: bool
    """Whether process 0 has all of the state itself, so that it can `read` when others are gone."""

    rows_at_once: int | None
    """Of a micro-batch; None for all. Smaller after running out of memory, and kept by checkpoints: it decides low
    bits."""

    def workers(self, virtual_workers: int) -> list[int]:
        """Which of an update's virtual workers this process computes, in the order that `step` takes their batches.

        Raises `ConfigError` when they cannot be shared out evenly."""
        ...

    def step(
        self, batches: Sequence[Batch], learning_rate: float, give_up: Callable[[], bool], wish: int = 0
    ) -> StepStats | None:
        """One optimizer update. The loss is the sum over all predicted positions divided once by their weight.

        `give_up` is asked before each micro-batch; once it says so, None is returned and nothing has changed. A
        process among several does not give up alone. Of their wishes, each process is told the largest.

        When the loss or the gradient is not finite, nothing changes, now or in later steps: `HealthError` is raised
        here, or by `check` where the device runs ahead of the host.
        """
        ...

    def check(self) -> None:
        """Waits for the device, and raises `HealthError` when a step was not finite."""
        ...

    def evaluate(self, batches: Sequence[Batch]) -> EvalStats:
        """Sums over all of them; every process is given all. Best as many as `spread`."""
        ...

    def read(self) -> TrainState:
        """A copy: later steps do not change it. All processes take part, process 0 gets it."""
        ...

    def write(self, state: TrainState) -> None:
        """Process 0 gives it to all; what the others bring does not matter."""
        ...

    def ceiling(self) -> float:
        """Measured FLOP/s of plain matrix multiplication, on all devices together."""
        ...

    def report(self) -> dict[str, object]:
        """What was compiled, and memory: for `engine.json` of the run directory."""
        ...

    def profile(self, folder: str) -> AbstractContextManager[object]:
        """Inside it, what host and device do is traced; at its end the trace is in `folder`."""
        ...

    def close(self) -> None: ...


# ---- what engines say alike ------------------------------------------------------------------------------------------


def is_out_of_memory(error: Exception) -> bool:
    """CUDA's error has a type in torch; that of torch's CPU allocator, and all of XLA's, only a text."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or any(sign in str(error) for sign in ("can't allocate memory", "RESOURCE_EXHAUSTED"))


def not_finite(step: int) -> HealthError:
    return HealthError(
        f"step {step}: the loss or its gradient is not finite; stopped before the update",
        step=step,
        fix=f"`maskwright replay RUN --step {step}` names the text; then a lower optimizer.learning_rate or "
        "more warm-up in a new run, or other text",
    )


def one_row_too_long(tokens: int, device: str) -> MaskwrightError:
    return MaskwrightError(
        f"out of memory with one row of {tokens} tokens at once",
        where=device,
        fix="take a shorter data.seq_len, a smaller model, or a device with more memory",
    )


def fewer_at_once(before: int, now: int, tokens: int) -> str:
    return (
        f"out of memory with {before} rows of {tokens} tokens at once: computing {now} at a time from here on, "
        "which changes the last bits only, and with dropout what is dropped. To have it so from the start, lower "
        "batch.micro_batch_rows and raise batch.virtual_workers"
    )
