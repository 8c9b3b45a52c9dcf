"""Runs a phase over all unfinished parts, together with other commands that do the same; raises the first error in
reading order."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from maskwright.core import errors, storage
from maskwright.core.console import Progress, progress, say, several
from maskwright.core.errors import InputError
from maskwright.processes.claims import others_in
from maskwright.processes.runner import Runner
from maskwright.text.parts.columns import Columns, Note

FAULT = "fault"
Task = tuple[Any, str]
"""(part, path of its result file)"""


def compute(
    runner: Runner, work: Callable[[Task], Note], tasks: Sequence[Task], title: str, sizes: Sequence[int]
) -> list[Note]:
    """The notes of all parts, in order. `work` writes its task's file (`columns.written`) and returns its note; an
    existing file is not computed again, and a file that another command is computing is waited for.

    After an `InputError` of `work`, the parts before it are still computed, and the first error in the order of reading
    is raised, as by one process."""
    phase = _Phase(runner, tasks)
    sizes_left = {idx: sizes[idx] for idx in phase.left}
    with progress(title, sum(sizes_left.values()), "bytes") as bar:
        claimed = phase.claimed(title, sizes_left, bar)
        try:
            with closing(runner.run(_Noting(work), claimed, sizes_left, bar)) as running:
                for idx, note in running:
                    phase.add(idx, note)
                    if phase.faults and phase.faults.keys() | phase.notes.keys() >= {*range(min(phase.faults))}:
                        break
        finally:
            phase.give_back()
    if phase.faults:
        name, what, where, fix = phase.faults[min(phase.faults)][FAULT]
        kind: type[InputError] = getattr(errors, name)
        raise kind(what, where=where, fix=fix)
    return [phase.notes[idx] for idx in range(len(tasks))]


class _Phase:
    """The state of a phase."""

    def __init__(self, runner: Runner, tasks: Sequence[Task]) -> None:
        self._claims, self._tasks = runner.claims, tasks
        self.faults: dict[int, Note] = {}
        self.notes: dict[int, Note] = {}
        self.left: dict[int, None] = {}
        """Parts that are neither finished nor claimed by this process."""
        for idx, (_, path) in enumerate(tasks):
            if os.path.exists(path):
                self.notes[idx] = Columns(path).note
            else:
                self.left[idx] = None

    def add(self, idx: int, note: Note) -> None:
        (self.faults if FAULT in note else self.notes)[idx] = note
        if self._claims:
            self._claims.give_back(os.path.basename(self._tasks[idx][1]))

    def give_back(self) -> None:
        """Gives back claims that were not computed."""
        for _, path in self._tasks:
            if self._claims:
                self._claims.give_back(os.path.basename(path))

    def claimed(self, title: str, sizes: dict[int, int], bar: Progress) -> Iterator[tuple[int, Task] | None]:
        """Parts to compute; None while other processes compute all the rest."""
        is_said = False
        while self.left:
            taken = 0
            for idx in [*self.left]:
                if self.faults and idx > min(self.faults):
                    del self.left[idx]
                elif self._take(idx):
                    taken += 1
                    yield idx, self._tasks[idx]
                elif idx in self.notes:
                    bar.advance(sizes[idx])
            if self._claims and self.left and not taken:
                if not is_said:
                    say(f"{title}: waiting for {several(len(self.left), 'part')} that other processes compute")
                    is_said = True
                yield None
                self._claims.free_dead()

    def _take(self, idx: int) -> bool:
        """Claims a part, or notes the result of another process. In both cases it is no longer left."""
        path = self._tasks[idx][1]
        name = os.path.basename(path)
        is_claimed = self._claims is None or self._claims.take(name)
        if is_done := self._claims is not None and os.path.exists(path):
            self.notes[idx] = Columns(path).note
            if is_claimed:
                self._claims.give_back(name)
        if is_claimed or is_done:
            del self.left[idx]
        return is_claimed and not is_done


@dataclass(frozen=True)
class _Noting:
    """`work`, with a note in place of an error in the input."""

    work: Callable[[Task], Note]

    def __call__(self, task: Task) -> Note:
        try:
            return self.work(task)
        except InputError as error:
            return {FAULT: [type(error).__name__, error.what, error.where, error.fix]}


def is_result(name: str) -> bool:
    """Whether `name` belongs to a phase's result file, or to a file whose name continues a result's, whole or left by a
    killed worker."""
    more = r"(\.[a-z]+-\d+\.[a-z]+\.u\d+)?(\.tmp-\d+)?"
    return re.fullmatch(rf"[a-z]+(-[a-z0-9]+)*-\d{{6,}}-[0-9a-f]{{20}}{more}", name) is not None


def paths_of(folder: str, phase: str, digests: Sequence[str]) -> list[str]:
    """The result file of each part in a phase. `digests`: of everything that decides each, in 20 hexadecimal digits.
    Unless another command computes in the folder, deletes other results of the phase, and unfinished files of all
    phases, but nothing else."""
    names = [f"{phase}-{number:06}-{digest}" for number, digest in enumerate(digests)]
    wanted, there = {*names}, os.listdir(folder)
    for name in () if others_in(there) else there:
        is_other = name.startswith(f"{phase}-") and name.partition(".")[0] not in wanted
        if is_result(name) and (is_other or storage.is_temporary(name)):
            os.unlink(os.path.join(folder, name))
    return [os.path.join(folder, name) for name in names]
