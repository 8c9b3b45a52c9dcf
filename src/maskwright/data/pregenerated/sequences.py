"""Documents of sentences to sequences, as BERT's scripts make them: sentence after sentence up to a length, or now and
then up to a shorter one; with next-sentence prediction, a second segment follows or is of another document.

No text is lost and none is added: a sentence that does not fit begins the next sequence, one that is longer than a
sequence is cut, and without next-sentence prediction a sequence never has text of another document.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.data import bits
from maskwright.data.pregenerated.masks import Unmasked
from maskwright.data.store import Split
from maskwright.text.vocabulary import Vocabulary

Int64 = NDArray[np.int64]
PURPOSE = 0x5E9
LONGEST_TOKENS = 1 << 20
LENGTH, SHORTER, SPLIT, NEXT, OTHER = range(5)
"""What a draw is for."""


@dataclass(frozen=True)
class Shape:
    """How long sequences are."""

    max_seq_len: int = 128
    short_seq_prob: float = 0.1
    next_sentences: bool = False

    @property
    def room(self) -> int:
        """Tokens of text: a sequence has two special tokens, and three with a second segment."""
        return self.max_seq_len - (3 if self.next_sentences else 2)


class Documents:
    """Documents of a split as runs of sentences. One of more than `LONGEST_TOKENS` counts as several, so that memory
    has a bound however text is parted."""

    def __init__(self, split: Split) -> None:
        self.split = split
        self.first = np.cumsum([0, *(shard.tokens for shard in split.shards)])
        """[shards + 1]: the first token of each. Offsets below are in all shards, one after the other."""
        document_ends, marked = self._all("document_ends"), self._all("sentence_ends")
        sentences = document_ends if marked is None else marked
        cuts = np.arange(LONGEST_TOKENS, split.tokens, LONGEST_TOKENS)
        starts = np.append(0, document_ends)[np.searchsorted(document_ends, cuts, side="right")]
        cuts = cuts[cuts - starts >= LONGEST_TOKENS]  # inside long documents only
        if marked is None:
            sentences = np.union1d(sentences, cuts)
        self.ends = np.union1d(document_ends, sentences[np.searchsorted(sentences, cuts)])
        self.sentences = sentences
        self.last = np.searchsorted(self.sentences, self.ends) + 1
        """[documents]: sentences up to the end of each."""

    def _all(self, name: str) -> Any:
        """Ends of documents or sentences of all shards; None if they are not marked."""
        pairs = [(getattr(shard, name)(), first) for shard, first in zip(self.split.shards, self.first, strict=False)]
        return None if any(ends is None for ends, _ in pairs) else np.concatenate([ends + one for ends, one in pairs])

    def tokens(self, begin: int, end: int) -> NDArray[np.int32]:
        """Those of one document, from token `begin` to `end`."""
        shard_idx = int(np.searchsorted(self.first, begin, side="right")) - 1
        return self.split.gather(shard_idx, np.array([begin - self.first[shard_idx]]), np.array([end - begin]))

    def bounds(self, document: int, longest: int) -> list[int]:
        """Token offsets of the document's sentences and its end; long sentences are cut."""
        first = int(self.last[document - 1]) if document else 0
        begin = int(self.ends[document - 1]) if document else 0
        found = [begin]
        for end in self.sentences[first : int(self.last[document])].tolist():
            found += [*range(found[-1] + longest, end, longest), end] if end > found[-1] else []
        return found

    def other(self, document: int, draw: float) -> tuple[int, int]:
        """(token, end of its document) at which a sentence of another document begins; all are as likely."""
        first, last = int(self.last[document - 1]) if document else 0, int(self.last[document])
        number = int(draw * (len(self.sentences) - (last - first)))
        number += (last - first) * (number >= first)
        begin = int(self.sentences[number - 1]) if number else 0
        return begin, int(self.ends[np.searchsorted(self.ends, begin, side="right")])


def sequences(
    documents: Documents, document: int, words: Vocabulary, shape: Shape, *, seed: int, epoch: int
) -> Iterator[Unmasked]:
    """Those of a document in an epoch: a pure function of the two and the seed."""
    key = bits.key(seed, PURPOSE, epoch, document)
    room = shape.room
    bounds = documents.bounds(document, room // 2 if shape.next_sentences else room)
    target = room
    if _draw(key, 0, LENGTH) < shape.short_seq_prob:
        target = 2 + int(_draw(key, 0, SHORTER) * (room - 1))
    at = number = 0
    while at < len(bounds) - 1:
        begin, last = bounds[at], at + 1
        while last < len(bounds) - 1 and bounds[last] - begin < target and bounds[last + 1] - begin <= room:
            last += 1
        number += 1
        own = bits.key(int(key), number)
        if shape.next_sentences:
            middle = at + 1 + int(_draw(own, 0, SPLIT) * max(last - at - 1, 1))
            alone = middle >= last
            if alone or _draw(own, 0, NEXT) < 0.5:
                last = min(middle, last)
                first, second = _with_other(documents, document, begin, bounds[last], target, room, own)
                yield _pair(first, second, words, own, random_next=True)
            else:
                first = documents.tokens(begin, bounds[middle])
                yield _pair(first, documents.tokens(bounds[middle], bounds[last]), words, own, random_next=False)
        else:
            text = documents.tokens(begin, bounds[last])
            yield Unmasked(np.concatenate([[words.bos], text, [words.eos]]).astype(np.int32), len(text) + 2, False, own)
        at = last


def _draw(key: np.uint64, number: int, purpose: int) -> float:
    return float(bits.uniform(bits.extend(key, np.array([number + (purpose + 1) * 2**40], np.uint64)))[0])


def _with_other(
    documents: Documents, document: int, begin: int, end: int, target: int, room: int, key: np.uint64
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    first = documents.tokens(begin, end)
    other, other_end = documents.other(document, _draw(key, 0, OTHER))
    length = min(max(target - len(first), 1), room - len(first), other_end - other)
    return first, documents.tokens(other, other + length)


def _pair(
    first: NDArray[np.int32], second: NDArray[np.int32], words: Vocabulary, key: np.uint64, *, random_next: bool
) -> Unmasked:
    ids = np.concatenate([[words.bos], first, [words.eos], second, [words.eos]]).astype(np.int32)
    return Unmasked(ids, len(first) + 2, random_next, key)
