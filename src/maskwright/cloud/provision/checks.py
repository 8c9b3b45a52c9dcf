"""Check that Google offers the machines of an environment in their zones.

Neither Terraform's plan nor the cluster says so: pods for a machine that a zone lacks wait for ever. Quotas are not
checked, since Google publishes none for TPUs, newer GPUs and Hyperdisk; an error about one names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from maskwright.cloud.environment import Environment
from maskwright.cloud.google.rest import Google
from maskwright.core.errors import CloudError

State = Literal["ok", "missing", "unknown"]


@dataclass(frozen=True)
class Check:
    """The result for one requirement."""

    area: str
    """apis, bucket, permissions or machines"""
    what: str
    state: State
    detail: str = ""
    fix: str = ""


def offered(google: Google, environment: Environment) -> Iterator[Check]:
    """A result for each zone and type of machine or disk. An offered type may still be sold out."""
    wanted: dict[tuple[str, str, str], None] = {}
    for nodes in environment.hosts.values():
        zones = [zone for zone, _ in nodes.placements(environment.zone)]
        wanted |= dict.fromkeys((zone, "machineTypes", nodes.machine()) for zone in zones)
    if environment.disk is not None:
        wanted[environment.zone, "diskTypes", environment.disk.type] = None
    for zone, kind, name in wanted:
        what = f"{name} in {zone}"
        try:
            found = google.find("compute", f"projects/{google.project}/zones/{zone}/{kind}/{name}")
        except CloudError as error:
            yield Check("machines", what, "unknown", error.what, error.fix or "")
            continue
        if found is not None:
            yield Check("machines", what, "ok", "offered there")
            continue
        page = "disks" if kind == "diskTypes" else "regions-zones"
        fix = f"use another zone: https://docs.cloud.google.com/compute/docs/{page}"
        yield Check("machines", what, "missing", "Google does not offer it there", fix)
