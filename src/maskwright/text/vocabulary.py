"""What training needs to know of a tokenizer, read from `tokenizer.json` without any tokenizer library."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from maskwright.core import storage
from maskwright.core.errors import TokenizerError

SPECIAL_TOKENS = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
# Byte-level BPE spells these bytes with visible stand-ins: space, tab, line feed, carriage return.
WHITE_SPACE_BYTES = ("Ġ", "ĉ", "Ċ", "č")


@dataclass(frozen=True)
class Vocabulary:
    """`size` ids; the five special ids; per id, whether it begins a word (its first byte is white space)."""

    size: int
    bos: int
    pad: int
    eos: int
    unk: int
    mask: int
    special: frozenset[int]
    """Every id that is never predicted, masked or drawn: the five above and any other special added token."""
    word_start: tuple[bool, ...]
    fingerprint: str
    """sha256 of tokens, merges and splitting rules: equal for files that give equal ids, however they are written."""


def tokenizer_file(location: str) -> str:
    """`tokenizer.json` of a folder, or the file itself. Raises `TokenizerError` when there is none."""
    path = os.path.join(location, "tokenizer.json") if os.path.isdir(location) else location
    if not os.path.isfile(path):
        raise TokenizerError(
            "has no tokenizer.json",
            where=location,
            fix="train one with `maskwright tokenizer train`, or save a Hugging Face fast tokenizer there",
        )
    return path


def read_vocabulary(location: str) -> Vocabulary:
    """Reads a byte-level BPE `tokenizer.json` in RoBERTa's layout. Raises `TokenizerError` on any other."""
    path = tokenizer_file(location)
    content = storage.read_json(path)
    model = content.get("model", {}) if isinstance(content, dict) else {}
    if model.get("type") != "BPE" or not isinstance(model.get("vocab"), dict):
        raise TokenizerError(
            f"is a {model.get('type', 'nameless')} tokenizer, not byte-level BPE",
            where=path,
            fix="train one with `maskwright tokenizer train`",
        )
    tokens: dict[str, int] = dict(model["vocab"])
    added = content.get("added_tokens", [])
    tokens |= {token["content"]: token["id"] for token in added}
    for name in SPECIAL_TOKENS.values():
        if name not in tokens:
            raise TokenizerError(
                f"has no {name} token",
                where=path,
                fix="masked-LM training needs <s> <pad> </s> <unk> <mask>; add it",
            )
    size = max(tokens.values()) + 1
    special = {tokens[name] for name in SPECIAL_TOKENS.values()}
    special |= {token["id"] for token in added if token.get("special")}
    starts = [False] * size
    for token, index in tokens.items():
        starts[index] = token.startswith(WHITE_SPACE_BYTES)
    return Vocabulary(
        size=size,
        **{role: tokens[name] for role, name in SPECIAL_TOKENS.items()},
        special=frozenset(special),
        word_start=tuple(starts),
        fingerprint=storage.sha256_of([sorted(tokens.items()), *_rules(content)]),
    )


def _rules(content: dict[str, Any]) -> list[Any]:
    merges = [m if isinstance(m, str) else " ".join(m) for m in content["model"].get("merges", [])]
    splitting = content.get("pre_tokenizer") or {}
    return [merges, splitting.get("type"), bool(splitting.get("add_prefix_space")), content.get("normalizer")]
