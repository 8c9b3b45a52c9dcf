"""Limits for the steps of a foreign `tokenizer.json`: the growth of a text, and the time of a pattern.

The steps run inside the library, which has no limits: four Replace of one letter by a thousand make 10^12 letters of
one. So they are checked before the first text. Patterns whose time grows with the square of a run of letters or spaces
pass, since many good tokenizers have them.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from maskwright.core.errors import TokenizerError
from maskwright.processes.child import python_module
from maskwright.text.vocabulary import TRAIN_ONE, steps

MOST_GROWTH = 100
"""Characters that one character may become. Tokenizers in use reach 33: a sign of XLM-R's table, in bytes."""
MOST_STEPS, LONGEST_AFFIX, LONGEST_PATTERN = 1000, 100, 10_000
GROWTH_OF_TYPE = {"ByteLevel": 4.0, "BertNormalizer": 3.0}
"""A character has up to 4 bytes, and a Chinese one gets spaces around it."""
MAY_BE_EMPTY = ("*", "?", "|", "^", "$", "{0", "{,", "()", "\\b", "\\B", "\\A", "\\Z", "\\z", "\\G", "\\K")
"""Parts of a pattern that may match the empty text, and so match everywhere. Other patterns take a letter or more."""
TRIAL_SECONDS = 20


class _Step(NamedTuple):
    growth: float
    takes: frozenset[str] | None
    """Characters on which it acts; None for any."""
    gives: frozenset[str] | None


def require_bounded(content: dict[str, Any], path: str) -> None:
    """Raises `TokenizerError` for steps that may turn one character into over `MOST_GROWTH`, for too many steps, and
    for affixes that are too long."""
    text_steps = [*steps(content.get("normalizer")), *steps(content.get("pre_tokenizer"))]
    try:
        decoder_steps = steps(content.get("decoder"))
    except RecursionError:
        raise TokenizerError("is nested too deeply", where=path, fix=TRAIN_ONE) from None
    for chain in (text_steps, decoder_steps):
        if len(chain) > MOST_STEPS:
            raise TokenizerError(f"has {len(chain):,} steps, over {MOST_STEPS:,}", where=path, fix=TRAIN_ONE)
        if (growth := _growth([_measured(step) for step in chain])) > MOST_GROWTH:
            what = f"its steps may turn one character into {growth:.3g} characters, over {MOST_GROWTH}"
            raise TokenizerError(what, where=path, fix=f"remove the step that adds so much, or {TRAIN_ONE}")
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if len(str(content["model"].get(key) or "")) > LONGEST_AFFIX:
            what = f"its {key} has over {LONGEST_AFFIX} characters"
            raise TokenizerError(what, where=path, fix=TRAIN_ONE)


def require_quick(content: dict[str, Any], path: str) -> None:
    """Raises `TokenizerError` for a pattern that takes exponentially long on its worst texts. Suspicious patterns, of
    which there are few, are tried in a process with limits, each once."""
    parts = ("normalizer", "pre_tokenizer", "decoder")
    for pattern in (step.get("pattern") for part in parts for step in steps(content.get(part))):
        regex = pattern.get("Regex") if isinstance(pattern, dict) else None
        if isinstance(regex, str) and len(regex) > LONGEST_PATTERN:
            what = f"has a pattern of more than {LONGEST_PATTERN:,} characters"
            raise TokenizerError(what, where=path, fix=TRAIN_ONE)
        if isinstance(regex, str) and _may_explode(regex) and not _is_quick(regex):
            what = f"its pattern {regex[:60]!r} takes exponentially long on some texts"
            raise TokenizerError(what, where=path, fix=f"write it without repeats inside repeats, or {TRAIN_ONE}")


# ---- growth ----------------------------------------------------------------------------------------------------------


def _measured(step: dict[str, Any]) -> _Step:
    kind = step.get("type")
    if kind == "Replace":
        pattern, content = step.get("pattern") or {}, str(step.get("content") or "")
        literal = str(pattern.get("String") or "") if isinstance(pattern, dict) else ""
        regex = str(pattern.get("Regex") or "") if isinstance(pattern, dict) else ""
        if literal:
            return _Step(max(1.0, len(content) / len(literal)), frozenset(literal), frozenset(content))
        empty = not regex or any(sign in regex for sign in MAY_BE_EMPTY)
        return _Step(max(1.0, len(content) + empty), None, frozenset(content))
    if kind == "Prepend":
        content = str(step.get("prepend") or "")
        return _Step(max(1.0, len(content)), None, frozenset(content))
    growth = _longest_of_table(step) if kind == "Precompiled" else GROWTH_OF_TYPE.get(str(kind), 1.0)
    return _Step(growth, None, None)


def _growth(measured: list[_Step]) -> float:
    """The largest growth along a chain of steps, each of which takes what the one before it gives."""
    reached: list[float] = []
    for step in measured:
        before = (
            growth
            for growth, earlier in zip(reached, measured, strict=False)
            if step.takes is None or earlier.gives is None or step.takes & earlier.gives
        )
        reached.append(step.growth * max(before, default=1.0))
    return max(reached, default=1.0)


def _longest_of_table(step: dict[str, Any]) -> float:
    """The longest replacement in SentencePiece's table: a trie's size, the trie, replacements that end in zeros."""
    try:
        table = base64.b64decode(str(step.get("precompiled_charsmap") or ""))
    except ValueError:
        return 1.0  # the library refuses it
    written = table[4 + int.from_bytes(table[:4], "little") :]
    return float(max(map(len, written.split(b"\0"))))


# ---- patterns --------------------------------------------------------------------------------------------------------


def _may_explode(pattern: str) -> bool:
    """Whether the pattern repeats a group with a repeat or a choice in it, or refers back to a group: nothing else
    takes exponentially long. Character classes and escapes are skipped."""
    inside: list[bool] = [False]
    index = 0
    while index < len(pattern):
        sign = pattern[index]
        index = _end_of_class(pattern, index) if sign == "[" else index + (2 if sign == "\\" else 1)
        if sign == "\\" and pattern[index - 1 : index] in tuple("123456789kg"):
            return True
        if sign == "(":
            inside.append(False)
        elif sign == ")" and len(inside) > 1:
            repeats = inside.pop()
            if repeats and _repeats(pattern, index):
                return True
            inside[-1] |= repeats
        elif sign == "|":
            inside[-1] = inside[-1] or len(inside) > 1
        elif sign not in "?{" and _repeats(pattern, index):
            inside[-1] = True
    return False


def _repeats(pattern: str, index: int) -> bool:
    """Whether *, + or a range such as {2,} stands at `index`."""
    if pattern[index : index + 1] != "{":
        return pattern[index : index + 1] in ("*", "+")
    return "," in pattern[index : pattern.find("}", index) + 1 or None]


def _end_of_class(pattern: str, index: int) -> int:
    """The place behind a character class, which may hold classes."""
    depth = 0
    while index < len(pattern):
        sign = pattern[index]
        depth += (sign == "[") - (sign == "]")
        index += 2 if sign == "\\" else 1
        if depth == 0:
            return index
    return index


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
    """Long runs of the pattern's letters, each with an end that it does not match."""
    letters = [c for index, c in enumerate(pattern) if c.isalnum() and pattern[index - 1 : index] != "\\"]
    for unit in dict.fromkeys([*letters, "a", "1", " ", "".join(letters)]):
        yield unit * (2000 // max(len(unit), 1)) + "\0"
