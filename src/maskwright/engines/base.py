"""The interface between the training loop and its engines, torch and JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from maskwright.core.errors import HealthError, MaskwrightError
from maskwright.data.batch import Batch
from maskwright.engines.processes import Processes
from maskwright.model.hf.names import Parameters

ScaleState = dict[str, float]
"""`loss_scale`, `good_updates_in_a_row` and `skipped_updates` of a run in fp16."""
LabelScores = tuple[NDArray[np.float32], NDArray[np.bool_]]
"""(log-probability of each label, whether no token is likelier)."""

DROPOUT_PURPOSE = 7
"""Purpose in the keys of dropout's random numbers (`data.bits.key`)."""


class RunFacts(NamedTuple):
    """Facts of a run, beyond its configuration, that an engine depends on."""

    flops: float = 0.0
    """Model FLOPs of the whole run, by which `compile: auto` decides."""
    micro_batch_losses: float = 1.0
    """Approximate number of predicted positions or examples in a micro-batch, for the loss scale of fp16."""
    label_smoothing: float = 0.0
    """Share of each class's target that all classes get, in training only."""
    by_mkl: bool | None = None
    """Whether the run began with gradients by MKL; None asks this machine."""
    looked_up: NDArray[np.int64] | None = None
    """The tokens of all training texts in ascending order, for a model whose embeddings are not its output too; None
    for any token."""


NO_RUN = RunFacts()
"""For an engine that only scores."""


@dataclass(frozen=True)
class StepStats:
    """Sums over all ranks of one optimizer update. Lazy: `float()` blocks until the device has the value."""

    loss_sum: SupportsFloat
    weight: SupportsFloat
    grad_norm: SupportsFloat
    """L2 norm before clipping."""
    vote: int = 0
    """The highest vote known to all ranks: this step's on a single rank, else the vote of the step before."""


class AtOnce(NamedTuple):
    """How much of a micro-batch is computed at once. It shrinks when memory runs out, equally on all ranks. Checkpoints
    keep it, because it decides low bits."""

    rows: int | None = None
    """Rows, one or more; None for all."""
    recompute: bool = False
    """Whether the backward pass computes activations again, though `engine.activation_checkpointing` is `auto`."""

    def of(self, rows: int) -> int:
        """How many of a micro-batch's `rows` are computed at once."""
        return rows if self.rows is None else min(self.rows, rows)


@dataclass(frozen=True)
class EvalStats:
    """Sums over predicted positions. Sums of several batches can be added."""

    loss_sum: float = 0.0
    weight: float = 0.0
    correct: float = 0.0

    def __add__(self, other: EvalStats) -> EvalStats:
        return EvalStats(self.loss_sum + other.loss_sum, self.weight + other.weight, self.correct + other.correct)

    @property
    def loss(self) -> float:
        return self.loss_sum / (self.weight or 1.0)

    @property
    def accuracy(self) -> float:
        return self.correct / (self.weight or 1.0)


@dataclass
class TrainState:
    """The state that training depends on, as well as on the configuration and the data."""

    step: int
    """Finished updates."""
    parameters: Parameters
    """fp32 arrays under Hugging Face names."""
    moments: dict[str, Parameters] = field(default_factory=dict)
    """The optimizer's moments by kind (`exp_avg`), in the same form."""
    earlier_updates: int = 0
    """Updates of earlier runs that are in the moments. AdamW's bias correction counts them too."""
    loss_scale: ScaleState | None = None
    """Only in fp16."""

    @property
    def remembered_updates(self) -> int:
        """All updates that are in the moments. A step that fp16 skipped is not an update."""
        skipped = self.loss_scale["skipped_updates"] if self.loss_scale else 0
        return self.step + self.earlier_updates - int(skipped)


class Engine(Protocol):
    description: str
    """The chosen device, precision and threads, in words."""

    device: str
    dtype_name: str
    """Precision of the multiplications: `bfloat16`, `float16` or `float32`."""

    compiled: bool
    """Whether layers are compiled (see `engine.compile`)."""

    by_mkl: bool | None
    """Whether MKL computes the gradients of matrices; None except on torch's CPU."""

    processes: Processes

    dp_degree: int
    """Data-parallel degree: devices of all ranks that each compute a micro-batch at the same time."""

    at_once: AtOnce
    """How much of a micro-batch is computed at once."""

    waiting: Callable[[], AbstractContextManager[object]] | None
    """The engine enters this context while it waits for other ranks. None if it cannot recognise waiting."""

    @property
    def leaves_host_free(self) -> bool:
        """Whether, at present, the host starts a whole micro-batch with one call, and is idle while the device computes
        it. Batches are then made meanwhile."""
        ...

    def use_rope_theta(self, theta: float) -> None:
        """Sets the base of rotary positions for later steps (`ModelConfig.rope_theta`)."""
        ...

    def local_virtual_workers(self, virtual_workers: int) -> list[int]:
        """The virtual workers of an update that this rank computes, in the order in which `step` expects their batches.

        Raises `ConfigError` if they cannot be shared out evenly."""
        ...

    def dry_run(self, batches: Sequence[Batch], held_out: Sequence[Batch]) -> None:
        """Tries the shapes of `step(batches)` and `evaluate(held_out)`: both are then compiled, and memory that ran
        out has lessened `at_once`. All ranks take part.

        Changes no parameter and no moment; no later number depends on it. `held_out` may be empty.
        """
        ...

    def step(
        self, batches: Sequence[Batch], learning_rate: float, give_up: Callable[[], bool], vote: int = 0
    ) -> StepStats | None:
        """One optimizer update. The loss is the sum over all predicted positions, divided once by their weight.

        `give_up` is called before each micro-batch. Once it is true, None is returned and nothing has changed; one of
        several ranks does not give up alone. Every rank learns the highest `vote`.

        When the loss or the gradient is not finite, nothing changes, now or in later steps: `HealthError` is raised
        here, or by `check` if the device runs ahead of the host. In fp16, a gradient that is not finite leaves out this
        update alone, as long as the loss scale can be lowered.
        """
        ...

    def check(self) -> None:
        """Waits for the device. Raises `HealthError` if a step was not finite."""
        ...

    def scaling(self) -> ScaleState:
        """The state of loss scaling, for a log line; empty without it. Waits for the device."""
        ...

    def evaluate(self, batches: Sequence[Batch]) -> EvalStats:
        """Sums over all `batches`. Every rank passes all of them and gets all sums; each batch is computed once, so a
        multiple of `dp_degree` keeps all devices busy."""
        ...

    def log_probs(self, batches: Sequence[Batch]) -> LabelScores:
        """Scores [n] of the n labels with a weight, batch by batch, from a softmax in fp32; for masked language models.
        Shared out as in `evaluate`."""
        ...

    def predict(self, batches: Sequence[Batch]) -> NDArray[np.float32]:
        """The head's fp32 logits [len(batches) * K, C] at the `predict_index` of each batch, filler included.

        All batches have the same shapes. Shared out as in `evaluate`."""
        ...

    def read(self) -> TrainState:
        """A copy of the state that later steps do not change. All ranks take part; rank 0 gets it."""
        ...

    def write(self, state: TrainState) -> None:
        """Sets the state of all ranks to rank 0's `state`; the argument of other ranks is ignored."""
        ...

    def ceiling(self) -> float:
        """Measured FLOP/s of plain matrix multiplication, on all devices together."""
        ...

    @property
    def report(self) -> dict[str, object]:
        """Compiled programs and memory, for `engine.json` of the run directory."""
        ...

    def profile(self, folder: str) -> AbstractContextManager[object]:
        """Traces host and device inside the context, and writes the trace to `folder` at its end."""
        ...


# ---- shared error messages ----------------------------------------------------------------------------------------


def not_finite(step: int) -> HealthError:
    return HealthError(
        f"step {step}: the loss or its gradient is not finite; stopped before the update",
        step=step,
        fix="read the files and lines of its rows in RUN/not-finite; then set a lower optimizer.learning_rate or more "
        "warm-up in a new run, or change the text",
    )


def one_row_too_long(tokens: int, device: str) -> MaskwrightError:
    return MaskwrightError(
        f"out of memory with one row of {tokens} tokens at once",
        where=device,
        fix="set a shorter data.seq_len (in fine-tuning data.max_seq_len), or use a smaller model or more memory",
    )


def fewer_at_once(before: int, now: int, tokens: int) -> str:
    return (
        f"out of memory with {before} rows of {tokens} tokens at once: computing {now} at a time from here on. That "
        "changes only the last bits and, with dropout, what is dropped. Raise "
        "batch.virtual_workers and, in pretraining, lower batch.micro_batch_rows to start in this way"
    )
