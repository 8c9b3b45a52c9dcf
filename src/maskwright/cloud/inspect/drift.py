"""The differences between an environment's YAML, what was asked for last (`wanted.json`) and what exists, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from maskwright.cloud.environment import Environment
from maskwright.cloud.google.inventory import Body, Inventory, Part
from maskwright.cloud.provision.variables import PARTS
from maskwright.core.console import several

Values = Mapping[str, Any]
Line = tuple[str, str]
"""A difference, and the kind that one has to see to state it."""
COMPARED = (*PARTS, "nat", "host", "labels", "mount_point")


def differences(
    environment: Environment, asked: Values, wanted: Values | None, found: Inventory, queued_zone: str | None
) -> list[str]:
    """`asked` is what the YAML asks for now and `wanted` what was asked for last, None before the first `env up`; both
    as Terraform's variables."""
    if not wanted:
        away = [] if wanted is None else ["everything was taken away"]
        return [*away, "nothing is asked for yet: `env up` makes it"]
    lines = list(_not_applied(asked, wanted))
    if environment.queued and queued_zone is None:
        lines.append("slice: in the YAML, not asked for yet: `env up` asks")
    unseen = {one.kind for one in found.unseen}
    return lines + [line for line, kind in _not_there(environment, wanted, found, queued_zone) if kind not in unseen]


def _not_applied(asked: Values, wanted: Values) -> Iterator[str]:
    here, there = _network(asked), _network(wanted)
    if here != there:
        yield f"network: {here} in the YAML, {there} in the last `env up`"
    for part in (part for part in COMPARED if asked.get(part) != wanted.get(part)):
        new, old = asked.get(part), wanted.get(part)
        if old is None:
            yield f"{part}: in the YAML, not asked for yet: `env up` makes it"
        elif new is None:
            yield f"{part}: no longer in the YAML, still there: `env up` takes it away"
        elif isinstance(new, Mapping) and isinstance(old, Mapping):
            for key in sorted(set(new) | set(old)):
                if new.get(key) != old.get(key):
                    yield f"{part}.{key}: {_text(new.get(key))} in the YAML, {_text(old.get(key))} in the last `env up`"
        else:
            yield f"{part}: {_text(new)} in the YAML, {_text(old)} in the last `env up`"


def _network(values: Values) -> str:
    theirs = values.get("network")
    return ", ".join(sorted(theirs["subnetworks"].values())) if theirs else "its own"


def _not_there(environment: Environment, wanted: Values, found: Inventory, queued_zone: str | None) -> Iterator[Line]:
    hosts: tuple[Part, Part] = ("slice", "group")
    for part in hosts:
        if wanted.get(part):
            yield from _hosts(environment, part, wanted[part], found)
        elif part != "slice" or queued_zone is None:
            for one in found.of("instance group", part):
                yield f"{part}: {one.name} exists in {one.place}, but was not asked for", "instance group"
    if queued_zone is not None and not found.of("queued resource", "slice"):
        yield f"slice: the queued resource is gone from {queued_zone}: `env up` asks again", "queued resource"
    if disk := wanted.get("disk"):
        yield from _disk(disk, found)
    if nfs := wanted.get("nfs"):
        yield from _nfs(nfs, found)
    buckets = {one.name for one in found.of("bucket")}
    for bucket in (environment.dataset_bucket, environment.runs_bucket):
        if bucket not in buckets:
            yield f"bucket: gs://{bucket} is gone: `env up` makes it, empty", "bucket"
    for kind in ("service account",) if wanted.get("network") else ("network", "service account"):
        if not found.of(kind):
            yield f"{kind}: is gone: `env up` makes it", kind


def _hosts(environment: Environment, kind: str, asked: Values, found: Inventory) -> Iterator[Line]:
    named = [one for one in found.of("instance group") if one.name == f"{environment.name}-{kind}"]
    if not named:
        yield f"{kind}: was asked for, and is gone: `env up` makes it", "instance group"
        return
    for other in named:
        if other.place != asked["zone"]:
            yield f"{kind}: {other.name} is in {other.place}, asked for in {asked['zone']}", "instance group"
    body = named[0].body
    if (hosts := int(body.get("targetSize", 0))) != asked["hosts"]:
        yield f"{kind}: {several(hosts, 'host')} in the cloud, {asked['hosts']} asked for", "instance group"
    template = next((one for one in found.of("instance template") if one.name == _last(body, "instanceTemplate")), None)
    if template is not None:
        made = template.body.get("properties") or {}
        model = (made.get("scheduling") or {}).get("provisioningModel", "STANDARD")
        there = {"machine_type": _last(made, "machineType"), "provisioning_model": model}
        yield from _compared(kind, there, asked, "instance group")


def _disk(asked: Values, found: Inventory) -> Iterator[Line]:
    named = [one for one in found.of("disk") if one.name == asked["name"]]
    if not named:
        yield f"disk: {asked['name']} is gone, with its data: `env seed --again` fills another", "disk"
        return
    body = named[0].body
    there = {"size_gb": int(body.get("sizeGb", 0)), "type": _last(body, "type")}
    yield from _compared("disk", there, asked, "disk")
    mode = body.get("accessMode")
    if mode and asked["type"].startswith("hyperdisk") and (mode == "READ_ONLY_MANY") != bool(asked["seeded"]):
        wish = "read-only, as it is seeded" if asked["seeded"] else "writable, to be seeded"
        yield f"disk: is {mode} in the cloud, asked for {wish}", "disk"


def _nfs(asked: Values, found: Inventory) -> Iterator[Line]:
    named = found.of("Filestore instance", "nfs")
    if not named:
        yield "nfs: was asked for, and is gone, with its files: `env up` makes an empty one", "Filestore instance"
        return
    body = named[0].body
    size = sum(int(share.get("capacityGb", 0)) for share in body.get("fileShares") or ())
    yield from _compared("nfs", {"capacity_gb": size, "tier": str(body.get("tier", ""))}, asked, "Filestore instance")


def _compared(part: str, there: Values, asked: Values, kind: str) -> Iterator[Line]:
    """Nothing for what Google does not tell."""
    for key, value in there.items():
        if value and value != asked[key]:
            yield f"{part}.{key}: {value} in the cloud, {asked[key]} asked for", kind


def _last(body: Body, key: str) -> str:
    """The last word of a link."""
    return str(body.get(key, "")).rpartition("/")[2]


def _text(value: Any) -> str:
    return "none" if value is None else str(value)
