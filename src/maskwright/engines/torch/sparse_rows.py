"""Weights of a fine-tuning run that trains only the embedding rows that its training texts look up.

The rows of all other tokens never have a gradient, so AdamW only decays them. Here they are decayed later, for many
updates in one pass. The gradient, the moments, the norm and the copy in bf16 cover the few thousand rows that a
labelled set looks up. A table of 50,000 rows took a third of a small model's step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from maskwright.config import pretraining as run
from maskwright.engines.base import TrainState
from maskwright.engines.processes import Processes
from maskwright.engines.torch.gradients import Gradients
from maskwright.engines.torch.optimizers import rate_scales
from maskwright.engines.torch.weights import FlatWeights
from maskwright.model.config import ModelConfig
from maskwright.model.hf.names import Parameters, pieces
from maskwright.model.torch.networks import make_network

PENDING_UPDATES = 64
"""Updates whose decay may be outstanding, so that no save or evaluation waits long for it."""
CACHED_NUMBERS = 2**17
"""Numbers of the table that fit a core's cache while they are decayed, once for each outstanding update."""


class SparseRows:
    """See `FlatWeights`. `ids` [n]: the tokens that training looks up, in ascending order."""

    def __init__(
        self,
        ids: NDArray[np.int64],
        config: ModelConfig,
        options: run.Optimizer,
        dtype: torch.dtype,
        device: str,
        *,
        processes: Processes,
    ) -> None:
        row_config = replace(config, vocab_size=len(ids))
        self.network = make_network(row_config, device)
        self._inner = FlatWeights(self.network, row_config, options, dtype, processes=processes)
        self._ids, self._dtype, self._processes = ids, dtype, processes
        self._table = torch.zeros(config.vocab_size, config.hidden_size, device=device)
        """fp32 copy of the whole table. Rows in `ids` are stale; the others still lack the factors in `_pending`."""
        self._pending: list[float] = []
        """Decay factors not yet applied to the table, oldest first."""
        self._name = next(piece.hf_name for piece in pieces(config) if piece.name == "word.weight")
        self._trained, self._whole = self._word.data, False
        self._rows = torch.full((config.vocab_size,), -1, dtype=torch.int32, device=device)
        self._rows[torch.from_numpy(ids)] = torch.arange(len(ids), dtype=torch.int32, device=device)
        scales = rate_scales([name for name, _ in self.network.named_parameters()], options.layer_decay)
        self._decay = options.weight_decay * scales["word.weight"]

    @property
    def _word(self) -> nn.Parameter:
        return cast(nn.Parameter, self.network.word.weight)

    def look_up(self, ids: Tensor, *, training: bool) -> Tensor:
        """See `FlatWeights`. The network's table is the trained one in training, else the whole one, since texts that
        are only judged may hold any token."""
        if training:
            self._show_trained()
            return self._rows[ids.long()]
        if not self._whole:
            self._catch_up()
            whole = self._table.to(self._dtype, copy=True)
            whole[torch.from_numpy(self._ids)] = self._trained[: len(self._ids)]
            self._word.data, self._whole = whole, True
        return ids

    def _show_trained(self) -> None:
        self._word.data, self._whole = self._trained, False

    def begin(self, virtual_workers: int) -> None:
        self._show_trained()
        self._inner.begin(virtual_workers)

    @property
    def gradients(self) -> Gradients:
        return self._inner.gradients

    def finish(self) -> Tensor:
        return self._inner.finish()

    def spread(self) -> None:
        self._inner.spread()

    def update(self, scale: Tensor, learning_rate: float, good: Tensor | None) -> None:
        self._inner.update(scale, learning_rate, good)
        if not self._decay:
            return
        left = 1.0 - learning_rate * self._decay
        if good is not None:
            self._table.mul_(torch.where(good > 0, left, 1.0))
            return
        self._pending.append(left)
        if len(self._pending) == PENDING_UPDATES:
            self._catch_up()

    def _catch_up(self) -> None:
        """Applies the outstanding decay. It rounds after each factor, as single updates would, so the bits do not
        depend on the moment of the call."""
        for part in self._table.view(-1).split(CACHED_NUMBERS) if self._pending else ():
            for left in self._pending:
                part.mul_(left)
        self._pending.clear()

    def read(self, step: int) -> TrainState:
        state = self._inner.read(step)
        if self._processes.rank:
            return state
        self._catch_up()
        moments = {}
        for kind, named in state.moments.items():
            moments[kind] = self._filled(named, np.zeros(self._table.shape, np.float32))
        table = self._table.to("cpu", copy=True).numpy()
        return replace(state, parameters=self._filled(state.parameters, table), moments=moments)

    def _filled(self, named: Parameters, table: NDArray[np.float32]) -> Parameters:
        if self._name not in named:  # a moment of Muon
            return named
        table[self._ids] = named[self._name]
        return named | {self._name: table}

    def write(self, state: TrainState, *, moments: bool) -> None:
        self._show_trained()
        self._pending.clear()
        if self._processes.rank == 0:
            self._table.copy_(torch.from_numpy(np.ascontiguousarray(state.parameters[self._name])))
        if self._processes.world_size > 1:
            dist.broadcast(self._table, 0)
        moments_of_rows = {kind: self._cut(named) for kind, named in state.moments.items()}
        cut = replace(state, parameters=self._cut(state.parameters), moments=moments_of_rows)
        self._inner.write(cut, moments=moments)

    def _cut(self, named: Parameters) -> Parameters:
        return named | {self._name: named[self._name][self._ids]} if self._name in named else named


Weights = FlatWeights | SparseRows
