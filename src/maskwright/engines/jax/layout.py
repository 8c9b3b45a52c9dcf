"""What each device of a mesh has of the parameters, and how it gets the rest.

One mesh axis: every device has micro-batches of its own. `data`: each has all parameters, gradients are summed once an
update. `fsdp`: each has a part of every matrix, its gradient and moments; a layer is gathered just before it is
computed (in the dtype that is multiplied in), again in the backward pass, and its gradient is summed and cut apart at
once (reduce-scatter, in fp32).

Everything runs inside one `jax.shard_map`, so what is local and what is sent is written here and decided by nobody
else: activations are local by construction.
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
"""As JAX names them."""


@dataclass(frozen=True)
class Layout:
    """`dims`: the dimension that a parameter is cut along, None where every device has all of it."""

    mesh: Mesh
    shapes: dict[str, tuple[int, ...]]
    dims: dict[str, int | None]
    dtype: Any
    """Of the multiplications."""

    @classmethod
    def of(cls, devices: list[Any], shapes: dict[str, tuple[int, ...]], *, fsdp: bool, dtype: Any) -> Layout:
        count = len(devices)
        dims: dict[str, int | None] = dict.fromkeys(shapes)
        if fsdp and count > 1:
            dims |= {name: _cut(shape, count, begin=name.startswith(LAYERS)) for name, shape in shapes.items()}
        return cls(Mesh(np.array(devices), (AXIS,)), shapes, dims, dtype)

    @property
    def devices(self) -> int:
        return int(self.mesh.size)

    def spec(self, name: str) -> PartitionSpec:
        dim = self.dims[name]
        return PartitionSpec() if dim is None else PartitionSpec(*[None] * dim, AXIS)

    def sharding(self, name: str) -> NamedSharding:
        return NamedSharding(self.mesh, self.spec(name))

    def whole(self, name: str, array: Array, dtype: Any = None) -> Array:
        """Inside: all of a parameter, in `dtype` (that of the multiplications when not given). Of `layers.` names
        also for one layer, without the first dimension."""
        dtype, dim = dtype or self.dtype, self.dims[name]
        if dim is None:
            return array.astype(dtype)
        return _gather(array, dim - (len(self.shapes[name]) - array.ndim), dtype)

    def own(self, name: str, array: Array) -> Array:
        """Inside: this device's part of a whole parameter."""
        dim = self.dims[name]
        if dim is None:
            return array
        size = array.shape[dim] // self.devices
        return jax.lax.dynamic_slice_in_dim(array, jax.lax.axis_index(AXIS) * size, size, dim)

    def sum_gradients(self, gradients: dict[str, Array]) -> dict[str, Array]:
        """Inside: those of cut parameters are summed already, by the backward pass of `whole`."""
        rest = {name: g for name, g in gradients.items() if self.dims[name] is None}
        return gradients | jax.lax.psum(rest, AXIS)

    def norm(self, gradients: dict[str, Array]) -> Array:
        """Inside: length of the whole gradient, each number once."""
        squares = {name: jnp.square(g).sum() for name, g in gradients.items()}
        everywhere = sum((s for name, s in squares.items() if self.dims[name] is None), jnp.float32(0))
        cut = sum((s for name, s in squares.items() if self.dims[name] is not None), jnp.float32(0))
        return jnp.sqrt(everywhere + jax.lax.psum(cut, AXIS))


def _cut(shape: tuple[int, ...], devices: int, *, begin: int) -> int | None:
    """The first dimension of a matrix that the devices divide; a layer's own when those of all layers are in one.
    Vectors stay whole: they take no memory, and a gather for each of them would take time."""
    if len(shape) - begin < 2:
        return None
    return next((dim for dim in range(begin, len(shape)) if shape[dim] % devices == 0), None)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _gather(part: Array, dim: int, dtype: Any) -> Array:
    return jax.lax.all_gather(part.astype(dtype), AXIS, axis=dim, tiled=True)


def _gather_forward(part: Array, dim: int, dtype: Any) -> tuple[Array, None]:
    return _gather(part, dim, dtype), None


def _gather_backward(dim: int, dtype: Any, _: None, gradient: Array) -> tuple[Array]:
    # In fp32: a sum over hundreds of devices in bf16 would lose what they add.
    return (jax.lax.psum_scatter(gradient.astype(jnp.float32), AXIS, scatter_dimension=dim, tiled=True),)


_gather.defvjp(_gather_forward, _gather_backward)
