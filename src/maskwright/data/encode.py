"""Documents to ids and sentence sizes. Either sentences are encoded, or whole documents whose sentence ends are found
afterwards; the faster way is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maskwright.text.arrays import Int64
from maskwright.text.document import Document
from maskwright.text.encoder import Encoder


@dataclass(frozen=True)
class Encoded:
    ids: NDArray[np.uint32]
    """[tokens] of documents, one after the other."""
    sentence_sizes: Int64
    """[sentences]: tokens of each."""
    document_sizes: Int64
    """[documents]: tokens of each."""


def encode_documents(encoder: Encoder, documents: Sequence[Document], byte_length: NDArray[np.int32]) -> Encoded:
    """`byte_length` [vocabulary]: the bytes of text that each id stands for, -1 if unknown.

    A document without sentences counts as one sentence. Sentences are encoded one by one, each with the space before it
    (see `Encoder.sentence_prefix`). An encoder that is faster with documents gets documents if the bytes of ids are
    known, that is, without normalization and loss of white space. Counting bytes then finds the ends of sentences,
    since no token crosses the space between two sentences. If a token does cross it, by splitting rules of its own, the
    document is encoded by sentence."""
    counts = np.array([len(document.parts) for document in documents])
    first_of_document = np.cumsum(counts) - counts
    if encoder.by_sentence or byte_length.max(initial=-1) < 0:
        ids, sizes = _by_sentence(encoder, documents)
        return Encoded(ids, sizes, np.add.reduceat(sizes, first_of_document))
    ids, sizes = encoder.encode([document.utf8 for document in documents])
    if not any(document.has_sentences for document in documents):
        return Encoded(ids, sizes, sizes)
    all_sizes = _split(byte_length[ids], _byte_lengths(documents))
    if all_sizes is not None and np.array_equal(np.add.reduceat(all_sizes, first_of_document), sizes):
        return Encoded(ids, all_sizes, sizes)
    pieces: list[NDArray[np.uint32]] = []
    sentence_sizes: list[Int64] = []
    for document, part in zip(documents, np.split(ids, np.cumsum(sizes)[:-1]), strict=True):
        sizes_of_document = _split(byte_length[part], _byte_lengths([document]))
        if sizes_of_document is None:
            part, sizes_of_document = _by_sentence(encoder, [document])
        pieces.append(part)
        sentence_sizes.append(sizes_of_document)
    return Encoded(np.concatenate(pieces), np.concatenate(sentence_sizes), np.array([len(part) for part in pieces]))


def _by_sentence(encoder: Encoder, documents: Sequence[Document]) -> tuple[NDArray[np.uint32], Int64]:
    """(ids, tokens of each sentence), each sentence as it is inside its document, with the space before it."""
    sentences = [sentence for document in documents for sentence in document.parts]
    is_first = [number == 0 for document in documents for number in range(len(document.parts))]
    prefixes = (" " if text.startswith(encoder.added) else encoder.sentence_prefix for text in sentences)
    words = zip(prefixes, sentences, is_first, strict=True)
    parts = [text if first else f"{prefix}{text}" for prefix, text, first in words]
    ids, sizes = encoder.encode(parts)
    after = dict[int, str]()
    for idx, end in enumerate(np.cumsum(sizes)[:-1].tolist(), 1) if encoder.before_space else ():
        if not is_first[idx] and sizes[idx - 1] and (token := encoder.before_space.get(int(ids[end - 1]))):
            after[idx] = token
    if not after:
        return ids, sizes
    with_token = [f"{token} {sentences[idx]}" for idx, token in after.items()]
    found, found_sizes = encoder.encode(with_token)
    replaced = np.split(ids, np.cumsum(sizes)[:-1])
    for idx, part in zip(after, np.split(found, np.cumsum(found_sizes)[:-1]), strict=True):
        replaced[idx] = part[1:]
    return np.concatenate(replaced), np.array([len(part) for part in replaced])


def _split(token_bytes: NDArray[np.int32], sentence_bytes: Int64) -> Int64 | None:
    """[sentences]: tokens of each; None if a sentence does not end where a token does."""
    if not len(token_bytes) or token_bytes.min() < 0:
        return None
    # 4 bytes take half the time. Both sides have the same type, since searchsorted would convert the longer one.
    dtype = np.int32 if sentence_bytes.sum() < 1 << 31 else np.int64
    ends, borders = np.cumsum(token_bytes, dtype=dtype), np.cumsum(sentence_bytes, dtype=dtype)
    last_tokens = np.searchsorted(ends, borders)
    if last_tokens[-1] != len(ends) - 1 or not np.array_equal(ends[last_tokens], borders):
        return None
    return np.diff(last_tokens, prepend=-1)


def _byte_lengths(documents: Sequence[Document]) -> Int64:
    """[sentences]: UTF-8 bytes of each, with the space before it."""
    if all(document.has_sentences for document in documents):
        text = b"\n".join(document.utf8_lines for document in documents) + b"\n"
        lengths = np.diff(np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")), prepend=-1)
    else:
        lengths = np.array([len(part.encode()) + 1 for document in documents for part in document.parts], np.int64)
    counts = np.array([len(document.parts) for document in documents])
    lengths[np.cumsum(counts) - counts] -= 1
    return lengths
