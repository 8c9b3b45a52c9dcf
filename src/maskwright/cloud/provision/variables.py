"""The variables of deploy/terraform, as in `terraform.tfvars.json`. A part that is null does not exist."""

from __future__ import annotations

from typing import Any

from maskwright.cloud.environment import ENVIRONMENT_LABEL, Environment
from maskwright.cloud.record import EnvironmentRecord


def variables(environment: Environment, record: EnvironmentRecord, *, delete_data: bool = False) -> dict[str, Any]:
    """Everything in the YAML. `delete_data` lifts the protection of buckets and NFS."""
    disk, network = environment.disk, environment.network
    return {
        "project": environment.project,
        "region": environment.region,
        "zone": environment.zone,
        "name": environment.name,
        "labels": {ENVIRONMENT_LABEL: environment.name, **environment.labels},
        "cluster": {**environment.cluster.model_dump(), "location": environment.location},
        "nat": network.nat,
        "network": network.name
        and {
            "id": environment.network_path,
            "subnetwork": environment.subnetwork_path,
            "pods_range": network.pods_range,
            "services_range": network.services_range,
            "shared": network.project not in (None, environment.project),
        },
        "bucket_location": environment.bucket_location or environment.region,
        "dataset_bucket": environment.dataset_bucket,
        "runs_bucket": environment.runs_bucket,
        "nfs": environment.nfs and environment.nfs.model_dump(),
        "disk": disk
        and {
            "name": environment.disk_name(record.generation),
            "type": disk.type,
            "size_gb": disk.size_gb,
            "seeded": record.seeded is not None,
        },
        "delete_data": delete_data,
    }
