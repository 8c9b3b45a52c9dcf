"""The fake cloud's Compute Engine: what all its collections have in common.

By hand, because the discovery document does not say it: what has to exist before, what is in use and so cannot go, how
disks are shared, and the filters of lists.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from google_cloud import places
from google_cloud.judge import Refused, Request
from google_cloud.names import last, link, matcher, relative

if TYPE_CHECKING:
    from google_cloud.fake import Cloud

SINGULAR = {"resourcePolicies": "resourcePolicy", "addresses": "address"}
SCOPED = re.compile(r"projects/[^/]+/(?:zones/[^/]+|regions/[^/]+|global)")
HOLDERS = {"instances", "subnetworks", "firewalls", "routers"}
"""These keep what they name from being deleted."""
PAGE = 500


def call(cloud: Cloud, request: Request) -> Any:
    _, collection, verb = request.id.split(".")
    if collection.endswith("Operations"):
        return operation(cloud, request)
    function = HANDLERS.get(request.id) or places.HANDLERS.get(request.id) or COMMON.get(verb)
    if function is None:
        raise NotImplementedError(request.id)
    return function(cloud, request)


def users(cloud: Cloud, name: str) -> list[str]:
    """Names of what holds it."""
    wanted, found = f'/{name}"', []
    for key, body in cloud.resources.items():
        service, _, owner = key.partition("/")
        if service == "compute" and owner != name and last(owner.rsplit("/", 1)[0]) in HOLDERS:
            text = json.dumps(
                {field: one for field, one in body.items() if field not in ("selfLink", "zone", "metadata", "_members")}
            )
            if wanted in text.replace(f'"{name}"', f'"/{name}"'):
                found.append(owner)
    return found


# ---- making, changing and taking away ------------------------------------------------------------------------------


def make(cloud: Cloud, collection: str, body: dict[str, Any], wait: bool = False) -> dict[str, Any]:
    """A resource of the collection ("projects/p/zones/z/disks"); raises `Refused` as Google would. `wait`: it is
    ready at once, as to someone who waited."""
    name, kind = f"{collection}/{body.get('name', '')}", last(collection)
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", str(body.get("name", ""))):
        message = f"Invalid value for field 'resource.name': '{body.get('name', '')}'. Must be a match of regex "
        raise Refused(message + "'(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'")
    if f"compute/{name}" in cloud.resources:
        raise Refused(f"The resource '{name}' already exists", 409)
    made = json.loads(json.dumps(body)) | {
        "kind": f"compute#{SINGULAR.get(kind, kind[:-1])}",
        "id": cloud.number(),
        "selfLink": link(cloud, name),
        "creationTimestamp": cloud.now(),
    }
    for scope in ("zone", "region"):
        place = re.match(rf"projects/[^/]+/{scope}s/[^/]+", name)
        if place:
            made[scope] = link(cloud, place[0])
    if "labels" in made:
        made["labelFingerprint"] = "42WmSpB8rSM="
    SETTLE.get(kind, lambda *_: None)(cloud, name, made)
    cloud.resources[f"compute/{name}"] = made
    if kind == "instances":
        made["status"] = "RUNNING" if wait else "PROVISIONING"
    return made


def remove(cloud: Cloud, name: str) -> None:
    """Raises `Refused` while something holds it."""
    body = cloud.need(f"compute/{name}")
    holders = users(cloud, name)
    if holders:
        kind = SINGULAR.get(last(name.rsplit("/", 1)[0]), last(name.rsplit("/", 1)[0])[:-1])
        raise Refused(
            f"The {kind} resource '{name}' is already being used by '{holders[0]}'",
            400,
            reason="resourceInUseByAnotherResource",
        )
    cloud.resources.pop(f"compute/{name}", None)


def settle_disk(cloud: Cloud, name: str, made: dict[str, Any]) -> None:
    made.setdefault("sizeGb", "500")
    made["sizeGb"] = str(made["sizeGb"])
    made["status"] = "READY"
    made["type"] = link(cloud, relative(made.get("type") or f"{name.rsplit('/', 2)[0]}/diskTypes/pd-standard", name))


def settle_instance(cloud: Cloud, name: str, made: dict[str, Any]) -> None:
    place = name.rsplit("/", 2)[0]
    if last(place) in cloud.dry:
        refused = stockout_error(place)
        raise Refused(refused["message"], 503, reason=refused["code"])
    made["machineType"] = link(cloud, relative(made.get("machineType", "machineTypes/none"), name))
    for number, disk in enumerate(made.get("disks", [])):
        disk.setdefault("mode", "READ_WRITE")
        if disk.get("source"):
            attach(cloud, name, disk)
        else:
            disk["source"] = link(cloud, f"{place}/disks/{made['name']}")
        disk |= {"index": number, "kind": "compute#attachedDisk"}
    for number, one in enumerate(made.setdefault("networkInterfaces", [{}])):
        one["networkIP"] = one.get("networkIP") or f"10.128.{int(made['id']) // 250 % 250}.{int(made['id']) % 250 + 2}"
        one["name"] = f"nic{number}"
        for field in ("network", "subnetwork"):
            if one.get(field):
                one[field] = link(cloud, relative(one[field], name))


def attach(cloud: Cloud, owner: str, disk: dict[str, Any]) -> None:
    """By name (in templates) or link. Refuses what is missing, or open for writing elsewhere."""
    place = owner.rsplit("/", 2)[0]
    source = disk["source"]
    name = relative(source, owner) if "/" in source else f"{place}/disks/{source}"
    about = cloud.need(f"compute/{name}")
    writing = disk.get("mode", "READ_WRITE") == "READ_WRITE"
    if writing and about.get("accessMode") == "READ_ONLY_MANY":
        raise Refused(f"Disk '{name}' has access mode READ_ONLY_MANY and cannot be attached in mode READ_WRITE")
    others = [one for one in users(cloud, name) if one != owner]
    for other in others:
        modes = [
            d.get("mode")
            for d in cloud.resources[f"compute/{other}"].get("disks", [])
            if d.get("source", "").endswith(name)
        ]
        if writing or "READ_WRITE" in modes:
            message = f"The disk resource '{name}' is already being used by '{other}'"
            raise Refused(message, 400, reason="RESOURCE_IN_USE_BY_ANOTHER_RESOURCE")
    disk["source"] = link(cloud, name)


def settle_address(cloud: Cloud, name: str, made: dict[str, Any]) -> None:
    made.setdefault("address", f"198.51.100.{int(made['id']) % 250}")
    made["status"] = "RESERVED"


SETTLE = {
    "disks": settle_disk,
    "instances": settle_instance,
    "addresses": settle_address,
}


def stockout_error(place: str) -> dict[str, str]:
    message = (
        f"The zone '{place}' does not have enough resources available to fulfill the request.  Try a different zone, "
    )
    return {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": message + "or try again later."}


# ---- calls ---------------------------------------------------------------------------------------------------------


def started(cloud: Cloud, request: Request, target: str, kind: str, finish: Any = None) -> dict[str, Any]:
    """An operation on `target`; `finish` is called when it is done and may raise `Refused`."""
    from google_cloud.fake import Operation

    scope = SCOPED.match(target)
    place = scope[0] if scope else f"{'/'.join(target.split('/')[:2])}/global"
    name = f"{place}/operations/operation-{cloud.number()}"
    body = {
        "kind": "compute#operation",
        "id": cloud.number(),
        "name": last(name),
        "operationType": kind,
        "status": "RUNNING",
        "progress": 0,
        "targetLink": link(cloud, target),
        "selfLink": link(cloud, name),
        "insertTime": cloud.now(),
        "startTime": cloud.now(),
        "user": "someone@example.com",
    }
    where = re.search(r"/(zone|region)s/[^/]+$", place)
    if where:
        body[where[1]] = link(cloud, place)
    cloud.operations[f"compute/{name}"] = Operation(body, cloud.polls_of(request.id), finish or (dict))
    if request.query.get("requestId"):
        cloud.operations[f"request/{request.query['requestId']}"] = cloud.operations[f"compute/{name}"]
    return advance(cloud.operations[f"compute/{name}"], cloud, reading=False)


def advance(one: Any, cloud: Cloud, *, reading: bool) -> dict[str, Any]:
    if one.body["status"] == "DONE":
        return dict(one.body)
    one.left -= reading
    if one.left > 0:
        return dict(one.body)
    try:
        one.finish()
    except Refused as error:
        code = (
            error.reason
            if error.reason.isupper()
            else {404: "RESOURCE_NOT_FOUND", 409: "RESOURCE_ALREADY_EXISTS"}.get(error.code, "INVALID_USAGE")
        )
        one.body["error"] = {"errors": [{"code": code, "message": str(error)}]}
        one.body |= {"httpErrorStatusCode": error.code, "httpErrorMessage": error.status.replace("_", " ")}
    one.body |= {"status": "DONE", "progress": 100, "endTime": cloud.now()}
    return dict(one.body)


def operation(cloud: Cloud, request: Request) -> Any:
    name = f"compute/{request.name.removesuffix('/wait')}"
    if request.verb == "list":
        return {
            "kind": "compute#operationList",
            "items": [o.body for k, o in cloud.operations.items() if k.startswith(name + "/")],
        }
    if name not in cloud.operations:
        raise Refused(f"The resource '{request.name}' was not found", 404)
    return advance(cloud.operations[name], cloud, reading=True)


def repeated(cloud: Cloud, request: Request) -> Any:
    """The operation that a call with the same `requestId` began."""
    return cloud.operations.get(f"request/{request.query.get('requestId')}")


def insert(cloud: Cloud, request: Request) -> Any:
    before = repeated(cloud, request)
    if before:
        return dict(before.body)
    name = f"{request.name}/{request.body.get('name', '')}"
    try:
        made = make(cloud, request.name, request.body)
    except Refused as error:
        if error.reason != "ZONE_RESOURCE_POOL_EXHAUSTED":
            raise
        return started(cloud, request, name, "insert", lambda found=error: _again(found))

    def ready() -> dict[str, Any]:
        if "status" in made and made["status"] == "PROVISIONING":
            made["status"] = "RUNNING"
        return {}

    return started(cloud, request, name, "insert", ready)


def _again(error: Refused) -> dict[str, Any]:
    raise error


def get(cloud: Cloud, request: Request) -> Any:
    found = cloud.need(request.key)
    if found["kind"] == "compute#disk":
        return found | {"users": [link(cloud, one) for one in users(cloud, request.name)]}
    return found


def listed(cloud: Cloud, request: Request) -> Any:
    matches = matcher(request.query.get("filter", ""))
    found = [get_shown(cloud, key, one) for key, one in cloud.below(request.key) if matches(one)]
    first, size = int(request.query.get("pageToken") or 0), int(request.query.get("maxResults") or PAGE)
    answer: dict[str, Any] = {"kind": f"compute#{last(request.name)[:-1]}List", "items": found[first : first + size]}
    if first + size < len(found):
        answer["nextPageToken"] = str(first + size)
    return answer


def get_shown(cloud: Cloud, key: str, found: dict[str, Any]) -> dict[str, Any]:
    name = key.removeprefix("compute/")
    return (
        found | {"users": [link(cloud, one) for one in users(cloud, name)]}
        if found["kind"] == "compute#disk"
        else found
    )


def aggregated(cloud: Cloud, request: Request) -> Any:
    kind, project = last(request.name), request.path["project"]
    matches = matcher(request.query.get("filter", ""))
    places: dict[str, Any] = {}
    for key, one in sorted(cloud.resources.items()):
        place = re.fullmatch(rf"compute/projects/{project}/((?:zones|regions)/[^/]+|global)/{kind}/[^/]+", key)
        if place and matches(one):
            places.setdefault(place[1], {kind: []})[kind].append(get_shown(cloud, key, one))
    empty = {
        "warning": {"code": "NO_RESULTS_ON_PAGE", "message": "There are no results for scope on this page.", "data": []}
    }
    places.setdefault("zones/us-central1-a", empty)
    return {"kind": f"compute#{kind[:-1]}AggregatedList", "items": places}


def delete(cloud: Cloud, request: Request) -> Any:
    name = request.name
    cloud.need(request.key)
    if cloud.polls_of(request.id) == 0 or users(cloud, name):
        remove(cloud, name)
        return started(cloud, request, name, "delete")
    return started(cloud, request, name, "delete", lambda: remove(cloud, name) or {})


def patch(cloud: Cloud, request: Request) -> Any:
    found = cloud.need(request.key)

    def change() -> dict[str, Any]:
        found.update(request.body)
        return {}

    return started(cloud, request, request.name, request.verb, change)


def set_labels(cloud: Cloud, request: Request) -> Any:
    name = request.name.removesuffix("/setLabels")
    cloud.need(f"compute/{name}")["labels"] = request.body.get("labels", {})
    return started(cloud, request, name, "setLabels")


def may(cloud: Cloud, request: Request) -> Any:
    cloud.need(f"compute/{request.name.removesuffix('/testIamPermissions')}")
    return {"permissions": [one for one in request.body["permissions"] if one not in cloud.denied]}


COMMON = {"insert": insert, "get": get, "list": listed, "aggregatedList": aggregated, "delete": delete, "patch": patch}
COMMON |= {"update": patch, "setLabels": set_labels}
HANDLERS = {
    "compute.subnetworks.testIamPermissions": may,
}
