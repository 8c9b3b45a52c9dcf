"""Recognizes the format of data by file names alone, the same for folders and listings of buckets."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Literal

Format = Literal["arrow", "datasets", "parquet", "megatron", "fairseq", "mds", "pregenerated"]
"""Of token ids that `data convert` reads."""
SIGNS: dict[str, Format] = {
    "index.json": "mds",
    "dict.txt": "fairseq",
    "state.json": "datasets",
    "dataset_dict.json": "datasets",
    "epoch_0_metrics.json": "pregenerated",
}
"""Files that only one format of token ids has."""
ENDINGS: dict[str, Format] = {".arrow": "arrow", ".parquet": "parquet"}
COMPRESSIONS = (".gz", ".zst", ".zstd", ".xz", ".bz2")
LABELLED = (".csv", ".tsv", ".jsonl", ".parquet", ".conll")
"""Endings of examples that `finetune` reads, also with one of `COMPRESSIONS` after them."""


def by_ending(names: Iterable[str]) -> set[Format]:
    """Formats of token ids by their endings, except for an index (.idx), whose content decides."""
    return {kind for name in names for ending, kind in ENDINGS.items() if name.endswith(ending)}


def is_labelled(name: str) -> bool:
    stem, end = os.path.splitext(name)
    return (stem if end in COMPRESSIONS else name).endswith(LABELLED)
