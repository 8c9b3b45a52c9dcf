"""Documents of sentences to sequences, as BERT's scripts build them: sentences up to a target length, which is
sometimes shorter. With next-sentence prediction, the second segment follows the first or comes from another document.

No text is lost and none is added. A sentence that does not fit begins the next sequence, and a sentence that is longer
than a sequence is cut. Without next-sentence prediction, a sequence never has text of another document.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from maskwright.core.errors import InputError
from maskwright.data import bits
from maskwright.data.foreign.blocks import Ids
from maskwright.data.store import Split
from maskwright.text.arrays import Int64
from maskwright.text.vocabulary import Vocabulary

PURPOSE = 0x5E9
LONGEST_TOKENS = 1 << 20
LENGTH, SHORTER, SPLIT, NEXT, OTHER, SENTENCE = range(6)
"""Purposes of draws."""


@dataclass(frozen=True)
class PregenerateOptions:
    """The original script's options, with its names and defaults."""

    epochs_to_generate: int = 3
    max_seq_len: int = 128
    short_seq_prob: float = 0.1
    masked_lm_prob: float = 0.15
    max_predictions_per_seq: int = 20
    do_whole_word_mask: bool = False
    do_next_sent_prediction: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("short_seq_prob", "masked_lm_prob"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise InputError(f"--{name} {getattr(self, name):g} is not from 0 to 1", fix="try 0.1 or 0.15")
        if not 8 <= self.max_seq_len <= 8192:
            raise InputError(f"--max_seq_len {self.max_seq_len} is not from 8 to 8,192", fix="try 128 or 512")
        if min(self.epochs_to_generate, self.max_predictions_per_seq) < 1 or self.seed < 0:
            what = "--epochs_to_generate and --max_predictions_per_seq must be 1 or more, --seed 0 or more"
            raise InputError(what, fix="raise the lower one")


class Text(NamedTuple):
    """A shard of a store, opened."""

    first_row: int
    """The shard's first row number: see `Unmasked.row`."""
    ids: Ids
    """[tokens], memory-mapped."""
    document_ends: Int64
    sentence_ends: Int64
    """[sentences], token offsets; the documents' ends if sentences are not marked."""


class SentenceRun(NamedTuple):
    """A document of a shard, or a run of a long one's sentences."""

    number: int
    begin: int
    """Tokens of the shard before it."""
    ids: Ids
    """[tokens], memory-mapped."""
    ends: Int64
    """[sentences], rising."""


class Unmasked(NamedTuple):
    """A sequence before masking."""

    ids: NDArray[np.int32]
    """[tokens], special ones included."""
    first_segment: int
    random_next: bool
    row: int
    """Unique number in the epoch."""
    predictions: int
    """Number of predictions."""


def read_text(split: Split, shard_idx: int) -> Text:
    """A shard of the split."""
    shard = split.shards[shard_idx]
    ends, sentences = shard.document_ends(), shard.sentence_ends()
    return Text(shard_idx << 40, split.ids(shard_idx), ends, ends if sentences is None else sentences)


def documents(text: Text, first: int, last: int) -> Iterator[SentenceRun]:
    """Documents `first` to `last` (exclusive). Documents of over about `LONGEST_TOKENS` come as several."""
    begin = int(text.document_ends[first - 1]) if first else 0
    for number, end in enumerate(text.document_ends[first:last].tolist(), first):
        low, high = np.searchsorted(text.sentence_ends, [begin, end], side="right")
        ends = np.unique(text.sentence_ends[low:high])
        while len(ends):
            count = max(1, int(np.searchsorted(ends, begin + LONGEST_TOKENS, side="right")))
            yield SentenceRun(number, begin, text.ids[begin : int(ends[count - 1])], ends[:count] - begin)
            begin, ends = int(ends[count - 1]), ends[count:]


def sequences(
    text: Text, document: SentenceRun, other: Text, options: PregenerateOptions, words: Vocabulary, epoch: int
) -> Iterator[Unmasked]:
    """The document's sequences in an epoch, a pure function of both and the seed. `other`: the shard of another
    document if `text` has only one."""
    pairs, first_row = options.do_next_sent_prediction, text.first_row + document.begin
    room = options.max_seq_len - (3 if pairs else 2)
    bounds = _bounds(document.ends, room // 2 if pairs else room)
    key, target, sentence_idx = bits.key(options.seed, PURPOSE, epoch, first_row), room, 0
    if _draw(key, LENGTH) < options.short_seq_prob:
        target = 2 + int(_draw(key, SHORTER) * (room - 1))
    while sentence_idx < len(bounds) - 1:
        begin, last = bounds[sentence_idx], sentence_idx + 1
        while last < len(bounds) - 1 and bounds[last] - begin < target and bounds[last + 1] - begin <= room:
            last += 1
        sequence_key, middle, random_next = bits.key(int(key), sentence_idx), last, False
        if pairs:
            middle = sentence_idx + 1 + int(_draw(sequence_key, SPLIT) * max(last - sentence_idx - 1, 1))
            random_next = middle >= last or _draw(sequence_key, NEXT) < 0.5
            middle = min(middle, last)
        first, second = document.ids[begin : bounds[middle]], document.ids[bounds[middle] : bounds[last]]
        if random_next:
            longest = min(max(target - len(first), 1), room - len(first))
            second, last = _other_text(text, document.number, other, sequence_key)[:longest], middle
        second_part = [second, [words.eos]] if len(second) else []
        ids = np.concatenate([[words.bos], first, [words.eos], *second_part]).astype(np.int32)
        predictions = max(1, round(len(ids) * options.masked_lm_prob))
        yield Unmasked(ids, len(first) + 2, random_next, first_row + begin, predictions)
        sentence_idx = last


def _other_text(text: Text, document: int, other: Text, key: np.uint64) -> Ids:
    """The tokens of another document, drawn among the others of the shard, from a drawn sentence on."""
    is_only = len(text.document_ends) == 1
    document_idx = int(_draw(key, OTHER) * (len(other.document_ends) if is_only else len(text.document_ends) - 1))
    document_idx += not is_only and document_idx >= document
    chosen = next(documents(other if is_only else text, document_idx, document_idx + 1))
    sentence_idx = int(_draw(key, SENTENCE) * len(chosen.ends))
    return chosen.ids[int(chosen.ends[sentence_idx - 1]) if sentence_idx else 0 :]


def _draw(key: np.uint64, purpose: int) -> float:
    return float(bits.uniform(bits.extend(key, np.array([purpose], np.uint64)))[0])


def _bounds(ends: Int64, longest: int) -> list[int]:
    """Token offsets of sentences, long ones cut, and the end of the last one."""
    bounds = [0]
    for end in ends.tolist():
        bounds += [*range(bounds[-1] + longest, end, longest), end]
    return bounds
