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

MARKS = frozenset({"config.resolved.json", "lease.json"})
"""One of them lies in a run directory from its first second on. Names such as log.txt lie in other folders too."""
STATUS = "status.json"
"""Other programs write such a file too, so its content decides."""
DEEPEST, DEEPEST_URL = 6, 4
"""Levels of folders searched below a folder. At a URL each folder is a request."""
MOST_FOLDERS = 20_000
"""Folders searched on this machine: a home folder has many, and this number takes a second."""
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
        below = _local(root.path, runs, seen) if root.path is not None else _far(root, runs)
        for location, inside in below:
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


def _local(root: str, runs: FoundRuns, seen: set[object]) -> Iterator[tuple[str, str]]:
    """Yields (path, path below `root`) on this machine. Links are followed last, and each folder is searched once: a
    circle ends, and a run is named by its real place."""
    waiting, links, looked_into = [("", 0)], list[tuple[str, int]](), 0
    while waiting or links:
        inside, depth = (waiting or links).pop()
        path = os.path.join(root, inside) if inside else root
        try:
            at = os.stat(path)
            if (at.st_dev, at.st_ino) in seen:
                continue
            seen.add((at.st_dev, at.st_ino))
            with os.scandir(path) as entries:
                inner = list(entries)
        except FileNotFoundError:
            continue
        except OSError as error:
            runs.problems.append(f"{path}: cannot be listed: {error.strerror or error}")
            continue
        if is_a_run({entry.name for entry in inner}, partial(read_local, os.path.join(path, STATUS))):
            yield path, inside
            continue
        looked_into += 1
        if looked_into > MOST_FOLDERS:
            most = f"only the first {MOST_FOLDERS:,} folders below are looked into; name the one with the runs"
            runs.problems.append(f"{root}: {most}")
            return
        if depth < DEEPEST:
            folders = [entry for entry in inner if _is_worth_it(entry.name) and _is_folder(entry)]
            for entry in sorted(folders, key=lambda entry: entry.name, reverse=True):
                (links if entry.is_symlink() else waiting).append((os.path.join(inside, entry.name), depth + 1))


def _far(root: Folder, runs: FoundRuns) -> Iterator[tuple[str, str]]:
    """Yields (URL, path below `root`) at a URL."""
    waiting, looked_into = [("", 0)], 0
    while waiting:
        inside, depth = waiting.pop()
        try:
            names, folders = root.names(inside), root.folders(inside) if depth < DEEPEST_URL else []
            is_run = is_a_run(names, partial(root.get, f"{inside}/{STATUS}".lstrip("/")))
        except StoppedEarly:  # a signal's
            raise
        except MaskwrightError as error:
            runs.problems.append(str(error))
            continue
        if is_run:
            yield f"{root.location}/{inside}".rstrip("/"), inside
            continue
        looked_into += 1
        if looked_into > MOST_FOLDERS_URL:
            most = f"only the first {MOST_FOLDERS_URL:,} folders below are looked into; name the one with the runs"
            runs.problems.append(f"{redact(root.location)}: {most}")
            return
        worth = [name for name in sorted(folders, reverse=True) if _is_worth_it(name)]
        waiting += [(f"{inside}/{name}".lstrip("/"), depth + 1) for name in worth]


def _is_worth_it(name: str) -> bool:
    return not name.startswith(".") and name not in PASSED_OVER


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads back to itself
        return False


def is_there(folder: str) -> bool:
    """Whether a folder exists; a URL is not asked and counts as existing."""
    return storage.is_url(folder) or os.path.isdir(folder)
