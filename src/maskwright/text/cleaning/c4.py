"""The rules of C4 (Raffel et al. 2020, https://jmlr.org/papers/v21/20-074.html, section 2.2): lines are left out one by
one, and documents of which too little is left.

C4's list of bad words is not here, nor its removal of three sentences that occur again elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MIN_SENTENCES, MIN_LINE_WORDS, MAX_WORD_CHARACTERS = 3, 5, 1000
END_MARKS = (".", "?", "!", '"')
POLICIES = re.compile("terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies|javascript")
"""What marks a line that is about the page and not of it."""
CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
SENTENCE_END = re.compile(r"[.!?][\"')\]]*(?=\s|$)")
"""The paper names NLTK's sentence splitter. This pattern stands for it: one for each run of end marks."""


def lines_kept(lines: Sequence[str]) -> tuple[str, ...] | str:
    """The document's lines that C4 keeps, without Wikipedia's citation marks; or the rule for which all go."""
    whole = "\n".join(lines)
    lowered = whole.lower()
    if "{" in whole:
        return "a curly bracket"
    if "lorem ipsum" in lowered:
        return "lorem ipsum"
    cited, about_page = "[" in whole, POLICIES.search(lowered) is not None
    kept: list[str] = []
    sentences = 0
    for line in lines:
        line = line.strip()
        if cited:
            line = CITATION.sub("", line)
        if not line.endswith(END_MARKS) or line.endswith("..."):
            continue
        if line.count(" ") < MIN_LINE_WORDS - 1 and len(line.split()) < MIN_LINE_WORDS:
            continue
        if len(line) > MAX_WORD_CHARACTERS and max(map(len, line.split())) > MAX_WORD_CHARACTERS:
            continue
        if about_page and POLICIES.search(line.lower()):
            continue
        if len(line.split(None, MIN_LINE_WORDS - 1)) < MIN_LINE_WORDS:
            continue
        kept.append(line)
    for line in kept:
        sentences += len(SENTENCE_END.findall(line))
        if sentences >= MIN_SENTENCES:
            return tuple(kept)
    return f"fewer than {MIN_SENTENCES} sentences left of its lines"


def lines_left_out(lines: Sequence[str], kept: Sequence[str]) -> list[str]:
    """Those of a document's lines with text that are not among the `kept` ones of `lines_kept`."""
    found = {*kept}
    return [line for line in lines if line.strip() and CITATION.sub("", line.strip()) not in found]
