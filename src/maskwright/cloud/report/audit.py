"""`env audit`: parts that `env up` has created and that cost money, from Terraform's state. Google's own search
(`SEARCH`) finds everything else with the environment's labels, such as nodes of a cluster that was deleted by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from maskwright.cloud.environment import ENVIRONMENT_LABEL, Environment

COSTS = {
    "google_container_cluster": "the cluster's fee by the hour",
    "google_container_node_pool": "its nodes",
    "google_compute_disk": "its size",
    "google_compute_router_nat": "a gateway, by the hour and by traffic",
    "google_filestore_instance": "the capacity of a share",
    "google_storage_bucket": "its contents",
    "google_artifact_registry_repository": "the images in it",
}
"""Terraform's types that cost money, and the billed part."""
SEARCH = (
    "gcloud asset search-all-resources --scope=projects/{project} "
    f"--query='labels.{ENVIRONMENT_LABEL}:{{name}} OR labels.goog-k8s-cluster-name:{{name}}'"
)
"""The second label is GKE's, on nodes, disks and addresses that it creates:
https://docs.cloud.google.com/kubernetes-engine/docs/how-to/creating-managing-labels"""


@dataclass(frozen=True)
class Item:
    type: str
    """Address of the resource in Terraform."""
    name: str
    location: str
    """A zone, a region, or "global"."""
    bills: str


@dataclass(frozen=True)
class ResourceAudit:
    environment: str
    items: list[Item]
    search: str
    """Command that lists everything with its labels."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def report(self) -> str:
        lines = [f"  {item.type} {item.name} in {item.location}: {item.bills}" for item in self.items]
        last = f"`{self.search}` lists everything with its labels, including leftovers"
        return "\n".join(["kept, and costs money:", *lines, last])


def audit(environment: Environment, state: Mapping[str, Mapping[str, Any]]) -> ResourceAudit:
    """`state`: `Terraform.resources()`."""
    kept = "Terraform's state, of all environments of the project"
    items = [Item("storage_bucket", environment.state, environment.bucket_location or environment.region, kept)]
    for address, values in state.items():
        kind = address.partition(".")[0]
        if kind in COSTS:
            place = values.get("zone") or values.get("location") or values.get("region") or "global"
            name = str(values.get("repository_id") or values["name"])
            items.append(Item(kind.removeprefix("google_"), name, str(place).lower(), COSTS[kind]))
    search = SEARCH.format(project=environment.project, name=environment.name)
    return ResourceAudit(environment.name, sorted(items, key=lambda item: (item.type, item.name)), search)
