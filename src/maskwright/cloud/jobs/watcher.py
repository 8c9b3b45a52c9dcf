"""A watcher polls a job's hosts, decides (`policy.py`) and acts. One watches at a time (`lease.py`).

    watch/lease-000001.json, beat-000001.json     the watcher that holds the lease
    watch/limits.json                             {"submission": 3, "max_usd": 100.0, …}, written at submission
    watch/history.json                            past decisions and their cost; written before each action

These objects lie beside the job in the runs bucket, so a watcher may be killed at any point and another one continues.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Literal, Protocol

from maskwright.cloud.jobs import policy
from maskwright.cloud.jobs.lease import WatcherLease
from maskwright.cloud.jobs.policy import Action, History, Kind, Observation, OnEvent, Rules, WatcherEvent
from maskwright.core import records
from maskwright.core.console import say, warn
from maskwright.core.errors import InputError, Locked, MaskwrightError, StoppedEarly
from maskwright.core.folder import Folder, each
from maskwright.core.secrets import redact
from maskwright.launch.bucket import job_folder
from maskwright.launch.bucket.claims import Pulse
from maskwright.launch.bucket.leader import LOST_SECONDS
from maskwright.launch.target import JobSpec

LOCKED_SECONDS = 30.0
"""Pause between two tries while another command holds the lock on the state."""
MARGIN_SECONDS = 90.0
"""Time for a host to see the stop request and to upload its last logs, besides the job's own grace period."""
DOWN_TRIES = 3
"""Tries with Terraform, whose state may be locked, before the hosts are deleted without it."""
LIMITS, HISTORY = "watch/limits.json", "watch/history.json"


@dataclass(frozen=True)
class MachineState:
    """State of the machines of a slice or group."""

    wanted: int
    placement: int = 0
    exists: bool = False
    names: tuple[str, ...] = ()
    """Machines that bill."""
    stopped: tuple[str, ...] = ()
    """Machines that exist and do not bill."""
    running: int = 0
    creating: bool = False
    trouble: str = ""
    """Google's message about what keeps it from creating machines."""
    refused: str = ""
    """The same, if another try would fail the same way."""


class HostPool(Protocol):
    """The hosts of a job. Methods raise `Locked` while another command changes the environment."""

    def describe(self) -> MachineState: ...

    def has_bucket(self) -> bool: ...

    def rules(self) -> Rules: ...

    def usd_per_hour(self, placement: int) -> float: ...

    def up(self, placement: int) -> None: ...

    def down(self) -> None: ...

    def repair(self) -> bool:
        """Recreate only the lost machines. False if all have to be deleted first."""
        ...

    def force_delete(self) -> None:
        """Like `down`, but without Terraform and its lock, for a budget that is spent."""
        ...


class PermanentRefusal(MaskwrightError):
    """A refusal that retrying does not help."""


@dataclass(frozen=True)
class JobLimits:
    """Limits at which the hosts of a job are deleted."""

    submission: int = 0
    """0: every submission."""
    max_usd: float | None = None
    stop_after_hours: float | None = None
    down_when_done: bool = False
    rates: tuple[float, ...] = ()
    """USD an hour for one host in each placement, by the submitter's price table, which other watchers may lack."""

    def store(self, folder: Folder) -> None:
        folder.put_json(LIMITS, asdict(self))

    def with_defaults(self, other: JobLimits | None) -> JobLimits:
        """These limits, with those that are not set taken from `other`."""
        if other is None:
            return self
        usd = other.max_usd if self.max_usd is None else self.max_usd
        hours = other.stop_after_hours if self.stop_after_hours is None else self.stop_after_hours
        rates = self.rates or tuple(other.rates)
        return JobLimits(other.submission, usd, hours, self.down_when_done or other.down_when_done, rates)

    def rate(self, placement: int) -> float:
        """USD an hour for one host; the highest rate for a placement that was added since."""
        return self.rates[placement] if placement < len(self.rates) else max(self.rates, default=0.0)


def read_limits(folder: Folder, submission: int) -> JobLimits | None:
    """The stored limits; None if there are none of that submission, or they are unreadable."""
    limits = records.read(JobLimits, folder.get(LIMITS))
    if limits is None or limits.submission != submission:
        return None
    amounts = [amount for amount in (limits.max_usd, limits.stop_after_hours, *limits.rates) if amount is not None]
    return limits if all(math.isfinite(amount) and amount >= 0 for amount in amounts) else None


class Watcher:
    """Call `poll` until it returns the action `end`.

    `limits` are this watcher's own and override those of the submission; `known` are the latter, in case they vanish
    from the bucket. `clock` gives Unix seconds, since counts pass from one watcher to the next. Counts are kept in
    memory too, so the budget holds without the bucket.
    """

    def __init__(
        self,
        folder: Folder,
        pool: HostPool,
        limits: JobLimits | None = None,
        *,
        known: JobLimits | None = None,
        clock: Callable[[], float] = time.time,
        on_event: OnEvent = lambda event: None,
    ) -> None:
        self._on_event, self._polls = on_event, 0
        self._folder, self._pool, self._limits, self._clock = folder, pool, limits or JobLimits(), clock
        self._known = known or JobLimits()
        self._last: tuple[Rules, History, float] | None = None
        """Rules and history of the last poll, and USD an hour of a machine. None while another watcher watches."""
        self._lease = WatcherLease(folder)
        self._pulse = Pulse()
        self._last_text, self._failed_deletes = "", 0
        self.hosts_exist = False
        """Whether hosts existed at the last poll."""

    def leave(self) -> None:
        with suppress(MaskwrightError):  # the next watcher then waits for the timeout
            self._lease.leave()
        self._on_event(self._event("leave"))

    def poll(self) -> Action:
        """Observe, decide and act once. Any error is reported and retried at the next poll: a dead watcher enforces no
        budget."""
        self._polls += 1
        try:
            if not self._lease.poll():
                self._last = None
                return self._report(self._poll_as_standby())
            action, history = self._decide()
        except StoppedEarly:
            raise
        except Exception as error:
            return self._report(self._count_unseen(_error_line(error)), warn)
        self._report(action)
        try:
            with self._lease.beating():
                self._act(action, history)
            return action
        except StoppedEarly:
            raise
        except Exception as error:
            return self._report(Action("nothing", f"{_error_line(error)}; trying again"), warn)

    def _poll_as_standby(self) -> Action:
        """Another watcher holds the lease: wait until the job is over, and the hosts are deleted if that is due."""
        spec = job_folder.read_spec(self._folder)
        result = job_folder.read_result(self._folder, spec.submission) if spec else None
        if spec is None or result is None:
            return Action("nothing", f"watched by {self._lease.holder}")
        history = policy.read_history(self._folder.get_json(HISTORY), spec.submission, 0)
        limit = history.why if history.phase in ("stopping", "down") else ""
        deleting = limit or self._limits.with_defaults(self._stored_limits(spec.submission)).down_when_done
        self.hosts_exist = self._pool.describe().exists
        if deleting and self.hosts_exist:
            return Action("nothing", f"{limit or 'the job is over'}: {self._lease.holder} deletes the hosts")
        return Action("end", limit or result.cause, code=result.code)

    def _count_unseen(self, error: str) -> Action:
        """The state cannot be read, or no decision stored. The budget still counts: hosts are taken to exist as last
        observed, and are deleted when it is spent. They get no stop request then, only Google's signal."""
        if self._last is None:
            return Action("nothing", f"{error}; trying again")
        rules, before, rate = self._last
        now = self._clock()
        history = policy.with_cost(before, Observation(0, machines=before.machines), rate, now)
        limit = policy.reached_limit(rules, history)
        if limit and history.phase not in ("stopping", "down"):
            history = replace(history, phase="stopping", since=now, why=limit)
        self._last = (rules, history, rate)
        ending = history.phase in ("stopping", "down")
        if not ending or not before.machines or now - history.since < (rules.save_seconds if limit else 0.0):
            return Action("nothing", f"{error}; trying again")
        try:
            with self._lease.beating():
                self._delete_hosts()
        except Exception as failure:
            return Action("nothing", f"{_error_line(failure)}; trying again to delete the hosts")
        self._last = (rules, replace(history, phase="down", machines=0), rate)
        return Action("down", f"{history.why}; and {error}")

    def _report(self, action: Action, print_line: Callable[[str], object] = say) -> Action:
        text = f"hosts: {action.why}" + (f" ({action.kind})" if action.kind not in ("nothing", "wait") else "")
        if action.kind == "wait":
            text += f"; next try at {time.strftime('%H:%M:%S', time.localtime(action.until))}"
        if text != self._last_text and action.why:
            print_line(text)
        if text != self._last_text:
            over = action.kind in ("end", "conclude", "give up")
            until = action.until if action.kind == "wait" else None
            self._on_event(self._event(action.kind, action.why, until, action.code if over else None))
        self._last_text = text
        return action

    def _event(
        self,
        action: Kind | Literal["leave"],
        why: str = "",
        next_try: float | None = None,
        exit_code: int | None = None,
    ) -> WatcherEvent:
        event = WatcherEvent(self._clock(), action, redact(why), next_try, exit_code, self.hosts_exist, self._polls)
        if self._last is None:
            return event
        history = self._last[1]
        counts = {name: getattr(history, name) for name in ("submission", "placement", "machines", "hours", "usd")}
        return replace(event, **counts)

    # ---- observing -----------------------------------------------------------------------------------------------

    def _decide(self) -> tuple[Action, History]:
        now = self._clock()
        spec = job_folder.read_spec(self._folder)
        machines = self._pool.describe()
        self.hosts_exist = machines.exists
        seen = self._observe(spec, machines)
        limits = self._limits.with_defaults(self._stored_limits(seen.submission))
        rules = replace(
            self._pool.rules(),
            save_seconds=(spec.grace_seconds if spec else 0.0) + MARGIN_SECONDS,
            max_usd=limits.max_usd,
            stop_after_hours=limits.stop_after_hours,
            down_when_done=limits.down_when_done,
        )
        rate = limits.rate(seen.placement)
        before = policy.with_cost(self._history(seen.submission, seen.placement), seen, rate, now)
        self._last = (rules, before, rate)
        action, after = policy.decide(rules, seen, before, now)
        self._store(after)
        return action, after

    def _stored_limits(self, submission: int) -> JobLimits:
        """Limits of the submission; the last known ones if they cannot be read."""
        if self._known.submission != submission:
            self._known = JobLimits(submission)
        stored = read_limits(self._folder, submission)
        self._known = self._known if stored is None else stored.with_defaults(self._known)
        return self._known

    def _history(self, submission: int, placement: int) -> History:
        """This watcher's own counts override those in the bucket, which others can write."""
        if self._last is not None and self._last[1].submission == submission:
            return self._last[1]
        return policy.read_history(self._folder.get_json(HISTORY), submission, placement)

    def _observe(self, spec: JobSpec | None, machines: MachineState) -> Observation:
        result = job_folder.read_result(self._folder, spec.submission) if spec else None
        notes = each(lambda name: self._folder.head(job_folder.idle_name(name), 1), machines.stopped)
        return Observation(
            wanted=machines.wanted,
            exists=machines.exists,
            machines=len(machines.names),
            running=machines.running,
            live_agents=self._live_agents(machines.wanted),
            creating=machines.creating,
            stopped=len(machines.stopped),
            idle=sum(note is not None for note in notes),
            trouble=machines.trouble,
            refused=self._refusal(machines),
            placement=machines.placement,
            job="none" if spec is None else "going" if result is None else "over",
            submission=spec.submission if spec else 0,
            code=result.code if result else None,
            cause=result.cause if result else "",
            stop_requested=spec is not None and job_folder.is_asked(self._folder, spec.submission),
        )

    def _live_agents(self, wanted: int) -> int:
        """Number of hosts whose agents are alive."""
        beats = job_folder.read_beats(self._folder, wanted)
        still = [self._pulse.still(index, beat) for index, beat in enumerate(beats)]
        return sum(
            beat is not None and not beat.gone and still[index] < LOST_SECONDS and self._pulse.has_moved(index)
            for index, beat in enumerate(beats)
        )

    def _refusal(self, machines: MachineState) -> str:
        """A failure that a new host would repeat; empty if there is none."""
        if machines.refused:
            return machines.refused
        names = (*machines.names, *machines.stopped)
        reports = each(lambda name: job_folder.read_health(self._folder, name), names)
        for name, health in zip(names, reports, strict=True):
            # A host restarts an agent that ended, until it gives up.
            if health and not health.ok and (health.final or name in machines.stopped):
                return f"{name}: {health.step}: {health.what}"
        return ""

    # ---- acting --------------------------------------------------------------------------------------------------

    def _act(self, action: Action, history: History) -> None:
        if action.kind == "ask":
            if not job_folder.is_asked(self._folder, history.submission):
                self._folder.put_json("stop.json", {"submission": history.submission})
        elif action.kind == "make":
            self._create_hosts(action, history)
        elif action.kind == "down":
            self._delete_hosts()
        elif action.kind in ("conclude", "give up"):
            self._conclude(action, history)

    def _delete_hosts(self) -> None:
        try:
            self._pool.down()
            self._failed_deletes = 0
        except StoppedEarly:
            raise
        except Exception as error:
            self._failed_deletes += 1
            if self._failed_deletes < DOWN_TRIES:
                raise
            warn(f"{_error_line(error)}; deleting the hosts without Terraform; its next plan finds them gone")
            self._pool.force_delete()

    def _create_hosts(self, action: Action, history: History) -> None:
        """Create the hosts. Existing ones are deleted first: never two placements at once, and a slice of several hosts
        can only be created whole."""
        try:
            machines = self._pool.describe()
            for name in (*machines.names, *machines.stopped):  # the next host of that name is a new one
                self._folder.remove(f"reports/health/{name}.json")
                self._folder.remove(job_folder.idle_name(name))
            in_place = machines.exists and machines.placement == action.placement and not machines.trouble
            if in_place and self._pool.repair():
                return
            if machines.exists:
                self._pool.down()
            self._pool.up(action.placement)
        except Locked as error:
            until = self._clock() + LOCKED_SECONDS
            self._store(replace(history, phase="broken", wait_until=until, why=str(error)))
            raise
        except (PermanentRefusal, InputError) as error:
            self._conclude(Action("give up", str(error), code=error.exit_code), history)
            raise
        except MaskwrightError as error:
            # Not counted here: the next poll finds nothing being created, and counts it.
            self._store(replace(history, why=str(error)))
            raise

    def _store(self, history: History) -> None:
        self._folder.put_json(HISTORY, history.to_json())
        if self._last is not None:
            self._last = (self._last[0], history, self._last[2])

    def _conclude(self, action: Action, history: History) -> None:
        """Record the result instead of host 0's agent, which is gone or never started."""
        if history.submission:
            job_folder.put_result(self._folder, history.submission, job_folder.JobResult(action.code, action.why))


def _error_line(error: Exception) -> str:
    return str(error) if isinstance(error, MaskwrightError) else f"{type(error).__name__}: {redact(str(error))[:300]}"
