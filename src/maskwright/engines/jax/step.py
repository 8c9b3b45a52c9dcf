"""One update and one evaluation as JAX compiles them: pure functions of arrays, for any mesh.

`engine.py` runs them; `maskwright plan` compiles the same functions ahead of time for a slice that is elsewhere.

Dimensions: A micro-batches for each device in one update, N devices, M rows of T tokens and K predicted positions in
each micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from maskwright.config.pretraining import EngineSection, Optimizer
from maskwright.data import bits
from maskwright.engines.base import DROPOUT_PURPOSE
from maskwright.engines.jax import optimizers
from maskwright.engines.jax.layout import AXIS, ShardingLayout
from maskwright.model.config import ModelConfig
from maskwright.model.jax.attention import choose_way
from maskwright.model.jax.networks import logits, losses, shapes
from maskwright.model.jax.parts import Gather, Weights

BATCH_FIELDS = ("input_ids", "position_ids", "segment_ids", "predict_index", "labels", "weights")
EVERYWHERE, OF_DEVICES = PartitionSpec(), PartitionSpec(None, AXIS)
BESIDE = (
    "xla_tpu_enable_async_all_to_all",
    "xla_enable_async_all_gather",
    "xla_tpu_enable_async_collective_fusion",
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather",
)
"""libtpu's options with which a chip computes while it sends. The last three are on by default for v5e, not for v6e."""
NO_BAD_STEP = 2**31 - 1

State = dict[str, Any]
"""`parameters`, `moments` by kind, and `first_bad`, int32: the first step whose loss or gradient was not finite.
Neither that step nor a later one changes anything."""


def choose_dtype(wanted: str, platform: str) -> str:
    """`auto` is fp32 on a CPU, where XLA's bf16 products are slower (0.8 times on 2 Zen 5 cores), else bf16."""
    return "float32" if wanted == "fp32" or (wanted == "auto" and platform == "cpu") else "bfloat16"


@dataclass(frozen=True)
class Program:
    """What is compiled: a model, its training, its devices and its number of rows at once."""

    model: ModelConfig
    optimizer: Optimizer
    layout: ShardingLayout
    parts: int = 1
    """Number of parts of a virtual worker's micro-batch; more than one if it does not fit in memory at once."""
    seed: int = 0
    label_smoothing: float = 0.0
    """Used in training only."""
    causal: bool | None = False
    """`Batch.causal` of what it computes."""

    @classmethod
    def of(
        cls, model: ModelConfig, optimizer: Optimizer, engine: EngineSection, devices: list[Any], **more: Any
    ) -> Program:
        """The program of a run on `devices`, which may be another machine's. `more`: further fields."""
        dtype = jnp.dtype(choose_dtype(engine.dtype, devices[0].platform))
        layout = ShardingLayout.of(devices, shapes(model), fsdp=engine.sharding == "fsdp", dtype=dtype)
        return cls(model, optimizer, layout, **more)

    # ---- one micro-batch, inside the mesh --------------------------------------------------------------------

    def _logits(self, weights: Weights, batch: dict[str, Array], gather: Gather, key: Array | None = None) -> Array:
        inputs = [batch[name] for name in BATCH_FIELDS[:4]]
        way = self.way(inputs[0].shape[1], self.model.attention_probs_dropout_prob if key is not None else 0.0)
        return logits(weights, self.model, *inputs, gather=gather, way=way, key=key)

    def way(self, tokens: int, dropout: float = 0.0) -> str:
        """How attention over rows of `tokens` is computed: see `model/jax/attention.py`."""
        facts = self.layout.chip, tokens, self.model.head_width, dropout, self.layout.dtype
        return choose_way(*facts, causal=self.causal)

    def _key(self, step: Array, number: Array) -> Array | None:
        """Dropout's key for micro-batch `number` of `_cut`: by seed, step, virtual worker and part, whatever the number
        of devices."""
        if not self.model.drops:
            return None
        virtual_worker = number // self.parts * self.layout.devices + jax.lax.axis_index(AXIS)
        seed = int(bits.key(self.seed, DROPOUT_PURPOSE))
        key = jax.random.wrap_key_data(jnp.array([seed >> 32, seed & 0xFFFFFFFF], jnp.uint32), impl="threefry2x32")
        for part in (step, virtual_worker, number % self.parts):
            key = jax.random.fold_in(key, part)
        return key

    def _cut(self, batches: dict[str, Array]) -> dict[str, Array]:
        """This device's micro-batches [A, 1, …] -> [A * parts, …]: rows, and equal shares of the slots."""

        def cut(array: Array) -> Array:
            return array.reshape(len(array) * self.parts, array.shape[2] // self.parts, *array.shape[3:])

        pieces = {name: cut(array) for name, array in batches.items()}
        before = jnp.arange(len(pieces["input_ids"])) % self.parts * pieces["input_ids"][0].size
        index = jnp.maximum(pieces["predict_index"] - before[:, None], 0)  # filler may have 0
        return pieces | {"predict_index": index}

    def _gradient(self, weights: Weights, batches: dict[str, Array], step: Array) -> tuple[Array, Array, Weights]:
        """Loss sum, weight and gradient of the global batch; the loss is divided once, by the global weight."""
        weight = jax.lax.psum(batches["weights"].sum(), AXIS)

        count, layout, gather = len(batches["weights"]), self.layout, self.layout.gathered
        if whole := layout.devices > 1 and not layout.fsdp and (count > 1 or not layout.sends_beside):
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
        """One update, inside the mesh. `batches`: this device's, [A, 1, …]; `rates`: see `optimizers.rates_of`; `vote`:
        int32 [1]; all devices get the highest."""
        loss, weight, gradient = self._gradient(state["parameters"], self._cut(batches), step)
        norm = self.layout.norm(gradient)
        finite = jnp.isfinite(loss) & jnp.isfinite(norm)
        first_bad = jnp.where(finite, state["first_bad"], jnp.minimum(state["first_bad"], step))
        if self.optimizer.max_grad_norm is not None:  # torch.nn.utils.clip_grad_norm_'s rule
            shrink = jnp.minimum(self.optimizer.max_grad_norm / (norm + 1e-6), 1.0)
            gradient = jax.tree.map(lambda g: g * shrink, gradient)
        old = (state["parameters"], state["moments"])
        new = optimizers.apply(self.optimizer, rates, old[0], gradient, old[1], self.layout)
        parameters, moments = jax.tree.map(lambda n, o: jnp.where(first_bad > step, n, o), new, old)
        stats = {"loss_sum": loss, "weight": weight, "grad_norm": norm}
        stats["vote"] = jax.lax.pmax(vote[0], AXIS)
        return {"parameters": parameters, "moments": moments, "first_bad": first_bad}, stats

    # ---- scores ------------------------------------------------------------------------------------------------

    def _outputs(
        self, parameters: Weights, batches: dict[str, Array], of: Callable[[Array, dict[str, Array]], Array]
    ) -> Array:
        """Inside the mesh: `of(logits, batch)` of all positions, fp32 [A, 1, K, C]."""

        def one(batch: dict[str, Array]) -> Array:
            return of(self._logits(parameters, batch, self.layout.gathered), batch).astype(jnp.float32)

        outputs = jax.lax.map(one, self._cut(batches))
        return outputs.reshape(*batches["predict_index"].shape, -1)

    def score(self, parameters: Weights, batches: dict[str, Array]) -> Array:
        """Inside the mesh: [A, 1, K, 2], each label's loss, and 1 where it is the likeliest."""

        def scores(logits: Array, batch: dict[str, Array]) -> Array:
            right = (logits.argmax(-1) == batch["labels"]).astype(jnp.float32)
            return jnp.stack([losses(self.model.task, logits, batch["labels"]), right], -1)

        return self._outputs(parameters, batches, scores)

    def predict(self, parameters: Weights, batches: dict[str, Array]) -> Array:
        """Inside the mesh: logits [A, 1, K, C]."""
        return self._outputs(parameters, batches, lambda logits, _: logits)

    # ---- on a mesh -------------------------------------------------------------------------------------------

    @property
    def state_specs(self) -> State:
        """Where each array of the state is."""
        parameters = {name: self.layout.spec(name) for name in self.layout.shapes}
        names = optimizers.moment_names(self.optimizer.kind, self.layout.shapes)
        moments = {kind: {name: parameters[name] for name in members} for kind, members in names.items()}
        return {"parameters": parameters, "moments": moments, "first_bad": EVERYWHERE}

    def jitted(self, what: str) -> Any:
        """`update`, `score` or `predict`."""
        state, is_update = self.state_specs, what == "update"
        specs: Any = (state["parameters"], OF_DEVICES)
        out: Any = OF_DEVICES
        if is_update:
            specs, out = (state, OF_DEVICES, EVERYWHERE, EVERYWHERE, PartitionSpec(AXIS)), (state, EVERYWHERE)
        # fp32 runs in fp32, since a TPU uses less by default. bf16 stays: TPU kernels accept nothing else.
        precision = "highest" if self.layout.dtype == jnp.float32 else "default"

        def traced(*arguments: Any) -> Any:
            with jax.default_matmul_precision(precision):
                return getattr(self, what)(*arguments)

        # check_vma would let autodiff sum each micro-batch's gradient over all devices; here that comes last.
        mapped = jax.shard_map(traced, mesh=self.layout.mesh, in_specs=specs, out_specs=out, check_vma=False)
        wanted = BESIDE if self.layout.sends_beside else BESIDE[1:]
        options = dict.fromkeys(wanted if self.layout.chip.startswith("TPU") else (), "true")
        return jax.jit(mapped, donate_argnums=(0,) if is_update else (), compiler_options=options)

    def update_shapes(self, *, micro_batches: int, rows: int, tokens: int, slots: int) -> tuple[Any, ...]:
        """Arguments of `jitted("update")`, before there are any: `micro_batches` (A) of `rows` (M) x `tokens` (T) with
        `slots` (K) each."""

        def shape(dims: tuple[int, ...], spec: PartitionSpec = EVERYWHERE, dtype: Any = jnp.int32) -> Any:
            return jax.ShapeDtypeStruct(dims, dtype, sharding=self.sharding(spec))

        specs, N = self.state_specs, self.layout.devices
        arrays = {name: shape(self.layout.shapes[name], at, jnp.float32) for name, at in specs["parameters"].items()}
        moments = {kind: {name: arrays[name] for name in members} for kind, members in specs["moments"].items()}
        state = {"parameters": arrays, "moments": moments, "first_bad": shape(())}
        sizes = dict.fromkeys(BATCH_FIELDS[:3], (rows, tokens)) | dict.fromkeys(BATCH_FIELDS[3:], (slots,))
        batch = {
            name: shape((micro_batches, N, *size), OF_DEVICES, jnp.float32 if name == "weights" else jnp.int32)
            for name, size in sizes.items()
        }
        return state, batch, shape((3,), dtype=jnp.float32), shape(()), shape((N,), PartitionSpec(AXIS))

    def sharding(self, spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(self.layout.mesh, spec)
