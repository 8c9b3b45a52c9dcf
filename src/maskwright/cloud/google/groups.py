"""Managed instance groups by REST: which hosts there are and how they do, and to have them made anew.

Terraform makes the group; who watches it reads and repairs it here. Google does not repair it itself, because a slice
is whole or useless: https://docs.cloud.google.com/compute/docs/instance-groups/about-repair
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from maskwright.cloud.google.rest import Google, new_request_id

WORKING = {"NONE", "VERIFYING", "REFRESHING"}
"""Actions of the group that leave the host running."""


@dataclass(frozen=True)
class Member:
    """`status` of the instance, "" before there is one; `action`: what the group does with it. `errors`: of the last
    attempt to make it, as "CODE: message"."""

    name: str
    status: str
    action: str
    errors: tuple[str, ...]

    @property
    def running(self) -> bool:
        return self.status == "RUNNING" and self.action in WORKING

    @property
    def coming(self) -> bool:
        return self.action not in WORKING and self.action != "DELETING" and not self.errors


@dataclass(frozen=True)
class Group:
    """`target`: hosts that it should have. `stable`: it is not about to change anything; hosts may still be dead."""

    name: str
    zone: str
    target: int
    stable: bool
    members: tuple[Member, ...]

    @property
    def dead(self) -> tuple[Member, ...]:
        """Hosts that were lost and that nobody brings back."""
        return tuple(one for one in self.members if not one.running and not one.coming and one.action in WORKING)


def describe(google: Google, zone: str, name: str) -> Group | None:
    """None when there is none."""
    path = _path(google, zone, name)
    body = google.find("compute", path)
    if body is None:
        return None
    found = google.pages("compute", f"{path}/listManagedInstances", "managedInstances", verb="POST")
    members = tuple(sorted((_member(one) for one in found), key=lambda member: member.name))
    stable = bool((body.get("status") or {}).get("isStable"))
    return Group(name, zone, int(body.get("targetSize", 0)), stable, members)


def recreate(google: Google, zone: str, name: str, hosts: Iterable[str], *, seconds: float) -> None:
    """Deletes those hosts and has them made anew under their names. `seconds`: for Google to take it up; the hosts come
    later. Raises `CloudError`."""
    places = [f"zones/{zone}/instances/{host}" for host in hosts]
    if places:
        _act(google, _path(google, zone, name), "recreateInstances", seconds, {"instances": places})


def delete(google: Google, zone: str, name: str, *, seconds: float) -> bool:
    """With its hosts; False when there was none."""
    path = _path(google, zone, name)
    if google.find("compute", path) is None:
        return False
    operation = google.call("compute", "DELETE", path, requestId=new_request_id())
    if operation:
        google.wait("compute", operation, seconds=seconds)
    return True


def _act(google: Google, path: str, verb: str, seconds: float, body: dict[str, Any] | None, **query: Any) -> None:
    operation = google.call("compute", "POST", f"{path}/{verb}", body, requestId=new_request_id(), **query)
    google.wait("compute", operation, seconds=seconds)


def _member(body: dict[str, Any]) -> Member:
    found = ((body.get("lastAttempt") or {}).get("errors") or {}).get("errors") or []
    name = str(body.get("name") or str(body.get("instance", "")).rsplit("/", 1)[-1])
    status, action = str(body.get("instanceStatus", "")), str(body.get("currentAction", "NONE"))
    return Member(name, status, action, tuple(_error(one) for one in found))


def _error(body: dict[str, Any]) -> str:
    return f"{body.get('code', 'ERROR')}: {' '.join(str(body.get('message', '')).split())}"


def _path(google: Google, zone: str, name: str) -> str:
    return f"projects/{google.project}/zones/{zone}/instanceGroupManagers/{name}"
