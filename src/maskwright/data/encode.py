"""Turns documents into ids and sentence ends. Either sentences are encoded, or whole documents whose sentence ends are
found afterwards, whichever is faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maskwright.text.document import Document
from maskwright.text.encoder import Encoder

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Encoded:
    """Ids of documents one after the other, and the number of ids in each sentence and each document."""

    ids: NDArray[np.uint32]
    sentence_sizes: Int64
    document_sizes: Int64


def encode_documents(encoder: Encoder, documents: Sequence[Document], byte_length: NDArray[np.int32]) -> Encoded:
    """`byte_length` [vocabulary]: the bytes of text that each id stands for, -1 if unknown.

    A document without sentences counts as one sentence. Sentences are encoded one by one, each with the space before
    it (see `Encoder.joint`). If the encoder is faster with documents and ids stand for a known number of bytes, it
    encodes documents: no token crosses the space between two sentences, so counting bytes finds where sentences end. A
    document in which a token does cross (the tokenizer has splitting rules of its own) is encoded by sentence. So is
    everything where bytes are unknown: a tokenizer that normalizes, or loses white space.
    """
    counts = np.array([len(document.parts) for document in documents])
    first_of_document = np.cumsum(counts) - counts
    if encoder.by_sentence or byte_length.max(initial=-1) < 0:
        parts = [part for document in documents for part in _spaced(document, encoder.joint)]
        ids, sizes = encoder.encode(parts)
        return Encoded(ids, sizes, np.add.reduceat(sizes, first_of_document))
    ids, sizes = encoder.encode([document.utf8 for document in documents])
    if not any(document.has_sentences for document in documents):
        return Encoded(ids, sizes, sizes)
    together = _split(byte_length[ids], _byte_lengths(documents))
    if together is not None and np.array_equal(np.add.reduceat(together, first_of_document), sizes):
        return Encoded(ids, together, sizes)
    pieces: list[NDArray[np.uint32]] = []
    sentence_sizes: list[Int64] = []
    for document, part in zip(documents, np.split(ids, np.cumsum(sizes)[:-1]), strict=True):
        alone = _split(byte_length[part], _byte_lengths([document]))
        if alone is None:
            part, alone = encoder.encode(_spaced(document, encoder.joint))
        pieces.append(part)
        sentence_sizes.append(alone)
    return Encoded(np.concatenate(pieces), np.concatenate(sentence_sizes), np.array([len(part) for part in pieces]))


def without_empty(encoded: Encoded, documents: Sequence[Document]) -> tuple[Encoded, NDArray[np.bool_]]:
    """The same without documents of which no id is left, and [documents] which ones stay."""
    some = encoded.document_sizes > 0
    if some.all():
        return encoded, some
    of_sentence = np.repeat(some, [len(document.parts) for document in documents])
    return Encoded(encoded.ids, encoded.sentence_sizes[of_sentence], encoded.document_sizes[some]), some


def _spaced(document: Document, joint: str) -> list[str]:
    """The document's sentences. Each but the first has the space that joins it to the sentence before."""
    first, *others = document.parts
    return [first, *(f"{joint}{sentence}" for sentence in others)]


def _split(token_bytes: NDArray[np.int32], sentence_bytes: Int64) -> Int64 | None:
    """The number of tokens in each sentence; None if some sentence does not end where a token does."""
    if not len(token_bytes) or token_bytes.min() < 0:
        return None
    # 4 bytes take half the time. Both sides have one type, or searchsorted would convert the longer one.
    kind = np.int32 if sentence_bytes.sum() < 1 << 31 else np.int64
    ends, borders = np.cumsum(token_bytes, dtype=kind), np.cumsum(sentence_bytes, dtype=kind)
    last = np.searchsorted(ends, borders)
    if last[-1] != len(ends) - 1 or not np.array_equal(ends[last], borders):
        return None
    return np.diff(last, prepend=-1)


def _byte_lengths(documents: Sequence[Document]) -> Int64:
    """Bytes of each sentence in UTF-8, with the space that joins it to the sentence before."""
    if all(document.has_sentences for document in documents):
        text = b"\n".join(document.utf8_lines for document in documents) + b"\n"
        lengths = np.diff(np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")), prepend=-1)
    else:
        lengths = np.array([len(part.encode()) + 1 for document in documents for part in document.parts], np.int64)
    counts = np.array([len(document.parts) for document in documents])
    lengths[np.cumsum(counts) - counts] -= 1
    return lengths
