"""A `tokenizer.json` created from older files, as the class of `transformers` does it: `vocab.json` and `merges.txt`
are RoBERTa's byte-level BPE, `vocab.txt` is BERT's WordPiece.

It lies in `storage.cache_folder("tokenizers")`, beside copies of the files. The folder itself stays as it is.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection
from typing import Any

from maskwright.core import storage
from maskwright.core.console import say
from maskwright.core.errors import TokenizerError
from maskwright.text.special_tokens import BERT, CONFIG_FILES, KEYS, ROBERTA, SAVE_AGAIN

BPE_FILES, WORDPIECE_FILES, ADDED = ("vocab.json", "merges.txt"), ("vocab.txt",), "added_tokens.json"
DEFAULTS = {
    kind: {keys[0]: names[role] for role, keys in KEYS.items()}
    for kind, names in (("BPE", ROBERTA), ("WordPiece", BERT))
}
"""The classes' special tokens, unless the files beside name others."""


def files_among(names: Collection[str]) -> tuple[str, ...]:
    """The names from which a `tokenizer.json` can be created; empty if some are absent."""
    return next((files for files in (BPE_FILES, WORDPIECE_FILES) if set(files) <= set(names)), ())


def files_of(folder: str) -> tuple[str, ...]:
    """`files_among` the names in a folder."""
    return files_among(os.listdir(folder)) if os.path.isdir(folder) else ()


def create_from(folder: str, names: tuple[str, ...]) -> str:
    """Creates the `tokenizer.json` unless it exists, and returns its path. Raises `TokenizerError` for ambiguous
    files."""
    beside = [name for name in (*CONFIG_FILES, ADDED) if os.path.isfile(os.path.join(folder, name))]
    sums = [[name, storage.sha256_of_file(os.path.join(folder, name))] for name in (*names, *beside)]
    cached = storage.cache_folder("tokenizers", storage.sha256_of(sums)[:16])
    path = os.path.join(cached, "tokenizer.json")
    if os.path.isfile(path):
        return path
    config = _config(folder)
    content = _bpe(folder, config) if names == BPE_FILES else _wordpiece(folder, config)
    storage.make_folder(cached)
    for name in (*names, *beside):
        shutil.copyfile(os.path.join(folder, name), os.path.join(cached, name))
    with storage.atomic_writer(path) as file:  # last: with it, the folder is whole
        file.write(json.dumps(content, ensure_ascii=False).encode())
    lowered = ", which lowers the case" if content["normalizer"] and content["normalizer"]["lowercase"] else ""
    say(f"{folder}: has no tokenizer.json; one is created from {' and '.join(names)}{lowered}")
    return path


def _config(folder: str) -> dict[str, Any]:
    added = os.path.join(folder, ADDED)
    if os.path.isfile(added) and storage.read_json(added):
        raise TokenizerError("has no tokenizer.json, and tokens of its own", where=added, fix=SAVE_AGAIN)
    config: dict[str, Any] = {}
    for name in reversed(CONFIG_FILES):
        path = os.path.join(folder, name)
        content = storage.read_json(path) if os.path.isfile(path) else {}
        if not isinstance(content, dict):
            raise TokenizerError("is not a JSON object", where=path, fix=SAVE_AGAIN)
        config |= content
    return config


def _special(config: dict[str, Any], vocab: dict[str, int], kind: str, path: str) -> dict[str, str]:
    """{key: token} of those in the vocabulary. Raises `TokenizerError` without tokens to frame a text."""
    named_tokens = {key: config.get(key) or token for key, token in DEFAULTS[kind].items()}
    tokens = {key: token["content"] if isinstance(token, dict) else token for key, token in named_tokens.items()}
    for key in ("cls_token", "sep_token"):
        if tokens[key] not in vocab:
            what = f"has no {tokens[key]}, which frames a text"
            raise TokenizerError(what, where=path, fix=f"take the files of a masked language model; or {SAVE_AGAIN}")
    return {key: token for key, token in tokens.items() if token in vocab}


def _added(special: dict[str, str], vocab: dict[str, int], *, mask_takes_space: bool) -> list[dict[str, Any]]:
    flags = {"single_word": False, "rstrip": False, "normalized": False, "special": True}
    mask = special.get("mask_token")
    return [
        {"id": vocab[token], "content": token, "lstrip": mask_takes_space and token == mask, **flags}
        for token in sorted(set(special.values()), key=vocab.__getitem__)
    ]


def _bpe(folder: str, config: dict[str, Any]) -> dict[str, Any]:
    path, pairs = (os.path.join(folder, name) for name in BPE_FILES)
    vocab = storage.read_json(path)
    if not isinstance(vocab, dict) or not all(type(index) is int for index in vocab.values()):
        raise TokenizerError("is not tokens and their ids", where=path, fix="copy it again")
    merges = []
    for line_number, line in enumerate(_lines(pairs), 1):
        if (line_number == 1 and line.startswith("#version")) or not line:
            continue
        pair = line.split(" ")
        if len(pair) != 2 or not {*pair, "".join(pair)} <= vocab.keys():
            what = f"{line[:40]!r} is not two tokens of vocab.json that make a third"
            raise TokenizerError(what, where=f"{pairs}:{line_number}", fix="copy both files again")
        merges.append(pair)
    special = _special(config, vocab, "BPE", path)
    begin, end = special["cls_token"], special["sep_token"]
    splitting = {"add_prefix_space": bool(config.get("add_prefix_space")), "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(special, vocab, mask_takes_space=True),
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", **splitting, "use_regex": True},
        "post_processor": {"type": "RobertaProcessing", "sep": [end, vocab[end]], "cls": [begin, vocab[begin]]}
        | splitting,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "vocab": vocab, "merges": merges}
        | {"continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False},
    }


def _wordpiece(folder: str, config: dict[str, Any]) -> dict[str, Any]:
    path = os.path.join(folder, "vocab.txt")
    lines = _lines(path)
    vocab = {token: index for index, token in enumerate(lines)}
    if len(vocab) != len(lines):
        repeated = next(token for index, token in enumerate(lines) if vocab[token] != index)
        raise TokenizerError(f"has {repeated[:40]!r} twice", where=path, fix="copy it again")
    special = _special(config, vocab, "WordPiece", path)
    begin, end = special["cls_token"], special["sep_token"]
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": config.get("tokenize_chinese_chars", True),
        "strip_accents": config.get("strip_accents"),
        "lowercase": config.get("do_lower_case", True),
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(special, vocab, mask_takes_space=False),
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": [end, vocab[end]], "cls": [begin, vocab[begin]]},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": special.get("unk_token", BERT["unk"]), "vocab": vocab}
        | {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
    }


def _lines(path: str) -> list[str]:
    with storage.open_binary(path) as file:
        content = file.read()
    try:
        return content.decode().replace("\r\n", "\n").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"byte {error.start + 1:,} is not UTF-8", where=path, fix="copy it again") from None
