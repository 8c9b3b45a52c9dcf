"""The JAX engine: TPU slices, and virtual devices of a CPU for tests.

The host only feeds batches: an update is one compiled program (`step.py`), and nothing in it waits for the host. Its
results stay on the devices until a number is read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
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
    NO_RUN,
    AtOnce,
    EvalStats,
    LabelScores,
    RunFacts,
    ScaleState,
    StepStats,
    TrainState,
    fewer_at_once,
    not_finite,
    one_row_too_long,
)
from maskwright.engines.ceiling import Products, gemm_ceiling
from maskwright.engines.jax.layout import AXIS
from maskwright.engines.jax.optimizers import rates_of
from maskwright.engines.jax.processes import connect
from maskwright.engines.jax.step import BATCH_FIELDS, EVERYWHERE, NO_BAD_STEP, OF_DEVICES, Program
from maskwright.model.config import NEVER_PREDICTED, ModelConfig
from maskwright.model.jax.networks import Stacked, stack, unstack

_product = jax.jit(jnp.matmul, static_argnames="precision")
"""Compiled once for all measurements of its shape."""


def plain_products(dtype: str) -> float:
    """FLOP/s of plain products on one device."""
    device = jax.local_devices()[0]
    # An accelerator finishes one product before the host has asked for the next.
    copies, precision = 1 if device.platform == "cpu" else 32, "highest" if dtype == "float32" else None

    def products(m: int, k: int, n: int) -> Products:
        a, b = (jax.device_put(jnp.ones(shape, dtype), device) for shape in ((copies * m, k), (k, n)))

        def timed(count: int) -> float:
            begin = time.perf_counter()
            for _ in range(count):
                _product(a, b, precision=precision).block_until_ready()
            return time.perf_counter() - begin

        return timed

    return copies * gemm_ceiling(products)


class JaxEngine:
    """See `base.Engine`. Dropout is keyed by (seed, step, virtual worker), on any number of devices."""

    compiled = leaves_host_free = True
    by_mkl: bool | None = None
    waiting: Callable[[], AbstractContextManager[object]] | None = None  # a step is one program

    def __init__(
        self, model: ModelConfig, optimizer: Optimizer, engine: EngineSection, seed: int, facts: RunFacts = NO_RUN
    ) -> None:
        self.device, devices, self.processes = connect(engine)
        self.program = Program.of(model, optimizer, engine, devices, seed=seed, label_smoothing=facts.label_smoothing)
        self.dtype_name, self.dp_degree = self.program.layout.dtype.name, len(devices)
        self._local = [i for i, device in enumerate(devices) if device.process_index == jax.process_index()]
        self.at_once = AtOnce()
        self.compiles: list[dict[str, Any]] = []
        self._programs: dict[Any, Any] = {}
        self._step = self._earlier_updates = 0
        self._state: dict[str, Any] = {}
        self._vote: Array | int = 0
        hosts = f" on {self.processes.world_size} hosts" if self.processes.world_size > 1 else ""
        self.description = (
            f"JAX {jax.__version__} on {self.dp_degree} x {self.program.layout.chip}{hosts}, {self.dtype_name}, "
            f"{'fully sharded' if engine.sharding == 'fsdp' else 'sharded state'}"
        )

    def program_like(self, batch: Batch) -> Program:
        """The program for rows that are read as in `batch`, in parts if they do not fit in memory at once."""
        return replace(self.program, causal=batch.causal, parts=len(batch.input_ids) // self._rows_at_once(batch))

    def _rows_at_once(self, batch: Batch) -> int:
        M = len(batch.input_ids)
        return largest_divisor(M, self.at_once.of(M))

    def use_rope_theta(self, theta: float) -> None:
        if theta != self.program.model.rope_theta:  # called at each step
            self.program = replace(self.program, model=replace(self.program.model, rope_theta=theta))

    def local_virtual_workers(self, virtual_workers: int) -> list[int]:
        each = shared_out(virtual_workers, self.dp_degree, "devices")
        return [a * self.dp_degree + d for a in range(each) for d in self._local]

    def ceiling(self) -> float:
        chips = 1 if self.device == "cpu" else self.dp_degree  # virtual devices share cores
        return chips * plain_products(self.dtype_name)

    # ---- one update ------------------------------------------------------------------------------------------

    def dry_run(self, batches: Sequence[Batch], held_out: Sequence[Batch]) -> None:
        """Compiles both programs and runs neither: the compiler reports what a TPU's memory lacks."""
        self._run("update", self._state, batches, *self._scalars(0.0, 0), compile_only=True)
        if held_out:
            self._run("score", self._state["parameters"], self._own(held_out), compile_only=True)

    def step(
        self, batches: Sequence[Batch], learning_rate: float, give_up: Callable[[], bool] = lambda: False, vote: int = 0
    ) -> StepStats | None:
        if self.processes.world_size == 1 and give_up():
            return None  # with several ranks, none can skip a step alone
        self._state, stats = self._run("update", self._state, batches, *self._scalars(learning_rate, vote))
        self._step += 1
        # The vote of the step before, since the host does not wait for this step's and is at most one step ahead.
        previous_vote, self._vote = self._vote, stats["vote"]
        agreed = vote if self.processes.world_size == 1 else int(previous_vote)
        for number in stats.values():
            number.copy_to_host_async()
        return StepStats(**stats | {"vote": agreed})

    def _scalars(self, learning_rate: float, vote: int) -> tuple[Array, Array, Array]:
        """The arguments of `Program.update` after the batches."""
        rates = rates_of(self.program.optimizer, learning_rate, self._earlier_updates + self._step + 1)
        return (
            self._everywhere(rates),
            self._everywhere(np.array(self._step, np.int32)),
            self._everywhere(np.full(len(self._local), vote, np.int32), PartitionSpec(AXIS)),
        )

    def check(self) -> None:
        bad = float(self._state["first_bad"])
        if bad < self._step:
            raise not_finite(int(bad))

    def evaluate(self, batches: Sequence[Batch]) -> EvalStats:
        weights = np.concatenate([batch.weights for batch in batches])
        losses, right = self._by_position("score", batches).astype(np.float64).T
        return EvalStats(float(weights @ losses), float(weights.sum()), float(weights @ right))

    def log_probs(self, batches: Sequence[Batch]) -> LabelScores:
        weighted = np.concatenate([batch.weights for batch in batches]) > 0
        scores = self._by_position("score", batches)[weighted]
        return -scores[:, 0], scores[:, 1] > 0

    def predict(self, batches: Sequence[Batch]) -> np.ndarray:
        return self._by_position("predict", batches)

    def _by_position(self, what: str, batches: Sequence[Batch]) -> np.ndarray:
        """[len(batches) * K, C] from a program that returns [A, 1, K, C] on each device."""
        outputs = self._run(what, self._state["parameters"], self._own(batches))
        outputs = np.asarray(multihost_utils.process_allgather(outputs, tiled=True))
        A, N, K, C = outputs.shape
        return outputs.reshape(A * N * K, C)[: len(batches) * K]

    def _own(self, batches: Sequence[Batch]) -> list[Batch]:
        """This process's share of all ranks' batches, filled up with the first, whose outputs are left out."""
        everything = list(batches) + [batches[0]] * (-len(batches) % self.dp_degree)
        return [everything[i] for i in self.local_virtual_workers(len(everything))]

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
        """Puts this process's micro-batches on its devices, in the order of their virtual workers -> [A, N, …]: virtual
        worker a * N + n is micro-batch a of device n."""
        if any(batch.causal is False and batch.reads_causally for batch in batches):
            raise ValueError("a row is read causally in a batch that says that none is: it would see later tokens")
        arrays = {name: np.stack([getattr(batch, name) for batch in batches]) for name in BATCH_FIELDS}
        of_devices = {name: a.reshape(-1, len(self._local), *a.shape[1:]) for name, a in arrays.items()}
        return {name: self._everywhere(array, OF_DEVICES) for name, array in of_devices.items()}

    def _everywhere(self, local: np.ndarray, spec: PartitionSpec = EVERYWHERE) -> Array:
        """The array of all processes, from this process's part."""
        return jax.make_array_from_process_local_data(self.program.sharding(spec), local)

    def _compiled(self, what: str, arguments: tuple[Any, ...], batch: Batch, *, expected: bool) -> Any:
        """The program for exactly these shapes and for micro-batches that are read like `batch`, compiled and recorded
        if it is new, with a warning if that is not `expected`."""
        sizes = {name: tuple(arguments[1][name].shape) for name in BATCH_FIELDS}
        program = self.program_like(batch)
        key = (what, program.model.rope_theta, program.way(batch.input_ids.shape[1]), program.parts, *sizes.values())
        if key not in self._programs:
            began = time.perf_counter()
            self._programs[key] = program.jitted(what).lower(*arguments).compile()
            seen = [made["shapes"] for made in self.compiles if made["what"] == what]
            if seen and sizes not in seen and not expected:
                shown = ", ".join(f"{name} {list(shape)}" for name, shape in sizes.items())
                warn(f"step {self._step}: compiling {what} again, for other shapes: {shown}")
            seconds = round(time.perf_counter() - began, 2)
            self.compiles.append({"what": what, "shapes": sizes, "seconds": seconds, "step": self._step})
        return self._programs[key]

    def _compute_fewer_at_once(self, batch: Batch, error: Exception, *, alone: bool) -> None:
        """Halves the rows at once with a warning after memory ran out. Raises `error` if it is of another kind, and
        `MaskwrightError` if nothing can be done. `alone`: a device may have run out in one process alone, whereas the
        compiler refuses in all."""
        M, T = batch.input_ids.shape
        rows = self._rows_at_once(batch)
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
        moments = {kind: unstack(self._fetch(named), self.program.model) for kind, named in kept.items()}
        parameters = unstack(self._fetch(self._state["parameters"]), self.program.model)
        return TrainState(self._step, parameters, moments, self._earlier_updates)

    def _fetch(self, named: dict[str, Array]) -> Stacked:
        """Gathers the arrays on rank 0. The other ranks take part and get nothing."""
        # One at a time in every process: a device never holds two gathered arrays, and processes that gathered several
        # in different orders would wait for each other for ever.
        gathered = ((name, multihost_utils.process_allgather(array, tiled=True)) for name, array in named.items())
        return {name: np.asarray(array) for name, array in gathered if self.processes.rank == 0}

    def write(self, state: TrainState) -> None:
        header = json.dumps([state.step, bool(state.moments), state.earlier_updates])
        self._step, with_moments, self._earlier_updates = json.loads(self.processes.broadcast(header.encode()))
        self._vote, self._state = 0, {}  # first, so that the devices never hold two states
        specs, model = self.program.state_specs, self.program.model
        self._state = {
            "parameters": self._send(stack(state.parameters, model, NEVER_PREDICTED), specs["parameters"]),
            "moments": {},
            "first_bad": self._everywhere(np.array(NO_BAD_STEP, np.int32)),
        }
        for kind, of in specs["moments"].items():
            moments = stack(state.moments[kind], model) if state.moments else {}
            self._state["moments"][kind] = self._send(moments if with_moments else None, of)

    def _send(self, stacked: Stacked | None, specs: dict[str, PartitionSpec]) -> dict[str, Array]:
        """Gives each process's devices their part of rank 0's arrays; None is zero everywhere."""
        result: dict[str, Array] = {}
        for name, spec in specs.items():
            shape = self.program.layout.shapes[name]
            array = stacked[name] if stacked and name in stacked else np.zeros(shape, np.float32)
            if stacked is not None and self.processes.world_size > 1:
                array = np.asarray(multihost_utils.broadcast_one_to_all(array))
            result[name] = jax.make_array_from_callback(shape, self.program.sharding(spec), array.__getitem__)
        return result

    @property
    def report(self) -> dict[str, object]:
        return {"compiles": self.compiles, "memory_bytes": self._memory()}

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
