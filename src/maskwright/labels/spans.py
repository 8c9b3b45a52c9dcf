"""Tags of words to spans, such as the names of people and places."""

from __future__ import annotations

from collections.abc import Sequence

OUTSIDE = "O"
PREFIXES = {"B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S", "M": "I"}
"""BILOU's last and unit are IOBES's end and single, and BMES's middle is its inside."""

Span = tuple[int, int, str]
"""First word, word after the last, and kind."""


def prefix_of(tag: str) -> str:
    """The letter of a tag that marks a span, as in `B-PER` and in `B`, a span without a kind; else empty."""
    return tag[:1] if tag[:1] in PREFIXES and tag[1:2] in ("", "-") else ""


def kind_of(tag: str) -> str:
    """As seqeval calls it: `_` for a span without a kind."""
    return tag[2:] or "_"


def mark_spans(labels: Sequence[str]) -> bool:
    """Whether the tags mark spans, as B-PER and I-PER or B and I do; parts of speech do not, nor do I, M and O, the
    inside, membrane and outside of a protein."""
    prefixes = {prefix_of(label) for label in labels if label != OUTSIDE}
    return "" not in prefixes and ("B" in prefixes or any("-" in label for label in labels))


def spans(tags: Sequence[str]) -> list[Span]:
    """The spans of one sentence in IOB2, IOB1, IOBES, BILOU or BMES. As in conlleval and seqeval's default mode, a span
    may begin with any prefix, and another kind begins another span."""
    spans_of_tags: list[Span] = []
    begin, previous, previous_kind = 0, OUTSIDE, ""
    for index, tag in enumerate([*tags, OUTSIDE]):
        prefix, kind = (OUTSIDE, "") if tag == OUTSIDE else (PREFIXES[tag[0]], kind_of(tag))
        starts = prefix != OUTSIDE and (prefix in "BS" or previous in ("E", "S", OUTSIDE) or kind != previous_kind)
        if previous != OUTSIDE and (starts or prefix == OUTSIDE):
            spans_of_tags.append((begin, index, previous_kind))
        if starts:
            begin = index
        previous, previous_kind = prefix, kind
    return spans_of_tags
