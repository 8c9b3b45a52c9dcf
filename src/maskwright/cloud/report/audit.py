"""An audit of an environment: what exists, what costs money, and whether it is meant to exist.

Everything that can carry it has the label maskwright-environment, and what GKE creates for the cluster has
goog-k8s-cluster-name, so one search finds all of it, in all zones. Terraform's state lists what `env up` created. What
only the search finds is a left-over, unless the cluster still manages it.
https://docs.cloud.google.com/asset-inventory/docs/search-resources
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from maskwright.cloud.environment import ENVIRONMENT_LABEL, Environment
from maskwright.cloud.google.rest import VERSIONS, Google
from maskwright.core.errors import CloudError

CLUSTER_LABEL = "goog-k8s-cluster-name"
"""GKE puts it on nodes, disks and addresses that it creates:
https://docs.cloud.google.com/kubernetes-engine/docs/how-to/creating-managing-labels"""
CREATED = {
    "google_container_cluster": "container.googleapis.com/Cluster",
    "google_container_node_pool": "container.googleapis.com/NodePool",
    "google_compute_disk": "compute.googleapis.com/Disk",
    "google_compute_router_nat": "compute.googleapis.com/RouterNat",
    "google_filestore_instance": "file.googleapis.com/Instance",
    "google_storage_bucket": "storage.googleapis.com/Bucket",
    "google_artifact_registry_repository": "artifactregistry.googleapis.com/Repository",
}
"""Terraform's types that cost money, with Google's name of them."""
BILLS = {
    "Cluster": "the cluster's fee by the hour",
    "NodePool": "its nodes",
    "Disk": "its size",
    "Address": "a public address",
    "RouterNat": "a gateway, by the hour and by traffic",
    "Instance": "a machine, or the capacity of a share",
    "Bucket": "what it holds",
    "Repository": "the images in it",
    "CustomJob": "machines of the job",
}
"""What is billed, by the last part of Google's name."""
FREE = ("InstanceTemplate", "ResourcePolicy", "ServiceAccount", "InstanceGroup", "InstanceGroupManager", "HealthCheck")
"""Kinds that cost nothing. Any other kind may."""


@dataclass(frozen=True)
class Item:
    """A resource that may cost money."""

    kind: str
    """As Google names it, such as "compute.googleapis.com/Disk"."""
    name: str
    location: str
    """A zone, a region, or "global"."""
    why: str
    """Why it exists; empty for a left-over."""

    @property
    def bills(self) -> str:
        return BILLS.get(self.kind.rpartition("/")[2], "it may cost money")

    def line(self) -> str:
        kind = self.kind.rpartition("/")[2]
        return f"{kind} {self.name} in {self.location}: {self.bills}{'; ' if self.why else ''}{self.why}"


@dataclass(frozen=True)
class ResourceAudit:
    environment: str
    items: list[Item]
    unseen: str = ""
    """Why Google could not be searched for left-overs; empty if it could."""

    @property
    def left_over(self) -> list[Item]:
        return [item for item in self.items if not item.why]

    @property
    def clean(self) -> bool:
        return not self.left_over and not self.unseen

    def to_json(self) -> dict[str, Any]:
        items = [{**asdict(item), "bills": item.bills, "why": item.why or None} for item in self.items]
        unseen = self.unseen or None
        return {"environment": self.environment, "clean": self.clean, "items": items, "not_searched": unseen}

    def report(self) -> str:
        kept = [item for item in self.items if item.why]
        lines = [] if self.items else [f"{self.environment}: nothing exists that costs money"]
        for title, items in (("left over, and costs money", self.left_over), ("kept, and costs money", kept)):
            if items:
                lines += [f"{title}:", *(f"  {item.line()}" for item in items)]
        return "\n".join([*lines, *([f"not searched for left-overs: {self.unseen}"] if self.unseen else [])])


def audit(google: Google, environment: Environment, state: Mapping[str, Mapping[str, Any]]) -> ResourceAudit:
    """`state`: `Terraform.resources()`. Raises `CloudError` for credentials that Google refuses."""
    created = {(item.kind, item.name): item for item in _created(state)}
    cluster = any(kind == "container.googleapis.com/Cluster" for kind, _ in created)
    items, unseen = dict(created), ""
    try:
        for found in _search(google, environment):
            kind, name = str(found["assetType"]), str(found["name"]).rpartition("/")[2]
            if kind.rpartition("/")[2] in FREE or (kind, name) in items or not _exists(google, str(found["name"])):
                continue
            why = "a part of the cluster, which deletes it" if cluster and _of_cluster(found) else ""
            items[kind, name] = Item(kind, name, str(found.get("location", "global")), why)
    except CloudError as error:
        if error.reason == "credentials":
            raise
        unseen = str(error)
    if (bucket := google.find("storage", f"b/{environment.state}")) is not None:
        why, place = "Terraform's state, of all environments of the project", str(bucket.get("location", "")).lower()
        items["", environment.state] = Item("storage.googleapis.com/Bucket", environment.state, place, why)
    return ResourceAudit(environment.name, sorted(items.values(), key=lambda item: (item.kind, item.name)), unseen)


def _created(state: Mapping[str, Mapping[str, Any]]) -> Iterator[Item]:
    """What Terraform has created and costs money."""
    for address, values in state.items():
        if kind := CREATED.get(address.partition(".")[0]):
            name = str(values.get("repository_id") or values["name"])
            place = values.get("zone") or values.get("location") or values.get("region") or "global"
            yield Item(kind, name, str(place).lower(), "created by `env up`; `env down` says what it deletes")


def _search(google: Google, environment: Environment) -> Iterator[Mapping[str, Any]]:
    """Resources with one of the labels. A query matches words of a value, so the values are compared again."""
    wanted = {ENVIRONMENT_LABEL: environment.name, CLUSTER_LABEL: environment.name}
    query = " OR ".join(f"labels.{key}:{value}" for key, value in wanted.items())
    for found in google.pages("cloudasset", f"projects/{google.project}:searchAllResources", "results", query=query):
        labels = found.get("labels") or {}
        if any(labels.get(key) == value for key, value in wanted.items()):
            yield found


def _of_cluster(found: Mapping[str, Any]) -> bool:
    name = str(found["name"])
    named = "/clusters/" in name or name.rpartition("/")[2].startswith(("gke-", "pvc-"))
    return named or CLUSTER_LABEL in (found.get("labels") or {})


def _exists(google: Google, name: str) -> bool:
    """Whether a resource such as "//compute.googleapis.com/projects/…" is still there: the search lags by minutes."""
    host, _, path = name.removeprefix("//").partition("/")
    api = host.removesuffix(".googleapis.com")
    if api not in VERSIONS:
        return True
    return google.find(api, f"b/{path}" if api == "storage" else path) is not None
