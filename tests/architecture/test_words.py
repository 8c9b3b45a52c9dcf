"""Words that pages, docstrings, comments and messages do not use, since a reader stumbles over them. A line of a page
that needs such a word ends with `<!-- word: why -->`, or a comment of that form stands above it; a line of Python ends
with `# word: why`. `python tests/architecture/test_words.py` counts all of them, by file."""

import io
import re
import token
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES += [*sorted((ROOT / "docs").glob("*.md")), ROOT / "benchmarks" / "README.md", ROOT / "tests" / "promises.md"]
SOURCES = [path for room in ("src", "benchmarks") for path in sorted((ROOT / room).rglob("*.py"))]
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
    r"\b(?:[Hh]ence|thereof|therein|whereby|spelt)\b": "so, of it, in it, by which, written",
}
"""A pattern that no page and no source has, and what to write instead."""
ANY = re.compile("|".join(f"(?:{pattern})" for pattern in WORDS))
FENCED = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
ADDRESS = re.compile(r"\]\([^()\s]*\)")
EXCUSED = re.compile(r"<!-- word: [^>]{3,} -->")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
CODE = re.compile(r"`[^`]*`|\{[^{}]*\}")


def lines(text):
    """(number, words) of the lines of prose, without blocks of code, comments, and lines that are excused."""
    text = FENCED.sub(_emptied, text)
    marked = {number: line for number, line in enumerate(text.splitlines(), 1) if EXCUSED.search(line)}
    below = {number + 1 for number, line in marked.items() if line.lstrip().startswith("<!--")}
    for number, line in enumerate(ADDRESS.sub("](…)", COMMENT.sub(_emptied, text)).splitlines(), 1):
        if line and number not in marked.keys() | below:
            yield number, line


def _emptied(found):
    """Lines keep their numbers."""
    return "\n" * found[0].count("\n")


def python_lines(text):
    """(number, words) of the lines of docstrings, comments and strings, without code in backticks or braces, and lines
    that are excused. Only a file that has one of the words is tokenized, which is slow."""
    if not ANY.search(text):
        return
    source = text.splitlines()
    for part in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.tok_name[part.type] in ("STRING", "COMMENT", "FSTRING_MIDDLE") and " " in part.string:
            for number, line in enumerate(part.string.splitlines(), part.start[0]):
                if not source[number - 1].rpartition("# word: ")[1]:
                    yield number, CODE.sub("…", line)


def found(path, patterns):
    """(line, words, pattern)"""
    of_file = lines if path.suffix == ".md" else python_lines
    for number, line in of_file(path.read_text(encoding="utf-8")):
        for pattern in patterns:
            for match in re.finditer(pattern, line):
                yield number, match[0], pattern


def test_pages_and_sources_use_the_words_of_their_readers():
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {words!r}. Rather: {WORDS[pattern]}"
        for path in [*PAGES, *SOURCES]
        for number, words, pattern in found(path, WORDS)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_word_is_found_and_excused():
    text = "It goes on.\n```\nanew\n```\n`a` knows. <!-- word: a citation -->\n<!-- word: a name -->\nBeside it.\nanew"
    assert list(lines(text)) == [(1, "It goes on."), (8, "anew")]
    source = 'beside = f"{a.beside} beside `beside`"\n# anew\n"""It is\nspelt."""\ny = "it anew"  # word: a quotation\n'
    assert [number for number, line in python_lines(source) if ANY.search(line)] == [1, 2, 4]


if __name__ == "__main__":
    counted = {path: Counter(pattern for *_, pattern in found(path, WORDS)) for path in [*PAGES, *SOURCES]}
    for path, counts in sorted(counted.items(), key=lambda one: -one[1].total()):
        if counts:
            print(f"{counts.total():4} {path.relative_to(ROOT)}: {dict(counts)}")
    for pattern, count in sum(counted.values(), Counter()).most_common():
        print(f"{count:4} {pattern}")
