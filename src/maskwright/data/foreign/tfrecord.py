"""BERT's TFRecord files of masked examples (`create_pretraining_data.py`). What was masked is put back.

A record is its length (u64), a checksum of that, the bytes and a checksum of those. The bytes are a `tf.train.Example`:
features by name, each a list of 64-bit numbers. `masked_lm_ids` are the tokens that stood at `masked_lm_positions`, so
the text is there again. `segment_ids` tell the two texts of a pair; they are one document unless `next_sentence_labels`
says that the second is from elsewhere.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from maskwright.core import storage
from maskwright.core.errors import StoreError
from maskwright.data.foreign.blocks import BLOCK_TOKENS, COPY_AGAIN, Block, Foreign, Int64

NEEDED = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
STATIC_MASKS = (
    "these files hold static masks. The masked tokens are put back, and training masks anew; where --dupe_factor wrote "
    "the same text several times, it is there several times"
)
LARGEST_RECORD = 1 << 28


def open_tfrecord(files: list[str]) -> Foreign:
    return Foreign("tfrecord", files, partial(_blocks, files), messages=[STATIC_MASKS])


def _blocks(files: list[str], number: int) -> Iterator[Block]:
    texts: list[Int64] = []
    first = tokens = 0
    for record, (at, content) in enumerate(_records(files[number])):
        try:
            found = _texts(_features(content))
        except (KeyError, IndexError, ValueError, struct.error):
            what = f"record {record:,}, at byte {at:,}, is no example of BERT"
            raise StoreError(what, where=files[number], fix=COPY_AGAIN) from None
        texts += found
        tokens += sum(map(len, found))
        if tokens >= BLOCK_TOKENS:
            yield _block(texts, number, first)
            first, texts, tokens = first + len(texts), [], 0
    if texts:
        yield _block(texts, number, first)


def _block(texts: list[Int64], number: int, first: int) -> Block:
    return Block(np.concatenate(texts), np.array([len(text) for text in texts], np.int64), number, first)


def _records(path: str) -> Iterator[tuple[int, bytes]]:
    """(byte at which it begins, content) of each record."""
    at = 0
    with storage.open_binary(path) as file:
        while head := file.read(12):
            size, checksum = (int.from_bytes(part, "little") for part in (head[:8], head[8:]))
            is_head = len(head) == 12 and size < LARGEST_RECORD and checksum == _masked(head[:8])
            content = file.read(size + 4) if is_head else b""
            if not is_head or len(content) != size + 4:
                what = f"is cut or damaged at byte {at:,}" if at else "is no TFRecord file, or cut in its first record"
                raise StoreError(what, where=path, fix=f"{COPY_AGAIN}; unpack it first if it is compressed")
            yield at, content[:-4]
            at += size + 16


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def _masked(content: bytes) -> int:
    """TFRecord's checksum: CRC-32C, rotated, plus a constant."""
    # Only lengths are checked: checksums of whole records would take longer than all the rest.
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 255] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


# ---- protocol buffers: just what an Example has ----------------------------------------------------------------------


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError


def _fields(content: bytes) -> Iterator[tuple[int, bytes]]:
    """(number, bytes) of a message's fields. Raises `ValueError` for one without a length, which no Example has."""
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        if key & 7 != 2:
            raise ValueError
        size, at = _varint(content, at)
        if at + size > len(content):
            raise ValueError
        yield key >> 3, content[at : at + size]
        at += size


def _features(content: bytes) -> dict[str, NDArray[np.int64] | NDArray[np.float32]]:
    """Example → Features → a map of name and Feature → Int64List or FloatList, packed."""
    found: dict[str, NDArray[np.int64] | NDArray[np.float32]] = {}
    for _, features in _fields(content):
        for _, entry in _fields(features):
            parts = dict(_fields(entry))
            name = parts[1].decode()
            for number, values in _fields(parts[2]):
                if name in (*NEEDED, "next_sentence_labels"):
                    packed = b"".join(part for _, part in _fields(values))
                    found[name] = _varints(packed) if number == 3 else np.frombuffer(packed, "<f4")
    if any(name not in found for name in NEEDED):
        raise KeyError
    return found


def _varints(packed: bytes) -> Int64:
    raw = np.frombuffer(packed, np.uint8)
    last = np.flatnonzero(raw < 128)
    if not len(last) or last[-1] != len(raw) - 1:
        raise ValueError
    begin = np.concatenate([[0], last[:-1] + 1])
    place = np.arange(len(raw)) - np.repeat(begin, last - begin + 1)
    return np.add.reduceat((raw & 127).astype(np.int64) << (7 * place), begin)


def _texts(found: dict[str, NDArray[np.int64] | NDArray[np.float32]]) -> list[Int64]:
    """The one or two texts of an example, with special tokens and without padding."""
    ids, weights = found["input_ids"].astype(np.int64), found["masked_lm_weights"] > 0
    positions = found["masked_lm_positions"].astype(np.int64)[weights]
    ids[positions] = found["masked_lm_ids"].astype(np.int64)[weights]
    used = found["input_mask"] > 0
    if len(used) != len(ids) or len(found["segment_ids"]) != len(ids):
        raise ValueError
    is_random_next = int(found.get("next_sentence_labels", np.zeros(1))[0]) == 1
    second = used & (found["segment_ids"] == 1)
    if is_random_next and second.any():
        return [ids[used & ~second], ids[second]]
    return [ids[used]]
