"""The torch engine: on the CPU or a CUDA device, one for each process.

Here are the devices, the micro-batches and the health of an update; `torch_weights.py` has what it changes.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import astuple, dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor

from maskwright.core import config as run
from maskwright.core import hardware
from maskwright.core.console import warn
from maskwright.core.errors import ConfigError, MaskwrightError
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
from maskwright.engines.processes import launch_variables
from maskwright.engines.torch.processes import Peers, connect, gather_into
from maskwright.engines.torch.weights import Replicated, Weights
from maskwright.model.config import ModelConfig
from maskwright.model.torch.attention import Borders, segment_borders, takes_borders
from maskwright.model.torch.networks import make_network, masked_lm_loss

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


def require_shardable(optimizer: run.Optimizer, engine: run.Engine, compiled: bool) -> None:
    where = "engine.sharding fsdp"
    if engine.reproducibility == "exact":
        raise ConfigError(
            "sums gradients in the order of the backend", where=where, fix="say engine.reproducibility: fast, too"
        )
    if optimizer.kind == "muon":
        fix = "take optimizer.kind: adamw, or engine.sharding: data; engine.kind: jax has both"
        raise ConfigError("cuts apart the matrices that muon needs whole", where=where, fix=fix)
    if compiled:
        raise ConfigError("is not compiled", where=where, fix="say engine.compile: off")


def use_threads(engine: run.Engine, device: str) -> int:
    """How many this process computes with from here on; those of one machine share out its cores."""
    launch = launch_variables()
    # Its own share of the cores in any case: what `exact_threads` decided comes in engine.threads.
    share = cpu_threads() if device == "cpu" and (not engine.threads or (launch and launch.local_count > 1)) else 0
    threads = engine.threads or share or hardware.usable_cores()
    torch.set_num_threads(threads)
    if device == "cpu":
        hardware.keep_freed_memory()
    return threads


@cache
def cpu_threads() -> int:
    """Once: what is left to this process afterwards is its share already."""
    launch = launch_variables()
    number, count = (launch.local_number, launch.local_count) if launch else (0, 1)
    return hardware.spread_over_cores(number=number, count=count)


@dataclass(frozen=True)
class Said:
    """Of all processes: the weight of their predictions, the largest wish, and whether one is to give the step up."""

    weight: float
    wish: int
    urgent: bool


class TorchEngine:
    """See `base.Engine`. `seed` keys dropout by (seed, step, virtual worker), so a resumed run draws the same.

    `run_flops`: model FLOPs of the whole run, by which `compile: auto` decides.
    """

    def __init__(
        self, model: ModelConfig, optimizer: run.Optimizer, engine: run.Engine, seed: int, *, run_flops: float = 0.0
    ) -> None:
        self.config, self.optimizer_config, self.seed = model, optimizer, seed
        self.device = choose_device(engine.device)
        self.processes = connect(engine, self.device)
        self.spread = self.processes.count
        self.dtype = choose_dtype(engine.dtype, self.device)
        self.dtype_name = str(self.dtype).removeprefix("torch.")
        self.threads = use_threads(engine, self.device)
        torch.backends.cuda.matmul.allow_tf32 = False
        if self.device == "cuda":
            # Some CUDA kernels add in whatever order their threads come, as flash attention's backward pass does. Those
            # that have no other way are named in a warning (torch's page "Reproducibility").
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(engine.reproducibility == "exact", warn_only=True)
            # Else each new tensor is filled first, for nothing.
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        name = torch.cuda.get_device_name() if self.device == "cuda" else f"cpu, {self.threads} threads"
        compiled = choose_compile(engine.compile, self.device, run_flops)
        how = "fully sharded" if engine.sharding == "fsdp" else f"{engine.reproducibility} sums"
        several = f", {self.spread} processes, {how}" if self.spread > 1 else ""
        self.description = (
            f"torch {torch.__version__} on {name}, {self.dtype_name}, "
            f"layers {'compiled' if compiled else 'not compiled'}{several}"
        )
        self.runs_ahead = self.device == "cuda"
        # A CUDA stream may stand behind a collective operation that waits for the lost process for ever.
        self.reads_alone = engine.sharding == "data" and self.device == "cpu"
        self.rows_at_once: int | None = None
        # Fully sharded, the processes need each other for each layer, and neither can tell who waits for whom.
        self.waiting: Callable[[], AbstractContextManager[object]] | None = None
        self._step = 0
        self._first_bad = torch.tensor(2**62, device=self.device)
        self.weights: Weights
        if engine.sharding == "fsdp":
            require_shardable(optimizer, engine, compiled)
        if engine.sharding == "fsdp" and self.spread > 1:
            from maskwright.engines.torch.fsdp import Sharded

            self.model = make_network(model, "meta")
            self.weights = Sharded(self.model, model, optimizer, self.dtype, self.device, self.processes)
        else:
            self.model, exact = make_network(model, self.device), engine.reproducibility == "exact"
            self.weights = Replicated(self.model, model, optimizer, self.dtype, exact=exact, processes=self.processes)
            self.waiting = nullcontext
        if compiled:
            # A layer has a variant for each of mask or none, training or not, first or later. Beyond the limit torch
            # would go on uncompiled without a word, and a continued run might draw the line elsewhere.
            torch._dynamo.config.recompile_limit = 64
            torch._dynamo.config.fail_on_recompile_limit_hit = True
            for part in (*self.model.layers, self.model.head):
                part.compile()

    def workers(self, virtual_workers: int) -> list[int]:
        each, rest = divmod(virtual_workers, self.spread)
        if rest:
            raise ConfigError(
                f"{virtual_workers} virtual workers cannot be shared out evenly over {self.spread} processes",
                where="batch.virtual_workers",
                fix=f"take a multiple of {self.spread}, with fewer batch.micro_batch_rows for the same batch; or "
                "fewer --processes",
            )
        return list(range(self.processes.number * each, (self.processes.number + 1) * each))

    def ceiling(self) -> float:
        def multiply(m: int, k: int, n: int) -> Callable[[], object]:
            a, b = (torch.randn(shape, device=self.device).to(self.dtype) for shape in ((m, k), (k, n)))

            def once() -> None:
                a @ b
                if self.device != "cpu":
                    torch.cuda.synchronize()

            return once

        return self.spread * gemm_ceiling(multiply)

    # ---- one update ------------------------------------------------------------------------------------------

    def step(
        self,
        batches: Sequence[Batch],
        learning_rate: float,
        give_up: Callable[[], bool] = lambda: False,
        wish: int = 0,
    ) -> StepStats | None:
        own = sum(batch.predicted for batch in batches)
        said: Said | None = None

        def tell(urgent: bool) -> Said:
            """Once an update, however often its gradient is begun again."""
            nonlocal said
            if said is None:
                with (self.waiting or nullcontext)():
                    said = self._exchange(own, wish, urgent)
            return said

        losses = None
        while losses is None:
            try:
                losses = self._gradient(batches, give_up, tell)
            except (RuntimeError, MemoryError) as error:
                self._compute_fewer_at_once(batches[0], error)
        if len(losses) < len(batches):
            return None
        agreed = tell(False)
        with (self.waiting or nullcontext)():
            loss_sum = self._everyones(torch.stack(losses)).sum(dtype=torch.float64)
            weight = max(agreed.weight, 1.0)
            norm = self.weights.finish() / weight
        good = self._judge(loss_sum, norm)
        longest = self.optimizer_config.max_grad_norm
        # torch.nn.utils.clip_grad_norm_'s rule, and the one division by the weight
        scale = torch.clamp((longest or math.inf) / (norm + 1e-6), max=1.0) / weight
        self.weights.update(scale, learning_rate, good)
        self._step += 1
        return StepStats(loss_sum, agreed.weight, norm, agreed.wish)

    def _gradient(
        self, batches: Sequence[Batch], give_up: Callable[[], bool], tell: Callable[[bool], Said]
    ) -> list[Tensor]:
        """Loss sums of the micro-batches; fewer of them when given up, by all processes or none: they agree before the
        last micro-batch, the only one that sends. Who is to give up goes there at once."""
        workers = self.workers(len(batches) * self.spread)
        self.weights.begin(len(batches) * self.spread)
        losses = []
        for worker, batch in zip(workers, batches, strict=True):
            final, urgent = worker == workers[-1], give_up()
            if self.processes.count == 1:
                if urgent:
                    break
            elif (final or (urgent and not self.weights.in_step)) and tell(urgent).urgent:
                break
            losses.append(self._accumulate(batch, worker, final=final))
        return losses

    def _exchange(self, weight: float, wish: int, urgent: bool) -> Said:
        """What the processes tell each other in each step, over the hosts' own connection."""
        if not isinstance(self.processes, Peers):
            return Said(weight, wish, urgent)
        own = torch.tensor([weight, wish, self.rows_at_once or math.inf, urgent], dtype=torch.float64)
        found = self.processes.numbers(own)
        rows = found[:, 2].min().item()
        self.rows_at_once = None if math.isinf(rows) else int(rows)
        return Said(found[:, 0].sum().item(), int(found[:, 1].max()), bool(found[:, 3].any()))

    def _everyones(self, own: Tensor) -> Tensor:
        """[n] of each process -> [processes * n], by virtual worker."""
        if self.processes.count == 1:
            return own
        found = own.new_empty(self.processes.count * len(own))
        gather_into(found, own)
        return found

    def _compute_fewer_at_once(self, batch: Batch, error: Exception) -> None:
        """After running out of memory: half of the rows, aloud. Raises the error when it is another one, or when a
        single row does not fit."""
        if not is_out_of_memory(error):
            raise error
        M, T = batch.input_ids.shape
        rows = min(self.rows_at_once or M, M)
        if rows == 1:
            raise one_row_too_long(T, self.device) from None
        if self.weights.sending:
            raise MaskwrightError(
                "out of memory while the processes were summing their gradients, which cannot be begun again",
                where=self.device,
                fix="lower batch.micro_batch_rows and raise batch.virtual_workers in a new run that begins from an "
                "export of this one",
            ) from None
        self.rows_at_once = rows // 2
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

    def _accumulate(self, batch: Batch, worker: int, *, final: bool) -> Tensor:
        """Adds one micro-batch's gradient; returns its loss sum on the device."""
        if self.config.hidden_dropout_prob or self.config.attention_probs_dropout_prob:
            torch.manual_seed(int(bits.key(self.seed, DROPOUT_PURPOSE, self._step, worker) >> np.uint64(1)))
        self.model.train()
        total = torch.zeros((), device=self.device)
        parts = self._parts(batch)
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            loss = masked_lm_loss(*self._predict(part))
            self.weights.expect(first=number == 0, last=last, final=final and last)
            loss.backward()
            self.weights.take()
            total = total + loss.detach()
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
        if takes_borders(self._first_bad.device, self.dtype, width, dropout):
            segments = Borders(put(segment_borders(batch.segment_ids)), batch.segment_ids.shape[1])
        logits = self.model(put(batch.input_ids), put(batch.position_ids), segments, put(batch.predict_index))
        return logits, put(batch.labels).long(), put(batch.weights)

    def evaluate(self, batches: Sequence[Batch]) -> EvalStats:
        if not isinstance(self.processes, Peers):
            return sum((self._evaluate(batch) for batch in batches), EvalStats())
        # As many in each process: in a forward pass they may wait for each other.
        blank = replace(batches[0], weights=np.zeros_like(batches[0].weights))
        everything = [*batches, *[blank] * (-len(batches) % self.spread)]
        own = [self._evaluate(batch) for batch in everything[self.processes.number :: self.spread]]
        found = self.processes.numbers(torch.tensor([astuple(stats) for stats in own], dtype=torch.float64))
        return sum((EvalStats(*stats) for stats in found.transpose(0, 1).flatten(0, 1).tolist()), EvalStats())

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
        return self.weights.read(self._step)

    def write(self, state: TrainState) -> None:
        header = json.loads(self.processes.share(json.dumps([state.step, bool(state.moments)]).encode()))
        self._step, with_moments = header
        self.weights.write(TrainState(self._step, state.parameters, state.moments), moments=with_moments)

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
        self.weights.drop()
        if self.device == "cuda":
            torch.cuda.empty_cache()
