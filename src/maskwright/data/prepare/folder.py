"""The folder of an unfinished store, and the folder of its parts.

Results of the phases lie in `PARTS`, in files named by a digest of what decided them. So a finished part is never
computed again, neither after a worker or the driver was killed nor after another part's file was repaired.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from maskwright.core import storage
from maskwright.core.errors import InputError, Locked
from maskwright.data.manifest import SOURCES, is_shard_name
from maskwright.processes.claims import CLAIM, LEASE, others_in, unless_finished
from maskwright.processes.runner import Runner
from maskwright.text.parts.phase import is_result

PARTS = "parts"
VERSION = 8
"""Format of the phases' files. Files of another version are not read."""


@contextmanager
def held(folder: str, runner: Runner, files: Sequence[str], request: str) -> Iterator[str]:
    """Joins the commands that make the store of `request`, a digest of its text and options, and yields the folder of
    its parts. It is deleted if no part was finished. `files`: of the text.

    If another command meanwhile finishes the store and deletes the parts, the resulting errors are ignored. Raises
    `InputError` for a folder with other content, and before that for one with a file of `files`; `Locked` while another
    store is made there."""
    path, work = os.path.abspath(folder), os.path.join(os.path.abspath(folder), PARTS)
    if os.path.exists(path) and not os.path.isdir(path):
        raise InputError("is a file, but a folder is needed", where=folder, fix="choose another folder")
    local = (name for name in files if not storage.is_url(name))
    if name := next((name for name in local if os.path.abspath(name).startswith(os.path.join(path, ""))), None):
        raise InputError(f"holds {name}, which must be read", where=folder, fix="choose another folder")
    with storage.new_folder(path):
        if (foreign := _foreign(path)) and not is_finished(path):
            raise InputError(f"is not empty: it holds {min(foreign)}", where=folder, fix="choose another folder")
        storage.make_folder(work)
        is_joined = False
        try:
            with unless_finished(lambda: is_finished(path)), runner.sharing(work, request):
                is_joined = True
                yield work
            if not is_joined:
                yield work
        finally:
            if not any(map(_is_kept, names := names_in(work))):
                for name in names:
                    with suppress(OSError):
                        os.unlink(os.path.join(work, name))
                with suppress(OSError):  # another command has joined
                    os.rmdir(work)


def is_finished(folder: str) -> bool:
    """Whether the folder's store is finished; its parts may still be there."""
    return "manifest.json" in names_in(folder)


def names_in(folder: str) -> list[str]:
    """The names in a folder; none if it is absent, such as after another command deleted it. NFS caches for a minute
    that a file is absent, but a list is current."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_kept(name: str) -> bool:
    """Whether it is a lease, perhaps of a command that is just joining, or a part's note."""
    return name.startswith(LEASE) or (is_result(name) and "." not in name)


def _foreign(folder: str) -> set[str]:
    """Names in the folder that are not of an unfinished store."""
    names, work = {*os.listdir(folder)}, os.path.join(folder, PARTS)
    if not os.path.isdir(work):  # they exist from the first moment to the last
        return names
    parts = names_in(work)
    is_begun = any(map(is_result, parts))  # without results, shards and tokenizer belong to the user
    foreign = {name for name in names - {PARTS} if not (is_begun and _is_of_store(name))}
    return foreign | {os.path.join(PARTS, name) for name in parts if not _is_part(name)}


def _is_of_store(name: str) -> bool:
    """Whether it is the name of a shard's file, of `tokenizer` or `SOURCES`, or of a killed process's remains."""
    stem = re.sub(r"\.tmp-\d+$", "", name)
    return is_shard_name(stem) or name == "tokenizer" or stem == SOURCES or (stem == "manifest.json" and stem != name)


def _is_part(name: str) -> bool:
    """Whether the name in `PARTS` belongs to a phase or a command, or to a file system:
    NFS keeps a deleted file that is open as `.nfs…`, FUSE as `.fuse_hidden…`."""
    return is_result(name) or name.startswith((LEASE, CLAIM, ".nfs", ".fuse_hidden"))


def remove_parts(folder: str) -> None:
    """Deletes `PARTS` of a finished store, unless it holds anything else, which then belongs to the user."""
    work = os.path.join(folder, PARTS)
    if all(map(_is_part, names_in(work))):
        shutil.rmtree(work, ignore_errors=True)


def finish_once(folder: str, runner: Runner, make: Callable[[], object]) -> None:
    """Lets one of the commands in the folder finish its store by `make`, while the others wait.

    Deletes shards and parts after an `InputError`, since the same text and options would fail again. Another command
    that is still in the folder fails in the same way, and then deletes them."""
    assert runner.claims
    try:
        runner.claims.alone("finish", lambda: is_finished(folder), make)
    except Locked:  # another command has taken over
        raise
    except InputError:
        if others_in(names_in(os.path.join(folder, PARTS))):
            raise
        for name in filter(is_shard_name, os.listdir(folder)):
            os.unlink(os.path.join(folder, name))
        remove_parts(folder)
        raise
