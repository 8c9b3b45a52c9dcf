"""The format of a store, by the names in its folder and by the files' first bytes."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import get_args

from maskwright.core import storage
from maskwright.core.errors import InputError
from maskwright.core.formats import SIGNS, Format, by_ending
from maskwright.data.foreign.blocks import HELD_OUT, Foreign, Options, held_out_files
from maskwright.data.foreign.columns import dataset_files, open_columns
from maskwright.data.foreign.fairseq import dictionary, open_fairseq
from maskwright.data.foreign.indexed import index_kind, open_megatron
from maskwright.data.foreign.mds import open_mds
from maskwright.data.foreign.pregenerated import open_pregenerated
from maskwright.text.vocabulary import Vocabulary

REFUSED = {
    ".tar": "unpack it and run `maskwright data prepare` on its text, since WebDataset has no reliable order",
    ".tfrecord": "prepare the text that its examples were made from: `maskwright data prepare`",
    ".zarr": "export the cache as Parquet or Arrow",
    ".zarray": "export the cache as Parquet or Arrow",
    ".zst": "unpack the files first",
    ".gz": "unpack the files first",
    **dict.fromkeys((".npy", ".bin", ".ds"), "write its ids as Parquet: a column input_ids, a document in each row"),
}


def detect(places: list[str]) -> Format:
    """The format of all places. Raises `InputError` for none and for several."""
    formats = {_kind(place) for place in places}
    if len(formats) > 1:
        fix = "convert them separately, or name one format: --from-format FORMAT"
        raise InputError(f"are of several formats: {', '.join(sorted(formats))}", where=" ".join(places), fix=fix)
    return formats.pop()


def _kind(place: str) -> Format:
    for name, kind in SIGNS.items():
        if os.path.isfile(os.path.join(place.split(":")[0], name)):
            return kind
    if dictionary(place.split(":")[0]):
        return "fairseq"
    paths = _paths([place])
    if indexes := [path for path in paths if path.endswith(".idx")]:
        return index_kind(indexes[0])
    kinds = by_ending(paths)
    if len(kinds) == 1:
        return kinds.pop()
    refused = next((why for path in paths for ending, why in REFUSED.items() if path.endswith(ending)), None)
    what = f"holds several kinds of files: {', '.join(sorted(kinds))}" if kinds else "is not a store of a known format"
    fix = f"name it: --from-format {'|'.join(get_args(Format))}"
    if not kinds and all(path.endswith((".json", ".jsonl", ".csv")) for path in paths):
        fix = "save each document's ids as a list, a row of the column input_ids in a Parquet file"
    raise InputError(what, where=place, fix=refused or fix)


def _paths(places: list[str]) -> list[str]:
    """The files of all places; PREFIX stands for PREFIX.bin and PREFIX.idx."""
    paths = []
    for place in map(storage.require_local, places):
        files = [place] if os.path.exists(place) else [f"{place}{end}" for end in (".idx", ".bin")]
        paths += storage.expand(files if all(map(os.path.exists, files)) else [place])
    return paths


def open_foreign(
    places: list[str], kind: Format, options: Options, vocabulary: Vocabulary, pieces: dict[str, int]
) -> Foreign:
    """`pieces`: the tokenizer's tokens and ids. Raises kinds of `InputError`."""
    foreign = _open(places, kind, options, vocabulary, pieces)
    held_out = held_out_files(foreign.files, [folder for place in places for folder in _folders(place)])
    return replace(foreign, held_out=held_out, messages=[*foreign.messages, HELD_OUT]) if held_out else foreign


def _folders(place: str) -> list[str]:
    """The place, or the shards of fairseq that it names, separated by colons."""
    return [place] if os.path.exists(place) else place.split(":")


def _open(places: list[str], kind: Format, options: Options, vocabulary: Vocabulary, pieces: dict[str, int]) -> Foreign:
    if kind == "fairseq":
        folders = [folder for place in places for folder in _folders(place)]
        return open_fairseq(folders, pieces, vocabulary, options.encoder)
    if kind == "mds":
        return open_mds(places, options)
    if kind == "pregenerated":
        return open_pregenerated([*map(storage.require_local, places)], vocabulary, pieces)
    if kind == "datasets":
        return open_columns("datasets", [path for place in places for path in dataset_files(place)], options.column)
    paths = _paths(places)
    if kind in ("arrow", "parquet"):
        return open_columns(kind, _of(paths, f".{kind}", places), options.column)
    indexes = {f"{path[:-4]}.idx" for path in paths if path.endswith((".idx", ".bin"))}
    return open_megatron(_of(sorted(indexes), ".idx", places))


def _of(paths: list[str], ending: str, places: list[str]) -> list[str]:
    """The paths with the ending; without any, the files that the user named."""
    chosen = [path for path in paths if path.endswith(ending)] or [place for place in places if os.path.isfile(place)]
    if not chosen:
        raise InputError(
            f"holds no {ending} file", where=places[0], fix="check the path, or name another --from-format"
        )
    return chosen
