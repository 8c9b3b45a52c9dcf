"""The split of a file by its name: one table for text, token ids and labels."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Literal

Split = Literal["train", "validation", "test"]
NAMES: dict[Split, tuple[str, ...]] = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "development", "testa"),
    "test": ("test", "testing", "eval", "evaluation", "testb"),
}
"""Words in the names of files and folders, as the Hugging Face Hub reads them; testa and testb are CoNLL-2003's."""
SPLIT_OF: dict[str, Split] = {word: split for split, words in NAMES.items() for word in words}


def splits_of(locations: Sequence[str]) -> dict[str, Split | None]:
    """The split of each file, by a word of its name, or else of the nearest folder below the common one:
    `data/train-00000-of-00002.parquet`, `dev_matched.tsv`, `test/a.txt`. None for a name without such a word, or with
    words of several splits."""
    parts = {location: re.split(r"[/\\]+", location.partition("?")[0]) for location in locations}
    levels = zip(*(path[:-1] for path in parts.values()), strict=False)
    common = sum(1 for _ in itertools.takewhile(lambda names: len({*names}) == 1, levels))
    return {location: _split(path[common:]) for location, path in parts.items()}


def _split(path: list[str]) -> Split | None:
    for name in reversed(path):
        if found := {SPLIT_OF[word] for word in re.split(r"[^a-z]+", name.lower()) if word in SPLIT_OF}:
            return found.pop() if len(found) == 1 else None
    return None


def are_apart(splits: Sequence[Split | None]) -> bool:
    """Whether files are meant for several splits: some to train on, and some to judge by."""
    return "train" in splits and not {"validation", "test"}.isdisjoint(splits)
