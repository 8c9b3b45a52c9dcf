"""Pregenerated epochs: examples with static masks, as pytorch-transformers' `pregenerate_training_data.py` writes them.
Masked tokens are restored.

    epoch_0.json           a line for each example: tokens (masked), segment_ids, is_random_next, masked_lm_positions,
                           masked_lm_labels; tokens and labels are strings
    epoch_0_metrics.json   num_training_examples, max_seq_len
    tokenizer/             if you copy the tokenizer there

`docs/foreign-data.md#pregenerated-epochs` is the contract.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from maskwright.core import storage
from maskwright.core.errors import InputError, StoreError
from maskwright.data.foreign.blocks import Block, Foreign
from maskwright.text.compression import COPY_AGAIN
from maskwright.text.vocabulary import Vocabulary

TOKENIZER = "tokenizer"
KEYS = ("tokens", "segment_ids", "is_random_next", "masked_lm_positions", "masked_lm_labels")
BLOCK_EXAMPLES = 2_000
LONGEST_TOKENS = np.iinfo(np.uint16).max
STATIC_MASKS = "these files hold static masks. The masked tokens are restored, and training draws its own masks"


def open_pregenerated(places: list[str], vocabulary: Vocabulary, pieces: dict[str, int]) -> Foreign:
    """Opens a folder of epochs. `pieces`: the tokenizer's tokens and ids. Raises `InputError`."""
    if len(places) != 1 or not os.path.isdir(places[0]):
        fix = "name the folder that holds epoch_0.json"
        raise InputError("is not a single folder of pregenerated epochs", where=" ".join(places), fix=fix)
    reader = Reader(places[0], vocabulary, pieces)
    files = reader.epochs
    return Foreign("pregenerated", files, reader.blocks, messages=[STATIC_MASKS], passes=len(files))


class Reader:
    """Reads a folder of epochs with one tokenizer. Raises `StoreError` for another folder."""

    def __init__(self, folder: str, vocabulary: Vocabulary, pieces: dict[str, int]) -> None:
        self.folder, self.vocabulary, self.ids = folder, vocabulary, pieces
        self.epochs = epochs_of(folder)

    def blocks(self, epoch: int) -> Iterator[Block]:
        """Blocks of an epoch, with the masked tokens restored. An example is a document; a pair of two documents is
        two. Raises `StoreError` for a broken example, with its line, and for another number of examples."""
        path, expected, count = self.epochs[epoch], read_metrics(self.folder, epoch)[0], 0
        with storage.open_binary(path) as file:
            while lines := [*islice(file, BLOCK_EXAMPLES)]:
                ids, sizes, numbers = list[int](), list[int](), list[int]()
                for number, line in enumerate(lines, count):
                    example, borders = self._example(line, f"{path}:{number + 1}")
                    ids += example
                    sizes += borders
                    numbers += [number] * len(borders)
                yield Block(np.array(ids), np.array(sizes), epoch, count, numbers=np.array(numbers))
                count += len(lines)
        if count != expected:
            what = f"has {count:,} examples, but {expected:,} by its metrics file"
            raise StoreError(what, where=path, fix="copy both again, or generate the epoch again")

    def _example(self, line: bytes, where: str) -> tuple[list[int], list[int]]:
        """(ids before masking, tokens of each document in them). An unknown token is the tokenizer's unknown one."""
        try:
            tokens, first_segment, random_next, positions, labels = read_line(line)
        except ValueError as error:
            raise StoreError(str(error), where=where, fix=COPY_AGAIN) from None
        for position, label in zip(positions, labels, strict=True):
            tokens[position] = label
        ids = [self.ids.get(token, -1) for token in tokens]
        if -1 in ids:
            if self.vocabulary.unk is None:
                what = f"has {tokens[ids.index(-1)]!r:.60}, which is not a token"
                raise StoreError(what, where=where, fix="give the tokenizer that made them")
            ids = [self.vocabulary.unk if token_id < 0 else token_id for token_id in ids]
        halves = (first_segment, len(ids) - first_segment) if random_next else (len(ids),)
        return ids, [size for size in halves if size]


def epochs_of(folder: str) -> list[str]:
    """The files of a folder's epochs. Raises `StoreError` for none, and for a gap in their numbers."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    matches = (re.fullmatch(r"epoch_(0|[1-9][0-9]{0,8})\.json", name) for name in names)
    epochs = {int(match[1]): match[0] for match in matches if match}
    if not epochs:
        fix = "correct the path; for new data use a token store: `maskwright data prepare`"
        raise StoreError("holds no epoch_0.json, so it is not pregenerated data", where=folder, fix=fix)
    if missing := [number for number in range(max(epochs)) if number not in epochs]:
        raise StoreError(f"lacks epoch {missing[0]}", where=folder, fix="copy it too, or number the others from 0")
    return [os.path.join(folder, name) for _, name in sorted(epochs.items())]


def read_metrics(folder: str, epoch: int) -> tuple[int, int]:
    """(examples, max_seq_len) of an epoch. Raises `StoreError` if the file is missing or broken."""
    path = os.path.join(folder, f"epoch_{epoch}_metrics.json")
    if not os.path.exists(path):
        raise StoreError("is missing, so its epoch was never finished", where=path, fix="generate the folder again")
    content = storage.read_json(path)
    metrics = content if isinstance(content, dict) else {}
    examples, length = metrics.get("num_training_examples"), metrics.get("max_seq_len")
    if type(examples) is not int or type(length) is not int or min(examples, length) < 1:
        what = "lacks num_training_examples and max_seq_len, both above 0"
        raise StoreError(what, where=path, fix="generate the folder again")
    return examples, length


def read_line(line: bytes) -> tuple[list[str], int, bool, list[int], list[str]]:
    """(tokens, length of the first segment, is_random_next, positions, labels) of a line. Raises `ValueError` for the
    user."""
    try:
        example = json.loads(line)
    except (ValueError, RecursionError) as error:
        detail = error.msg if isinstance(error, json.JSONDecodeError) else "not UTF-8, or nested too deeply"
        raise ValueError(f"is not JSON: {detail}") from None
    if not isinstance(example, dict) or set(example) != set(KEYS):
        keys = ", ".join(map(str, example)) if isinstance(example, dict) else type(example).__name__
        raise ValueError(f"is not an example: it has {keys or 'no keys'} instead of {', '.join(KEYS)}")
    tokens, segments, random_next, positions, labels = (example[key] for key in KEYS)
    if not _all_are(tokens, str) or not _all_are(labels, str) or not tokens:
        raise ValueError("has tokens or labels that are not a list of strings")
    if not _all_are(segments, int) or not _all_are(positions, int) or not isinstance(random_next, bool):
        raise ValueError("has segment_ids or positions that are not whole numbers, or no is_random_next")
    if len(segments) != len(tokens) or len(positions) != len(labels):
        counts = f"{len(tokens)} tokens, {len(segments)} segment ids; {len(positions)} positions, {len(labels)} labels"
        raise ValueError(f"has lists of different lengths: {counts}")
    first = segments.count(0)
    if segments != [0] * first + [1] * (len(tokens) - first):
        raise ValueError("has segment_ids that are not zeros followed by ones")
    ascending = all(a < b for a, b in zip(positions, positions[1:], strict=False))
    if positions and (not ascending or positions[0] < 0 or positions[-1] >= len(tokens)):
        raise ValueError(f"has positions that do not rise within its {len(tokens)} tokens")
    if len(tokens) > LONGEST_TOKENS:
        raise ValueError(f"has {len(tokens):,} tokens, more than any model can read")
    return tokens, first, random_next, positions, labels


def _all_are(values: Any, kind: type) -> bool:
    return isinstance(values, list) and {*map(type, values)} <= {kind}
