"""Run directories below folders, on this machine or in a bucket."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from maskwright.core import records, storage
from maskwright.core.errors import MaskwrightError, StoppedEarly
from maskwright.core.folder import Folder
from maskwright.core.secrets import redact
from maskwright.run.directory import Status, step_of
from maskwright.run.heartbeat import read_local
from maskwright.run.record import CONFIG

MARKS = frozenset({CONFIG, "lease.json"})
"""One of them is in a run directory from its first second on. Names such as log.txt are in other folders too."""
STATUS = "status.json"
"""Other programs write such a file too, so its content decides."""
DEEPEST, DEEPEST_URL = 6, 4
"""Levels of folders searched below a folder. At a URL each folder is a request."""
MOST_FOLDERS = 20_000
"""Folders searched on this machine, where a home folder has many; this number takes a second."""
MOST_FOLDERS_URL = 500
PASSED_OVER = frozenset({"node_modules", "site-packages", "__pycache__"})


@dataclass(frozen=True)
class RunLocation:
    """A folder that looks like a run directory, or like the copies of a run's checkpoints."""

    location: str
    """A path of this machine, or a URL."""
    name: str
    """Its path below the searched folder."""


@dataclass
class FoundRuns:
    places: list[RunLocation] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """A line for each folder that cannot be read."""


def find(folders: Sequence[str], *, several: bool = False) -> FoundRuns:
    """Finds the run directories below `folders`, each once. A missing folder has none. `several`: names of runs begin
    with the name of their folder."""
    runs, seen, places = FoundRuns(), set[object](), dict[str, RunLocation]()
    for folder in folders:
        try:
            root = Folder(folder, reach=True)
        except StoppedEarly:  # a signal's
            raise
        except MaskwrightError as error:  # the store's host does not answer now
            runs.problems.append(str(error))
            continue
        for inside in _below(root, runs.problems, seen):
            location = os.path.join(root.path or root.location, inside) if inside else root.path or root.location
            root_name = os.path.basename(root.location.rstrip("/")) or root.location
            name = (f"{root_name}/{inside}" if several else inside) if inside else root_name
            places.setdefault(location, RunLocation(location, name))
    runs.places = list(places.values())
    return runs


def is_a_run(names: Collection[str], status: Callable[[], bytes | None]) -> bool:
    """Whether a folder with these names in it looks like a run. `status` reads its `status.json`."""
    if not MARKS.isdisjoint(names) or any(step_of(name) is not None for name in names):
        return True
    record = records.read(Status, status()) if STATUS in names else None
    return record is not None and record.heartbeat > 0.0


def _below(root: Folder, problems: list[str], seen: set[object]) -> Iterator[str]:
    """Yields the paths of runs below `root`. On this machine links are followed last, and each folder is searched once,
    so that a circle ends, and a run is named by its real place."""
    deepest, most = (DEEPEST_URL, MOST_FOLDERS_URL) if root.path is None else (DEEPEST, MOST_FOLDERS)
    waiting, links, looked_into = [("", 0)], list[tuple[str, int]](), 0
    while waiting or links:
        inside, depth = (waiting or links).pop()
        try:
            names, folders, linked = _listed(root, inside, seen, inner=depth < deepest)
            is_run = is_a_run(names, partial(_status, root, inside))
        except StoppedEarly:  # a signal's
            raise
        except MaskwrightError as error:
            problems.append(str(error))
            continue
        if is_run:
            yield inside
            continue
        looked_into += 1
        if looked_into > most:
            told = f"only the first {most:,} folders below are searched; name the one with the runs"
            problems.append(f"{redact(root.location)}: {told}")
            return
        for found, later in ((folders, waiting), (linked, links)):
            worth = [name for name in sorted(found, reverse=True) if name[0] != "." and name not in PASSED_OVER]
            later += [(os.path.join(inside, name), depth + 1) for name in worth]


def _listed(
    root: Folder, inside: str, seen: set[object], *, inner: bool
) -> tuple[Collection[str], list[str], list[str]]:
    """(names in a folder, its folders, links to folders); empty for a folder that was seen. `inner`: whether folders
    are wanted too, which needs another request at a URL."""
    if root.path is None:
        return root.names(inside), root.folders(inside) if inner else [], []
    path = os.path.join(root.path, inside)
    try:
        at = os.stat(path)
        if (at.st_dev, at.st_ino) in seen:
            return [], [], []
        seen.add((at.st_dev, at.st_ino))
        with os.scandir(path) as entries:
            found = list(entries)
    except FileNotFoundError:
        return [], [], []
    except OSError as error:
        raise MaskwrightError(f"cannot be listed: {error.strerror or error}", where=path.rstrip("/")) from None
    folders = [entry for entry in found if inner and _is_folder(entry)]
    of_kind = {link: [entry.name for entry in folders if entry.is_symlink() is link] for link in (False, True)}
    return [entry.name for entry in found], of_kind[False], of_kind[True]


def _status(root: Folder, inside: str) -> bytes | None:
    if root.path is not None:
        return read_local(os.path.join(root.path, inside, STATUS))
    return root.get(f"{inside}/{STATUS}".lstrip("/"))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads back to itself
        return False


def is_there(folder: str) -> bool:
    """Whether a folder exists; a URL is assumed to exist."""
    return storage.is_url(folder) or os.path.isdir(folder)
