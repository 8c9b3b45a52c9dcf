"""BERT's TFRecord files of masked examples (`create_pretraining_data.py`). Masked tokens are put back.

A record is its length (u64), a checksum of that, the bytes and a checksum of those. The bytes are a `tf.train.Example`:
features by name, each a list of 64-bit numbers. `masked_lm_ids` are the tokens that stood at `masked_lm_positions`, so
the text can be restored. `segment_ids` tell the two texts of a pair; they are one document unless
`next_sentence_labels` says that the second is from elsewhere.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from maskwright.core import storage
from maskwright.core.errors import StoreError
from maskwright.data.foreign.blocks import BLOCK_TOKENS, Block, Foreign, Int64
from maskwright.text.compression import COPY_AGAIN

NEEDED = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
STATIC_MASKS = (
    "these files hold static masks. The masked tokens are put back, and training masks anew; where --dupe_factor wrote "
    "the same text several times, it occurs several times"
)
LARGEST_RECORD = 1 << 28


def open_tfrecord(files: list[str]) -> Foreign:
    return Foreign("tfrecord", files, partial(_blocks, files), messages=[STATIC_MASKS])


def _blocks(files: list[str], file_idx: int) -> Iterator[Block]:
    texts: list[Int64] = []
    first = tokens = 0
    for record, (offset, content) in enumerate(_records(files[file_idx])):
        try:
            texts_of_record = _texts(_features(content))
        except (KeyError, IndexError, ValueError, struct.error):
            what = f"record {record:,}, at byte {offset:,}, is not an example of BERT"
            raise StoreError(what, where=files[file_idx], fix=COPY_AGAIN) from None
        texts += texts_of_record
        tokens += sum(map(len, texts_of_record))
        if tokens >= BLOCK_TOKENS:
            yield _block(texts, file_idx, first)
            first, texts, tokens = first + len(texts), [], 0
    if texts:
        yield _block(texts, file_idx, first)


def _block(texts: list[Int64], file_idx: int, first: int) -> Block:
    return Block(np.concatenate(texts), np.array([len(text) for text in texts], np.int64), file_idx, first)


def _records(path: str) -> Iterator[tuple[int, bytes]]:
    """(byte at which it begins, content) of each record."""
    begin = 0
    with storage.open_binary(path) as file:
        while head := file.read(12):
            size, checksum = (int.from_bytes(part, "little") for part in (head[:8], head[8:]))
            is_head = len(head) == 12 and size < LARGEST_RECORD and checksum == _masked(head[:8])
            content = file.read(size + 4) if is_head else b""
            if not is_head or len(content) != size + 4:
                what = f"is cut or damaged at byte {begin:,}" if begin else "is not a TFRecord file, or is cut"
                raise StoreError(what, where=path, fix=f"{COPY_AGAIN}; unpack it first if it is compressed")
            yield begin, content[:-4]
            begin += size + 16


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


def _varint(content: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[offset]
        value |= (byte & 127) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 128:
            return value, offset
        if shift > 63:
            raise ValueError


def _fields(content: bytes) -> Iterator[tuple[int, bytes]]:
    """(number, bytes) of a message's fields. Raises `ValueError` for one without a length, which no Example has."""
    offset = 0
    while offset < len(content):
        key, offset = _varint(content, offset)
        if key & 7 != 2:
            raise ValueError
        size, offset = _varint(content, offset)
        if offset + size > len(content):
            raise ValueError
        yield key >> 3, content[offset : offset + size]
        offset += size


def _features(content: bytes) -> dict[str, NDArray[np.int64] | NDArray[np.float32]]:
    """Example → Features → a map of name and Feature → Int64List or FloatList, packed."""
    features_by_name: dict[str, NDArray[np.int64] | NDArray[np.float32]] = {}
    for _, features in _fields(content):
        for _, entry in _fields(features):
            parts = dict(_fields(entry))
            name = parts[1].decode()
            for field, values in _fields(parts[2]):
                if name in (*NEEDED, "next_sentence_labels"):
                    packed = b"".join(part for _, part in _fields(values))
                    features_by_name[name] = _varints(packed) if field == 3 else np.frombuffer(packed, "<f4")
    if any(name not in features_by_name for name in NEEDED):
        raise KeyError
    return features_by_name


def _varints(packed: bytes) -> Int64:
    raw = np.frombuffer(packed, np.uint8)
    last_bytes = np.flatnonzero(raw < 128)
    if not len(last_bytes) or last_bytes[-1] != len(raw) - 1:
        raise ValueError
    begin = np.concatenate([[0], last_bytes[:-1] + 1])
    byte_idx = np.arange(len(raw)) - np.repeat(begin, last_bytes - begin + 1)
    return np.add.reduceat((raw & 127).astype(np.int64) << (7 * byte_idx), begin)


def _texts(features: dict[str, NDArray[np.int64] | NDArray[np.float32]]) -> list[Int64]:
    """The one or two texts of an example, with special tokens and without padding."""
    ids, weights = features["input_ids"].astype(np.int64), features["masked_lm_weights"] > 0
    positions = features["masked_lm_positions"].astype(np.int64)[weights]
    ids[positions] = features["masked_lm_ids"].astype(np.int64)[weights]
    is_used = features["input_mask"] > 0
    if len(is_used) != len(ids) or len(features["segment_ids"]) != len(ids):
        raise ValueError
    is_random_next = int(features.get("next_sentence_labels", np.zeros(1))[0]) == 1
    second = is_used & (features["segment_ids"] == 1)
    if is_random_next and second.any():
        return [ids[is_used & ~second], ids[second]]
    return [ids[is_used]]
