"""Oddities of a tokenizer's folder that loads: files that `tokenizer.json` contradicts, and tokens that no text can
become."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import zip_longest

from maskwright.core import storage
from maskwright.core.console import several, warn
from maskwright.core.errors import InputError
from maskwright.text.spacing import SPECIAL
from maskwright.text.vocabulary import BYTES, merges_of, read_tokenizer, token_ids, token_strings
from maskwright.text.vocabulary_files import lines_of

NEW_WORDS = "for new words, use `maskwright tokenizer extend --model`, which also adds them to a model"
SHOWN = 4


def faults(location: str) -> list[str]:
    """Sentences on oddities of the tokenizer of a folder, or of its `tokenizer.json`. Raises `TokenizerError`."""
    return [f"{location}: {line}" for line in (*_contradicted(location), *_unreachable(location))]


def warn_of_faults(location: str) -> None:
    for line in faults(location):
        warn(line)


def _contradicted(location: str) -> Iterator[str]:
    """A sentence on each file next to `tokenizer.json` that differs from it, with the first difference."""
    if not os.path.isfile(os.path.join(location, "tokenizer.json")):
        return
    for name, first_difference in (("vocab.txt", _in_lines), ("vocab.json", _in_ids), ("merges.txt", _in_merges)):
        path = os.path.join(location, name)
        try:
            difference = first_difference(location, path) if os.path.isfile(path) else None
        except InputError as error:
            difference = f"{name} cannot be read: {error.what}"
        if difference:
            yield f"{difference}. Only tokenizer.json is read; {NEW_WORDS}"


def _in_lines(location: str, path: str) -> str | None:
    for number, (theirs, ours) in enumerate(zip_longest(lines_of(path), token_strings(location)), 1):
        if theirs is not None and theirs != ours:
            return f"vocab.txt:{number} has {theirs!r}, tokenizer.json {repr(ours) if ours else 'has no such id'}"
    return None


def _in_ids(location: str, path: str) -> str | None:
    ids, strings = storage.read_json(path), token_ids(location)
    for token, index in ids.items() if isinstance(ids, dict) else ():
        if strings.get(token) != index:
            ours = f"{strings[token]}" if token in strings else "has no such token"
            return f"{os.path.basename(path)} gives {token!r} the id {index}, tokenizer.json {ours}"
    return None


def _in_merges(location: str, path: str) -> str | None:
    merges = [*map(" ".join, merges_of(read_tokenizer(location)[0]["model"]))]
    theirs = [(number, line) for number, line in enumerate(lines_of(path), 1) if line and not line.startswith("#ver")]
    for (number, line), ours in zip(theirs, merges, strict=False):
        if line != ours:
            return f"merges.txt:{number} has {line!r}, tokenizer.json {ours!r}"
    if len(theirs) != len(merges):
        return f"merges.txt has {len(theirs):,} merges, tokenizer.json {len(merges):,}"
    return None


def unreachable_tokens(location: str) -> list[str]:
    """Tokens of a BPE with several letters that no merge makes, in the order of their ids."""
    content, vocabulary = read_tokenizer(location)
    model = content["model"]
    if "merges" not in model or model.get("ignore_merges") or not isinstance(model["vocab"], dict):
        return []
    prefix, suffix = (str(model.get(key) or "") for key in ("continuing_subword_prefix", "end_of_word_suffix"))
    made = {left + (right.removeprefix(prefix) if prefix else right) for left, right in merges_of(model)}
    added = {token["content"] for token in content.get("added_tokens") or []}
    return [
        token
        for token, index in sorted(model["vocab"].items(), key=lambda item: int(item[1]))
        if len(token.removeprefix(prefix).removesuffix(suffix)) > 1
        and not (token in made or token in added or token in BYTES or index in vocabulary.special)
        and not SPECIAL.fullmatch(token)
    ]


def _unreachable(location: str) -> Iterator[str]:
    if tokens := unreachable_tokens(location):
        shown = ", ".join(map(repr, tokens[:SHOWN])) + (" …" if len(tokens) > SHOWN else "")
        which = f"{several(len(tokens), 'token')} of several letters ({shown}) are unreachable by merges"
        yield f"{which}: complete its merges, or train a tokenizer with `maskwright tokenizer train`"
