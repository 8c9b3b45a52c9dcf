"""The decision about the hosts of a job, from what one look at them found. There is no clock and no network here.

    hosts came up, and the job goes on                  nothing
    lost, and Google starts them again by itself        left alone for as long as that takes
    preempted, or not started again                     the same place again, then the next one
    no machines to be had (stockout, quota)             the same place a second time, then the next one
    all places tried                                    from the first one, with longer waits
    a host refuses (boot error, health)                 give up: making it again gives the same
    hosts run everywhere, and no agent ever speaks      give up, and the hosts go: nobody else would stop them
    stopped themselves, being idle, and there is a job  made again at once
    asked to stop, and hosts are missing                none are made for that; the job is over
    the budget is reached                               the job is asked to save; then the hosts go, saved or not
    the job is over                                     end; the hosts go if that was asked for

`History` lies in the bucket and is written before each act, so that a watcher may be killed at any point: the next one
reads it, looks again and goes on, with its budget and waits.
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
Kind = Literal["nothing", "wait", "make", "ask", "down", "conclude", "end", "give up"]
Phase = Literal["rest", "making", "up", "repairing", "broken", "late", "stopping", "down"]


@dataclass(frozen=True)
class Rules:
    """Waits are `base_seconds` x `factor` ^ n, `cap_seconds` at most, of which `seed` takes between half and all."""

    patience_seconds: tuple[float, ...] = (1800.0,)
    """Time for hosts to come up, by placement. Flex-start may queue for days."""
    repair_seconds: tuple[float, ...] = (0.0,)
    """Time for Google to bring back hosts that were up, by placement; 0 where it brings none back."""
    boot_seconds: float = 1800.0
    """Time from running hosts to the first beats of their agents, with drivers, mounts and the container."""
    tries_each: int = 2
    base_seconds: float = 30.0
    factor: float = 2.0
    cap_seconds: float = 1800.0
    stable_seconds: float = 900.0
    """Hosts that were whole for so long begin a new count of tries."""
    save_seconds: float = 180.0
    """Time for the job to save, once it was asked to."""
    seed: str = ""
    max_usd: float | None = None
    stop_after_hours: float | None = None
    down_when_done: bool = False

    @property
    def placements(self) -> int:
        return len(self.patience_seconds)


@dataclass(frozen=True)
class Observation:
    """The findings of one look."""

    wanted: int
    exists: bool = False
    """Whether the group or slice itself exists."""
    machines: int = 0
    """Machines in any state that bills."""
    running: int = 0
    beating: int = 0
    """Machines whose agent is alive."""
    making: bool = False
    """Whether Google is still at it."""
    stopped: int = 0
    """Machines that exist and are stopped, whoever stopped them."""
    idle: int = 0
    """Those of them that stopped themselves."""
    trouble: str = ""
    """Google's words for why it does not get on."""
    refused: str = ""
    """Words of a host that would be no better if it were made again."""
    placement: int = 0
    job: Literal["none", "going", "over"] = "none"
    """going: submitted, and not over."""
    submission: int = 0
    code: int | None = None
    """Exit code of a job that is over."""
    cause: str = ""
    asked: bool = False
    """Whether somebody wants the job to stop."""

    @property
    def whole(self) -> bool:
        return self.exists and self.running >= self.wanted


@dataclass(frozen=True)
class History:
    """Past decisions, and what they have cost. Times are Unix seconds."""

    submission: int = 0
    phase: Phase = "rest"
    """rest: before anything; making: from just before an act on; up; repairing: left to Google; broken: until the next
    try; late: the same, of hosts that have had their time; stopping: the budget is reached; down: the hosts may go."""
    placement: int = 0
    tries: int = 0
    """Failed tries in this placement."""
    rounds: int = 0
    """How often all placements have failed."""
    silent: int = 0
    """How many of the last tries ran without an agent."""
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
    """The next thing to do."""

    kind: Kind
    why: str = ""
    until: float = 0.0
    """Unix seconds."""
    placement: int = 0
    """Place in which hosts are to be made. Hosts in another place go first."""
    code: int = 0


@dataclass(frozen=True)
class WatcherEvent:
    """What a watcher tells a program, each time that it has something new to say. Times are Unix seconds. What it has
    counted is None while it has not, as another one watches."""

    time: float
    action: Kind | Literal["leave"]
    """The decision, told before it is carried out; leave: from here on this watcher does nothing."""
    why: str
    next_try: float | None
    """With `wait`."""
    exit_code: int | None
    """The job's, with `end`, `conclude` and `give up`."""
    hosts: bool
    """Whether there were hosts at the last look."""
    looks: int
    submission: int | None = None
    placement: int | None = None
    machines: int | None = None
    """Those that bill."""
    hours: float | None = None
    """Hours in which machines have existed, of this submission."""
    usd: float | None = None
    """Cost of those hours."""


OnEvent = Callable[[WatcherEvent], object]


def read_history(value: dict[str, Any] | None, submission: int, placement: int) -> History:
    """A new one for another submission, and in place of one that cannot be read. Keys that are missing or do not fit
    are as in a new one, so that counts outlive a change of version."""
    if not value or value.get("format") != FORMAT or value.get("submission") != submission:
        return History(submission, placement=placement)
    usual = asdict(History(submission, placement=placement))
    good = {key: value[key] for key in usual if key in value and _fits(key, value[key], usual[key])}
    return History(**{**usual, **good})


def _fits(key: str, value: Any, usual: Any) -> bool:
    if isinstance(usual, str):
        return isinstance(value, str) and (key != "phase" or value in get_args(Phase))
    if isinstance(value, bool) or not isinstance(value, int if isinstance(usual, int) else int | float):
        return False
    return math.isfinite(value) and value >= 0


def with_cost(history: History, seen: Observation, usd_per_hour: float, now: float) -> History:
    """Adds what machines have cost since the last look, at `usd_per_hour` for each. When their number changed, the
    higher one counts: a budget is rather reached a look early than exceeded."""
    known = history.machines or history.phase in ("making", "repairing")  # else somebody else has just made them
    machines = max(history.machines, seen.machines) if known else 0
    hours = max(0.0, now - history.looked) / 3600 if history.looked and machines else 0.0
    usd = history.usd + hours * machines * usd_per_hour
    return replace(history, looked=now, machines=seen.machines, hours=history.hours + hours, usd=usd)


def reached_limit(rules: Rules, history: History) -> str:
    """The limit that is reached, in words; empty while none is."""
    if rules.max_usd is not None and history.usd >= rules.max_usd:
        spent = f"{history.usd:,.2f} USD by the price table"
        return f"--max-cost {rules.max_usd:g} is reached: {spent}; another limit lets it go on"
    if rules.stop_after_hours is not None and history.hours >= rules.stop_after_hours:
        limit = f"--stop-after-hours {rules.stop_after_hours:g}"
        return f"{limit} is reached: hosts have existed for {history.hours:,.2f} hours; another limit lets it go on"
    return ""


def decide(rules: Rules, seen: Observation, history: History, now: float) -> tuple[Action, History]:
    """`history` has been metered. The history that is returned has to be stored before the action begins."""
    # Times in the future come from a clock that went back since, or from another machine's.
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
    if seen.asked and not seen.whole:
        return _asked(rules, seen, history, now)
    if seen.refused and not (history.phase == "rest" and seen.idle):  # those were made before this submission
        return Action("give up", seen.refused, code=1), history
    if seen.whole:
        return _whole(rules, seen, history, now)
    return _not_whole(rules, seen, history, now)


def _asked(rules: Rules, seen: Observation, history: History, now: float) -> tuple[Action, History]:
    """While host 0 is among the hosts, they say themselves how it ended."""
    if history.phase != "broken":
        history = replace(history, phase="broken", since=now, why="asked to stop")
    if seen.running and now - history.since < rules.save_seconds:
        return Action("nothing", "asked to stop"), history
    return Action("conclude", "stopped before it was done, with hosts missing", code=EARLY), history


def _over(rules: Rules, seen: Observation, history: History, limit: str) -> tuple[Action, History]:
    why = history.why if history.phase == "stopping" else limit
    if seen.exists and (rules.down_when_done or why):
        return _down(seen, replace(history, phase="down", why=why))
    return Action("end", why or seen.cause, code=seen.code or 0), history


def _down(seen: Observation, history: History) -> tuple[Action, History]:
    """Goes on until they are gone, whatever happens: here a budget keeps its word."""
    if seen.exists or seen.machines:
        return Action("down", history.why or "the job is over"), history
    if seen.job == "going":  # nobody is left who could say so
        return Action("conclude", history.why, code=EARLY), history
    return Action("end", history.why or seen.cause, code=EARLY if seen.job == "none" else seen.code or 0), history


def _stopping(rules: Rules, seen: Observation, history: History, limit: str, now: float) -> tuple[Action, History]:
    if history.phase != "stopping":
        history = replace(history, phase="stopping", since=now, why=limit)
    until = history.since + rules.save_seconds
    if seen.job == "going" and seen.running and now < until:
        return Action("ask", history.why, until=until), history
    return _down(seen, replace(history, phase="down"))


def _whole(rules: Rules, seen: Observation, history: History, now: float) -> tuple[Action, History]:
    if history.phase != "up":
        history = replace(history, phase="up", since=now, placement=seen.placement, wait_until=0.0)
    age = now - history.since
    if seen.beating < seen.wanted:
        # An agent may be begun again on its host; a host whose agent never comes is of no use.
        if age > rules.boot_seconds:
            why = f"{seen.wanted - seen.beating} of {seen.wanted} hosts run, and no agent speaks there"
            history = replace(history, silent=history.silent + 1)
            if history.silent >= rules.tries_each * rules.placements:
                return Action("give up", why, code=1), replace(history, phase="down", why=why)
            return _failed(rules, history, why, now)
        return Action("nothing", f"{seen.beating} of {seen.wanted} agents speak"), history
    if age > rules.stable_seconds:
        history = replace(history, tries=0, rounds=0, since=now)
    elif history.why or history.silent:
        history = replace(history, why="", silent=0)
    return Action("nothing", "whole"), history


def _not_whole(rules: Rules, seen: Observation, history: History, now: float) -> tuple[Action, History]:
    if history.phase == "rest":
        if seen.making and not seen.trouble:
            return Action("nothing", "on their way"), replace(history, phase="making", since=now)
        if seen.exists and not seen.idle:
            return _failed(rules, history, seen.trouble or _gone(seen), now)
        return _make(history, "hosts stopped themselves, being idle" if seen.idle else "there are no hosts yet", now)
    if history.phase == "making":
        if seen.trouble:
            return _failed(rules, history, seen.trouble, now)
        patience = rules.patience_seconds[history.placement % rules.placements]
        if not seen.making:
            return _failed(rules, history, history.why or "the last try did not end", now)
        if now - history.since < patience:
            return Action("nothing", f"{seen.running} of {seen.wanted} hosts run"), history
        return _failed(rules, history, f"not up after {patience / 60:,.0f} minutes", now, phase="late")
    if history.phase in ("up", "repairing"):
        return _interrupted(rules, seen, history, now)
    if now < history.wait_until:
        return Action("wait", history.why, until=history.wait_until), history
    if seen.making and not seen.trouble and history.phase != "late":  # Google has got on meanwhile
        return Action("nothing", "on their way"), replace(history, phase="making", since=now, placement=seen.placement)
    return _make(history, history.why, now)


def _interrupted(rules: Rules, seen: Observation, history: History, now: float) -> tuple[Action, History]:
    """Hosts were whole, and are not any more. What Google brings back by itself is not taken down: the machine that it
    has found for it might go to somebody else."""
    coming = seen.making and not seen.trouble
    if not coming and seen.idle and seen.idle + seen.running >= seen.wanted:
        return _make(history, "hosts stopped themselves, being idle", now)
    if seen.trouble:
        return _failed(rules, history, seen.trouble, now)
    repair = rules.repair_seconds[history.placement % len(rules.repair_seconds)]
    if repair and (coming or seen.stopped > seen.idle):
        since = history.since if history.phase == "repairing" else now
        if now - since >= repair:
            return _failed(rules, history, f"{_gone(seen)} for {repair / 60:,.0f} minutes", now, phase="late")
        said = f"{seen.running} of {seen.wanted} hosts run, and Google starts the others again"
        return Action("nothing", said), replace(history, phase="repairing", since=since)
    if coming:
        return Action("nothing", "being made again"), replace(history, phase="making", since=now)
    return _failed(rules, history, _gone(seen), now)


def _gone(seen: Observation) -> str:
    return f"preempted, or lost: {seen.wanted - seen.running} of {several(seen.wanted, 'host')}"


def _make(history: History, why: str, now: float) -> tuple[Action, History]:
    history = replace(history, phase="making", since=now, wait_until=0.0, why=why)
    return Action("make", why, placement=history.placement), history


def _failed(rules: Rules, history: History, why: str, now: float, *, phase: Phase = "broken") -> tuple[Action, History]:
    """Counts a failed try, and chooses where and when the next one is made."""
    tries, rounds, placement = history.tries + 1, history.rounds, history.placement
    if tries >= rules.tries_each:
        tries, placement = 0, (placement + 1) % rules.placements
        rounds += placement == 0
    wait = backoff(rules, rounds * rules.tries_each + max(0, tries - 1), f"{history.submission}/{rounds}/{placement}")
    history = replace(history, phase=phase, placement=placement, tries=tries, rounds=rounds, why=why)
    return Action("wait", why, until=now + wait), replace(history, since=now, wait_until=now + wait)


def backoff(rules: Rules, number: int, key: str) -> float:
    """Seconds to wait. The same `seed`, `number` and `key` give the same; another watcher's seed gives others."""
    whole = min(rules.cap_seconds, rules.base_seconds * rules.factor ** min(number, 64))
    digest = hashlib.sha256(json.dumps([rules.seed, number, key]).encode()).digest()
    return whole * (0.5 + int.from_bytes(digest[:4], "big") / 2**33)
