"""A part's shards, written once in their final form, and renamed when all parts have been compared.

STORE/parts/encode-000012-DIGEST                              the part's note and the keys of its documents, last
STORE/parts/encode-000012-DIGEST.train-00000.tokens.u16 …     its shards
STORE/train-00031.tokens.u16 …                                hard links to these, numbered over all parts
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.core import storage
from maskwright.data import store
from maskwright.data.manifest import is_shard_name
from maskwright.data.writer import StoreWriter
from maskwright.processes.runner import Runner
from maskwright.text.arrays import Int64
from maskwright.text.parts.columns import Columns, ColumnWriter, Note, written
from maskwright.text.parts.cut import digest_of
from maskwright.text.parts.duplicates import repeated_counts, repeated_in
from maskwright.text.parts.phase import compute, paths_of

SPLITS: tuple[store.SplitName, ...] = ("train", "valid")
SIDE = "valid"
"""Column of a part in which repeats are searched: 1 for each held-out document."""
WITHOUT_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
"""Errors of a file system without hard links."""


@dataclass(frozen=True)
class Documents:
    """Consecutive documents."""

    ids: NDArray[Any]
    """[tokens]"""
    sizes: Int64
    """[documents]: tokens of each, at least one."""
    sentences: Int64 | None
    """[sentences]: tokens of each, at least one; None for text without sentences."""
    origins: NDArray[np.uint64]
    """[documents, 2]: index of the file, first line."""

    def where(self, keep: NDArray[np.bool_]) -> Documents:
        """`keep`: [documents]"""
        if keep.all():
            return self
        sentences = self.sentences
        if sentences is not None:
            ends = np.searchsorted(np.cumsum(sentences), np.cumsum(self.sizes), side="right")
            sentences = _of_documents(sentences, np.diff(ends, prepend=0), keep)
        return Documents(_of_documents(self.ids, self.sizes, keep), self.sizes[keep], sentences, self.origins[keep])


def _of_documents(values: NDArray[Any], counts: Int64, keep: NDArray[np.bool_]) -> NDArray[Any]:
    """The values of the documents to keep. `counts`: values of each."""
    # Runs of documents, not a mask of values, since copying slices is fast and one document in a hundred is held out.
    ends = np.concatenate([[0], np.cumsum(counts)])
    borders = np.flatnonzero(np.diff(keep, prepend=False, append=False))
    runs = zip(ends[borders[::2]].tolist(), ends[borders[1::2]].tolist(), strict=True)
    return np.concatenate([values[:0], *(values[begin:end] for begin, end in runs)])


@dataclass(frozen=True)
class Form:
    """The form of all shards of a store."""

    dtype: str
    with_sentences: bool
    shard_tokens: int
    """A shard ends with the document that reaches this number."""


class PartWriter:
    """Writes the shards of a part, and its note and columns."""

    def __init__(self, path: str, form: Form, columns: ColumnWriter, stack: ExitStack) -> None:
        self.columns, self._path, self._form, self._stack = columns, path, form, stack
        self._open: dict[str, _Shard] = {}
        self._counts = Counter[str]()
        self.columns.note["shards"] = self.shards = list[dict[str, Any]]()

    def add(self, documents: Documents, is_valid: NDArray[np.bool_]) -> None:
        """`is_valid` [documents]: whether each is held out."""
        for split, is_here in zip(SPLITS, (~is_valid, is_valid), strict=True):
            of_split = documents.where(is_here)
            while len(of_split.sizes):
                shard = self._open.get(split) or self._opened(split)
                ends = np.cumsum(of_split.sizes)
                count = int(np.searchsorted(ends, self._form.shard_tokens - shard.tokens)) + 1
                is_first = np.arange(len(ends)) < count
                shard.append(of_split.where(is_first))
                if count > len(ends):
                    break
                self._close(split)
                of_split = of_split.where(~is_first)

    def _opened(self, split: str) -> _Shard:
        names = store.shard_names(split, self._counts[split], self._form.dtype, self._form.with_sentences)
        self._counts[split] += 1
        paths = {role: f"{self._path}.{name}" for role, name in names.items()}
        self._open[split] = shard = _Shard(split, self._form.dtype, paths)
        self._stack.push(shard.files)
        return shard

    def _close(self, split: str) -> None:
        self.shards.append(self._open.pop(split).closed())

    def close(self) -> None:
        for split in [*self._open]:
            self._close(split)
        self.shards.sort(key=lambda shard: SPLITS.index(shard["split"]))


@contextmanager
def part_written(path: str, form: Form) -> Iterator[PartWriter]:
    """Writes a part: each of its shards atomically, and the note at `path` last, so that a part with a note is whole.
    Shards of a part without a note are written again under the same names."""
    with written(path) as columns, ExitStack() as stack:
        writer = PartWriter(path, form, columns, stack)
        yield writer
        writer.close()


class _Shard:
    """An open shard. Memory holds none of it."""

    def __init__(self, split: str, dtype: str, paths: dict[str, str]) -> None:
        self.split, self.tokens, self.documents, self.sentences = split, 0, 0, 0
        self.files = ExitStack()
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._files = {role: _File(path, self.files) for role, path in paths.items()}

    def append(self, documents: Documents) -> None:
        ends = {"documents": self.tokens + np.cumsum(documents.sizes)}
        if "sentences" in self._files:
            assert documents.sentences is not None
            ends["sentences"] = self.tokens + np.cumsum(documents.sentences)
            self.sentences += len(documents.sentences)
        numbers = {"tokens": documents.ids.astype(self._dtype, copy=False)}
        numbers |= {role: values.astype("<u8") for role, values in ends.items()}
        numbers["origins"] = documents.origins.astype("<u8", copy=False)
        for role, values in numbers.items():
            self._files[role].write(values)
        self.documents += len(documents.sizes)
        self.tokens += len(documents.ids)

    def closed(self) -> dict[str, Any]:
        """Its record for the manifest, without the final names of its files."""
        self.files.close()
        return {
            "split": self.split,
            "tokens": self.tokens,
            "documents": self.documents,
            "sentences": self.sentences if "sentences" in self._files else None,
            "files": {role: file.record() for role, file in self._files.items()},
        }


class _File:
    """A file and the checksums of the written bytes, not of the bytes on the disk."""

    def __init__(self, path: str, stack: ExitStack) -> None:
        self._path, self._file = path, stack.enter_context(storage.atomic_writer(path))
        self._sha, self._crc, self._size = hashlib.sha256(), 0, 0

    def write(self, values: NDArray[Any]) -> None:
        content = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        self._file.write(content)
        self._sha.update(content)
        self._crc, self._size = zlib.crc32(content, self._crc), self._size + content.nbytes

    def record(self) -> dict[str, Any]:
        digest = storage.Digest(self._size, self._sha.hexdigest(), self._crc)
        return {"name": os.path.basename(self._path), **asdict(digest)}


# ---- all parts -----------------------------------------------------------------------------------------------------


def without_repeats(
    runner: Runner, work: str, parts: Sequence[tuple[str, Note]], searched: Sequence[str], form: Form
) -> list[Note]:
    """The notes of all parts; parts with repeats are written again without them. `parts`: file and note of each.
    `searched`: result files of the search for repeats."""
    has_repeats = np.flatnonzero(repeated_counts(searched, len(parts))).tolist()
    names = digest_of([os.path.basename(path) for path in searched])
    digests = [digest_of(os.path.basename(parts[part][0]), names) for part in has_repeats]
    paths = paths_of(work, "finish", digests)
    tasks = [((part, parts[part][0]), path) for part, path in zip(has_repeats, paths, strict=True)]
    sizes = [sum(_bytes(shard) for shard in parts[part][1]["shards"]) for part in has_repeats]
    notes = dict(enumerate(note for _, note in parts))
    written_again = compute(runner, WithoutRepeats(tuple(searched), form), tasks, "finish", sizes)
    notes |= zip(has_repeats, written_again, strict=True)
    return [notes[part] for part in range(len(parts))]


def give_names(writer: StoreWriter, work: str, notes: Sequence[Note], form: Form) -> None:
    """Gives the shards of all parts, by their notes, their final names. Names by a killed command stay."""
    counts = Counter[str]()
    writer.shards.clear()
    for note in notes:
        for shard in note["shards"]:
            final = store.shard_names(shard["split"], counts[shard["split"]], form.dtype, form.with_sentences)
            counts[shard["split"]] += 1
            for role, name in final.items():
                _link(os.path.join(work, shard["files"][role]["name"]), os.path.join(writer.folder, name))
            files = {role: {**record, "name": final[role]} for role, record in shard["files"].items()}
            writer.shards.append({**shard, "files": files})
    listed = {record["name"] for shard in writer.shards for record in shard["files"].values()}
    for name in os.listdir(writer.folder):
        # A killed command left it, perhaps with other options.
        if storage.is_temporary(name) or (is_shard_name(name) and name not in listed):
            os.unlink(os.path.join(writer.folder, name))
    storage.sync_folder(writer.folder)


def _link(source: str, path: str) -> None:
    """Gives a file a second name, `path`; on a file system without hard links, a copy."""
    if os.path.exists(path):
        if os.path.samefile(source, path):
            return
        os.unlink(path)
    try:
        os.link(source, path)
    except OSError as error:
        if error.errno not in WITHOUT_LINKS:
            raise
        with open(source, "rb") as file, storage.atomic_writer(path) as copy:
            shutil.copyfileobj(file, copy, storage.READ_BYTES)


def _bytes(shard: dict[str, Any]) -> int:
    return sum(int(record["bytes"]) for record in shard["files"].values())


@dataclass(frozen=True)
class WithoutRepeats:
    """Writes a part again, without its repeated documents. Memory holds their sizes and `BLOCK_TOKENS` ids."""

    searched: tuple[str, ...]
    form: Form

    def __call__(self, task: tuple[tuple[int, str], str]) -> Note:
        (part, source), path = task
        columns = Columns(source)
        is_valid = columns.column(SIDE).astype(bool)
        keep = np.ones(len(is_valid), bool)
        keep[repeated_in(self.searched, part)["place"]] = False
        with part_written(path, self.form) as writer:
            for split, is_here in zip(SPLITS, (~is_valid, is_valid), strict=True):
                keep_here, first = keep[is_here], 0
                for shard in (shard for shard in columns.note["shards"] if shard["split"] == split):
                    for documents in _read(os.path.dirname(source), shard, self.form.dtype):
                        here = keep_here[first : first + len(documents.sizes)]
                        writer.add(documents.where(here), np.full(int(here.sum()), split == "valid"))
                        first += len(here)
            note = writer.columns.note
        return note


def _read(folder: str, shard: dict[str, Any], dtype: str) -> Iterator[Documents]:
    """The documents of a part's shard, in batches."""

    def numbers(role: str, kind: Any) -> NDArray[Any]:
        return np.asarray(np.memmap(os.path.join(folder, shard["files"][role]["name"]), kind, "r"))

    ids, ends = numbers("tokens", np.dtype(dtype).newbyteorder("<")), numbers("documents", "<u8").astype(np.int64)
    origins = numbers("origins", "<u8").reshape(-1, 2)
    sentence_ends = numbers("sentences", "<u8").astype(np.int64) if "sentences" in shard["files"] else None
    before = 0
    for first, end in store.in_blocks(ends):
        after = int(ends[end - 1])
        sentences = None
        if sentence_ends is not None:
            low, high = np.searchsorted(sentence_ends, (before, after), side="right")
            sentences = np.diff(sentence_ends[low:high], prepend=before)
        yield Documents(ids[before:after], np.diff(ends[first:end], prepend=before), sentences, origins[first:end])
        before = after
