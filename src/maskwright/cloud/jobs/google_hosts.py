"""An environment's hosts on Google Cloud, for a watcher: described over REST, changed by `env up` and `env down`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from maskwright.cloud import record
from maskwright.cloud.environment import Environment, Group, Slice, read_environment
from maskwright.cloud.google import errors, groups, queued_resource
from maskwright.cloud.google.errors import Refusal
from maskwright.cloud.google.host_states import STOPPED, life_of
from maskwright.cloud.google.rest import Google
from maskwright.cloud.jobs.policy import Rules
from maskwright.cloud.jobs.watcher import MachineState, PermanentRefusal
from maskwright.cloud.prices import estimate, read_prices
from maskwright.cloud.provision import commands
from maskwright.cloud.record import EnvironmentRecord
from maskwright.core.console import warn
from maskwright.core.errors import CloudError, InputError, MaskwrightError

LOCK_TIMEOUT_SECONDS = 60.0
DELETE_SECONDS = 1800.0
PATIENCE_SECONDS = 1800.0
FLEX_PATIENCE_SECONDS = 7 * 86_400.0
"""Requests may queue for seven days: docs.cloud.google.com/compute/docs/instances/about-flex-start-vms"""
REPAIR_SECONDS = 900.0
"""Time for Google to restart a lost host, which it does unless it is Spot or Flex-start: another machine takes minutes.
docs.cloud.google.com/compute/docs/instances/host-maintenance-overview"""
RESTARTED = ("STANDARD", "RESERVATION_BOUND")
"""Models with automatic_restart in deploy/terraform/modules/hosts."""


class GoogleHosts:
    """The slice or group of the environment whose YAML is at `location`. `prices`: a user's price table.

    Each call reads the YAML again, since the user may edit it. While it is invalid, or lacks the hosts, the last valid
    one counts: a slip in a file must not lift a budget.
    """

    def __init__(self, location: str, kind: str, prices: str | None = None) -> None:
        self._location, self._kind = location, kind
        self._prices = read_prices(prices)
        self._valid: Environment | None = None
        """The last valid one."""
        self._error = ""
        self._last_zone: str | None = None
        """The zone of the last `describe`."""
        self._google = Google(self._read()[0].project)

    def _read(self) -> tuple[Environment, Slice | Group]:
        try:
            environment = read_environment(self._location)
            if self._kind not in environment.hosts:
                fix = "restore its section; `maskwright env down` deletes hosts"
                raise InputError(f"has no {self._kind} any more", where=self._location, fix=fix)
            self._valid, self._error = environment, ""
        except InputError as error:
            if self._valid is None:
                raise
            if str(error) != self._error:
                warn(f"{error}; until then, its last valid {self._kind} counts")
            self._error = str(error)
        return self._valid, self._valid.hosts[self._kind]

    def has_bucket(self) -> bool:
        return self._google.find("storage", f"b/{self._read()[0].jobs_bucket}") is not None

    def rules(self) -> Rules:
        environment, hosts = self._read()
        models = [place.model for place in hosts.placements(environment.zone)]
        patience = tuple(FLEX_PATIENCE_SECONDS if model == "FLEX_START" else PATIENCE_SECONDS for model in models)
        repair = tuple(REPAIR_SECONDS if model in RESTARTED else 0.0 for model in models)
        seed = f"{environment.project}/{environment.name}/{self._kind}"
        return Rules(patience_seconds=patience, repair_seconds=repair, seed=seed)

    def usd_per_hour(self, placement: int) -> float:
        """Price of one host. Raises `InputError` if the table has none."""
        environment, hosts = self._read()
        costs = estimate(environment, self._prices, {self._kind: placement})
        if self._kind in costs.unpriced:
            fix = "add it to a copy of `maskwright env prices`, and give --prices FILE; or use --stop-after-hours"
            raise InputError(costs.unpriced[self._kind], where="--max-cost", fix=fix)
        return sum(line.hourly for line in costs.lines if line.part == self._kind) / hosts.hosts

    def _zone(self, environment: Environment, hosts: Slice | Group, known: EnvironmentRecord) -> str:
        """The zone of the last `env up`, even if the YAML has changed; else the placement of the record."""
        recorded = hosts.place(environment.zone, known.placement[self._kind]).zone
        if hosts.queued:
            return known.queued_zone or recorded
        wanted = record.wanted(environment) or {}
        return str((wanted.get(self._kind) or {}).get("zone") or recorded)

    # ---- describing ----------------------------------------------------------------------------------------------

    def describe(self) -> MachineState:
        environment, hosts = self._read()
        known = record.read(environment)
        placement = known.placement[self._kind] % len(hosts.placements(environment.zone))
        zone, name = self._zone(environment, hosts, known), f"{environment.name}-{self._kind}"
        self._last_zone = zone
        describe = self._describe_queued if hosts.queued else self._describe_group
        with _permanent_refusals():
            return describe(hosts.hosts, placement, zone, name)

    def _describe_group(self, wanted: int, placement: int, zone: str, name: str) -> MachineState:
        group = groups.describe(self._google, zone, name)
        if group is None:
            return MachineState(wanted, placement)
        states = {member.name: member.status for member in group.members if member.status}
        failed = [member for member in group.members if member.errors and not member.running]
        error = failed[0].errors[0] if failed else Refusal(0, "")
        permanent = error.reason in ("permission", "missing", "disabled")
        coming = any(member.life == "coming" for member in group.members)
        return MachineState(
            wanted=wanted,
            placement=placement,
            exists=True,
            names=tuple(name for name, status in states.items() if status not in STOPPED),
            stopped=tuple(name for name, status in states.items() if status in STOPPED),
            running=sum(member.running for member in group.members),
            creating=coming or (not group.stable and len(group.members) < wanted),
            trouble="" if permanent else error.message,
            refused=error.message if permanent else "",
        )

    def _describe_queued(self, wanted: int, placement: int, zone: str, name: str) -> MachineState:
        """One node is all hosts of the slice; it bills as soon as it exists, whatever its state."""
        queued = queued_resource.describe(self._google, zone, name)
        if queued is None:
            return MachineState(wanted, placement)
        ready = queued.phase == "ready" and all(life_of(host.state) == "runs" for host in queued.hosts)
        return MachineState(
            wanted=wanted,
            placement=placement,
            exists=True,
            names=tuple(f"{name}-w-{host.number}" for host in queued.hosts if host.state not in STOPPED),
            running=len(queued.hosts) if ready else 0,
            creating=queued.phase in ("waiting", "ready"),
            trouble=queued.trouble if queued.phase == "lost" else "",
        )

    # ---- acting --------------------------------------------------------------------------------------------------

    def up(self, placement: int) -> None:
        """Create the hosts with the image that they ran before. A new image needs `env up`: it would replace the other
        hosts too."""
        self._act(commands.up, placement={self._kind: placement}, same_image=True)

    def down(self) -> None:
        self._act(commands.down)

    def _act(self, act: Callable[..., object], **options: Any) -> None:
        """Act without confirmation."""
        options |= {"parts": (self._kind,), "lock_timeout_seconds": LOCK_TIMEOUT_SECONDS}
        with _permanent_refusals():
            act(self._location, confirm=lambda plan: None, **options)

    def repair(self) -> bool:
        environment, hosts = self._read()
        if isinstance(hosts, Slice):
            return False
        with _permanent_refusals():
            zone, name = self._zone(environment, hosts, record.read(environment)), f"{environment.name}-{self._kind}"
            group = groups.describe(self._google, zone, name)
            if group is None or not group.dead or len(group.members) != hosts.hosts:
                return False
            groups.recreate(self._google, zone, name, [host.name for host in group.dead], seconds=DELETE_SECONDS)
        return True

    def force_delete(self) -> None:
        environment, hosts = self._read()
        try:
            zone = self._zone(environment, hosts, record.read(environment))
        except MaskwrightError:
            if self._last_zone is None:
                raise
            zone = self._last_zone  # the state's bucket cannot be read
        name = f"{environment.name}-{self._kind}"
        if hosts.queued:
            queued_resource.delete(self._google, zone, name)
        else:
            groups.delete(self._google, zone, name, seconds=DELETE_SECONDS)


@contextmanager
def _permanent_refusals() -> Iterator[None]:
    """Raises `PermanentRefusal` for refusals that retrying does not help."""
    try:
        yield
    except MaskwrightError as error:
        if isinstance(error, CloudError):
            permanent = error.reason in ("permission", "credentials", "disabled")
        else:
            permanent = not isinstance(error, InputError) and _denied(error.what)
        if permanent:
            raise PermanentRefusal(error.what, where=error.where, fix=error.fix) from None
        raise


def _denied(text: str) -> bool:
    """Whether Terraform passes on Google's message about a missing permission, as in `googleapi: Error 403: …`."""
    is_403 = "Error 403" in text or errors.PERMISSION.search(text) is not None
    return is_403 and Refusal(403, text).reason == "permission"
