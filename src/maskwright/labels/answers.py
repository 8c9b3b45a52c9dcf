"""Scores of windows to answers, and SQuAD's metrics of answers."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from maskwright.labels.encode import EncodedRows, SpanTargets
from maskwright.labels.example import Example

Scores = NDArray[np.float32]
ARTICLES = re.compile(r"\b(?:a|an|the)\b")
WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
UNSPACED = re.compile("[\u3005\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff]")
"""Kana and Han, which are written without spaces."""
WIDE_PUNCTUATION = re.compile("[\u3001-\u3003\u3008-\u3011\u3014-\u301f\u30fb\uff01-\uff0f\uff1a-\uff20]")


def best_answers(
    encoded: EncodedRows,
    examples: Sequence[Example],
    start_scores: Scores,
    end_scores: Scores,
    max_answer_length: int,
    *,
    may_be_none: bool,
) -> list[str]:
    """The answer to each question: the span of its context, in any window, with the highest start + end score.

    `start_scores`, `end_scores`: float32 (ids,), one for each of `encoded.ids`. `max_answer_length`: in tokens.
    `may_be_none` (SQuAD 2): the answer is "" if the score of position 0, the lowest of all windows, exceeds the best
    span's. Hugging Face's run_qa.py applies the same rule to its 20 best starts and ends; here all count.
    """
    targets = encoded.targets
    assert isinstance(targets, SpanTargets)
    best_scores = np.full(len(examples), -np.inf)
    none_scores = np.full(len(examples), np.inf)
    answers = [""] * len(examples)
    for row, example_idx in enumerate(encoded.example.tolist()):
        ids_of_row = slice(encoded.offsets[row], encoded.offsets[row + 1])
        starts, ends = start_scores[ids_of_row].astype(np.float64), end_scores[ids_of_row].astype(np.float64)
        none_scores[example_idx] = min(none_scores[example_idx], starts[0] + ends[0])
        characters = targets.characters[ids_of_row]
        inside = np.flatnonzero(characters[:, 0] >= 0)
        if not inside.size:
            continue
        start, end, score = _best_span(starts[inside], ends[inside], characters[inside], max_answer_length)
        if score > best_scores[example_idx]:
            best_scores[example_idx] = score
            context = examples[example_idx].text_pair or ""
            answers[example_idx] = targets.answer(encoded, row, int(inside[start]), int(inside[end]), context)
    is_none = may_be_none & (none_scores - best_scores > 0.0)
    return ["" if no_answer else answer for no_answer, answer in zip(is_none, answers, strict=True)]


def _best_span(
    starts: NDArray[np.float64], ends: NDArray[np.float64], characters: NDArray[np.int32], max_length: int
) -> tuple[int, int, float]:
    """(first, last, score) of the best span of up to `max_length` of the n tokens; -inf if none has a character.

    Of equal scores, the earliest start and then the earliest end count. Spans of one length are a diagonal of the
    [n, n] scores, so memory is linear in n.
    """
    n = len(starts)
    best, lengths = np.full(n, -np.inf), np.zeros(n, np.int64)
    for more in range(min(max_length, n)):
        sums = starts[: n - more] + ends[more:]
        sums[characters[: n - more, 0] >= characters[more:, 1]] = -np.inf
        is_better = sums > best[: n - more]
        best[: n - more][is_better], lengths[: n - more][is_better] = sums[is_better], more
    first = int(best.argmax())
    return first, first + int(lengths[first]), float(best[first])


# ---- SQuAD's official metrics ------------------------------------------------------------------------------------


def normalized(answer: str) -> str:
    """The answer in small letters, without ASCII and full-width punctuation and articles, with single spaces."""
    letters = WIDE_PUNCTUATION.sub("", answer.lower().translate(WITHOUT_PUNCTUATION))
    return " ".join(ARTICLES.sub(" ", letters).split())


def _words(answer: str) -> list[str]:
    """The words of a normalized answer. Each Han or kana character is one, as in CMRC 2018's and DRCD's scripts."""
    return UNSPACED.sub(r" \g<0> ", answer).split()


def accepted(example: Example) -> list[str]:
    """Normalized right answers; the empty text alone for a question without answer."""
    return [text for answer in example.answers if (text := normalized(answer.text))] or [""]


def exact_match(example: Example, answer: str) -> float:
    """1 if the normalized answer is accepted, else 0."""
    return float(normalized(answer) in accepted(example))


def overlap_f1(example: Example, answer: str) -> float:
    """F1 of the answer's words against the best accepted answer, from 0 to 1, as in version 2.0 of SQuAD's script."""
    words = _words(normalized(answer))
    return max(_f1(words, _words(right)) for right in accepted(example))


def _f1(words: list[str], right_words: list[str]) -> float:
    if not words or not right_words:
        return float(words == right_words)
    return 2.0 * (Counter(words) & Counter(right_words)).total() / (len(words) + len(right_words))
