"""The variables of deploy/terraform, as `terraform.tfvars.json` holds them.

A part that is null does not exist. `--only` takes the other parts from what was asked for last, so that each plan is of
the whole environment and no `-target` is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from maskwright import __version__
from maskwright.cloud import machines
from maskwright.cloud.environment import Environment, Group, Slice, beside, region_of
from maskwright.cloud.record import EnvironmentRecord

PARTS = ("slice", "group", "disk", "nfs")
RUNNING = ("slice", "group", "seeder")
"""Parts that `down` takes away. The others hold data, or cost next to nothing."""
DATA = {"disk": "google_compute_disk", "nfs": "google_filestore_instance"}
"""Parts that hold data, and what Terraform calls them."""
SHARED_DEVICE = "shared-pd"
SEEDER_IMAGE = "projects/debian-cloud/global/images/family/debian-12"
SEEDER_HOURS = 12
"""Google ends the seeding machine after so long, if nobody else does."""


def variables(environment: Environment, record: EnvironmentRecord, setup: str | None) -> dict[str, Any]:
    """Everything that the YAML asks for, without a seeding machine. `setup` is the gs:// of the set-up script."""
    disk, seeded = environment.disk, record.seeded is not None
    name = environment.disk_name(record.generation)
    return {
        "project": environment.project,
        "region": environment.region,
        "zone": environment.zone,
        "regions": environment.regions,
        "name": environment.name,
        "labels": environment.all_labels(),
        "nat": environment.nat,
        "network": _network(environment),
        "bucket_location": environment.bucket_location or environment.region,
        "dataset_bucket": environment.dataset_bucket,
        "runs_bucket": environment.runs_bucket,
        "mount_point": environment.mount_point,
        "nfs": environment.nfs.model_dump() if environment.nfs else None,
        "disk": {"name": name, "type": disk.type, "size_gb": disk.size_gb, "seeded": seeded} if disk else None,
        "seeder": None,
        "slice": _hosts(environment, environment.slice, record, disk is not None and seeded),
        "group": _hosts(environment, environment.group, record, disk is not None and seeded),
        "host": {
            "container": record.container(environment),
            "setup": setup,
            "idle_minutes": environment.host.idle_minutes,
            "version": __version__,
        },
        "delete_data": False,
    }


def _network(environment: Environment) -> dict[str, Any] | None:
    """None where the environment has a network of its own."""
    network = environment.network
    if network.name is None:
        return None
    return {
        "id": environment.network_path,
        "subnetworks": {region: environment.subnetwork_path(region) for region in network.subnetworks},
        "shared": network.project not in (None, environment.project),
    }


def setup_address(environment: Environment, location: str) -> str | None:
    """Address of the set-up script that the YAML at `location` names, for hosts. Its content decides the name."""
    setup = beside(location, environment.host.setup)
    return f"gs://{environment.runs_bucket}/setup/{setup[0]}.sh" if setup else None


def _hosts(
    environment: Environment, hosts: Slice | Group | None, record: EnvironmentRecord, attach_disk: bool
) -> dict[str, Any] | None:
    """None for queued resources too: Terraform has nothing that could make them as they have to be."""
    if hosts is None or hosts.queued:
        return None
    zone, model = hosts.place(environment.zone, record.placement[hosts.kind])
    family = machines.family_of(hosts.machine())
    return {
        "machine_type": hosts.machine(),
        "topology": hosts.topology if isinstance(hosts, Slice) else None,
        "hosts": hosts.hosts,
        "accelerator": family.accelerator,
        "boot_disk": family.boot_disk,
        "data_disks": list(family.data_disks),
        "zone": zone,
        "region": region_of(zone),
        "provisioning_model": model,
        "reservation": hosts.reservation if model == "RESERVATION_BOUND" else None,
        "max_run_hours": hosts.max_run_hours,
        "image": hosts.image or family.image,
        "attach_disk": attach_disk,
    }


def seeder(environment: Environment, record: EnvironmentRecord, prepare: str | None) -> dict[str, Any]:
    assert environment.disk is not None
    return {
        "machine_type": environment.disk.seeder_machine,
        "boot_disk": machines.family_of(environment.disk.seeder_machine).boot_disk,
        "image": SEEDER_IMAGE,
        "source": environment.disk.source,
        "prepare": prepare,
        "result": seed_result(environment, record),
        "max_hours": SEEDER_HOURS,
    }


def seed_result(environment: Environment, record: EnvironmentRecord) -> str:
    return f"gs://{environment.runs_bucket}/seed/{environment.disk_name(record.generation)}/result.json"


def only(before: dict[str, Any] | None, wished: dict[str, Any], parts: Collection[str]) -> dict[str, Any]:
    """`wished` with only `parts` changed: the others are as they were `before`, absent if there was no before."""
    kept = {part: (before or {}).get(part) for part in (*PARTS, "seeder") if part not in parts}
    hosts: list[dict[str, Any]] = [one for kind in ("slice", "group") if (one := kept.get(kind))]
    # Hosts that stay keep their regions, subnetworks and the gateway, though nothing in the YAML needs those any more.
    regions = [*wished["regions"], *(region_of(one["zone"]) for one in hosts)]
    nat = wished["nat"] or bool(hosts and before and before.get("nat"))
    network, old = wished["network"], (before or {}).get("network")
    if hosts and network and old and network["id"] == old["id"]:
        network = {**network, "subnetworks": {**old["subnetworks"], **network["subnetworks"]}}
    return {**wished, **kept, "regions": list(dict.fromkeys(regions)), "nat": nat, "network": network}


def with_image_of(before: Mapping[str, Any] | None, host: dict[str, Any]) -> dict[str, Any]:
    """`host` with the image that was asked for `before`, where that is one that was built."""
    known = (before or {}).get("host") or {}
    if "@" not in known.get("container", ""):
        return host
    return {**host, "container": known["container"], "version": known["version"]}


def without(before: dict[str, Any], parts: Collection[str]) -> dict[str, Any]:
    return {**before, **dict.fromkeys(parts)}


def pinned_to_state(part: str, there: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """disk or nfs as Terraform's state has it; None where there is none."""
    if there is None:
        return None
    if part == "disk":
        seeded = there["type"] != "hyperdisk-ml" or there.get("access_mode") == "READ_ONLY_MANY"
        return {"name": there["name"], "type": there["type"], "size_gb": there["size"], "seeded": seeded}
    share = there["file_shares"][0]
    return {"tier": there["tier"], "capacity_gb": share["capacity_gb"], "share": share["name"]}
