"""Plans of a store's rows, shard by shard: computed once for a row length and a packing, kept as files, and mapped when
a row of the shard is read. So a start takes the same time for any store, and all ranks of a host share the files.

    $MASKWRIGHT_CACHE/rows/NAME/      see `core.storage.cache_folder`; NAME is of the store, the side, T and the packing
      rows.json                       rows and tokens of each shard, written last
      00000.columns …                 the plan of each shard: first, start, length

You may delete them while no run trains; they are computed again.
"""

from __future__ import annotations

import os
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import NonNegativeInt

from maskwright.core import storage
from maskwright.core.console import progress, warn
from maskwright.core.errors import InputError, MaskwrightError, StoreError
from maskwright.core.folder import Folder
from maskwright.core.records import read
from maskwright.data.packing import Packing, Plan, plan
from maskwright.data.store import Shard, Split
from maskwright.text.parts.columns import Columns, written

FORMAT = 1
MOST_MAPPED = 8_192
"""Plans that are mapped at once. Linux maps 65,530 files for a process."""
MOST_MADE = 32
"""Plans in memory at once if none can be kept as a file. Each has a few megabytes."""
COLUMNS = ("first", "start", "length")


@dataclass(frozen=True)
class RowCounts:
    """Rows of each shard."""

    rows: list[NonNegativeInt]
    text_tokens: list[NonNegativeInt]
    frame_tokens: list[NonNegativeInt]


class ShardPlans:
    """Plans of one side of a store."""

    def __init__(self, split: Split, key: str, side: str, seq_len: int, packing: Packing) -> None:
        """`key`: fingerprint of the split's store. Raises `StoreError` for a damaged shard, or one without the
        sentences that `packing` needs."""
        self.split, self.seq_len, self.packing = split, seq_len, packing
        name = f"{key[:24]}-{side}-{seq_len}-{packing}-{FORMAT}"
        self._folder = storage.cache_folder("rows", name)
        self._cached = OrderedDict[int, Plan]()
        self._keeps = True
        """Whether new plans are kept as files."""
        self._try(lambda: storage.make_cache_folder("rows", name))
        self.row_counts = self._count()

    def _try(self, write: Callable[[], Any]) -> Any:
        """Returns `write()`. If the cache cannot be written, or the disk or a quota is full, the result is None, and no
        later plan is kept."""
        try:
            return write()
        except StoreError:
            raise
        except (InputError, OSError) as error:
            self._keeps = False
            if len(self.split.shards) > 1:
                why = error.what if isinstance(error, InputError) else f"cannot be written ({error.strerror})"
                what = f"{self._folder} {why}, so rows are planned again at each start and in each process"
                warn(f"{what}. Fix: set MASKWRIGHT_CACHE to another folder")
            return None

    def of(self, shard_idx: int) -> Plan:
        """The plan of a shard. It is computed at the first use, and if its file is damaged."""
        if (shard_plan := self._cached.get(shard_idx)) is not None:
            self._cached.move_to_end(shard_idx)
            return shard_plan
        shard_plan = self._cached[shard_idx] = self._read(shard_idx) or self._make(shard_idx)
        while len(self._cached) > (MOST_MAPPED if self._keeps else MOST_MADE):
            self._cached.popitem(last=False)
        return shard_plan

    # ---- counting --------------------------------------------------------------------------------------------

    def _count(self) -> RowCounts:
        """The counts of all shards, which one process computes while the others wait."""
        path = os.path.join(self._folder, "rows.json")

        def make() -> RowCounts:
            counts = self._count_rows()
            if self._keeps:
                self._try(lambda: storage.write_json(path, counts.__dict__))
            return counts

        def made_once() -> RowCounts:
            return storage.made_once(path, lambda: self._read_counts(path), make)

        return (self._try(made_once) if self._keeps else None) or self._count_rows()

    def _read_counts(self, path: str) -> RowCounts | None:
        counts = read(RowCounts, Folder(self._folder).get(os.path.basename(path)))
        sizes = [shard.tokens for shard in self.split.shards]
        if (
            counts is None
            or counts.text_tokens != sizes
            or {len(counts.rows), len(counts.frame_tokens)} != {len(sizes)}
        ):
            return None
        return counts

    def _count_rows(self) -> RowCounts:
        counts = RowCounts([], [], [])
        shards = self.split.shards
        with progress("plan rows", sum(shard.tokens for shard in shards), "tokens") as bar:
            for shard_idx, shard in enumerate(shards):
                shard_plan = self.of(shard_idx)
                text, frame = shard_plan.totals()
                counts.rows.append(shard_plan.rows)
                counts.text_tokens.append(text)
                counts.frame_tokens.append(frame)
                bar.advance(shard.tokens)
        return counts

    # ---- one shard -------------------------------------------------------------------------------------------

    def _path(self, shard_idx: int) -> str:
        return os.path.join(self._folder, f"{shard_idx:05}.columns")

    def _make(self, shard_idx: int) -> Plan:
        shard_plan = plan_of(self.split.shards[shard_idx], self.seq_len, self.packing)
        if not self._keeps:
            return shard_plan
        starts = "<u8" if shard_plan.start.max(initial=0) >= 1 << 32 else "<u4"
        columns = shard_plan.first.astype("<u4"), shard_plan.start.astype(starts), shard_plan.length.astype("<u2")

        def write() -> None:
            with written(self._path(shard_idx), sync=False) as writer:
                for name, column in zip(COLUMNS, columns, strict=True):
                    writer.append(name, column)
                note = {"segments": shard_plan.segments, "in_order": shard_plan.in_order}
                writer.note = {"crc32": _crc(columns), **note}

        self._try(write)
        return self._read(shard_idx) or shard_plan

    def _read(self, shard_idx: int) -> Plan | None:
        """The plan in the file; None without a whole one. Checks each mapping, since nothing else shows damage."""
        path = self._path(shard_idx)
        if not os.path.exists(path):
            return None
        try:
            file = Columns(path)
            columns = [_column_of(file, name) for name in COLUMNS]
            if _crc(columns) != file.note["crc32"]:
                return None
            first, start, length = columns
            return Plan(self.seq_len, file.note["segments"], first, start, length, file.note["in_order"])
        except (MaskwrightError, KeyError, ValueError, OSError):
            return None


def _column_of(file: Columns, name: str) -> Any:
    pieces = file.pieces(name)
    return pieces[0] if len(pieces) == 1 else file.column(name)


def _crc(columns: Sequence[Any]) -> int:
    crc = 0
    for column in columns:
        crc = zlib.crc32(np.ascontiguousarray(column).view(np.uint8).data, crc)
    return crc


def plan_of(shard: Shard, seq_len: int, packing: Packing) -> Plan:
    sentences = shard.sentence_ends() if packing == "full_sentences" else None
    return plan(shard.document_ends(), sentences, seq_len, packing)
