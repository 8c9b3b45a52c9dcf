"""Gopher's rules of quality and repetition (Rae et al. 2021, https://arxiv.org/abs/2112.11446, appendix A1.1 and table
A1), with the paper's thresholds. Words are separated by white space.

`fault` is the rules as they read, 2 MB of text a second. `faults` gives the same for many texts: numpy finds those that
surely pass in a tenth of the time, and only the others are judged one by one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from maskwright.text.cleaning import words
from maskwright.text.cleaning.words import Int64, Words

MIN_WORDS, MAX_WORDS = 50, 100_000
MIN_WORD_LENGTH, MAX_WORD_LENGTH = 3, 10
"""Bounds of the mean, in characters."""
MAX_SYMBOLS_PER_WORD = 0.1
MAX_BULLETS, MAX_ELLIPSES = 0.9, 0.3
"""Shares of lines that begin with a bullet, and that end with an ellipsis."""
MIN_ALPHABETIC = 0.8
STOP_WORDS = frozenset({"the", "be", "to", "of", "and", "that", "have", "with"})
MIN_STOP_WORDS = 2
MAX_DUPLICATE_LINES = MAX_DUPLICATE_PARAGRAPHS = 0.3
MAX_DUPLICATE_LINE_CHARACTERS = MAX_DUPLICATE_PARAGRAPH_CHARACTERS = 0.2
TOP_NGRAMS = {2: 0.2, 3: 0.18, 4: 0.16}
DUPLICATE_NGRAMS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.1}
PUNCTUATION = re.compile(r"[\W_]+")
"""A word of such characters alone is a symbol: it is not counted as a word."""
WIDE_SPACE = re.compile("[\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")
"""White space of `str.split` that `words.split_at_white_space` does not know."""
BATCH_TEXTS = 1 << 16


def fault(text: str) -> str | None:
    """The first rule that the text breaks; None if it passes."""
    return _quality(text, text.split()) or _repetition(text)


def faults(texts: Sequence[str], utf8: Sequence[bytes]) -> list[str | None]:
    """[texts]: `fault` of each. `utf8`: the same texts."""
    reasons: list[str | None] = []
    for begin in range(0, len(texts), BATCH_TEXTS):
        batch, raw = texts[begin : begin + BATCH_TEXTS], utf8[begin : begin + BATCH_TEXTS]
        split = words.split_at_white_space(raw)
        is_good, has_few_repeats = (_surely_good_words(split, raw).tolist(), _surely_few_repeats(split, batch).tolist())
        for text, has_good_words, has_few in zip(batch, is_good, has_few_repeats, strict=True):
            if WIDE_SPACE.search(text):
                reasons.append(fault(text))
                continue
            quality = _lines_and_symbols(text, None) if has_good_words else _quality(text, text.split())
            reasons.append(quality or (_repeated_lines(text) if has_few else _repetition(text)))
    return reasons


# ---- the rules ----------------------------------------------------------------------------------------------------


def _quality(text: str, parts: list[str]) -> str | None:
    counted = [part for part in parts if not PUNCTUATION.fullmatch(part)]
    if len(counted) < MIN_WORDS:
        return f"fewer than {MIN_WORDS} words"
    if len(counted) > MAX_WORDS:
        return f"more than {MAX_WORDS:,} words"
    if not MIN_WORD_LENGTH <= sum(map(len, counted)) / len(counted) <= MAX_WORD_LENGTH:
        return f"mean word length not from {MIN_WORD_LENGTH} to {MAX_WORD_LENGTH}"
    if fault := _lines_and_symbols(text, len(parts)):
        return fault
    if sum(any(map(str.isalpha, part)) for part in parts) / len(parts) < MIN_ALPHABETIC:
        return f"fewer than {MIN_ALPHABETIC:.0%} of words with a letter"
    if len(STOP_WORDS.intersection(parts)) < MIN_STOP_WORDS:
        return f"fewer than {MIN_STOP_WORDS} stop words"
    return None


def _lines_and_symbols(text: str, count: int | None) -> str | None:
    """`count`: words; None to count them here, which only a text with symbols needs."""
    hashes, ellipses = text.count("#"), text.count("...") + text.count("…")
    if hashes or ellipses:
        count = count or len(text.split())
        if hashes / count > MAX_SYMBOLS_PER_WORD:
            return "too many #"
        if ellipses / count > MAX_SYMBOLS_PER_WORD:
            return "too many ellipses"
    if ellipses or text.count("•") + text.count("-") > MAX_BULLETS * text.count("\n"):
        lines = text.splitlines()
        if sum(line.lstrip().startswith(("•", "-")) for line in lines) / len(lines) > MAX_BULLETS:
            return f"more than {MAX_BULLETS:.0%} of lines begin with a bullet"
        if sum(line.rstrip().endswith(("...", "…")) for line in lines) / len(lines) > MAX_ELLIPSES:
            return f"more than {MAX_ELLIPSES:.0%} of lines end with an ellipsis"
    return None


def _repetition(text: str) -> str | None:
    if fault := _repeated_lines(text):
        return fault
    parts = text.split()
    for size, limit in TOP_NGRAMS.items():
        grams = Counter(" ".join(parts[index : index + size]) for index in range(len(parts) - size + 1))
        if grams:
            gram, count = grams.most_common(1)[0]
            if len(gram) * count / len(text) > limit:
                return f"the most frequent {size}-gram makes up over {limit:.0%}"
    for size, limit in DUPLICATE_NGRAMS.items():
        if _characters_of_duplicates(parts, size) / len(text) > limit:
            return f"repeated {size}-grams make up over {limit:.0%}"
    return None


def _repeated_lines(text: str) -> str | None:
    if "\n" not in text:
        return None
    for unit, separator, limit, character_limit in (
        ("paragraphs", "\n\n", MAX_DUPLICATE_PARAGRAPHS, MAX_DUPLICATE_PARAGRAPH_CHARACTERS),
        ("lines", "\n", MAX_DUPLICATE_LINES, MAX_DUPLICATE_LINE_CHARACTERS),
    ):
        pieces = [piece for part in text.strip().split(separator) if (piece := part.strip("\n"))]
        if len(set(pieces)) == len(pieces):
            continue
        repeated = sum(len(piece) * (count - 1) for piece, count in Counter(pieces).items())
        if 1 - len(set(pieces)) / len(pieces) > limit:
            return f"more than {limit:.0%} of {unit} are repeated"
        if repeated / len(text) > character_limit:
            return f"repeated {unit} make up over {character_limit:.0%}"
    return None


def _characters_of_duplicates(parts: list[str], size: int) -> int:
    """Characters in repeated n-grams. The search goes on behind each, so no character counts twice."""
    seen: set[str] = set()
    place = characters = 0
    while place <= len(parts) - size:
        gram = "".join(parts[place : place + size])
        if gram in seen:
            characters += len(gram)
            place += size
        else:
            seen.add(gram)
            place += 1
    return characters


# ---- texts that surely pass ---------------------------------------------------------------------------------------


def _surely_good_words(parts: Words, utf8: Sequence[bytes]) -> NDArray[np.bool_]:
    """[texts]: whether each keeps the rules on words even if words without an ASCII letter count against it."""
    count, lettered = np.diff(parts.first), _sums(parts.has_letter, parts.first)
    characters = _sums(parts.characters, parts.first)
    sure = _sums(parts.characters * parts.has_letter, parts.first)
    passed = (lettered >= MIN_WORDS) & (count <= MAX_WORDS) & (lettered >= MIN_ALPHABETIC * count)
    passed &= (sure >= MIN_WORD_LENGTH * count) & (characters <= MAX_WORD_LENGTH * lettered)
    spaced = [f" {word} ".encode() for word in sorted(STOP_WORDS)]
    return passed & np.array([sum(word in text for word in spaced) >= MIN_STOP_WORDS for text in utf8], bool)


def _surely_few_repeats(parts: Words, texts: Sequence[str]) -> NDArray[np.bool_]:
    """[texts]: whether each keeps the rules on n-grams, by upper bounds of what is repeated."""
    sizes = np.array([len(text) for text in texts])
    passed = np.ones(len(texts), bool)
    before = np.concatenate([[0], np.cumsum(parts.characters)])  # characters of words before each word
    for size, limit in TOP_NGRAMS.items():
        counts, starts, owners, _ = _repeated(parts, size)
        heaviest = np.zeros(len(texts), np.int64)
        np.maximum.at(heaviest, owners, counts * (before[starts + size] - before[starts] + size - 1))
        passed &= heaviest <= limit * sizes
    # Words in repeated 5-grams: repeated longer n-grams consist of them.
    size = min(DUPLICATE_NGRAMS)
    _, starts, _, is_repeat = _repeated(parts, size)
    starts = starts[is_repeat]
    change = np.zeros(len(parts.hashes) + 1, np.int64)
    np.add.at(change, starts, 1)
    np.add.at(change, starts + size, -1)
    covered = _sums(parts.characters * (np.cumsum(change)[:-1] > 0), parts.first)
    return passed & (covered <= min(DUPLICATE_NGRAMS.values()) * sizes)


def _repeated(parts: Words, size: int) -> tuple[Int64, Int64, Int64, NDArray[np.bool_]]:
    """For each occurrence of an n-gram that its text repeats: (occurrences of the n-gram, index of its first word, of
    its text, whether it is not the first occurrence)."""
    grams, first = words.ngrams(parts, size)
    counts = np.diff(first)
    owners = np.repeat(np.arange(len(counts)), counts)
    keys = (owners.astype(np.uint64) << np.uint64(48)) | (grams >> np.uint64(16))
    order = np.argsort(keys)
    keys = keys[order]
    borders = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1], [True]])[: len(keys) + 1])
    times = np.diff(borders)
    is_repeated = times > 1
    firsts = np.minimum.reduceat(order, borders[:-1])[is_repeated] if len(keys) else order
    occurrences = order[np.repeat(is_repeated, times)]
    times = times[is_repeated]
    starts = occurrences - first[owners[occurrences]] + parts.first[owners[occurrences]]
    return (np.repeat(times, times), starts, owners[occurrences], occurrences != np.repeat(firsts, times))


def _sums(values: NDArray[np.int64] | NDArray[np.bool_], first: Int64) -> Int64:
    """Sums over the words of each text."""
    sums = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    return sums[first[1:]] - sums[first[:-1]]
