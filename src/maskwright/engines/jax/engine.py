"""The JAX engine: TPU slices, and virtual devices of a CPU for tests.

The host only feeds batches: an update is one compiled program (`step.py`), and nothing in it waits for the host. Its
results stay on the devices until a number is read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec

from maskwright.config.pretraining import EngineSection, Optimizer, shared_out
from maskwright.core.console import warn
from maskwright.core.errors import MaskwrightError
from maskwright.core.library_errors import is_out_of_memory
from maskwright.data.batch import Batch
from maskwright.engines.base import (
    AtOnce,
    EvalStats,
    LabelScores,
    ScaleState,
    StepStats,
    TrainState,
    fewer_at_once,
    not_finite,
    one_row_too_long,
)
from maskwright.engines.ceiling import Products, gemm_ceiling
from maskwright.engines.jax import optimizers
from maskwright.engines.jax.layout import AXIS, ShardingLayout
from maskwright.engines.jax.optimizers import Rates
from maskwright.engines.jax.processes import connect
from maskwright.engines.jax.step import BATCH_FIELDS, EVERYWHERE, NO_BAD_STEP, Program, arrange
from maskwright.model.config import NEVER_PREDICTED, ModelConfig
from maskwright.model.jax.networks import Stacked, shapes, stack, unstack


@dataclass(frozen=True)
class Compiled:
    """The record of one compiled program."""

    what: str
    shapes: dict[str, tuple[int, ...]]
    seconds: float
    step: int


DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
_product = jax.jit(jnp.matmul, static_argnames="precision")
"""Compiled once for all measurements of its shape."""


def choose_dtype(wanted: str, device: str) -> str:
    """`auto` is fp32 on a CPU, where XLA's bf16 products are slower (0.8 times on 2 Zen 5 cores), else bf16."""
    return wanted if wanted != "auto" else "fp32" if device == "cpu" else "bf16"


def plain_products(device: jax.Device | None, dtype: str) -> float:
    """FLOP/s of plain products on a device; None for the first one."""
    device, name = device or jax.local_devices()[0], DTYPES[dtype]
    # An accelerator finishes one product before the host has requested the next.
    copies, precision = 1 if device.platform == "cpu" else 32, "highest" if dtype == "fp32" else None

    def products(m: int, k: int, n: int) -> Products:
        a, b = (jax.device_put(jnp.ones(shape, name), device) for shape in ((copies * m, k), (k, n)))

        def timed(count: int) -> float:
            begin = time.perf_counter()
            for _ in range(count):
                _product(a, b, precision=precision).block_until_ready()
            return time.perf_counter() - begin

        return timed

    return copies * gemm_ceiling(products)


class JaxEngine:
    """See `base.Engine`. Dropout is keyed by (seed, step, virtual worker), on any number of devices."""

    leaves_host_free = True
    by_mkl: bool | None = None

    def __init__(
        self,
        model: ModelConfig,
        optimizer: Optimizer,
        engine: EngineSection,
        seed: int,
        *,
        label_smoothing: float = 0.0,
    ) -> None:
        self.config, self.optimizer_config = model, optimizer
        platform, devices, self.processes = connect(engine)
        self.device: str = platform
        dtype = choose_dtype(engine.dtype, platform)
        self._dtype, self.dtype_name = dtype, DTYPES[dtype]
        self.compiled = True
        layout = ShardingLayout.of(
            devices, shapes(model), fsdp=engine.sharding == "fsdp", dtype=jnp.dtype(self.dtype_name)
        )
        self.program = Program(model, optimizer, layout, platform, seed=seed, label_smoothing=label_smoothing)
        self.dp_degree = layout.devices
        self._local = [i for i, device in enumerate(devices) if device.process_index == jax.process_index()]
        self.at_once = AtOnce()
        self.waiting: Callable[[], AbstractContextManager[object]] | None = None  # a step is one program
        self.compiles: list[Compiled] = []
        self._programs: dict[Any, Any] = {}
        self._step = self._earlier_updates = 0
        self._state: dict[str, Any] = {}
        self._vote: Array | None = None
        self._gather = jax.jit(lambda array: array, out_shardings=self.program.sharding(EVERYWHERE))
        hosts = f" on {self.processes.world_size} hosts" if self.processes.world_size > 1 else ""
        self.description = (
            f"JAX {jax.__version__} on {layout.devices} x {devices[0].device_kind}{hosts}, {self.dtype_name}, "
            f"{'fully sharded' if engine.sharding == 'fsdp' else 'sharded state'}"
        )

    def program_like(self, batch: Batch) -> Program:
        """The program for rows that are read as in `batch`."""
        return replace(self.program, causal=batch.causal)

    def use_rope_theta(self, theta: float) -> None:
        if theta != self.program.model.rope_theta:  # called at each step
            self.program = replace(self.program, model=replace(self.program.model, rope_theta=theta))

    def local_virtual_workers(self, virtual_workers: int) -> list[int]:
        each = shared_out(virtual_workers, self.dp_degree, "devices")
        return [a * self.dp_degree + d for a in range(each) for d in self._local]

    def ceiling(self) -> float:
        chips = 1 if self.device == "cpu" else self.dp_degree  # virtual devices share cores
        return chips * plain_products(self.program.layout.mesh.local_devices[0], self._dtype)

    # ---- one update ------------------------------------------------------------------------------------------

    def dry_run(self, batches: Sequence[Batch], held_out: Sequence[Batch]) -> None:
        """Compiles both programs and runs neither: the compiler reports what a TPU's memory lacks."""
        self._run("update", self._state, batches, *self._scalars(0.0, 0), compile_only=True)
        if held_out:
            self._run("evaluate", self._state["parameters"], self._own(held_out), compile_only=True)

    def step(
        self,
        batches: Sequence[Batch],
        learning_rate: float,
        give_up: Callable[[], bool] = lambda: False,
        vote: int = 0,
    ) -> StepStats | None:
        if self.processes.world_size == 1 and give_up():
            return None  # with several ranks, none can skip a step alone
        self._state, stats = self._run("update", self._state, batches, *self._scalars(learning_rate, vote))
        self._step += 1
        # The vote of the step before, since the host does not wait for this step's and is at most one step ahead.
        previous_vote, self._vote = self._vote, stats["vote"]
        known = 0 if previous_vote is None else int(previous_vote)
        agreed = vote if self.processes.world_size == 1 else known
        for number in stats.values():
            number.copy_to_host_async()
        return StepStats(stats["loss_sum"], stats["weight"], stats["grad_norm"], agreed, stats["first_bad"])

    def _scalars(self, learning_rate: float, vote: int) -> tuple[Array, Array, Array]:
        """The arguments of `Program.update` after the batches."""
        rates = Rates.of(self.optimizer_config, learning_rate, self._earlier_updates + self._step + 1)
        return (
            self._everywhere(np.array(rates, np.float32)),
            self._everywhere(np.array(self._step, np.int32)),
            self._everywhere(np.full(len(self._local), vote, np.int32), PartitionSpec(AXIS)),
        )

    def check(self, stats: StepStats | None = None) -> None:
        bad = float(stats.first_bad if stats else self._state["first_bad"])
        if bad < self._step:
            raise not_finite(int(bad))

    def evaluate(self, batches: Sequence[Batch]) -> EvalStats:
        sums = self._run("evaluate", self._state["parameters"], self._own(batches))
        return EvalStats(*map(float, np.asarray(sums)))

    def log_probs(self, batches: Sequence[Batch]) -> LabelScores:
        weighted = np.concatenate([batch.weights for batch in batches]) > 0
        scores = self._by_position("log_probs", batches)[weighted]
        return -scores[:, 0], scores[:, 1] > 0

    def predict(self, batches: Sequence[Batch]) -> np.ndarray:
        return self._by_position("predict", batches)

    def _by_position(self, what: str, batches: Sequence[Batch]) -> np.ndarray:
        """[len(batches) * K, C] from a program that returns [A, 1, K, C]."""
        outputs = self._run(what, self._state["parameters"], self._own(batches))
        # [A * parts, N, K / parts, C] -> [A, N, K, C]: see `_put`
        parts = len(outputs) * self.dp_degree // (len(batches) + -len(batches) % self.dp_degree)
        whole = np.asarray(self._gather(outputs)).reshape(-1, parts, *outputs.shape[1:]).swapaxes(1, 2)
        A, N, _, K, C = whole.shape
        return whole.reshape(A * N, parts * K, C)[: len(batches)].reshape(-1, C)

    def _own(self, batches: Sequence[Batch]) -> list[Batch]:
        """This process's share of all ranks' batches, filled up with blank ones."""
        blank = [replace(batches[0], weights=np.zeros_like(batches[0].weights))]
        everything = list(batches) + blank * (-len(batches) % self.dp_degree)
        return [batch for i, batch in enumerate(everything) if i % self.dp_degree in self._local]

    def _run(self, what: str, state: Any, batches: Sequence[Batch], *rest: Array, compile_only: bool = False) -> Any:
        while True:
            compiled = False
            try:
                arguments = (state, self._put(batches), *rest)
                program = self._compiled(what, arguments, batches[0], expected=compile_only)
                compiled = True
                return None if compile_only else program(*arguments)
            except (jax.errors.JaxRuntimeError, MemoryError) as error:
                self._compute_fewer_at_once(batches[0], error, alone=compiled)

    def _put(self, batches: Sequence[Batch]) -> dict[str, Array]:
        """Puts this process's micro-batches on its devices, in parts when they do not fit at once."""
        if any(batch.causal is False and batch.reads_causally for batch in batches):
            raise ValueError("a row is read causally in a batch without causal rows, so it would see later tokens")
        M, local = len(batches[0].input_ids), len(self._local)
        size = largest_divisor(M, self.at_once.of(M))
        if size < M:
            rounds = [batches[i : i + local] for i in range(0, len(batches), local)]
            batches = [batch.part(i, i + size) for round_ in rounds for i in range(0, M, size) for batch in round_]
        arrays = arrange(batches, local)
        return {name: self._everywhere(arrays[name], PartitionSpec(None, AXIS)) for name in BATCH_FIELDS}

    def _everywhere(self, local: np.ndarray, spec: PartitionSpec = EVERYWHERE) -> Array:
        """The array of all processes, from this process's part."""
        return jax.make_array_from_process_local_data(self.program.sharding(spec), local)

    def _compiled(self, what: str, arguments: tuple[Any, ...], batch: Batch, *, expected: bool) -> Any:
        """The program for exactly these shapes and for micro-batches that are read like `batch`, compiled and recorded
        if it is new, with a warning if that is not `expected`."""
        sizes = {name: tuple(arguments[1][name].shape) for name in BATCH_FIELDS}
        (M, T), like = batch.input_ids.shape, self.program_like(batch)
        key = (what, like.model.rope_theta, like.way(T), *sizes.values())
        if key not in self._programs:
            program = replace(like, parts=M // sizes["input_ids"][2])
            began = time.perf_counter()
            self._programs[key] = program.jitted(what).lower(*arguments).compile()
            if not expected and any(compiled.what == what for compiled in self.compiles):
                shown = ", ".join(f"{name} {list(shape)}" for name, shape in sizes.items())
                warn(f"step {self._step}: compiling {what} again, for other shapes: {shown}")
            self.compiles.append(Compiled(what, sizes, round(time.perf_counter() - began, 2), self._step))
        return self._programs[key]

    def _compute_fewer_at_once(self, batch: Batch, error: Exception, *, alone: bool) -> None:
        """Halves the rows at once with a warning after memory ran out. Raises `error` if it is of another kind, and
        `MaskwrightError` if nothing can be done. `alone`: a device may have run out in one process alone, whereas the
        compiler refuses in all."""
        M, T = batch.input_ids.shape
        rows = largest_divisor(M, self.at_once.of(M))
        if not is_out_of_memory(error):
            raise error
        gone = any(array.is_deleted() for array in jax.tree.leaves(self._state))
        if gone or (alone and self.processes.world_size > 1):
            raise MaskwrightError(
                "out of memory in the middle of an update, which cannot be repeated"
                + ("" if gone else " in one process alone"),
                where=self.device,
                fix="raise batch.virtual_workers and, in pretraining, lower batch.micro_batch_rows in a new run that "
                "begins from an export of this one",
            ) from None
        if rows == 1:
            raise one_row_too_long(T, self.device) from None
        fewer = largest_divisor(M, rows // 2)
        self.at_once = self.at_once._replace(rows=fewer)
        warn(fewer_at_once(rows, fewer, T))

    # ---- state -----------------------------------------------------------------------------------------------

    def scaling(self) -> ScaleState:
        return {}

    def read(self) -> TrainState:
        kept = self._state["moments"] if self._step + self._earlier_updates else {}
        moments = {kind: unstack(self._fetch(named), self.config) for kind, named in kept.items()}
        parameters = unstack(self._fetch(self._state["parameters"]), self.config)
        return TrainState(self._step, parameters, moments, self._earlier_updates)

    def _fetch(self, named: dict[str, Array]) -> Stacked:
        """Gathers the arrays on rank 0. The other ranks take part and get nothing."""
        result: Stacked = {}
        for name, array in named.items():
            if self.processes.world_size > 1 and not array.is_fully_replicated:
                # One at a time in every process, so that a device never holds two gathered arrays, and so that
                # processes do not wait for each other for ever by gathering in different orders.
                array = self._gather(array).block_until_ready()
            if self.processes.rank == 0:
                result[name] = np.asarray(array)
        return result

    def write(self, state: TrainState) -> None:
        header = json.dumps([state.step, bool(state.moments), state.earlier_updates])
        self._step, with_moments, self._earlier_updates = json.loads(self.processes.broadcast(header.encode()))
        self._vote, self._state = None, {}  # first, so that the devices never hold two states
        self._state = {
            "parameters": self._send(stack(state.parameters, self.config, NEVER_PREDICTED), self.program.layout.shapes),
            "moments": {},
            "first_bad": self._everywhere(np.array(NO_BAD_STEP, np.int32)),
        }
        names = optimizers.moment_names(self.optimizer_config.kind, self.program.layout.shapes)
        for kind, of in names.items():
            moments = stack(state.moments[kind], self.config) if state.moments else {}
            self._state["moments"][kind] = self._send(moments if with_moments else None, of)

    def _send(self, stacked: Stacked | None, names: Iterable[str]) -> dict[str, Array]:
        """Gives each process's devices their part of each array; None is zero everywhere."""
        result: dict[str, Array] = {}
        for name in names:
            shape = self.program.layout.shapes[name]
            array_of_rank0 = (stacked or {}).get(name)
            array = np.zeros(shape, np.float32) if array_of_rank0 is None else array_of_rank0
            if stacked is not None and self.processes.world_size > 1:
                array = np.asarray(multihost_utils.broadcast_one_to_all(array))
            sharding = self.program.sharding(self.program.layout.spec(name))
            result[name] = jax.make_array_from_callback(shape, sharding, array.__getitem__)
        return result

    @property
    def report(self) -> dict[str, object]:
        return {"compiles": [asdict(compiled) for compiled in self.compiles], "memory_bytes": self._memory()}

    def _memory(self) -> list[dict[str, int]]:
        """Bytes in use, at the peak, and in total, for each of this host's devices that reports them."""
        names = {"bytes_in_use": "in_use", "peak_bytes_in_use": "peak", "bytes_limit": "there"}
        all_stats = (device.memory_stats() or {} for device in self.program.layout.mesh.local_devices)
        return [{name: stats[key] for key, name in names.items() if key in stats} for stats in all_stats]

    def profile(self, folder: str) -> AbstractContextManager[object]:
        """Writes a trace for TensorBoard's profile page and Perfetto."""
        return jax.profiler.trace(folder, create_perfetto_trace=False)


def largest_divisor(number: int, limit: int) -> int:
    return max(d for d in range(1, min(number, limit) + 1) if number % d == 0)
