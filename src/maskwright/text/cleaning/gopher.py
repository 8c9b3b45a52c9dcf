"""Gopher's rules of quality and repetition (Rae et al. 2021, https://arxiv.org/abs/2112.11446, appendix A1.1 and table
A1), with the paper's thresholds. Words are separated by white space."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

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


def fault(text: str) -> str | None:
    """The first rule that the text breaks; None if it passes."""
    parts = text.split()
    return _quality(text, parts) or _repeated_lines(text) or _repeated_ngrams(text, parts)


def _quality(text: str, parts: list[str]) -> str | None:
    counted = [part for part in parts if part[0].isalnum() or any(map(str.isalnum, part))]  # others are symbols
    if len(counted) < MIN_WORDS:
        return f"fewer than {MIN_WORDS} words"
    if len(counted) > MAX_WORDS:
        return f"more than {MAX_WORDS:,} words"
    if not MIN_WORD_LENGTH <= sum(map(len, counted)) / len(counted) <= MAX_WORD_LENGTH:
        return f"mean word length not from {MIN_WORD_LENGTH} to {MAX_WORD_LENGTH}"
    for symbol, count in (("#", text.count("#")), ("ellipses", text.count("...") + text.count("…"))):
        if count / len(parts) > MAX_SYMBOLS_PER_WORD:
            return f"too many {symbol}"
    lines = text.splitlines()
    if sum(line.lstrip().startswith(("•", "-")) for line in lines) / len(lines) > MAX_BULLETS:
        return f"more than {MAX_BULLETS:.0%} of lines begin with a bullet"
    if sum(line.rstrip().endswith(("...", "…")) for line in lines) / len(lines) > MAX_ELLIPSES:
        return f"more than {MAX_ELLIPSES:.0%} of lines end with an ellipsis"
    if sum(part[0].isalpha() or any(map(str.isalpha, part)) for part in parts) / len(parts) < MIN_ALPHABETIC:
        return f"fewer than {MIN_ALPHABETIC:.0%} of words with a letter"
    if len(STOP_WORDS.intersection(parts)) < MIN_STOP_WORDS:
        return f"fewer than {MIN_STOP_WORDS} stop words"
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
        if (len(pieces) - len(set(pieces))) / len(pieces) > limit:
            return f"more than {limit:.0%} of {unit} are repeated"
        if repeated / len(text) > character_limit:
            return f"repeated {unit} make up over {character_limit:.0%}"
    return None


def _repeated_ngrams(text: str, parts: list[str]) -> str | None:
    longest = max(map(len, parts)) + 1
    for size, limit in TOP_NGRAMS.items():
        gram, count = Counter(_ngrams(parts, size)).most_common(1)[0]
        if len(" ".join(gram)) * count / len(text) > limit:
            return f"the most frequent {size}-gram makes up over {limit:.0%}"
        if max(TOP_NGRAMS) * longest * count / len(text) <= min(TOP_NGRAMS.values()):
            break  # longer ones are no more frequent
    if _characters_in_repeats(parts) / len(text) <= min(DUPLICATE_NGRAMS.values()):
        return None
    for size, limit in DUPLICATE_NGRAMS.items():
        if _characters_of_duplicates(parts, size) / len(text) > limit:
            return f"repeated {size}-grams make up over {limit:.0%}"
    return None


def _ngrams(parts: list[str], size: int) -> Iterator[tuple[str, ...]]:
    return zip(*(parts[begin:] for begin in range(size)), strict=False)


def _characters_in_repeats(parts: list[str]) -> int:
    """Characters of all words in repeats of the shortest of `DUPLICATE_NGRAMS`, which contain the repeats of longer
    ones. Most texts stay below every limit with these."""
    size = min(DUPLICATE_NGRAMS)
    seen = set[tuple[str, ...]]()
    characters = counted = 0  # `counted`: the first words, those up to the last repeat
    for place, gram in enumerate(_ngrams(parts, size)):
        if gram in seen:
            characters += sum(map(len, parts[max(place, counted) : place + size]))
            counted = place + size
        else:
            seen.add(gram)
    return characters


def _characters_of_duplicates(parts: list[str], size: int) -> int:
    """Characters in repeated n-grams. The search continues after each, so no character counts twice."""
    grams = [*_ngrams(parts, size)]
    seen = set[tuple[str, ...]]()
    place = characters = 0
    while place < len(grams):
        if grams[place] in seen:
            characters += sum(map(len, grams[place]))
            place += size
        else:
            seen.add(grams[place])
            place += 1
    return characters
