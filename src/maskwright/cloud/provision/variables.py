"""The variables of deploy/terraform, as in `terraform.tfvars.json`. A part that is null does not exist."""

from __future__ import annotations

from typing import Any

from maskwright.cloud.environment import Environment
from maskwright.cloud.record import EnvironmentRecord


def variables(environment: Environment, record: EnvironmentRecord, *, delete_data: bool = False) -> dict[str, Any]:
    """Everything that the YAML asks for. `delete_data` takes the protection off buckets and NFS."""
    disk, cluster = environment.disk, environment.cluster
    name = environment.disk_name(record.generation)
    return {
        "project": environment.project,
        "region": environment.region,
        "zone": environment.zone,
        "name": environment.name,
        "labels": environment.all_labels(),
        "cluster": {
            "location": environment.location,
            "release_channel": cluster.release_channel,
            "machine_type": cluster.machine_type,
        },
        "nat": environment.network.nat,
        "network": _network(environment),
        "bucket_location": environment.bucket_location or environment.region,
        "dataset_bucket": environment.dataset_bucket,
        "runs_bucket": environment.runs_bucket,
        "nfs": environment.nfs.model_dump() if environment.nfs else None,
        "disk": (
            {"name": name, "type": disk.type, "size_gb": disk.size_gb, "seeded": record.seeded is not None}
            if disk
            else None
        ),
        "delete_data": delete_data,
    }


def _network(environment: Environment) -> dict[str, Any] | None:
    """None if the environment creates its own network."""
    network = environment.network
    if network.name is None:
        return None
    return {
        "id": environment.network_path,
        "subnetwork": environment.subnetwork_path,
        "pods_range": network.pods_range,
        "services_range": network.services_range,
        "shared": network.project not in (None, environment.project),
    }
