"""A token store written for other tools: the same documents in the same order, a folder or file for each side.

`arrow`      train/00000.arrow …: a record batch per document, column `tokens`; train/meta/counts.csv; train/tokenizer/
`datasets`   as `save_to_disk` writes a DatasetDict; column `input_ids`
`parquet`    train-00000-of-00002.parquet …; column `input_ids`
`megatron`   train_text_document.bin and .idx
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from typing import Any, Literal, cast

import numpy as np

from maskwright.core import storage
from maskwright.core.console import progress, say, several
from maskwright.core.extras import require
from maskwright.data.foreign.blocks import BLOCK_TOKENS, Ids, in_blocks
from maskwright.data.foreign.indexed import MAGIC, WRITTEN
from maskwright.data.store import SplitName, TokenStore
from maskwright.text.arrays import Int64
from maskwright.text.tokenizer import copy_tokenizer

WrittenFormat = Literal["arrow", "datasets", "parquet", "megatron"]
SIDES: tuple[SplitName, ...] = ("train", "valid")
SPLIT_NAMES = {"train": "train", "valid": "validation"}
"""Names of the splits in `datasets`."""


def write_out(store: TokenStore, folder: str, kind: WrittenFormat) -> dict[str, int]:
    """Writes the folder, whole or not at all. Returns each side's documents. Raises `InputError` for a folder with
    content."""
    if kind != "megatron":
        require("pyarrow", folder)
    storage.require_local(folder)
    storage.require_empty(folder)
    store.verify()
    total = sum(split["tokens"] for split in store.manifest["splits"].values())
    with storage.replaced_folder(folder) as unfinished, progress("write", total, "tokens") as bar:
        written: dict[str, int] = {side: _write_side(store, side, unfinished, kind, bar) for side in SIDES}
        if kind == "datasets":
            names = [SPLIT_NAMES[side] for side in SIDES if written[side]]
            storage.write_json(os.path.join(unfinished, "dataset_dict.json"), {"splits": names})
        if kind != "arrow":
            copy_tokenizer(store.tokenizer_folder, os.path.join(unfinished, "tokenizer"))
    for side, count in written.items():
        say(f"{side}: {several(count, 'document')}")
    return written


def _write_side(store: TokenStore, side: SplitName, folder: str, kind: WrittenFormat, bar: Any) -> int:
    split = store.split(side)
    if not split.documents:
        return 0
    parts = ((split.ids(number), shard.document_ends()) for number, shard in enumerate(split.shards))
    if kind == "megatron":
        _write_megatron(os.path.join(folder, f"{side}_text_document"), store.dtype, parts, bar)
    elif kind == "arrow":
        _write_arrow(os.path.join(folder, side), parts, bar)
        copy_tokenizer(store.tokenizer_folder, os.path.join(folder, side, "tokenizer"))
    elif kind == "datasets":
        _write_datasets(os.path.join(folder, SPLIT_NAMES[side]), store.dtype, list(parts), bar)
    else:
        _write_parquet(os.path.join(folder, side), list(parts), bar)
    return split.documents


def _write_megatron(prefix: str, dtype: str, parts: Iterator[tuple[Ids, Int64]], bar: Any) -> None:
    kind = dtype if dtype in WRITTEN else "int32"  # Megatron has no uint32; no vocabulary reaches 2^31
    sizes: list[Int64] = []
    with storage.atomic_writer(f"{prefix}.bin") as file:
        for ids, ends in parts:
            for begin in range(0, len(ids), BLOCK_TOKENS):
                file.write(ids[begin : begin + BLOCK_TOKENS].astype(f"<{np.dtype(kind).str[1:]}").data)
            sizes.append(np.diff(ends, prepend=0))
            bar.advance(len(ids))
    together = np.concatenate(sizes)
    count = len(together)
    places = (np.cumsum(together) - together) * np.dtype(kind).itemsize
    with storage.atomic_writer(f"{prefix}.idx") as file:
        file.write(MAGIC + np.array([1], "<u8").tobytes() + bytes([WRITTEN[kind]]))
        file.write(np.array([count, count + 1], "<u8").tobytes())
        file.write(together.astype("<i4").tobytes() + places.astype("<i8").tobytes())
        file.write(np.arange(count + 1, dtype="<i8").tobytes())


def _write_arrow(folder: str, parts: Iterator[tuple[Ids, Int64]], bar: Any) -> None:
    import pyarrow as arrow

    storage.make_folder(os.path.join(folder, "meta"))
    with open(os.path.join(folder, "meta", "counts.csv"), "w", encoding="utf-8", newline="") as counts:
        table = csv.writer(counts)
        table.writerow(["dataset/filename", "documents", "tokens"])
        for number, (ids, ends) in enumerate(parts):
            name = f"{number:05d}.arrow"
            schema = arrow.schema([("tokens", arrow.from_numpy_dtype(ids.dtype))])
            whole = arrow.RecordBatch.from_arrays([arrow.array(ids)], schema=schema)
            with arrow.OSFile(os.path.join(folder, name), "wb") as file, arrow.ipc.new_file(file, schema) as writer:
                begin = 0
                for end in ends.tolist():
                    writer.write_batch(whole.slice(begin, end - begin))
                    begin = end
            table.writerow([name, len(ends), len(ids)])
            bar.advance(len(ids))


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


def _write_datasets(folder: str, dtype: str, parts: list[tuple[Ids, Int64]], bar: Any) -> None:
    import pyarrow as arrow

    storage.make_folder(folder)
    names = [f"data-{number:05d}-of-{len(parts):05d}.arrow" for number in range(len(parts))]
    for name, (ids, ends) in zip(names, parts, strict=True):
        schema = arrow.schema([("input_ids", arrow.list_(arrow.from_numpy_dtype(ids.dtype)))])
        with arrow.OSFile(os.path.join(folder, name), "wb") as file, arrow.ipc.new_stream(file, schema) as writer:
            for batch in _batches(ids, ends):
                writer.write_batch(batch)
        bar.advance(len(ids))
    state: dict[str, Any] = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": storage.sha256_of([names, [len(ends) for _, ends in parts]])[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": os.path.basename(folder),
    }
    storage.write_json(os.path.join(folder, "state.json"), state)
    feature = {"feature": {"dtype": dtype, "_type": "Value"}, "_type": "Sequence"}
    storage.write_json(os.path.join(folder, "dataset_info.json"), {"features": {"input_ids": feature}})


def _write_parquet(prefix: str, parts: list[tuple[Ids, Int64]], bar: Any) -> None:
    import pyarrow as arrow
    from pyarrow import parquet

    for number, (ids, ends) in enumerate(parts):
        schema = arrow.schema([("input_ids", arrow.list_(arrow.from_numpy_dtype(ids.dtype)))])
        path = f"{prefix}-{number:05d}-of-{len(parts):05d}.parquet"
        # A dictionary of ids, Parquet's default, takes four times as long and saves nothing.
        with parquet.ParquetWriter(path, cast(Any, schema), use_dictionary=False, compression="zstd") as writer:
            for batch in _batches(ids, ends):
                writer.write_batch(batch)
        bar.advance(len(ids))
