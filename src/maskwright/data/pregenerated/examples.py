"""Examples with their masks, in memory and on disk.

    epoch_0.json           a line for each: tokens (masked), segment_ids, is_random_next, masked_lm_positions,
                           masked_lm_labels; tokens and labels are strings
    epoch_0_metrics.json   num_training_examples, max_seq_len
    epoch_0/               the binary twin of epoch_0.json: a .npy file for each array of `Examples`

`docs/pregenerated.md` is the contract.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from tokenize import TokenError  # which numpy's reader of headers lets out
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from maskwright.core import storage
from maskwright.core.errors import StoreError

Int64 = NDArray[np.int64]
KEYS = ("tokens", "segment_ids", "is_random_next", "masked_lm_positions", "masked_lm_labels")
EPOCH_AGAIN = "copy the file again, or generate the epoch again"
HEADER_BYTES = 128
"""Of a .npy file with one axis, whatever its length: numpy leaves room for it to grow."""


@dataclass(frozen=True)
class Examples:
    """n examples, one after the other, with t tokens and p predictions in all."""

    tokens: NDArray[Any]
    """[t] ids as the model sees them; uint16 or uint32 on disk."""
    lengths: NDArray[Any]
    """[n] tokens of each; uint32 on disk."""
    first_segment: NDArray[Any]
    """[n] tokens before the second segment, all of them without one; uint32 on disk."""
    random_next: NDArray[Any]
    """[n] 1 where the second segment is of another document; uint8 on disk."""
    positions: NDArray[Any]
    """[p] places of the predictions in their examples, ascending; uint16 on disk."""
    labels: NDArray[Any]
    """[p] the true ids; as `tokens` on disk."""
    predictions: NDArray[Any]
    """[n] how many each has; uint16 on disk."""

    @staticmethod
    def joined(parts: Sequence[Examples]) -> Examples:
        return Examples(*(np.concatenate([getattr(one, name) for one in parts]) for name in ARRAYS))

    @property
    def places(self) -> Int64:
        """[p] of the predictions among all tokens."""
        ends = np.cumsum(self.lengths, dtype=np.int64)
        return np.repeat(ends - self.lengths, self.predictions) + self.positions


ARRAYS = tuple(field.name for field in fields(Examples))


def dtypes(vocab_size: int) -> dict[str, str]:
    """Of the arrays on disk, little-endian."""
    ids = "<u2" if vocab_size <= 65_536 else "<u4"
    names = dict.fromkeys(ARRAYS, "<u4") | {"random_next": "|u1", "positions": "<u2", "predictions": "<u2"}
    return names | {"tokens": ids, "labels": ids}


class JsonLines:
    """Writes examples as lines; `tokens` [vocab_size] are the strings of the ids."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self.spelt = [json.dumps(token) for token in tokens]

    def lines(self, some: Examples) -> bytes:
        spelt, out = self.spelt, []
        begin = first = 0
        rows = zip(
            some.lengths.tolist(),
            some.first_segment.tolist(),
            some.random_next.tolist(),
            some.predictions.tolist(),
            strict=True,
        )
        tokens, positions, labels = some.tokens.tolist(), some.positions.tolist(), some.labels.tolist()
        for length, one, other, count in rows:
            segments = ["0"] * one + ["1"] * (length - one)
            out.append(
                f'{{"tokens": [{", ".join([spelt[index] for index in tokens[begin : begin + length]])}], '
                f'"segment_ids": [{", ".join(segments)}], "is_random_next": {"true" if other else "false"}, '
                f'"masked_lm_positions": {positions[first : first + count]}, '
                f'"masked_lm_labels": [{", ".join([spelt[index] for index in labels[first : first + count]])}]}}\n'
            )
            begin, first = begin + length, first + count
        return "".join(out).encode()


def read_line(line: bytes) -> tuple[list[str], int, bool, list[int], list[str]]:
    """(tokens, length of the first segment, is_random_next, positions, labels) of a line. Raises `ValueError`, whose
    words are for the user."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        detail = error.msg if isinstance(error, json.JSONDecodeError) else "not UTF-8, or nested too deeply"
        raise ValueError(f"is not JSON: {detail}") from None
    if not isinstance(found, dict) or set(found) != set(KEYS):
        keys = ", ".join(map(str, found)) if isinstance(found, dict) else type(found).__name__
        raise ValueError(f"is no example: it has {keys or 'nothing'}, an example has {', '.join(KEYS)}")
    tokens, segments, other, positions, labels = (found[key] for key in KEYS)
    if not _all_are(tokens, str) or not _all_are(labels, str) or not tokens:
        raise ValueError("has tokens or labels that are not a list of strings")
    if not _all_are(segments, int) or not _all_are(positions, int) or not isinstance(other, bool):
        raise ValueError("has segment_ids or positions that are not whole numbers, or no true or false")
    if len(segments) != len(tokens) or len(positions) != len(labels):
        numbers = f"{len(tokens)} tokens, {len(segments)} segment ids; {len(positions)} positions, {len(labels)} labels"
        raise ValueError(f"has lists that do not belong together: {numbers}")
    first = segments.count(0)
    if segments != [0] * first + [1] * (len(tokens) - first):
        raise ValueError("has segment_ids that are not zeros followed by ones")
    ascending = all(a < b for a, b in zip(positions, positions[1:], strict=False))
    if positions and (not ascending or positions[0] < 0 or positions[-1] >= len(tokens)):
        raise ValueError(f"has positions that do not rise within its {len(tokens)} tokens")
    if len(tokens) > np.iinfo(np.uint16).max:
        raise ValueError(f"has {len(tokens):,} tokens, more than any model takes")
    return tokens, first, other, positions, labels


def _all_are(values: Any, kind: type) -> bool:
    return isinstance(values, list) and {*map(type, values)} <= {kind}


def write_metrics(folder: str, epoch: int, examples: int, max_seq_len: int) -> None:
    path = os.path.join(folder, f"epoch_{epoch}_metrics.json")
    with storage.atomic_writer(path) as file:
        file.write(json.dumps({"num_training_examples": examples, "max_seq_len": max_seq_len}).encode())


def read_metrics(folder: str, epoch: int) -> tuple[int, int]:
    """(examples, max_seq_len). Raises `StoreError` when the file is missing or says something else."""
    path = os.path.join(folder, f"epoch_{epoch}_metrics.json")
    if not os.path.exists(path):
        raise StoreError("is missing, so its epoch was never finished", where=path, fix="generate the folder again")
    found = storage.read_json(path)
    named = found if isinstance(found, dict) else {}
    examples, length = named.get("num_training_examples"), named.get("max_seq_len")
    if type(examples) is not int or type(length) is not int or min(examples, length) < 1:
        what = "does not say num_training_examples and max_seq_len, both above 0"
        raise StoreError(what, where=path, fix="generate the folder again")
    return examples, length


# ---- the binary twin -------------------------------------------------------------------------------------------------


class ArrayFolder:
    """Writes examples into a folder of .npy files, in one pass and bounded memory."""

    def __init__(self, folder: str, vocab_size: int) -> None:
        self.folder, self.dtypes = folder, dtypes(vocab_size)
        self.counts = dict.fromkeys(ARRAYS, 0)
        self.files: dict[str, BinaryIO] = {}

    def __enter__(self) -> Self:
        storage.make_folder(self.folder)
        for name in ARRAYS:
            self.files[name] = open(os.path.join(self.folder, f"{name}.npy"), "wb")
            self.files[name].write(bytes(HEADER_BYTES))
        return self

    def write(self, some: Examples) -> None:
        for name, file in self.files.items():
            array = getattr(some, name)
            file.write(np.ascontiguousarray(array, self.dtypes[name]).view(np.uint8).data)
            self.counts[name] += len(array)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for name, file in self.files.items():
            with file:
                header = io.BytesIO()
                described = {"descr": self.dtypes[name], "fortran_order": False, "shape": (self.counts[name],)}
                np.lib.format.write_array_header_1_0(header, described)
                assert len(header.getvalue()) == HEADER_BYTES
                file.seek(0)
                file.write(header.getvalue())
                file.flush()
                os.fsync(file.fileno())


def map_arrays(folder: str) -> Examples:
    """The arrays of a folder, mapped. Raises `StoreError` when they are damaged or do not belong together."""
    found: dict[str, NDArray[Any]] = {}
    for name in ARRAYS:
        path = os.path.join(folder, f"{name}.npy")
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError, TokenError, SyntaxError) as error:
            what = f"cannot be read: {' '.join(str(error).split())}"
            raise StoreError(what, where=path, fix=EPOCH_AGAIN) from None
        allowed = {dtypes(size)[name] for size in (2, 1 << 17)}
        if not isinstance(array, np.memmap) or array.ndim != 1 or array.dtype.str not in allowed:
            raise StoreError(f"is not an array of {' or '.join(sorted(allowed))}", where=path, fix=EPOCH_AGAIN)
        found[name] = np.asarray(array)
    some = Examples(**found)
    n = len(some.lengths)
    sums = [(some.tokens, some.lengths), (some.positions, some.predictions), (some.labels, some.predictions)]
    whole = all(len(array) == int(sizes.sum(dtype=np.int64)) for array, sizes in sums)
    if not whole or {len(some.first_segment), len(some.random_next), len(some.predictions)} != {n} or not n:
        raise StoreError("has arrays that do not belong together", where=folder, fix=EPOCH_AGAIN)
    return some


def arrays_sha256(folder: str) -> str:
    return storage.sha256_of([storage.sha256_of_file(os.path.join(folder, f"{name}.npy")) for name in ARRAYS])
