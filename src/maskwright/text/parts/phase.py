"""One phase of a long work: all parts are computed, each once, and the first fault in the order of reading is told."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from maskwright.core import errors, storage
from maskwright.core.errors import InputError
from maskwright.core.runner import Runner
from maskwright.text.parts.columns import Columns, Note

FAULT = "fault"
Task = tuple[Any, str]
"""A part, and the path of the file that holds what is found out about it."""


def compute(
    runner: Runner, work: Callable[[Task], Note], tasks: Sequence[Task], title: str, sizes: Sequence[int]
) -> list[Note]:
    """The notes of all parts, in their order. `work` writes the file of its task (`columns.written`) and returns the
    note in it; what is there already is not computed again. For a fault in the input it returns `fault_note`: then the
    parts before are still computed, and the fault that comes first in the order of reading is raised, as one machine
    would."""
    notes: dict[int, Note] = {}
    for number, (_, path) in enumerate(tasks):
        if os.path.exists(path):
            notes[number] = Columns(path).note
    left = [number for number in range(len(tasks)) if number not in notes]
    faults: dict[int, Note] = {}
    waited = set(left)
    running = runner.run(work, [tasks[number] for number in left], title, [sizes[number] for number in left])
    try:
        for place, note in running if left else ():
            number = left[place]
            waited.discard(number)
            (faults if FAULT in note else notes)[number] = note
            if faults and min(faults) < min(waited, default=len(tasks)):
                break
    finally:
        running.close()
    if faults:
        raise _error(faults[min(faults)][FAULT])
    return [notes[number] for number in range(len(tasks))]


def fault_note(error: InputError) -> Note:
    return {FAULT: [type(error).__name__, error.what, error.where, error.fix]}


def _error(fault: list[str]) -> InputError:
    name, what, where, fix = fault
    kind: type[InputError] = getattr(errors, name)
    return kind(what, where=where, fix=fix)


def paths_of(folder: str, phase: str, digests: Sequence[str]) -> list[str]:
    """The file of each part in a phase. `digests`: of what decides its content. Files of other text or options, which
    have other digests, are deleted."""
    names = [f"{phase}-{number:06}-{digest}" for number, digest in enumerate(digests)]
    for name in {*os.listdir(folder)} - {*names}:
        if storage.is_temporary(name) or name.startswith(f"{phase}-"):
            os.unlink(os.path.join(folder, name))
    return [os.path.join(folder, name) for name in names]
