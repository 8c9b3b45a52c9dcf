"""What is wrong in pregenerated examples, counted while they are read.

The original script writes `[MASK]` whatever the tokenizer's mask is called, groups words by `##` alone, draws special
tokens as replacements, and without next-sentence prediction still appends text of another document to a sequence of
one sentence.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

import numpy as np
from numpy.typing import NDArray

from maskwright.data.masking import Masker
from maskwright.data.pregenerated.examples import Examples


@dataclass
class Findings:
    """Counts over examples."""

    examples: int = 0
    tokens: int = 0
    predictions: int = 0
    foreign_masks: int = 0
    """Predictions that show a mask the vocabulary does not have, as `[MASK]` with RoBERTa's."""
    unknown_tokens: int = 0
    """Other strings that are not in the vocabulary."""
    split_words: int = 0
    """Words of several tokens of which only some are predicted."""
    long_words: int = 0
    """Words of several tokens of which any is predicted."""
    special_replacements: int = 0
    """Predictions that show a special token other than the mask."""
    special_predictions: int = 0
    """Predictions of a special token."""
    foreign_text: int = 0
    """Examples of one segment that are marked `is_random_next`: text of another document was appended."""
    empty_next: int = 0
    """Examples whose second segment is its `</s>` alone."""
    unframed: int = 0
    """Examples that do not begin with the tokenizer's first special token, or not end with its last."""
    longest: int = 0
    most_predictions: int = 0

    def __add__(self, other: Findings) -> Findings:
        most = ("longest", "most_predictions")
        mine, theirs = asdict(self), asdict(other)
        return Findings(**{n: max(v, theirs[n]) if n in most else v + theirs[n] for n, v in mine.items()})

    def wrong(self, mask_token: str, *, whole_words: bool = True) -> list[str]:
        """A sentence for each thing that is wrong; parts of words are where whole words were asked for, or may have
        been."""
        told = {
            "foreign_masks": f"{_of(self.foreign_masks, self.predictions, 'prediction*', 'shows', 'show')} a mask that "
            f"the vocabulary does not have: training reads the unknown token instead of {mask_token}",
            "unknown_tokens": f"{_some(self.unknown_tokens, 'other token*', 'is', 'are')} not in the vocabulary: "
            "another tokenizer made the examples",
            "split_words": f"{_of(self.split_words, self.long_words, TOUCHED, 'is', 'are')} only partly masked, so "
            "there is no whole-word masking",
            "special_replacements": f"{_some(self.special_replacements, 'prediction*', 'shows', 'show')} a special "
            "token at random",
            "special_predictions": f"{_some(self.special_predictions, 'prediction*', 'is', 'are')} of a special token",
            "foreign_text": f"{_of(self.foreign_text, self.examples, 'example*', 'ends', 'end')} in text of another "
            "document without a separator",
            "empty_next": f"{_of(self.empty_next, self.examples, 'example*', 'has', 'have')} nothing in the second "
            "segment",
            "unframed": f"{_some(self.unframed, 'example*', 'is', 'are')} not between the tokenizer's first and last "
            "special token",
        }
        return [
            sentence
            for name, sentence in told.items()
            if getattr(self, name) and (name != "split_words" or whole_words)
        ]


NAMES = tuple(field.name for field in fields(Findings))
TOUCHED = "word* of several tokens that a mask touches"


def _some(count: int, what: str, one: str, several: str) -> str:
    return f"{count:,} {what.replace('*', 's'[: count != 1])} {one if count == 1 else several}"


def _of(count: int, total: int, what: str, one: str, several: str) -> str:
    """`what`: with a * for its plural's s."""
    things = what.replace("*", "s"[: total != 1])
    return f"{count:,} of {total:,} {things} ({count / max(total, 1):.1%}) {one if count == 1 else several}"


def originals(some: Examples) -> NDArray[np.int32]:
    """[t] the text's ids, with what was masked."""
    ids = np.array(some.tokens, np.int32)
    ids[some.places] = some.labels
    return ids


def examine(some: Examples, unknown: NDArray[np.bool_], masker: Masker, bos: int, eos: int) -> Findings:
    """`unknown` [t]: where a string was not in the vocabulary."""
    places, true = some.places, originals(some)
    ends = np.cumsum(some.lengths, dtype=np.int64)
    begins = ends - some.lengths
    special = masker.special[true]
    starts = masker.word_start[true] | special
    starts[begins] = True
    second = (begins + some.first_segment)[some.first_segment < some.lengths]
    starts[second] = True
    starts[1:] |= special[:-1]
    word = np.cumsum(starts) - 1
    size = np.bincount(word)
    touched = np.bincount(word[places], minlength=len(size))
    shown = some.tokens[places]
    at_mask = unknown[places]
    return Findings(
        examples=len(some.lengths),
        tokens=len(some.tokens),
        predictions=len(places),
        foreign_masks=int(at_mask.sum()),
        unknown_tokens=int(unknown.sum() - at_mask.sum()),
        split_words=int(((touched > 0) & (touched < size) & (size > 1)).sum()),
        long_words=int(((touched > 0) & (size > 1)).sum()),
        special_replacements=int((masker.special[shown] & (shown != masker.mask_id) & ~at_mask).sum()),
        special_predictions=int(special[places].sum()),
        foreign_text=int(((some.random_next > 0) & (some.first_segment == some.lengths)).sum()),
        empty_next=int((some.lengths - some.first_segment == 1).sum()),
        unframed=int(((some.tokens[begins] != bos) | (some.tokens[ends - 1] != eos)).sum()),
        longest=int(some.lengths.max()),
        most_predictions=int(some.predictions.max()),
    )
