"""The torch engine: one CPU, CUDA device or Apple GPU for each process.

This file has the micro-batches of an update, its health and memory. `weights.py` holds the state that an update
changes; `prepare.py` picks device, dtype and threads.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import astuple, replace
from functools import cache, partial
from typing import TypeVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from maskwright.config import pretraining as run
from maskwright.config.pretraining import shared_out
from maskwright.core.console import several, warn
from maskwright.core.errors import MaskwrightError
from maskwright.core.library_errors import is_out_of_memory
from maskwright.data import bits
from maskwright.data.batch import Batch
from maskwright.engines.base import (
    DROPOUT_PURPOSE,
    EvalStats,
    LabelScores,
    ScaleState,
    StepStats,
    TrainState,
    fewer_at_once,
    not_finite,
    one_row_too_long,
)
from maskwright.engines.ceiling import gemm_ceiling
from maskwright.engines.torch.arriving import arriving
from maskwright.engines.torch.graphs import Graphs
from maskwright.engines.torch.loss_scale import LossScale, scale_too_small
from maskwright.engines.torch.prepare import (
    attention_kernel,
    choose_compile,
    choose_device,
    choose_dtype,
    prepare,
    products,
    set_determinism,
    use_threads,
    what_dtype_costs,
    works_without_determinism,
)
from maskwright.engines.torch.processes import Exchange, Peers, Sums, connect, gather_into
from maskwright.engines.torch.sparse_rows import SparseRows
from maskwright.engines.torch.weights import FlatWeights
from maskwright.model.config import ModelConfig
from maskwright.model.torch.attention import CuSeqlens, Segments, cu_seqlens_of, packed, takes_cu_seqlens
from maskwright.model.torch.heads import Targets, loss_sum

T = TypeVar("T")
NEVER = 2**62
"""A step that no run reaches."""


class TorchEngine:
    """See `base.Engine`. `seed` keys dropout by (seed, step, virtual worker), so a resumed run drops the same.

    `run_flops`: model FLOPs of the whole run, by which `compile: auto` decides. `micro_batch_losses`: see
    `LossScale`. `looked_up`: the tokens of all training texts in ascending order, for a model whose embeddings are not
    its output too; None for any token.
    """

    def __init__(
        self,
        model: ModelConfig,
        optimizer: run.Optimizer,
        engine: run.EngineSection,
        seed: int,
        *,
        run_flops: float = 0.0,
        micro_batch_losses: float = 1.0,
        label_smoothing: float = 0.0,
        looked_up: NDArray[np.int64] | None = None,
    ) -> None:
        self.label_smoothing = label_smoothing
        self.config, self.optimizer_config, self.seed = model, optimizer, seed
        self.device = choose_device(engine.device)
        self.processes = connect(engine, self.device)
        self.dp_degree = self.processes.world_size
        self.dtype = choose_dtype(engine.dtype, self.device)
        self.dtype_name = str(self.dtype).removeprefix("torch.")
        self.threads = use_threads(engine, self.device)
        torch.backends.cuda.matmul.allow_tf32 = False
        if self.device == "cuda":
            set_determinism(engine.reproducibility == "exact")
        self.compiled = choose_compile(engine.compile, self.device, run_flops)
        self.asynchronous = self.device == "cuda"
        self.rows_at_once: int | None = None
        self._checkpointing = engine.activation_checkpointing
        self._step = 0
        self._numbers_on = "cpu" if self.device == "mps" else self.device  # Metal has no float64
        self._first_bad = torch.tensor(NEVER, device=self._numbers_on)
        self.loss_scale = LossScale(micro_batch_losses, self._numbers_on) if self.dtype is torch.float16 else None
        self.model, self.weights = prepare(
            model,
            optimizer,
            engine,
            device=self.device,
            dtype=self.dtype,
            processes=self.processes,
            compiled=self.compiled,
            looked_up=looked_up,
        )
        self.graphs: Graphs | None = None
        # Fine-tuning has too many shapes for a graph of each.
        if self.device == "cuda" and model.task == "masked_lm" and isinstance(self.weights, FlatWeights):
            self.graphs = None if self.loss_scale else Graphs(dict(self.model.named_parameters()))
        self.waiting: Callable[[], AbstractContextManager[object]] | None = nullcontext
        self.leaves_host_free = self.graphs is not None and self.processes.world_size == 1
        self.description = self._describe(engine)

    def _describe(self, engine: run.EngineSection) -> str:
        place = f"{self.device}, {several(self.threads, 'thread')}"
        name = torch.cuda.get_device_name() if self.device == "cuda" else place
        costs = what_dtype_costs(self.dtype, self.device, asked=engine.dtype)
        ranks = f", {self.dp_degree} processes" if self.dp_degree > 1 else ""
        layers = ("compiled" if self.compiled else "not compiled") + ", in CUDA graphs" * bool(self.graphs)
        if self.device == "cuda":
            width = self.config.hidden_size // self.config.num_attention_heads
            kernel = "plain products, with relative positions"
            if not self.config.facts.relative:
                kernel = attention_kernel(self.device, self.dtype, width, self.config.attention_probs_dropout_prob)
            layers += f", attention: {kernel}"
        return f"torch {torch.__version__} on {name}, {self.dtype_name}{costs}, layers {layers}{ranks}"

    def use_rope_theta(self, theta: float) -> None:
        if theta != self.model.config.rope_theta:  # asked for at each step
            self.model.config = replace(self.model.config, rope_theta=theta)

    def local_virtual_workers(self, virtual_workers: int) -> list[int]:
        each = shared_out(virtual_workers, self.dp_degree, "processes")
        return list(range(self.processes.rank * each, (self.processes.rank + 1) * each))

    def ceiling(self) -> float:
        return self.dp_degree * gemm_ceiling(partial(products, self.device, self.dtype))

    # ---- one update ------------------------------------------------------------------------------------------

    def dry_run(self, batches: Sequence[Batch], held_out: Sequence[Batch]) -> None:
        """Tries one micro-batch of each kind: the others have its shapes. `begin` first allocates the moments and the
        buffers of all micro-batches. Ranks send only the number of rows that fit, so they may differ until then."""
        local = self.local_virtual_workers(len(batches) * self.dp_degree)

        def train() -> None:
            self.weights.begin(len(batches) * self.dp_degree)
            self._accumulate(batches[0], local[0], final=False)

        def both() -> None:
            self._fitting(batches[0], train)
            for batch in held_out[:1]:
                self._evaluate(batch)

        try:
            both()
        except RuntimeError as error:
            if not works_without_determinism(both):
                raise
            what = f"an operation has no exact form on {self.device}: {str(error).partition('. ')[0]}"
            fix = "--set engine.reproducibility=fast"
            raise MaskwrightError(what, where="engine.reproducibility exact", fix=fix) from error
        self.exchange(0.0, 0, False)()

    def step(
        self,
        batches: Sequence[Batch],
        learning_rate: float,
        give_up: Callable[[], bool] = lambda: False,
        vote: int = 0,
    ) -> StepStats | None:
        local_weight = sum(batch.predicted for batch in batches)
        exchange = Exchange(partial(self.exchange, local_weight, vote))
        losses = self._fitting(batches[0], lambda: self._gradient(batches, give_up, exchange))
        if len(losses) < len(batches):
            return None
        sums = exchange.begin()()
        with (self.waiting or nullcontext)():
            loss_sum = self._gathered(torch.stack(losses)).to(self._numbers_on).sum(dtype=torch.float64)
            weight: Tensor | float = sums.weight or 1.0  # 0 if nothing was predicted
            if self.loss_scale:
                weight = self.loss_scale.factor * weight
            norm = self.weights.finish().to(self._numbers_on) / weight
        good = self._judge(loss_sum, norm)
        longest = self.optimizer_config.max_grad_norm
        # torch.nn.utils.clip_grad_norm_'s rule, and the one division by the weight and the loss scale
        scale = torch.clamp((longest or math.inf) / (norm + 1e-6), max=1.0) / weight
        if self.asynchronous or good is None or good:
            self.weights.update(scale, learning_rate, good if self.asynchronous else None)
        self._step += 1
        numbers = (loss_sum, norm, self._first_bad)
        loss, gradient_norm, first_bad = arriving(*numbers) if self.device == "cuda" else numbers
        return StepStats(loss, sums.weight, gradient_norm, sums.vote, first_bad)

    def _gradient(self, batches: Sequence[Batch], give_up: Callable[[], bool], exchange: Exchange) -> list[Tensor]:
        """Loss sums of the micro-batches; fewer of them if all ranks give the step up.

        Either all ranks give up or none: they agree before the last micro-batch, the only one that sends gradients. The
        exchange begins one micro-batch earlier, so that it takes no time of its own; a rank that wants to give up goes
        to it at once."""
        local = self.local_virtual_workers(len(batches) * self.dp_degree)
        self.weights.begin(len(batches) * self.dp_degree)
        losses = []
        for left, virtual_worker, batch in zip(range(len(batches), 0, -1), local, batches, strict=True):
            final, urgent = left == 1, give_up()
            if self.processes.world_size == 1:
                if urgent:
                    break
            elif urgent or left <= 2:
                sums = exchange.begin(urgent=urgent)
                if (urgent or final) and sums().urgent:
                    break
            losses.append(self._accumulate(batch, virtual_worker, final=final))
        return losses

    def exchange(self, weight: float, vote: int, urgent: bool) -> Callable[[], Sums]:
        """Begins to sum a step's numbers over the ranks, through their hosts' connection. The function waits for them;
        then the lowest `rows_at_once` of any rank becomes that of all."""
        if not isinstance(self.processes, Peers):
            return lambda: Sums(weight, vote, urgent)
        numbers = [weight, vote, self.rows_at_once or math.inf, urgent]
        gathered = self.processes.begin_to_gather(torch.tensor(numbers, dtype=torch.float64))

        @cache
        def sums() -> Sums:
            with (self.waiting or nullcontext)():
                of_ranks = gathered()
            rows = min(of_ranks[:, 2].min().item(), self.rows_at_once or math.inf)  # which may be fewer since
            self.rows_at_once = None if math.isinf(rows) else int(rows)
            return Sums(of_ranks[:, 0].sum().item(), int(of_ranks[:, 1].max()), bool(of_ranks[:, 3].any()))

        return sums

    def _gathered(self, array: Tensor) -> Tensor:
        """Gathers [n] of each rank into [world_size * n], by virtual worker."""
        if self.processes.world_size == 1:
            return array
        gathered = array.new_empty(self.processes.world_size * len(array))
        gather_into(gathered, array)
        return gathered

    def _fitting(self, batch: Batch, compute: Callable[[], T]) -> T:
        """The result of `compute`, which is called again with half of `batch`'s rows at once when memory runs out."""
        while True:
            try:
                return compute()
            except (RuntimeError, MemoryError) as error:
                if self.graphs and is_out_of_memory(error) and not self.weights.gradients.sending:
                    self._leave_graphs()
                else:
                    self._compute_fewer_at_once(batch, error)

    def _leave_graphs(self) -> None:
        """Drops the CUDA graphs, which hold the memory of a micro-batch. The numbers stay the same without them."""
        self.graphs = None
        torch.cuda.empty_cache()
        warn("out of memory with CUDA graphs: going on without them, which takes longer where a model is small")

    def _compute_fewer_at_once(self, batch: Batch, error: Exception) -> None:
        """Halves `rows_at_once`, down to 0, with a warning after memory ran out. Raises any other `error` as it is,
        and `MaskwrightError` if not even one row fits."""
        if not is_out_of_memory(error):
            raise error
        M, T = batch.input_ids.shape
        rows = M if self.rows_at_once is None else min(self.rows_at_once, M)
        if rows == 0 or (rows == 1 and self._checkpointing != "auto"):
            raise one_row_too_long(T, self.device) from None
        if self.weights.gradients.sending:
            raise MaskwrightError(
                "out of memory after part of the gradient had been sent to the other processes; the step cannot be "
                "redone with fewer rows",
                where=self.device,
                fix="raise batch.virtual_workers and, in pretraining, lower batch.micro_batch_rows in a new run"
                + (" that begins from an export of this one" if self._step else ""),
            ) from None
        self.rows_at_once = rows // 2
        if self.device != "cpu":
            getattr(torch, self.device).empty_cache()
        warn(fewer_at_once(rows, self.rows_at_once, T))

    def _parts(self, batch: Batch) -> list[Batch]:
        M = len(batch.input_ids)
        size = M if self.rows_at_once is None else max(self.rows_at_once, 1)
        self.model.recompute = self._checkpointing == "on" or self.rows_at_once == 0
        return [batch] if size >= M else [batch.part(i, min(i + size, M)) for i in range(0, M, size)]

    def _judge(self, loss_sum: Tensor, norm: Tensor) -> Tensor | None:
        """Records whether loss and gradient are finite. An asynchronous device gets 1 or 0, by which this update and
        each later one is scaled, so that the host need not wait. Otherwise `HealthError` is raised here."""
        good = torch.isfinite(norm)
        finite = torch.isfinite(loss_sum) & good
        if self.loss_scale:
            self.loss_scale.update(good, self._step)
            finite = torch.isfinite(loss_sum) & ~self.loss_scale.too_small
        self._first_bad = torch.where(finite, self._first_bad, self._first_bad.clamp(max=self._step))
        if not self.asynchronous:
            self.check()
            return good if self.loss_scale else None
        return ((self._first_bad > self._step) & (good if self.loss_scale else True)).float()

    def check(self, stats: StepStats | None = None) -> None:
        step = float(stats.first_bad if stats else self._first_bad)
        if self.loss_scale and self.processes.rank == 0:
            self.loss_scale.warn_of_skipped()
        if step <= self._step:
            raise (scale_too_small if self.loss_scale and self.loss_scale.too_small else not_finite)(int(step))

    def scaling(self) -> ScaleState:
        return self.loss_scale.read() if self.loss_scale else {}

    def _accumulate(self, batch: Batch, virtual_worker: int, *, final: bool) -> Tensor:
        """Adds one micro-batch's gradient; returns its loss sum on the device."""
        if self.config.drops:
            torch.manual_seed(int(bits.key(self.seed, DROPOUT_PURPOSE, self._step, virtual_worker) >> np.uint64(1)))
        self.model.train()
        total = torch.zeros((), device=self.device)
        parts = self._parts(batch)
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            self.weights.gradients.before_backward(first=number == 0, last=last, final=final and last)
            # Hooks send each gradient of the last backward pass to other ranks while it runs; a graph has no hooks.
            by_graph = self.processes.world_size == 1 or not (final and last)
            total = total + self._backward(part, by_graph=by_graph)
            self.weights.gradients.after_backward()
        return total

    def _backward(self, batch: Batch, *, by_graph: bool) -> Tensor:
        """Leaves the gradient in `.grad` of the parameters; returns the loss sum."""
        targets = self._targets(batch, self.label_smoothing)
        if self.graphs and by_graph and not self.model.recompute:
            return self._by_graph(self._inputs(batch), targets)
        loss = self._forward(batch, targets)
        (loss * self.loss_scale.factor if self.loss_scale else loss).backward()
        return loss.detach()

    def _by_graph(self, inputs: tuple[Tensor, Tensor, Segments, Tensor], targets: Targets) -> Tensor:
        """Does the same with a CUDA graph."""
        ids, positions, segments, index = inputs
        packs = (segments.longest, segments.causal) if isinstance(segments, CuSeqlens) else None
        offsets = segments.offsets if isinstance(segments, CuSeqlens) else segments

        def compute(tensors: Sequence[Tensor]) -> Tensor:
            ids, positions, offsets, index, labels, weights = tensors
            segments = offsets if packs is None else packed(offsets, packs[0], causal=packs[1])
            return cast(
                Tensor, self.model(ids, positions, segments, index, Targets(labels, weights, targets.smoothing))
            )

        key = (packs, targets.smoothing, self.model.config.rope_theta)
        return cast(Graphs, self.graphs).loss(key, (ids, positions, offsets, index, *targets[:2]), compute)

    def _forward(self, batch: Batch, targets: Targets | None = None) -> Tensor:
        """Logits at the predicted positions; with `targets`, their loss sum instead."""
        return cast(Tensor, self.model(*self._inputs(batch), targets))

    def _put(self, array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        if self.device == "cuda":  # from ordinary memory, a copy waits for the device
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=self.device == "cuda")

    def _inputs(self, batch: Batch) -> tuple[Tensor, Tensor, Segments, Tensor]:
        """The network's inputs, on the device."""
        dropout = self.config.attention_probs_dropout_prob if self.model.training else 0.0
        width = self.config.hidden_size // self.config.num_attention_heads
        segments: Segments
        of_one_kind = batch.causal is not None or not batch.reads_causally
        if (
            of_one_kind
            and not self.config.facts.relative
            and takes_cu_seqlens(self._first_bad.device, self.dtype, width, dropout)
        ):
            offsets = self._put(cu_seqlens_of(batch.segment_ids))
            segments = packed(offsets, batch.segment_ids.shape[1], causal=bool(batch.causal))
        else:
            segments = self._put(batch.segment_ids)
        ids = self._put(batch.input_ids)
        if isinstance(self.weights, SparseRows):
            ids = self.weights.look_up(ids, training=self.model.training)
        return ids, self._put(batch.position_ids), segments, self._put(batch.predict_index)

    def _targets(self, batch: Batch, smoothing: float = 0.0) -> Targets:
        labels = self._put(batch.labels)
        return Targets(labels if labels.is_floating_point() else labels.long(), self._put(batch.weights), smoothing)

    def evaluate(self, batches: Sequence[Batch]) -> EvalStats:
        if not isinstance(self.processes, Peers):
            return sum((self._evaluate(batch) for batch in batches), EvalStats())
        # Each rank computes the same number, because ranks may wait for each other in a forward pass.
        blank = replace(batches[0], weights=np.zeros_like(batches[0].weights))
        everything = [*batches, *[blank] * (-len(batches) % self.dp_degree)]
        local_stats = [self._evaluate(batch) for batch in everything[self.processes.rank :: self.dp_degree]]
        all_stats = self.processes.gather_numbers(
            torch.tensor([astuple(stats) for stats in local_stats], dtype=torch.float64)
        )
        return sum((EvalStats(*stats) for stats in all_stats.transpose(0, 1).flatten(0, 1).tolist()), EvalStats())

    @torch.no_grad()
    def _evaluate(self, batch: Batch) -> EvalStats:
        self.model.eval()
        return self._fitting(batch, lambda: sum((self._score(part) for part in self._parts(batch)), EvalStats()))

    def _score(self, batch: Batch) -> EvalStats:
        logits, (labels, weights, _) = self._forward(batch), self._targets(batch)
        loss = loss_sum(self.config.task, logits, labels, weights)
        correct = ((logits.argmax(-1) == labels) * weights).sum()
        return EvalStats(float(loss), float(weights.sum()), float(correct))

    @torch.no_grad()
    def log_probs(self, batches: Sequence[Batch]) -> LabelScores:
        self.model.eval()
        scores: list[LabelScores] = []
        for batch in batches:
            scores += self._fitting(batch, lambda: [self._label_scores(part) for part in self._parts(batch)])  # noqa: B023 - called at once
        return np.concatenate([pair[0] for pair in scores]), np.concatenate([pair[1] for pair in scores])

    def _label_scores(self, batch: Batch) -> LabelScores:
        has_weight = batch.weights > 0  # no logits of the filler
        index, labels, weights = batch.predict_index[has_weight], batch.labels[has_weight], batch.weights[has_weight]
        labelled = replace(batch, predict_index=index, labels=labels, weights=weights)
        logits, targets = self._forward(labelled), self._targets(labelled).labels
        scores = -F.cross_entropy(logits.float(), targets, reduction="none")
        return scores.cpu().numpy(), (logits.argmax(-1) == targets).cpu().numpy()

    def predict(self, batches: Sequence[Batch]) -> np.ndarray:
        rank, world_size = self.processes.rank, self.processes.world_size
        everything = [*batches, *[batches[0]] * (-len(batches) % world_size)]
        local_logits = torch.stack([self._logits(batch) for batch in everything[rank::world_size]])
        if isinstance(self.processes, Peers):
            all_logits = self.processes.gather_numbers(local_logits.flatten()).view(world_size, *local_logits.shape)
            local_logits = all_logits.transpose(0, 1).flatten(0, 1)[: len(batches)]
        return local_logits.flatten(0, 1).numpy()

    @torch.no_grad()
    def _logits(self, batch: Batch) -> Tensor:
        self.model.eval()
        return self._fitting(
            batch, lambda: torch.cat([self._forward(part).float().cpu() for part in self._parts(batch)])
        )

    # ---- state -----------------------------------------------------------------------------------------------

    def read(self) -> TrainState:
        return replace(self.weights.read(self._step), loss_scale=self.scaling() or None)

    def write(self, state: TrainState) -> None:
        header = json.dumps([state.step, bool(state.moments), state.earlier_updates, state.loss_scale])
        self._step, with_moments, earlier, scale = json.loads(self.processes.broadcast(header.encode()))
        received = TrainState(self._step, state.parameters, state.moments, earlier, scale)
        self._first_bad = torch.full_like(self._first_bad, NEVER)  # a step after that may have been bad
        if self.loss_scale:
            self.loss_scale.write(scale)
        self.weights.write(received, moments=with_moments)

    @property
    def report(self) -> dict[str, object]:
        if self.device != "cuda":
            return {}
        return {"memory_bytes": {"peak": torch.cuda.max_memory_allocated(), "there": torch.cuda.mem_get_info()[1]}}

    @contextmanager
    def profile(self, folder: str) -> Iterator[object]:
        """Writes `trace.json`, for Perfetto or chrome://tracing."""
        with torch.profiler.profile() as profiler:
            yield profiler
        os.makedirs(folder, exist_ok=True)
        profiler.export_chrome_trace(os.path.join(folder, "trace.json"))
