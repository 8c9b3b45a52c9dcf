"""The files of each split. If a folder's files are named for splits, each split has its own."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence

from maskwright.config.finetuning import LabelledData
from maskwright.core import storage
from maskwright.core.console import several
from maskwright.core.errors import ConfigError, SourceError
from maskwright.core.splits import Split, splits_of
from maskwright.labels.example import Reading
from maskwright.text.arrow import data_files


def by_split(location: str) -> dict[Split | None, list[str]]:
    """The files of each split by their names, and under None the files of no split; empty if the names show none.

    If none is named for training, files without a split are used: `reviews.csv` next to `reviews-test.csv`."""
    names = [*data_files([location])]
    files: dict[Split | None, list[str]] = {}
    for name, split in splits_of(names).items():
        files.setdefault(split, []).append(name)
    if names == [location] or not files.keys() & {"validation", "test"}:
        return {}
    if "train" not in files and None in files:
        files["train"] = files.pop(None)
    return {} if len(files) == 1 and glob.has_magic(location) else files


def with_splits(data: LabelledData) -> LabelledData:
    """The section with `validation` and `test` filled in if they are not set and `train` holds files of them. A split
    that is set to null stays null."""
    files = by_split(data.train)
    splits = ("validation", "test")
    return data.model_copy(
        update={split: data.train for split in splits if split in files and split not in data.model_fields_set}
    )


def files_of(location: str, wanted: Sequence[Split], reading: Reading) -> list[str]:
    """The files of the first of the `wanted` splits that the location's names show; all files if they show none. Raises
    `SourceError` if it has only others."""
    files = by_split(location) if wanted else {}
    if not files:
        return [*data_files([location])]
    split = next((split for split in wanted if split in files), None)
    if split is None:
        others = ", ".join(str(split) for split in files if split)
        fix = "name the files themselves, by a glob" if wanted[0] == "train" else "name another folder or file"
        raise SourceError(f"holds files of {others} and none of {wanted[0]}, by their names", where=location, fix=fix)
    shown = os.path.basename(files[split][0]) + (", …" if len(files[split]) > 1 else "")
    reading.note(f"{split}: {several(len(files[split]), 'file')} of {location} ({shown})")
    if None in files:
        shown = os.path.basename(files[None][0])
        reading.note(f"{location}: {several(len(files[None]), 'file')} of no split, not read, the first {shown}")
    return files[split]


def split_files(data: LabelledData, reading: Reading) -> dict[Split, list[str]]:
    """The files of each split that `data` names. A file of `validation` or `test` is not trained on, even if a folder
    or glob of `train` includes it. Raises `ConfigError` for other files in two splits."""
    splits: tuple[Split, ...] = ("train", "validation", "test")
    locations = {split: getattr(data, split) for split in splits}
    files = {split: files_of(place, (split,), reading) for split, place in locations.items() if place is not None}
    owner: dict[str, Split] = {}
    for split in splits[1:]:
        for name in files.get(split, ()):
            if owner.setdefault(storage.identity(name), split) != split:
                raise ConfigError("is in the validation and in the test split", where=name, fix=another_file(split))
    held = {name: owner[which] for name in files["train"] if (which := storage.identity(name)) in owner}
    if held:
        name, split = next(iter(held.items()))
        if len(held) == len(files["train"]):
            raise ConfigError(f"is in the train and in the {split} split", where=name, fix=another_file(split))
        reading.note(f"{name} is in data.train and in data.{split}, so it is not trained on")
    return files | {"train": [name for name in files["train"] if name not in held]}


def another_file(split: str) -> str:
    instead = " to hold out a share of data.train" if split == "validation" else ""
    return f"name another file under data.{split}, or set it to null{instead}"
