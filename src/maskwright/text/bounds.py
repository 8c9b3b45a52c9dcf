"""What a `tokenizer.json` of others may do to a text: grow it so many times, and look for its patterns so long.

Its steps run inside the library, which has no limits: four Replace of one letter by a thousand make 10^12 letters of
one. So they are looked at before the first text. Not bounded: a pattern that takes a time that grows with the square of
a run of letters or spaces, as in many a good tokenizer.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from maskwright.core.child import python_module
from maskwright.core.errors import TokenizerError
from maskwright.text.vocabulary import TRAIN_ONE, steps

MOST_GROWTH = 100
"""Characters that one may become. What is in use makes 33 at most: a sign of XLM-R's table, in bytes."""
MOST_STEPS, LONGEST_AFFIX, LONGEST_PATTERN = 1000, 100, 10_000
GROWTH_OF_TYPE = {"ByteLevel": 4.0, "BertNormalizer": 3.0}
"""A character has up to 4 bytes, and a Chinese one gets spaces around it."""
MAY_BE_EMPTY = ("*", "?", "|", "^", "$", "{0", "{,", "()", "\\b", "\\B", "\\A", "\\Z", "\\z", "\\G", "\\K")
"""Signs of a pattern that may match nothing, and so at every place. Without them it takes a letter at least."""
TRIAL_SECONDS = 20


class _Step(NamedTuple):
    growth: float
    takes: frozenset[str] | None
    """Characters of which it needs one; None: any."""
    gives: frozenset[str] | None


def require_bounded(content: dict[str, Any], path: str) -> None:
    """Raises `TokenizerError` for a tokenizer whose steps may make over `MOST_GROWTH` characters of one, or whose
    patterns were seen to take exponentially long."""
    text_steps = [*steps(content.get("normalizer")), *steps(content.get("pre_tokenizer"))]
    try:
        of_tokens = steps(content.get("decoder"))
    except RecursionError:
        raise TokenizerError("is nested too deeply", where=path, fix=TRAIN_ONE) from None
    for found in (text_steps, of_tokens):
        if len(found) > MOST_STEPS:
            raise TokenizerError(f"has {len(found):,} steps, over {MOST_STEPS:,}", where=path, fix=TRAIN_ONE)
        if (growth := _growth([_measured(step) for step in found])) > MOST_GROWTH:
            what = f"its steps may make {growth:.3g} characters of one, over {MOST_GROWTH}"
            raise TokenizerError(what, where=path, fix=f"take out what replaces or prepends so much, or {TRAIN_ONE}")
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if len(str(content["model"].get(key) or "")) > LONGEST_AFFIX:
            what = f"its {key} has over {LONGEST_AFFIX} characters"
            raise TokenizerError(what, where=path, fix=TRAIN_ONE)


def require_quick(content: dict[str, Any], path: str) -> None:
    """Raises `TokenizerError` for a pattern that takes exponentially long on a text that is made to have it do so. The
    few that may are tried in a process with limits, once in this process."""
    parts = ("normalizer", "pre_tokenizer", "decoder")
    for pattern in (step.get("pattern") for part in parts for step in steps(content.get(part))):
        written = pattern.get("Regex") if isinstance(pattern, dict) else None
        if isinstance(written, str) and len(written) > LONGEST_PATTERN:
            what = f"has a pattern of more than {LONGEST_PATTERN:,} characters"
            raise TokenizerError(what, where=path, fix=TRAIN_ONE)
        if isinstance(written, str) and _may_explode(written) and not _is_quick(written):
            what = f"its pattern {written[:60]!r} takes exponentially long on some texts"
            raise TokenizerError(what, where=path, fix=f"write it without repeats inside repeats, or {TRAIN_ONE}")


# ---- growth ----------------------------------------------------------------------------------------------------------


def _measured(step: dict[str, Any]) -> _Step:
    kind = step.get("type")
    if kind == "Replace":
        pattern, given = step.get("pattern") or {}, str(step.get("content") or "")
        literal = str(pattern.get("String") or "") if isinstance(pattern, dict) else ""
        regex = str(pattern.get("Regex") or "") if isinstance(pattern, dict) else ""
        if literal:
            return _Step(max(1.0, len(given) / len(literal)), frozenset(literal), frozenset(given))
        empty = not regex or any(sign in regex for sign in MAY_BE_EMPTY)
        return _Step(max(1.0, len(given) + empty), None, frozenset(given))
    if kind == "Prepend":
        given = str(step.get("prepend") or "")
        return _Step(max(1.0, len(given)), None, frozenset(given))
    growth = _longest_of_table(step) if kind == "Precompiled" else GROWTH_OF_TYPE.get(str(kind), 1.0)
    return _Step(growth, None, None)


def _growth(measured: list[_Step]) -> float:
    """What one character may become: the most of any chain of steps, each of which takes what one before it gives."""
    reached: list[float] = []
    for number, step in enumerate(measured):
        before = (
            reached[place]
            for place, earlier in enumerate(measured[:number])
            if step.takes is None or earlier.gives is None or step.takes & earlier.gives
        )
        reached.append(step.growth * max(before, default=1.0))
    return max(reached, default=1.0)


def _longest_of_table(step: dict[str, Any]) -> float:
    """SentencePiece's: the size of a trie, the trie, and what it leads to, each with a zero behind it."""
    try:
        table = base64.b64decode(str(step.get("precompiled_charsmap") or ""))
    except ValueError:
        return 1.0  # the library refuses it
    written = table[4 + int.from_bytes(table[:4], "little") :]
    return float(max(map(len, written.split(b"\0"))))


# ---- patterns --------------------------------------------------------------------------------------------------------


def _may_explode(pattern: str) -> bool:
    """Whether something that repeats, or a choice, is repeated, or an earlier group is called: nothing else takes
    exponentially long. Character classes and escapes are passed over."""
    inside: list[bool] = [False]
    place = 0
    while place < len(pattern):
        sign = pattern[place]
        place = _behind_class(pattern, place) if sign == "[" else place + (2 if sign == "\\" else 1)
        if sign == "\\" and pattern[place - 1 : place] in tuple("123456789kg"):
            return True
        if sign == "(":
            inside.append(False)
        elif sign == ")" and len(inside) > 1:
            repeats = inside.pop()
            if repeats and _repeats(pattern, place):
                return True
            inside[-1] |= repeats
        elif sign == "|":
            inside[-1] = inside[-1] or len(inside) > 1
        elif sign not in "?{" and _repeats(pattern, place):
            inside[-1] = True
    return False


def _repeats(pattern: str, place: int) -> bool:
    """Whether what ends at `place` is followed by *, + or a range such as {2,}."""
    if pattern[place : place + 1] != "{":
        return pattern[place : place + 1] in ("*", "+")
    return "," in pattern[place : pattern.find("}", place) + 1 or None]


def _behind_class(pattern: str, place: int) -> int:
    """Classes may hold classes."""
    depth = 0
    while place < len(pattern):
        sign = pattern[place]
        depth += (sign == "[") - (sign == "]")
        place += 2 if sign == "\\" else 1
        if depth == 0:
            return place
    return place


@cache
def _is_quick(pattern: str) -> bool:
    try:
        return not subprocess.run(
            python_module("maskwright.text.pattern_trial"),
            input=json.dumps([pattern, list(_worst_texts(pattern))]).encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TRIAL_SECONDS,
            env={**os.environ, "RUST_BACKTRACE": "0"},
        ).returncode
    except subprocess.TimeoutExpired:
        return False


def _worst_texts(pattern: str) -> Iterator[str]:
    """Long runs of what the pattern names, with an end that it does not take."""
    letters = [one for place, one in enumerate(pattern) if one.isalnum() and pattern[place - 1 : place] != "\\"]
    for unit in dict.fromkeys([*letters, "a", "1", " ", "".join(letters)]):
        yield unit * (2000 // max(len(unit), 1)) + "\0"
