"""Runs a phase over all unfinished parts; raises the first error in the order of reading."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from maskwright.core import errors, storage
from maskwright.core.errors import InputError
from maskwright.processes.runner import Runner
from maskwright.text.parts.columns import Columns, Note

FAULT = "fault"
Task = tuple[Any, str]
"""(part, path of its result file)"""


def compute(
    runner: Runner, work: Callable[[Task], Note], tasks: Sequence[Task], title: str, sizes: Sequence[int]
) -> list[Note]:
    """The notes of all parts, in order. `work` writes its task's file (`columns.written`) and returns its note; an
    existing file is not computed again.

    For an error in the input, `work` returns `fault_note`. Then the parts before it are still computed, and the first
    error in the order of reading is raised, as on one machine."""
    notes: dict[int, Note] = {}
    for idx, (_, path) in enumerate(tasks):
        if os.path.exists(path):
            notes[idx] = Columns(path).note
    missing = [idx for idx in range(len(tasks)) if idx not in notes]
    faults: dict[int, Note] = {}
    unfinished = set(missing)
    running = runner.run(work, [tasks[idx] for idx in missing], title, [sizes[idx] for idx in missing])
    try:
        for index, note in running if missing else ():
            idx = missing[index]
            unfinished.discard(idx)
            (faults if FAULT in note else notes)[idx] = note
            if faults and min(faults) < min(unfinished, default=len(tasks)):
                break
    finally:
        running.close()
    if faults:
        name, what, where, fix = faults[min(faults)][FAULT]
        kind: type[InputError] = getattr(errors, name)
        raise kind(what, where=where, fix=fix)
    return [notes[idx] for idx in range(len(tasks))]


def fault_note(error: InputError) -> Note:
    return {FAULT: [type(error).__name__, error.what, error.where, error.fix]}


def is_result(name: str) -> bool:
    """Whether `name` is of a phase's result file, or of a file that belongs to one and whose name goes on behind it, a
    whole one or one that a killed worker left."""
    more = r"(\.[a-z]+-\d+\.[a-z]+\.u\d+)?(\.tmp-\d+)?"
    return re.fullmatch(rf"[a-z]+(-[a-z0-9]+)*-\d{{6,}}-[0-9a-f]{{20}}{more}", name) is not None


def paths_of(folder: str, phase: str, digests: Sequence[str]) -> list[str]:
    """The result file of each part in a phase. `digests`: of all that decides each, in 20 hexadecimal digits. Other
    results of the phase are deleted, and unfinished ones of all phases; nothing else in the folder is."""
    names = [f"{phase}-{number:06}-{digest}" for number, digest in enumerate(digests)]
    wanted = {*names}
    for name in os.listdir(folder):
        is_other = name.startswith(f"{phase}-") and name.partition(".")[0] not in wanted
        if is_result(name) and (is_other or storage.is_temporary(name)):
            os.unlink(os.path.join(folder, name))
    return [os.path.join(folder, name) for name in names]
