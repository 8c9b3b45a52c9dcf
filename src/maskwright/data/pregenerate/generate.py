"""`maskwright data pregenerate`: text to epochs of examples with static masks, the same for any number of workers.

The text is encoded once, into a token store below the folder, and each epoch is one pass over it. A block's examples
are a function of (seed, epoch, documents), so workers only change the speed. After a stop, the same command continues:
an epoch with its metrics file is complete, and finished blocks of another one stay.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np

from maskwright.core import storage
from maskwright.core.console import say
from maskwright.core.errors import InputError
from maskwright.data.foreign.pregenerated import RECORD, TOKENIZER, read_metrics
from maskwright.data.pregenerate.sequences import PregenerateOptions, Text, documents, read_text, sequences
from maskwright.data.pregenerate.write import EpochWriter, finish
from maskwright.data.prepare.driver import prepare
from maskwright.data.prepare.request import PrepareOptions, Request
from maskwright.data.store import Split, TokenStore
from maskwright.processes.runner import Here, Runner
from maskwright.text.parts.columns import Note, written
from maskwright.text.parts.phase import compute
from maskwright.text.sources import Sources
from maskwright.text.tokenizer import copy_tokenizer

LOCK, TEXT, PARTS = "pregenerate.lock", "text", "parts"
BLOCK_TOKENS = 1 << 18
Block = tuple[int, int, int, int]
"""(epoch, shard, first document, last document (exclusive))"""


def pregenerate(
    sources: Sources, tokenizer: str, folder: str, options: PregenerateOptions, *, workers: int = 1
) -> list[int]:
    """Writes the epochs and returns the examples of each. Raises `InputError` for bad text, options or folder."""
    folder = storage.require_local(folder)
    text = os.path.join(folder, TEXT)
    with storage.new_folder(folder), storage.locked(os.path.join(folder, LOCK), remove=True), Here(workers) as runner:
        record_path = os.path.join(folder, RECORD)
        before = _unfinished(folder)
        if before is None:  # first of all: only what lies beside it is ours to delete
            storage.write_json(record_path, before := {"finished": False})
        try:
            prepared = Request(sources, tokenizer, text, PrepareOptions(valid_fraction=0.0, keep_duplicates=True))
            store = prepare(prepared, runner)
            plan = {"text": store.fingerprint, "tokenizer": store.vocabulary.fingerprint, "options": asdict(options)}
            plan |= store.vocabulary.rules_record
            if "text" in before and {key: before.get(key) for key in plan} != plan:
                what, fix = "holds unfinished epochs of other text or options", "delete it, or choose another folder"
                raise InputError(what, where=folder, fix=fix)
            if options.do_next_sent_prediction and store.manifest["splits"]["train"]["documents"] < 2:
                fix = "separate documents by blank lines (--layout sentences), or leave --do_next_sent_prediction out"
                raise InputError("is one document, so no sentence is of another", where=sources.files[0], fix=fix)
        except InputError:
            if "text" not in before:  # no epoch was begun
                shutil.rmtree(text, ignore_errors=True)
                os.unlink(record_path)
            raise
        record = {**plan, "sources": store.manifest["sources"]}
        storage.write_json(record_path, {**record, "finished": False})
        copy_tokenizer(tokenizer, os.path.join(folder, TOKENIZER))
        storage.make_folder(os.path.join(folder, PARTS))
        examples = [_epoch(store, epoch, folder, options, runner) for epoch in range(options.epochs_to_generate)]
        finish(folder, record)
        for name in (TEXT, PARTS):
            shutil.rmtree(os.path.join(folder, name))
    return examples


def _unfinished(folder: str) -> dict[str, Any] | None:
    """The record of a stopped generation, without `text` if its text was not encoded yet; None for an empty folder.
    Raises `InputError` for any other folder."""
    path = os.path.join(folder, RECORD)
    if os.path.exists(path):
        record = storage.read_json(path)
        if not isinstance(record, dict) or record.get("finished") is not False:
            raise InputError("already holds pregenerated epochs", where=folder, fix="choose another folder")
        return record
    if [name for name in os.listdir(folder) if name != LOCK and not name.startswith(f"{RECORD}.tmp-")]:
        raise InputError("is not empty", where=folder, fix="choose another folder")
    return None


def _epoch(store: TokenStore, epoch: int, folder: str, options: PregenerateOptions, runner: Runner) -> int:
    """Writes an epoch unless it is complete. Returns its number of examples."""
    if os.path.exists(os.path.join(folder, f"epoch_{epoch}_metrics.json")):
        say(f"epoch {epoch} is complete already")
        return read_metrics(folder, epoch)[0]
    blocks, shards = list[Block](), store.split("train").shards
    for shard_idx, shard in enumerate(shards):
        count, size = shard.documents, max(1, shard.documents * BLOCK_TOKENS // shard.tokens)
        blocks += [(epoch, shard_idx, first, min(first + size, count)) for first in range(0, count, size)]
    sizes = [(last - first) * shards[idx].tokens // shards[idx].documents for _, idx, first, last in blocks]
    paths = [os.path.join(folder, PARTS, "-".join(map(str, block))) for block in blocks]
    make = WriteExamples(store.location, options)
    notes = compute(runner, make, [*zip(blocks, paths, strict=True)], f"epoch {epoch}", sizes)
    return EpochWriter(store.tokenizer_folder, options).write_epoch(folder, epoch, paths, notes)


@lru_cache(maxsize=1)
def _opened(store: str, options: PregenerateOptions) -> tuple[Split, EpochWriter]:
    opened_store = TokenStore(store)
    return opened_store.split("train"), EpochWriter(opened_store.tokenizer_folder, options)


@lru_cache(maxsize=2)
def _text(store: str, options: PregenerateOptions, shard_idx: int) -> Text:
    return read_text(_opened(store, options)[0], shard_idx)


@dataclass(frozen=True)
class WriteExamples:
    """Writes the examples of a block. The note has their number."""

    store: str
    options: PregenerateOptions

    def __call__(self, task: tuple[Block, str]) -> Note:
        (epoch, shard_idx, first, last), path = task
        options, (split, writer) = self.options, _opened(self.store, self.options)
        text, other = (_text(self.store, options, idx % len(split.shards)) for idx in (shard_idx, shard_idx + 1))
        unmasked_sequences = (
            sequence
            for document in documents(text, first, last)
            for sequence in sequences(text, document, other, options, writer.words, epoch)
        )
        with written(path) as file:
            count = 0
            while unmasked := [*islice(unmasked_sequences, max(1, BLOCK_TOKENS // options.max_seq_len))]:
                file.append("lines", np.frombuffer(writer.lines(unmasked, epoch), np.uint8))
                count += len(unmasked)
            file.note = {"examples": count}
        return file.note
