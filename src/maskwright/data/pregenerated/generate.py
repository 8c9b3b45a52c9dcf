"""`maskwright data pregenerate`: text to epochs of examples with static masks, the same for any number of workers.

The text is encoded once, into a token store below the folder, and each epoch is one pass over all of it. A block of
documents is a function of (seed, epoch, documents), so workers only change the speed. An epoch appears whole: its
metrics file is written last. The same command goes on after a stop.
"""

from __future__ import annotations

import importlib.metadata
import multiprocessing
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from maskwright.core import storage
from maskwright.core.console import progress, say
from maskwright.core.errors import InputError, StoreError
from maskwright.data.masking import Masker
from maskwright.data.pregenerated.examples import ArrayFolder, Examples, JsonLines, arrays_sha256, write_metrics
from maskwright.data.pregenerated.masks import masked
from maskwright.data.pregenerated.sequences import Documents, Shape, sequences
from maskwright.data.prepare.driver import prepare
from maskwright.data.prepare.request import PrepareOptions, Request
from maskwright.data.store import TokenStore
from maskwright.text.sources import Sources
from maskwright.text.tokenizer import copy_tokenizer
from maskwright.text.vocabulary import Vocabulary, token_strings

RECORD, LOCK, TEXT, TOKENIZER = "pregenerate.json", "pregenerate.lock", "text", "tokenizer"
BLOCK_TOKENS = 1 << 18
WAITING_BLOCKS = 2
"""Finished blocks that may wait for each worker's turn to be written."""
Written = Literal["json", "binary"]


@dataclass(frozen=True)
class PregenerateOptions:
    """Named as the original script's options, whose defaults they have."""

    epochs_to_generate: int = 3
    max_seq_len: int = 128
    short_seq_prob: float = 0.1
    masked_lm_prob: float = 0.15
    max_predictions_per_seq: int = 20
    do_whole_word_mask: bool = False
    do_next_sent_prediction: bool = False
    seed: int = 0
    format: Written = "json"

    def __post_init__(self) -> None:
        for name in ("short_seq_prob", "masked_lm_prob"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise InputError(f"--{name} {getattr(self, name):g} is not from 0 to 1", fix="0.1 and 0.15 are usual")
        if not 8 <= self.max_seq_len <= 8192:
            raise InputError(f"--max_seq_len {self.max_seq_len} is not from 8 to 8,192", fix="take 128 or 512")
        if min(self.epochs_to_generate, self.max_predictions_per_seq) < 1 or self.seed < 0:
            what = "--epochs_to_generate and --max_predictions_per_seq must be 1 or more, --seed 0 or more"
            raise InputError(what, fix="raise the one that is lower")

    @property
    def shape(self) -> Shape:
        return Shape(self.max_seq_len, self.short_seq_prob, self.do_next_sent_prediction)


def pregenerate(
    sources: Sources, tokenizer: str, folder: str, options: PregenerateOptions, *, workers: int = 1
) -> list[int]:
    """Writes the epochs and returns the number of examples in each.

    Raises `InputError` for bad text or options, and for a folder that holds something else.
    """
    folder = storage.require_local(folder)
    lock = os.path.join(folder, LOCK)
    with storage.new_folder(folder), storage.locked(lock, remove=True):
        record = _unfinished(folder)
        text = os.path.join(folder, TEXT)
        try:
            store = prepare(Request(sources, tokenizer, text, PrepareOptions(valid_fraction=0.0, keep_duplicates=True)))
            plan = {"text": store.fingerprint, "tokenizer": store.vocabulary.fingerprint, "options": asdict(options)}
            if record is not None and {key: record.get(key) for key in plan} != plan:
                what, fix = "holds unfinished epochs of other text or options", "delete it, or choose another folder"
                raise InputError(what, where=folder, fix=fix)
            documents = Documents(store.split("train"))
            if options.do_next_sent_prediction and len(documents.ends) < 2:
                fix = "part documents by blank lines (--layout sentences), or leave --do_next_sent_prediction out"
                raise InputError("is one document, so no sentence is of another", where=sources.files[0], fix=fix)
        except InputError:
            if record is None:
                shutil.rmtree(text, ignore_errors=True)
            raise
        record = {**plan, "sources": store.manifest["sources"], "versions": _versions(), "finished": False}
        storage.write_json(os.path.join(folder, RECORD), record)
        copy_tokenizer(tokenizer, os.path.join(folder, TOKENIZER))
        examples = _epochs(store, documents, folder, options, workers)
        finish(folder, record, options.format, len(examples))
        shutil.rmtree(text)
    return examples


def _unfinished(folder: str) -> dict[str, Any] | None:
    """The record of a generation that was stopped; None for an empty folder. Raises `InputError` for any other."""
    path = os.path.join(folder, RECORD)
    if os.path.exists(path):
        record = storage.read_json(path)
        if not isinstance(record, dict) or record.get("finished") is not False:
            raise InputError("already holds pregenerated epochs", where=folder, fix="choose another folder")
        return record
    if [name for name in os.listdir(folder) if name not in (LOCK, TEXT)]:
        raise InputError("is not empty", where=folder, fix="choose another folder")
    return None


def _versions() -> dict[str, str]:
    return {"maskwright": importlib.metadata.version("maskwright"), "numpy": np.__version__}


def _epochs(
    store: TokenStore, documents: Documents, folder: str, options: PregenerateOptions, workers: int
) -> list[int]:
    blocks, found = _blocks(documents), []
    work = [(epoch, *block) for epoch in range(options.epochs_to_generate) for block in blocks]
    done = {epoch for epoch in range(options.epochs_to_generate) if os.path.exists(_metrics(folder, epoch))}
    todo = [one for one in work if one[0] not in done]
    with _made(store.location, options, todo, workers) as parts, progress("epochs", len(todo), "blocks") as bar:
        for epoch in range(options.epochs_to_generate):
            if epoch in done:
                found.append(int(storage.read_json(_metrics(folder, epoch))["num_training_examples"]))
                say(f"epoch {epoch} is there already")
                continue
            mine = _counting(parts, len(blocks), bar.advance)
            found.append(write_epoch(folder, epoch, mine, store.vocabulary, options.max_seq_len, options.format))
    return found


def finish(folder: str, record: dict[str, Any], written: Written, epochs: int) -> None:
    """Writes the record of a folder whose epochs are all there."""
    paths = [os.path.join(folder, f"epoch_{epoch}") for epoch in range(epochs)]
    sums = {os.path.basename(path): _sha256(path, written) for path in paths}
    storage.write_json(os.path.join(folder, RECORD), {**record, "sha256": sums, "finished": True})


def _sha256(path: str, written: Written) -> str:
    return storage.sha256_of_file(f"{path}.json") if written == "json" else arrays_sha256(path)


def _metrics(folder: str, epoch: int) -> str:
    return os.path.join(folder, f"epoch_{epoch}_metrics.json")


def _counting(parts: Iterator[Part], blocks: int, advance: Callable[[], None]) -> Iterator[Part]:
    for _ in range(blocks):
        yield next(parts)
        advance()


def _blocks(documents: Documents) -> list[tuple[int, int]]:
    """Runs of documents of about `BLOCK_TOKENS`, whoever computes them."""
    number = np.maximum(documents.ends - 1, 0) // BLOCK_TOKENS
    borders = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(documents.ends)]
    return list(zip(borders, borders[1:], strict=False))


Part = tuple[int, "bytes | Examples"]
"""Number of examples, and the examples as they are written."""


def write_epoch(
    folder: str, epoch: int, parts: Iterator[Part], vocabulary: Vocabulary, max_seq_len: int, written: Written
) -> int:
    """Writes `epoch_N.json` or `epoch_N/`, then its metrics. Returns the number of examples."""
    path, count = os.path.join(folder, f"epoch_{epoch}"), 0
    if written == "json":
        with storage.atomic_writer(f"{path}.json") as file:
            for examples, lines in parts:
                assert isinstance(lines, bytes)
                file.write(lines)
                count += examples
    else:
        temporary = f"{path}.tmp-{os.getpid()}"
        with ArrayFolder(temporary, vocabulary.size) as arrays:
            for examples, some in parts:
                assert isinstance(some, Examples)
                arrays.write(some)
                count += examples
        shutil.rmtree(path, ignore_errors=True)
        os.rename(temporary, path)
    write_metrics(folder, epoch, count, max_seq_len)
    return count


# ---- workers ---------------------------------------------------------------------------------------------------------


@contextmanager
def _made(
    store: str, options: PregenerateOptions, work: list[tuple[int, int, int]], workers: int
) -> Iterator[Iterator[Part]]:
    """The blocks' parts in order; at most `WAITING_BLOCKS` for each worker are held."""
    if workers == 1:
        yield (make_block(store, options, *one) for one in work)
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        try:
            yield _parallel(pool, store, options, work, workers * WAITING_BLOCKS)
        finally:
            pool.shutdown(cancel_futures=True)


def _parallel(
    pool: ProcessPoolExecutor, store: str, options: PregenerateOptions, work: list[tuple[int, int, int]], most: int
) -> Iterator[Part]:
    waiting: deque[Future[Part]] = deque()
    for one in work:
        waiting.append(pool.submit(make_block, store, options, *one))
        if len(waiting) >= most:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


@lru_cache(maxsize=1)
def _opened(store: str) -> tuple[Documents, Vocabulary, Masker, JsonLines]:
    opened = TokenStore(store)
    words = opened.vocabulary
    return Documents(opened.split("train")), words, Masker.of(words), JsonLines(token_strings(opened.tokenizer_folder))


def make_block(store: str, options: PregenerateOptions, epoch: int, first: int, last: int) -> Part:
    """The examples of documents `first` to `last` in an epoch."""
    documents, words, masker, spelling = _opened(store)
    some = [
        sequence
        for document in range(first, last)
        for sequence in sequences(documents, document, words, options.shape, seed=options.seed, epoch=epoch)
    ]
    if not some:
        raise StoreError("holds a document without text", where=store, fix="prepare again")
    made = masked(
        some,
        masker,
        rate=options.masked_lm_prob,
        most=options.max_predictions_per_seq,
        whole_words=options.do_whole_word_mask,
    )
    return len(some), spelling.lines(made) if options.format == "json" else made
