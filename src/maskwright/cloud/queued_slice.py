"""An environment's slice of v4 or v5e: not Terraform's, but made and taken away together with what is.

Its hosts are told the same as those of an instance group; deploy/terraform/hosts.tf is where that list comes from,
and a test compares the two.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from maskwright.cloud import machines, queued_resource, variables
from maskwright.cloud.environment import Environment
from maskwright.cloud.record import Record
from maskwright.cloud.rest import Google
from maskwright.cloud.terraform_cli import CONFIGURATION
from maskwright.core.console import say


def name(environment: Environment) -> str:
    return f"{environment.name}-slice"


def ensure(
    google: Google, environment: Environment, record: Record, values: Mapping[str, Any], outputs: Mapping[str, Any]
) -> Record:
    """Asks for it; it may be long in Google's queue. `values` and `outputs`: Terraform's variables and outputs."""
    wanted = describe(environment, record, values, outputs)
    if record.queued_zone not in (None, wanted.zone):
        absent(google, environment, record)
    found = queued_resource.ensure(google, wanted)
    say(f"{wanted.name}: {wanted.accelerator_type} in {wanted.zone} is {found.state}")
    return replace(record, queued_zone=wanted.zone)


def absent(google: Google, environment: Environment, record: Record) -> Record:
    if record.queued_zone is not None and queued_resource.absent(google, record.queued_zone, name(environment)):
        say(f"{name(environment)}: taken away")
    return replace(record, queued_zone=None)


def describe(
    environment: Environment, record: Record, values: Mapping[str, Any], outputs: Mapping[str, Any]
) -> queued_resource.Wanted:
    wished = environment.slice
    assert wished is not None and wished.queued
    places = wished.placements(environment.zone)
    place = places[record.placement["slice"] % len(places)]
    zone = place.zone or environment.zone
    project = f"projects/{environment.project}"
    attached = bool(values["disk"]) and values["disk"]["seeded"]
    disk = f"{project}/zones/{environment.zone}/disks/{values['disk']['name']}" if attached else None
    return queued_resource.Wanted(
        name=name(environment),
        zone=zone,
        accelerator_type=wished.machine(),
        runtime_version=wished.runtime_version or machines.TPUS[wished.accelerator].runtime_version,
        model=place.provisioning_model,
        network=f"{project}/global/networks/{environment.name}-net",
        subnetwork=f"{project}/regions/{zone.rpartition('-')[0]}/subnetworks/{environment.name}-{zone.rpartition('-')[0]}",
        service_account=str(outputs["service_account"]),
        reservation=wished.reservation if place.provisioning_model == "RESERVATION_BOUND" else None,
        data_disk=disk,
        metadata=metadata(environment, values, outputs, attached),
        labels=environment.all_labels(),
    )


def metadata(
    environment: Environment, values: Mapping[str, Any], outputs: Mapping[str, Any], attached: bool
) -> dict[str, str]:
    wished = environment.slice
    assert wished is not None
    host, runs = values["host"], values["runs_bucket"]
    said = {
        "startup-script": _script("startup.sh"),
        "shutdown-script": _script("shutdown.sh"),
        "enable-oslogin": "TRUE",
        "block-project-ssh-keys": "TRUE",
        "serial-port-enable": "FALSE",
        "maskwright-environment": environment.name,
        "maskwright-kind": "slice",
        "maskwright-hosts": str(wished.hosts),
        "maskwright-topology": wished.topology,
        "maskwright-runs-bucket": runs,
        "maskwright-spec": f"gs://{runs}/jobs/slice/job.json",
        "maskwright-mount-point": values["mount_point"],
        "maskwright-nfs": outputs.get("nfs_address"),
        "maskwright-disk": variables.SHARED_DEVICE if attached else None,
        "maskwright-container": host["container"],
        "maskwright-version": host["version"],
        "maskwright-setup": host["setup"],
        "maskwright-idle-minutes": str(host["idle_minutes"]) if host["idle_minutes"] is not None else None,
    }
    return {key: value for key, value in said.items() if value is not None}


def _script(file: str) -> str:
    with open(os.path.join(CONFIGURATION, "host", file), encoding="utf-8") as script:
        return script.read()
