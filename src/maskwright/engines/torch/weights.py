"""Weights, gradient and optimizer state of a torch run.

Each rank computes with all weights, in bf16, fp16 or fp32, and holds its share of the fp32 weights and moments in flat
buffers (`shares.py`), which the optimizers update in a few large operations. After an update the ranks gather the new
weights in the precision of the multiplications: half the bytes of fp32, and the same bits on all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from maskwright.config import pretraining as run
from maskwright.engines.base import TrainState
from maskwright.engines.processes import Processes
from maskwright.engines.torch import shares
from maskwright.engines.torch.gradients import Gradients
from maskwright.engines.torch.levels import Levels
from maskwright.engines.torch.optimizers import AdamW, Muon, rate_scales
from maskwright.engines.torch.processes import Peers
from maskwright.engines.torch.shares import FlatOrder
from maskwright.model.config import NEVER_PREDICTED, ModelConfig
from maskwright.model.hf.names import Parameters
from maskwright.model.torch.encoder import EncoderNetwork
from maskwright.model.torch.networks import assign, extract


class FlatWeights:
    """Weights and optimizer. An update calls `begin`, then the `gradients` around each backward pass, then `finish`,
    `update` and `spread`, which waits until the network has the new weights of all ranks."""

    def __init__(
        self,
        network: EncoderNetwork,
        config: ModelConfig,
        options: run.Optimizer,
        dtype: torch.dtype,
        *,
        processes: Processes,
    ) -> None:
        self.config, self.options, self.dtype = config, options, dtype
        self._processes, self._several = processes, processes.world_size > 1
        self._levels = processes.levels if isinstance(processes, Peers) else Levels()
        self._earlier_updates = 0
        self._parameters = dict(network.named_parameters())
        shapes = {name: parameter.shape for name, parameter in self._parameters.items()}
        self._order = FlatOrder.of(shapes, list(shapes), processes.world_size, muon=options.kind == "muon")
        self._share = self._order.shares[self._levels.place(processes.rank)]
        self._device = next(iter(self._parameters.values())).device
        self._weights = torch.zeros(self._share.length, device=self._device)
        self._multiplied = self._weights
        if self._several or dtype is not torch.float32:
            self._multiplied = torch.zeros(self._order.length, dtype=dtype, device=self._device)
        for name, view in self._order.parameters(self._multiplied).items():
            self._parameters[name].data = view
        self.spread = self._spreading() if self._several else self._round
        self._optimizers: list[AdamW | Muon] = []
        self._made: Gradients | None = None

    @property
    def gradients(self) -> Gradients:
        """Adds up the gradients of backward passes. Made by the first update: evaluation needs none."""
        if self._made is None:
            made = Gradients(self._parameters, self._order, self._levels)
            self._blocks = made.flat.view(-1, shares.BLOCK_NUMBERS)
            longest = max(share.length for share in self._order.shares) // shares.BLOCK_NUMBERS
            self._norms_of_all = torch.zeros(self._processes.world_size * longest, device=self._device)
            self._norms = self._norms_of_all[self._share.rank * longest :][:longest]
            self._gather_norms = self._levels.gathering([(self._norms_of_all, self._norms)])
            self._blocks_in_order = self._order.order_of_blocks.to(self._device)
            self._made = made
        return self._made

    def _start_optimizers(self) -> list[AdamW | Muon]:
        """Returns the optimizers, made on first use with zero moments."""
        if not self._optimizers:
            options, buffers = self.options, (self._share, self._weights, self.gradients.flat)
            scales = rate_scales(list(self._parameters), options.layer_decay)
            made: list[AdamW | Muon] = [AdamW(*buffers, options, scales)]
            if options.kind == "muon":
                made.append(Muon(*buffers, options, self.dtype))
            self._optimizers = made  # all or none: memory may run out between them
        return self._optimizers

    def look_up(self, ids: Tensor, *, training: bool) -> Tensor:
        """Rows [M, T] of the network's table of embeddings for token `ids`."""
        return ids

    def begin(self, virtual_workers: int) -> None:
        """Forgets any gradient, and allocates the moments and buffers of the update."""
        self._start_optimizers()
        self.gradients.begin(virtual_workers)

    def finish(self) -> Tensor:
        """Waits for the gradient of all ranks, and returns its norm, not divided by anything."""
        self.gradients.finish()
        torch.linalg.vector_norm(self._blocks, dim=1, out=self._norms[: len(self._blocks)])
        self._gather_norms()
        return torch.linalg.vector_norm(self._norms_of_all[self._blocks_in_order])

    def update(self, scale: Tensor, learning_rate: float, good: Tensor | None) -> None:
        """One step of the optimizer by the gradient times `scale`. `good`: see `optimizers.AdamW.step`."""
        self.gradients.flat.mul_(scale)
        for optimizer in self._optimizers:
            optimizer.step(learning_rate, good)

    def _round(self) -> None:
        if self._multiplied is not self._weights:
            self._multiplied.copy_(self._weights)

    def _spreading(self) -> Callable[[], None]:
        """What gives each rank the new weights of all shares, in the precision of the multiplications.

        What AdamW updates is gathered in place, the first layers first. Muon's pieces differ in length, so they are
        gathered together and copied."""
        order, share, multiplied, end = self._order, self._share, self._multiplied, self._share.end_of_muon
        even = [bucket for bucket in reversed(order.buckets) if not bucket.by_muon]
        pairs = [(multiplied[bucket.whole], multiplied[bucket.piece(share.rank)]) for bucket in even]
        sources = [*(self._weights[share.piece(bucket)] for bucket in even), self._weights[:end]]
        longest = max(of_rank.end_of_muon for of_rank in order.shares)
        sent, received = (multiplied.new_zeros(count * longest) for count in (1, order.world_size))
        targets = [*(own for _, own in pairs), sent[:end]]
        held = [(bucket, of_rank) for of_rank in order.shares for bucket in order.buckets if bucket.by_muon]
        held = [(bucket, of_rank) for bucket, of_rank in held if bucket.sizes[of_rank.rank]]
        of_ranks = received.view(order.world_size, longest)
        places = [multiplied[bucket.piece(of_rank.rank)] for bucket, of_rank in held]
        arrived = [of_ranks[of_rank.rank, of_rank.piece(bucket)] for bucket, of_rank in held]
        gather = self._levels.gathering(pairs + [(received, sent)] * bool(held))

        def spread() -> None:
            torch._foreach_copy_(targets, sources)
            gather()
            if places:
                torch._foreach_copy_(places, arrived)

        return spread

    # ---- state -----------------------------------------------------------------------------------------------

    def read(self, step: int) -> TrainState:
        parameters = self._on_rank_0(self._weights, 0, list(self._parameters))
        moments = {}
        for optimizer in self._optimizers if step + self._earlier_updates else []:
            for kind, moment in optimizer.moments.items():
                moments[kind] = self._on_rank_0(moment, optimizer.part.start, self._names(optimizer))
        if self._processes.rank:
            return TrainState(step, {})
        return TrainState(step, parameters, moments, self._earlier_updates)

    def _names(self, optimizer: AdamW | Muon) -> list[str]:
        """The parameters that `optimizer` updates, on all ranks together."""
        stacked = {name for stack in self._order.stacks for name in stack.names}
        return [name for name in self._parameters if (name in stacked) is isinstance(optimizer, Muon)]

    def _on_rank_0(self, numbers: Tensor, begin: int, names: list[str]) -> Parameters:
        """On rank 0, copies of the parameters `names`. Each rank has its `numbers` of a share, from `begin` on. Buckets
        come one after the other, since they need memory of the device."""
        if not self._several:
            return extract(self._order.parameters(numbers, names, begin), self.config)
        rank = self._processes.rank
        whole = torch.zeros(self._order.length if rank == 0 else 0)
        for bucket in self._order.buckets:
            if bucket.names[0] not in names:
                continue
            piece = self._share.piece(bucket)
            mine = numbers[piece.start - begin : piece.stop - begin]
            pieces = [bucket.piece(self._levels.place(other)) for other in range(len(bucket.sizes))]
            lengths = [(piece.stop - piece.start) * (rank == 0) for piece in pieces]
            arriving = numbers.new_empty(sum(lengths))
            dist.all_to_all_single(arriving, mine, lengths, [len(mine), *[0] * (len(pieces) - 1)])
            if rank == 0:
                for piece, numbers_of_rank in zip(pieces, arriving.cpu().split(lengths), strict=True):
                    whole[piece] = numbers_of_rank
        return extract(self._order.parameters(whole, names), self.config) if rank == 0 else {}

    def write(self, state: TrainState, *, moments: bool) -> None:
        """Broadcasts rank 0's state. `moments`: whether it has any."""
        self._earlier_updates = state.earlier_updates
        whole = self._broadcast(state.parameters, list(self._parameters), NEVER_PREDICTED)
        self._take(self._weights, 0, whole)
        if self._multiplied is not self._weights:
            self._multiplied.copy_(whole)
        if not moments:
            self._optimizers = []  # their moments belong to updates that no longer count
            return
        for optimizer in self._start_optimizers():
            if isinstance(optimizer, AdamW):
                optimizer.updates.fill_(state.remembered_updates)
            for kind, moment in optimizer.moments.items():
                whole = self._broadcast(state.moments.get(kind, {}), self._names(optimizer), 0.0)
                self._take(moment, optimizer.part.start, whole)

    def _broadcast(self, arrays: Parameters, names: list[str], padding: float) -> Tensor:
        """fp32 [length of the order] with the parameters `names` from rank 0's `arrays`."""
        whole = torch.zeros(self._order.length, device=self._device)
        if self._processes.rank == 0:
            assign(self._order.parameters(whole, names), arrays, self.config, padding)
        if self._several:
            dist.broadcast(whole, 0)
        return whole

    def _take(self, numbers: Tensor, begin: int, whole: Tensor) -> None:
        """Copies this rank's pieces of `whole` into its `numbers` of a share, from `begin` on."""
        for bucket, start in self._share.begins.items():
            place = start - begin
            if 0 <= place < len(numbers):
                numbers[place : place + bucket.sizes[self._share.rank]] = whole[bucket.piece(self._share.rank)]
