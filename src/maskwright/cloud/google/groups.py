"""Managed instance groups by REST: describe, recreate hosts, delete.

Terraform creates the group; the watcher describes and repairs it here. The group itself repairs no host, because a
slice is whole or useless (https://docs.cloud.google.com/compute/docs/instance-groups/about-repair). Below the group,
Compute Engine restarts a host that it has lost, unless it is a Spot or Flex-start one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from maskwright.cloud.google.errors import NAMES, Refusal
from maskwright.cloud.google.host_states import Life, life_of
from maskwright.cloud.google.rest import Google, new_request_id

KEEPING = {"NONE", "VERIFYING", "REFRESHING"}
"""Actions of the group that do not change the host."""
STARTING = {"CREATING", "CREATING_WITHOUT_RETRIES", "RECREATING", "RESTARTING", "RESUMING", "STARTING"}
"""Actions of the group after which the host runs."""


@dataclass(frozen=True)
class ManagedInstance:
    """A host of a group."""

    name: str
    status: str
    """Status of the instance; empty before it exists."""
    action: str
    """Google's name of what the group does with it."""
    errors: tuple[Refusal, ...]
    """Why the last attempt to create it failed; each message is "CODE: sentence"."""

    @property
    def life(self) -> Life:
        if self.action in KEEPING:
            return life_of(self.status)
        return "coming" if self.action in STARTING else "gone"

    @property
    def running(self) -> bool:
        return self.life == "runs"


@dataclass(frozen=True)
class InstanceGroup:
    """The state of an instance group."""

    target: int
    """Wanted number of hosts."""
    stable: bool
    """Whether the group has no changes pending. Its hosts may still be dead."""
    members: tuple[ManagedInstance, ...]

    @property
    def dead(self) -> tuple[ManagedInstance, ...]:
        """Hosts that do not run, and that the group will not start."""
        return tuple(host for host in self.members if host.action in KEEPING and not host.running)


def describe(google: Google, zone: str, name: str) -> InstanceGroup | None:
    """None if it does not exist."""
    path = _path(google, zone, name)
    body = google.find("compute", path)
    if body is None:
        return None
    instances = google.pages("compute", f"{path}/listManagedInstances", "managedInstances", verb="POST")
    members = tuple(sorted(map(_member, instances), key=lambda member: member.name))
    return InstanceGroup(int(body.get("targetSize", 0)), bool((body.get("status") or {}).get("isStable")), members)


def recreate(google: Google, zone: str, name: str, hosts: Iterable[str], *, seconds: float) -> None:
    """Delete these hosts and create them again under their names. `seconds` is the time for Google to accept that; the
    hosts come later. Raises `CloudError`."""
    if instances := [f"zones/{zone}/instances/{host}" for host in hosts]:
        path, body = f"{_path(google, zone, name)}/recreateInstances", {"instances": instances}
        operation = google.call("compute", "POST", path, body, requestId=new_request_id())
        google.wait("compute", operation, seconds=seconds)


def delete(google: Google, zone: str, name: str, *, seconds: float) -> bool:
    """Delete the group with its hosts. False if there is none."""
    return google.delete("compute", _path(google, zone, name), seconds=seconds, requestId=new_request_id())


def _member(body: dict[str, Any]) -> ManagedInstance:
    failures = ((body.get("lastAttempt") or {}).get("errors") or {}).get("errors") or []
    name = str(body.get("name") or str(body.get("instance", "")).rsplit("/", 1)[-1])
    status, action = str(body.get("instanceStatus", "")), str(body.get("currentAction", "NONE"))
    return ManagedInstance(name, status, action, tuple(map(_refusal, failures)))


def _refusal(body: dict[str, Any]) -> Refusal:
    code = str(body.get("code", "ERROR"))
    return Refusal(NAMES.get(code, 400), f"{code}: {' '.join(str(body.get('message', '')).split())}", code)


def _path(google: Google, zone: str, name: str) -> str:
    return f"projects/{google.project}/zones/{zone}/instanceGroupManagers/{name}"
