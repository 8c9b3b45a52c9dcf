"""Pregenerated epochs: examples with static masks, as pytorch-transformers' `pregenerate_training_data.py` and
`maskwright data pregenerate` write them. Masked tokens are put back.

    epoch_0.json           a line for each example: tokens (masked), segment_ids, is_random_next, masked_lm_positions,
                           masked_lm_labels; tokens and labels are strings
    epoch_0/               in its place, of `data pregenerate` alone: a .npy file for each array of `StaticMasks`
    epoch_0_metrics.json   num_training_examples, max_seq_len
    pregenerate.json       of `data pregenerate` alone: options, sources, checksums, the tokenizer's fingerprint
    tokenizer/             of `data pregenerate` alone

`docs/pregenerated.md` is the contract.
"""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from tokenize import TokenError  # raised by numpy's reader of headers
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.core import storage
from maskwright.core.errors import InputError, StoreError
from maskwright.data.foreign.blocks import Block, Foreign
from maskwright.data.foreign.static_masks import ARRAYS, StaticMasks, describe, findings
from maskwright.data.masking import Masker
from maskwright.data.store import require_rules
from maskwright.text.vocabulary import Vocabulary

RECORD, TOKENIZER = "pregenerate.json", "tokenizer"
KEYS = ("tokens", "segment_ids", "is_random_next", "masked_lm_positions", "masked_lm_labels")
COPY_AGAIN = "copy the file again, or generate the epoch again"
BLOCK_EXAMPLES = 2_000
LONGEST_TOKENS = np.iinfo(np.uint16).max
STATIC_MASKS = "these files hold static masks. The masked tokens are put back, and training masks anew"
REPAIR_HINT = (
    "training puts the masked tokens back and masks anew; for other trainers, `maskwright data pregenerate --repair` "
    "writes files without what can be repaired"
)


def open_pregenerated(places: list[str], vocabulary: Vocabulary, pieces: dict[str, int]) -> Foreign:
    """Opens a folder of epochs. `pieces`: the tokenizer's tokens and ids. Raises `InputError`."""
    if len(places) != 1 or not os.path.isdir(places[0]):
        fix = "name the folder that holds epoch_0.json, or epoch_0/"
        raise InputError("is not a single folder of pregenerated epochs", where=" ".join(places), fix=fix)
    reader = Reader(places[0], vocabulary, pieces)
    files = [path if path.endswith(".json") else os.path.join(path, "tokens.npy") for path in reader.epochs]
    passes, described = len(files), reader.describe
    return Foreign("pregenerated", files, reader.blocks, messages=[STATIC_MASKS], passes=passes, described=described)


class Reader:
    """Reads a folder of epochs with one tokenizer. Raises `StoreError` for another or an unfinished folder."""

    def __init__(self, folder: str, vocabulary: Vocabulary, pieces: dict[str, int]) -> None:
        self.folder, self.vocabulary, self.ids = folder, vocabulary, pieces
        self.masker = Masker.of(vocabulary)
        self.epochs = epochs_of(folder)
        self.record = read_record(folder)
        if self.record and self.record.get("tokenizer") != vocabulary.fingerprint:
            what = "its tokenizer is not the one that its examples were made with"
            raise StoreError(what, where=os.path.join(folder, TOKENIZER), fix="put that tokenizer back")
        if "options" in self.record:  # of a text; repaired examples are another tool's
            require_rules(self.record.get("additional_sha256"), vocabulary, pieces, folder)

    def describe(self, counts: Mapping[str, int]) -> list[str]:
        """A line for each finding. `counts`: sums of `findings`."""
        options = self.record.get("options") or self.record.get("repaired") or {"do_whole_word_mask": True}
        wrong = describe(counts, whole_words=options.get("do_whole_word_mask") is True)
        return [*wrong, REPAIR_HINT] if wrong and not self.record else wrong

    def blocks(self, epoch: int) -> Iterator[Block]:
        """Blocks of an epoch, masks put back. An example is a document; a pair of two documents is two."""
        first = 0
        for examples, is_unknown in self.examples(epoch):
            is_pair = (examples.random_next > 0) & (examples.first_segment < examples.lengths)
            halves = np.where(is_pair, examples.first_segment, examples.lengths)
            sizes = np.stack([halves, examples.lengths - halves], 1).astype(np.int64).ravel()
            numbers = first + np.arange(len(sizes)) // 2
            counts = findings(examples, is_unknown, self.masker, self.vocabulary)
            yield Block(examples.text(), sizes[sizes > 0], epoch, first, None, numbers[sizes > 0], counts)
            first += len(examples.lengths)

    def examples(self, epoch: int) -> Iterator[tuple[StaticMasks, NDArray[np.bool_]]]:
        """(examples, [t] whether each token is unknown to the vocabulary) of each block. Raises `StoreError` for a
        broken example, with its line; for other bytes than were written; and for another number of examples."""
        path, expected, count = self.epochs[epoch], read_metrics(self.folder, epoch)[0], 0
        is_json = path.endswith(".json")
        if not is_json:
            self._require_written(path)
        for block in self._lines(path) if is_json else self._arrays(path):
            yield block
            count += len(block[0].lengths)
        if count != expected:
            what = f"has {count:,} examples, its metrics file says {expected:,}"
            raise StoreError(what, where=path, fix="copy both again, or generate the epoch again")
        if is_json and self.record:
            self._require_written(path)

    def _require_written(self, path: str) -> None:
        name = os.path.basename(path).removesuffix(".json")
        if sha256_of_epoch(path) != (self.record.get("sha256") or {}).get(name):
            raise StoreError(f"is not what was written (its sha256 differs from {RECORD})", where=path, fix=COPY_AGAIN)

    def _lines(self, path: str) -> Iterator[tuple[StaticMasks, NDArray[np.bool_]]]:
        done, unk = 0, self.vocabulary.unk or 0
        with storage.open_binary(path) as file:
            while lines := [*islice(file, BLOCK_EXAMPLES)]:
                if self.record and not done and lines[0].startswith(codecs.BOM_UTF8):
                    raise StoreError("begins with a byte order mark (BOM)", where=f"{path}:1", fix=COPY_AGAIN)
                rows = [self._ids(line, f"{path}:{number}") for number, line in enumerate(lines, done + 1)]
                ids, segments, random_next, positions, labels_of_rows = zip(*rows, strict=True)
                tokens, labels, flat_positions = (
                    np.array([*chain.from_iterable(lists)], np.int64) for lists in (ids, labels_of_rows, positions)
                )
                is_unknown = tokens < 0
                tokens[is_unknown], labels[labels < 0] = unk, unk
                lengths, predictions = (np.array([*map(len, lists)]) for lists in (ids, labels_of_rows))
                columns = (lengths, np.array(segments), np.array(random_next), flat_positions, labels, predictions)
                yield StaticMasks(tokens, *columns), is_unknown
                done += len(lines)

    def _ids(self, line: bytes, where: str) -> tuple[list[int], int, bool, list[int], list[int]]:
        """`read_line` in ids, -1 for an unknown token."""
        try:
            tokens, first_segment, random_next, positions, labels = read_line(line)
        except ValueError as error:
            raise StoreError(str(error), where=where, fix=COPY_AGAIN) from None
        ids, label_ids = ([self.ids.get(token, -1) for token in strings] for strings in (tokens, labels))
        if (self.record or self.vocabulary.unk is None) and -1 in (*ids, *label_ids):
            missing = next(token for token in (*tokens, *labels) if token not in self.ids)
            fix = COPY_AGAIN if self.record else "give the tokenizer that made them"
            raise StoreError(f"has {missing!r:.60}, which is not a token", where=where, fix=fix)
        return ids, first_segment, random_next, positions, label_ids

    def _arrays(self, path: str) -> Iterator[tuple[StaticMasks, NDArray[np.bool_]]]:
        epoch = map_arrays(path)
        token_ends, label_ends = np.cumsum(epoch.lengths, dtype=np.int64), np.cumsum(epoch.predictions, dtype=np.int64)
        for first in range(0, len(epoch.lengths), BLOCK_EXAMPLES):
            n = slice(first, first + BLOCK_EXAMPLES)
            t, p = (slice(int(ends[first - 1]) if first else 0, int(ends[n][-1])) for ends in (token_ends, label_ends))
            slices = {"tokens": t, "positions": p, "labels": p}
            examples = StaticMasks(*(getattr(epoch, name)[slices.get(name, n)].astype(np.int64) for name in ARRAYS))
            is_inside = examples.positions < np.repeat(examples.lengths, examples.predictions)
            largest = max(examples.tokens.max(), examples.labels.max(initial=0))
            if not is_inside.all() or largest >= self.vocabulary.size:
                raise _damaged(path)
            yield examples, np.zeros(len(examples.tokens), bool)


def epochs_of(folder: str) -> list[str]:
    """The epochs of a folder, each a .json file or a folder of arrays. Raises `StoreError` for none, for a gap in their
    numbers, and for an epoch that exists twice."""
    epochs: dict[int, str] = {}
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        match = re.fullmatch(r"epoch_(0|[1-9][0-9]{0,8})(\.json)?", name)
        if match is None:
            continue
        number = int(match[1])
        if number in epochs:
            what = f"has epoch {number} as {os.path.basename(epochs[number])} and as {name}"
            raise StoreError(what, where=folder, fix="delete one of them")
        epochs[number] = os.path.join(folder, name)
    if not epochs:
        fix = "create one: `maskwright data pregenerate --train_corpus TEXT --bert_model FOLDER --output_dir FOLDER`"
        raise StoreError("holds no epoch_0.json, so it is not pregenerated data", where=folder, fix=fix)
    if missing := [number for number in range(max(epochs)) if number not in epochs]:
        raise StoreError(f"lacks epoch {missing[0]}", where=folder, fix="copy it too, or number the others from 0")
    return [path for _, path in sorted(epochs.items())]


def read_record(folder: str) -> dict[str, Any]:
    """The record of `data pregenerate`, {} for the original script's. Raises `StoreError` if it never finished."""
    path = os.path.join(folder, RECORD)
    if not os.path.exists(path):
        return {}
    record = storage.read_json(path)
    if not isinstance(record, dict) or record.get("finished") is not True:
        fix = "run the same `maskwright data pregenerate` again: it continues"
        raise StoreError("its generation never finished", where=folder, fix=fix)
    return record


def read_metrics(folder: str, epoch: int) -> tuple[int, int]:
    """(examples, max_seq_len) of an epoch. Raises `StoreError` if the file is missing or broken."""
    path = os.path.join(folder, f"epoch_{epoch}_metrics.json")
    if not os.path.exists(path):
        raise StoreError("is missing, so its epoch was never finished", where=path, fix="generate the folder again")
    content = storage.read_json(path)
    metrics = content if isinstance(content, dict) else {}
    examples, length = metrics.get("num_training_examples"), metrics.get("max_seq_len")
    if type(examples) is not int or type(length) is not int or min(examples, length) < 1:
        what = "does not say num_training_examples and max_seq_len, both above 0"
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
        raise ValueError(f"is not an example: it has {keys or 'nothing'}, an example has {', '.join(KEYS)}")
    tokens, segments, random_next, positions, labels = (example[key] for key in KEYS)
    if not _all_are(tokens, str) or not _all_are(labels, str) or not tokens:
        raise ValueError("has tokens or labels that are not a list of strings")
    if not _all_are(segments, int) or not _all_are(positions, int) or not isinstance(random_next, bool):
        raise ValueError("has segment_ids or positions that are not whole numbers, or no true or false")
    if len(segments) != len(tokens) or len(positions) != len(labels):
        counts = f"{len(tokens)} tokens, {len(segments)} segment ids; {len(positions)} positions, {len(labels)} labels"
        raise ValueError(f"has lists that do not belong together: {counts}")
    first = segments.count(0)
    if segments != [0] * first + [1] * (len(tokens) - first):
        raise ValueError("has segment_ids that are not zeros followed by ones")
    ascending = all(a < b for a, b in zip(positions, positions[1:], strict=False))
    if positions and (not ascending or positions[0] < 0 or positions[-1] >= len(tokens)):
        raise ValueError(f"has positions that do not rise within its {len(tokens)} tokens")
    if len(tokens) > LONGEST_TOKENS:
        raise ValueError(f"has {len(tokens):,} tokens, more than any model takes")
    return tokens, first, random_next, positions, labels


def _all_are(values: Any, kind: type) -> bool:
    return isinstance(values, list) and {*map(type, values)} <= {kind}


def map_arrays(folder: str) -> StaticMasks:
    """The arrays of a binary epoch, memory-mapped. Raises `StoreError` for damaged ones."""
    try:
        paths = [os.path.join(folder, f"{name}.npy") for name in ARRAYS]
        examples = StaticMasks(*(np.asarray(np.load(path, mmap_mode="r", allow_pickle=False)) for path in paths))
        lengths = [len(getattr(examples, name)) for name in ARRAYS]
        t, p = (int(sizes.sum(dtype=np.int64)) for sizes in (examples.lengths, examples.predictions))
        n = len(examples.lengths)
        is_whole = n > 0 and lengths == [t, n, n, n, p, p, n]
        arrays = [getattr(examples, name) for name in ARRAYS]
        is_whole &= all(array.ndim == 1 and array.dtype.kind == "u" for array in arrays)
    except (OSError, ValueError, TypeError, EOFError, TokenError, SyntaxError):
        is_whole = False
    if not is_whole:
        raise _damaged(folder)
    return examples


def _damaged(folder: str) -> StoreError:
    return StoreError("has arrays that do not belong together", where=folder, fix=COPY_AGAIN)


def sha256_of_epoch(path: str) -> str:
    """The digest of a JSON file, or of the arrays of a binary epoch."""
    if path.endswith(".json"):
        return storage.sha256_of_file(path)
    return storage.sha256_of([storage.sha256_of_file(os.path.join(path, f"{name}.npy")) for name in ARRAYS])
