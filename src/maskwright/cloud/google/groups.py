"""Managed instance groups by REST: which hosts there are, how they do, and hosts made anew.

Terraform makes the group; the watcher reads and repairs it here. The group itself brings no host back, because a slice
is whole or useless (https://docs.cloud.google.com/compute/docs/instance-groups/about-repair). Below the group, Compute
Engine starts a host again that it has lost, unless it is a Spot or Flex-start one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from maskwright.cloud.google.errors import NAMES, Refusal
from maskwright.cloud.google.host_states import Life, life_of
from maskwright.cloud.google.rest import Google, new_request_id

WORKING = {"NONE", "VERIFYING", "REFRESHING"}
"""Actions of the group that leave the host as it is."""
MAKING = {"CREATING", "CREATING_WITHOUT_RETRIES", "RECREATING", "RESTARTING", "RESUMING", "STARTING"}
"""Actions of the group after which the host runs."""


@dataclass(frozen=True)
class ManagedInstance:
    """A host of the group."""

    name: str
    status: str
    """Status of the instance, "" before there is one."""
    action: str
    """Google's word for what the group does with it."""
    errors: tuple[Refusal, ...]
    """Why the last attempt to make it failed; each message is "CODE: sentence"."""

    @property
    def life(self) -> Life:
        if self.action in WORKING:
            return life_of(self.status)
        return "coming" if self.action in MAKING else "gone"

    @property
    def running(self) -> bool:
        return self.life == "runs"


@dataclass(frozen=True)
class InstanceGroup:
    """An instance group as it is now."""

    target: int
    """Number of hosts that it should have."""
    stable: bool
    """Whether it is about to change nothing. Its hosts may still be dead."""
    members: tuple[ManagedInstance, ...]

    @property
    def dead(self) -> tuple[ManagedInstance, ...]:
        """Hosts that do not run, and that the group leaves so."""
        return tuple(one for one in self.members if one.action in WORKING and not one.running)


def describe(google: Google, zone: str, name: str) -> InstanceGroup | None:
    """None when there is none."""
    path = _path(google, zone, name)
    body = google.find("compute", path)
    if body is None:
        return None
    found = google.pages("compute", f"{path}/listManagedInstances", "managedInstances", verb="POST")
    members = tuple(sorted((_member(one) for one in found), key=lambda member: member.name))
    return InstanceGroup(int(body.get("targetSize", 0)), bool((body.get("status") or {}).get("isStable")), members)


def recreate(google: Google, zone: str, name: str, hosts: Iterable[str], *, seconds: float) -> None:
    """Deletes those hosts and has them made anew under their names. `seconds` is for Google to take it up; the hosts
    come later. Raises `CloudError`."""
    if instances := [f"zones/{zone}/instances/{host}" for host in hosts]:
        path, body = f"{_path(google, zone, name)}/recreateInstances", {"instances": instances}
        operation = google.call("compute", "POST", path, body, requestId=new_request_id())
        google.wait("compute", operation, seconds=seconds)


def delete(google: Google, zone: str, name: str, *, seconds: float) -> bool:
    """Deletes it with its hosts. False when there was none."""
    return google.delete("compute", _path(google, zone, name), seconds=seconds, requestId=new_request_id())


def _member(body: dict[str, Any]) -> ManagedInstance:
    found = ((body.get("lastAttempt") or {}).get("errors") or {}).get("errors") or []
    name = str(body.get("name") or str(body.get("instance", "")).rsplit("/", 1)[-1])
    status, action = str(body.get("instanceStatus", "")), str(body.get("currentAction", "NONE"))
    return ManagedInstance(name, status, action, tuple(_refusal(one) for one in found))


def _refusal(body: dict[str, Any]) -> Refusal:
    code = str(body.get("code", "ERROR"))
    return Refusal(NAMES.get(code, 400), f"{code}: {' '.join(str(body.get('message', '')).split())}", code)


def _path(google: Google, zone: str, name: str) -> str:
    return f"projects/{google.project}/zones/{zone}/instanceGroupManagers/{name}"
