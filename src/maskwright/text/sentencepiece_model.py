"""Reads a SentencePiece model without its library: pieces with their scores, merges, and the rules by which it
normalizes.

The file is a protocol buffer. Fields are numbered as in `sentencepiece_model.proto`
(https://github.com/google/sentencepiece), and encoded as in https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from maskwright.core import storage
from maskwright.core.errors import TokenizerError

Value = int | bytes
PIECES, TRAINER, NORMALIZER = 1, 2, 3
UNIGRAM, BPE = 1, 2
CONTROL, USER_DEFINED = 3, 4
"""Kinds of pieces: such as `<s>`, which no text becomes, and such as are found anywhere in a text."""


@dataclass(frozen=True)
class SentencePieceModel:
    pieces: list[tuple[str, float]]
    """(piece, its log-probability), by id."""
    unknown: int
    charsmap: bytes
    """The table by which characters are replaced; empty if none are."""
    is_bpe: bool
    byte_fallback: bool
    """Whether characters without a piece are written in bytes: `<0xE6>`."""
    control: frozenset[int]
    """Ids of pieces that no text becomes, without the unknown one."""
    user_defined: tuple[str, ...]
    """Pieces that are found anywhere in a text."""

    def merges(self, ids: dict[str, int]) -> list[list[str]]:
        """The merges of a BPE, the first ones first. `ids`: of the kept pieces; they order pairs that make the same
        piece."""
        pairs: list[tuple[float, int, int, list[str]]] = []
        for piece, score in self.pieces:
            for cut in range(1, len(piece) if piece in ids else 0):
                left, right = piece[:cut], piece[cut:]
                if left in ids and right in ids:
                    pairs.append((-score, ids[left], ids[right], [left, right]))
        return [pair for *_, pair in sorted(pairs)]


def read_model(path: str) -> SentencePieceModel:
    """Raises `TokenizerError` for another file, and for a model other than Unigram and BPE with ▁ before each text."""
    with storage.open_binary(path) as file:
        content = file.read()
    try:
        return _model(content, path)
    except (ValueError, LookupError, struct.error, TypeError):
        raise TokenizerError("is not a SentencePiece model", where=path, fix="copy it again") from None


def _model(content: bytes, path: str) -> SentencePieceModel:
    pieces: list[tuple[str, float]] = []
    control, user_defined = set[int](), list[str]()
    trainer: dict[int, Value] = {}
    normalizer: dict[int, Value] = {}
    for number, value in _fields(content):
        if number == PIECES:
            piece = dict(_fields(_bytes(value)))
            if piece.get(3) == CONTROL:
                control.add(len(pieces))
            elif piece.get(3) == USER_DEFINED:
                user_defined.append(_bytes(piece[1]).decode())
            pieces.append((_bytes(piece[1]).decode(), struct.unpack("<f", _bytes(piece.get(2, bytes(4))))[0]))
        elif number in (TRAINER, NORMALIZER):
            (trainer if number == TRAINER else normalizer).update(_fields(_bytes(value)))
    unknown, kind = trainer.get(40, 0), trainer.get(3, UNIGRAM)
    if not pieces or not isinstance(unknown, int) or unknown >= len(pieces):
        raise ValueError("no pieces, or no unknown one among them")
    # add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces; treat_whitespace_as_suffix.
    is_usual = all(normalizer.get(field, 1) for field in (3, 4, 5)) and not trainer.get(24, 0)
    if kind not in (UNIGRAM, BPE) or not is_usual:
        what = "is not a Unigram or BPE model that puts one space before each text and writes it as ▁"
        fix = "train a tokenizer on your text: `maskwright tokenizer train --kind unigram`"
        raise TokenizerError(what, where=path, fix=fix)
    rules = _bytes(normalizer.get(2, b""))
    found = frozenset(control), tuple(user_defined)
    return SentencePieceModel(pieces, unknown, rules, kind == BPE, bool(trainer.get(35, 0)), *found)


def _fields(content: bytes) -> Iterator[tuple[int, Value]]:
    """(number, value) of each field of a message: an integer, or the bytes of all other kinds."""
    place = 0
    while place < len(content):
        key, place = _integer(content, place)
        kind = key & 7
        if kind == 0:
            value, place = _integer(content, place)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if size is None:
            if kind != 2:
                raise ValueError(f"field of kind {kind}")
            size, place = _integer(content, place)
        if place + size > len(content):
            raise ValueError("ends inside a field")
        yield key >> 3, content[place : place + size]
        place += size


def _integer(content: bytes, place: int) -> tuple[int, int]:
    """(the number of 7 bits a byte that begins at `place`, the place after it)."""
    value = 0
    for shift in range(0, 70, 7):
        byte = content[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError("a number of more than ten bytes")


def _bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError("a number where bytes were expected")
    return value
