"""The fake cloud's Cloud TPU API: nodes, and queued resources with their states."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from google_cloud.judge import Refused, Request
from google_cloud.names import last, relative

if TYPE_CHECKING:
    from google_cloud.fake import Cloud

ACCELERATORS = re.compile(r"(v2|v3|v4|v5litepod|v5p|v6e)-(\d+)")
NUMBER = "123456789012"
SCRIPT: list[dict[str, Any]] = [{"state": "PROVISIONING"}, {"state": "ACTIVE"}]


def settle_queued(cloud: Cloud, name: str, made: dict[str, Any]) -> None:
    if "spot" in made and "guaranteed" in made:
        raise Refused("Invalid value at 'tier' (oneof), oneof field 'tier' is already set. Cannot set 'guaranteed'")
    specs = (made.get("tpu") or {}).get("nodeSpec") or []
    if not specs:
        raise Refused("tpu.node_spec must hold at least one node spec")
    for spec in specs:
        if bool(spec.get("nodeId")) == bool(spec.get("multisliceParams")):
            raise Refused("exactly one of node_id and multislice_params must be set")
        if spec.get("parent") != name.split("/queuedResources/")[0].replace(NUMBER, cloud.project):
            raise Refused(f"node_spec.parent '{spec.get('parent')}' must be the parent of the queued resource")
        check_node(cloud, spec.get("node") or {})
        if f"tpu/{spec['parent']}/nodes/{spec.get('nodeId')}" in cloud.resources:
            raise Refused(f"Resource '{spec['parent']}/nodes/{spec['nodeId']}' already exists", 409)
    made["state"] = {"state": "WAITING_FOR_RESOURCES", "stateInitiator": "SERVICE"}
    made["_script"] = json.loads(json.dumps(cloud.scripts.get("queuedResources", SCRIPT)))


def check_node(cloud: Cloud, node: dict[str, Any]) -> None:
    if not node.get("runtimeVersion"):
        raise Refused("node.runtime_version is required")
    if not node.get("acceleratorConfig") and not ACCELERATORS.fullmatch(node.get("acceleratorType", "v2-8")):
        raise Refused(f'Invalid accelerator type "{node["acceleratorType"]}"')
    for disk in node.get("dataDisks", []):
        cloud.need(f"compute/{relative(disk['sourceDisk'])}")


def settle_node(cloud: Cloud, name: str, made: dict[str, Any]) -> Any:
    check_node(cloud, made)
    made["state"] = "CREATING"
    zone = name.split("/locations/")[1].split("/")[0]

    def ready() -> None:
        if zone in cloud.dry:
            cloud.resources.pop(f"tpu/{name}", None)
            more = "Nodes are offered (see https://cloud.google.com/tpu/docs/regions)"
            message = f'There is no more capacity in the zone "{zone}"; you can try in another zone where Cloud TPU '
            raise Refused(message + more, 429)
        start_node(cloud, made)

    return ready


def start_node(cloud: Cloud, node: dict[str, Any]) -> None:
    node.setdefault("acceleratorType", "v2-8")
    family, cores = ACCELERATORS.fullmatch(node["acceleratorType"]).groups()  # type: ignore[union-attr]
    per_host = 8 if family not in ("v5litepod", "v6e") or int(cores) <= 8 else 4
    outside = (node.get("networkConfig") or {}).get("enableExternalIps")
    ends = []
    for host in range(max(1, int(cores) // per_host)):
        end: dict[str, Any] = {"ipAddress": f"10.164.0.{host + 2}", "port": 8470}
        ends.append(end | ({"accessConfig": {"externalIp": f"198.51.100.{host + 2}"}} if outside else {}))
    node |= {"state": "READY", "health": "HEALTHY", "apiVersion": "V2", "id": cloud.number(), "networkEndpoints": ends}


def nodes_of(cloud: Cloud, name: str) -> list[str]:
    return [key for key, one in cloud.resources.items() if key.startswith("tpu/") and one.get("queuedResource") == name]


def waits(cloud: Cloud, key: str) -> bool:
    """A queued resource waits for as long as there are no machines."""
    state = cloud.resources[key]["state"]["state"]
    return state == "WAITING_FOR_RESOURCES" and key.split("/locations/")[1].split("/")[0] in cloud.dry


def be_in_state(cloud: Cloud, name: str, found: dict[str, Any], told: dict[str, Any]) -> None:
    state = told["state"]
    found["state"] = {"stateInitiator": "SERVICE"} | told
    if state in ("PROVISIONING", "ACTIVE"):
        for spec in found["tpu"]["nodeSpec"]:
            several = spec.get("multisliceParams") or {}
            idents = [
                f"{several.get('nodeIdPrefix') or last(name)}-{i}" for i in range(int(several.get("nodeCount", 0)))
            ]
            for ident in idents or [spec["nodeId"]]:
                key = f"tpu/{spec['parent']}/nodes/{ident}"
                node = json.loads(json.dumps(spec["node"])) | {
                    "name": key.removeprefix("tpu/"),
                    "createTime": cloud.now(),
                }
                node |= {"queuedResource": name, "state": "CREATING", "multisliceNode": bool(several)}
                start_node(
                    cloud, cloud.resources.setdefault(key, node)
                ) if state == "ACTIVE" else cloud.resources.setdefault(key, node)
    elif state in ("SUSPENDED", "FAILED"):
        for key in nodes_of(cloud, name):
            del cloud.resources[key]


def queued_gone(cloud: Cloud, request: Request, found: dict[str, Any]) -> None:
    nodes, state = nodes_of(cloud, request.name), found["state"]["state"]
    forced = request.query.get("force", "false").lower() == "true"
    if not forced and (nodes or state in ("PROVISIONING", "ACTIVE")):
        message = (
            f"Queued resource {request.name} is in state {state} and its nodes exist: delete them first, or use force"
        )
        raise Refused(message, 400, "FAILED_PRECONDITION")
    found["state"] = {"state": "DELETING", "stateInitiator": "USER"}
    found["_script"] = []
    for key in nodes:
        del cloud.resources[key]


def node_gone(cloud: Cloud, request: Request, found: dict[str, Any]) -> None:
    """Without its node a queued resource is suspended."""
    found["state"] = "DELETING"
    owner = cloud.resources.get(f"tpu/{found.get('queuedResource')}")
    if owner:
        owner["state"] = {"state": "SUSPENDING", "stateInitiator": "USER"}
        owner["_script"] = [{"state": "SUSPENDED", "stateInitiator": "USER"}]


def preempt(cloud: Cloud, name: str) -> bool:
    for key, found in list(cloud.resources.items()):
        if not key.startswith("tpu/") or last(key) != name:
            continue
        owner = found if "/queuedResources/" in key else cloud.resources.get(f"tpu/{found.get('queuedResource')}")
        if "/nodes/" in key:
            found |= {"state": "PREEMPTED", "health": "TIMEOUT"}
        if owner is not None:
            for node in nodes_of(cloud, owner["name"]):
                cloud.resources[node] |= {"state": "PREEMPTED"}
            owner["state"] = {"state": "SUSPENDING", "stateInitiator": "SERVICE"}
            owner["_script"] = [{"state": "SUSPENDED"}]
        return True
    return False


def accelerator_type(cloud: Cloud, request: Request) -> Any:
    """All that are asked for, but those in `cloud.absent`."""
    if request.name in cloud.absent or not ACCELERATORS.fullmatch(last(request.name)):
        raise Refused(f"Resource '{request.name}' was not found", 404)
    return {"name": request.name, "type": last(request.name)}
