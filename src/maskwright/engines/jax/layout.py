"""Which part of the parameters each device of a mesh holds, and how it gathers the rest.

The mesh has one axis: every device computes micro-batches of its own. `data`: each device holds all parameters, and
gradients are summed once an update. `fsdp`: each holds a shard of every matrix, its gradient and its moments; a layer
is gathered just before it is computed (in the dtype of the multiplications) and again in the backward pass, and its
gradient is reduce-scattered at once, in fp32.

Everything runs inside one `jax.shard_map`, so this file alone decides what is local and what is sent: activations are
local by construction.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from maskwright.model.jax.parts import LAYERS

AXIS = "data"
Platform = Literal["cpu", "cuda", "tpu"]
"""JAX's names of platforms."""


@dataclass(frozen=True)
class ShardingLayout:
    mesh: Mesh
    shapes: dict[str, tuple[int, ...]]
    dims: dict[str, int | None]
    """The dimension along which a parameter is sharded; None if every device holds all of it."""
    dtype: Any
    """Precision of the multiplications."""

    @classmethod
    def of(cls, devices: list[Any], shapes: dict[str, tuple[int, ...]], *, fsdp: bool, dtype: Any) -> ShardingLayout:
        count = len(devices)
        dims: dict[str, int | None] = dict.fromkeys(shapes)
        if fsdp and count > 1:
            dims |= {name: _sharded_dim(shape, count, begin=name.startswith(LAYERS)) for name, shape in shapes.items()}
        return cls(Mesh(np.array(devices), (AXIS,)), shapes, dims, dtype)

    @property
    def devices(self) -> int:
        return int(self.mesh.size)

    def spec(self, name: str) -> PartitionSpec:
        dim = self.dims[name]
        return PartitionSpec() if dim is None else PartitionSpec(*[None] * dim, AXIS)

    def sharding(self, name: str) -> NamedSharding:
        return NamedSharding(self.mesh, self.spec(name))

    def gathered(self, name: str, array: Array, dtype: Any = None) -> Array:
        """Inside the mesh: the full parameter in `dtype` (by default that of the multiplications). `array` of a
        `layers.` name may be one layer's, without the first dimension."""
        dtype, dim = dtype or self.dtype, self.dims[name]
        if dim is None:
            return array.astype(dtype)
        return _gather(array, dim - (len(self.shapes[name]) - array.ndim), dtype)

    def shard(self, name: str, array: Array) -> Array:
        """Inside the mesh: this device's shard of a full parameter."""
        dim = self.dims[name]
        if dim is None:
            return array
        size = array.shape[dim] // self.devices
        return jax.lax.dynamic_slice_in_dim(array, jax.lax.axis_index(AXIS) * size, size, dim)

    def sum_gradients(self, gradients: dict[str, Array]) -> dict[str, Array]:
        """Inside the mesh: sums over devices. The backward pass of `gathered` has summed sharded parameters already."""
        rest = {name: g for name, g in gradients.items() if self.dims[name] is None}
        return gradients | jax.lax.psum(rest, AXIS)

    def norm(self, gradients: dict[str, Array]) -> Array:
        """Inside the mesh: L2 norm of the full gradient, each number once."""
        squares = {name: jnp.square(g).sum() for name, g in gradients.items()}
        everywhere = sum((s for name, s in squares.items() if self.dims[name] is None), jnp.float32(0))
        sharded = sum((s for name, s in squares.items() if self.dims[name] is not None), jnp.float32(0))
        return jnp.sqrt(everywhere + jax.lax.psum(sharded, AXIS))


def _sharded_dim(shape: tuple[int, ...], devices: int, *, begin: int) -> int | None:
    """The first dimension of a matrix that the device count divides; not the first of an array that stacks layers.
    Vectors are not sharded: they need little memory, and gathering each of them would cost time."""
    if len(shape) - begin < 2:
        return None
    return next((dim for dim in range(begin, len(shape)) if shape[dim] % devices == 0), None)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _gather(part: Array, dim: int, dtype: Any) -> Array:
    return jax.lax.all_gather(part.astype(dtype), AXIS, axis=dim, tiled=True)


def _gather_forward(part: Array, dim: int, dtype: Any) -> tuple[Array, None]:
    return _gather(part, dim, dtype), None


def _gather_backward(dim: int, dtype: Any, _: None, gradient: Array) -> tuple[Array]:
    # In fp32: a bf16 sum over hundreds of devices would lose their contributions.
    return (jax.lax.psum_scatter(gradient.astype(jnp.float32), AXIS, scatter_dimension=dim, tiled=True),)


_gather.defvjp(_gather_forward, _gather_backward)
