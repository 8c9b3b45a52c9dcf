"""Quota and capacity, before anything is made: what the project may have, what a zone offers at all, and what only an
attempt can show. Permissions are in permissions.py.

regions.get knows some quotas: https://cloud.google.com/compute/resource-usage. Those of TPUs, newer GPUs, Hyperdisk ML
and Filestore are elsewhere or nowhere, so here they are unknown, never fine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from maskwright.cloud import machines
from maskwright.cloud.environment import Environment, Group, Model, Slice, region_of
from maskwright.cloud.google.rest import Google
from maskwright.cloud.prices import BOOT_DISK_GIB
from maskwright.core.console import human_seconds
from maskwright.core.errors import CloudError

State = Literal["ok", "missing", "unknown"]
GPU_QUOTAS = {
    "nvidia-l4": "NVIDIA_L4_GPUS",
    "nvidia-tesla-a100": "NVIDIA_A100_GPUS",
    "nvidia-a100-80gb": "NVIDIA_A100_80GB_GPUS",
}
"""GPUS_PER_GPU_FAMILY counts newer ones, which regions.get does not tell."""
DISK_QUOTAS = {"pd-ssd": "SSD_TOTAL_GB", "pd-balanced": "SSD_TOTAL_GB", "pd-standard": "DISKS_TOTAL_GB"}
TAKEN_AWAY = ("SPOT", "FLEX_START")
"""Provisioning models that count against preemptible quotas, where the project has them."""
TPU_TYPES = "TPU accelerator types"
"""Name here of the TPU API's list of types. Compute Engine's lists go by their names in its paths."""
LEAST_OBTAINABILITY = 0.5
"""Below it, Google's own advice is that the machines will more likely than not be unobtainable."""


@dataclass(frozen=True)
class Check:
    """The finding about one requirement."""

    area: str
    """apis, bucket, permissions, network, quota or capacity"""
    what: str
    state: State
    detail: str = ""
    fix: str = ""


class Wish(NamedTuple):
    """Hosts that may be asked for in a place."""

    part: str
    hosts: Slice | Group
    zone: str
    model: Model

    @property
    def machine(self) -> str:
        return self.hosts.machine()


def wishes(environment: Environment) -> list[Wish]:
    """All places of the slice and of the group, their own first."""
    parts = environment.hosts.items()
    return [Wish(part, hosts, *place) for part, hosts in parts for place in hosts.placements(environment.zone)]


# ---- quota ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Need:
    """A share of a quota that a part takes."""

    part: str
    region: str
    metrics: tuple[str, ...]
    """The first one that the region tells counts."""
    amount: float
    unit: str
    page: str = ""
    """Words to look for on the page of quotas, where the region tells none."""


def quota(google: Google, environment: Environment, standing: Iterable[str] = ()) -> Iterator[Check]:
    """Parts in `standing` exist already, and their machines are in what is in use."""
    standing, needs = set(standing), list[Need]()
    for part, hosts in environment.hosts.items():
        wish = Wish(part, hosts, *hosts.place(environment.zone, 0))  # fallbacks come later, each with its own quota
        needs += _hosts_needs(wish)
        if not isinstance(hosts, Slice):
            try:
                needs += _cpu_needs(google, wish)
            except CloudError as error:
                detail = f"{wish.machine}: {error.what}"
                yield Check("quota", f"CPUs in {region_of(wish.zone)}", "unknown", detail, error.fix or "")
    if (disk := environment.disk) is not None:
        page = "" if disk.type in DISK_QUOTAS else "Hyperdisk ML capacity"
        metrics = (DISK_QUOTAS.get(disk.type, "HYPERDISK_ML"),)
        needs.append(Need("disk", environment.region, metrics, disk.size_gb, "GB", page))
    if (nfs := environment.nfs) is not None:
        page = f"Filestore {nfs.tier} capacity"
        needs.append(Need("nfs", environment.region, ("FILESTORE",), nfs.capacity_gb, "GiB", page))
    quotas: dict[str, dict[str, tuple[float, float]] | CloudError] = {}
    for need in _added_up(one for one in needs if one.part not in standing):
        if need.region not in quotas:
            quotas[need.region] = _quotas(google, need.region)
        yield _judge(google.project, need, quotas[need.region])
    for part in sorted(standing):
        yield Check("quota", part, "ok", "exists already, and is in what the project uses")


def _judge(project: str, need: Need, quotas: dict[str, tuple[float, float]] | CloudError) -> Check:
    page = f"https://console.cloud.google.com/iam-admin/quotas?project={project}"
    where = f"in {need.region}" if need.region != "global" else "in all regions"
    wanted = f"{need.amount:,.0f} {need.unit} needed ({need.part})"
    if isinstance(quotas, CloudError):
        return Check("quota", f"{need.metrics[0]} {where}", "unknown", f"{wanted}; {quotas.what}", quotas.fix or "")
    # Without a preemptible quota, machines that can be taken away count against the ordinary one.
    usable = [name for name, (limit, _) in quotas.items() if limit or not name.startswith("PREEMPTIBLE_")]
    metric = next((name for name in need.metrics if name in usable), None)
    if metric is None:
        look = need.page or need.metrics[0]
        fix = f"see {page} and filter for {look} in {need.region}"
        return Check("quota", f"{look} {where}", "unknown", f"{wanted}; Google does not tell this one here", fix)
    limit, usage = quotas[metric]
    detail = f"{wanted}, {limit - usage:,.0f} free of {limit:,.0f}"
    if limit - usage >= need.amount:
        return Check("quota", f"{metric} {where}", "ok", detail)
    fix = f"ask for {usage + need.amount:,.0f} at {page} (filter for {metric}, {need.region}), or ask for less hardware"
    return Check("quota", f"{metric} {where}", "missing", detail, fix)


def _quotas(google: Google, region: str) -> dict[str, tuple[float, float]] | CloudError:
    """Limit and usage by metric."""
    path = f"projects/{google.project}" + (f"/regions/{region}" if region != "global" else "")
    try:
        found = google.call("compute", "GET", path).get("quotas") or ()
    except CloudError as error:
        return error
    return {str(one["metric"]): (float(one.get("limit", 0)), float(one.get("usage", 0))) for one in found}


def _hosts_needs(wish: Wish) -> Iterator[Need]:
    """Everything but CPUs, whose number Google tells."""
    part, hosts, region = wish.part, wish.hosts, region_of(wish.zone)
    yield Need(part, region, ("INSTANCES",), hosts.hosts, "hosts")
    if not hosts.queued and (boot := machines.family_of(wish.machine).boot_disk) in DISK_QUOTAS:
        yield Need(part, region, (DISK_QUOTAS[boot],), hosts.hosts * BOOT_DISK_GIB, "GB")
    if isinstance(hosts, Slice):
        kind = wish.machine.partition("-")[0].upper()
        page = f"TPU chips ({kind}{', preemptible' if wish.model == 'SPOT' else ''})"
        yield Need(part, region, _metrics(wish, "TPUS"), hosts.chips, "chips", page)
    elif wish.machine in machines.GPUS:
        name, count = machines.GPUS[wish.machine]
        metrics, page = _metrics(wish, GPU_QUOTAS.get(name, name.upper())), f"GPUS_PER_GPU_FAMILY {name}"
        yield Need(part, region, metrics, hosts.hosts * count, "GPUs", page)
        yield Need(part, "global", ("GPUS_ALL_REGIONS",), hosts.hosts * count, "GPUs")


def _cpu_needs(google: Google, wish: Wish) -> list[Need]:
    path = f"projects/{google.project}/zones/{wish.zone}/machineTypes/{wish.machine}"
    cpus = wish.hosts.hosts * int(google.call("compute", "GET", path).get("guestCpus", 0))
    family = f"{wish.machine.partition('-')[0].upper()}_CPUS"
    return [
        Need(wish.part, region_of(wish.zone), (family, *_metrics(wish, "CPUS")), cpus, "CPUs"),
        Need(wish.part, "global", ("CPUS_ALL_REGIONS",), cpus, "CPUs"),
    ]


def _metrics(wish: Wish, metric: str) -> tuple[str, ...]:
    return (f"PREEMPTIBLE_{metric}", metric) if wish.model in TAKEN_AWAY else (metric,)


def _added_up(needs: Iterable[Need]) -> list[Need]:
    """One for each quota: slice, group and disk may draw on the same."""
    sums: dict[tuple[Any, ...], Need] = {}
    for need in needs:
        same = sums.get(key := (need.region, need.metrics, need.unit, need.page))
        parts = need.part if same is None or need.part in same.part.split(", ") else f"{same.part}, {need.part}"
        sums[key] = replace(need, part=parts, amount=need.amount + (same.amount if same else 0))
    return list(sums.values())


# ---- capacity ------------------------------------------------------------------------------------------------------


def capacity(google: Google, environment: Environment) -> Iterator[Check]:
    """Looks at every place that hosts may be in. A type that a zone offers may still be sold out there."""
    asked: dict[tuple[str, str, str], None] = {}
    for wish in wishes(environment):
        types = _types(wish)
        for one in types:
            if one not in asked:
                yield _offered(google, *one)
        asked |= dict.fromkeys(types)
        if wish.model == "RESERVATION_BOUND":
            yield _reserved(google, wish)
        if wish.model == "SPOT" and not wish.hosts.queued:
            yield _advice(google, wish)
    if environment.disk is not None:
        yield _offered(google, environment.zone, "diskTypes", environment.disk.type)
    if asked:
        detail = "whether machines are free is only known by trying; a stockout is waited out, or another place tried"
        yield Check("capacity", "stock", "unknown", detail, "`env up` tries; `fallbacks` lists where else")


def _types(wish: Wish) -> list[tuple[str, str, str]]:
    """(zone, list that has to have it, name)"""
    if wish.hosts.queued:
        return [(wish.zone, TPU_TYPES, wish.machine)]
    gpus = [(wish.zone, "acceleratorTypes", machines.GPUS[wish.machine][0])] if wish.machine in machines.GPUS else []
    return [(wish.zone, "machineTypes", wish.machine), *gpus]


def _offered(google: Google, zone: str, kind: str, name: str) -> Check:
    what, tpu = f"{name} in {zone}", kind == TPU_TYPES
    place = f"locations/{zone}/acceleratorTypes" if tpu else f"zones/{zone}/{kind}"
    try:
        found = google.find("tpu" if tpu else "compute", f"projects/{google.project}/{place}/{name}")
    except CloudError as error:
        return Check("capacity", what, "unknown", error.what, error.fix or "")
    if found is not None:
        return Check("capacity", what, "ok", "offered there")
    pages = {"diskTypes": "disks", "acceleratorTypes": "gpus/gpu-regions-zones"}
    page = f"compute/docs/{pages.get(kind, 'regions-zones')}"
    page = "tpu/docs/regions-zones" if tpu or name.startswith("ct") else page
    fix = f"take another zone: https://docs.cloud.google.com/{page}"
    return Check("capacity", what, "missing", "Google does not offer it there", fix)


def _reserved(google: Google, wish: Wish) -> Check:
    name, wanted = str(wish.hosts.reservation), wish.hosts.hosts
    what = f"reservation {name} in {wish.zone}"
    try:
        found = google.find("compute", f"projects/{google.project}/zones/{wish.zone}/reservations/{name}")
    except CloudError as error:
        return Check("capacity", what, "unknown", error.what, error.fix or "")
    if found is None:
        return Check("capacity", what, "missing", "there is none of that name", "correct its name or its zone")
    held: dict[str, Any] = found.get("specificReservation") or {}
    machine = (held.get("instanceProperties") or {}).get("machineType", wish.machine)
    if str(machine).rpartition("/")[2] != wish.machine:
        return Check("capacity", what, "missing", f"holds {machine}, not {wish.machine}", "take its machine type")
    if found.get("status", "READY") != "READY":
        return Check("capacity", what, "missing", f"is {found['status']}", "wait until it is READY")
    free = int(held.get("count", 0)) - int(held.get("inUseCount", 0))
    detail = f"{wanted} needed, {free} free of {held.get('count', 0)}"
    if free >= wanted:
        return Check("capacity", what, "ok", detail)
    return Check("capacity", what, "missing", detail, "enlarge it, free some of it, or ask for fewer hosts")


def _advice(google: Google, wish: Wish) -> Check:
    """Google's forecast for Spot machines. It is a chance, so it is never `ok`."""
    what = f"{wish.hosts.hosts} Spot {wish.machine} in {wish.zone}"
    request = {
        "size": wish.hosts.hosts,
        "distributionPolicy": {"targetShape": "ANY_SINGLE_ZONE", "zones": [{"zone": f"zones/{wish.zone}"}]},
        "instanceProperties": {"scheduling": {"provisioningModel": "SPOT"}},
        "instanceFlexibilityPolicy": {"instanceSelections": {"hosts": {"machineTypes": [wish.machine]}}},
    }
    path = f"projects/{google.project}/regions/{region_of(wish.zone)}/advice/capacity"
    try:
        answer = google.call("compute", "POST", path, request)
    except CloudError as error:
        return Check("capacity", what, "unknown", f"Google gives no forecast: {error.what}")
    scores = ((answer.get("recommendations") or [{}])[0]).get("scores") or {}
    chance = scores.get("obtainability")
    if chance is None:
        return Check("capacity", what, "unknown", "Google gives no forecast")
    detail = f"Google's forecast: {chance:.2f} of 1 that they can be had"
    uptime = str(scores.get("estimatedUptime", "")).removesuffix("s")
    if uptime.replace(".", "").isdigit():
        detail += f", most then run {human_seconds(math.floor(float(uptime)))}"
    low = "another zone, another hour, or another provisioning model; `fallbacks` tries several in turn"
    return Check("capacity", what, "unknown", detail, low if chance < LEAST_OBTAINABILITY else "")
