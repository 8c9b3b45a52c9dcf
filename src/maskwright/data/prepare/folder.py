"""The folder of an unfinished store, and the folder of its parts.

Results of the phases lie in `PARTS`, in files named by a digest of what decided them. So a finished part is never
computed again: not after a worker or the driver was killed, and not after another part's file was repaired.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from maskwright.core import storage
from maskwright.core.errors import InputError
from maskwright.data.manifest import is_shard_name
from maskwright.processes.runner import Runner

LOCK = "prepare.lock"
PARTS = "parts"
VERSION = 4
"""Format of the phases' files. Those of another version are not read."""


@contextmanager
def held(folder: str, runner: Runner, files: Sequence[str]) -> Iterator[str]:
    """Locks the store's folder and yields the folder of its parts, which is deleted if no part was finished. `files`:
    of the text. Raises `InputError` for a folder with other content."""
    path, work = os.path.abspath(folder), os.path.join(os.path.abspath(folder), PARTS)
    if os.path.exists(path) and not os.path.isdir(path):
        raise InputError("is a file, but a folder is needed", where=folder, fix="choose another folder")
    with storage.new_folder(path), storage.locked(os.path.join(path, LOCK), remove=True):
        names = {name for name in os.listdir(path) if name != LOCK and not storage.is_temporary(name)}
        if names and PARTS not in names:
            raise InputError("is not empty", where=folder, fix="choose another folder")
        storage.make_folder(work)
        try:
            runner.require_seen(work, files)
            yield work
        finally:
            if os.path.exists(work) and all(storage.is_temporary(name) or name[0] == "." for name in os.listdir(work)):
                shutil.rmtree(work)


@contextmanager
def discarded(folder: str) -> Iterator[None]:
    """Deletes parts and shards after an `InputError`: the same text and options would end in it again."""
    try:
        yield
    except InputError:
        shutil.rmtree(os.path.join(folder, PARTS))
        for name in filter(is_shard_name, os.listdir(folder)):
            os.unlink(os.path.join(folder, name))
        raise
