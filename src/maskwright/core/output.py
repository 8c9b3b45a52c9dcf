"""Output files that the user names: checked for writing before their content is computed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

from maskwright.core import storage
from maskwright.core.errors import InputError, of_the_system

OTHER = "check the permissions, or choose another folder"


def require_place(path: str) -> None:
    """Raises `InputError` unless the file `path` can be written: on this machine, into a folder that exists."""
    folder = os.path.dirname(storage.require_local(path)) or "."
    if os.path.isdir(path):
        raise InputError("is a folder", where=path, fix="name a file in it")
    if not os.path.exists(folder):
        fix = f"make it with mkdir -p {shlex.quote(folder)}, or choose another folder"
        raise InputError("there is no such folder", where=folder, fix=fix)
    if not os.path.isdir(folder):
        raise InputError("is a file, but a folder is needed", where=folder, fix="choose another folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError("cannot be written to: permission denied", where=folder, fix=OTHER)


def require_ending(path: str, endings: Sequence[str], where: str) -> None:
    """Raises `InputError` at `where` unless the file's ending is one of `endings`."""
    ending = os.path.splitext(storage.require_local(path))[1]
    if ending not in endings:
        raise InputError(f"ends with {ending or 'no ending'}", where=where, fix=f"name a file {' or '.join(endings)}")


@contextmanager
def writer(path: str) -> Iterator[BinaryIO]:
    """Writes like `storage.atomic_writer`. Raises like `require_place`, and `MaskwrightError` if the disk fails."""
    require_place(path)
    try:
        with storage.atomic_writer(path) as file:
            yield file
    except OSError as error:
        raise of_the_system(error, "written", path) from None
