"""An environment's slice of v2 to v5e: a queued resource, created and deleted beside what Terraform manages.

Its hosts get the same metadata as those of an instance group (deploy/terraform/hosts.tf; a test compares the two).
Only maskwright-idle-minutes is missing, since a node costs as much while its hosts are off.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from maskwright.cloud.environment import Environment, Placement, region_of
from maskwright.cloud.google import queued_resource
from maskwright.cloud.google.rest import Google
from maskwright.cloud.provision import variables
from maskwright.cloud.provision.terraform_cli import CONFIGURATION, Change
from maskwright.cloud.record import EnvironmentRecord
from maskwright.core.console import say
from maskwright.machine.tpus import TPUS


def name(environment: Environment) -> str:
    return f"{environment.name}-slice"


def change(google: Google, environment: Environment, record: EnvironmentRecord) -> Change | None:
    """The change that `create_if_missing` would make, or `delete` if the YAML has no such slice."""
    if not environment.queued:
        return Change(name(environment), "queued_resource", "delete") if record.queued_zone else None
    zone = _place(environment, record).zone
    if record.queued_zone not in (None, zone):
        return Change(name(environment), "queued_resource", "replace")
    existing = queued_resource.describe(google, zone, name(environment))
    if existing is not None and existing.phase not in ("lost", "going"):
        return None
    return Change(name(environment), "queued_resource", "create" if existing is None else "replace")


def sentence_about(environment: Environment, record: EnvironmentRecord, change: Change) -> str:
    if change.kind == "delete" or environment.slice is None:
        return f"queued resource {change.address} in {record.queued_zone} will be deleted"
    place = _place(environment, record)
    machine = f"{environment.slice.machine()}, {place.model}, in {place.zone}"
    again = " again" if change.kind == "replace" else ""
    return f"queued resource {change.address} ({machine}) will be requested{again}"


def create_if_missing(
    google: Google,
    environment: Environment,
    record: EnvironmentRecord,
    values: Mapping[str, Any],
    outputs: Mapping[str, Any],
    store_record: Callable[[EnvironmentRecord], None],
) -> None:
    """Request the slice, which may wait long in Google's queue. `values` and `outputs` are Terraform's variables and
    outputs. The zone is stored first, so that `down` finds the slice even if this process dies."""
    wanted = describe(environment, record, values, outputs)
    if record.queued_zone not in (None, wanted.zone):
        delete(google, environment, record)
    store_record(replace(record, queued_zone=wanted.zone))
    existing = queued_resource.create_if_missing(google, wanted)
    say(f"{wanted.name}: {wanted.accelerator_type} in {wanted.zone} is {existing.state}")


def delete(google: Google, environment: Environment, record: EnvironmentRecord) -> EnvironmentRecord:
    if record.queued_zone is not None and queued_resource.delete(google, record.queued_zone, name(environment)):
        say(f"{name(environment)}: deleted")
    return replace(record, queued_zone=None)


def describe(
    environment: Environment, record: EnvironmentRecord, values: Mapping[str, Any], outputs: Mapping[str, Any]
) -> queued_resource.Wanted:
    tpus = environment.slice
    assert tpus is not None and tpus.queued
    zone, model = _place(environment, record)
    assert model != "FLEX_START", "refused in the YAML"
    project = f"projects/{environment.project}"
    attached = bool(values["disk"]) and values["disk"]["seeded"]
    return queued_resource.Wanted(
        name=name(environment),
        zone=zone,
        accelerator_type=tpus.machine(),
        runtime_version=tpus.runtime_version or TPUS[tpus.accelerator].runtime_version,
        model=model,
        network=environment.network_path,
        subnetwork=environment.subnetwork_path(region_of(zone)),
        service_account=str(outputs["service_account"]),
        reservation=tpus.reservation if model == "RESERVATION_BOUND" else None,
        data_disk=f"{project}/zones/{environment.zone}/disks/{values['disk']['name']}" if attached else None,
        metadata=metadata(environment, values, outputs, attached),
        labels=environment.all_labels(),
    )


def _place(environment: Environment, record: EnvironmentRecord) -> Placement:
    assert environment.slice is not None
    return environment.slice.place(environment.zone, record.placement["slice"])


def metadata(
    environment: Environment, values: Mapping[str, Any], outputs: Mapping[str, Any], attached: bool
) -> dict[str, str]:
    tpus = environment.slice
    assert tpus is not None
    host = values["host"]
    attributes = {
        "startup-script": _script("common.sh") + _script("startup.sh"),
        "shutdown-script": _script("shutdown.sh"),
        "enable-oslogin": "TRUE",
        "block-project-ssh-keys": "TRUE",
        "serial-port-enable": "FALSE",
        "maskwright-environment": environment.name,
        "maskwright-kind": "slice",
        "maskwright-hosts": str(tpus.hosts),
        "maskwright-topology": tpus.topology,
        "maskwright-spec": f"gs://{values['jobs_bucket']}/slice/job.json",
        "maskwright-mount-point": values["mount_point"],
        "maskwright-nfs": outputs.get("nfs_address"),
        "maskwright-disk": variables.SHARED_DEVICE if attached else None,
        "maskwright-container": host["container"],
        "maskwright-version": host["version"],
        "maskwright-setup": host["setup"],
    }
    return {key: value for key, value in attributes.items() if value is not None}


def _script(file: str) -> str:
    with open(os.path.join(CONFIGURATION, "host", file), encoding="utf-8") as script:
        return script.read()
