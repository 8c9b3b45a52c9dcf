"""`maskwright data convert`: another tool's store to a token store, with the same documents in the same order."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from maskwright import __version__
from maskwright.core import storage
from maskwright.core.console import say, several
from maskwright.core.errors import InputError, StoreError
from maskwright.data import manifest as manifests
from maskwright.data import store
from maskwright.data.foreign.blocks import HELD_OUT, Block, Foreign, Ids, Options
from maskwright.data.foreign.detect import Format, detect, open_foreign
from maskwright.data.prepare.folder import VERSION, finish_once, held, remove_parts
from maskwright.data.prepare.request import RULES
from maskwright.data.prepare.shards import Documents, Form, PartWriter, give_names, part_written
from maskwright.data.writer import StoreWriter
from maskwright.processes.runner import Runner, advance
from maskwright.text.arrays import Int64
from maskwright.text.compression import changed_while_read, stamp_of
from maskwright.text.dedup import document_keys, held_out
from maskwright.text.layout import share_held_out
from maskwright.text.parts.columns import Note
from maskwright.text.parts.cut import digest_of, runs_of_files
from maskwright.text.parts.phase import compute, paths_of
from maskwright.text.unknown import require_known
from maskwright.text.vocabulary import Vocabulary, read_vocabulary, token_ids

SpecialTokens = Literal["refuse", "strip", "remove"]


@dataclass(frozen=True)
class ConvertOptions:
    valid_fraction: float = 0.01
    """Share of the documents to hold out, by a hash of their ids."""
    special_tokens: SpecialTokens = "refuse"
    """Of begin, end, padding and mask. strip: drop those at the begin and end of a document. remove: drop all."""
    token_offset: int = 0
    """Added to every id."""
    shard_tokens: int = 64_000_000

    def __post_init__(self) -> None:
        if not 0.0 <= self.valid_fraction <= 1.0:
            fix = "give 0.01 to hold out one document in a hundred"
            raise InputError(f"--valid-fraction {self.valid_fraction} is not from 0 to 1", fix=fix)
        if self.shard_tokens < 1:
            raise InputError("--shard-tokens must be at least 1", fix="raise it")


@dataclass
class ConvertCounts:
    read: int = 0
    """Documents."""
    kept: int = 0
    empty: int = 0
    """Documents without an id, or without one left."""
    special_tokens: int = 0
    """Special ids that were dropped."""
    unknown_tokens: int = 0
    """Ids without a token in the tokenizer, which became its `<unk>`."""
    additional_tokens: int = 0
    """Ids of `Vocabulary.additional`, which stay."""

    def record(self) -> dict[str, int]:
        """The counts, without `additional_tokens` if it is 0."""
        return {name: value for name, value in asdict(self).items() if name != "additional_tokens" or value}


@dataclass(frozen=True)
class IdCleaner:
    """Blocks of foreign ids to documents of the tokenizer's ids."""

    vocabulary: Vocabulary
    options: ConvertOptions
    counts: ConvertCounts
    files: list[str]
    mapping: Int64 | None = None

    def clean(self, block: Block) -> tuple[Ids, Int64, Int64 | None, Int64]:
        """(ids in the store's type, tokens of each document, of each sentence, numbers of the documents in the file),
        without empty documents. Raises `StoreError` for an id beyond the vocabulary and for a special id that is not
        dropped."""
        ids = self._tokenizer_ids(block)
        sizes, sentences = block.sizes, block.sentences
        if (special := store.special_in(ids, store.special_table(self.vocabulary))) is not None:
            ids, sizes, sentences = self._without(block, ids, special)
        if self.vocabulary.additional:
            self.counts.additional_tokens += int(np.isin(ids, sorted(self.vocabulary.additional)).sum())
        self.counts.read += len(sizes)
        kept = np.flatnonzero(sizes > 0)
        self.counts.kept += len(kept)
        self.counts.empty += len(sizes) - len(kept)
        return ids, sizes[kept], sentences, block.number(kept)

    def _tokenizer_ids(self, block: Block) -> Ids:
        """The tokenizer's ids in the store's type. Raises `StoreError` for an id beyond the vocabulary."""
        ids, size, offset = block.ids, self.vocabulary.size, self.options.token_offset
        id_count = size if self.mapping is None else len(self.mapping)
        if len(ids):
            low, high = int(ids.min()) + offset, int(ids.max()) + offset
            if low < 0 or high >= id_count:
                shifted = ids.astype(np.int64) + offset
                wrong_idx = int(np.argmax((shifted < 0) | (shifted >= id_count)))
                whose = "the tokenizer" if self.mapping is None else "dict.txt"
                what = f"holds id {shifted[wrong_idx]}, but {whose} ends at {id_count - 1}"
                fix = "give the tokenizer that made the ids, or another --token-offset"
                raise StoreError(what, where=self._place(block, wrong_idx), fix=fix)
        dtype = store.token_dtype(size)
        if self.mapping is None:
            return (ids.astype(np.int64) + offset).astype(dtype) if offset else ids.astype(dtype, copy=False)
        mapped = self.mapping[ids.astype(np.int64) + offset]
        is_missing = mapped < 0
        if is_missing.any():
            if self.vocabulary.unk is None:
                what = f"holds {int(is_missing.sum()):,} ids without a token in the tokenizer"
                where = self._place(block, int(np.argmax(is_missing)))
                raise StoreError(what, where=where, fix="give the tokenizer that made the ids; this one lacks <unk>")
            self.counts.unknown_tokens += int(is_missing.sum())
            mapped[is_missing] = self.vocabulary.unk
        return mapped.astype(dtype)

    def _without(self, block: Block, ids: Ids, special: NDArray[np.bool_]) -> tuple[Ids, Int64, Int64 | None]:
        """(ids, tokens of each document, of each sentence) without the special ids. Raises `StoreError` for one that
        must not be dropped: with `strip`, one inside a document."""
        ends = np.cumsum(block.sizes)
        kept = np.concatenate([[0], np.cumsum(~special)])
        starts, places = kept[ends - block.sizes], np.flatnonzero(special)
        document = np.searchsorted(ends, places, side="right")
        if self.options.special_tokens == "strip":
            is_inside = (kept[places] > starts[document]) & (kept[places] < kept[ends][document])
        else:
            is_inside = np.full(len(places), self.options.special_tokens == "refuse")
        if is_inside.any():
            place = int(places[np.argmax(is_inside)])
            stored = int(block.ids[place]) + self.options.token_offset
            what = f"holds the special token {stored} inside a document"
            fix = "to drop all, use `data convert --special-tokens remove`; strip drops only those around each document"
            raise StoreError(what, where=self._place(block, place), fix=fix)
        self.counts.special_tokens += len(places)
        sentences = block.sentences
        if sentences is not None:
            ends_of = np.cumsum(sentences)
            sentences = kept[ends_of] - kept[ends_of - sentences]
            sentences = sentences[sentences > 0]
        return ids[~special], kept[ends] - starts, sentences

    def _place(self, block: Block, token: int) -> str:
        document = block.number(int(np.searchsorted(np.cumsum(block.sizes), token, side="right")))
        return f"{self.files[block.file]}:{document + 1} (the document's number)"


@dataclass(frozen=True)
class ForeignFiles:
    """The files of another tool's store, with the cleaner and the split of their documents."""

    source: Foreign
    cleaner: IdCleaner
    records: list[dict[str, Any]]
    """Location, size and time of each, for the manifest."""

    def is_valid(self, file: int, ids: Ids, sizes: Int64) -> NDArray[np.bool_]:
        """[documents]: whether each is held out."""
        fraction = self.cleaner.options.valid_fraction
        if self.source.held_out:
            return np.full(len(sizes), file in self.source.held_out)
        if not fraction:
            return np.zeros(len(sizes), bool)
        ends = np.cumsum(sizes)
        return held_out(document_keys(ids, ends - sizes, ends)[:, 0], fraction)

    def require_unchanged(self, number: int) -> None:
        path, record = self.source.files[number], self.records[number]
        if stamp_of(path) != (record["bytes"], record["modified_ns"]):
            raise changed_while_read(path)


def convert(conversion: Conversion, runner: Runner | None = None) -> store.TokenStore:
    """Writes the store and returns it opened. `runner`: None for this process. The same call in other processes, on
    this machine or others that see the folder, shares the work.

    Raises kinds of `InputError` (exit 2), the first one in the order of reading. The same call skips finished files."""
    writer, files, runner = conversion.writer, conversion.files, runner or Runner()
    if finished := writer.finished():
        remove_parts(writer.folder)  # of a command that was killed when it had finished
        return finished
    conversion.announce()
    with held(writer.folder, runner, files.source.files, digest_of(__version__, VERSION, writer.plan)) as work:
        if finished := writer.finished():  # by another process, just now
            return finished
        bytes_ = [int(record["bytes"]) for record in files.records]
        parts = [range(*run) for run in runs_of_files(bytes_, sum(bytes_))]
        form = Form(writer.dtype, writer.with_sentences, conversion.options.shard_tokens)
        digests = [digest_of(VERSION, asdict(form), *conversion.decided_by(part)) for part in parts]
        paths, sizes = paths_of(work, "convert", digests), [sum(bytes_[number] for number in part) for part in parts]
        notes = compute(runner, ConvertFiles(files, form), [*zip(parts, paths, strict=True)], "convert", sizes)
        totals = sum((Counter(note["counts"]) for note in notes), Counter[str]())

        def finish() -> None:
            give_names(writer, work, notes, form)
            conversion.finish(ConvertCounts(**totals))

        finish_once(writer.folder, runner, finish)
    remove_parts(writer.folder)
    return store.TokenStore(writer.folder)


@dataclass(frozen=True)
class ConvertFiles:
    """Writes the shards of consecutive files, by their indices. The note has the counts."""

    files: ForeignFiles
    form: Form

    def __call__(self, task: tuple[range, str]) -> Note:
        part, path = task
        cleaner = replace(self.files.cleaner, counts=ConvertCounts())
        files = replace(self.files, cleaner=cleaner)
        with part_written(path, self.form) as writer:
            for file_idx in part:
                for block in files.source.blocks(file_idx):
                    self._add(writer, files, block)
                    advance(block.ids.nbytes)
                files.require_unchanged(file_idx)
            writer.columns.note["counts"] = asdict(cleaner.counts)
        return writer.columns.note

    def _add(self, writer: PartWriter, files: ForeignFiles, block: Block) -> None:
        ids, sizes, sentences, numbers = files.cleaner.clean(block)
        if self.form.with_sentences and sentences is None:
            sentences = sizes
        origins = np.stack([np.full(len(sizes), block.file), numbers + 1], 1).astype("<u8")
        writer.add(Documents(ids, sizes, sentences, origins), files.is_valid(block.file, ids, sizes))


class Conversion:
    def __init__(
        self,
        places: list[str],
        tokenizer: str,
        folder: str,
        options: ConvertOptions | None = None,
        *,
        kind: Format | None = None,
        column: str | None = None,
        dtype: str | None = None,
        encoder: str | None = None,
        command: Sequence[str] = (),
    ) -> None:
        """`kind`: None to detect it. `command`: the words that the user typed behind `maskwright`, for the manifest
        alone. Raises kinds of `InputError` (exit 2)."""
        options = options or ConvertOptions()
        vocabulary, pieces = read_vocabulary(tokenizer), token_ids(tokenizer)
        self.kind = kind or detect(places)
        self.source: Foreign = open_foreign(places, self.kind, Options(column, dtype, encoder), vocabulary, pieces)
        if options.valid_fraction == 1.0:  # even of files that are named for training
            everything = frozenset(range(len(self.source.files)))
            messages = [line for line in self.source.messages if line != HELD_OUT]
            self.source = replace(self.source, held_out=everything, messages=messages)
        if self.source.passes > 1 and options.valid_fraction:
            what = f"holds its text {self.source.passes} times, cut in different places"
            fix = "set --valid-fraction 0, since text held out of one epoch would be in the others"
            raise InputError(what, where=" ".join(places), fix=fix)
        self.options, self.command = options, command
        cleaner = IdCleaner(vocabulary, options, ConvertCounts(), self.source.files, self.source.mapping)
        stamped = [(path, *(stamp_of(path) or ())) for path in self.source.files]
        self.sources = [dict(zip(("location", "bytes", "modified_ns"), one, strict=True)) for one in stamped]
        self.files = ForeignFiles(self.source, cleaner, self.sources)
        chosen = {"format": self.kind, "column": column, "dtype": dtype}
        self.recorded = {**asdict(options), **{name: value for name, value in chosen.items() if value is not None}}
        mapping = None if self.source.mapping is None else self.source.mapping.tolist()
        self.names = [{**record, "location": os.path.basename(record["location"])} for record in self.sources]
        self.decided = [vocabulary.fingerprint, self.recorded, mapping]
        plan = storage.sha256_of([manifests.FORMAT, RULES, self.names, *self.decided])
        sentences = self.source.sentences
        self.writer = StoreWriter(folder, tokenizer, plan, self.recorded, self.sources, with_sentences=sentences)

    def announce(self) -> None:
        say(f"reading {several(len(self.source.files), 'file')} of the format {self.kind}")
        for line in self.source.messages:
            say(line)

    def decided_by(self, part: range) -> list[Any]:
        """JSON values that decide the documents of a part and their origins."""
        names = [self.names[number] for number in part]
        rules = self.writer.vocabulary.rules_record.values()
        return [part.start, names, sorted(self.source.held_out), *self.decided, *rules]

    def finish(self, counts: ConvertCounts) -> None:
        """Writes the manifest. Raises `InputError` if no document is left, or none held out."""
        if not self.writer.shards:
            what = f"no document is left of {counts.read:,} read ({counts.empty:,} empty)"
            raise StoreError(what, where=self.source.files[0], fix="check the files")
        if self.options.valid_fraction and not self.writer.totals()["valid"]["documents"]:
            what = f"none of {counts.kept:,} documents fell into the held-out share of {self.options.valid_fraction:g}"
            share = share_held_out(counts.kept, self.options.valid_fraction)
            fix = f"use a --valid-fraction such as {share:.2g}, or 0 to hold none out"
            raise InputError(what, where=self.source.files[0], fix=fix)
        tokens = sum(split["tokens"] for split in self.writer.totals().values())
        fix = "give the tokenizer that made the ids"
        require_known(counts.unknown_tokens, tokens, self.source.files[0], "", fix)
        for count, what in (
            (counts.empty, "empty documents were left out"),
            (counts.special_tokens, "special tokens were left out"),
            (counts.unknown_tokens, "ids have no token in the tokenizer and became its <unk>"),
            (counts.additional_tokens, "tokens are special tokens that the tokenizer declares for texts, and are kept"),
        ):
            if count:
                say(f"{count:,} {what}")
        passes = self.source.passes
        more = ({"passes": passes} if passes > 1 else {}) | manifests.typed(self.command)
        self.writer.finish(counts.record(), {"numpy"}, more)
