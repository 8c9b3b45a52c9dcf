"""The torch engine: CPU or one CUDA device.

Weights and moments are fp32 in flat buffers; the model multiplies in bf16 (a copy made once an update) or fp32. The
optimizers (`optimizers.py`) are a few large operations on those buffers, whatever the depth.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import numpy as np
import torch
from torch import Tensor

from maskwright.core import config as run
from maskwright.core import hardware
from maskwright.core.console import warn
from maskwright.core.errors import ConfigError
from maskwright.data import bits
from maskwright.data.batch import Batch
from maskwright.engines.base import (
    DROPOUT_PURPOSE,
    EvalStats,
    StepStats,
    TrainState,
    fewer_at_once,
    is_out_of_memory,
    not_finite,
    one_row_too_long,
)
from maskwright.engines.ceiling import gemm_ceiling
from maskwright.engines.optimizers import AdamW, Layout, Muon, numel, views
from maskwright.engines.processes import Alone, Processes
from maskwright.model.attention import Borders, segment_borders, takes_borders
from maskwright.model.config import NEVER_PREDICTED, ModelConfig
from maskwright.model.networks import assign, extract, make_network, masked_lm_loss

COMPILE_PAYS_FLOPS = 1e17
"""Of a run on a CUDA device: some five minutes of it, of which fused layers save more than the minute of compiling.
On a CPU they save nothing (docs/experiments.md)."""


def choose_device(wanted: str) -> str:
    """`auto` takes a CUDA device when there is one. Raises `ConfigError` rather than falling back."""
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "cuda was asked for, but torch sees no CUDA device",
            where="engine.device",
            fix="check the driver and that torch is a CUDA build, or say cpu",
        )
    if wanted == "tpu":
        raise ConfigError("torch does not know TPUs", where="engine.device", fix="say engine.kind: jax")
    return wanted


def require_one_device(engine: run.Engine) -> None:
    if (engine.devices or 1) > 1 or engine.sharding != "data":
        raise ConfigError(
            "engine.kind torch computes on one device",
            where="engine.devices" if (engine.devices or 1) > 1 else "engine.sharding",
            fix="leave it out, or say engine.kind: jax",
        )


def choose_dtype(wanted: str, device: str) -> torch.dtype:
    """`auto` takes bf16 where the hardware multiplies it faster; decided by its feature flags, so always the same."""
    if wanted == "auto":
        if device == "cuda":
            wanted = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
        else:
            wanted = "bf16" if hardware.cpu_multiplies_bf16_faster() else "fp32"
    return torch.bfloat16 if wanted == "bf16" else torch.float32


def choose_compile(wanted: str, device: str, run_flops: float) -> bool:
    """Decided by the whole run, not by what is left of it, so that a continued run computes as it did before.

    Raises `ConfigError` where a compiler is needed and absent.
    """
    if device == "cpu" and wanted == "on" and not (os.environ.get("CXX") or shutil.which("g++")):
        raise ConfigError("torch.compile needs a C++ compiler on a CPU", where="engine.compile", fix="install g++")
    return wanted == "on" or (wanted == "auto" and device == "cuda" and run_flops >= COMPILE_PAYS_FLOPS)


class TorchEngine:
    """See `base.Engine`. `seed` keys dropout by (seed, step, virtual worker), so a resumed run draws the same.

    `run_flops`: model FLOPs of the whole run, by which `compile: auto` decides.
    """

    def __init__(
        self, model: ModelConfig, optimizer: run.Optimizer, engine: run.Engine, seed: int, *, run_flops: float = 0.0
    ) -> None:
        self.config, self.optimizer_config, self.seed = model, optimizer, seed
        self.device = choose_device(engine.device)
        require_one_device(engine)
        self.processes: Processes = Alone()
        self.spread = 1
        self.dtype = choose_dtype(engine.dtype, self.device)
        self.dtype_name = str(self.dtype).removeprefix("torch.")
        self.threads = engine.threads or (
            hardware.spread_over_cores() if self.device == "cpu" else hardware.usable_cores()
        )
        torch.set_num_threads(self.threads)
        if self.device == "cpu":
            hardware.keep_freed_memory()
        torch.backends.cuda.matmul.allow_tf32 = False
        name = torch.cuda.get_device_name() if self.device == "cuda" else f"cpu, {self.threads} threads"
        compiled = choose_compile(engine.compile, self.device, run_flops)
        self.description = (
            f"torch {torch.__version__} on {name}, {self.dtype_name}, "
            f"layers {'compiled' if compiled else 'not compiled'}"
        )
        self.runs_ahead = self.device == "cuda"
        self.rows_at_once: int | None = None
        self._step = 0
        self._first_bad = torch.tensor(2**62, device=self.device)
        self._lay_out()
        if compiled:
            # A layer has a variant for each of mask or none, training or not, first or later. Beyond the limit torch
            # would go on uncompiled without a word, and a continued run might draw the line elsewhere.
            torch._dynamo.config.recompile_limit = 64
            torch._dynamo.config.fail_on_recompile_limit_hit = True
            for part in (*self.model.layers, self.model.head):
                part.compile()
        self._optimizers: list[AdamW | Muon] = []

    def _lay_out(self) -> None:
        """All weights in one flat fp32 buffer; the model's parameters are views of it or of its copy."""
        self.model = make_network(self.config, self.device)
        parameters = dict(self.model.named_parameters())
        self.layout = Layout.of(parameters)
        self._weights = torch.zeros(numel(self.layout.all), device=self.device)
        self._multiplied = self._weights if self.dtype is torch.float32 else self._weights.to(self.dtype)
        self._parameters = {name: parameters[name] for name in self.layout.all}
        for name, view in views(self._multiplied, self.layout.all).items():
            self._parameters[name].data = view

    def _start_optimizers(self) -> list[AdamW | Muon]:
        if not self._optimizers:
            options, layout = self.optimizer_config, self.layout
            self._gradients = torch.zeros_like(self._weights)
            self._gradient_views = views(self._gradients, layout.all)
            if self.dtype is torch.float32:
                for name, view in self._gradient_views.items():
                    self._parameters[name].grad = view
            self._optimizers = [AdamW(layout, self._weights, self._gradients, options)]
            if options.kind == "muon":
                self._optimizers.append(Muon(layout, self._weights, self._gradients, options, self.dtype))
        return self._optimizers

    def workers(self, virtual_workers: int) -> list[int]:
        return list(range(virtual_workers))

    def ceiling(self) -> float:
        def multiply(m: int, k: int, n: int) -> Callable[[], object]:
            a, b = (torch.randn(shape, device=self.device).to(self.dtype) for shape in ((m, k), (k, n)))

            def once() -> None:
                a @ b
                if self.device != "cpu":
                    torch.cuda.synchronize()

            return once

        return gemm_ceiling(multiply)

    # ---- one update ------------------------------------------------------------------------------------------

    def step(
        self,
        batches: Sequence[Batch],
        learning_rate: float,
        give_up: Callable[[], bool] = lambda: False,
        wish: int = 0,
    ) -> StepStats | None:
        weight = sum(batch.predicted for batch in batches)
        optimizers = self._start_optimizers()
        losses = None
        while losses is None:
            try:
                losses = self._gradient(batches, max(weight, 1.0), give_up)
            except (RuntimeError, MemoryError) as error:
                self._compute_fewer_at_once(batches[0], error)
        if len(losses) < len(batches):
            return None
        loss_sum = torch.stack(losses).sum(dtype=torch.float64)
        norm = torch.linalg.vector_norm(self._gradients)
        good = self._judge(loss_sum, norm)
        longest = self.optimizer_config.max_grad_norm
        if longest is not None:
            # torch.nn.utils.clip_grad_norm_'s rule, on the flat buffer
            self._gradients.mul_(torch.clamp(longest / (norm + 1e-6), max=1.0))
        for optimizer in optimizers:
            optimizer.step(learning_rate, good)
        if self._multiplied is not self._weights:
            self._multiplied.copy_(self._weights)
        self._step += 1
        return StepStats(loss_sum, weight, norm, wish)

    def _gradient(self, batches: Sequence[Batch], weight: float, give_up: Callable[[], bool]) -> list[Tensor]:
        """Loss sums of the micro-batches, whose gradient is then in the buffer; fewer of them when given up."""
        if self.dtype is torch.float32:
            self._gradients.zero_()
        losses = []
        for worker, batch in enumerate(batches):
            if give_up():
                break
            losses.append(self._accumulate(batch, worker, weight))
        return losses

    def _compute_fewer_at_once(self, batch: Batch, error: Exception) -> None:
        """After running out of memory: half of the rows, aloud. Raises the error when it is another one, or when a
        single row does not fit."""
        if not is_out_of_memory(error):
            raise error
        M, T = batch.input_ids.shape
        rows = min(self.rows_at_once or M, M)
        if rows == 1:
            raise one_row_too_long(T, self.device) from None
        self.rows_at_once = rows // 2
        for parameter in self._parameters.values():
            if self.dtype is not torch.float32:
                parameter.grad = None
        if self.device == "cuda":
            torch.cuda.empty_cache()
        warn(fewer_at_once(rows, self.rows_at_once, T))

    def _parts(self, batch: Batch) -> list[Batch]:
        M = len(batch.input_ids)
        size = self.rows_at_once or M
        return [batch] if size >= M else [batch.part(i, min(i + size, M)) for i in range(0, M, size)]

    def _judge(self, loss_sum: Tensor, norm: Tensor) -> Tensor | None:
        """Notes whether loss and gradient are finite. On a device that runs ahead, as 1 or 0 that scales this update
        and each one after it, so that nothing waits; elsewhere `HealthError` is raised here."""
        finite = torch.isfinite(loss_sum) & torch.isfinite(norm)
        self._first_bad = torch.where(finite, self._first_bad, self._first_bad.clamp(max=self._step))
        if not self.runs_ahead:
            self.check()
            return None
        return (self._first_bad > self._step).float()

    def check(self) -> None:
        step = int(self._first_bad)
        if step <= self._step:
            raise not_finite(step)

    def _accumulate(self, batch: Batch, worker: int, weight: float) -> Tensor:
        """Adds one micro-batch's gradient, already divided by the global weight; returns its loss sum on the device."""
        if self.config.hidden_dropout_prob or self.config.attention_probs_dropout_prob:
            torch.manual_seed(int(bits.key(self.seed, DROPOUT_PURPOSE, self._step, worker) >> np.uint64(1)))
        self.model.train()
        total = torch.zeros((), device=self.device)
        for number, part in enumerate(self._parts(batch)):
            loss = masked_lm_loss(*self._predict(part))
            (loss / weight).backward()
            total = total + loss.detach()
            if self.dtype is not torch.float32:
                parameters = list(self._parameters.values())
                gradients = [cast(Tensor, parameter.grad) for parameter in parameters]
                into = list(self._gradient_views.values())
                if worker == number == 0:
                    torch._foreach_copy_(into, gradients)
                else:
                    torch._foreach_add_(into, gradients)
                for parameter in parameters:
                    parameter.grad = None
        return total

    def _predict(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [K, V], labels [K] and weights [K] on the device."""

        def put(array: np.ndarray) -> Tensor:
            tensor = torch.from_numpy(array)
            if self.device == "cuda":  # from ordinary memory, a copy waits for the device
                tensor = tensor.pin_memory()
            return tensor.to(self.device, non_blocking=True)

        segments: Tensor | Borders = put(batch.segment_ids)
        dropout = self.config.attention_probs_dropout_prob if self.model.training else 0.0
        width = self.config.hidden_size // self.config.num_attention_heads
        if takes_borders(self._weights.device, self.dtype, width, dropout):
            segments = Borders(put(segment_borders(batch.segment_ids)), batch.segment_ids.shape[1])
        logits = self.model(put(batch.input_ids), put(batch.position_ids), segments, put(batch.predict_index))
        return logits, put(batch.labels).long(), put(batch.weights)

    def evaluate(self, batches: Sequence[Batch]) -> EvalStats:
        return sum((self._evaluate(batch) for batch in batches), EvalStats())

    @torch.no_grad()
    def _evaluate(self, batch: Batch) -> EvalStats:
        self.model.eval()
        while True:
            try:
                return sum((self._score(part) for part in self._parts(batch)), EvalStats())
            except (RuntimeError, MemoryError) as error:
                self._compute_fewer_at_once(batch, error)

    def _score(self, batch: Batch) -> EvalStats:
        logits, labels, weights = self._predict(batch)
        loss = masked_lm_loss(logits, labels, weights)
        correct = ((logits.argmax(-1) == labels) * weights).sum()
        return EvalStats(float(loss), float(weights.sum()), float(correct))

    # ---- state -----------------------------------------------------------------------------------------------

    def read(self) -> TrainState:
        moments = {}
        if self._step:
            for optimizer in self._optimizers:
                for kind, named in optimizer.read().items():
                    moments[kind] = extract(named, self.config)
        return TrainState(self._step, extract(views(self._weights, self.layout.all), self.config), moments)

    def write(self, state: TrainState) -> None:
        self._step = state.step
        assign(views(self._weights, self.layout.all), state.parameters, self.config, NEVER_PREDICTED)
        if self._multiplied is not self._weights:
            self._multiplied.copy_(self._weights)
        if not state.moments:
            self._optimizers = []  # those of updates that have not been made
        else:
            for optimizer in self._start_optimizers():
                for kind, named in optimizer.write(state.step, self.device).items():
                    assign(named, state.moments[kind], self.config)

    def report(self) -> dict[str, object]:
        if self.device == "cpu":
            return {}
        return {"memory_bytes": {"peak": torch.cuda.max_memory_allocated(), "there": torch.cuda.mem_get_info()[1]}}

    @contextmanager
    def profile(self, folder: str) -> Iterator[object]:
        """As `trace.json`, for Perfetto or chrome://tracing."""
        with torch.profiler.profile() as profiler:
            yield profiler
        os.makedirs(folder, exist_ok=True)
        profiler.export_chrome_trace(os.path.join(folder, "trace.json"))

    def close(self) -> None:
        self._optimizers = []
        if self.device == "cuda":
            torch.cuda.empty_cache()
