"""Exact duplicates, and the train/valid split: both are functions of a document's text alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def text_key(utf8: bytes) -> bytes:
    """16 bytes that stand for the text (BLAKE2b): two texts with one key would be chance of 2^-128."""
    return hashlib.blake2b(utf8, digest_size=16).digest()


def is_held_out(key: bytes, valid_fraction: float) -> bool:
    """By hash, so that order, sharding and other documents change nothing and equal texts share a side."""
    return int.from_bytes(key[:8], "little") < valid_fraction * 2.0**64


def text_keys(texts: Iterable[memoryview]) -> bytes:
    """`text_key` of each, one after the other."""
    digest = hashlib.blake2b
    return b"".join([digest(text, digest_size=16).digest() for text in texts])


class Duplicates:
    """Remembers keys: about 100 bytes of memory a document."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def is_new(self, key: bytes) -> bool:
        if key in self._seen:
            return False
        self._seen.add(key)
        return True
