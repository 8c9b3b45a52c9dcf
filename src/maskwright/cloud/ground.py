"""What a watcher stands on in Google Cloud: it looks over REST, and acts as `env up` and `env down` do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from maskwright.cloud import commands, failures, record
from maskwright.cloud.environment import Environment, Slice, read_environment
from maskwright.cloud.failures import Refusal
from maskwright.cloud.prices import estimate, read_prices
from maskwright.cloud.rest import Google, new_request_id
from maskwright.cloud.watch import Rules
from maskwright.cloud.watcher import Locked, Machines, Refused
from maskwright.core.errors import CloudError, InputError, MaskwrightError

LOCK_TIMEOUT_SECONDS = 60.0
DELETE_SECONDS = 1800.0
PATIENCE_SECONDS = 1800.0
FLEX_PATIENCE_SECONDS = 7 * 86_400.0
"""Requests wait in a queue for up to seven days: docs.cloud.google.com/compute/docs/instances/about-flex-start-vms"""
STOPPED = {"STOPPED", "STOPPING", "SUSPENDED", "SUSPENDING", "TERMINATED"}
AT_IT = {"CREATING", "CREATING_WITHOUT_RETRIES", "RECREATING", "REFRESHING", "RESTARTING", "RESUMING", "STARTING"}
WAITING = {"ACCEPTED", "CREATING", "PROVISIONING", "WAITING_FOR_RESOURCES"}
"""States of queued resources: docs.cloud.google.com/tpu/docs/queued-resources"""
LOCKS = ("another run holds the state", "is in use by")


class EnvironmentGround:
    """The slice or group of the environment whose YAML is at `location`; `prices` is a user's table of prices. The YAML
    is read anew in each look, as the user may edit it."""

    def __init__(self, location: str, kind: str, prices: str | None = None) -> None:
        self._location, self._kind = location, kind
        self._prices = read_prices(prices)
        self._google = Google(self._environment().project)

    def _environment(self) -> Environment:
        found = read_environment(self._location)
        if found.hosts_of(self._kind) is None:
            fix = "put its section back; `maskwright env down` takes hosts away"
            raise InputError(f"has no {self._kind} any more", where=self._location, fix=fix)
        return found

    def has_bucket(self) -> bool:
        return self._google.find("storage", f"b/{self._environment().runs_bucket}") is not None

    def rules(self) -> Rules:
        environment = self._environment()
        hosts = environment.hosts_of(self._kind)
        assert hosts is not None
        models = [place.provisioning_model for place in hosts.placements(environment.zone)]
        patience = tuple(FLEX_PATIENCE_SECONDS if model == "FLEX_START" else PATIENCE_SECONDS for model in models)
        return Rules(patience_seconds=patience, seed=f"{environment.project}/{environment.name}/{self._kind}")

    def usd_per_hour(self, placement: int) -> float:
        """Of one host. Raises `InputError` where the table has no price."""
        environment = self._environment()
        hosts = environment.hosts_of(self._kind)
        assert hosts is not None
        costs = estimate(environment, self._prices, {self._kind: placement})
        mine = [line.hourly for line in costs.lines if line.part == self._kind]
        if not mine:
            what = next((text for text in costs.unpriced if f"({self._kind})" in text), f"no price for {self._kind}")
            fix = "write it into a copy of `maskwright env prices`, and say --prices FILE; or use --max-hours"
            raise InputError(what, where="--max-cost", fix=fix)
        return sum(mine) / hosts.hosts

    # ---- looking -------------------------------------------------------------------------------------------------

    def look(self) -> Machines:
        environment = self._environment()
        hosts = environment.hosts_of(self._kind)
        assert hosts is not None
        places = hosts.placements(environment.zone)
        placement = record.read(environment).placement[self._kind] % len(places)
        zone, name = places[placement].zone or environment.zone, f"{environment.name}-{self._kind}"
        with _refusals():
            if isinstance(hosts, Slice) and hosts.queued:
                return self._look_at_queue(hosts.hosts, placement, zone, name)
            return self._look_at_group(hosts.hosts, placement, zone, name)

    def _look_at_group(self, wanted: int, placement: int, zone: str, name: str) -> Machines:
        path = self._group(zone, name)
        group = self._google.find("compute", path)
        if group is None:
            return Machines(wanted, placement)
        found = self._google.pages("compute", f"{path}/listManagedInstances", "managedInstances", verb="POST")
        members = list(found)
        there = {_name(one): str(one["instanceStatus"]) for one in members if one.get("instanceStatus")}
        ready = [
            one for one in members if one.get("instanceStatus") == "RUNNING" and one.get("currentAction") == "NONE"
        ]
        trouble = next((text for one in members if one not in ready and (text := _error(one))), None)
        trouble = trouble or _error((group.get("status") or {}).get("bulkInstanceOperation") or {})
        stable = bool((group.get("status") or {}).get("isStable", True))
        coming = any(one.get("currentAction") in AT_IT for one in members)
        return Machines(
            wanted=wanted,
            placement=placement,
            exists=True,
            names=tuple(sorted(one for one, state in there.items() if state not in STOPPED)),
            stopped=tuple(sorted(one for one, state in there.items() if state in STOPPED)),
            running=len(ready),
            making=coming or (not stable and len(members) < wanted),
            trouble=trouble[1] if trouble and trouble[0] != "refused" else "",
            refused=trouble[1] if trouble and trouble[0] == "refused" else "",
        )

    def _look_at_queue(self, wanted: int, placement: int, zone: str, name: str) -> Machines:
        """One node is all hosts of the slice."""
        root = f"projects/{self._google.project}/locations/{zone}"
        queued = self._google.find("tpu", f"{root}/queuedResources/{name}")
        node = self._google.find("tpu", f"{root}/nodes/{name}")
        if queued is None and node is None:
            return Machines(wanted, placement)
        about = (queued or {}).get("state") or {}
        state, health = str(about.get("state", "")), str((node or {}).get("state", ""))
        failed = ((about.get("failedData") or {}).get("error") or {}).get("message", "")
        bills = node is not None and health not in ("PREEMPTED", "STOPPED", "TERMINATED")
        return Machines(
            wanted=wanted,
            placement=placement,
            exists=True,
            names=tuple(f"{name}-{worker}" for worker in range(wanted)) if bills else (),
            stopped=(name,) if health == "STOPPED" else (),
            running=wanted if health == "READY" and state in ("ACTIVE", "") else 0,
            making=state in WAITING or health in ("CREATING", "STARTING", "RESTARTING", "REPAIRING"),
            trouble=str(failed) or (f"the queued resource is {state}" if state in ("FAILED", "SUSPENDED") else ""),
        )

    # ---- acting --------------------------------------------------------------------------------------------------

    def up(self, placement: int) -> None:
        with _refusals():
            commands.up(
                self._location,
                parts=(self._kind,),
                confirm=lambda plan: None,
                placement={self._kind: placement},
                lock_timeout_seconds=LOCK_TIMEOUT_SECONDS,
            )

    def down(self) -> None:
        with _refusals():
            commands.down(
                self._location,
                parts=(self._kind,),
                confirm=lambda plan: None,
                lock_timeout_seconds=LOCK_TIMEOUT_SECONDS,
            )

    def remove(self) -> None:
        environment = self._environment()
        hosts = environment.hosts_of(self._kind)
        assert hosts is not None
        places = hosts.placements(environment.zone)
        zone = places[record.read(environment).placement[self._kind] % len(places)].zone or environment.zone
        name = f"{environment.name}-{self._kind}"
        if isinstance(hosts, Slice) and hosts.queued:
            path = f"projects/{self._google.project}/locations/{zone}/queuedResources/{name}"
            operation = self._google.call("tpu", "DELETE", path, force=True)
            self._google.wait("tpu", operation, seconds=DELETE_SECONDS)
            return
        operation = self._google.call("compute", "DELETE", self._group(zone, name), requestId=new_request_id())
        self._google.wait("compute", operation, seconds=DELETE_SECONDS)

    def _group(self, zone: str, name: str) -> str:
        return f"projects/{self._google.project}/zones/{zone}/instanceGroupManagers/{name}"


def _name(member: dict[str, Any]) -> str:
    return str(member.get("name") or str(member.get("instance", "")).rpartition("/")[2])


def _error(found: dict[str, Any]) -> tuple[str, str] | None:
    """Of a member's last attempt, or of a whole group's: what kind it is and Google's words."""
    attempt = found.get("lastAttempt") or found.get("lastProgressCheck") or {}
    errors = (attempt.get("errors") or attempt.get("error") or {}).get("errors") or []
    if not errors:
        return None
    code, message = str(errors[0].get("code", "")), str(errors[0].get("message", ""))
    reason = Refusal(failures.NAMES.get(code, 400), message, code).reason
    return ("refused" if reason in ("permission", "missing", "disabled") else reason), f"{code}: {message}"


@contextmanager
def _refusals() -> Iterator[None]:
    """Errors as a watcher tells them apart: locked, refused for good, or to be tried again."""
    try:
        yield
    except CloudError as error:
        if error.reason in ("permission", "disabled"):
            raise Refused(error.what, where=error.where, fix=error.fix) from None
        raise
    except MaskwrightError as error:
        if any(words in error.what for words in LOCKS):
            raise Locked(error.what, where=error.where, fix=error.fix) from None
        if (
            not isinstance(error, InputError)
            and Refusal(403, error.what).reason == "permission"
            and _denied(error.what)
        ):
            raise Refused(error.what, where=error.where, fix=error.fix) from None
        raise


def _denied(text: str) -> bool:
    """Terraform hands on Google's sentence: `googleapi: Error 403: …`."""
    return "Error 403" in text or failures.PERMISSION.search(text) is not None
