"""Decide what to do about the hosts of a job, from one observation of them: a pure function, without clock or network.

    hosts are up, and the job runs                      nothing
    hosts lost, and Google restarts them by itself      wait for as long as that takes
    hosts preempted, or not restarted                   the same placement again, then the next one
    no machines available (stockout, quota)             the same placement a second time, then the next one
    all placements tried                                start over, with longer waits
    a host refuses (boot error, health)                 give up: a new host would fail the same way
    all hosts run, and no agent reports                 give up and delete the hosts: nothing else would stop them
    hosts powered off idle, and a job was submitted     create them again at once
    stop requested, and hosts are missing               create none; the job is over
    budget reached                                      request that the job saves, then delete the hosts
    the job is over                                     end; delete the hosts if that was requested

`History` is stored in the bucket before each action, so a watcher may be killed at any point: the next one reads it and
continues with the same budget and waits.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from maskwright.core.console import several

FORMAT = 1
EARLY = 75
AGAIN = "the same submit continues the run, and counts anew"
Kind = Literal["nothing", "wait", "make", "ask", "down", "conclude", "end", "give up"]
Phase = Literal["rest", "making", "up", "repairing", "broken", "late", "stopping", "down"]


@dataclass(frozen=True)
class Rules:
    """Limits and waits. A wait is `base_seconds` x `factor` ^ n, at most `cap_seconds`; `seed` takes off up to half."""

    patience_seconds: tuple[float, ...] = (1800.0,)
    """Time for hosts to come up, by placement. Flex-start requests may queue for days."""
    repair_seconds: tuple[float, ...] = (0.0,)
    """Time for Google to restart hosts that were up, by placement; 0 if it restarts none."""
    boot_seconds: float = 1800.0
    """Time from running hosts to their agents' first heartbeats: drivers, mounts and the container."""
    tries_each: int = 2
    base_seconds: float = 30.0
    factor: float = 2.0
    cap_seconds: float = 1800.0
    stable_seconds: float = 900.0
    """Once all hosts have run for this long, tries are counted from 0 again."""
    save_seconds: float = 180.0
    """Time for the job to save after a stop request."""
    seed: str = ""
    max_usd: float | None = None
    stop_after_hours: float | None = None
    down_when_done: bool = False

    @property
    def placements(self) -> int:
        return len(self.patience_seconds)


@dataclass(frozen=True)
class Observation:
    """The state of hosts and job at one poll."""

    wanted: int
    exists: bool = False
    """Whether the group or slice itself exists."""
    machines: int = 0
    """Machines in any state that bills."""
    running: int = 0
    live_agents: int = 0
    """Machines whose agent is alive."""
    creating: bool = False
    """Whether Google is still creating or starting machines."""
    stopped: int = 0
    """Machines that exist and are stopped."""
    idle: int = 0
    """Stopped machines that powered off because they were idle."""
    trouble: str = ""
    """Google's message about what keeps it from creating machines."""
    refused: str = ""
    """A failure that a new host would repeat."""
    placement: int = 0
    job: Literal["none", "going", "over"] = "none"
    """going: submitted and not over."""
    submission: int = 0
    code: int | None = None
    """Exit code of a job that is over."""
    cause: str = ""
    stop_requested: bool = False
    """Whether a stop was requested."""

    @property
    def complete(self) -> bool:
        return self.exists and self.running >= self.wanted


@dataclass(frozen=True)
class History:
    """Past decisions and the cost so far. Times are Unix seconds."""

    submission: int = 0
    phase: Phase = "rest"
    """rest: nothing done yet; making: hosts are being created; up: all run; repairing: Google restarts some; broken:
    waiting for the next try; late: the same, after hosts took too long; stopping: the budget is reached; down: the
    hosts are to be deleted."""
    placement: int = 0
    tries: int = 0
    """Failed tries in this placement."""
    rounds: int = 0
    """How often every placement has failed."""
    silent: int = 0
    """How many of the last tries had no agent."""
    since: float = 0.0
    wait_until: float = 0.0
    looked: float = 0.0
    machines: int = 0
    hours: float = 0.0
    """Hours in which machines existed."""
    usd: float = 0.0
    """Cost of those hours."""
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}


@dataclass(frozen=True)
class Action:
    """The next step."""

    kind: Kind
    why: str = ""
    until: float = 0.0
    """Unix seconds."""
    placement: int = 0
    """Placement to create hosts in. Hosts in another placement are deleted first."""
    code: int = 0


@dataclass(frozen=True)
class WatcherEvent:
    """A change that a watcher reports to a program. Times are Unix seconds. Counts are None while another watcher holds
    the lease."""

    time: float
    action: Kind | Literal["leave"]
    """The decision, reported before it is carried out; leave: this watcher has ended."""
    why: str
    next_try: float | None
    """With `wait`."""
    exit_code: int | None
    """The job's, with `end`, `conclude` and `give up`."""
    hosts: bool
    """Whether hosts existed at the last poll."""
    looks: int
    submission: int | None = None
    placement: int | None = None
    machines: int | None = None
    """Machines that bill."""
    hours: float | None = None
    """Hours in which machines of this submission have existed."""
    usd: float | None = None
    """Cost of those hours."""


OnEvent = Callable[[WatcherEvent], object]


def read_history(value: dict[str, Any] | None, submission: int, placement: int) -> History:
    """The stored history of this submission. A missing or unreadable one is replaced by a new one. Missing or invalid
    keys get their defaults, so that counts survive a change of version."""
    if not value or value.get("format") != FORMAT or value.get("submission") != submission:
        return History(submission, placement=placement)
    defaults = asdict(History(submission, placement=placement))
    valid = {key: value[key] for key in defaults if key in value and _is_valid(key, value[key], defaults[key])}
    return History(**{**defaults, **valid})


def _is_valid(key: str, value: Any, default: Any) -> bool:
    if isinstance(default, str):
        return isinstance(value, str) and (key != "phase" or value in get_args(Phase))
    if isinstance(value, bool) or not isinstance(value, int if isinstance(default, int) else int | float):
        return False
    return math.isfinite(value) and value >= 0


def with_cost(history: History, seen: Observation, usd_per_hour: float, now: float) -> History:
    """Add what machines have cost since the last poll, at `usd_per_hour` each. If their number changed, the higher one
    counts: a budget should be reached a poll early rather than exceeded."""
    counted = history.machines or history.phase in ("making", "repairing")  # else they have just appeared
    machines = max(history.machines, seen.machines) if counted else 0
    hours = max(0.0, now - history.looked) / 3600 if history.looked and machines else 0.0
    usd = history.usd + hours * machines * usd_per_hour
    return replace(history, looked=now, machines=seen.machines, hours=history.hours + hours, usd=usd)


def reached_limit(rules: Rules, history: History) -> str:
    """A sentence about the limit that is reached; empty while none is."""
    if rules.max_usd is not None and history.usd >= rules.max_usd:
        return f"--max-cost {rules.max_usd:g} is reached: {history.usd:,.2f} USD by the price table; {AGAIN}"
    if rules.stop_after_hours is not None and history.hours >= rules.stop_after_hours:
        limit = f"--stop-after-hours {rules.stop_after_hours:g}"
        return f"{limit} is reached: hosts have existed for {history.hours:,.2f} hours; {AGAIN}"
    return ""


def decide(rules: Rules, seen: Observation, history: History, now: float) -> tuple[Action, History]:
    """`history` includes the cost up to now (`with_cost`). Store the returned history before the action begins."""
    # Times in the future come from a clock that was set back, or from another machine.
    until = min(history.wait_until, now + rules.cap_seconds)
    history = replace(history, since=min(history.since, now), wait_until=until)
    limit = reached_limit(rules, history)
    if history.phase == "down":
        return _down(seen, history)
    if seen.job == "over":
        return _over(rules, seen, history, limit)
    if history.phase == "stopping" or limit:
        return _stopping(rules, seen, history, limit, now)
    if seen.job == "none":
        return Action("nothing", "no job"), replace(history, phase="rest", wait_until=0.0)
    if seen.stop_requested and not seen.complete:
        return _stop_requested(rules, seen, history, now)
    if seen.refused and not (history.phase == "rest" and seen.idle):  # created before this submission
        return Action("give up", seen.refused, code=1), history
    if seen.complete:
        return _complete(rules, seen, history, now)
    return _incomplete(rules, seen, history, now)


def _stop_requested(rules: Rules, seen: Observation, history: History, now: float) -> tuple[Action, History]:
    """While hosts run, host 0 records the result itself."""
    if history.phase != "broken":
        history = replace(history, phase="broken", since=now, why="stop requested")
    if seen.running and now - history.since < rules.save_seconds:
        return Action("nothing", "stop requested"), history
    return Action("conclude", "stopped before it was done, with hosts missing", code=EARLY), history


def _over(rules: Rules, seen: Observation, history: History, limit: str) -> tuple[Action, History]:
    why = history.why if history.phase == "stopping" else limit
    if seen.exists and (rules.down_when_done or why):
        return _down(seen, replace(history, phase="down", why=why))
    return Action("end", why or seen.cause, code=seen.code or 0), history


def _down(seen: Observation, history: History) -> tuple[Action, History]:
    """Delete until no hosts are left, whatever else happens: this is what enforces a budget."""
    if seen.exists or seen.machines:
        return Action("down", history.why or "the job is over"), history
    if seen.job == "going":  # no host is left to record the result
        return Action("conclude", history.why, code=EARLY), history
    return Action("end", history.why or seen.cause, code=EARLY if seen.job == "none" else seen.code or 0), history


def _stopping(rules: Rules, seen: Observation, history: History, limit: str, now: float) -> tuple[Action, History]:
    if history.phase != "stopping":
        history = replace(history, phase="stopping", since=now, why=limit)
    until = history.since + rules.save_seconds
    if seen.job == "going" and seen.running and now < until:
        return Action("ask", history.why, until=until), history
    return _down(seen, replace(history, phase="down"))


def _complete(rules: Rules, seen: Observation, history: History, now: float) -> tuple[Action, History]:
    if history.phase != "up":
        history = replace(history, phase="up", since=now, placement=seen.placement, wait_until=0.0)
    age = now - history.since
    if seen.live_agents < seen.wanted:
        # A host may restart its agent; a host whose agent never starts is of no use.
        if age > rules.boot_seconds:
            why = f"{seen.wanted - seen.live_agents} of {seen.wanted} hosts run, and no agent reports there"
            history = replace(history, silent=history.silent + 1)
            if history.silent >= rules.tries_each * rules.placements:
                return Action("give up", why, code=1), replace(history, phase="down", why=why)
            return _failed(rules, history, why, now)
        return Action("nothing", f"{seen.live_agents} of {seen.wanted} agents report"), history
    if age > rules.stable_seconds:
        history = replace(history, tries=0, rounds=0, since=now)
    elif history.why or history.silent:
        history = replace(history, why="", silent=0)
    return Action("nothing", "all run"), history


def _incomplete(rules: Rules, seen: Observation, history: History, now: float) -> tuple[Action, History]:
    if history.phase == "rest":
        if seen.creating and not seen.trouble:
            return Action("nothing", "being created"), replace(history, phase="making", since=now)
        if seen.exists and not seen.idle:
            return _failed(rules, history, seen.trouble or _loss(seen), now)
        return _create(history, "hosts powered off idle" if seen.idle else "there are no hosts yet", now)
    if history.phase == "making":
        if seen.trouble:
            return _failed(rules, history, seen.trouble, now)
        patience = rules.patience_seconds[history.placement % rules.placements]
        if not seen.creating:
            return _failed(rules, history, history.why or "the last try was interrupted", now)
        if now - history.since < patience:
            return Action("nothing", f"{seen.running} of {seen.wanted} hosts run"), history
        return _failed(rules, history, f"not up after {patience / 60:,.0f} minutes", now, phase="late")
    if history.phase in ("up", "repairing"):
        return _interrupted(rules, seen, history, now)
    if now < history.wait_until:
        return Action("wait", history.why, until=history.wait_until), history
    if seen.creating and not seen.trouble and history.phase != "late":  # Google has resumed meanwhile
        return Action("nothing", "being created"), replace(history, phase="making", since=now, placement=seen.placement)
    return _create(history, history.why, now)


def _interrupted(rules: Rules, seen: Observation, history: History, now: float) -> tuple[Action, History]:
    """All hosts ran, and some are missing now. Hosts that Google restarts by itself are kept: deleting them could lose
    their machine to another customer."""
    coming = seen.creating and not seen.trouble
    if not coming and seen.idle and seen.idle + seen.running >= seen.wanted:
        return _create(history, "hosts powered off idle", now)
    if seen.trouble:
        return _failed(rules, history, seen.trouble, now)
    repair = rules.repair_seconds[history.placement % len(rules.repair_seconds)]
    if repair and (coming or seen.stopped > seen.idle):
        since = history.since if history.phase == "repairing" else now
        if now - since >= repair:
            return _failed(rules, history, f"{_loss(seen)} for {repair / 60:,.0f} minutes", now, phase="late")
        why = f"{seen.running} of {seen.wanted} hosts run, and Google restarts the others"
        return Action("nothing", why), replace(history, phase="repairing", since=since)
    if coming:
        return Action("nothing", "being created again"), replace(history, phase="making", since=now)
    return _failed(rules, history, _loss(seen), now)


def _loss(seen: Observation) -> str:
    return f"preempted or lost: {seen.wanted - seen.running} of {several(seen.wanted, 'host')}"


def _create(history: History, why: str, now: float) -> tuple[Action, History]:
    history = replace(history, phase="making", since=now, wait_until=0.0, why=why)
    return Action("make", why, placement=history.placement), history


def _failed(rules: Rules, history: History, why: str, now: float, *, phase: Phase = "broken") -> tuple[Action, History]:
    """Count a failed try, and choose the placement and time of the next one."""
    tries, rounds, placement = history.tries + 1, history.rounds, history.placement
    if tries >= rules.tries_each:
        tries, placement = 0, (placement + 1) % rules.placements
        rounds += placement == 0
    wait = backoff(rules, rounds * rules.tries_each + max(0, tries - 1), f"{history.submission}/{rounds}/{placement}")
    history = replace(history, phase=phase, placement=placement, tries=tries, rounds=rounds, why=why)
    return Action("wait", why, until=now + wait), replace(history, since=now, wait_until=now + wait)


def backoff(rules: Rules, number: int, key: str) -> float:
    """Seconds to wait, the same for the same arguments. Environments have different seeds, so they do not retry
    together."""
    longest = min(rules.cap_seconds, rules.base_seconds * rules.factor ** min(number, 64))
    digest = hashlib.sha256(json.dumps([rules.seed, number, key]).encode()).digest()
    return longest * (0.5 + int.from_bytes(digest[:4], "big") / 2**33)
