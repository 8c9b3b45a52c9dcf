"""How the hosts of a job ended, and the consequence for the job.

On a slice, the end of one host ends all: the others lose their partner in the next collective operation and end with
75, are killed (SIGABRT, by JAX's coordination service), are ended by the launcher, or fail in some other way. So the
job ends with the code of the first host that failed by itself with a code other than 75; later failures may be its
consequences. Ends within two seconds count as simultaneous; of those, an error outranks a kill. Without an error, one
host's 76 ends the job, since somebody asked for it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import time as clock

from maskwright.core.errors import EndedAsAsked, JobError, StoppedEarly, stopped

EARLY, ASKED = StoppedEarly.exit_code, EndedAsAsked.exit_code
NO_COMMAND = "use an image with maskwright in it: `maskwright image` builds one"
MOMENTS_SECONDS = 2.0
"""Ends within this time count as simultaneous: other hosts abort within milliseconds of one host's error, and each end
is seen 0.1 s late (`tail` in `hosts/script.py`), or more over a slow network."""


@dataclass(frozen=True)
class End:
    """How one host's command ended."""

    host: int
    code: int | None
    """None if the host was lost."""
    told: bool = False
    """Whether the launcher ended it."""
    why: str = ""
    """An explanation beyond `tail`."""
    tail: tuple[str, ...] = ()
    """The last lines of the command's output."""
    time: float = field(default_factory=clock, compare=False)
    """Unix seconds at which the end was seen."""

    @property
    def killed(self) -> bool:
        return killed_by(self.code) is not None

    @property
    def failed(self) -> bool:
        """Whether its code means that a restart would end in the same way."""
        return self.code not in (None, 0, EARLY, ASKED) and not self.killed

    def describe(self, member: str = "host") -> str:
        if self.code is None:
            words = "lost"
        elif (name := killed_by(self.code)) is not None:
            words = f"killed by {name}"
        else:
            known = {0: "done", EARLY: f"exit {EARLY}, interrupted", ASKED: f"exit {ASKED}, ended as asked"}
            words = known.get(self.code, f"exit {self.code}")
        return f"{member} {self.host}: {words}{', asked to end' if self.told else ''}" + (
            f" ({self.why})" if self.why else ""
        )


@dataclass(frozen=True)
class JobOutcome:
    """The consequence of the ends of all hosts for the job."""

    code: int
    """The job's exit code, if it is not restarted."""
    restart: bool
    cause: End | None
    """The host to look at first."""


def judge(ends: Sequence[End], hosts: int, *, asked: bool = False) -> JobOutcome:
    """`ends`: of the hosts that have ended, in the order of time. `asked`: whether the user ended the job."""
    done = len(ends) == hosts and all(end.code == 0 for end in ends)
    final = next((end for end in ends if end.code == ASKED), None)
    if asked:
        cause = next((end for end in ends if end.failed), None)
        return JobOutcome(_code(cause) if cause else ASKED if final else 0 if done else EARLY, False, cause)
    by_itself = [end for end in ends if not end.told]
    cause = next((end for end in by_itself if end.code not in (0, EARLY, ASKED)), None)
    if cause is not None and not cause.failed:
        since = cause.time
        cause = next((end for end in by_itself if end.failed and end.time - since <= MOMENTS_SECONDS), cause)
    if cause is not None and (cause.failed or final is None):
        return JobOutcome(_code(cause), not cause.failed, cause)
    if final is not None:
        return JobOutcome(ASKED, False, final)
    early = [end for end in by_itself if end.code == EARLY] or [end for end in ends if end.code != 0]
    if not early:
        return JobOutcome(0 if done else EARLY, not done, None)
    silent = next((end for end in ends if end.code is None), None)  # it had died before the request to stop
    return JobOutcome(EARLY, True, silent or early[0])


def report(ends: Sequence[End], verdict: JobOutcome) -> list[str]:
    """The last lines of the host to look at, then a line for each other host."""
    first = verdict.cause
    lines = []
    if first is not None:
        lines = [f"first: {first.describe()}", *(f"host {first.host} | {line}" for line in first.tail)]
    return lines + [end.describe() for end in sorted(ends, key=lambda end: end.host) if end is not first]


def cause_of(codes: Iterable[int]) -> int | None:
    """The exit code of a job whose machines ended with these, in the order of time: the first error's; else 76, a
    kill's, 75 or 0. None without codes."""

    def rank(code: int) -> int:
        if End(0, code).failed:
            return 0
        return 1 if code == ASKED else 2 if killed_by(code) else 3 if code == EARLY else 4

    return min(codes, key=rank, default=None)


def conclude(code: int, cause: str, where: str) -> None:
    """Returns if the job is done; else raises the error that gives this process the job's exit code."""
    if kind := stopped(code):
        how = "stopped as asked" if kind is EndedAsAsked else "interrupted"
        raise kind(f"{how}; the same command continues the run", where=where)
    if code:
        raise JobError(f"the job failed: {cause or f'exit {code}'}", code, where=where)


def conclude_elsewhere(code: int, why: str, where: str, absent: str = NO_COMMAND) -> None:
    """`conclude` for a job whose command a service started and whose code it gives as a shell does. `absent`: the fix
    if there was no such command."""
    if code in (126, 127):
        raise JobError(f"there is no such command: {why or 'maskwright is not installed'}", 1, where=where, fix=absent)
    if name := killed_by(code):
        again = "the same command continues the run"
        raise JobError(f"it was killed by {name}{f': {why}' if why else ''}; {again}", 1, where=where)
    conclude(code, why, where)


def _code(end: End) -> int:
    """The job's exit code if this end is its cause: a run can continue after a lost host, but not always after a
    kill."""
    if end.code is None:
        return EARLY
    return 1 if end.killed else end.code


def killed_by(code: int | None) -> str | None:
    """Name of the signal that ended a process, by its exit code as a shell (128 + number) or Python (-number) gives it;
    None if no signal did."""
    number = 0 if code is None else max(-code, code - 128)
    if not 0 < number < signal.NSIG:
        return None
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
