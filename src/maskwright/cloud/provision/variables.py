"""The variables of deploy/terraform, as in `terraform.tfvars.json`.

A part that is null does not exist. `--only` takes the other parts from the variables that were wanted last, so each
plan covers the whole environment and no `-target` is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from maskwright import __version__
from maskwright.cloud import machines
from maskwright.cloud.environment import Environment, Group, Slice, read_script, region_of
from maskwright.cloud.record import EnvironmentRecord

PARTS = ("slice", "group", "disk", "nfs")
RUNNING = ("slice", "group", "seeder")
"""Parts that `down` deletes. The others hold data, or cost next to nothing."""
DATA = {"disk": "google_compute_disk", "nfs": "google_filestore_instance"}
"""Parts that hold data, and their Terraform types."""
SHARED_DEVICE = "shared-pd"
SEEDER_IMAGE = "projects/debian-cloud/global/images/family/debian-12"
SEEDER_HOURS = 12
"""Google deletes the seeding machine after this time, if nothing else does."""


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
        "jobs_bucket": environment.jobs_bucket,
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
    """None if the environment creates its own network."""
    network = environment.network
    if network.name is None:
        return None
    return {
        "id": environment.network_path,
        "subnetworks": {region: environment.subnetwork_path(region) for region in network.subnetworks},
        "shared": network.project not in (None, environment.project),
    }


def setup_address(environment: Environment, location: str) -> str | None:
    """Address from which hosts read the set-up script that the YAML names. Its name is a digest of its content."""
    setup = read_script(location, environment.host.setup)
    return f"gs://{environment.jobs_bucket}/setup/{setup[0]}.sh" if setup else None


def _hosts(
    environment: Environment, hosts: Slice | Group | None, record: EnvironmentRecord, attach_disk: bool
) -> dict[str, Any] | None:
    """None for queued resources too: Terraform's own resource lacks options that they need."""
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


def only(before: dict[str, Any] | None, requested: dict[str, Any], parts: Collection[str]) -> dict[str, Any]:
    """`requested` for `parts`, and the other parts as they were `before`: null without a before."""
    kept = {part: (before or {}).get(part) for part in (*PARTS, "seeder") if part not in parts}
    hosts: list[dict[str, Any]] = [values for kind in ("slice", "group") if (values := kept.get(kind))]
    # Hosts that stay keep their regions, subnetworks and the gateway, even if the YAML needs those no more. If no hosts
    # are in `parts`, they also keep their container, since another one replaces them.
    host = before["host"] if hosts and before and not {"slice", "group"} & set(parts) else requested["host"]
    regions = [*requested["regions"], *(region_of(values["zone"]) for values in hosts)]
    nat = requested["nat"] or bool(hosts and before and before.get("nat"))
    network, old = requested["network"], (before or {}).get("network")
    if hosts and network and old and network["id"] == old["id"]:
        network = {**network, "subnetworks": {**old["subnetworks"], **network["subnetworks"]}}
    common = {"host": host, "regions": list(dict.fromkeys(regions)), "nat": nat, "network": network}
    return {**requested, **kept, **common}


def with_image_of(before: Mapping[str, Any] | None, host: dict[str, Any]) -> dict[str, Any]:
    """`host` with the image that was wanted `before`, if `env image` built that one."""
    old = (before or {}).get("host") or {}
    if "@" not in old.get("container", ""):
        return host
    return {**host, "container": old["container"], "version": old["version"]}


def without(before: dict[str, Any], parts: Collection[str]) -> dict[str, Any]:
    return {**before, **dict.fromkeys(parts)}


def pinned_to_state(part: str, state: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The variables of the existing disk or NFS, from its values in Terraform's state; None if it does not exist."""
    if state is None:
        return None
    if part == "disk":
        seeded = state["type"] != "hyperdisk-ml" or state.get("access_mode") == "READ_ONLY_MANY"
        return {"name": state["name"], "type": state["type"], "size_gb": state["size"], "seeded": seeded}
    share = state["file_shares"][0]
    return {"tier": state["tier"], "capacity_gb": share["capacity_gb"], "share": share["name"]}
