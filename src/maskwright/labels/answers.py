"""A model's scores for windows to answers of questions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from maskwright.labels.encode import Encoded, SpanTargets
from maskwright.labels.example import Example

Scores = NDArray[np.float32]


def best_answers(
    encoded: Encoded,
    examples: Sequence[Example],
    start_scores: Scores,
    end_scores: Scores,
    max_answer_length: int,
    *,
    may_be_none: bool,
    null_score_diff_threshold: float = 0.0,
) -> list[str]:
    """The answer to each question: the span of its context, in any window, with the highest start + end score.

    `start_scores`, `end_scores`: float32 (ids,), one for each of `encoded.ids`. `max_answer_length`: tokens.
    `may_be_none` (SQuAD 2): the answer is "" when the score of position 0, the lowest of all windows, is above the best
    span's by more than the threshold. run_qa.py of Hugging Face decides so too, among its 20 best starts and ends;
    here all are looked at.
    """
    targets = encoded.targets
    assert isinstance(targets, SpanTargets)
    best = np.full(len(examples), -np.inf)
    none = np.full(len(examples), np.inf)
    answers = [""] * len(examples)
    for row, example in enumerate(encoded.example.tolist()):
        here = slice(encoded.offsets[row], encoded.offsets[row + 1])
        starts, ends = start_scores[here].astype(np.float64), end_scores[here].astype(np.float64)
        none[example] = min(none[example], starts[0] + ends[0])
        characters = targets.characters[here]
        inside = np.flatnonzero(characters[:, 0] >= 0)
        if not inside.size:
            continue
        sums = starts[inside][:, None] + ends[inside][None, :]
        length = np.arange(inside.size)[None, :] - np.arange(inside.size)[:, None] + 1
        empty = characters[inside, 0][:, None] >= characters[inside, 1][None, :]
        sums[(length < 1) | (length > max_answer_length) | empty] = -np.inf
        start, end = divmod(int(sums.argmax()), inside.size)
        if sums[start, end] > best[example]:
            best[example] = sums[start, end]
            context = examples[example].text_pair or ""
            answers[example] = targets.answer(encoded, row, int(inside[start]), int(inside[end]), context)
    refused = may_be_none & (none - best > null_score_diff_threshold)
    return ["" if no else answer for no, answer in zip(refused, answers, strict=True)]
