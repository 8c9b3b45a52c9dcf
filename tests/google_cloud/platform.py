"""The fake cloud's projects, IAM, Service Usage and Logging."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from google_cloud.judge import Refused, Request
from google_cloud.names import last, matcher

if TYPE_CHECKING:
    from google_cloud.fake import Cloud

NUMBER = "123456789012"


def project(cloud: Cloud, request: Request) -> Any:
    name = last(request.name)
    if name not in (cloud.project, NUMBER):
        raise Refused(
            "Permission 'resourcemanager.projects.get' denied on resource "
            f"'//cloudresourcemanager.googleapis.com/projects/{name}' (or it may not exist).",
            403,
        )
    if request.api.version == "v1":
        return {"projectId": cloud.project, "projectNumber": NUMBER, "lifecycleState": "ACTIVE", "name": cloud.project}
    about = {"name": f"projects/{NUMBER}", "projectId": cloud.project, "state": "ACTIVE", "displayName": cloud.project}
    return about | {"createTime": cloud.now(), "etag": "W/1"}


def held_permissions(cloud: Cloud, request: Request) -> Any:
    held = [one for one in request.body.get("permissions", []) if one not in cloud.denied]
    return {"permissions": held} if held else {}


def policy(cloud: Cloud, name: str) -> dict[str, Any]:
    return cloud.resources.setdefault(f"policy/{name}", {"version": 1, "bindings": [], "etag": "BwX="})


def get_policy(cloud: Cloud, request: Request) -> Any:
    return policy(cloud, request.name.removesuffix(":getIamPolicy"))


def set_policy(cloud: Cloud, request: Request) -> Any:
    found = policy(cloud, request.name.removesuffix(":setIamPolicy"))
    found |= request.body.get("policy", {})
    return found


def create_account(cloud: Cloud, request: Request) -> Any:
    ident = request.body.get("accountId", "")
    if not re.fullmatch(r"[a-z]([-a-z0-9]{4,28}[a-z0-9])", ident):
        raise Refused("The account ID does not have the right format: 6 to 30 lowercase letters, digits and dashes.")
    return make_account(cloud, ident, request.body.get("serviceAccount", {}))


def make_account(cloud: Cloud, ident: str, body: dict[str, Any]) -> dict[str, Any]:
    email = f"{ident}@{cloud.project}.iam.gserviceaccount.com"
    key = f"iam/projects/{cloud.project}/serviceAccounts/{email}"
    if key in cloud.resources:
        raise Refused(f"Service account {ident} already exists within project projects/{cloud.project}.", 409)
    made = body | {
        "name": key.removeprefix("iam/"),
        "email": email,
        "projectId": cloud.project,
        "uniqueId": cloud.number(),
    }
    cloud.resources[key] = made
    return made


def service(cloud: Cloud, name: str) -> dict[str, Any]:
    on = name.removesuffix(".googleapis.com") not in cloud.disabled
    about = {"name": f"projects/{NUMBER}/services/{name}", "parent": f"projects/{NUMBER}", "config": {"name": name}}
    return about | {"state": "ENABLED" if on else "DISABLED"}


def get_service(cloud: Cloud, request: Request) -> Any:
    return service(cloud, last(request.name))


def get_services(cloud: Cloud, request: Request) -> Any:
    return {"services": [service(cloud, last(name)) for name in request.lists.get("names", [])]}


def list_services(cloud: Cloud, request: Request) -> Any:
    """Of the hundreds that there are, those that the fake speaks."""
    from google_cloud.fake import SERVICES

    found = [service(cloud, f"{name}.googleapis.com") for name in sorted((*SERVICES, "compute", "storage"))]
    wanted = request.query.get("filter", "").removeprefix("state:")
    return {"services": [one for one in found if not wanted or one["state"] == wanted]}


def enable(cloud: Cloud, request: Request) -> Any:
    one = last(request.name).partition(":")[0]
    names = request.body.get("serviceIds") or [one]

    def done() -> dict[str, Any]:
        cloud.disabled -= {name.removesuffix(".googleapis.com") for name in names}
        return {"services": [service(cloud, name) for name in names]}

    from google_cloud.services import started

    return started(cloud, request, request.name, done)


def write_log(cloud: Cloud, request: Request) -> Any:
    for entry in request.body.get("entries", []):
        common = {field: request.body[field] for field in ("logName", "resource") if field in request.body}
        made = common | entry | {"labels": request.body.get("labels", {}) | entry.get("labels", {})}
        if not made.get("logName") or not (made.get("resource") or {}).get("type"):
            raise Refused("Log entry without log name or resource.type")
        cloud.logs.append(
            {"timestamp": cloud.now(), "receiveTimestamp": cloud.now(), "insertId": cloud.number()} | made
        )
    return {}


def read_log(cloud: Cloud, request: Request) -> Any:
    matches = matcher(request.body.get("filter", ""))
    found = [entry for entry in cloud.logs if matches(entry)]
    if "desc" in request.body.get("orderBy", ""):
        found.reverse()
    first, size = int(request.body.get("pageToken") or 0), int(request.body.get("pageSize") or 50)
    answer: dict[str, Any] = {"entries": found[first : first + size]}
    return answer | ({"nextPageToken": str(first + size)} if first + size < len(found) else {})


HANDLERS = {
    "projects.get": project,
    "projects.testIamPermissions": held_permissions,
    "serviceAccounts.testIamPermissions": held_permissions,
    "projects.getIamPolicy": get_policy,
    "projects.setIamPolicy": set_policy,
    "serviceAccounts.getIamPolicy": get_policy,
    "serviceAccounts.setIamPolicy": set_policy,
    "serviceAccounts.create": create_account,
    "services.get": get_service,
    "services.list": list_services,
    "services.batchGet": get_services,
    "services.enable": enable,
    "services.batchEnable": enable,
    "entries.write": write_log,
    "entries.list": read_log,
}
