"""fairseq's binarised shards: `dict.txt`, `train.bin`/`.idx`, `valid.bin`/`.idx`, also with a folder for each language.

A line of the text is a sequence that ends with `</s>`, and an empty line, which is `</s>` alone, stands between
documents. Ids are positions in `dict.txt`, after `<s> <pad> </s> <unk>`. Its tokens are pieces, or for RoBERTa the
numbers of GPT-2's `encoder.json`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from maskwright.core import storage
from maskwright.core.errors import InputError, StoreError
from maskwright.data.foreign.blocks import Block, Foreign, of_spans
from maskwright.data.foreign.indexed import Index, read_index
from maskwright.text.arrays import Int64
from maskwright.text.compression import COPY_AGAIN
from maskwright.text.vocabulary import Vocabulary

FIRST = ("<s>", "<pad>", "</s>", "<unk>")
EOS = FIRST.index("</s>")
FILLER = "madeupword"
"""Prefix of fairseq's tokens that only pad its table."""


def open_fairseq(folders: list[str], pieces: dict[str, int], vocabulary: Vocabulary, encoder: str | None) -> Foreign:
    """`pieces`: the tokenizer's tokens and ids. Raises `StoreError` if the first folder has no `dict.txt` or another
    folder a different one, and `InputError` if a dictionary of numbers comes without an `encoder`."""
    indexes = [index for folder in folders for index in _indexes(folder)]
    if (first := dictionary(folders[0])) is None:
        first = os.path.join(folders[0], "dict.txt")
        fix = "copy the dictionary with which the shards were binarised there"
        raise StoreError("is missing, and without it the ids mean nothing", where=first, fix=fix)
    tokens = read_dictionary(first)
    for folder in folders[1:]:
        if (other := dictionary(folder)) and read_dictionary(other) != tokens:
            raise StoreError("is another dictionary than the first shard's", where=other, fix="convert them separately")
    mapping, messages = _mapping(tokens, pieces, vocabulary, encoder, first)
    for path in indexes:
        read_index(path, "fairseq")  # refuses a cut one before anything is written
    files = [f"{path.removesuffix('.idx')}.bin" for path in indexes]
    return Foreign("fairseq", files, partial(_blocks, indexes), True, mapping, messages)


def dictionary(folder: str) -> str | None:
    """The dictionary of a shard, which lies one folder above if the folder is a language's in it."""
    above = os.path.dirname(os.path.abspath(folder)) if os.path.isfile(os.path.join(folder, "train.idx")) else folder
    paths = (os.path.join(place, "dict.txt") for place in (folder, above))
    return next(filter(os.path.isfile, paths), None)


def _blocks(indexes: list[str], file_idx: int) -> Iterator[Block]:
    index = read_index(indexes[file_idx], "fairseq")
    starts, sizes, members = _documents(index, indexes[file_idx])
    yield from of_spans(index.values, starts, sizes, file_idx, members)


def _indexes(folder: str) -> list[str]:
    """Indexes of train, train1 … and then of valid, also in folders of languages; not of test."""
    paths = [path for path in storage.expand([folder]) if path.endswith(".idx")]
    indexes = [
        path
        for split in ("train", "valid")
        for path in paths
        if os.path.basename(path).partition(".")[0].rstrip("0123456789") == split
    ]
    if not indexes:
        fix = "give the folder that `fairseq-preprocess` wrote"
        raise InputError("has no train.idx", where=folder, fix=fix)
    return indexes


def _documents(index: Index, path: str) -> tuple[Int64, Int64, Int64]:
    """(starts, sizes, members) for `of_spans`, of its sentences without their `</s>`."""
    starts, sizes = index.starts, index.sizes
    if (sizes < 1).any():
        raise StoreError(f"sequence {int(np.argmax(sizes < 1)):,} has no ids", where=path, fix=COPY_AGAIN)
    ends_with = index.values[starts + sizes - 1] == EOS
    sizes = sizes - ends_with
    empty = sizes == 0
    if not empty.any():  # a line is a document
        return starts, sizes, np.ones(len(starts), np.int64)
    document_idx = np.cumsum(empty)[~empty]  # of each sentence's document, with gaps for repeated empty lines
    members = np.unique(document_idx, return_counts=True)[1] if len(document_idx) else np.zeros(0, np.int64)
    return starts[~empty], sizes[~empty], members.astype(np.int64)


def read_dictionary(path: str) -> list[str]:
    """The tokens of a `dict.txt`. The first has id 4. Raises `StoreError`."""
    with storage.open_binary(path) as file:
        content = file.read()
    tokens = []
    for line, text in enumerate(content.decode("utf-8", "replace").split("\n"), 1):
        text = text.removesuffix(" #fairseq:overwrite")
        if not text.strip():
            continue
        token, space, count = text.rpartition(" ")
        if not space or not count.strip().isdecimal():
            fix = "restore the file, whose lines are a token and its count"
            raise StoreError("is not a line of a fairseq dictionary", where=f"{path}:{line}", fix=fix)
        tokens.append(token)
    return tokens


def _mapping(
    tokens: list[str], pieces: dict[str, int], vocabulary: Vocabulary, encoder: str | None, where: str
) -> tuple[Int64, list[str]]:
    """([fairseq's ids]: the tokenizer's id of each, -1 for none; messages)."""
    real_tokens = [token for token in tokens if not token.startswith(FILLER)]
    names = tokens
    if real_tokens and all(token.isdecimal() or token in (*FIRST, "<mask>") for token in real_tokens):
        if encoder is None:
            fix = "give GPT-2's file, https://dl.fbaipublicfiles.com/fairseq/gpt2_bpe/encoder.json: --encoder FILE"
            raise InputError("is a dictionary of numbers, which encoder.json explains", where=where, fix=fix)
        string_of = read_encoder(encoder)
        names = [string_of.get(int(token), token) if token.isdecimal() else token for token in tokens]
    special = {"<s>": vocabulary.bos, "<pad>": vocabulary.pad, "</s>": vocabulary.eos, "<unk>": vocabulary.unk}
    special["<mask>"] = vocabulary.mask
    ids = [special.get(name, pieces.get(name)) for name in (*FIRST, *names)]
    mapping = np.array([-1 if index is None else index for index in ids], np.int64)
    id_of_names = zip(names, ids[len(FIRST) :], strict=True)
    missing = [name for name, index in id_of_names if index is None and FILLER not in name]
    message = f"{len(real_tokens) - len(missing):,} of the {len(real_tokens):,} tokens of {where} are in the tokenizer"
    if missing:
        message += f"; {len(missing):,} are not, such as {missing[0]!r}"
    return mapping, [message]


def read_encoder(path: str) -> dict[int, str]:
    """GPT-2's tokens by their numbers, from its encoder.json. Raises `InputError`."""
    content: Any = storage.read_json(path)
    if not isinstance(content, dict) or not all(type(index) is int for index in content.values()):
        raise InputError("is not an encoder.json: tokens and their numbers", where=path, fix="give GPT-2's own file")
    return {index: token for token, index in content.items()}
