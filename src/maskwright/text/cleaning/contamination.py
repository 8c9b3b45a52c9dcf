"""Contamination: documents that share an n-gram of words with an example of the user's evaluation files.

GPT-3 was checked in this way by 13 words without case and punctuation (Brown et al. 2020, arXiv:2005.14165, appendix
C). An example of 8 to 12 words is one n-gram. A shorter one is skipped, since it would match by chance. In scripts
without spaces between words, a character counts as a part of a word: see `words`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.core.console import say, warn
from maskwright.core.errors import SourceError
from maskwright.text.arrays import UInt64
from maskwright.text.arrow import data_files
from maskwright.text.cleaning import words
from maskwright.text.compression import ending, require_content, unreadable
from maskwright.text.document import place, strict
from maskwright.text.lines import numbered_lines
from maskwright.text.sources import RECORD_ENDINGS, TEXT_ENDINGS
from maskwright.text.tables import TABLES, open_table, whole_characters

NGRAM_WORDS, FEWEST_WORDS = 13, 8
FILTER_BITS = (16, 28)
"""Least and most leading bits of a hash that index the filter, a table of single bits of up to 32 MiB."""


@dataclass(frozen=True)
class EvaluationTexts:
    """N-grams of evaluation files, by their number of words."""

    hashes: dict[int, UInt64]
    """Sorted."""
    origins: dict[int, NDArray[np.int64]]
    """Index in `places` of each hash."""
    places: tuple[str, ...]
    """Locations of the examples: file:line, or file and record."""
    too_short: int
    """Examples without a text of `FEWEST_WORDS` words, or of as many as an n-gram has."""


def read_evaluations(patterns: Sequence[str], ngram_words: int = NGRAM_WORDS) -> EvaluationTexts:
    """N-grams of every text: lines of plain text, strings of JSON and Parquet, cells of CSV. A line or a record is an
    example: its label is a short text that no document is searched for. Raises `SourceError`."""
    places, texts, names = list[str](), list[bytes](), set[str]()
    for location, text, may_be_names in _texts(patterns):
        places.append(location)
        texts.append(text.encode())
        names |= {location} if may_be_names else set()
    parts = words.normalized(texts)
    counts = parts.totals() // words.WHOLE
    ngrams_of_size: dict[int, tuple[UInt64, NDArray[np.int64]]] = {}
    fewest = min(FEWEST_WORDS, ngram_words)
    for size in sorted({min(int(count), ngram_words) for count in counts if count >= fewest}):
        hashes, first = words.runs(parts, size)
        owners = np.repeat(np.arange(len(texts)), np.diff(first))
        chosen = (counts[owners] >= ngram_words) if size == ngram_words else (counts[owners] == size)
        hashes, owners = hashes[chosen], owners[chosen]
        hashes, first_idx = np.unique(hashes, return_index=True)
        ngrams_of_size[size] = hashes, owners[first_idx]
    longest = dict.fromkeys(places, 0)
    for location, count in zip(places, counts.tolist(), strict=True):
        longest[location] = max(longest[location], count)
    short = {location for location, count in longest.items() if count < fewest}
    if len(short) == len(longest):
        fix = f"give files with texts of {fewest} words or more"
        raise SourceError("has no text that is long enough to search for", where=patterns[0], fix=fix)
    headers = short & names
    too_short, examples = len(short - headers), len(longest) - len(headers)
    if too_short:
        warn(f"{too_short:,} of {examples:,} evaluation examples have no text of {fewest} words, and are skipped")
    hashes_of, origins_of = ({size: pair[side] for size, pair in ngrams_of_size.items()} for side in (0, 1))
    return EvaluationTexts(hashes_of, origins_of, tuple(places), too_short)  # type: ignore[arg-type] # two kinds of array


class Contamination:
    def __init__(self, evaluations: EvaluationTexts) -> None:
        self.evaluations = evaluations
        self._filters = {size: _Filter(hashes) for size, hashes in evaluations.hashes.items()}

    def examples_in(self, texts: Sequence[bytes]) -> list[str | None]:
        """[texts]: the location of an example that each text holds; None without one."""
        examples: list[str | None] = [None] * len(texts)
        parts = words.normalized(texts)
        for size, hashes in self.evaluations.hashes.items():
            grams, first = words.runs(parts, size)
            gram_idx = np.flatnonzero(self._filters[size].may_hold(grams))
            hash_idx = np.minimum(np.searchsorted(hashes, grams[gram_idx]), len(hashes) - 1)
            is_same = hashes[hash_idx] == grams[gram_idx]
            text_idx = np.searchsorted(first, gram_idx[is_same], side="right") - 1
            texts_with_one, first_found = np.unique(text_idx, return_index=True)
            origins = self.evaluations.origins[size][hash_idx[is_same][first_found]]
            for text, origin in zip(texts_with_one.tolist(), origins, strict=True):
                examples[text] = examples[text] or self.evaluations.places[origin]
        return examples


class _Filter:
    """A bit for each hash prefix, set for the prefixes of sorted hashes: excludes most n-grams faster than a search."""

    def __init__(self, hashes: UInt64) -> None:
        bits = min(max(len(hashes).bit_length() + 6, FILTER_BITS[0]), FILTER_BITS[1])
        self._shift = np.uint64(64 - bits)
        prefix = hashes >> self._shift
        self._table = np.zeros(1 << (bits - 3), np.uint8)
        begins = np.flatnonzero(np.diff(prefix >> np.uint64(3), prepend=np.uint64(1 << 63)))
        ones = np.left_shift(np.uint8(1), (prefix & np.uint64(7)).astype(np.uint8))
        self._table[prefix[begins] >> np.uint64(3)] = np.bitwise_or.reduceat(ones, begins)

    def may_hold(self, hashes: UInt64) -> NDArray[np.bool_]:
        prefix = hashes >> self._shift
        bit_idx = (prefix & np.uint64(7)).astype(np.uint8)
        is_set: NDArray[np.bool_] = (self._table[prefix >> np.uint64(3)] >> bit_idx) & np.uint8(1) == 1
        return is_set


def _texts(patterns: Sequence[str]) -> Iterator[tuple[str, str, bool]]:
    """(file:line or record, text, whether it is in the first line of a table, which may be the columns' names)"""
    for name, named in data_files([*patterns]).items():
        kind = ending(name)
        if kind not in TABLES and kind in RECORD_ENDINGS:
            raise unreadable(name, (*TABLES, *TEXT_ENDINGS))
        if kind not in (*TABLES, *TEXT_ENDINGS) and not named:
            continue
        require_content(name)
        if kind not in TABLES:
            lines = ((place(name, number, "line"), line) for number, line in numbered_lines(name))
            yield from ((where, line, False) for where, line in lines if line.strip())
            continue
        with open_table(name, has_header=False) as table:  # a column's name is just another short text
            if table.note:
                say(table.note)
            for number, record in table.rows():
                where = place(name, number, table.counted)
                first = bool(table.delimiter) and where == table.header
                yield from ((where, whole_characters(text, where, strict), first) for text in _strings(record))


def _strings(value: Any) -> Iterator[str]:
    """The texts in a record, at any depth."""
    values = [value]
    while values:
        value = values.pop()
        if isinstance(value, str) and value.strip():
            yield value
        elif isinstance(value, dict | list):
            values += reversed([*value.values()] if isinstance(value, dict) else value)
