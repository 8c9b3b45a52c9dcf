"""Examples with static masks, and findings in those of other scripts.

pytorch-transformers' script writes `[MASK]` whatever the tokenizer's mask is called, groups words by `##` alone, draws
special tokens as replacements, and without next-sentence prediction still appends text of another document to a
sequence of one sentence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.data.masking import LONGEST_GROUP_TOKENS, Masker
from maskwright.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class StaticMasks:
    """n examples with t tokens and p predictions in all. Dtypes are those of binary epochs."""

    tokens: NDArray[Any]
    """[t] masked ids; uint16, or uint32 above 65,536 tokens."""
    lengths: NDArray[Any]
    """[n] tokens of each; uint32."""
    first_segment: NDArray[Any]
    """[n] tokens before the second segment, all of them without one; uint32."""
    random_next: NDArray[Any]
    """[n] 1 where the second segment is of another document; uint8."""
    positions: NDArray[Any]
    """[p] positions of the predictions in their examples, ascending; uint16."""
    labels: NDArray[Any]
    """[p] the true ids; as `tokens`."""
    predictions: NDArray[Any]
    """[n] predictions of each; uint16."""

    @property
    def begins(self) -> NDArray[np.int64]:
        """[n] index of each one's first token among all tokens."""
        return np.cumsum(self.lengths, dtype=np.int64) - self.lengths

    @property
    def places(self) -> NDArray[np.int64]:
        """[p] indices of the predictions among all tokens."""
        return np.repeat(self.begins, self.predictions) + self.positions

    def text(self) -> NDArray[np.int32]:
        """[t] ids before masking."""
        ids = np.array(self.tokens, np.int32)
        ids[self.places] = self.labels
        return ids


ARRAYS = tuple(field.name for field in fields(StaticMasks))
FAULTS = {
    "foreign_masks": ("predictions", "predictions that show a mask which the vocabulary does not have"),
    "unknown_tokens": ("tokens", "other tokens that the vocabulary does not have"),
    "split_words": ("long_words", "masked words of several tokens that are only partly masked"),
    "special_replacements": ("predictions", "predictions that show a special token at random"),
    "special_predictions": ("predictions", "predictions of a special token"),
    "foreign_text": ("examples", "examples that end in text of another document without a separator"),
    "empty_next": ("examples", "examples with nothing in the second segment"),
    "unframed": ("examples", "examples that are not between the tokenizer's first and last special token"),
}
"""Each finding's total, of which it is a share, and its name for a person."""


def findings(examples: StaticMasks, is_unknown: NDArray[np.bool_], masker: Masker, words: Vocabulary) -> Counter[str]:
    """Counts by the names of `FAULTS`. `is_unknown` [t]: the token is not in the vocabulary."""
    masked, text, begins, ends = (examples.places, examples.text(), examples.begins, examples.begins + examples.lengths)
    special = masker.special[text]
    starts = masker.word_start[text] | special
    starts[begins] = True
    starts[(begins + examples.first_segment)[examples.first_segment < examples.lengths]] = True
    starts[1:] |= special[:-1]
    token_idx = np.arange(len(text))
    in_word = token_idx - np.maximum.accumulate(np.where(starts, token_idx, 0))
    word = np.cumsum(in_word % LONGEST_GROUP_TOKENS["whole_word"] == 0) - 1
    size = np.bincount(word)
    masked_of_word = np.bincount(word[masked], minlength=len(size))
    shown_ids, is_foreign = examples.tokens[masked], is_unknown[masked]
    return Counter(
        examples=len(examples.lengths),
        tokens=len(examples.tokens),
        predictions=len(masked),
        long_words=int(((masked_of_word > 0) & (size > 1)).sum()),
        foreign_masks=int(is_foreign.sum()),
        unknown_tokens=int(is_unknown.sum() - is_foreign.sum()),
        split_words=int(((masked_of_word > 0) & (masked_of_word < size)).sum()),
        special_replacements=int((masker.special[shown_ids] & (shown_ids != masker.mask_id) & ~is_foreign).sum()),
        special_predictions=int(special[masked].sum()),
        foreign_text=int(((examples.random_next > 0) & (examples.first_segment == examples.lengths)).sum()),
        empty_next=int((examples.lengths - examples.first_segment == 1).sum()),
        unframed=int(((examples.tokens[begins] != words.bos) | (examples.tokens[ends - 1] != words.eos)).sum()),
    )


def describe(counts: Mapping[str, int], *, whole_words: bool) -> list[str]:
    """A line for each finding. `whole_words`: whether masked parts of words are one."""
    return [
        f"{name}: {counts[key]:,} of {counts[total]:,} ({counts[key] / counts[total]:.1%})"
        for key, (total, name) in FAULTS.items()
        if counts[key] and (key != "split_words" or whole_words)
    ]
