"""Writes safetensors in one pass that also hashes, and frees the interpreter for other threads.

Format: https://github.com/huggingface/safetensors#format. Eight bytes of header length, a JSON header padded to eight
bytes, the arrays one after the other.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

WRITE_BYTES = 4 << 20
KINDS = {"float32": "F32", "int32": "I32"}
"""The format's name of each dtype."""


def write_tensors(path: str, tensors: Mapping[str, NDArray[Any]], metadata: dict[str, str] | None = None) -> str:
    """Writes fp32 and int32 arrays under their names, syncs the file and returns its sha256. Raises `OSError`.

    The file's mode follows the umask; safetensors 0.8 writes 0600, which no colleague can read.
    """
    sha = hashlib.sha256()
    with open(path, "wb", buffering=0) as file:
        for block in _blocks(tensors, metadata):
            sha.update(block)  # without the interpreter's lock, like the write, so training continues
            rest = memoryview(block).cast("B")
            while len(rest):  # a write may be short, like the last one before a disk is full
                rest = rest[file.write(rest) :]
        os.fsync(file.fileno())
    return sha.hexdigest()


def _blocks(tensors: Mapping[str, NDArray[Any]], metadata: dict[str, str] | None) -> Iterator[bytes | memoryview]:
    entries: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name, array in tensors.items():
        if array.dtype.name not in KINDS:
            raise TypeError(f"{name} is {array.dtype}, not one of {', '.join(KINDS)}")
        begin, end = end, end + array.nbytes
        entries[name] = {"dtype": KINDS[array.dtype.name], "shape": list(array.shape), "data_offsets": [begin, end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    yield len(header).to_bytes(8, "little") + header
    for array in tensors.values():
        content = memoryview(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data)
        for first in range(0, len(content), WRITE_BYTES):
            yield content[first : first + WRITE_BYTES]
