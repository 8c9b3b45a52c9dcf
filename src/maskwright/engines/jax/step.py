"""One update and one evaluation as JAX compiles them: pure functions of arrays, for any mesh.

`engine.py` runs them; `maskwright plan` compiles the same functions ahead of time for a slice that is elsewhere.

Dimensions: A micro-batches for each device in one update, N devices, M rows of T tokens and K predicted positions in
each micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from maskwright.config.pretraining import Optimizer
from maskwright.data import bits
from maskwright.data.batch import Batch
from maskwright.engines.base import DROPOUT_PURPOSE
from maskwright.engines.jax import optimizers
from maskwright.engines.jax.layout import AXIS, Platform, ShardingLayout
from maskwright.engines.jax.optimizers import Rates
from maskwright.model.config import ModelConfig
from maskwright.model.jax.attention import choose_way
from maskwright.model.jax.networks import logits, losses
from maskwright.model.jax.parts import Gather, Weights

BATCH_FIELDS = ("input_ids", "position_ids", "segment_ids", "predict_index", "labels", "weights")
EVERYWHERE = PartitionSpec()
BESIDE = (
    "xla_tpu_enable_async_all_to_all",
    "xla_enable_async_all_gather",
    "xla_tpu_enable_async_collective_fusion",
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather",
)
"""libtpu's options with which a chip computes while it sends. The last three are on by default for v5e, not for v6e."""
COMPILER_OPTIONS = {"tpu": dict.fromkeys(BESIDE, "true"), "cpu": dict[str, str]()}
NO_BAD_STEP = 2**31 - 1

State = dict[str, Any]
"""`parameters`, `moments` by kind, and `first_bad`, int32: the first step whose loss or gradient was not finite.
Neither that step nor a later one changes anything."""


@dataclass(frozen=True)
class Program:
    """What is compiled: a model, its training, its devices and its number of rows at once."""

    model: ModelConfig
    optimizer: Optimizer
    layout: ShardingLayout
    platform: Platform
    """The target platform; it decides how attention is computed."""
    parts: int = 1
    """Number of parts of a virtual worker's micro-batch; more than one if it does not fit in memory at once."""
    seed: int = 0
    label_smoothing: float = 0.0
    """Used in training only."""
    causal: bool | None = False
    """`Batch.causal` of what it computes."""

    # ---- one micro-batch, inside the mesh --------------------------------------------------------------------

    def _logits(self, weights: Weights, batch: dict[str, Array], gather: Gather, key: Array | None = None) -> Array:
        inputs = [batch[name] for name in BATCH_FIELDS[:4]]
        way = self.way(inputs[0].shape[1], self.model.attention_probs_dropout_prob if key is not None else 0.0)
        return logits(weights, self.model, *inputs, gather=gather, way=way, key=key)

    def way(self, tokens: int, dropout: float = 0.0) -> str:
        """How attention over rows of `tokens` is computed: see `model/jax/attention.py`."""
        width = self.model.hidden_size // self.model.num_attention_heads
        return choose_way(self.platform, tokens, width, dropout, self.layout.dtype, causal=self.causal)

    def _key(self, step: Array, number: Array) -> Array | None:
        """Dropout's key for one part of one micro-batch: by seed, step, virtual worker and part, with any number of
        devices."""
        if not self.model.drops:
            return None
        virtual_worker = number // self.parts * self.layout.devices + jax.lax.axis_index(AXIS)
        seed = int(bits.key(self.seed, DROPOUT_PURPOSE))
        key = jax.random.wrap_key_data(jnp.array([seed >> 32, seed & 0xFFFFFFFF], jnp.uint32), impl="threefry2x32")
        for part in (step, virtual_worker, number % self.parts):
            key = jax.random.fold_in(key, part)
        return key

    def _gradient(self, weights: Weights, batches: dict[str, Array], step: Array) -> tuple[Array, Array, Weights]:
        """Loss sum, weight and gradient of the global batch; the loss is divided once, by the global weight."""
        weight = jax.lax.psum(batches["weights"].sum(), AXIS)

        count, layout, gather = len(batches["weights"]), self.layout, self.layout.gathered
        if whole := count > 1 and layout.devices > 1 and not layout.fsdp:
            weights = {name: layout.gathered(name, w) for name, w in weights.items()}
            gather = replace(layout, dims=dict.fromkeys(layout.dims)).gathered

        def loss_of(weights: Weights, batch: dict[str, Array], number: Array) -> tuple[Array, Array]:
            outputs = self._logits(weights, batch, gather, self._key(step, number))
            each = losses(self.model.task, outputs, batch["labels"], self.label_smoothing)
            loss = jnp.sum(each * batch["weights"])  # not a matrix product, which may be in bf16
            return loss / jnp.where(weight > 0, weight, 1.0), loss

        def add(before: tuple[Weights, Array], micro_batch: tuple[dict[str, Array], Array]) -> tuple[Any, None]:
            gradient, loss = jax.grad(loss_of, has_aux=True)(weights, *micro_batch)
            return jax.tree.map(jnp.add, before, (gradient, loss)), None

        if count == 1:
            first = {name: array[0] for name, array in batches.items()}
            gradient, loss = jax.grad(loss_of, has_aux=True)(weights, first, jnp.int32(0))
        else:
            zero = ({name: jnp.zeros(w.shape, jnp.float32) for name, w in weights.items()}, jnp.float32(0))
            (gradient, loss), _ = jax.lax.scan(add, zero, (batches, jnp.arange(count, dtype=jnp.int32)))
        return jax.lax.psum(loss, AXIS), weight, layout.sum_gradients(gradient, whole=whole)

    # ---- one update ------------------------------------------------------------------------------------------

    def update(
        self, state: State, batches: dict[str, Array], rates: Array, step: Array, vote: Array
    ) -> tuple[State, dict[str, Array]]:
        """One update, inside the mesh. `batches`: this device's, [A, 1, …]; `rates`: fp32 [3]; `vote`: int32 [1]; all
        devices get the highest."""
        batches = {name: array[:, 0] for name, array in batches.items()}
        loss, weight, gradient = self._gradient(state["parameters"], batches, step)
        norm = self.layout.norm(gradient)
        finite = jnp.isfinite(loss) & jnp.isfinite(norm)
        first_bad = jnp.where(finite, state["first_bad"], jnp.minimum(state["first_bad"], step))
        if self.optimizer.max_grad_norm is not None:  # torch.nn.utils.clip_grad_norm_'s rule
            shrink = jnp.minimum(self.optimizer.max_grad_norm / (norm + 1e-6), 1.0)
            gradient = jax.tree.map(lambda g: g * shrink, gradient)
        old = (state["parameters"], state["moments"])
        new = optimizers.apply(self.optimizer, Rates(*rates), old[0], gradient, old[1], self.layout)
        parameters, moments = jax.tree.map(lambda n, o: jnp.where(first_bad > step, n, o), new, old)
        stats = {"loss_sum": loss, "weight": weight, "grad_norm": norm, "first_bad": first_bad}
        stats["vote"] = jax.lax.pmax(vote[0], AXIS)
        return {"parameters": parameters, "moments": moments, "first_bad": first_bad}, stats

    # ---- scores ------------------------------------------------------------------------------------------------

    def outputs(
        self, parameters: Weights, batches: dict[str, Array], of: Callable[[Array, dict[str, Array]], Array]
    ) -> Array:
        """Inside the mesh: `of(logits, batch)` of each micro-batch, [A, 1, …]."""

        def one(batch: dict[str, Array]) -> Array:
            return of(self._logits(parameters, batch, self.layout.gathered), batch)

        return jax.lax.map(one, {name: array[:, 0] for name, array in batches.items()})[:, None]

    def _scores(self, logits: Array, batch: dict[str, Array]) -> Array:
        """fp32 [K, 2] of each label's loss, and 1 where it is the likeliest."""
        right = (logits.argmax(-1) == batch["labels"]).astype(jnp.float32)
        return jnp.stack([losses(self.model.task, logits, batch["labels"]), right], -1)

    def evaluate(self, parameters: Weights, batches: dict[str, Array]) -> Array:
        """Inside the mesh: fp32 [3], the sums of losses, of weights, and of the weights of right answers."""

        def sums(logits: Array, batch: dict[str, Array]) -> Array:
            loss, right = self._scores(logits, batch).T
            return (jnp.stack([loss, jnp.ones_like(loss), right]) * batch["weights"]).sum(1)

        return jax.lax.psum(self.outputs(parameters, batches, sums).sum((0, 1)), AXIS)

    def log_probs(self, parameters: Weights, batches: dict[str, Array]) -> Array:
        """Inside the mesh: [A, 1, K, 2], the `_scores` of all labels."""
        return self.outputs(parameters, batches, self._scores)

    def predict(self, parameters: Weights, batches: dict[str, Array]) -> Array:
        """Inside the mesh: fp32 logits [A, 1, K, C]."""
        return self.outputs(parameters, batches, lambda logits, _: logits.astype(jnp.float32))

    # ---- on a mesh -------------------------------------------------------------------------------------------

    def _specs(self) -> tuple[State, dict[str, PartitionSpec]]:
        parameters = {name: self.layout.spec(name) for name in self.layout.shapes}
        names = optimizers.moment_names(self.optimizer.kind, self.layout.shapes)
        moments = {kind: {name: parameters[name] for name in members} for kind, members in names.items()}
        state = {"parameters": parameters, "moments": moments, "first_bad": EVERYWHERE}
        return state, dict.fromkeys(BATCH_FIELDS, PartitionSpec(None, AXIS))

    def _on_mesh(self, function: Any, in_specs: Any, out_specs: Any, donate: tuple[int, ...]) -> Any:
        # fp32 needs this, since a TPU uses less by default. bf16 stays, since TPU kernels accept nothing else.
        precision = "highest" if self.layout.dtype == jnp.float32 else "default"

        def traced(*arguments: Any) -> Any:
            with jax.default_matmul_precision(precision):
                return function(*arguments)

        # check_vma would let autodiff sum each micro-batch's gradient over all devices; here that comes last.
        mapped = jax.shard_map(traced, mesh=self.layout.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
        return jax.jit(mapped, donate_argnums=donate, compiler_options=COMPILER_OPTIONS[self.platform])

    def jitted(self, what: str) -> Any:
        """`update`, `evaluate`, `log_probs` or `predict`."""
        state, batch = self._specs()
        if what != "update":
            out = EVERYWHERE if what == "evaluate" else PartitionSpec(None, AXIS)
            return self._on_mesh(getattr(self, what), (state["parameters"], batch), out, ())
        stats = dict.fromkeys(("loss_sum", "weight", "grad_norm", "first_bad", "vote"), EVERYWHERE)
        in_specs = (state, batch, EVERYWHERE, EVERYWHERE, PartitionSpec(AXIS))
        return self._on_mesh(self.update, in_specs, (state, stats), (0,))

    # ---- shapes, for memory that is not allocated yet --------------------------------------------------------------

    def update_shapes(self, *, micro_batches: int, rows: int, tokens: int, slots: int) -> tuple[Any, ...]:
        """Arguments of `jitted("update")`: `micro_batches` (A) of `rows` (M) x `tokens` (T) with `slots` (K) each."""

        def shape(dims: tuple[int, ...], spec: PartitionSpec, dtype: Any = jnp.int32) -> Any:
            return jax.ShapeDtypeStruct(dims, dtype, sharding=self.sharding(spec))

        specs, batch_specs = self._specs()
        arrays = {
            name: shape(self.layout.shapes[name], spec, jnp.float32) for name, spec in specs["parameters"].items()
        }
        moments = {kind: {name: arrays[name] for name in members} for kind, members in specs["moments"].items()}
        state = {"parameters": arrays, "moments": moments, "first_bad": shape((), EVERYWHERE)}
        sizes = dict.fromkeys(BATCH_FIELDS[:3], (rows, tokens)) | dict.fromkeys(BATCH_FIELDS[3:], (slots,))
        N = self.layout.devices
        batch = {
            name: shape((micro_batches, N, *sizes[name]), spec, jnp.float32 if name == "weights" else jnp.int32)
            for name, spec in batch_specs.items()
        }
        rates, step = shape((3,), EVERYWHERE, jnp.float32), shape((), EVERYWHERE)
        return state, batch, rates, step, shape((N,), PartitionSpec(AXIS))

    def sharding(self, spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(self.layout.mesh, spec)


def arrange(batches: Sequence[Batch], devices: int) -> dict[str, np.ndarray]:
    """Micro-batches in the order of their virtual workers -> arrays [A, devices, …]: virtual worker a * devices + d is
    micro-batch a of device d."""
    return {
        name: np.stack([getattr(batch, name) for batch in batches]).reshape(
            len(batches) // devices, devices, *getattr(batches[0], name).shape
        )
        for name in BATCH_FIELDS
    }
