"""Which part of the parameters each device of a mesh holds, and how it gathers the rest.

The mesh has one axis: every device computes micro-batches of its own, and holds a shard of every matrix and of its
moments, which it alone updates. Vectors are whole everywhere. A layer is gathered, in the dtype of the multiplications,
just before it is computed, and again in the backward pass, which sums its gradient over the devices as soon as it is
complete. Both overlap with the computation of other layers. With several micro-batches a device, `data` gathers and
sums once an update instead, whereas `fsdp`, which never holds a full gradient, does both for each micro-batch.

A layer's gradients are sent as they were computed (in bf16, each to the device that holds the shard) and added up in
fp32 there: libtpu runs an all-to-all during matrix products (`step.BESIDE`). It replaces a reduce-scatter by an
all-reduce of the full fp32 gradient, during which nothing is computed (0.0.42.1, v4 to v6e, whatever its options). So
reduce-scatters are left to what comes after the last layer, with nothing left to compute: the embeddings, the head.

On a v5e slice of more than 16 chips nothing is sent during products: libtpu refuses the all-to-alls ("not supported on
limited ICI") and makes all-reduces of the layers' gathers. `data` then gathers and sums once an update too.

Everything runs inside one `jax.shard_map`, so this file alone decides what is local and what is sent: activations are
local by construction.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from maskwright.model.jax.parts import LAYERS

AXIS = "data"


@dataclass(frozen=True)
class ShardingLayout:
    mesh: Mesh
    shapes: dict[str, tuple[int, ...]]
    dims: dict[str, int | None]
    """The dimension along which a parameter is sharded; None if every device holds all of it."""
    dtype: Any
    """Precision of the multiplications."""
    fsdp: bool

    @classmethod
    def of(cls, devices: list[Any], shapes: dict[str, tuple[int, ...]], *, fsdp: bool, dtype: Any) -> ShardingLayout:
        count = len(devices)
        dims = {name: _sharded_dim(shape, count, begin=name.startswith(LAYERS)) for name, shape in shapes.items()}
        return cls(Mesh(np.array(devices), (AXIS,)), shapes, dims, dtype, fsdp)

    @property
    def devices(self) -> int:
        return int(self.mesh.size)

    @property
    def chip(self) -> str:
        """The kind of all devices in JAX's words: `cpu`, `TPU v5 lite`."""
        return str(self.mesh.devices.flat[0].device_kind)

    @property
    def sends_beside(self) -> bool:
        """Whether an all-to-all runs during matrix products."""
        return self.chip != "TPU v5 lite" or self.devices <= 16

    def spec(self, name: str) -> PartitionSpec:
        dim = self.dims[name]
        return PartitionSpec() if dim is None else PartitionSpec(*[None] * dim, AXIS)

    def gathered(self, name: str, array: Array) -> Array:
        """Inside the mesh: the full parameter in the dtype of the multiplications. `array` of a `layers.` name may be
        one layer's, without the first dimension."""
        if (dim := self.dims[name]) is None:
            return array.astype(self.dtype)
        stacked = len(self.shapes[name]) - array.ndim
        return _gather(array, dim - stacked, self.dtype, bool(stacked) and self.sends_beside)

    def sum_gradients(self, gradients: dict[str, Array], *, whole: bool) -> dict[str, Array]:
        """Inside the mesh: sums over devices, in fp32. Matrices, unless they are `whole`, have been summed in the
        backward pass of `gathered`."""
        vectors = {name: g.astype(jnp.float32) for name, g in gradients.items() if self.dims[name] is None}
        sums = jax.lax.psum(vectors, AXIS)
        if whole:
            sums |= {name: _sum_shards(g, self.dims[name]) for name, g in gradients.items() if name not in vectors}
        return gradients | sums

    def norm(self, gradients: dict[str, Array]) -> Array:
        """Inside the mesh: L2 norm of the full gradient, each number once."""
        squares = {name: jnp.square(g).sum() for name, g in gradients.items()}
        everywhere = sum((s for name, s in squares.items() if self.dims[name] is None), jnp.float32(0))
        sharded = sum((s for name, s in squares.items() if self.dims[name] is not None), jnp.float32(0))
        return jnp.sqrt(everywhere + jax.lax.psum(sharded, AXIS))


def _sharded_dim(shape: tuple[int, ...], devices: int, *, begin: int) -> int | None:
    """The first dimension of a matrix that the device count divides; not the first of an array that stacks layers.
    Vectors are not sharded: they need little memory, and gathering each of them would cost time."""
    if devices == 1 or len(shape) - begin < 2:
        return None
    return next((dim for dim in range(begin, len(shape)) if shape[dim] % devices == 0), None)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _gather(part: Array, dim: int, dtype: Any, beside: bool) -> Array:
    """`beside`: whether other layers are computed while the gradient is summed."""
    return jax.lax.all_gather(part.astype(dtype), AXIS, axis=dim, tiled=True)


def _gather_backward(dim: int, dtype: Any, beside: bool, _: None, gradient: Array) -> tuple[Array]:
    if not beside:
        return (_sum_shards(gradient, dim),)
    size, devices = gradient.shape, jax.lax.axis_size(AXIS)
    apart = gradient.reshape(*size[:dim], devices, size[dim] // devices, *size[dim + 1 :])
    return (jax.lax.all_to_all(apart, AXIS, dim, 0).astype(jnp.float32).sum(0),)


_gather.defvjp(lambda *arguments: (_gather(*arguments), None), _gather_backward)


def _sum_shards(gradient: Array, dim: Any) -> Array:
    # In fp32, since a bf16 sum over hundreds of devices would lose their contributions.
    return jax.lax.psum_scatter(gradient.astype(jnp.float32), AXIS, scatter_dimension=dim, tiled=True)
