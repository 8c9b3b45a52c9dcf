"""Plans of a store's rows, shard by shard: made once for a row length and a packing, kept as files, and mapped when a
row of the shard is asked for. So a start costs the same for any size of store, and all ranks of a host share the files.

    $MASKWRIGHT_CACHE/rows/NAME/      see `core.storage.cache_folder`; NAME is of the store, the side, T and the packing
      rows.json                       rows and tokens of each shard, written last
      00000.columns …                 the plan of each shard: first, start, length

They may be deleted while nobody trains: they are made again.
"""

from __future__ import annotations

import os
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from maskwright.core import storage
from maskwright.core.console import progress, warn
from maskwright.core.errors import InputError, MaskwrightError
from maskwright.data.packing import Packing, Plan, plan
from maskwright.data.store import Shard, Split
from maskwright.text.parts.columns import Columns, written

FORMAT = 1
MOST_MAPPED = 8_192
"""Plans that are mapped at once. Linux maps 65,530 files for a process."""
MOST_MADE = 32
"""Plans that are in memory at once where none can be kept as a file: a few megabytes each."""
COLUMNS = ("first", "start", "length")


@dataclass(frozen=True)
class Counted:
    """Rows of each shard."""

    rows: list[int]
    text_tokens: list[int]
    frame_tokens: list[int]


class ShardPlans:
    """Plans of one side of a store."""

    def __init__(self, split: Split, fingerprint: str, side: str, seq_len: int, packing: Packing) -> None:
        """Raises `StoreError` for a damaged shard, or one without the sentences that `packing` needs."""
        self.split, self.seq_len, self.packing = split, seq_len, packing
        name = f"{fingerprint[:24]}-{side}-{seq_len}-{packing}-{FORMAT}"
        self._folder = storage.cache_folder("rows", name)
        self._kept = OrderedDict[int, Plan]()
        self._has_files = self._is_writable()
        self.counted = self._count()

    def _is_writable(self) -> bool:
        try:
            storage.make_folder(self._folder)
        except InputError:
            return self._cannot_be_kept()
        return os.access(self._folder, os.W_OK) or self._cannot_be_kept()

    def _cannot_be_kept(self) -> bool:
        if len(self.split.shards) > 1:
            what = "cannot be written, so that rows are planned anew at each start and in each process"
            warn(f"{self._folder} {what}; name another folder as MASKWRIGHT_CACHE")
        return False

    def of(self, shard_idx: int) -> Plan:
        """The plan of a shard. It is made if it is touched for the first time, or if its file is damaged."""
        if (found := self._kept.get(shard_idx)) is not None:
            self._kept.move_to_end(shard_idx)
            return found
        found = (self._read(shard_idx) if self._has_files else None) or self._make(shard_idx)
        self._kept[shard_idx] = found
        if len(self._kept) > (MOST_MAPPED if self._has_files else MOST_MADE):
            self._kept.popitem(last=False)
        return found

    # ---- counting --------------------------------------------------------------------------------------------

    def _count(self) -> Counted:
        """Of several processes one plans all shards, and the others wait."""
        if not self._has_files:
            return self._counted()
        path = os.path.join(self._folder, "rows.json")

        def make() -> Counted:
            found = self._counted()
            storage.write_json(path, found.__dict__)
            return found

        return storage.awaited(lambda: storage.made_once(path, lambda: self._noted(path), make))

    def _noted(self, path: str) -> Counted | None:
        try:
            noted: Any = storage.read_json(path) if os.path.exists(path) else None
            found = Counted(**noted) if isinstance(noted, dict) else None
        except (InputError, TypeError):
            return None
        numbers = [found.rows, found.text_tokens, found.frame_tokens] if found else []
        whole = numbers and all(
            isinstance(some, list)
            and len(some) == len(self.split.shards)
            and all(type(one) is int and one >= 0 for one in some)
            for some in numbers
        )
        return found if whole and found and found.text_tokens == [one.tokens for one in self.split.shards] else None

    def _counted(self) -> Counted:
        found = Counted([], [], [])
        shards = self.split.shards
        with progress("plan rows", sum(shard.tokens for shard in shards), "tokens") as bar:
            for shard_idx, shard in enumerate(shards):
                layout = self.of(shard_idx)
                text, frame = layout.totals()
                found.rows.append(layout.rows)
                found.text_tokens.append(text)
                found.frame_tokens.append(frame)
                bar.advance(shard.tokens)
        return found

    # ---- one shard -------------------------------------------------------------------------------------------

    def _path(self, shard_idx: int) -> str:
        return os.path.join(self._folder, f"{shard_idx:05}.columns")

    def _make(self, shard_idx: int) -> Plan:
        made = plan_of(self.split.shards[shard_idx], self.seq_len, self.packing)
        if not self._has_files:
            return made
        kinds = {"first": "<u4", "start": "<u8" if made.start.max(initial=0) >= 1 << 32 else "<u4", "length": "<u2"}
        with written(self._path(shard_idx), sync=False) as writer:
            for name, kind in kinds.items():
                writer.append(name, getattr(made, name).astype(kind))
            crc = _crc([getattr(made, name).astype(kind) for name, kind in kinds.items()])
            writer.note = {"crc32": crc, "segments": made.segments, "in_order": made.in_order}
        found = self._read(shard_idx)
        assert found is not None, "it was just written"
        return found

    def _read(self, shard_idx: int) -> Plan | None:
        """None where there is no whole file. The checksum is of each mapping, as nothing else would show a damage."""
        path = self._path(shard_idx)
        if not os.path.exists(path):
            return None
        try:
            file = Columns(path)
            columns = [_whole(file, name) for name in COLUMNS]
            if _crc(columns) != file.note["crc32"]:
                return None
            first, start, length = columns
            return Plan(self.seq_len, file.note["segments"], first, start, length, file.note["in_order"])
        except (MaskwrightError, KeyError, ValueError, OSError):
            return None


def _whole(file: Columns, name: str) -> Any:
    pieces = file.pieces(name)
    return pieces[0] if len(pieces) == 1 else file.column(name)


def _crc(columns: Sequence[Any]) -> int:
    crc = 0
    for one in columns:
        crc = zlib.crc32(np.ascontiguousarray(one).view(np.uint8).data, crc)
    return crc


def plan_of(shard: Shard, seq_len: int, packing: Packing) -> Plan:
    sentences = shard.sentence_ends() if packing == "full_sentences" else None
    return plan(shard.document_ends(), sentences, seq_len, packing, shard.document_starts())
