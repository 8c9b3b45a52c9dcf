"""What a watcher decides: a table of looks, and thousands of made-up histories that must keep its promises."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from maskwright.cloud.jobs.policy import (
    Action,
    History,
    Observation,
    Rules,
    backoff,
    decide,
    reached_limit,
    read_history,
    with_cost,
)

RULES = Rules(patience_seconds=(600.0, 600.0, 600.0), seed="table")
GOING = Observation(wanted=4, job="going", submission=1)
WHOLE = replace(GOING, exists=True, machines=4, running=4, live_agents=4)
NOW = 1_000_000.0


def history(phase: str = "rest", **more: Any) -> History:
    return replace(History(submission=1, phase=phase, since=NOW - 60), **more)  # type: ignore[arg-type]


ROWS: list[tuple[str, Observation, History, str, dict[str, Any]]] = [
    ("no job, no hosts", replace(GOING, job="none"), history(), "nothing", {"phase": "rest"}),
    ("a job, no hosts", GOING, history(), "make", {"phase": "making", "tries": 0}),
    ("all well", WHOLE, history(), "nothing", {"phase": "up"}),
    ("being created", replace(GOING, exists=True, creating=True), history(), "nothing", {"phase": "making"}),
    ("preempted", replace(WHOLE, running=3, machines=3), history("up"), "wait", {"tries": 1, "placement": 0}),
    (
        "preempted again before it was stable",
        replace(WHOLE, running=0, machines=0),
        history("up", tries=1),
        "wait",
        {"tries": 0, "placement": 1},
    ),
    ("stable begins a new count", WHOLE, history("up", tries=1, rounds=2, since=NOW - 1e4), "nothing", {"tries": 0}),
    (
        "stockout",
        replace(GOING, exists=True, creating=True, trouble="ZONE_RESOURCE_POOL_EXHAUSTED"),
        history("making"),
        "wait",
        {"tries": 1, "placement": 0},
    ),
    (
        "stockout in the last place",
        GOING,
        history("making", tries=1, placement=2),
        "wait",
        {"placement": 0, "rounds": 1},
    ),
    ("not its time yet", GOING, history("broken", wait_until=NOW + 1), "wait", {"phase": "broken"}),
    ("its time", GOING, history("broken", wait_until=NOW, placement=2), "make", {"placement": 2}),
    ("slow", replace(GOING, exists=True, creating=True), history("making", since=NOW - 599), "nothing", {}),
    ("too slow", replace(GOING, exists=True, creating=True), history("making", since=NOW - 601), "wait", {"tries": 1}),
    ("killed before it was made", GOING, history("making"), "wait", {"tries": 1}),
    ("health says no", replace(WHOLE, refused="host 2: no TPU"), history("up"), "give up", {}),
    ("agents not there yet", replace(WHOLE, live_agents=1), history("up"), "nothing", {"phase": "up"}),
    ("an agent that never comes", replace(WHOLE, live_agents=3), history("up", since=NOW - 2000), "wait", {"tries": 1}),
    (
        "idle, and a job came",
        replace(GOING, exists=True, idle=4),
        history("up"),
        "make",
        {"tries": 0, "placement": 0},
    ),
    ("to stop, no hosts", replace(GOING, stop_requested=True), history("broken", wait_until=NOW), "conclude", {}),
    (
        "to stop, some hosts",
        replace(WHOLE, stop_requested=True, running=3),
        history("up"),
        "nothing",
        {"phase": "broken"},
    ),
    (
        "to stop, and host 0 is gone",
        replace(WHOLE, stop_requested=True, running=3),
        history("broken", since=NOW - 200),
        "conclude",
        {},
    ),
    ("to stop, all hosts", replace(WHOLE, stop_requested=True), history("up"), "nothing", {"phase": "up"}),
    ("done", replace(WHOLE, job="over", code=0), history("up"), "end", {}),
    ("failed", replace(WHOLE, job="over", code=3), history("up"), "end", {}),
]


@pytest.mark.parametrize(("name", "seen", "before", "kind", "after"), ROWS, ids=[row[0] for row in ROWS])
def test_what_follows_from_a_look(
    name: str, seen: Observation, before: History, kind: str, after: dict[str, Any]
) -> None:
    action, then = decide(RULES, seen, before, NOW)
    assert action.kind == kind
    assert {key: getattr(then, key) for key in after} == after
    if kind == "wait":
        assert NOW < action.until <= NOW + RULES.cap_seconds
    if kind == "make":
        assert action.placement == then.placement and then.phase == "making"
    if kind == "end":
        assert action.code == seen.code


def test_hosts_that_google_starts_again_have_their_time_and_no_more() -> None:
    rules = replace(RULES, repair_seconds=(900.0, 0.0, 0.0))
    stopped, coming = replace(WHOLE, running=3, stopped=1), replace(WHOLE, running=3, creating=True)
    for seen in (stopped, coming):
        action, then = decide(rules, seen, history("up"), NOW)
        assert (action.kind, then.phase, then.since) == ("nothing", "repairing", NOW)
    for seen, later in ((stopped, 300.0), (coming, 899.0)):
        action, then = decide(rules, seen, then, NOW + later)
        assert (action.kind, then.phase, then.since, then.tries) == ("nothing", "repairing", NOW, 0)
    assert decide(rules, WHOLE, then, NOW + 899)[1].phase == "up"
    assert decide(rules, replace(stopped, trouble="stockout"), then, NOW + 899)[0].kind == "wait"
    assert decide(rules, replace(stopped, idle=1), then, NOW + 899)[0].kind == "make"
    action, then = decide(rules, coming, then, NOW + 900)
    assert (action.kind, then.tries) == ("wait", 1) and "lost: 1 of 4 hosts for 15 minutes" in action.why
    assert decide(rules, coming, then, action.until)[0].kind == "make"  # though it is coming still
    spot = history("up", placement=1)
    assert decide(rules, stopped, spot, NOW)[0].kind == "wait"  # nobody starts it again
    _, late = decide(rules, replace(coming, running=0), history("making", placement=1, since=NOW - 600), NOW)
    assert decide(rules, replace(coming, running=0), late, late.wait_until)[0].kind == "make"


def test_budget_asks_then_takes_down_and_says_75() -> None:
    rules = replace(RULES, max_usd=10.0, save_seconds=100.0)
    action, then = decide(rules, WHOLE, history("up", usd=10.0), NOW)
    assert action.kind == "ask" and "--max-cost 10 is reached" in action.why
    assert decide(rules, WHOLE, then, NOW + 99)[0].kind == "ask"
    saved = replace(WHOLE, job="over", code=75)
    assert decide(rules, saved, then, NOW + 50)[0].kind == "down"
    action, late = decide(rules, WHOLE, then, NOW + 101)
    assert action.kind == "down" and late.phase == "down"
    gone = replace(GOING, exists=False)
    assert decide(rules, gone, late, NOW + 200)[0] == Action("conclude", then.why, code=75)
    action, _ = decide(rules, replace(saved, exists=False, machines=0), late, NOW + 300)
    assert action.kind == "end" and action.code == 75 and "--max-cost" in action.why


def test_down_when_done_takes_down_and_hands_on_the_code() -> None:
    rules = replace(RULES, down_when_done=True)
    for code in (0, 3):
        action, then = decide(rules, replace(WHOLE, job="over", code=code), history("up"), NOW)
        assert action.kind == "down"
        action, _ = decide(rules, replace(GOING, job="over", code=code), then, NOW)
        assert (action.kind, action.code) == ("end", code)


def test_meter_counts_while_machines_exist() -> None:
    first = with_cost(history(), WHOLE, 2.0, NOW)
    assert first.usd == 0 and first.hours == 0
    second = with_cost(first, replace(WHOLE, machines=1), 2.0, NOW + 3600)
    assert second.usd == pytest.approx(8.0) and second.hours == pytest.approx(1.0)
    third = with_cost(second, replace(GOING), 2.0, NOW + 7200)  # the last one went at some time in this hour
    assert third.usd == pytest.approx(10.0)
    nobody = with_cost(third, replace(GOING), 2.0, NOW + 72_000)
    assert nobody.usd == pytest.approx(10.0) and nobody.hours == pytest.approx(2.0)
    assert with_cost(nobody, WHOLE, 2.0, NOW + 80_000).usd == pytest.approx(10.0)  # just made by somebody else
    back = with_cost(second, WHOLE, 2.0, NOW)  # a clock that went back
    assert back.usd == second.usd


def test_waits_grow_to_the_cap_and_are_the_same_for_the_same_seed() -> None:
    waits = [backoff(RULES, number, "k") for number in range(40)]
    assert all(0.5 * min(1800.0, 30.0 * 2**n) <= wait <= min(1800.0, 30.0 * 2**n) for n, wait in enumerate(waits))
    assert waits == [backoff(RULES, number, "k") for number in range(40)]
    assert len({backoff(replace(RULES, seed=str(s)), 3, "k") for s in range(20)}) == 20
    assert backoff(RULES, 10**6, "k") <= RULES.cap_seconds


def test_history_is_read_back_and_another_submission_begins_anew() -> None:
    written = history("broken", tries=1, usd=3.25, why="stockout")
    assert read_history(json.loads(json.dumps(written.to_json())), 1, 0) == written
    assert read_history(written.to_json(), 2, 1) == History(2, placement=1)
    for wrong in (None, {}, {**written.to_json(), "format": 2}):
        assert read_history(wrong, 1, 0) == History(1)
    # Another version's, or somebody's nonsense: what was counted stays counted.
    other = {**written.to_json(), "more": 1, "tries": "x", "phase": "?", "hours": -1, "since": float("nan")}
    del other["silent"]
    found = read_history(other, 1, 0)
    assert found.usd == 3.25 and (found.tries, found.phase, found.hours, found.since) == (0, "rest", 0.0, 0.0)


def test_clock_that_goes_back_delays_nothing() -> None:
    rules = replace(RULES, max_usd=10.0, save_seconds=100.0)
    action, then = decide(rules, WHOLE, history("stopping", since=NOW + 1e6, usd=10.0), NOW)
    assert action.kind == "ask" and decide(rules, WHOLE, then, NOW + 100)[0].kind == "down"
    assert decide(RULES, GOING, history("broken", wait_until=NOW + 1e6), NOW)[0].until <= NOW + RULES.cap_seconds


def test_hosts_on_which_no_agent_ever_speaks_are_not_made_for_ever() -> None:
    then, now, made = history(), NOW, 0
    for _ in range(10_000):
        there = then.phase in ("making", "up", "down")
        action, then = decide(RULES, replace(WHOLE, live_agents=0) if there else GOING, then, now)
        made += action.kind == "make"
        now = max(now + 60, action.until)
        if action.kind == "give up":
            break
    assert made == 6 and action.code == 1 and "no agent reports there" in action.why
    over = replace(WHOLE, live_agents=0, job="over", code=1, cause=action.why)
    assert decide(RULES, over, then, now)[0].kind == "down"  # they would not stop by themselves
    end, _ = decide(RULES, replace(over, exists=False, machines=0), then, now)
    assert (end.kind, end.code) == ("end", 1)
    one = replace(WHOLE, live_agents=3)
    _, then = decide(RULES, one, history("up", since=NOW - 2000, silent=1), NOW)
    assert then.silent == 2 and decide(RULES, WHOLE, then, NOW + 9000)[1].silent == 0


# ---- made-up histories -----------------------------------------------------------------------------------------------

POLL_SECONDS, USD = 30.0, 7.0


@dataclass
class World:
    """A cloud that gives and takes by chance, and a driver of the decisions that dies now and then."""

    chance: random.Random
    rules: Rules
    now: float = NOW
    groups: dict[int, int] = field(default_factory=dict)
    """Of each placement: running hosts of the group there."""
    idle: int = 0
    trouble: str = ""
    job: Any = "going"
    code: int | None = None
    asked: bool = False
    true_usd: float = 0.0
    stored: dict[str, Any] | None = None
    ended: Action | None = None
    asked_at: float | None = None
    waits: list[float] = field(default_factory=list)

    def seen(self) -> Observation:
        assert len(self.groups) <= 1, f"two placements at once: {self.groups}"
        placement, running = next(iter(self.groups.items()), (0, 0))
        making = bool(self.groups) and running < 4 and not self.idle and self.chance.random() < 0.5
        return Observation(
            4,
            exists=bool(self.groups),
            machines=running,
            running=running,
            live_agents=running,
            creating=making,
            idle=self.idle,
            trouble=self.trouble,
            placement=placement,
            job=self.job,
            submission=1,
            code=self.code,
        )

    def nature(self) -> None:
        for placement in self.groups:
            draw = self.chance.random()
            if draw < 0.08:
                self.groups[placement] = self.chance.randrange(4)
            elif draw < 0.5 and not self.trouble and not self.idle:
                self.groups[placement] = 4
        self.true_usd += sum(self.groups.values()) * USD * POLL_SECONDS / 3600
        self.now += POLL_SECONDS
        if self.asked and self.job == "going" and self.chance.random() < 0.3:
            self.job, self.code = "over", 75

    def turn(self) -> None:
        """One turn of a watcher, which may be killed at each of its points."""
        seen = self.seen()
        before = with_cost(read_history(self.stored, 1, 0), seen, USD, self.now)
        action, after = decide(self.rules, seen, before, self.now)
        if self.chance.random() < 0.03:
            return
        self.stored = json.loads(json.dumps(after.to_json()))
        if reached_limit(self.rules, after) and self.asked_at is None:
            self.asked_at = self.now
            assert after.usd <= (self.rules.max_usd or 0) + 8 * USD * 2 * POLL_SECONDS / 3600
        if self.chance.random() < 0.03:
            return
        if action.kind == "wait":
            self.waits.append(action.until - self.now)
        elif action.kind == "ask":
            self.asked = True
        elif action.kind in ("make", "down"):
            if self.chance.random() < 0.1:
                return  # somebody holds the state's lock, or the API fails
            self.groups, self.idle, self.trouble = {}, 0, ""
            if action.kind == "make" and self.chance.random() > 0.05:
                self.groups[action.placement] = 0
                self.trouble = "stockout" if self.chance.random() < 0.5 else ""
        elif action.kind == "conclude":
            self.job, self.code = "over", action.code
        elif action.kind == "end":
            self.ended = action


@pytest.mark.parametrize("seed", range(60))
def test_promises_hold_in_made_up_histories(seed: int) -> None:
    """Never two places at once, no wait above the cap, the budget kept to a few looks, in the end nothing exists."""
    chance = random.Random(seed)
    rules = Rules(patience_seconds=(600.0,) * chance.randint(1, 4), seed=str(seed), max_usd=40.0, save_seconds=120.0)
    world = World(chance, rules)
    for _ in range(3000):
        world.turn()
        if world.ended:
            break
        world.nature()
    assert world.ended is not None and world.ended.code == 75 and "--max-cost" in world.ended.why
    assert not world.groups
    assert all(wait <= rules.cap_seconds for wait in world.waits)
    # Above the budget: the time to save, and looks and acts that failed in between.
    assert world.true_usd <= 40.0 + 4 * USD * (rules.save_seconds + 30 * POLL_SECONDS) / 3600
    stored = read_history(world.stored, 1, 0)
    assert stored.usd >= 0.95 * world.true_usd


@pytest.mark.parametrize("places", [1, 2, 3])
def test_where_nothing_is_to_be_had_each_place_is_tried_twice_and_then_all_again_with_longer_waits(places: int) -> None:
    rules = replace(RULES, patience_seconds=(600.0,) * places)
    then, now, made = history(), NOW, []
    waits = []
    for _ in range(400):
        action, then = decide(rules, replace(GOING, exists=then.phase == "making", trouble="stockout"), then, now)
        if action.kind == "make":
            made.append(action.placement)
        elif action.kind == "wait" and (not waits or action.until != waits[-1][1]):
            waits.append((action.until - now, action.until))
        now = max(now + 1, action.until)
    assert made[: 4 * places] == [p for _ in range(2) for p in range(places) for _ in range(2)]
    lengths = [length for length, _ in waits]
    assert max(lengths) <= rules.cap_seconds and lengths[-1] >= rules.cap_seconds / 2 > lengths[0]
