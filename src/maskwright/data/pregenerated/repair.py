"""`maskwright data pregenerate --repair`: another script's examples with what is wrong in their masks put right.

The text is known, since labels say what was masked. The tokenizer's own mask takes the place of one that it does not
have, ordinary tokens that of special ones drawn at random, and predictions of special tokens go. With whole words, all
masks of an example are drawn anew, as many as it had. Text of another document that was appended stays: nothing says
where it begins.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from maskwright.core import storage
from maskwright.core.errors import InputError, StoreError
from maskwright.data import bits
from maskwright.data.pregenerated.examples import Examples, JsonLines, read_metrics
from maskwright.data.pregenerated.findings import Findings, originals
from maskwright.data.pregenerated.generate import LOCK, TOKENIZER, Part, Written, finish, write_epoch
from maskwright.data.pregenerated.masks import REPLACEMENT_PURPOSE, Unmasked, masked
from maskwright.data.pregenerated.read import Reader, epochs_of
from maskwright.text.tokenizer import copy_tokenizer
from maskwright.text.vocabulary import read_vocabulary, token_strings

PURPOSE = 0x5EA


def repair(
    source: str, tokenizer: str, folder: str, *, whole_words: bool, seed: int, written: Written
) -> tuple[Findings, Findings]:
    """Writes the repaired epochs. Returns what was found before and what is left.

    Raises `InputError` for a folder that is not empty, `StoreError` for a source that holds something else."""
    paths, reader = epochs_of(source), Reader(read_vocabulary(tokenizer), tokenizer)
    if binary := [path for path in paths.values() if not path.endswith(".json")]:
        raise StoreError("is maskwright's own, which needs no repair", where=binary[0], fix="train from it as it is")
    with storage.new_folder(folder), storage.locked(os.path.join(folder, LOCK), remove=True):
        if [name for name in os.listdir(folder) if name != LOCK]:
            raise InputError("is not empty", where=folder, fix="choose another folder")
        left = Reader(reader.vocabulary, tokenizer)
        for epoch in paths:
            parts = _repaired(source, epoch, reader, left, whole_words=whole_words, seed=seed, written=written)
            write_epoch(folder, epoch, parts, reader.vocabulary, read_metrics(source, epoch)[1], written)
        copy_tokenizer(tokenizer, os.path.join(folder, TOKENIZER))
        record = {
            "tokenizer": reader.vocabulary.fingerprint,
            "repaired": {"do_whole_word_mask": whole_words, "seed": seed},
            "sources": [{"location": path} for path in paths.values()],
            "versions": {"maskwright": importlib.metadata.version("maskwright"), "numpy": np.__version__},
        }
        finish(folder, record, written, len(paths))
    return reader.findings, left.findings


def _repaired(
    source: str, epoch: int, reader: Reader, left: Reader, *, whole_words: bool, seed: int, written: Written
) -> Iterator[Part]:
    spelling, number = JsonLines(token_strings(reader.tokenizer)), 0
    for some, unknown in reader.json_epoch(source, epoch):
        keys = bits.extend(
            bits.key(seed, PURPOSE, epoch), np.arange(number, number + len(some.lengths), dtype=np.uint64)
        )
        number += len(some.lengths)
        made = _masked_anew(some, keys, reader) if whole_words else _put_right(some, unknown, keys, reader)
        unknown[some.places] = False  # the others stay
        left.count(made, unknown)
        yield len(made.lengths), spelling.lines(made) if written == "json" else made


def _masked_anew(some: Examples, keys: bits.Bits, reader: Reader) -> Examples:
    texts = np.split(originals(some), np.cumsum(some.lengths)[:-1])
    rows = zip(texts, some.first_segment.tolist(), some.random_next.tolist(), keys, strict=True)
    sequences = [Unmasked(text, first, bool(other), key) for text, first, other, key in rows]
    wanted = some.predictions.tolist()
    return masked(sequences, reader.masker, rate=0.0, most=max(wanted), whole_words=True, wanted=wanted)


def _put_right(some: Examples, unknown: NDArray[np.bool_], keys: bits.Bits, reader: Reader) -> Examples:
    masker, places = reader.masker, some.places
    tokens, shown = np.array(some.tokens, np.int32), some.tokens[places]
    at = bits.extend(np.repeat(keys, some.predictions), some.positions.astype(np.uint64) + REPLACEMENT_PURPOSE)
    other = masker.ordinary[(at % np.uint64(len(masker.ordinary))).astype(np.int64)]
    shown = np.where(masker.special[shown] & (shown != masker.mask_id), other, shown)
    shown = np.where(unknown[places], masker.mask_id, shown)
    kept = ~masker.special[some.labels]
    tokens[places] = np.where(kept, shown, some.labels)
    of_example = np.repeat(np.arange(len(some.lengths)), some.predictions)
    predictions = np.bincount(of_example[kept], minlength=len(some.lengths))
    return replace(
        some, tokens=tokens, positions=some.positions[kept], labels=some.labels[kept], predictions=predictions
    )
