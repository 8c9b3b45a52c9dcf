"""Reads untrusted safetensors files. Nothing is read or allocated before the header has been checked."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.core import storage
from maskwright.core.errors import ModelError

LONGEST_HEADER_BYTES = 10_000_000
"""A model of 1,000 layers needs 2 MB; the format itself allows 100 MB, which need seconds and a gigabyte to parse."""
LFS_POINTER = b"version https://git-lfs"
HOW_TO_PULL = "run git lfs pull in its folder, or download the model with hf download"
FLOATS = {"F16": "<f2", "BF16": "<u2", "F32": "<f4", "F64": "<f8"}


@dataclass(frozen=True)
class Tensor:
    """A tensor's place in its file."""

    path: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int

    def read(self) -> NDArray[np.float32]:
        """The tensor in fp32. Raises `ModelError` unless it holds floating-point numbers."""
        if self.dtype not in FLOATS:
            fix = "save the model in fp32, bf16 or fp16"
            raise ModelError(f"{self.name} is {self.dtype}, not a floating-point tensor", where=self.path, fix=fix)
        count = int(np.prod(self.shape, dtype=np.int64))
        value = np.fromfile(self.path, FLOATS[self.dtype], count, offset=self.begin)
        if self.dtype == "BF16":  # the upper half of an fp32
            value = (value.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return value.astype(np.float32, copy=False).reshape(self.shape)

    def part(self, number: int, parts: int) -> Tensor:
        """One of as many equal `parts` of the rows."""
        shape = (self.shape[0] // parts, *self.shape[1:])
        size = math.prod(shape) * np.dtype(FLOATS.get(self.dtype, "u1")).itemsize  # `read` refuses others
        return replace(self, shape=shape, begin=self.begin + number * size)


def tensors_of(path: str) -> dict[str, Tensor]:
    """The tensors in a file's header. Raises `ModelError` unless the header is short, unambiguous and fits the file."""
    from safetensors import SafetensorError, safe_open

    size = os.path.getsize(path)
    with storage.open_binary(path) as file:
        beginning = file.read(8)
        length = int.from_bytes(beginning, "little") if len(beginning) == 8 else size + 1
        if beginning == LFS_POINTER[:8]:
            raise ModelError("is a pointer of Git LFS in place of the weights", where=path, fix=HOW_TO_PULL)
        if length > min(size - 8, LONGEST_HEADER_BYTES):
            what = f"claims a header of {length:,} bytes in a file of {size:,}"
            raise ModelError(what, where=path, fix="copy it again")
        header = file.read(length)
    try:
        # The library checks kinds, shapes, offsets and that they fill the file. It maps the file and reads no tensor.
        with safe_open(path, framework="numpy"):
            entries = json.loads(header, object_pairs_hook=_once)
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise ModelError(f"cannot be read: {error}", where=path, fix="copy it again") from None
    return {
        name: Tensor(path, name, entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
        for name, entry in entries.items()
        if name != "__metadata__"
    }


def find(folder: str, ending: str) -> Tensor | None:
    """The first tensor of a model's folder whose name ends in `ending`; None without one. Raises `ModelError`."""
    names = [name for name in sorted(os.listdir(folder)) if name.startswith("model") and name.endswith(".safetensors")]
    tensors = (tensor for name in names for tensor in tensors_of(os.path.join(folder, name)).values())
    return next((tensor for tensor in tensors if tensor.name.endswith(ending)), None)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuses duplicate names, which JSON allows and readers treat differently."""
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"its header names {next(name for name in names if names.count(name) > 1)} twice")
    return result
