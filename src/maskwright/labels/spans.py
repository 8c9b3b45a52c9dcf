"""Tags of words to spans, such as the names of people and places."""

from __future__ import annotations

from collections.abc import Sequence

OUTSIDE = "O"
PREFIXES = {"B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S"}
"""BILOU's last and unit are IOBES's end and single."""

Span = tuple[int, int, str]
"""First word, word after the last, and kind."""


def mark_spans(labels: Sequence[str]) -> bool:
    """Whether the tags mark spans, as B-PER and I-PER do; tags of parts of speech do not."""
    tags = [label for label in labels if label != OUTSIDE]
    return bool(tags) and all(tag[:1] in PREFIXES and tag[1:2] == "-" for tag in tags)


def spans(tags: Sequence[str]) -> list[Span]:
    """The spans of one sentence in IOB2, IOB1, IOBES or BILOU. As in conlleval and seqeval's default mode, a span may
    begin with any prefix, and another kind begins another span."""
    spans_of_tags: list[Span] = []
    begin, previous, previous_kind = 0, OUTSIDE, ""
    for index, tag in enumerate([*tags, OUTSIDE]):
        prefix, kind = (OUTSIDE, "") if tag == OUTSIDE else (PREFIXES[tag[0]], tag[2:])
        starts = prefix != OUTSIDE and (prefix in "BS" or previous in ("E", "S", OUTSIDE) or kind != previous_kind)
        if previous != OUTSIDE and (starts or prefix == OUTSIDE):
            spans_of_tags.append((begin, index, previous_kind))
        if starts:
            begin = index
        previous, previous_kind = prefix, kind
    return spans_of_tags
