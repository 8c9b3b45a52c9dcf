"""Quota and capacity, before anything is made: what the project may have, what a zone has at all, and what nobody can
tell but by trying. Permissions are in permissions.py.

Quotas that regions.get tells: https://cloud.google.com/compute/resource-usage. Those of TPUs, newer GPUs, Hyperdisk ML
and Filestore are told elsewhere or not at all, so here they are unknown, never fine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from maskwright.cloud import machines
from maskwright.cloud.environment import Disk, Environment, Fallback, Group, Slice, region_of
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
"""Newer ones are counted by GPUS_PER_GPU_FAMILY, which regions.get does not tell."""
DISK_QUOTAS = {"pd-ssd": "SSD_TOTAL_GB", "pd-balanced": "SSD_TOTAL_GB", "pd-standard": "DISKS_TOTAL_GB"}
TAKEN_AWAY = ("SPOT", "FLEX_START")
"""Provisioning models that count against preemptible quotas, where the project has them."""
LEAST_OBTAINABILITY = 0.5
"""Below it Google's own advice is that the machines are more likely not to be had."""


@dataclass(frozen=True)
class Check:
    """`area`: apis, bucket, permissions, quota or capacity."""

    area: str
    what: str
    state: State
    detail: str = ""
    fix: str = ""

    def to_json(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True)
class Wish:
    """Hosts that may be asked for in a place. `chips`: of a TPU slice; `gpus`: accelerator type and count of a host."""

    part: str
    zone: str
    model: str
    machine: str
    hosts: int
    chips: int
    gpus: tuple[str, int] | None
    hosts_section: Slice | Group

    @property
    def region(self) -> str:
        return region_of(self.zone)


def wishes(environment: Environment) -> list[Wish]:
    """All places of the slice and of the group, their own first."""
    found = []
    for part, hosts in (("slice", environment.slice), ("group", environment.group)):
        if hosts is None:
            continue
        for place in hosts.placements(environment.zone):
            found.append(_wish(part, hosts, place))
    return found


def _wish(part: str, hosts: Slice | Group, place: Fallback) -> Wish:
    chips = hosts.chips if isinstance(hosts, Slice) else 0
    machine = hosts.machine()
    gpus = machines.GPUS.get(machine)
    return Wish(part, place.zone or "", place.provisioning_model, machine, hosts.hosts, chips, gpus, hosts)


# ---- quota ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Need:
    """`metrics`: the first that the region tells counts; `page`: what to look for where it tells none."""

    part: str
    region: str
    metrics: tuple[str, ...]
    amount: float
    unit: str
    page: str = ""


def quota(google: Google, environment: Environment, standing: Iterable[str] = ()) -> Iterator[Check]:
    """`standing`: parts that exist already, whose machines are in what is in use."""
    told: dict[str, dict[str, tuple[float, float]] | CloudError] = {}
    needs, doubts = _needs(google, environment)
    yield from doubts
    for need in _added_up(one for one in needs if one.part not in set(standing)):
        if need.region not in told:
            told[need.region] = _quotas(google, need.region)
        yield _judge(google.project, need, told[need.region])
    for part in sorted(set(standing)):
        yield Check("quota", part, "ok", "exists already, and is in what the project uses")


def _judge(project: str, need: Need, told: dict[str, tuple[float, float]] | CloudError) -> Check:
    page = f"https://console.cloud.google.com/iam-admin/quotas?project={project}"
    where = f"in {need.region}" if need.region != "global" else "in all regions"
    wanted = f"{need.amount:,.0f} {need.unit} needed ({need.part})"
    if isinstance(told, CloudError):
        return Check("quota", f"{need.metrics[0]} {where}", "unknown", f"{wanted}; {told.what}", told.fix or "")
    metric = next((name for name in need.metrics if name in told and not _unused(name, told[name][0])), None)
    if metric is None:
        look = need.page or need.metrics[0]
        fix = f"see {page} and filter for {look} in {need.region}"
        return Check("quota", f"{look} {where}", "unknown", f"{wanted}; Google does not tell this one here", fix)
    limit, usage = told[metric]
    detail = f"{wanted}, {limit - usage:,.0f} free of {limit:,.0f}"
    if limit - usage >= need.amount:
        return Check("quota", f"{metric} {where}", "ok", detail)
    fix = f"ask for {usage + need.amount:,.0f} at {page} (filter for {metric}, {need.region}), or ask for less hardware"
    return Check("quota", f"{metric} {where}", "missing", detail, fix)


def _unused(metric: str, limit: float) -> bool:
    """Without a preemptible quota, machines that can be taken away count against the ordinary one."""
    return metric.startswith("PREEMPTIBLE_") and not limit


def _quotas(google: Google, region: str) -> dict[str, tuple[float, float]] | CloudError:
    """Limit and usage by metric."""
    path = f"projects/{google.project}" + (f"/regions/{region}" if region != "global" else "")
    try:
        found = google.call("compute", "GET", path).get("quotas") or ()
    except CloudError as error:
        return error
    return {str(one["metric"]): (float(one.get("limit", 0)), float(one.get("usage", 0))) for one in found}


def _needs(google: Google, environment: Environment) -> tuple[list[Need], list[Check]]:
    needs: list[Need] = []
    doubts: list[Check] = []
    for part in ("slice", "group"):
        own = [wish for wish in wishes(environment) if wish.part == part]
        if own:
            doubts += [check for check in [_hosts_needs(google, own[0], needs)] if check is not None]
    if (disk := environment.disk) is not None:
        needs.append(_disk_need(environment, disk))
    if (nfs := environment.nfs) is not None:
        page = f"Filestore {nfs.tier} capacity"
        needs.append(Need("nfs", environment.region, ("FILESTORE",), nfs.capacity_gb, "GiB", page))
    return needs, doubts


def _hosts_needs(google: Google, wish: Wish, needs: list[Need]) -> Check | None:
    """Of its own place: fallbacks are tried one after the other, each with its own quota."""

    def add(metric: str, amount: float, unit: str, page: str = "") -> None:
        names = (f"PREEMPTIBLE_{metric}", metric) if wish.model in TAKEN_AWAY else (metric,)
        needs.append(Need(wish.part, wish.region, names, amount, unit, page))

    needs.append(Need(wish.part, wish.region, ("INSTANCES",), wish.hosts, "hosts"))
    queued = isinstance(wish.hosts_section, Slice) and wish.hosts_section.queued
    if not queued and (boot := machines.family_of(wish.machine).boot_disk) in DISK_QUOTAS:
        needs.append(Need(wish.part, wish.region, (DISK_QUOTAS[boot],), wish.hosts * BOOT_DISK_GIB, "GB"))
    if wish.chips:
        kind = f"{wish.machine.partition('-')[0].upper()}"
        add("TPUS", wish.chips, "chips", f"TPU chips ({kind}{', preemptible' if wish.model == 'SPOT' else ''})")
        return None
    if wish.gpus is not None:
        name, count = wish.gpus
        add(GPU_QUOTAS.get(name, name.upper()), wish.hosts * count, "GPUs", f"GPUS_PER_GPU_FAMILY {name}")
        needs.append(Need(wish.part, "global", ("GPUS_ALL_REGIONS",), wish.hosts * count, "GPUs"))
    try:
        told = google.call("compute", "GET", f"projects/{google.project}/zones/{wish.zone}/machineTypes/{wish.machine}")
    except CloudError as error:
        return Check("quota", f"CPUs in {wish.region}", "unknown", f"{wish.machine}: {error.what}", error.fix or "")
    cpus = wish.hosts * int(told.get("guestCpus", 0))
    family = f"{wish.machine.partition('-')[0].upper()}_CPUS"
    plain = ("PREEMPTIBLE_CPUS", "CPUS") if wish.model in TAKEN_AWAY else ("CPUS",)
    needs.append(Need(wish.part, wish.region, (*((family,) if family not in plain else ()), *plain), cpus, "CPUs"))
    needs.append(Need(wish.part, "global", ("CPUS_ALL_REGIONS",), cpus, "CPUs"))
    return None


def _disk_need(environment: Environment, disk: Disk) -> Need:
    metric = DISK_QUOTAS.get(disk.type, "HYPERDISK_ML")
    page = "" if disk.type in DISK_QUOTAS else "Hyperdisk ML capacity"
    return Need("disk", environment.region, (metric,), disk.size_gb, "GB", page)


def _added_up(needs: Iterable[Need]) -> list[Need]:
    """One line for each quota: slice, group and disk may draw on the same."""
    sums: dict[tuple[str, tuple[str, ...], str, str], list[Need]] = {}
    for need in needs:
        sums.setdefault((need.region, need.metrics, need.unit, need.page), []).append(need)
    return [
        Need(
            ", ".join(dict.fromkeys(one.part for one in same)), region, metrics, sum(n.amount for n in same), unit, page
        )
        for (region, metrics, unit, page), same in sums.items()
    ]


# ---- capacity ------------------------------------------------------------------------------------------------------


def capacity(google: Google, environment: Environment) -> Iterator[Check]:
    """Of every place that hosts may be in. A type that a zone offers may still be sold out there."""
    asked: set[str] = set()
    for wish in wishes(environment):
        for kind, name in _types(wish):
            path = f"{kind}/{wish.zone}/{name}"
            if path not in asked:
                asked.add(path)
                yield _offered(google, wish.zone, kind, name)
        if wish.model == "RESERVATION_BOUND":
            yield _reserved(google, wish)
        if wish.model == "SPOT" and not (isinstance(wish.hosts_section, Slice) and wish.hosts_section.queued):
            yield _advice(google, wish)
    if environment.disk is not None:
        yield _offered(google, environment.zone, "diskTypes", environment.disk.type)
    if asked:
        detail = "whether machines are free is only known by trying; a stockout is waited out, or another place tried"
        yield Check("capacity", "stock", "unknown", detail, "`env up` tries; `fallbacks` lists where else")


def _types(wish: Wish) -> list[tuple[str, str]]:
    if isinstance(wish.hosts_section, Slice) and wish.hosts_section.queued:
        return [("acceleratorTypes of the TPU API", wish.machine)]
    return [("machineTypes", wish.machine), *([("acceleratorTypes", wish.gpus[0])] if wish.gpus else [])]


def _offered(google: Google, zone: str, kind: str, name: str) -> Check:
    what = f"{name} in {zone}"
    tpu = kind.endswith("TPU API")
    place = f"locations/{zone}/acceleratorTypes" if tpu else f"zones/{zone}/{kind}"
    try:
        found = google.find("tpu" if tpu else "compute", f"projects/{google.project}/{place}/{name}")
    except CloudError as error:
        return Check("capacity", what, "unknown", error.what, error.fix or "")
    if found is not None:
        return Check("capacity", what, "ok", "offered there")
    pages = {"diskTypes": "disks", "acceleratorTypes": "gpus/gpu-regions-zones"}
    page = (
        "tpu/docs/regions-zones" if tpu or name.startswith("ct") else f"compute/docs/{pages.get(kind, 'regions-zones')}"
    )
    fix = f"take another zone: https://docs.cloud.google.com/{page}"
    return Check("capacity", what, "missing", "Google does not offer it there", fix)


def _reserved(google: Google, wish: Wish) -> Check:
    name = str(wish.hosts_section.reservation)
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
    detail = f"{wish.hosts} needed, {free} free of {held.get('count', 0)}"
    if free >= wish.hosts:
        return Check("capacity", what, "ok", detail)
    return Check("capacity", what, "missing", detail, "enlarge it, free some of it, or ask for fewer hosts")


def _advice(google: Google, wish: Wish) -> Check:
    """Google's forecast for Spot machines. It is a chance, so it is never `ok`."""
    what = f"{wish.hosts} Spot {wish.machine} in {wish.zone}"
    request = {
        "size": wish.hosts,
        "distributionPolicy": {"targetShape": "ANY_SINGLE_ZONE", "zones": [{"zone": f"zones/{wish.zone}"}]},
        "instanceProperties": {"scheduling": {"provisioningModel": "SPOT"}},
        "instanceFlexibilityPolicy": {"instanceSelections": {"hosts": {"machineTypes": [wish.machine]}}},
    }
    try:
        answer = google.call(
            "compute", "POST", f"projects/{google.project}/regions/{wish.region}/advice/capacity", request
        )
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
