"""`maskwright data pregenerate`: text to epochs of examples with static masks, the same for any number of workers.

The text is encoded once, into a token store below the folder, and each epoch is one pass over it. A block's examples
are a function of (seed, epoch, documents), so workers only change the speed. After a stop, the same command continues.
An epoch with its metrics file is complete, and finished blocks of other epochs stay.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np

from maskwright import __version__
from maskwright.core import storage
from maskwright.core.console import say
from maskwright.core.errors import InputError, Locked
from maskwright.data.foreign.pregenerated import RECORD, TOKENIZER, read_metrics
from maskwright.data.pregenerate.sequences import PregenerateOptions, Text, documents, read_text, sequences
from maskwright.data.pregenerate.write import EpochWriter, finish
from maskwright.data.prepare.driver import prepare
from maskwright.data.prepare.folder import names_in
from maskwright.data.prepare.request import PrepareOptions, Request
from maskwright.data.store import Split, TokenStore
from maskwright.processes.claims import others_in, unless_finished
from maskwright.processes.runner import Runner
from maskwright.text.parts.columns import Note, written
from maskwright.text.parts.cut import cut, digest_of
from maskwright.text.parts.phase import compute
from maskwright.text.sources import Sources
from maskwright.text.tokenizer import copy_tokenizer
from maskwright.text.vocabulary import read_vocabulary

TEXT, PARTS = "text", "parts"
BLOCK_TOKENS = 1 << 18
Block = tuple[int, int, int, int]
"""(epoch, shard, first document, last document (exclusive))"""


def pregenerate(
    sources: Sources, tokenizer: str, folder: str, options: PregenerateOptions, *, workers: int = 1
) -> list[int]:
    """Writes the epochs and returns the examples of each. The same call in other processes, on this machine or others
    that see the folder, shares the work. Raises `InputError` for bad text, options or folder."""
    folder = storage.require_local(folder)
    words = read_vocabulary(tokenizer)
    work, decided = os.path.join(folder, PARTS), [__version__, asdict(options), words.fingerprint, words.rules_record]
    digest = digest_of(decided, [part.identity() for part in cut([sources])])
    with storage.new_folder(folder), Runner(workers) as runner:
        if (before := _record(folder)) is None:  # first of all, since only files next to a record may be deleted
            storage.write_json(os.path.join(folder, RECORD), {"finished": False})
        if before and before["finished"]:
            if before.get("plan") != digest:
                raise InputError("already holds pregenerated epochs", where=folder, fix="choose another folder")
            return _cleared(folder, options)
        storage.make_folder(work)
        with unless_finished(lambda: _is_finished(folder)), runner.sharing(work, digest) as claims:
            if _is_finished(folder):  # by another process, just now
                return _cleared(folder, options)
            store = _encoded(sources, tokenizer, folder, options, runner)
            for epoch in range(options.epochs_to_generate):
                _write_epoch(store, epoch, folder, options, runner)
            record = {**_plan(store, options), "plan": digest, "sources": store.locations}
            claims.alone("finish", lambda: _is_finished(folder), lambda: finish(folder, record))
        return _cleared(folder, options)


def _cleared(folder: str, options: PregenerateOptions) -> list[int]:
    """Deletes the sources of finished epochs, and returns the examples of each."""
    for name in (TEXT, PARTS):
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)  # other processes may do it too
    return [read_metrics(folder, epoch)[0] for epoch in range(options.epochs_to_generate)]


def _encoded(sources: Sources, tokenizer: str, folder: str, options: PregenerateOptions, runner: Runner) -> TokenStore:
    """The text as a token store. Raises `InputError` if it does not match epochs that were begun."""
    text, record_path = os.path.join(folder, TEXT), os.path.join(folder, RECORD)
    try:
        store = prepare(
            Request(sources, tokenizer, text, PrepareOptions(valid_fraction=0.0, keep_duplicates=True)), runner
        )
        plan, before = _plan(store, options), storage.read_json(record_path)
        if "text" in before and {key: before.get(key) for key in plan} != plan:
            what, fix = "holds unfinished epochs of other text or options", "delete it, or choose another folder"
            raise InputError(what, where=folder, fix=fix)
        if options.do_next_sent_prediction and store.manifest["splits"]["train"]["documents"] < 2:
            fix = "separate documents by blank lines (--layout sentences), or leave --do_next_sent_prediction out"
            raise InputError("is one document: next sentences need two", where=sources.files[0], fix=fix)
    except InputError as error:
        work, is_begun = os.path.join(folder, PARTS), "text" in storage.read_json(record_path)
        if not (is_begun or isinstance(error, Locked) or others_in(os.listdir(work))):
            for name in (text, work):
                shutil.rmtree(name, ignore_errors=True)
            os.unlink(record_path)
        raise

    def begin() -> None:
        copy_tokenizer(tokenizer, os.path.join(folder, TOKENIZER))
        storage.write_json(record_path, {**plan, "sources": store.locations, "finished": False})

    assert runner.claims
    runner.claims.alone("begin", lambda: "text" in storage.read_json(record_path), begin)
    return store


def _plan(store: TokenStore, options: PregenerateOptions) -> dict[str, Any]:
    plan = {"text": store.fingerprint, "tokenizer": store.vocabulary.fingerprint, "options": asdict(options)}
    return plan | store.vocabulary.rules_record


def _record(folder: str) -> dict[str, Any] | None:
    """The record of a generation, without `text` if its text was not encoded yet; None for an empty folder. Raises
    `InputError` for any other folder."""
    names = os.listdir(folder)
    if os.path.exists(path := os.path.join(folder, RECORD)):
        record = storage.read_json(path)
        if not isinstance(record, dict) or not isinstance(record.get("finished"), bool):
            raise InputError("already holds pregenerated epochs", where=folder, fix="choose another folder")
        return record
    if [name for name in names if not name.startswith(f"{RECORD}.tmp-")]:
        raise InputError("is not empty", where=folder, fix="choose another folder")
    return None


def _is_finished(folder: str) -> bool:
    return bool(storage.read_json_or({}, folder, RECORD).get("finished"))


def _write_epoch(store: TokenStore, epoch: int, folder: str, options: PregenerateOptions, runner: Runner) -> None:
    """Writes an epoch unless it is complete."""

    def is_complete() -> bool:
        return f"epoch_{epoch}_metrics.json" in names_in(folder)

    if is_complete():
        return say(f"epoch {epoch} is complete already")
    blocks, shards = list[Block](), store.split("train").shards
    for shard_idx, shard in enumerate(shards):
        count, size = shard.documents, max(1, shard.documents * BLOCK_TOKENS // shard.tokens)
        blocks += [(epoch, shard_idx, first, min(first + size, count)) for first in range(0, count, size)]
    sizes = [(last - first) * shards[idx].tokens // shards[idx].documents for _, idx, first, last in blocks]
    paths = [os.path.join(folder, PARTS, "-".join(map(str, block))) for block in blocks]
    make, writer = WriteExamples(store.location, options), EpochWriter(store.tokenizer_folder, options)
    assert runner.claims
    with unless_finished(is_complete):  # otherwise another process has joined and deleted the parts
        notes = compute(runner, make, [*zip(blocks, paths, strict=True)], f"epoch {epoch}", sizes)
        runner.claims.alone(f"epoch-{epoch}", is_complete, lambda: writer.write_epoch(folder, epoch, paths, notes))


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
