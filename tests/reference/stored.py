"""What a store holds, document by document."""

import hashlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.data.plans import ShardPlans
from maskwright.data.rows import Rows
from maskwright.data.store import Shard, Split


def documents_of(split: Split) -> list[NDArray[np.int64]]:
    """The ids of each document."""
    return [ids.astype(np.int64) for ids in split.beginnings(1 << 40)]


def spans_of(split: Split) -> Iterator[tuple[int, int, int]]:
    """(shard, begin, end) of each document."""
    for shard_idx, shard in enumerate(split.shards):
        starts, ends = shard.documents_at()
        yield from ((shard_idx, int(begin), int(end)) for begin, end in zip(starts, ends, strict=True))


def shard_of(tokens: list[int], document_ends: list[int], sentence_ends: list[int] | None = None) -> Shard:
    """A shard that lies in memory."""
    ends = None if sentence_ends is None else np.array(sentence_ends, np.int64)
    ids, documents = np.array(tokens, np.uint16), np.array(document_ends, np.int64)
    return Shard(int(documents[-1]), len(documents), lambda: ids, lambda: documents, lambda: ends)


def rows_of(split: Split, seq_len: int, packing: Any) -> Rows:
    """Of a vocabulary of 99 tokens that begins with <s>, <pad> and </s>."""
    words = SimpleNamespace(bos=0, pad=1, eos=2, size=99)
    sentences = [None if (ends := shard.sentence_ends()) is None else ends.tolist() for shard in split.shards]
    digest = hashlib.sha256(repr([documents_of(split), [*spans_of(split)], sentences]).encode()).hexdigest()
    plans = ShardPlans(split, digest, "train", seq_len, packing)
    return Rows(split, plans, words, "here")  # type: ignore[arg-type]
