"""Fine-tunings as jobs of a cluster, several at a time: as `processes.child.run_side_by_side` does with processes.

The jobs belong to the cluster. The command that waits for them may end and be started again: a run that a job still
trains gets no second job.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Sequence
from typing import ClassVar, Protocol

from maskwright.core.console import say
from maskwright.core.errors import StoppedEarly
from maskwright.launch.follow import until_over
from maskwright.launch.target import Place, Training, require_clean
from maskwright.processes.child import FinetuneCommand, signals_wait

POLL_SECONDS = 5.0
GONE = StoppedEarly.exit_code
"""The code of a job that its cluster has lost, or does not know any more: the run's folder shows how far it came. A job
that somebody ended has 76 (`EndedAsAsked`)."""


class Cluster(Place, Protocol):
    """A place whose jobs go on without the command that submitted them. `of_one_job` names the options that jobs cannot
    share."""

    of_one_job: ClassVar[frozenset[str]]

    def begin(self, command: Training, log: str) -> str:
        """Submits a job, with `log` for its output. Returns its name."""
        ...

    def live(self, runs: Sequence[str]) -> dict[str, str]:
        """The jobs that train `runs` or will, by run directory."""
        ...

    def ended(self, job: str, log: str) -> int | None:
        """Exit code of a job that has ended, None if it has not. Appends to `log` what is missing there."""
        ...

    def ending(self, jobs: Iterable[str]) -> str:
        """The command with which a user ends jobs."""
        ...


def run_side_by_side(
    place: Cluster, commands: Sequence[FinetuneCommand], at_once: int
) -> Generator[tuple[int, int], None, None]:
    """Yields (index in `commands`, exit code) as jobs end. Closing the iterator leaves the jobs to their cluster.

    Raises `MaskwrightError` if the cluster does not answer at first; later it is polled again after a
    `CloudError` that may pass (`follow.TRANSIENT`)."""
    trainings = [Training(command.config, command.run, command.overrides, verb="finetune") for command in commands]
    runs, jobs = [command.run for command in commands], dict[int, str]()
    for training in trainings:
        require_clean(place, training)

    def poll() -> list[tuple[int, int]] | None:
        live = set(place.live(runs).values())
        codes = [(number, place.ended(job, commands[number].log)) for number, job in jobs.items() if job not in live]
        return [(number, code) for number, code in codes if code is not None] or None

    try:
        if runs and (live := place.live(runs)):
            jobs = {number: live[run] for number, run in enumerate(runs) if run in live}
            say(f"waiting for the jobs of {len(jobs)} of these runs, which were submitted before")
        waiting = [number for number in range(len(runs)) if number not in jobs]
        for number in [number for number in waiting if os.path.exists(commands[number].results)]:
            waiting.remove(number)  # its job ended after the caller had read the results
            yield number, 0
        while waiting or jobs:
            while waiting and len(jobs) < at_once:
                number = waiting.pop(0)
                with signals_wait():
                    jobs[number] = place.begin(trainings[number], commands[number].log)
            for number, code in until_over(poll, "the comparison", POLL_SECONDS):
                del jobs[number]
                yield number, code
    finally:
        if jobs:
            ending = place.ending(jobs.values())
            say(f"the jobs go on: the same command waits for them, and `{ending}` ends them")
