"""Exact duplicates, and the train/valid split: both are functions of a document's text alone."""

from __future__ import annotations

import hashlib


def text_key(utf8: bytes) -> bytes:
    """16 bytes that stand for the text (BLAKE2b): two texts with one key would be chance of 2^-128."""
    return hashlib.blake2b(utf8, digest_size=16).digest()


def is_held_out(key: bytes, valid_fraction: float) -> bool:
    """By hash, so that order, sharding and other documents change nothing and equal texts share a side."""
    return int.from_bytes(key[:8], "little") < valid_fraction * 2.0**64


def text_keys(text: memoryview, starts: list[int], ends: list[int]) -> bytes:
    """`text_key` of each part of a text of bytes, one after the other."""
    digest = hashlib.blake2b
    return b"".join([digest(text[begin:end], digest_size=16).digest() for begin, end in zip(starts, ends, strict=True)])


class Duplicates:
    """Remembers keys: about 100 bytes of memory a document."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def is_new(self, key: bytes) -> bool:
        if key in self._seen:
            return False
        self._seen.add(key)
        return True
