"""Looks after the hosts of a job: looks, decides (`watch.py`), acts; one watcher at a time (`lease.py`).

    watch/lease-000001.json, beat-000001.json     who watches
    watch/limits.json                             {"submission": 3, "max_usd": 100.0, …}, from who submitted
    watch/history.json                            what was decided, what it has cost; written before each act

All of it lies beside the job in the runs bucket, so a watcher may be killed anywhere and another one goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from maskwright.cloud import watch
from maskwright.cloud.lease import Lease
from maskwright.cloud.watch import Action, History, Rules, Seen
from maskwright.core.console import say, warn
from maskwright.core.errors import InputError, MaskwrightError, StoppedEarly
from maskwright.launch.folder import Folder
from maskwright.launch.job import JobSpec
from maskwright.launch.pull import read_spec

LOST_SECONDS = 90.0
"""As for the agents themselves: a beat that stands still for so long is of a host that is gone."""
LOCKED_SECONDS = 30.0
"""Between two tries while somebody else holds the state."""
MARGIN_SECONDS = 90.0
"""For a host to see the wish, and for its last words to reach the bucket, besides the job's own grace period."""
FOR_GOOD = "the agent ends every time"
"""So deploy/terraform/host/startup.sh begins the line of a host that gave up."""
DOWN_TRIES = 3
"""Of Terraform, which another run may have locked out, until the hosts are deleted past it."""
LIMITS, HISTORY = "watch/limits.json", "watch/history.json"


@dataclass(frozen=True)
class Machines:
    """Of a slice or group. `names` of those that bill; `stopped` exist and do not. `trouble`: Google's words for why it
    does not get on; `refused`: the same, where another try would end alike. `placement`: where it is."""

    wanted: int
    placement: int = 0
    exists: bool = False
    names: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    running: int = 0
    making: bool = False
    trouble: str = ""
    refused: str = ""


class Ground(Protocol):
    """What a watcher stands on. Raises `Locked` where somebody else changes the environment just now."""

    def look(self) -> Machines: ...

    def has_bucket(self) -> bool: ...

    def rules(self) -> Rules: ...

    def usd_per_hour(self, placement: int) -> float: ...

    def up(self, placement: int) -> None: ...

    def down(self) -> None: ...

    def repair(self) -> bool:
        """Has only those machines made again that are lost. False where all have to go first."""
        ...

    def remove(self) -> None:
        """As `down`, past Terraform and its lock: for a budget that is spent."""
        ...


class Locked(MaskwrightError):
    pass


class Refused(MaskwrightError):
    """What trying again does not mend."""


@dataclass(frozen=True)
class Limits:
    """Of one submission, or of all for `submission` 0. `rates`: USD an hour of one host in each placement, by the table
    of who submitted, as another watcher may have another table or none."""

    submission: int = 0
    max_usd: float | None = None
    max_hours: float | None = None
    down_when_done: bool = False
    rates: tuple[float, ...] = ()

    def store(self, folder: Folder) -> None:
        folder.put_json(LIMITS, asdict(self))

    def over(self, other: Limits | None) -> Limits:
        """These, and `other`'s where these say nothing."""
        if other is None:
            return self
        usd = other.max_usd if self.max_usd is None else self.max_usd
        hours = other.max_hours if self.max_hours is None else self.max_hours
        rates = self.rates or tuple(other.rates)
        return Limits(other.submission, usd, hours, self.down_when_done or other.down_when_done, rates)

    def rate(self, placement: int) -> float:
        """The highest where places have been added since."""
        return self.rates[placement] if placement < len(self.rates) else max(self.rates, default=0.0)


def read_limits(folder: Folder, submission: int) -> Limits | None:
    found = folder.get_json(LIMITS)
    return Limits(**found) if found and found.get("submission") == submission else None


class Watcher:
    """`turn` now and then, until it gives the action `end` or `give up`. `limits` are this watcher's own, where the
    submission has none. `clock`: Unix seconds, as what it counts is kept from one watcher to the next."""

    def __init__(
        self,
        folder: Folder,
        ground: Ground,
        limits: Limits | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self._ground, self._limits, self._clock = folder, ground, limits or Limits(), clock
        self._lease = Lease(folder)
        self._beats: dict[int, tuple[Any, float | None]] = {}
        self._said, self._downs = "", 0
        self.left = False
        """Whether hosts were there at the last look."""

    def leave(self) -> None:
        with suppress(MaskwrightError):  # the next one then waits until this one is silent
            self._lease.leave()

    def turn(self) -> Action:
        """Trouble with Google or the bucket is waited out."""
        try:
            if not self._lease.turn():
                return self._tell(self._beside())
            action, history = self._decide()
            self._tell(action)
            with self._lease.beating():
                self._act(action, history)
            return action
        except StoppedEarly:
            raise
        except MaskwrightError as error:
            return self._tell(Action("nothing", f"{error}; trying again"), warn)

    def _beside(self) -> Action:
        """While another one watches: only whether the job is over."""
        spec = read_spec(self._folder)
        result = self._folder.get_json(f"{spec.submission:04d}/result.json") if spec else None
        if spec is None or result is None:
            return Action("nothing", f"watched by {self._lease.holder}")
        history = watch.read_history(self._folder.get_json(HISTORY), spec.submission, 0)
        limit = history.why if history.phase in ("stopping", "down") else ""
        return Action("end", limit or str(result["cause"]), code=int(result["code"]))

    def _tell(self, action: Action, how: Callable[[str], object] = say) -> Action:
        text = f"hosts: {action.why}" + (f" ({action.kind})" if action.kind not in ("nothing", "wait") else "")
        if action.kind == "wait":
            text += f"; next try at {time.strftime('%H:%M:%S', time.localtime(action.until))}"
        if text != self._said and action.why:
            how(text)
        self._said = text
        return action

    # ---- looking -------------------------------------------------------------------------------------------------

    def _decide(self) -> tuple[Action, History]:
        now = self._clock()
        spec = read_spec(self._folder)
        machines = self._ground.look()
        self.left = machines.exists
        seen = self._seen(spec, machines)
        limits = self._limits.over(read_limits(self._folder, seen.submission))
        rules = replace(
            self._ground.rules(),
            save_seconds=(spec.grace_seconds if spec else 0.0) + MARGIN_SECONDS,
            max_usd=limits.max_usd,
            max_hours=limits.max_hours,
            down_when_done=limits.down_when_done,
        )
        before = watch.read_history(self._folder.get_json(HISTORY), seen.submission, seen.placement)
        action, after = watch.decide(rules, seen, watch.metered(before, seen, limits.rate(seen.placement), now), now)
        self._folder.put_json(HISTORY, after.to_json())
        return action, after

    def _seen(self, spec: JobSpec | None, machines: Machines) -> Seen:
        result = self._folder.get_json(f"{spec.submission:04d}/result.json") if spec else None
        over = result is not None
        notes = set(self._folder.names("idle")) if machines.stopped else set()
        return Seen(
            wanted=machines.wanted,
            exists=machines.exists,
            machines=len(machines.names),
            running=machines.running,
            beating=sum(self._beats_on(worker) for worker in range(machines.wanted)),
            making=machines.making,
            idle=sum(f"{name}.json" in notes for name in machines.stopped),
            trouble=machines.trouble,
            refused=self._refused(machines),
            placement=machines.placement,
            job="none" if spec is None else "over" if over else "going",
            submission=spec.submission if spec else 0,
            code=int(result["code"]) if result else None,
            cause=str(result["cause"]) if result else "",
        )

    def _beats_on(self, worker: int) -> bool:
        """By this machine's clock. A beat that was never seen to move may be an old one."""
        beat, now = self._folder.get_json(f"hosts/worker-{worker}.json"), time.monotonic()
        known = self._beats.get(worker)
        if known is None or beat != known[0]:
            self._beats[worker] = (beat, now if known is not None else None)
        moved = self._beats[worker][1]
        return beat is not None and not beat.get("gone") and moved is not None and now - moved < LOST_SECONDS

    def _refused(self, machines: Machines) -> str:
        """A host that cannot be used, in its own words: another one from the same mould would say the same."""
        if machines.refused:
            return machines.refused
        for name in (*machines.names, *machines.stopped):
            health = self._folder.get_json(f"health/{name}.json") or {}
            # An agent that ended is begun again on its host, until the host says so and stops.
            passing = health.get("step") == "agent" and name in machines.names
            if health.get("ok") is False and (not passing or FOR_GOOD in str(health.get("what"))):
                return f"{name}: {health.get('step')}: {health.get('what')}"
        return ""

    # ---- acting --------------------------------------------------------------------------------------------------

    def _act(self, action: Action, history: History) -> None:
        if action.kind == "ask":
            if (self._folder.get_json("stop.json") or {}).get("submission") != history.submission:
                self._folder.put_json("stop.json", {"submission": history.submission})
        elif action.kind == "make":
            self._make(action, history)
        elif action.kind == "down":
            self._down()
        elif action.kind in ("conclude", "give up"):
            self._conclude(action, history)

    def _down(self) -> None:
        try:
            self._ground.down()
            self._downs = 0
        except MaskwrightError as error:
            self._downs += 1
            if self._downs < DOWN_TRIES:
                raise
            warn(f"{error}; the hosts are deleted without Terraform, whose next plan finds them gone")
            self._ground.remove()

    def _make(self, action: Action, history: History) -> None:
        """What is there goes first: never two places at once, and a slice of several hosts is only made as a whole."""
        try:
            found = self._ground.look()
            for name in (*found.names, *found.stopped):  # what a host said of itself is not said of the next one
                self._folder.remove(f"health/{name}.json")
            if found.exists and found.placement == action.placement and not found.trouble and self._ground.repair():
                return
            if found.exists:
                self._ground.down()
            self._ground.up(action.placement)
        except Locked as error:
            until = self._clock() + LOCKED_SECONDS
            self._store(replace(history, phase="broken", wait_until=until, why=str(error)))
            raise
        except (Refused, InputError) as error:
            self._conclude(Action("give up", str(error), code=error.exit_code), history)
            raise
        except MaskwrightError as error:
            # Not counted here: the next look finds nothing being made, and counts it.
            self._store(replace(history, why=str(error)))
            raise

    def _store(self, history: History) -> None:
        self._folder.put_json(HISTORY, history.to_json())

    def _conclude(self, action: Action, history: History) -> None:
        """In the place of worker 0's agent, which is gone or never comes."""
        if not history.submission or self._folder.get_json(f"{history.submission:04d}/result.json") is not None:
            return
        result = {"code": action.code, "cause": action.why, "report": [action.why], "time": time.time()}
        self._folder.put_json(f"{history.submission:04d}/result.json", result)
