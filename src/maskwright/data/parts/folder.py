"""What every store that is made in parts has in common: the folder that holds the parts, and its last phase.

What a phase finds lies in the folder `PARTS` of the store, in files whose names say what decided them. So a part that
is finished is never computed again: not after a worker or the driver was killed, and not after another part's file was
repaired.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from maskwright.core import storage
from maskwright.core.errors import InputError
from maskwright.core.runner import Runner
from maskwright.data import manifest as manifests
from maskwright.data.parts.encode import Block, WriteBlock
from maskwright.data.writer import LOCK, PARTS, StoreWriter
from maskwright.text.parts.cut import digest_of
from maskwright.text.parts.phase import compute, remove_others

VERSION = 2
"""Of what the phases note: another one's notes are not read."""


@contextmanager
def held(folder: str, runner: Runner, files: Sequence[str]) -> Iterator[str]:
    """Holds the folder of a store that is made of `files`, and gives the folder of its parts. Without anything found it
    is left as it was."""
    place, work = os.path.abspath(folder), os.path.join(os.path.abspath(folder), PARTS)
    if os.path.exists(place) and not os.path.isdir(place):
        raise InputError("is a file, but a folder is needed", where=folder, fix="choose another folder")
    with storage.new_folder(place), storage.locked(os.path.join(place, LOCK), remove=True):
        names = {name for name in os.listdir(place) if name != LOCK and not storage.is_temporary(name)}
        if "prepare.json" in names:
            fix = "give the same command without --on, delete it, or choose another folder"
            raise InputError("holds an unfinished store that one machine began", where=folder, fix=fix)
        if names and PARTS not in names:
            raise InputError("is not empty", where=folder, fix="choose another folder")
        storage.make_folder(work)
        try:
            runner.require_seen(work, files)
            yield work
        finally:
            if os.path.exists(work) and not [name for name in os.listdir(work) if not _passing(name)]:
                shutil.rmtree(work)


def _passing(name: str) -> bool:
    """Whether a file is of nobody's finished work."""
    return storage.is_temporary(name) or name.startswith(".")


def paths_of(work: str, phase: str, digests: Sequence[str]) -> list[str]:
    """The file of each part in a phase, by what decides it; those of other text or options are deleted."""
    paths = [os.path.join(work, f"{phase}-{place:06}-{digest}") for place, digest in enumerate(digests)]
    remove_others(work, f"{phase}-", paths)
    return paths


def write_blocks(
    runner: Runner, writer: StoreWriter, work: str, files: Sequence[str], shard_blocks: Sequence[Block]
) -> None:
    """The last phase: the shards of all blocks, from the `files` of the parts; those that are there are not written
    again."""
    place, names = os.path.abspath(writer.folder), digest_of([os.path.basename(path) for path in files])
    paths = paths_of(work, "write", [digest_of(names, block.number, block.pieces) for block in shard_blocks])
    sizes = [np.dtype(writer.dtype).itemsize * block.tokens for block in shard_blocks]
    write = WriteBlock(place, tuple(files), writer.dtype, writer.with_sentences)
    for note in compute(runner, write, [*zip(shard_blocks, paths, strict=True)], "write", sizes):
        writer.shards += note["shards"]
    kept = {record["name"] for shard in writer.shards for record in shard["files"].values()}
    for name in os.listdir(place):
        left = storage.is_temporary(name) or (manifests.is_shard_name(name) and name not in kept)
        if left:  # by a worker that was killed, or an earlier command with other options
            os.unlink(os.path.join(place, name))
