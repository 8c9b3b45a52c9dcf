"""What one rank has measured of its memory, and how it continues after memory ran out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from maskwright.core.console import warn
from maskwright.core.errors import MaskwrightError
from maskwright.core.library_errors import is_out_of_memory
from maskwright.data.batch import Batch
from maskwright.engines.base import AtOnce, fewer_at_once, one_row_too_long
from maskwright.engines.torch.graphs import Graphs

T = TypeVar("T")


class Fit:
    """Rows at once, recomputation and CUDA graphs of a rank. Nothing else in the engine catches a lack of memory.

    `checkpointing`: `engine.activation_checkpointing`. `graphs`: None to compute without them."""

    def __init__(self, device: str, checkpointing: str, graphs: Graphs | None) -> None:
        self.at_once, self.graphs = AtOnce(), graphs
        self._device, self._checkpointing = device, checkpointing

    @property
    def recompute(self) -> bool:
        return self.at_once.recompute or self._checkpointing == "on"

    @property
    def by_graph(self) -> bool:
        """Whether graphs compute micro-batches at present. What is recorded keeps its activations."""
        return self.graphs is not None and not self.recompute

    def parts(self, batch: Batch) -> list[Batch]:
        """The parts of `batch` that are computed one after another."""
        M = len(batch.input_ids)
        size = self.at_once.of(M)
        return [batch] if size == M else [batch.part(i, min(i + size, M)) for i in range(0, M, size)]

    def run(self, batch: Batch, compute: Callable[[], T], bound: Callable[[], object] = lambda: None) -> T:
        """The result of `compute`, which is called again with less of `batch` at once each time memory runs out.

        Raises `MaskwrightError` if nothing less can be computed, or if `bound` says that nothing can be repeated."""
        while True:
            try:
                return compute()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            # Not inside of `except`: an error holds the frames of both passes, and with them all activations.
            self._lessen(batch, bound=bool(bound()))

    def _lessen(self, batch: Batch, *, bound: bool) -> None:
        """Leaves the graphs if any takes memory, else halves the rows, else has activations computed again."""
        M, T = batch.input_ids.shape
        rows, has_graphs = self.at_once.of(M), self.graphs is not None and self.graphs.used
        if rows == 1 and not has_graphs and (self.recompute or self._checkpointing == "off"):
            raise one_row_too_long(T, self._device)
        if bound:
            raise MaskwrightError(
                "out of memory after part of the gradient had been sent to the other processes: the step cannot be "
                "computed again with fewer rows",
                where=self._device,
                fix="raise batch.virtual_workers and, in pretraining, lower batch.micro_batch_rows in a new run, which "
                "can begin from an export of this one",
            )
        if has_graphs:
            self.graphs = None
            warn("out of memory with CUDA graphs: continuing without them, which slows small models")
        elif rows > 1:
            self.at_once = self.at_once._replace(rows=rows // 2)
            warn(fewer_at_once(rows, rows // 2, T))
        else:
            self.at_once = AtOnce(1, recompute=True)
            warn(
                f"out of memory with one row of {T} tokens at once: activations are computed again in the backward "
                "pass from here on (engine.activation_checkpointing), which takes about a third longer"
            )
        if self._device == "cuda":
            torch.cuda.empty_cache()

    # ---- with the other ranks ----------------------------------------------------------------------------------

    def numbers(self) -> list[float]:
        """[2], for `agree`."""
        return [math.inf if self.at_once.rows is None else self.at_once.rows, self.at_once.recompute]

    def agree(self, of_ranks: Tensor) -> None:
        """Computes as the rank with the least memory does, so that all ranks round alike. `of_ranks` [world_size, 2]:
        the `numbers` of all."""
        rows, recompute = of_ranks[:, 0].min().item(), of_ranks[:, 1].any().item()
        self.at_once = AtOnce(None if math.isinf(rows) else int(rows), bool(recompute))
