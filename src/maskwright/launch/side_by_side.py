"""Fine-tunings as jobs of a cluster, so many at a time: what `core.child.run_side_by_side` does with processes.

The jobs belong to the cluster. Whoever waits for them here may leave, and come back with the same command: a run that a
job still trains gets no second one.
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
"""The code of a job that its cluster does not know any more: the run's folder says how far it came."""


class Cluster(Place, Protocol):
    """A place whose jobs go on without the command that began them. `of_one_job` names the options that cannot be the
    same for many."""

    of_one_job: ClassVar[frozenset[str]]

    def begin(self, command: Training, log: str) -> str:
        """Submits it, with `log` for what it prints. Returns the job."""
        ...

    def live(self, runs: Sequence[str]) -> dict[str, str]:
        """By run directory, the job that trains it or is to train it."""
        ...

    def ended(self, job: str, log: str) -> int | None:
        """Exit code of a job that is live no more; None if it is. What `log` lacks is added there."""
        ...

    def ending(self, jobs: Iterable[str]) -> str:
        """The command for a person who wants to end them."""
        ...


def run_side_by_side(
    place: Cluster, commands: Sequence[FinetuneCommand], at_once: int
) -> Generator[tuple[int, int], None, None]:
    """Yields (place in `commands`, exit code) as they end. Closing the iterator leaves the jobs to their cluster.

    Raises `MaskwrightError` where the cluster cannot be asked at first; later it is waited for."""
    trainings = [Training(one.config, one.run, one.overrides, verb="finetune") for one in commands]
    runs, jobs = [one.run for one in commands], dict[int, str]()
    for training in trainings:
        require_clean(place, training)

    def look() -> list[tuple[int, int]] | None:
        live = set(place.live(runs).values())
        codes = [(number, place.ended(job, commands[number].log)) for number, job in jobs.items() if job not in live]
        return [(number, code) for number, code in codes if code is not None] or None

    try:
        if runs and (live := place.live(runs)):
            jobs = {number: live[run] for number, run in enumerate(runs) if run in live}
            say(f"waiting for the jobs of {len(jobs)} of these runs, which were submitted before")
        waiting = [number for number in range(len(runs)) if number not in jobs]
        for number in [one for one in waiting if os.path.exists(commands[one].results)]:
            waiting.remove(number)  # its job was done between the caller's look at the results and ours at the jobs
            yield number, 0
        while waiting or jobs:
            while waiting and len(jobs) < at_once:
                number = waiting.pop(0)
                with signals_wait():
                    jobs[number] = place.begin(trainings[number], commands[number].log)
            for number, code in until_over(look, "the comparison", POLL_SECONDS):
                del jobs[number]
                yield number, code
    finally:
        if jobs:
            ending = place.ending(jobs.values())
            say(f"the jobs go on: the same command waits for them, and `{ending}` ends them")
