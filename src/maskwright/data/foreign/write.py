"""A token store written for other tools: the same documents in the same order, as `train-00000-of-00002.parquet` and so
on, and `valid-…`, with a column `input_ids`; and the tokenizer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from maskwright.core import storage
from maskwright.core.console import progress, say, several
from maskwright.core.extras import require
from maskwright.data.foreign.blocks import Ids
from maskwright.data.store import SplitName, TokenStore, in_blocks
from maskwright.text.arrays import Int64
from maskwright.text.tokenizer import copy_tokenizer

SIDES: tuple[SplitName, ...] = ("train", "valid")


def write_parquet(store: TokenStore, folder: str) -> dict[str, int]:
    """Writes the folder, whole or not at all. Returns each side's documents. Raises `InputError` for a folder with
    content."""
    require("pyarrow", folder)
    storage.require_local(folder)
    storage.require_empty(folder)
    store.verify()
    total = sum(split["tokens"] for split in store.manifest["splits"].values())
    with storage.replaced_folder(folder) as unfinished, progress("write", total, "tokens") as bar:
        written: dict[str, int] = {side: _write_side(store, side, unfinished, bar) for side in SIDES}
        copy_tokenizer(store.tokenizer_folder, os.path.join(unfinished, "tokenizer"))
    for side, count in written.items():
        say(f"{side}: {several(count, 'document')}")
    return written


def _write_side(store: TokenStore, side: SplitName, folder: str, bar: Any) -> int:
    import pyarrow as arrow
    from pyarrow import parquet

    split = store.split(side)
    for number, shard in enumerate(split.shards if split.documents else ()):
        ids = split.ids(number)
        schema = arrow.schema([("input_ids", arrow.list_(arrow.from_numpy_dtype(ids.dtype)))])
        path = os.path.join(folder, f"{side}-{number:05d}-of-{len(split.shards):05d}.parquet")
        # A dictionary of ids, Parquet's default, takes four times as long and saves nothing.
        with parquet.ParquetWriter(path, cast(Any, schema), use_dictionary=False, compression="zstd") as writer:
            for batch in _batches(ids, shard.document_ends()):
                writer.write_batch(batch)
        bar.advance(len(ids))
    return split.documents


def _batches(ids: Ids, ends: Int64) -> Iterator[Any]:
    """Record batches of a column `input_ids` of lists."""
    import pyarrow as arrow

    begin = 0
    for first, last in in_blocks(ends):
        stop = int(ends[last - 1])
        offsets = np.concatenate([[begin], ends[first:last]]) - begin
        lists = arrow.ListArray.from_arrays(arrow.array(offsets.astype(np.int32)), arrow.array(ids[begin:stop]))
        yield arrow.RecordBatch.from_arrays([lists], ["input_ids"])
        begin = stop
