"""The fake cloud's regions, zones, machine types and images, and the quotas of regions and project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google_cloud.judge import Refused, Request
from google_cloud.names import last, link

if TYPE_CHECKING:
    from google_cloud.fake import Cloud

QUOTAS = {"CPUS": 2400.0, "SSD_TOTAL_GB": 40960.0, "DISKS_TOTAL_GB": 40960.0, "NVIDIA_L4_GPUS": 8.0, "INSTANCES": 500.0}


def always_there(cloud: Cloud, request: Request) -> Any:
    """Zones, machine types, images and the like: all that are asked for, but those in `cloud.absent`."""
    if request.name in cloud.absent:
        raise Refused(f"The resource '{request.name}' was not found", 404)
    kind = request.id.split(".")[1][:-1]
    about: dict[str, Any] = {
        "kind": f"compute#{kind}",
        "id": "7",
        "name": last(request.name),
        "selfLink": link(cloud, request.name),
    }
    if kind == "zone":
        place = request.path["zone"].rsplit("-", 1)[0]
        about |= {"status": "UP", "region": link(cloud, f"projects/{request.path['project']}/regions/{place}")}
    if kind == "image":
        about |= {"status": "READY", "name": last(request.name) + ("-v20261101" if "/family/" in request.name else "")}
        about["selfLink"] = link(cloud, request.name.replace("/family/", "/"))
    if kind == "machineType":
        about |= {"guestCpus": 8, "memoryMb": 32768, "zone": request.path["zone"]}
    return about


def region(cloud: Cloud, request: Request) -> Any:
    if request.name in cloud.absent:
        raise Refused(f"The resource '{request.name}' was not found", 404)
    name = last(request.name)
    zones = [link(cloud, f"projects/{request.path['project']}/zones/{name}-{letter}") for letter in "abc"]
    about = {"kind": "compute#region", "id": "7", "name": name, "selfLink": link(cloud, request.name), "status": "UP"}
    return about | {"zones": zones, "quotas": quotas(cloud, name)}


def project(cloud: Cloud, request: Request) -> Any:
    about = {
        "kind": "compute#project",
        "id": "123456789012",
        "name": last(request.name),
        "selfLink": link(cloud, request.name),
    }
    metadata = {"kind": "compute#metadata", "fingerprint": "Zg==", "items": []}
    return about | {"commonInstanceMetadata": metadata, "quotas": quotas(cloud, "global")}


def quotas(cloud: Cloud, place: str) -> list[dict[str, Any]]:
    found = (
        {metric: (limit, 0.0) for metric, limit in QUOTAS.items()}
        if place != "global"
        else {"CPUS_ALL_REGIONS": (2400.0, 0.0)}
    )
    found |= {metric: value for (where, metric), value in cloud.quotas.items() if where == place}
    return [{"metric": metric, "limit": limit, "usage": usage} for metric, (limit, usage) in sorted(found.items())]


HANDLERS = {
    "compute.zones.get": always_there,
    "compute.machineTypes.get": always_there,
    "compute.acceleratorTypes.get": always_there,
    "compute.diskTypes.get": always_there,
    "compute.images.get": always_there,
    "compute.images.getFromFamily": always_there,
    "compute.regions.get": region,
    "compute.projects.get": project,
}
