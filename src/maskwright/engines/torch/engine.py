"""The torch engine: one CPU or CUDA device for each process.

This file has an update and its health. `passes.py` computes a batch, `fit.py` as much of it at once as memory holds,
`scorer.py` without training; `weights.py` holds the state that an update changes; `prepare.py` picks device, dtype and
threads.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from maskwright.config import pretraining as run
from maskwright.config.pretraining import shared_out
from maskwright.core.console import several
from maskwright.core.errors import MaskwrightError
from maskwright.data import bits
from maskwright.data.batch import Batch
from maskwright.engines.base import (
    DROPOUT_PURPOSE,
    NO_RUN,
    AtOnce,
    EvalStats,
    LabelScores,
    RunFacts,
    ScaleState,
    StepStats,
    TrainState,
    not_finite,
)
from maskwright.engines.ceiling import gemm_ceiling
from maskwright.engines.torch.arriving import arriving
from maskwright.engines.torch.fit import Fit
from maskwright.engines.torch.graphs import Graphs
from maskwright.engines.torch.levels import gather_into
from maskwright.engines.torch.loss_scale import LossScale, scale_too_small
from maskwright.engines.torch.passes import Passes
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
)
from maskwright.engines.torch.processes import Peers, Sums, connect
from maskwright.engines.torch.scorer import Scorer
from maskwright.model.config import ModelConfig

NEVER = 2**62
"""A step that no run reaches."""


class TorchEngine:
    """See `base.Engine`. `seed` keys dropout by (seed, step, virtual worker), so a resumed run drops the same."""

    def __init__(
        self,
        model: ModelConfig,
        optimizer: run.Optimizer,
        engine: run.EngineSection,
        seed: int,
        facts: RunFacts = NO_RUN,
    ) -> None:
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
        self.compiled = choose_compile(engine.compile, self.device, facts.flops)
        self.asynchronous = self.device == "cuda"
        self._step = 0
        self._first_bad = torch.tensor(NEVER, device=self.device)
        self.loss_scale = LossScale(facts.micro_batch_losses, self.device) if self.dtype is torch.float16 else None
        self.model, self.weights = prepare(
            model,
            optimizer,
            engine,
            device=self.device,
            dtype=self.dtype,
            processes=self.processes,
            compiled=self.compiled,
            facts=facts,
        )
        self.by_mkl = self.model.by_mkl if self.device == "cpu" else None
        # Fine-tuning has too many shapes for a graph of each.
        graphs = self.device == "cuda" and model.task == "masked_lm" and not self.loss_scale
        made = Graphs() if graphs else None
        self.fit = Fit(self.device, engine.activation_checkpointing, made)
        self.passes = Passes(
            self.model,
            self.weights,
            self.dtype,
            label_smoothing=facts.label_smoothing,
            loss_scale=self.loss_scale,
            fills_up=self.compiled and self.device == "cuda" and model.task == "masked_lm",
        )
        self._scorer = Scorer(self.passes, self.fit, self.processes, lambda: (self.waiting or nullcontext)())
        self.waiting: Callable[[], AbstractContextManager[object]] | None = nullcontext
        self.description = self._describe(engine)

    def _describe(self, engine: run.EngineSection) -> str:
        place = f"{self.device}, {several(self.threads, 'thread')}"
        variable = os.environ.get("OMP_NUM_THREADS", "")
        if self.dp_degree == 1 and variable not in ("", str(self.threads)):  # torchrun sets it for several
            place += f" (OMP_NUM_THREADS={variable} has no effect: engine.threads or taskset decides)"
        name = torch.cuda.get_device_name() if self.device == "cuda" else place
        costs = what_dtype_costs(self.dtype, self.device, asked=engine.dtype)
        ranks = f", {self.dp_degree} processes" if self.dp_degree > 1 else ""
        layers = ("compiled" if self.compiled else "not compiled") + ", in CUDA graphs" * self.fit.by_graph
        layers += ", gradients of matrices by MKL in fp32" * self.model.by_mkl
        if self.device == "cuda":
            width = self.config.hidden_size // self.config.num_attention_heads
            kernel = "plain products, with relative positions"
            if not self.config.facts.relative:
                kernel = attention_kernel(self.device, self.dtype, width, self.config.attention_probs_dropout_prob)
            layers += f", attention: {kernel}, products summed in fp32"
        return f"torch {torch.__version__} on {name}, {self.dtype_name}{costs}, layers {layers}{ranks}"

    @property
    def at_once(self) -> AtOnce:
        return self.fit.at_once

    @at_once.setter
    def at_once(self, at_once: AtOnce) -> None:
        self.fit.at_once = at_once

    @property
    def leaves_host_free(self) -> bool:
        return self.fit.by_graph and self.processes.world_size == 1

    def use_rope_theta(self, theta: float) -> None:
        if theta != self.model.config.rope_theta:  # this is called at each step
            self.model.config = replace(self.model.config, rope_theta=theta)

    def local_virtual_workers(self, virtual_workers: int) -> list[int]:
        each = shared_out(virtual_workers, self.dp_degree, "processes")
        return list(range(self.processes.rank * each, (self.processes.rank + 1) * each))

    def ceiling(self) -> float:
        return self.dp_degree * gemm_ceiling(partial(products, self.device, self.dtype))

    # ---- one update ------------------------------------------------------------------------------------------

    def dry_run(self, batches: Sequence[Batch], held_out: Sequence[Batch]) -> None:
        """Tries one micro-batch of each kind: the others have its shapes. `begin` first allocates the moments and the
        buffers of all micro-batches. Several ranks then compute an update of a micro-batch each, up to its sums:
        messages need memory as well as the activations. All have compiled when they begin to send."""

        def train() -> None:
            self.weights.begin(len(batches) * self.dp_degree)
            self._accumulate(batches[0], self.processes.rank, final=False)

        def send() -> None:
            self.weights.begin(self.dp_degree)
            self._accumulate(batches[0], self.processes.rank, final=True)
            self.weights.finish()

        try:
            self.fit.run(batches[0], train)
            for batch in held_out[:1]:
                self._scorer.sums(batch)
            if self.processes.world_size > 1:
                self.exchange(0.0, 0, False)()
                self.fit.run(batches[0], send, lambda: self.weights.gradients.sending)
        except RuntimeError as error:
            if "use_deterministic_algorithms" not in str(error):  # torch gives it no class of its own
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
        asked: list[Callable[[], Sums]] = []

        def exchange(urgent: bool = False) -> Callable[[], Sums]:
            """Begins the single exchange of an update, even if its gradient is computed again."""
            if not asked:
                asked.append(self.exchange(local_weight, vote, urgent))
            return asked[0]

        losses = self.fit.run(
            batches[0], lambda: self._gradient(batches, give_up, exchange), lambda: self.weights.gradients.sending
        )
        if len(losses) < len(batches):
            return None
        sums = exchange()()
        with (self.waiting or nullcontext)():
            loss_sum = self._gathered(torch.stack(losses)).sum(dtype=torch.float64)
            weight: Tensor | float = sums.weight or 1.0  # 0 if nothing was predicted
            if self.loss_scale:
                weight = self.loss_scale.factor * weight
            norm = self.weights.finish() / weight
        good = self._judge(loss_sum, norm)
        longest = self.optimizer_config.max_grad_norm
        # torch.nn.utils.clip_grad_norm_'s rule, and the one division by the weight and the loss scale
        scale = torch.clamp((longest or math.inf) / (norm + 1e-6), max=1.0) / weight
        if self.asynchronous or good is None or good:
            self.weights.update(scale, learning_rate, good if self.asynchronous else None)
            with (self.waiting or nullcontext)():
                self.weights.spread()
        self._step += 1
        loss, gradient_norm = arriving(loss_sum, norm) if self.device == "cuda" else (loss_sum, norm)
        return StepStats(loss, sums.weight, gradient_norm, sums.vote)

    def _gradient(
        self, batches: Sequence[Batch], give_up: Callable[[], bool], exchange: Callable[[bool], Callable[[], Sums]]
    ) -> list[Tensor]:
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
                sums = exchange(urgent)
                if (urgent or final) and sums().urgent:
                    break
            losses.append(self._accumulate(batch, virtual_worker, final=final))
        return losses

    def exchange(self, weight: float, vote: int, urgent: bool) -> Callable[[], Sums]:
        """Begins to sum a step's numbers over the ranks, through their hosts' connection. The function waits for them,
        and agrees on what fits."""
        if not isinstance(self.processes, Peers):
            return lambda: Sums(weight, vote, urgent)
        numbers = [weight, vote, urgent, *self.fit.numbers()]
        gathered = self.processes.begin_to_gather(torch.tensor(numbers, dtype=torch.float64))

        @cache
        def sums() -> Sums:
            with (self.waiting or nullcontext)():
                of_ranks = gathered()
            here = torch.tensor([self.fit.numbers()], dtype=torch.float64)  # what fits may be less since
            self.fit.agree(torch.cat([of_ranks[:, 3:], here]))
            return Sums(of_ranks[:, 0].sum().item(), int(of_ranks[:, 1].max()), bool(of_ranks[:, 2].any()))

        return sums

    def _gathered(self, array: Tensor) -> Tensor:
        """Gathers [n] of each rank into [world_size * n], by virtual worker."""
        if self.processes.world_size == 1:
            return array
        gathered = array.new_empty(self.processes.world_size * len(array))
        gather_into(gathered, array)
        return gathered

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

    def check(self) -> None:
        step = float(arriving(self._first_bad)[0] if self.device == "cuda" else self._first_bad)
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
        self.model.recompute = self.fit.recompute
        total = torch.zeros((), device=self.device)
        parts = self.fit.parts(batch)
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            self.weights.gradients.before_backward(first=number == 0, last=last, final=final and last)
            # Hooks send each gradient of the last backward pass to other ranks while it runs; a graph has no hooks.
            by_graph = self.fit.by_graph and (self.processes.world_size == 1 or not (final and last))
            total = total + self.passes.backward(part, self.fit.graphs if by_graph else None)
            self.weights.gradients.after_backward()
        return total

    # ---- without training ------------------------------------------------------------------------------------

    def evaluate(self, batches: Sequence[Batch]) -> EvalStats:
        return self._scorer.evaluate(batches)

    def log_probs(self, batches: Sequence[Batch]) -> LabelScores:
        return self._scorer.log_probs(batches)

    def predict(self, batches: Sequence[Batch]) -> np.ndarray:
        return self._scorer.predict(batches)

    # ---- state -----------------------------------------------------------------------------------------------

    def read(self) -> TrainState:
        # The others wait here for rank 0's disk, and not in NCCL. What fits, the same for all, is saved with the state.
        self.exchange(0.0, 0, False)()
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
