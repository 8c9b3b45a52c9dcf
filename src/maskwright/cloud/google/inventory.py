"""List every resource of an environment in the project, whoever created it: all kinds that could be left over, in all
zones and regions. Kinds that could not be listed are named.

The label maskwright-environment marks a resource. Without a label, the name decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from maskwright.cloud import record
from maskwright.cloud.environment import ENVIRONMENT_LABEL, Environment, region_of
from maskwright.cloud.google.rest import Google
from maskwright.core.errors import CloudError, MaskwrightError
from maskwright.machine import tpus

Body = Mapping[str, Any]
Part = Literal[
    "slice", "group", "seeder", "disk", "nfs", "network", "buckets", "registry", "account", "vertex", "other"
]
MOST_OBJECTS = 1000
"""Objects of a bucket that count towards its size: one page."""


@dataclass(frozen=True)
class Kind:
    """A kind of resource, and how to list it."""

    name: str
    api: str
    path: str
    """Path of the list, with {project}, {region} for each region in turn, and "-" for all locations."""
    key: str = "items"
    """Key of the list in the answer."""
    labels: str | None = "labels"
    """Dotted path to the labels; None for a kind without labels."""
    bills: str | None = None
    """Why it costs money; None for a kind that is free."""
    free: Callable[[Body], bool] = lambda body: False
    """Whether a resource is free although its kind is not."""
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CloudResource:
    """A resource of the environment."""

    kind: str
    name: str
    place: str
    """A zone, a region, or "global"."""
    part: Part
    bills: str | None
    """Why it costs money; None if it is free."""
    priced: tuple[str, str, str, float] | None
    """What, region, provisioning model and quantity (GiB of a bucket), as in the price table."""
    body: Body
    """Google's description of the resource."""
    labelled: bool = True
    """False if it was recognised only by its name."""


@dataclass(frozen=True)
class Unseen:
    """A kind that could not be listed."""

    kind: str
    reason: str
    """One of `CloudError`'s reasons. While an API is disabled, nothing of the kind can be created."""
    why: str


@dataclass(frozen=True)
class Inventory:
    resources: list[CloudResource]
    unseen: list[Unseen]

    def of(self, kind: str) -> list[CloudResource]:
        return [resource for resource in self.resources if resource.kind == kind]


# ---- what costs money ----------------------------------------------------------------------------------------------


def _at_rest(*states: str) -> Callable[[Body], bool]:
    """A predicate: whether a resource is in one of these states, in which it is free."""

    def free(body: Body) -> bool:
        state = body.get("state") or body.get("status")
        state = state.get("state") if isinstance(state, Mapping) else state
        return str(state).removeprefix("JOB_STATE_") in states

    return free


def _internal(body: Body) -> bool:
    return body.get("addressType") == "INTERNAL"


def _without_nat(body: Body) -> bool:
    return not body.get("nats")


TO_COME = "a TPU that may come at any time"
"""A queued resource is free, but at any time it can become a node, which is not."""
OFF = _at_rest("TERMINATED", "STOPPED", "SUSPENDED", "PREEMPTED")
ENDED = _at_rest("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED", "PARTIALLY_SUCCEEDED")
LOST = _at_rest("SUSPENDED", "FAILED")
COMPUTE = "projects/{project}/aggregated/"
GLOBAL = "projects/{project}/global/"
ANYWHERE = "projects/{project}/locations/-/"
REGIONAL = "projects/{project}/locations/{region}/"
DELETED = {"project": "{project}", "softDeleted": "true"}
KINDS = (
    Kind("instance", "compute", f"{COMPUTE}instances", bills="machine", free=OFF),
    Kind("disk", "compute", f"{COMPUTE}disks", bills="disk"),
    Kind("snapshot", "compute", f"{GLOBAL}snapshots", bills="what it holds"),
    Kind("instant snapshot", "compute", f"{COMPUTE}instantSnapshots", bills="what it holds"),
    Kind("image", "compute", f"{GLOBAL}images", bills="what it holds"),
    Kind("machine image", "compute", f"{GLOBAL}machineImages", bills="what it holds"),
    Kind("storage pool", "compute", f"{COMPUTE}storagePools", bills="its capacity"),
    Kind("reservation", "compute", f"{COMPUTE}reservations", labels=None, bills="machines held ready"),
    Kind("future reservation", "compute", f"{COMPUTE}futureReservations", labels=None, bills="machines to come"),
    Kind("address", "compute", f"{COMPUTE}addresses", bills="public address", free=_internal),
    Kind("forwarding rule", "compute", f"{COMPUTE}forwardingRules", bills="rule"),
    Kind("instance group", "compute", f"{COMPUTE}instanceGroupManagers", labels=None),
    Kind("instance template", "compute", f"{COMPUTE}instanceTemplates", labels="properties.labels"),
    Kind("resource policy", "compute", f"{COMPUTE}resourcePolicies", labels=None),
    Kind("network", "compute", f"{GLOBAL}networks", labels=None),
    Kind("subnetwork", "compute", f"{COMPUTE}subnetworks", labels=None),
    Kind("firewall", "compute", f"{GLOBAL}firewalls", labels=None),
    Kind("router", "compute", f"{COMPUTE}routers", labels=None, bills="gateway (NAT)", free=_without_nat),
    Kind("Filestore instance", "file", f"{ANYWHERE}instances", "instances", bills="its capacity"),
    Kind("Filestore backup", "file", f"{ANYWHERE}backups", "backups", bills="what it holds"),
    Kind("bucket", "storage", "b", bills="what it holds", query={"project": "{project}"}),
    Kind("deleted bucket", "storage", "b", bills="what it held", query=DELETED),
    Kind("TPU node", "tpu", f"{ANYWHERE}nodes", "nodes", bills="TPU", free=OFF),
    Kind("queued resource", "tpu", f"{ANYWHERE}queuedResources", "queuedResources", None, TO_COME, LOST),
    Kind("repository", "artifactregistry", f"{REGIONAL}repositories", "repositories", bills="images in it"),
    Kind("Vertex AI job", "aiplatform", f"{REGIONAL}customJobs", "customJobs", bills="machines of the job", free=ENDED),
    Kind("service account", "iam", "projects/{project}/serviceAccounts", "accounts", None),
)


# ---- listing -------------------------------------------------------------------------------------------------------


def take_inventory(google: Google, environment: Environment, regions: Collection[str] = ()) -> Inventory:
    """List the resources, in `regions` too. A kind that cannot be listed goes to `unseen`. Raises `CloudError` only for
    credentials that Google does not accept."""
    others, unseen = _others(environment)
    resources: list[CloudResource] = []
    unreached: dict[str, CloudError] = {}
    everywhere = list(dict.fromkeys([*environment.regions, *regions]))
    for kind in KINDS:
        for region in everywhere if "{region}" in kind.path else [""]:
            names = {"project": google.project, "region": region}
            query: dict[str, Any] = {key: value.format(**names) for key, value in kind.query.items()}
            query |= {"returnPartialSuccess": True} if kind.api == "compute" else {}
            missed: list[str] = []
            try:
                if kind.api in unreached:  # retrying took a minute, and there are many kinds
                    raise unreached[kind.api]
                for body in google.pages(kind.api, kind.path.format(**names), kind.key, missed=missed, **query):
                    if _is_ours(environment, kind, body, others):
                        resources.append(_resource(environment, kind, body))
            except CloudError as error:
                if error.reason == "credentials":  # every other call would be refused too
                    raise
                if error.reason == "unreached":
                    unreached[kind.api] = error
                unseen.append(Unseen(kind.name, error.reason, str(error)))
            if missed:
                unseen.append(Unseen(kind.name, "other", f"Google could not list {', '.join(sorted(set(missed)))}"))
    return Inventory(resources, unseen)


def _others(environment: Environment) -> tuple[list[str], list[Unseen]]:
    """Environments in the same state bucket whose names begin with this one's: resources of those names are theirs."""
    where = record.folder(environment)
    try:
        names = record.Folder(where.location.rpartition("/")[0]).names("")
    except MaskwrightError as error:
        return [], [Unseen("other environments", "other", str(error))]
    return [name for name in names if name.startswith(f"{environment.name}-")], []


def _in_existing_network(environment: Environment, body: Body, name: str) -> bool:
    """Whether it is, or is in, the existing network that the environment uses, where nothing is created."""
    network, link = environment.network, str(body.get("network", "")).rpartition("/")[2]
    return network.name == (link or name) and network.project in (None, environment.project)


def name_of(body: Body) -> str:
    """The last part of a path such as "projects/…/instances/x"; of a service account, the part before the @."""
    return str(body.get("email") or body.get("name", "")).rpartition("/")[2].partition("@")[0]


def _is_ours(environment: Environment, kind: Kind, body: Body, others: Collection[str]) -> bool:
    if ENVIRONMENT_LABEL in (labels := _labels(kind, body)):
        return bool(labels[ENVIRONMENT_LABEL] == environment.name)
    name = name_of(body)
    if kind.name in ("network", "subnetwork", "firewall", "router") and _in_existing_network(environment, body, name):
        return False
    if kind.api == "storage":
        if name == environment.state:
            return False  # shared by all environments, of which one may be named maskwright
        name = name.removeprefix(f"{environment.project}-")
    if kind.name == "repository" and name == environment.name:
        return True
    named = name == environment.name or name.startswith(f"{environment.name}-")
    return named and not any(name == other or name.startswith(f"{other}-") for other in others)


def _labels(kind: Kind, body: Body) -> Mapping[str, str]:
    if kind.labels is None:
        return {}
    labels: Any = body
    for word in kind.labels.split("."):
        labels = (labels or {}).get(word) or {}
    return dict(labels)


def _resource(environment: Environment, kind: Kind, body: Body) -> CloudResource:
    name, labelled = name_of(body), kind.labels is None or ENVIRONMENT_LABEL in _labels(kind, body)
    where, bills = _place(body), None if kind.free(body) else kind.bills
    price = priced(kind.name, body, where) if bills else None
    return CloudResource(kind.name, name, where, part_of(environment, kind.name, name), bills, price, body, labelled)


def _place(body: Body) -> str:
    for key in ("name", "selfLink"):
        if match := re.search(r"(?:zones|regions|locations)/([^/]+)", str(body.get(key, ""))):
            return match[1]
    return str(body.get("location", "global")).lower()


PARTS: dict[str, Part] = {
    "bucket": "buckets",
    "deleted bucket": "buckets",
    "repository": "registry",
    "service account": "account",
    "Vertex AI job": "vertex",
    **dict.fromkeys(("network", "subnetwork", "firewall", "router"), "network"),
}
"""Parts that follow from the kind alone."""
HOSTS = (
    *("instance", "disk", "instance group", "instance template", "resource policy"),
    *("TPU node", "queued resource"),
)
"""Kinds of which hosts and the seeding machine consist."""


def part_of(environment: Environment, kind: str, name: str) -> Part:
    """The part of the environment that a resource belongs to, by the names that Terraform gives."""
    if kind in PARTS:
        return PARTS[kind]
    rest = name.removeprefix(f"{environment.name}-")
    if kind == "disk" and rest != name and re.fullmatch(r"data-\d+", rest):
        return "disk"
    if kind == "Filestore instance" and rest == "nfs":
        return "nfs"
    words: tuple[Part, ...] = ("slice", "group", "seeder")
    of_hosts = kind in HOSTS and rest != name
    return next((word for word in words if of_hosts and rest.partition("-")[0] == word), "other")


# ---- what it costs -------------------------------------------------------------------------------------------------


def priced(kind: str, body: Body, place: str) -> tuple[str, str, str, float] | None:
    region = region_of(place) if re.fullmatch(r".+-[a-z]", place) else place
    if kind == "instance":
        machine = str(body.get("machineType", "")).rpartition("/")[2]
        model = str((body.get("scheduling") or {}).get("provisioningModel", "STANDARD"))
        name, count = tpus.MACHINES.get(machine, (machine, 1))
        return name, region, model, count
    if kind == "disk":
        return str(body.get("type", "")).rpartition("/")[2], region, "STANDARD", int(body.get("sizeGb", 0))
    if kind == "Filestore instance":
        size = sum(int(share.get("capacityGb", 0)) for share in body.get("fileShares") or ())
        return str(body.get("tier", "")), region, "STANDARD", size
    if kind == "TPU node":
        spot = (body.get("schedulingConfig") or {}).get("spot")
        if known := tpus.kind_and_chips(str(body.get("acceleratorType", ""))):
            return known[0], region, "SPOT" if spot else "STANDARD", known[1]
    if kind == "bucket" and "bytes" in body:
        return "bucket", region, "STANDARD", int(body["bytes"]) / 2**30
    return None


def size_of_bucket(google: Google, name: str) -> tuple[int, bool]:
    """Bytes of the first `MOST_OBJECTS` objects with their older versions, and whether these are all: one request."""
    fields: dict[str, Any] = {"fields": "items(size),nextPageToken", "maxResults": MOST_OBJECTS, "versions": True}
    answer = google.call("storage", "GET", f"b/{name}/o", **fields)
    return sum(int(item.get("size", 0)) for item in answer.get("items") or ()), "nextPageToken" not in answer
