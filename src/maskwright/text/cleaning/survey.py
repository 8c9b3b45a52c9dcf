"""The first of two readings: which documents stay. The second is `data prepare`'s own.

Documents are judged in batches, in a few processes. For each document a number is kept that stands for the reason why
it goes, and for each that stays its keys, a file a column: 8 bytes a key on disk. Afterwards the columns are searched
for keys that came before, a part at a time. So memory grows by a few bytes a document alone.

The outcome depends on the documents and their order alone. A survey that was cut goes on after the last noted batch.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.core import storage
from maskwright.core.console import progress, say
from maskwright.core.errors import InputError, MaskwrightError
from maskwright.core.parent import PARENT, end_with_parent
from maskwright.text.cleaning.contamination import Evaluations, read_evaluations
from maskwright.text.cleaning.near_duplicates import bands_and_rows
from maskwright.text.cleaning.steps import Cleaner, CleaningOptions, Judged
from maskwright.text.document import Document
from maskwright.text.kept import EVERYTHING, Kept
from maskwright.text.sources import Sources

BATCH_CHARACTERS = 2_000_000
ALONE_BYTES = 16_000_000
"""Text that one process judges sooner than others are started."""
NOTED_BATCHES = 32
KEYS_AT_ONCE, SCANNED_KEYS = 1 << 23, 1 << 20
"""Keys of a column that are sorted in memory at once, 50 bytes each: 0.4 GB. And those that are looked at at once."""
KEPT = 20
"""Repeated documents that are named."""
STAYS, TOO_SHORT, TOO_LONG, DUPLICATE, NEAR_DUPLICATE = range(5)
NAMES = ["", "too short", "too long", "duplicates", "near duplicates"]
MOST_REASONS = 1000


@dataclass(frozen=True)
class Limits:
    min_characters: int = 1
    max_characters: int | None = None
    keep_duplicates: bool = False
    compared: Kept = EVERYTHING
    """What of two texts has to be equal for them to be duplicates."""

    def code(self, document: Document) -> int:
        size = document.characters
        if size < self.min_characters:
            return TOO_SHORT
        return TOO_LONG if self.max_characters is not None and size > self.max_characters else STAYS

    def kept(self, batch: Sequence[Document]) -> list[Document]:
        return [document for document in batch if self.code(document) == STAYS]


@dataclass(frozen=True)
class Outcome:
    """What becomes of each document, in the order of reading."""

    codes: NDArray[np.uint16]
    """[documents]: a place in `names`."""
    names: list[str]
    near: list[tuple[int, int]]
    """The first near duplicates, each with the first document that it is like."""

    def by_cleaning(self) -> dict[str, int]:
        """Documents that cleaning leaves out, by reason; most frequent first."""
        return by_cleaning(ranked(self.names, np.bincount(self.codes, minlength=len(self.names))))


OnLeftOut = Callable[[Document, str, str], None]
"""Hears of a document that is left out for its own sake: (document, reason, detail)."""


class Reasons:
    """Numbers for reasons, in the order in which they are met."""

    def __init__(self, names: Sequence[str] = NAMES) -> None:
        self.names = list(names)
        self._code_of = {name: code for code, name in enumerate(names)}

    def code(self, reason: str) -> int:
        """Raises `InputError` where a filter of the user's gives too many."""
        if reason not in self._code_of:
            if len(self.names) == MOST_REASONS:
                fix = "let it return few different reasons, without parts of the text"
                raise InputError(f"gives more than {MOST_REASONS:,} reasons", where=f"--filter {reason}", fix=fix)
            self._code_of[reason] = len(self.names)
            self.names.append(reason)
        return self._code_of[reason]


def ranked(names: Sequence[str], counts: NDArray[np.int64]) -> dict[str, int]:
    """Documents that are left out by reason, most frequent first. `counts` [names]"""
    order = np.argsort(-counts, kind="stable")
    return {names[code]: int(counts[code]) for code in order if code != STAYS and counts[code]}


def by_cleaning(counts: Mapping[str, int]) -> dict[str, int]:
    """Those of `counts` that cleaning leaves out."""
    return {name: count for name, count in counts.items() if name not in NAMES[:NEAR_DUPLICATE]}


def survey(
    sources: Sequence[Sources],
    options: CleaningOptions,
    limits: Limits,
    folder: str,
    plan: str,
    *,
    workers: int = 1,
    held_out: Sources | None = None,
    on_left_out: OnLeftOut | None = None,
) -> Outcome:
    """Judges all documents of `sources`, in order. `folder` holds what is noted on the way; `plan` says of what.
    `held_out`: one of `sources`, the first, of which training gets no document even with `keep_duplicates`."""
    return _Survey(sources, options, limits, folder, plan, held_out, on_left_out).run(workers)


def batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """The documents in order, those that are judged at once together."""
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += document.characters
        if characters >= BATCH_CHARACTERS or len(batch) >= BATCH_CHARACTERS // 100:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


class _Survey:
    def __init__(
        self,
        sources: Sequence[Sources],
        options: CleaningOptions,
        limits: Limits,
        folder: str,
        plan: str,
        held_out: Sources | None,
        on_left_out: OnLeftOut | None,
    ) -> None:
        self.sources, self.options, self.limits, self.folder, self.plan = sources, options, limits, folder, plan
        self.held_out, self.on_left_out = held_out, on_left_out
        bands = bands_and_rows(options.near_duplicates)[0] if options.near_duplicates else 0
        self.columns = [os.path.join(folder, f"keys-{number:03}.u64") for number in range(2 + bands)]
        self.codes_path, self.note_path = (os.path.join(folder, name) for name in ("codes.u16", "note.json"))
        self.reasons = Reasons()
        self.passed = self.documents = self.held_out_documents = 0
        self.evaluations: Evaluations | None = None
        if options.evaluation_files:
            self.evaluations = read_evaluations(options.evaluation_files, options.contamination_words)

    def run(self, workers: int) -> Outcome:
        self._resume()
        size = sum(sum(one.sizes) for one in self.sources)
        alone = workers < 2 or size < ALONE_BYTES
        with progress("clean", size, "bytes") as bar:
            answers = self._judged_here() if alone else self._judged_by(workers)
            with ExitStack() as stack, closing(answers):
                files = [stack.enter_context(open(path, "ab")) for path in [self.codes_path, *self.columns]]
                for number, (batch, judged) in enumerate(answers, 1):
                    self._write(batch, judged, files)
                    bar.advance(sum(one.bytes_read for one in self.sources) - bar.done)
                    if number % NOTED_BATCHES == 0:
                        self._note(files)
                self._note(files)
        return self._resolve()

    # ---- judging ---------------------------------------------------------------------------------------------

    def _left(self) -> Iterator[Document]:
        """The documents behind those that were noted. Counts the held-out ones of all."""
        seen = 0
        for sources in self.sources:
            for document in sources:
                seen += 1
                self.held_out_documents += sources is self.held_out
                if seen > self.passed:
                    yield document

    def _judged_here(self) -> Generator[tuple[list[Document], Judged]]:
        cleaner = Cleaner(self.options, self.evaluations, self.limits.compared)
        for batch in batches(self._left()):
            yield batch, cleaner.judge(self.limits.kept(batch))

    def _judged_by(self, workers: int) -> Generator[tuple[list[Document], Judged]]:
        """The same by some processes, in the same order."""
        spawn = multiprocessing.get_context("spawn")  # a fork would copy the locks of the encoder's threads
        waiting: deque[tuple[list[Document], Future[Judged]]] = deque()
        pool = ProcessPoolExecutor(
            workers, spawn, _start, (self.options, self.evaluations, self.limits.compared, os.getpid())
        )
        try:
            for batch in batches(self._left()):
                waiting.append((batch, pool.submit(_judge, self.limits.kept(batch))))
                if len(waiting) > 2 * workers:
                    yield waiting[0][0], waiting.popleft()[1].result()
            while waiting:
                yield waiting[0][0], waiting.popleft()[1].result()
        except BrokenProcessPool:
            fix = "free some memory, or give --workers 1; the same command goes on where it stopped"
            raise MaskwrightError("a process that cleans was killed from outside", fix=fix) from None
        finally:
            pool.shutdown(cancel_futures=True)

    def _write(self, batch: list[Document], judged: Judged, files: list[Any]) -> None:
        """`judged` is of those documents of the batch that keep the limits."""
        codes, keys = entered(batch, judged, self.limits, self.reasons, self.on_left_out)
        files[0].write(codes.tobytes())
        for number, file in enumerate(files[1:]):
            file.write(keys[:, number].tobytes())
        self.documents += len(batch)

    # ---- going on --------------------------------------------------------------------------------------------

    def _note(self, files: list[Any]) -> None:
        for file in files:
            file.flush()
            os.fsync(file.fileno())
        storage.write_json(
            self.note_path, {"plan": self.plan, "documents": self.documents, "names": self.reasons.names}
        )

    def _resume(self) -> None:
        noted: Any = storage.read_json(self.note_path) if os.path.exists(self.note_path) else None
        paths = dict.fromkeys(self.columns, 8) | {self.codes_path: 2}
        there = isinstance(noted, dict) and all(os.path.exists(path) for path in paths)
        if not there or noted["plan"] != self.plan:
            shutil.rmtree(self.folder, ignore_errors=True)
            storage.make_folder(self.folder)
            return
        self.passed = self.documents = noted["documents"]
        self.reasons = Reasons(noted["names"])
        for path, size in paths.items():
            os.truncate(path, self.documents * size)
        say(f"cleaning goes on after {self.passed:,} documents")

    # ---- repeated documents ----------------------------------------------------------------------------------

    def _resolve(self) -> Outcome:
        codes = np.fromfile(self.codes_path, "<u2")
        near = _Repeats(self.documents)
        if self.documents:
            exact = _Repeats(self.documents)
            held_out = self.held_out_documents if self.limits.keep_duplicates else None
            exact.search(self.columns[0], codes == STAYS, self.columns[1], held_out)
            codes[exact.repeated] = DUPLICATE
            staying = codes == STAYS
            for column in self.columns[2:]:
                near.search(column, staying)
            codes[near.repeated] = NEAR_DUPLICATE
        return Outcome(codes, self.reasons.names, sorted(near.first.items()))


def entered(
    batch: Sequence[Document], judged: Judged, limits: Limits, reasons: Reasons, on_left_out: OnLeftOut | None
) -> tuple[NDArray[np.uint16], NDArray[np.uint64]]:
    """Codes [documents] and keys [documents, columns] of a batch, the keys 0 for what is left out. `judged` is of those
    that keep the limits."""
    limited = [limits.code(document) for document in batch]
    codes = np.array(limited, "<u2")
    own = iter(zip(judged.reasons, judged.details, strict=True))
    for place, document in enumerate(batch):
        if limited[place] == STAYS:
            reason, detail = next(own)
            codes[place] = reasons.code(reason)
            if reason and on_left_out:
                on_left_out(document, reason, detail)
    keys = np.zeros((len(batch), judged.keys.shape[1]), "<u8")
    keys[codes == STAYS] = judged.keys
    return codes, keys


def repeats(keys: Sequence[NDArray[np.uint64]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places whose keys came before, and for each the first place that has them. `keys`: columns, one or more, all
    of which have to be equal."""
    order = np.lexsort(keys[::-1])  # which leaves equal keys in the order of reading
    same = np.zeros(len(order), bool)
    same[1:] = True
    for values in keys:
        same[1:] &= values[order[1:]] == values[order[:-1]]
    begins = np.maximum.accumulate(np.where(same, 0, np.arange(len(order))))
    return order[same], order[begins[same]]


class _Repeats:
    """Documents whose key in some column came before."""

    def __init__(self, documents: int) -> None:
        self.repeated = np.zeros(documents, bool)
        self.first: dict[int, int] = {}
        """The first of them, each with the first document that has a key of its."""

    def search(
        self, column: str, among: NDArray[np.bool_], second: str | None = None, held_out: int | None = None
    ) -> None:
        """Looks at the documents `among` whose key is not 0; `second`: a column in which the key must be equal too.
        `held_out`: how many documents, from the first on, are held out, if only what repeats one of them counts."""
        keys = np.memmap(column, "<u8", "r")
        parts = 1 << (len(keys) // KEYS_AT_ONCE).bit_length()
        for part in range(parts):
            places = np.concatenate([*_in_part(keys, among, part, parts)])
            own = [keys[places]] + ([np.memmap(second, "<u8", "r")[places]] if second else [])
            later, first = (places[found] for found in repeats(own))
            if held_out is not None:
                counts = (later >= held_out) & (first < held_out)
                later, first = later[counts], first[counts]
            self.repeated[later] = True
            for place in np.argsort(later)[:KEPT]:
                after, before = int(later[place]), int(first[place])
                self.first[after] = min(before, self.first.get(after, before))
            self.first = dict(sorted(self.first.items())[:KEPT])


def _in_part(keys: NDArray[np.uint64], among: NDArray[np.bool_], part: int, parts: int) -> Iterator[NDArray[np.int64]]:
    """Places of the keys whose highest bits are `part`."""
    yield np.zeros(0, np.int64)
    shift = np.uint64(65 - parts.bit_length())
    for begin in range(0, len(keys), SCANNED_KEYS):
        some = np.asarray(keys[begin : begin + SCANNED_KEYS])
        chosen = among[begin : begin + SCANNED_KEYS] & (some != 0)
        yield begin + np.flatnonzero(chosen & ((some >> shift) == part) if parts > 1 else chosen)


# ---- processes -----------------------------------------------------------------------------------------------------

_cleaner: list[Cleaner] = []


def _start(options: CleaningOptions, evaluations: Evaluations | None, kept: Kept, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C in the terminal is for the parent
    if sys.platform == "linux":  # elsewhere a parent that is killed leaves them to wait
        os.environ[PARENT] = str(parent)
        end_with_parent()
    _cleaner.append(Cleaner(options, evaluations, kept))


def _judge(documents: list[Document]) -> Judged:
    return _cleaner[0].judge(documents)
