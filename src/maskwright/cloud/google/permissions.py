"""The permissions that the user or build that runs a command needs. docs/google-cloud-roles.md lists them by role.

They follow from the provider's resources in deploy/terraform, the REST calls in this package and the permission
reference (https://cloud.google.com/iam/docs/permissions-reference). Hosts have a service account with far fewer.
"""

from __future__ import annotations

from collections.abc import Iterable

from maskwright.cloud.environment import Environment
from maskwright.cloud.google.errors import grant, role_of
from maskwright.cloud.google.rest import Google
from maskwright.core.errors import CloudError

MOST_AT_ONCE = 100
"""The most permissions that testIamPermissions takes."""


def _all(start: str, verbs: str) -> tuple[str, ...]:
    return tuple(f"{start}.{verb}" for verb in verbs.split())


ALWAYS: dict[str, tuple[str, ...]] = {
    "init": (
        *_all("serviceusage.services", "enable get list"),
        *_all("storage.buckets", "create get"),
        "resourcemanager.projects.get",
    ),
    "plan, up, down": (
        "resourcemanager.projects.get",
        *_all("storage.buckets", "create get update delete list getIamPolicy setIamPolicy"),
        *_all("storage.objects", "create get delete list"),
        *_all("iam.serviceAccounts", "create get list delete actAs"),
        *_all("artifactregistry.repositories", "create get list delete update getIamPolicy setIamPolicy"),
        *_all("compute", "projects.get regions.get zones.get machineTypes.get"),
        *_all("compute", "globalOperations.get regionOperations.get zoneOperations.get"),
    ),
    "status, audit": _all(
        "compute",
        "instances.list disks.list snapshots.list instantSnapshots.list images.list machineImages.list "
        "storagePools.list reservations.list futureReservations.list addresses.list forwardingRules.list "
        "instanceGroupManagers.list instanceTemplates.list resourcePolicies.list routers.list networks.list "
        "subnetworks.list firewalls.list",
    ),
    "image": (*_all("cloudbuild.builds", "create get"), "artifactregistry.dockerimages.list"),
    "logs": ("logging.logEntries.list",),
}
HOSTS = (
    *_all("compute.instances", "create get list delete setLabels setMetadata setServiceAccount setTags"),
    *_all("compute.instanceTemplates", "create get list delete useReadOnly"),
    *_all("compute.instanceGroupManagers", "create get list delete update use"),
    *_all("compute.disks", "create setLabels"),
)
SLICE = _all("compute.resourcePolicies", "create get list delete use")
QUEUED = (*_all("tpu.nodes", "create get list delete"), "tpu.operations.get")
DISK = _all("compute.disks", "create get list delete update setLabels use useReadOnly")
SEED = _all("compute.instances", "create get delete attachDisk setLabels setMetadata setServiceAccount setTags")
NFS = (*_all("file.instances", "create get list delete update"), "file.operations.get", "file.backups.list")
NETWORK = (
    *_all("compute.networks", "create get list delete use updatePolicy"),
    *_all("compute.subnetworks", "create get list delete use"),
    *_all("compute.firewalls", "create get list delete update"),
)
"""For a network of the environment's own. For one that exists, provision/existing_network.py checks each subnetwork."""
NAT = _all("compute.routers", "create get list delete update use")
RESERVED = _all("compute.reservations", "get list")


def needed(environment: Environment) -> dict[str, list[str]]:
    """Permission -> the commands that need it."""
    groups: list[tuple[str, Iterable[str]]] = list(ALWAYS.items())
    parts = environment.hosts.values()
    if any(not hosts.queued for hosts in parts):
        groups.append(("up, down", HOSTS))
    if environment.slice is not None:
        groups.append(("up, down", QUEUED if environment.queued else SLICE))
    if environment.disk is not None:
        groups += [("up, down", DISK), ("seed", SEED)]
    if environment.nfs is not None:
        groups.append(("up, down", NFS))
    if environment.network.name is None:
        groups.append(("plan, up, down", NETWORK))
    if environment.nat:
        groups.append(("up, down", NAT))
    if any("RESERVATION_BOUND" in hosts.models() for hosts in parts):
        groups.append(("up", RESERVED))
    users: dict[str, list[str]] = {}
    for commands, permissions in groups:
        for permission in permissions:
            listed = users.setdefault(permission, [])
            listed += [command for command in commands.split(", ") if command not in listed]
    return users


def held(google: Google, permissions: list[str]) -> tuple[set[str], set[str]]:
    """Permissions that the caller has in the project, and those that Google cannot test there. Raises `CloudError`."""
    path = f"projects/{google.project}:testIamPermissions"
    halves = [permissions[:MOST_AT_ONCE], permissions[MOST_AT_ONCE:]]
    if not halves[1]:
        try:
            answer = google.call("cloudresourcemanager", "POST", path, {"permissions": permissions})
            return set(answer.get("permissions") or ()), set()
        except CloudError as error:
            if error.reason != "other":
                raise
        if len(permissions) == 1:
            return set(), set(permissions)
        # One unknown permission makes Google refuse the whole list: halve it until that one is found.
        middle = len(permissions) // 2
        halves = [permissions[:middle], permissions[middle:]]
    (has, unknown), (more, others) = (held(google, half) for half in halves)
    return has | more, unknown | others


def role_for(permission: str) -> str:
    """The predefined role to ask for: a viewer role for permissions that only list."""
    only_lists = permission.startswith("compute.") and permission in ALWAYS["status, audit"]
    return "roles/compute.viewer" if only_lists else role_of(permission)


def grants(project: str, missing: Iterable[str]) -> dict[str, str]:
    """Role -> the command with which an owner grants it."""
    return {role: grant(project, role) for role in sorted({role_for(permission) for permission in missing})}
