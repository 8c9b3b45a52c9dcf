"""Where YAML, last order and cloud differ, in plain words.

Three things can disagree: what the YAML asks for now, what was asked for last (`wanted.json`), and what exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from maskwright.cloud.environment import Environment
from maskwright.cloud.google.inventory import Body, Found, Inventory
from maskwright.cloud.provision.variables import PARTS

Values = Mapping[str, Any]
COMPARED = (*PARTS, "nat", "host", "labels", "mount_point")


def differences(
    environment: Environment, asked: Values, wanted: Values | None, found: Inventory, queued_zone: str | None
) -> list[str]:
    """`asked`: by the YAML now; `wanted`: last, None before the first `env up`. Both as Terraform's variables."""
    if not wanted:
        return [
            *([] if wanted is None else ["everything was taken away"]),
            "nothing is asked for yet: `env up` makes it",
        ]
    lines = list(_not_applied(asked, wanted))
    queued = environment.slice is not None and environment.slice.queued
    if queued and queued_zone is None:
        lines.append("slice: in the YAML, not asked for yet: `env up` asks")
    seen = {one.kind for one in found.unseen}
    for line, kinds in _not_there(environment, wanted, found, queued_zone):
        if not kinds & seen:
            lines.append(line)
    return lines


def _not_applied(asked: Values, wanted: Values) -> Iterator[str]:
    for part in COMPARED:
        new, old = asked.get(part), wanted.get(part)
        if new == old:
            continue
        if new is None or old is None:
            here = "in the YAML, not asked for yet: `env up` makes it" if old is None else "no longer in the YAML"
            yield f"{part}: {here}{'' if old is None else ', still there: `env up` takes it away'}"
        elif isinstance(new, Mapping) and isinstance(old, Mapping):
            for key in sorted(set(new) | set(old)):
                if new.get(key) != old.get(key):
                    yield f"{part}.{key}: {_text(new.get(key))} in the YAML, {_text(old.get(key))} in the last `env up`"
        else:
            yield f"{part}: {_text(new)} in the YAML, {_text(old)} in the last `env up`"


def _not_there(
    environment: Environment, wanted: Values, found: Inventory, queued_zone: str | None
) -> Iterator[tuple[str, set[str]]]:
    """Each with the kinds that one has to see to say so."""
    for kind in ("slice", "group"):
        if wanted.get(kind):
            yield from _hosts(environment, kind, wanted[kind], found)
        elif kind != "slice" or queued_zone is None:
            for one in [*found.of("instance group", "slice" if kind == "slice" else "group")]:
                yield f"{kind}: {one.name} exists in {one.place}, but was not asked for", {"instance group"}
    if queued_zone is not None and not found.of("queued resource", "slice"):
        yield f"slice: the queued resource is gone from {queued_zone}: `env up` asks again", {"queued resource"}
    if disk := wanted.get("disk"):
        yield from _disk(disk, found)
    if nfs := wanted.get("nfs"):
        yield from _nfs(nfs, found)
    for bucket in (environment.dataset_bucket, environment.runs_bucket):
        if not [one for one in found.of("bucket") if one.name == bucket]:
            yield f"bucket: gs://{bucket} is gone: `env up` makes it, empty", {"bucket"}
    for kind, part, word in (("network", "network", "network"), ("service account", "account", "service account")):
        if not found.of(kind, part):  # type: ignore[arg-type]
            yield f"{word}: is gone: `env up` makes it", {kind}


def _hosts(environment: Environment, kind: str, asked: Values, found: Inventory) -> Iterator[tuple[str, set[str]]]:
    named = [one for one in found.of("instance group") if one.name == f"{environment.name}-{kind}"]
    if not named:
        yield f"{kind}: was asked for, and is gone: `env up` makes it", {"instance group"}
        return
    for other in [one for one in named if one.place != asked["zone"]]:
        yield f"{kind}: {other.name} is in {other.place}, asked for in {asked['zone']}", {"instance group"}
    body = named[0].body
    if int(body.get("targetSize", 0)) != asked["hosts"]:
        yield f"{kind}: {body.get('targetSize', 0)} hosts in the cloud, {asked['hosts']} asked for", {"instance group"}
    template = _template(body, found)
    if template is None:
        return
    made = template.body.get("properties") or {}
    model = (made.get("scheduling") or {}).get("provisioningModel", "STANDARD")
    for word, there, wish in (
        ("machine_type", str(made.get("machineType", "")).rpartition("/")[2], asked["machine_type"]),
        ("provisioning_model", model, asked["provisioning_model"]),
    ):
        if there and there != wish:
            yield f"{kind}.{word}: {there} in the cloud, {wish} asked for", {"instance group"}


def _template(body: Body, found: Inventory) -> Found | None:
    name = str(body.get("instanceTemplate", "")).rpartition("/")[2]
    return next((one for one in found.of("instance template") if one.name == name), None)


def _disk(asked: Values, found: Inventory) -> Iterator[tuple[str, set[str]]]:
    named = [one for one in found.of("disk") if one.name == asked["name"]]
    if not named:
        yield f"disk: {asked['name']} is gone, with its data: `env seed --again` fills another", {"disk"}
        return
    body = named[0].body
    there = {"size_gb": int(body.get("sizeGb", 0)), "type": str(body.get("type", "")).rpartition("/")[2]}
    for key, value in there.items():
        if value and value != asked[key]:
            yield f"disk.{key}: {value} in the cloud, {asked[key]} asked for", {"disk"}
    mode = body.get("accessMode")
    if mode and asked["type"].startswith("hyperdisk") and (mode == "READ_ONLY_MANY") != bool(asked["seeded"]):
        wish = "read-only, as it is seeded" if asked["seeded"] else "writable, to be seeded"
        yield f"disk: is {mode} in the cloud, asked for {wish}", {"disk"}


def _nfs(asked: Values, found: Inventory) -> Iterator[tuple[str, set[str]]]:
    named = found.of("Filestore instance", "nfs")
    if not named:
        yield "nfs: was asked for, and is gone, with its files: `env up` makes an empty one", {"Filestore instance"}
        return
    body = named[0].body
    size = sum(int(share.get("capacityGb", 0)) for share in body.get("fileShares") or ())
    for key, there in (("capacity_gb", size), ("tier", str(body.get("tier", "")))):
        if there and there != asked[key]:
            yield f"nfs.{key}: {there} in the cloud, {asked[key]} asked for", {"Filestore instance"}


def _text(value: Any) -> str:
    return "none" if value is None else str(value)
