"""The rules of C4 (Raffel et al. 2020, https://jmlr.org/papers/v21/20-074.html, section 2.2): they drop single
lines, and documents with too few lines left.

C4's list of bad words and its removal of repeated runs of three sentences are left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MIN_SENTENCES, MIN_LINE_WORDS, MAX_WORD_CHARACTERS = 3, 5, 1000
END_MARKS = (".", "?", "!", '"')
POLICIES = re.compile("terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies|javascript")
"""Marks of a line that is about the page, not part of its text."""
CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
SENTENCE_END = re.compile(r"[.!?][\"')\]]*(?=\s|$)")
"""Replaces NLTK's sentence splitter, which the paper names: a sentence for each run of end marks."""


def lines_kept(lines: Sequence[str]) -> tuple[str, ...] | str:
    """The lines that C4 keeps, without Wikipedia's citation marks; or the rule by which it drops the document."""
    text = "\n".join(lines)
    lowered = text.lower()
    if "{" in text:
        return "a curly bracket"
    if "lorem ipsum" in lowered:
        return "lorem ipsum"
    cited, about_page = "[" in text, POLICIES.search(lowered) is not None
    kept_lines: list[str] = []
    sentences = 0
    for line in lines:
        line = line.strip()
        if cited:
            line = CITATION.sub("", line)
        if not line.endswith(END_MARKS) or line.endswith("..."):
            continue
        if len(line.split(None, MIN_LINE_WORDS - 1)) < MIN_LINE_WORDS:
            continue
        if len(line) > MAX_WORD_CHARACTERS and max(map(len, line.split())) > MAX_WORD_CHARACTERS:
            continue
        if about_page and POLICIES.search(line.lower()):
            continue
        kept_lines.append(line)
    for line in kept_lines:
        sentences += len(SENTENCE_END.findall(line))
        if sentences >= MIN_SENTENCES:
            return tuple(kept_lines)
    return f"fewer than {MIN_SENTENCES} sentences left of its lines"


def lines_left_out(lines: Sequence[str], kept: Sequence[str]) -> list[str]:
    """The lines that C4 drops, except blank ones. `kept`: of `lines_kept`."""
    is_kept = {*kept}.__contains__
    return [line for line in lines if line.strip() and not is_kept(CITATION.sub("", line.strip()))]
