"""How hosts that ran the same command ended, and what that means for the job.

On a slice one host's end is every host's end: the others lose their partner in the next collective operation and end
with 75, are killed (SIGABRT, by JAX's coordination service), are ended by the launcher, or fail in some other way. So
the job's exit code is that of the first host in time that ended badly of its own accord with something else than 75;
all that came later may be its consequence. A few moments are no order of time: in them an error goes before a kill.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import time as clock

from maskwright.core.errors import JobError, StoppedEarly, StopReason
from maskwright.processes.parent import WISHES

EARLY = StoppedEarly.exit_code
MOMENTS_SECONDS = 2.0
"""Ends so close have no order: the others abort within milliseconds of one host's error, and each end is seen some
0.1 s late (`tail` in `hosts/script.py`), or more over a slow network. Of two so close, an error says more than a
kill."""


@dataclass(frozen=True)
class End:
    """How one host's command ended."""

    host: int
    code: int | None
    """None when the host was lost, so that nobody knows."""
    told: bool = False
    """Whether the launcher ended it."""
    reason: StopReason = ""
    """The command's own, with a 75."""
    why: str = ""
    """What is known besides `tail`."""
    tail: tuple[str, ...] = ()
    """The last lines of its output."""
    time: float = field(default_factory=clock, compare=False)
    """Unix seconds at which the end was seen."""

    @property
    def killed(self) -> bool:
        return self.code is not None and 128 < self.code < 128 + signal.NSIG

    @property
    def failed(self) -> bool:
        """Whether its code says that trying again gives the same."""
        return self.code not in (None, 0, EARLY) and not self.killed

    def describe(self, who: str = "host") -> str:
        if self.code is None:
            words = "lost"
        elif self.killed:
            words = f"killed by {_signal(self.code - 128)}"
        else:
            words = {0: "done", EARLY: f"exit {EARLY}, stopped early"}.get(self.code, f"exit {self.code}")
        return f"{who} {self.host}: {words}{', told to end' if self.told else ''}" + (
            f" ({self.why})" if self.why else ""
        )


@dataclass(frozen=True)
class JobOutcome:
    """What the ends of all hosts mean for the job."""

    code: int
    """The job's exit code when it is not begun again."""
    restart: bool
    cause: End | None
    """The host to look at first."""
    reason: StopReason = "lost"
    """Goes with a 75."""


def judge(ends: Sequence[End], hosts: int, *, asked: bool = False) -> JobOutcome:
    """`ends` in the order in which they came, one for each of the hosts that got so far. `asked`: the user ended the
    job."""
    done = len(ends) == hosts and all(end.code == 0 for end in ends)
    if asked:
        # The request that ended the run may be what made the scheduler send its signal: srun ends all nodes after one.
        reason: StopReason = next((end.reason for end in ends if end.reason in WISHES), "signal")
        cause = next((end for end in ends if end.failed), None)
        return JobOutcome(_code(cause) if cause else 0 if done else EARLY, False, cause, reason)
    own = [end for end in ends if not end.told]
    cause = next((end for end in own if end.code not in (0, EARLY)), None)
    if cause is not None and not cause.failed:
        since = cause.time
        cause = next((end for end in own if end.failed and end.time - since <= MOMENTS_SECONDS), cause)
    if cause is not None:
        return JobOutcome(_code(cause), not cause.failed, cause)
    early = [end for end in own if end.code == EARLY] or [end for end in ends if end.code != 0]
    if not early:
        return JobOutcome(0 if done else EARLY, not done, None)
    wished = next((end for end in early if end.reason in WISHES), None)
    silent = next((end for end in ends if end.code is None), None)  # told to end, and did not answer: died before
    first = wished or silent or early[0]
    return JobOutcome(EARLY, wished is None, first, first.reason)


def report(ends: Sequence[End], verdict: JobOutcome) -> list[str]:
    """The last lines of the host to look at, then a line for each other host."""
    first = verdict.cause
    lines = []
    if first is not None:
        lines = [f"first: {first.describe()}", *(f"host {first.host} | {line}" for line in first.tail)]
    return lines + [end.describe() for end in sorted(ends, key=lambda end: end.host) if end is not first]


def conclude(code: int, cause: str, where: str, reason: StopReason = "") -> None:
    """Returns when the job is done; raises what gives the process the job's exit code."""
    if code == EARLY:
        raise StoppedEarly("the same command continues the run", reason=reason, where=where)
    if code:
        raise JobError(f"the job failed: {cause or f'exit {code}'}", code, where=where)


def _code(end: End) -> int:
    """A lost host leaves a run that can be continued; one whose process is killed every time has failed."""
    if end.code is None:
        return EARLY
    return 1 if end.killed else end.code


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
