"""What training needs to know of a tokenizer, read from `tokenizer.json` without any tokenizer library."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from maskwright.core import storage
from maskwright.core.errors import TokenizerError

SPECIAL_TOKENS = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
TRAIN_ONE = "train one with `maskwright tokenizer train`"
LARGEST_VOCABULARY = 2**22
"""Four times the largest in use; tables of this size are made at once, so a wild id would take all memory."""
DEEPEST = 100
"""Steps inside steps; real tokenizers have one or two."""
# Byte-level BPE spells these bytes with visible stand-ins: space, tab, line feed, carriage return.
WHITE_SPACE_BYTES = ("Ġ", "ĉ", "Ċ", "č")


@dataclass(frozen=True)
class Vocabulary:
    """What the ids of a tokenizer mean."""

    size: int
    """Number of ids."""
    bos: int
    pad: int
    eos: int
    unk: int
    mask: int
    special: frozenset[int]
    """Every id that is never predicted, masked or drawn: the five above and any other special added token."""
    word_start: tuple[bool, ...]
    """Per id, whether it begins a word: its first byte is white space."""
    byte_length: tuple[int, ...]
    """Per id, the bytes of text that it stands for; -1 for special tokens, which stand for none or for any."""
    fingerprint: str
    """sha256 of tokens, merges and splitting rules: equal for files that give equal ids, however they are written."""


def tokenizer_file(location: str) -> str:
    """`tokenizer.json` of a folder, or the file itself. Raises `TokenizerError` when there is none."""
    path = os.path.join(location, "tokenizer.json") if os.path.isdir(location) else location
    if not os.path.isfile(path):
        fix = "train one with `maskwright tokenizer train`, or save a Hugging Face fast tokenizer there"
        raise TokenizerError("has no tokenizer.json", where=location, fix=fix)
    return path


def read_vocabulary(location: str) -> Vocabulary:
    """Reads a byte-level BPE `tokenizer.json` with RoBERTa's special tokens. Raises `TokenizerError` on any other."""
    return read_tokenizer(location)[1]


def read_tokenizer(location: str) -> tuple[dict[str, Any], Vocabulary]:
    """The file's content, not to be changed, and what it means. Raises `TokenizerError`.

    The last file read is remembered while it stays as it is: one of 50,000 tokens takes a quarter of a second.
    """
    path = tokenizer_file(location)
    status = os.stat(path)
    return _read(path, status.st_mtime_ns, status.st_size, status.st_ino)


@lru_cache(maxsize=2)
def _read(path: str, *_changes: int) -> tuple[dict[str, Any], Vocabulary]:
    content = storage.read_json(path)
    try:
        return content, _vocabulary_of(content, path)
    except RecursionError:
        raise TokenizerError("is nested too deeply", where=path, fix=TRAIN_ONE) from None


def _vocabulary_of(content: Any, path: str) -> Vocabulary:
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict) or model.get("type") != "BPE" or not isinstance(model.get("vocab"), dict):
        kind = model.get("type", "nameless") if isinstance(model, dict) else "nameless"
        raise TokenizerError(f"is a {kind} tokenizer, not byte-level BPE", where=path, fix=TRAIN_ONE)
    if "ByteLevel" not in _kinds(content.get("pre_tokenizer")):
        raise TokenizerError("does not split text into bytes (no ByteLevel pre-tokenizer)", where=path, fix=TRAIN_ONE)
    if model.get("dropout"):
        raise TokenizerError("has BPE dropout, which gives other ids each time", where=path, fix="set it to null")
    added = content.get("added_tokens") or []
    if not _are(added, dict) or not all("id" in token and isinstance(token.get("content"), str) for token in added):
        raise TokenizerError("has an added token without id or content", where=path, fix=TRAIN_ONE)
    merges = model.get("merges") or []
    if not _are(merges, str | list) or not all(isinstance(pair, str) or _are(pair, str) for pair in merges):
        raise TokenizerError("has merges that are not pairs of tokens", where=path, fix=TRAIN_ONE)
    tokens: dict[str, int] = model["vocab"] | {token["content"]: token["id"] for token in added}
    if not all(type(index) is int and 0 <= index < LARGEST_VOCABULARY for index in tokens.values()):
        raise TokenizerError("has an id that is not a small whole number", where=path, fix=TRAIN_ONE)
    for name in SPECIAL_TOKENS.values():
        if name not in tokens:
            fix = "masked-LM training needs <s> <pad> </s> <unk> <mask>; add it"
            raise TokenizerError(f"has no {name} token", where=path, fix=fix)
    size = max(tokens.values()) + 1
    special = {tokens[name] for name in SPECIAL_TOKENS.values()}
    special |= {token["id"] for token in added if token.get("special")}
    starts, lengths = [False] * size, [-1] * size
    for token, index in tokens.items():
        starts[index] = token.startswith(WHITE_SPACE_BYTES)
        if index not in special:
            lengths[index] = len(token)  # each character stands for one byte
    for entry in ordinary_added_tokens(content):
        lengths[entry["id"]] = len(entry["content"].encode())
    return Vocabulary(
        size=size,
        **{role: tokens[name] for role, name in SPECIAL_TOKENS.items()},
        special=frozenset(special),
        word_start=tuple(starts),
        byte_length=tuple(lengths),
        fingerprint=storage.sha256_of([sorted(tokens.items()), *_rules(content)]),
    )


def _are(values: Any, kind: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)


def _kinds(step: Any, depth: int = 0) -> set[str]:
    """Types of a pre-tokenizer and of those inside it. Raises `RecursionError` beyond `DEEPEST`: Python's own limit is
    another one once torch's compiler has been imported."""
    if depth > DEEPEST:
        raise RecursionError
    if not isinstance(step, dict):
        return set()
    parts = step.get("pretokenizers")
    inner = [kind for part in parts for kind in _kinds(part, depth + 1)] if isinstance(parts, list) else []
    return {str(step.get("type")), *inner}


def ordinary_added_tokens(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Added tokens of a `tokenizer.json` that stand for text; the special ones never come out of text."""
    return [
        token
        for token in content.get("added_tokens") or []
        if not token.get("special") and token["content"] not in SPECIAL_TOKENS.values()
    ]


def _rules(content: dict[str, Any]) -> list[Any]:
    """Everything else that decides ids, without what libraries write differently for the same behaviour."""
    model = content["model"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model.get("merges") or []]
    # Absent, null, false and "" mean the same in these.
    switches = ("unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback")
    behaviour = [model.get(name) or None for name in (*switches, "ignore_merges")]
    ordinary = [
        [token["content"], *(bool(token.get(flag)) for flag in ("lstrip", "rstrip", "single_word", "normalized"))]
        for token in ordinary_added_tokens(content)
    ]
    return [
        merges,
        behaviour,
        sorted(ordinary),
        _canonical(content.get("pre_tokenizer")),
        _canonical(content.get("normalizer")),
    ]


def _canonical(step: Any) -> Any:
    """A normalizer's or pre-tokenizer's description, without what cannot change ids and with defaults spelt out."""
    if isinstance(step, list):
        return [_canonical(part) for part in step]
    if not isinstance(step, dict):
        return step
    if step.get("type") == "Sequence" and not (step.get("pretokenizers") or step.get("normalizers")):
        return None
    spelt = {"add_prefix_space": True, "use_regex": True} if step.get("type") == "ByteLevel" else {}
    return spelt | {key: _canonical(value) for key, value in step.items() if key != "trim_offsets"}
