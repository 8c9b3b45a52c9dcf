"""Words that pages, help and schemas do not use, since a reader stumbles over them. Help and schemas are read on the
pages that are made of them. A line that needs such a word ends with `<!-- word: why -->`, or a comment of that form
stands above it. `python tests/architecture/test_words.py` counts all of them, by page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES += [*sorted((ROOT / "docs").glob("*.md")), ROOT / "benchmarks" / "README.md"]
PROGRAM = r"(?:maskwright|`[^`]+`|torch|JAX|(?:[Tt]he|[Aa]) (?:run|command|program|script|page|tokenizer|server))"
WORDS = {
    r"\b[Ww]hoever\b": "you, or the person who does it",
    r"\bparted\b": "split, tokenized",
    r"(?<!a )\blook(?:s|ed)? after\b": "watch, restart",
    rf"{PROGRAM} (?:knows|tells)\b": "a program reads, prints or finds",
    r"Not executed by the tests": "<!-- not executed: why --> above the block",
    r"\b[Tt]he tests? (?:has|have|types?|typed)\b": "say what the reader has; how a page is tested goes into a comment",
    r"\bas ever\b": "leave it out",
    r"\btakes? (?:away|apart)\b": "remove, split",
    r"\b(?:type|typed|types) (?:a|the|that) command\b": "run the command",
    r"\]\([^()]*\) (?:has|have|says?|tells?)\b": "a page lists, explains or shows; or write: see …",
    r"\b(?:that|those) of\b": "repeat the noun",
    r"(?<!each )(?<!one )(?<!some )\bof which\b": "begin another sentence",
    r"\b[Bb]esides?\b": "as well as, next to, against, compared with",
    r"\banew\b": "again",
    r"\bgo(?:es)? on\b": "continue",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\b[Nn]obody\b": "say what happens, or what to do",
    r"\bnothing:": "not needed",
    r"\b[Ww]hen not (?:set|given)\b": "Default: …",
    r"\b(?:has|have) to be\b": "must be, or an imperative",
    r"\b(?:is|are) (?:said|told)\b": "the page lists it, the program prints it",
}
"""A pattern that no page has, and what to write instead."""
FENCED = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
ADDRESS = re.compile(r"\]\([^()\s]*\)")
EXCUSED = re.compile(r"<!-- word: [^>]{3,} -->")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def lines(text: str) -> Iterator[tuple[int, str]]:
    """(number, words) of the lines of prose, without blocks of code, comments, and lines that are excused."""
    text = FENCED.sub(_emptied, text)
    marked = {number: line for number, line in enumerate(text.splitlines(), 1) if EXCUSED.search(line)}
    below = {number + 1 for number, line in marked.items() if line.lstrip().startswith("<!--")}
    for number, line in enumerate(ADDRESS.sub("](…)", COMMENT.sub(_emptied, text)).splitlines(), 1):
        if line and number not in marked.keys() | below:
            yield number, line


def _emptied(found: re.Match[str]) -> str:
    """Lines keep their numbers."""
    return "\n" * found[0].count("\n")


def found(path: Path, patterns: Iterable[str]) -> Iterator[tuple[int, str, str]]:
    """(line, words, pattern)"""
    for number, line in lines(path.read_text(encoding="utf-8")):
        for pattern in patterns:
            for match in re.finditer(pattern, line):
                yield number, match[0], pattern


def test_pages_use_the_words_of_their_readers() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {words!r}. Rather: {WORDS[pattern]}"
        for path in PAGES
        for number, words, pattern in found(path, WORDS)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_word_is_found_and_excused() -> None:
    text = "It goes on.\n```\nanew\n```\n`a` knows. <!-- word: a citation -->\n<!-- word: a name -->\nBeside it.\nanew"
    assert list(lines(text)) == [(1, "It goes on."), (8, "anew")]


if __name__ == "__main__":
    counted = {path: Counter(pattern for *_, pattern in found(path, WORDS)) for path in PAGES}
    for path, counts in sorted(counted.items(), key=lambda one: -one[1].total()):
        print(f"{counts.total():4} {path.relative_to(ROOT)}: {dict(counts)}")
    for pattern, count in sum(counted.values(), Counter()).most_common():
        print(f"{count:4} {pattern}")
