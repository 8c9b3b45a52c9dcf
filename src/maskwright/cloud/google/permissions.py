"""The permissions that the user or build that runs a command needs. docs/google-cloud-access.md lists them by role.

They follow from the provider's resources in deploy/terraform, the REST calls in this package and the permission
reference (https://cloud.google.com/iam/docs/permissions-reference). Jobs and nodes have accounts with far fewer.
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
        *_all("compute", "machineTypes.get diskTypes.get"),
        "resourcemanager.projects.get",
    ),
    "plan, up, down": (
        *_all("resourcemanager.projects", "get getIamPolicy setIamPolicy"),
        *_all("storage.buckets", "create get update delete getIamPolicy setIamPolicy"),
        *_all("storage.objects", "create get delete list"),
        *_all("iam.serviceAccounts", "create get delete actAs getIamPolicy setIamPolicy"),
        *_all("artifactregistry.repositories", "create get update delete getIamPolicy setIamPolicy"),
        *_all("container.clusters", "create get update delete connect"),
        *_all("container.operations", "get list"),
    ),
    # What Kueue and JobSet are made of, and the queue, the classes of nodes and the volumes. These stand for the rest
    # of the role that has them: no smaller predefined role may create a ClusterRole.
    "up": (
        *_all("container.clusterRoles", "create bind escalate"),
        *_all("container.thirdPartyObjects", "create get update delete"),
        *_all("container", "customResourceDefinitions.create mutatingWebhookConfigurations.create namespaces.create"),
    ),
    "status, audit": ("container.clusters.get", "cloudasset.assets.searchAllResources"),
    "image": (*_all("cloudbuild.builds", "create get"), "artifactregistry.dockerimages.list"),
}
DISK = _all("compute.disks", "create get delete update setLabels")
SEED = (*_all("container.jobs", "create get delete"), *_all("container.pods", "get list getLogs"))
NFS = (*_all("file.instances", "create get update delete"), "file.operations.get")
NETWORK = (
    *_all("compute.networks", "create get delete updatePolicy"),
    *_all("compute.subnetworks", "create get update delete use"),
    "compute.globalOperations.get",
    "compute.regionOperations.get",
)
"""For a network of the environment's own."""
NAT = _all("compute.routers", "create get update delete")


def needed(environment: Environment) -> dict[str, list[str]]:
    """Permission -> the commands that need it."""
    groups: list[tuple[str, Iterable[str]]] = list(ALWAYS.items())
    if environment.disk is not None:
        groups += [("plan, up, down", (*DISK, "compute.zoneOperations.get")), ("seed", SEED)]
    if environment.nfs is not None:
        groups.append(("plan, up, down", NFS))
    if environment.network.name is None:
        groups.append(("plan, up, down", NETWORK))
    if environment.network.nat:
        groups.append(("plan, up, down", NAT))
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


def grants(project: str, missing: Iterable[str]) -> dict[str, str]:
    """Role -> the command with which an owner grants it."""
    return {role: grant(project, role) for role in sorted({role_of(permission) for permission in missing})}
