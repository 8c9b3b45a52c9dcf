"""The fake cloud's managed instance groups: members that come, fail for want of machines, are preempted and recreated.

Each read of a group or its members moves every member one step: no instance yet -> STAGING (as many reads as
`cloud.slow("compute.instances.start", …)` says) -> RUNNING. What a preempted member looks like follows
https://cloud.google.com/compute/docs/instance-groups/about-repair: with `defaultActionOnFailure` DO_NOTHING it stays
TERMINATED, else the group recreates it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google_cloud.judge import Refused, Request
from google_cloud.names import last, link, relative

if TYPE_CHECKING:
    from google_cloud.fake import Cloud

LETTERS = "bcdfghjklmnpqrstvwxz0123456789"


def settle(cloud: Cloud, name: str, made: dict[str, Any]) -> None:
    """After a group was made or changed: what it names exists, and members are as many as wanted."""

    made.setdefault("baseInstanceName", made["name"])
    template = made.get("instanceTemplate") or next(
        (one.get("instanceTemplate") for one in made.get("versions", []) if one.get("instanceTemplate")), None
    )
    if template is None:
        raise Refused("Invalid value for field 'resource.versions[0].instanceTemplate': ''. The URL is malformed.")
    template = relative(template, name)
    cloud.need(f"compute/{template}")
    made["instanceTemplate"] = link(cloud, template)
    made["versions"] = [{"instanceTemplate": link(cloud, template)}]
    policy = (made.get("resourcePolicies") or {}).get("workloadPolicy")
    if policy:
        policy = relative(policy, name)
        cloud.need(f"compute/{policy}")
        made["resourcePolicies"]["workloadPolicy"] = link(cloud, policy)
    made["targetSize"] = int(made.get("targetSize", 0))
    place = name.rsplit("/", 2)[0]
    made["instanceGroup"] = link(cloud, f"{place}/instanceGroups/{made['name']}")
    made["fingerprint"] = "42WmSpB8rSM="
    resize_to(cloud, made, made["targetSize"])


def resize_to(cloud: Cloud, group: dict[str, Any], size: int) -> None:
    members = group.setdefault("_members", [])
    group["targetSize"] = size
    staying = [one for one in members if one["action"] != "DELETING"]
    for one in staying[size:]:
        one["action"] = "DELETING"
    for _ in range(size - len(staying)):
        members.append(new_member(cloud, group))


def new_member(cloud: Cloud, group: dict[str, Any]) -> dict[str, Any]:
    number = int(cloud.number())
    end = "".join(LETTERS[(number // 30**place) % 30] for place in range(4))
    name = f"{group['baseInstanceName']}-{end}"
    left = cloud.polls_of("compute.instances.start")
    return {"name": name, "action": "CREATING", "left": left, "errors": []}


def step(cloud: Cloud, name: str, group: dict[str, Any]) -> None:
    for one in list(group["_members"]):
        key = f"compute/{name.rsplit('/', 2)[0]}/instances/{one['name']}"
        if one["action"] == "DELETING":
            cloud.resources.pop(key, None)
            group["_members"].remove(one)
        elif one["action"] in ("CREATING", "RECREATING"):
            bring_up(cloud, name, group, one, key)
        elif key not in cloud.resources:  # someone deleted the instance: the group brings it back
            one |= {"action": "RECREATING", "left": cloud.polls_of("compute.instances.start")}


def bring_up(cloud: Cloud, name: str, group: dict[str, Any], one: dict[str, Any], key: str) -> None:
    from google_cloud import compute

    if key not in cloud.resources:
        template = cloud.resources[f"compute/{relative(group['instanceTemplate'])}"]
        place = name.rsplit("/", 2)[0]
        properties = {field: value for field, value in template["properties"].items() if field != "description"}
        machine = {"name": one["name"], "machineType": f"{place}/machineTypes/{properties.get('machineType', 'none')}"}
        try:
            made = compute.make(cloud, f"{place}/instances", properties | machine)
        except Refused as error:
            code = (
                error.reason
                if error.reason.isupper()
                else "RESOURCE_NOT_FOUND"
                if error.code == 404
                else "INVALID_USAGE"
            )
            one["errors"] = [{"code": code, "message": str(error)}]
            group.setdefault("_errors", []).append(
                {
                    "error": one["errors"][0],
                    "timestamp": cloud.now(),
                    "instanceActionDetails": {
                        "instance": link(cloud, key.removeprefix("compute/")),
                        "action": one["action"],
                    },
                }
            )
            return
        made["status"] = "STAGING"
        made.setdefault("metadata", {"items": []}).setdefault("items", []).append(
            {"key": "created-by", "value": link(cloud, name)}
        )
        one["errors"] = []
    if one["left"] > 0:
        one["left"] -= 1
        return
    cloud.resources[key]["status"] = "RUNNING"
    one["action"] = "NONE"


def shown(cloud: Cloud, name: str, group: dict[str, Any]) -> dict[str, Any]:
    step(cloud, name, group)
    actions = [one["action"] for one in group["_members"]]
    kinds = (
        "abandoning",
        "creating",
        "creatingWithoutRetries",
        "deleting",
        "none",
        "recreating",
        "refreshing",
        "restarting",
    )
    counts = {kind: sum(action.lower() == kind.lower() for action in actions) for kind in kinds} | {"verifying": 0}
    stable = all(action == "NONE" for action in actions)
    return group | {"currentActions": counts, "status": {"isStable": stable, "stateful": {"hasStatefulConfig": False}}}


def list_members(cloud: Cloud, request: Request) -> Any:

    name = request.name.removesuffix("/listManagedInstances")
    group = cloud.need(f"compute/{name}")
    step(cloud, name, group)
    found = []
    for one in sorted(group["_members"], key=lambda member: str(member["name"])):
        instance = f"{name.rsplit('/', 2)[0]}/instances/{one['name']}"
        about = cloud.resources.get(f"compute/{instance}")
        member = {
            "name": one["name"],
            "instance": link(cloud, instance),
            "currentAction": one["action"],
            "version": {"instanceTemplate": group["instanceTemplate"]},
        }
        if about:
            member |= {"instanceStatus": about["status"], "id": about["id"]}
        if one["errors"]:
            member["lastAttempt"] = {"errors": {"errors": one["errors"]}}
        found.append(member)
    return {"managedInstances": found}


def list_errors(cloud: Cloud, request: Request) -> Any:
    return {"items": cloud.need(f"compute/{request.name.removesuffix('/listErrors')}").get("_errors", [])}


def members_named(cloud: Cloud, request: Request, group: dict[str, Any]) -> list[dict[str, Any]]:

    names = [last(one) for one in request.body.get("instances", [])]
    found = [one for one in group["_members"] if one["name"] in names]
    if len(found) != len(names):
        strangers = sorted(set(names) - {one["name"] for one in found})
        raise Refused(f"Invalid value for field 'instances': '{strangers[0]}'. Instance is not a member of the group.")
    return found


def act(cloud: Cloud, request: Request) -> Any:
    """deleteInstances, recreateInstances, abandonInstances."""
    from google_cloud import compute

    name, _, verb = request.name.rpartition("/")
    before = compute.repeated(cloud, request)
    if before:
        return dict(before.body)
    group = cloud.need(f"compute/{name}")
    for one in members_named(cloud, request, group):
        key = f"compute/{name.rsplit('/', 2)[0]}/instances/{one['name']}"
        if verb == "recreateInstances":
            cloud.resources.pop(key, None)
            one |= {"action": "RECREATING", "left": cloud.polls_of("compute.instances.start"), "errors": []}
        elif verb == "deleteInstances":
            one["action"] = "DELETING"
            group["targetSize"] -= 1
        else:
            group["_members"].remove(one)
            group["targetSize"] -= 1
    return compute.started(cloud, request, name, f"compute.instanceGroupManagers.{verb}")


def resize(cloud: Cloud, request: Request) -> Any:
    from google_cloud import compute

    name = request.name.removesuffix("/resize")
    resize_to(cloud, cloud.need(f"compute/{name}"), int(request.query["size"]))
    return compute.started(cloud, request, name, "compute.instanceGroupManagers.resize")


def remove_members(cloud: Cloud, name: str) -> None:
    for one in cloud.resources[f"compute/{name}"]["_members"]:
        cloud.resources.pop(f"compute/{name.rsplit('/', 2)[0]}/instances/{one['name']}", None)


def preempt(cloud: Cloud, name: str, group: dict[str, Any], hosts: list[int] | None) -> None:
    members = sorted(group["_members"], key=lambda member: str(member["name"]))
    repairs = (group.get("instanceLifecyclePolicy") or {}).get("defaultActionOnFailure", "REPAIR") == "REPAIR"
    for number, one in enumerate(members):
        key = f"compute/{name.rsplit('/', 2)[0]}/instances/{one['name']}"
        if hosts is not None and number not in hosts:
            continue
        if repairs:
            cloud.resources.pop(key, None)
            one |= {"action": "RECREATING", "left": cloud.polls_of("compute.instances.start")}
            continue
        if key not in cloud.resources:
            bring_up(cloud, name, group, one, key)
        cloud.resources[key]["status"] = "TERMINATED"
        one["action"] = "NONE"


HANDLERS = {
    "compute.instanceGroupManagers.listManagedInstances": list_members,
    "compute.instanceGroupManagers.listErrors": list_errors,
    "compute.instanceGroupManagers.deleteInstances": act,
    "compute.instanceGroupManagers.recreateInstances": act,
    "compute.instanceGroupManagers.abandonInstances": act,
    "compute.instanceGroupManagers.resize": resize,
}
