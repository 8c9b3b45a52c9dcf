"""Check quota and capacity before anything is created. Permissions are in google/permissions.py.

regions.get has some quotas: https://cloud.google.com/compute/resource-usage. It lacks those of TPUs, newer GPUs,
Hyperdisk ML and Filestore, so here they are unknown, never ok.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from maskwright.cloud import machines
from maskwright.cloud.environment import Environment, Group, Model, Slice, region_of
from maskwright.cloud.google.rest import Google
from maskwright.cloud.prices import BOOT_DISK_GIB
from maskwright.core.errors import CloudError

State = Literal["ok", "missing", "unknown"]
GPU_QUOTAS = {
    "nvidia-l4": "NVIDIA_L4_GPUS",
    "nvidia-tesla-a100": "NVIDIA_A100_GPUS",
    "nvidia-a100-80gb": "NVIDIA_A100_80GB_GPUS",
}
"""Newer ones are in GPUS_PER_GPU_FAMILY, which regions.get lacks."""
DISK_QUOTAS = {"pd-ssd": "SSD_TOTAL_GB", "pd-balanced": "SSD_TOTAL_GB", "pd-standard": "DISKS_TOTAL_GB"}
PREEMPTIBLE = ("SPOT", "FLEX_START")
"""Provisioning models that count against preemptible quotas, if the project has them."""
TPU_TYPES = "TPU accelerator types"
"""Stands for the TPU API's list of types. Compute Engine's lists have the names in its paths."""


@dataclass(frozen=True)
class Check:
    """The result for one requirement."""

    area: str
    """apis, bucket, permissions, network, quota or capacity"""
    what: str
    state: State
    detail: str = ""
    fix: str = ""


class HostRequest(NamedTuple):
    """Hosts in one of their placements."""

    part: str
    hosts: Slice | Group
    zone: str
    model: Model

    @property
    def machine(self) -> str:
        return self.hosts.machine()


def host_requests(environment: Environment) -> list[HostRequest]:
    """All placements of the slice and of the group, the preferred one first."""
    parts = environment.hosts.items()
    return [HostRequest(part, hosts, *place) for part, hosts in parts for place in hosts.placements(environment.zone)]


# ---- quota ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QuotaUse:
    """What a part takes of a quota."""

    part: str
    region: str
    metrics: tuple[str, ...]
    """Names of the quota. The first one that the region has counts."""
    amount: float
    unit: str
    page: str = ""
    """Words to search for on the page of quotas, if the region has none."""


def quota(google: Google, environment: Environment, existing: Iterable[str] = ()) -> Iterator[Check]:
    """Parts in `existing` exist already, so quotas count them as in use."""
    existing, uses = set(existing), list[QuotaUse]()
    for part, hosts in environment.hosts.items():
        request = HostRequest(part, hosts, *hosts.place(environment.zone, 0))  # fallbacks have quotas of their own
        uses += _host_uses(request)
        if not isinstance(hosts, Slice):
            try:
                uses += _cpu_uses(google, request)
            except CloudError as error:
                detail = f"{request.machine}: {error.what}"
                yield Check("quota", f"CPUs in {region_of(request.zone)}", "unknown", detail, error.fix or "")
    if (disk := environment.disk) is not None:
        page = "" if disk.type in DISK_QUOTAS else "Hyperdisk ML capacity"
        metrics = (DISK_QUOTAS.get(disk.type, "HYPERDISK_ML"),)
        uses.append(QuotaUse("disk", environment.region, metrics, disk.size_gb, "GB", page))
    if (nfs := environment.nfs) is not None:
        page = f"Filestore {nfs.tier} capacity"
        uses.append(QuotaUse("nfs", environment.region, ("FILESTORE",), nfs.capacity_gb, "GiB", page))
    quotas: dict[str, dict[str, tuple[float, float]] | CloudError] = {}
    for use in _added_up(use for use in uses if use.part not in existing):
        if use.region not in quotas:
            quotas[use.region] = _quotas(google, use.region)
        yield _judge(google.project, use, quotas[use.region])
    for part in sorted(existing):
        yield Check("quota", part, "ok", "exists already, so its quota is in use")


def _judge(project: str, use: QuotaUse, quotas: dict[str, tuple[float, float]] | CloudError) -> Check:
    page = f"https://console.cloud.google.com/iam-admin/quotas?project={project}"
    where = f"in {use.region}" if use.region != "global" else "in all regions"
    wanted = f"{use.amount:,.0f} {use.unit} needed ({use.part})"
    if isinstance(quotas, CloudError):
        return Check("quota", f"{use.metrics[0]} {where}", "unknown", f"{wanted}; {quotas.what}", quotas.fix or "")
    # Without a preemptible quota, preemptible machines count against the ordinary one.
    usable = [name for name, (limit, _) in quotas.items() if limit or not name.startswith("PREEMPTIBLE_")]
    metric = next((name for name in use.metrics if name in usable), None)
    if metric is None:
        name = use.page or use.metrics[0]
        fix = f"see {page} and filter for {name} in {use.region}"
        return Check("quota", f"{name} {where}", "unknown", f"{wanted}; this quota cannot be read", fix)
    limit, usage = quotas[metric]
    detail = f"{wanted}, {limit - usage:,.0f} free of {limit:,.0f}"
    if limit - usage >= use.amount:
        return Check("quota", f"{metric} {where}", "ok", detail)
    fix = f"request {usage + use.amount:,.0f} at {page} (filter for {metric}, {use.region}), or use less hardware"
    return Check("quota", f"{metric} {where}", "missing", detail, fix)


def _quotas(google: Google, region: str) -> dict[str, tuple[float, float]] | CloudError:
    """Limit and usage by metric."""
    path = f"projects/{google.project}" + (f"/regions/{region}" if region != "global" else "")
    try:
        quotas = google.call("compute", "GET", path).get("quotas") or ()
    except CloudError as error:
        return error
    return {str(quota["metric"]): (float(quota.get("limit", 0)), float(quota.get("usage", 0))) for quota in quotas}


def _host_uses(request: HostRequest) -> Iterator[QuotaUse]:
    """All but CPUs, whose number comes from Google (`_cpu_uses`)."""
    part, hosts, region = request.part, request.hosts, region_of(request.zone)
    yield QuotaUse(part, region, ("INSTANCES",), hosts.hosts, "hosts")
    if not hosts.queued and (boot := machines.family_of(request.machine).boot_disk) in DISK_QUOTAS:
        yield QuotaUse(part, region, (DISK_QUOTAS[boot],), hosts.hosts * BOOT_DISK_GIB, "GB")
    if isinstance(hosts, Slice):
        kind = request.machine.partition("-")[0].upper()
        page = f"TPU chips ({kind}{', preemptible' if request.model == 'SPOT' else ''})"
        yield QuotaUse(part, region, _metrics(request, "TPUS"), hosts.chips, "chips", page)
    elif request.machine in machines.GPUS:
        name, count = machines.GPUS[request.machine]
        metrics, page = _metrics(request, GPU_QUOTAS.get(name, name.upper())), f"GPUS_PER_GPU_FAMILY {name}"
        yield QuotaUse(part, region, metrics, hosts.hosts * count, "GPUs", page)
        yield QuotaUse(part, "global", ("GPUS_ALL_REGIONS",), hosts.hosts * count, "GPUs")


def _cpu_uses(google: Google, request: HostRequest) -> list[QuotaUse]:
    path = f"projects/{google.project}/zones/{request.zone}/machineTypes/{request.machine}"
    cpus = request.hosts.hosts * int(google.call("compute", "GET", path).get("guestCpus", 0))
    family = f"{request.machine.partition('-')[0].upper()}_CPUS"
    return [
        QuotaUse(request.part, region_of(request.zone), (family, *_metrics(request, "CPUS")), cpus, "CPUs"),
        QuotaUse(request.part, "global", ("CPUS_ALL_REGIONS",), cpus, "CPUs"),
    ]


def _metrics(request: HostRequest, metric: str) -> tuple[str, ...]:
    return (f"PREEMPTIBLE_{metric}", metric) if request.model in PREEMPTIBLE else (metric,)


def _added_up(uses: Iterable[QuotaUse]) -> list[QuotaUse]:
    """One for each quota, of which slice, group and disk may share one."""
    sums: dict[tuple[Any, ...], QuotaUse] = {}
    for use in uses:
        same = sums.get(key := (use.region, use.metrics, use.unit, use.page))
        parts = use.part if same is None or use.part in same.part.split(", ") else f"{same.part}, {use.part}"
        sums[key] = replace(use, part=parts, amount=use.amount + (same.amount if same else 0))
    return list(sums.values())


# ---- capacity ------------------------------------------------------------------------------------------------------


def capacity(google: Google, environment: Environment) -> Iterator[Check]:
    """Check every placement of the hosts. A type that a zone offers may still be sold out there."""
    checked: dict[tuple[str, str, str], None] = {}
    for request in host_requests(environment):
        types = _types(request)
        for type_ in types:
            if type_ not in checked:
                yield _offered(google, *type_)
        checked |= dict.fromkeys(types)
        if request.model == "RESERVATION_BOUND":
            yield _reserved(google, request)
    if environment.disk is not None:
        yield _offered(google, environment.zone, "diskTypes", environment.disk.type)
    if checked:
        detail = "only an attempt shows whether machines are free; after a stockout, another placement is tried"
        yield Check("capacity", "stock", "unknown", detail, "`env up` tries; `fallbacks` lists other placements")


def _types(request: HostRequest) -> list[tuple[str, str, str]]:
    """(zone, the list that must have the type, its name)"""
    if request.hosts.queued:
        return [(request.zone, TPU_TYPES, request.machine)]
    gpus = (
        [(request.zone, "acceleratorTypes", machines.GPUS[request.machine][0])]
        if request.machine in machines.GPUS
        else []
    )
    return [(request.zone, "machineTypes", request.machine), *gpus]


def _offered(google: Google, zone: str, kind: str, name: str) -> Check:
    what, tpu = f"{name} in {zone}", kind == TPU_TYPES
    place = f"locations/{zone}/acceleratorTypes" if tpu else f"zones/{zone}/{kind}"
    try:
        type_ = google.find("tpu" if tpu else "compute", f"projects/{google.project}/{place}/{name}")
    except CloudError as error:
        return Check("capacity", what, "unknown", error.what, error.fix or "")
    if type_ is not None:
        return Check("capacity", what, "ok", "offered there")
    pages = {"diskTypes": "disks", "acceleratorTypes": "gpus/gpu-regions-zones"}
    page = f"compute/docs/{pages.get(kind, 'regions-zones')}"
    page = "tpu/docs/regions-zones" if tpu or name.startswith("ct") else page
    fix = f"use another zone: https://docs.cloud.google.com/{page}"
    return Check("capacity", what, "missing", "Google does not offer it there", fix)


def _reserved(google: Google, request: HostRequest) -> Check:
    name, wanted = str(request.hosts.reservation), request.hosts.hosts
    what = f"reservation {name} in {request.zone}"
    try:
        reservation = google.find("compute", f"projects/{google.project}/zones/{request.zone}/reservations/{name}")
    except CloudError as error:
        return Check("capacity", what, "unknown", error.what, error.fix or "")
    if reservation is None:
        return Check("capacity", what, "missing", "does not exist", "correct its name or its zone")
    held: dict[str, Any] = reservation.get("specificReservation") or {}
    machine = (held.get("instanceProperties") or {}).get("machineType", request.machine)
    if str(machine).rpartition("/")[2] != request.machine:
        return Check("capacity", what, "missing", f"holds {machine}, not {request.machine}", "use its machine type")
    if reservation.get("status", "READY") != "READY":
        return Check("capacity", what, "missing", f"is {reservation['status']}", "wait until it is READY")
    free = int(held.get("count", 0)) - int(held.get("inUseCount", 0))
    detail = f"{wanted} needed, {free} free of {held.get('count', 0)}"
    if free >= wanted:
        return Check("capacity", what, "ok", detail)
    return Check("capacity", what, "missing", detail, "enlarge it, free some of it, or use fewer hosts")
