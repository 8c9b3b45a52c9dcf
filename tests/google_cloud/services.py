"""The fake cloud's younger services, which share one way of creating, reading and waiting: Cloud TPU, Filestore, Vertex
AI, Cloud Build, Artifact Registry, IAM, projects, Service Usage, Logging.

States go on with each `get` of a resource: `DEFAULT_SCRIPTS`, or what `cloud.script` says.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from google_cloud.compute import last, matcher, relative
from google_cloud.judge import Refused, Request

if TYPE_CHECKING:
    from google_cloud.fake import Cloud

DEFAULT_SCRIPTS: dict[str, list[dict[str, Any]]] = {
    "queuedResources": [{"state": "PROVISIONING"}, {"state": "ACTIVE"}],
    "customJobs": [{"state": "JOB_STATE_RUNNING"}, {"state": "JOB_STATE_SUCCEEDED"}],
    "builds": [{"status": "WORKING"}, {"status": "SUCCESS"}],
}
ENDED = {"JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED"}
BUILD_ENDED = {"SUCCESS", "FAILURE", "INTERNAL_ERROR", "TIMEOUT", "CANCELLED", "EXPIRED"}
ACCELERATORS = re.compile(r"(v2|v3|v4|v5litepod|v5p|v6e)-(\d+)")
NUMBER = "123456789012"


def call(cloud: Cloud, request: Request) -> Any:
    collection = request.id.split(".")[-2]
    if collection == "operations":
        return operation(cloud, request)
    function = HANDLERS.get(".".join(request.id.split(".")[-2:])) or COMMON.get(request.verb)
    if function is None or (request.api.name, collection) not in KINDS:
        raise Refused(f"the fake does not do {request.id}", 501)
    return function(cloud, request)


# ---- what all have in common ---------------------------------------------------------------------------------------


def create(cloud: Cloud, request: Request) -> Any:
    before = cloud.operations.get(f"request/{request.query.get('requestId')}")
    if before:
        return dict(before.body)
    kind = request.name.rsplit("/", 1)[1]
    parameter = next(
        (name for name in request.method["parameters"] if name.endswith("Id") and name != "requestId"), None
    )
    ident = request.query.get(parameter) if parameter else cloud.number()
    if not ident:
        raise Refused(f"Missing required parameter {parameter}")
    name = f"{request.name}/{ident}"
    if f"{request.api.name}/{name}" in cloud.resources:
        raise Refused(f"Resource '{name}' already exists", 409)
    fixed = request.api.read_only(request.method)
    made = {field: value for field, value in request.body.items() if field not in fixed}
    made |= {"name": name, "createTime": cloud.now()}
    finish = SETTLE.get(kind, lambda *_: None)(cloud, name, made)
    cloud.resources[f"{request.api.name}/{name}"] = made
    if not request.method["response"]["$ref"].endswith("Operation"):
        return made

    def ready() -> dict[str, Any]:
        if finish:
            finish()
        return made

    return started(cloud, request, name, ready)


def get(cloud: Cloud, request: Request) -> Any:
    found = cloud.need(request.key)
    go_on(cloud, request.key, found)
    return found


def listed(cloud: Cloud, request: Request) -> Any:
    matches = matcher(request.query.get("filter", ""))
    found = [one for _, one in cloud.below(request.key) if matches(one)]
    first, size = int(request.query.get("pageToken") or 0), int(request.query.get("pageSize") or 500)
    answer: dict[str, Any] = {request.api.list_key(request.method): found[first : first + size]}
    return answer | ({"nextPageToken": str(first + size)} if first + size < len(found) else {})


def patch(cloud: Cloud, request: Request) -> Any:
    found = cloud.need(request.key)
    mask = re.split(r",", request.query.get("updateMask", "")) if request.query.get("updateMask") else None
    for field, value in request.body.items():
        if mask is None or any(one.split(".")[0].replace("_", "").lower() == field.lower() for one in mask):
            found[field] = value
    if not request.method["response"]["$ref"].endswith("Operation"):
        return found
    return started(cloud, request, request.name, lambda: found)


def delete(cloud: Cloud, request: Request) -> Any:
    found = cloud.need(request.key)
    kind = request.name.rsplit("/", 2)[1]
    GONE.get(kind, lambda *_: None)(cloud, request, found)

    def gone() -> dict[str, Any]:
        cloud.resources.pop(request.key, None)
        return {}

    if request.method["response"]["$ref"].endswith("Operation"):
        return started(cloud, request, request.name, gone)
    return gone()


def started(cloud: Cloud, request: Request, target: str, finish: Any) -> dict[str, Any]:
    from google_cloud.fake import Operation

    scope = re.match(r"projects/[^/]+/locations/[^/]+/", target)
    name = f"{scope[0] if scope else ''}operations/operation-{cloud.number()}"
    meta = {"@type": f"type.googleapis.com/google.cloud.{request.api.name}.{request.api.version}.OperationMetadata"}
    meta |= {"createTime": cloud.now(), "target": target, "verb": request.verb, "apiVersion": request.api.version}
    one = Operation({"name": name, "metadata": meta, "done": False}, cloud.polls_of(request.id), finish)
    cloud.operations[f"{request.api.name}/{name}"] = one
    if request.query.get("requestId"):
        cloud.operations[f"request/{request.query['requestId']}"] = one
    return advance(one, reading=False)


def operation(cloud: Cloud, request: Request) -> Any:
    if request.verb == "list":
        return {"operations": []}
    if request.key not in cloud.operations:
        raise Refused(f"Operation '{request.name}' was not found", 404)
    return advance(cloud.operations[request.key], reading=True)


def advance(one: Any, *, reading: bool) -> dict[str, Any]:
    if not one.body["done"]:
        one.left -= reading
        if one.left <= 0:
            one.body["done"] = True
            try:
                made = one.finish()
                kind = (
                    "type.googleapis.com/google.protobuf.Empty"
                    if not made
                    else "type.googleapis.com/google.cloud.Resource"
                )
                one.body["response"] = {"@type": kind} | made
            except Refused as error:
                numbers = {400: 9, 403: 7, 404: 5, 409: 6, 429: 8}
                one.body["error"] = {"code": numbers.get(error.code, 13), "message": str(error)}
    return dict(one.body)


def go_on(cloud: Cloud, key: str, found: dict[str, Any]) -> None:
    """To the next state of the resource's script."""
    kind = key.rsplit("/", 2)[1]
    if "_script" not in found or not found["_script"] or (kind == "queuedResources" and waits(cloud, key)):
        return
    found["_left"] = found.get("_left", cloud.polls_of(f"states.{kind}")) - 1
    if found["_left"] > 0:
        return
    del found["_left"]
    told = dict(found["_script"].pop(0))
    if kind == "queuedResources":
        be_in_state(cloud, key.removeprefix("tpu/"), found, told)
        return
    found |= told
    if told.get("state") in ENDED | {"JOB_STATE_RUNNING"} or told.get("status") in BUILD_ENDED | {"WORKING"}:
        found.setdefault("startTime", cloud.now())
    if told.get("state") in ENDED:
        found["endTime"] = cloud.now()
    if told.get("status") in BUILD_ENDED:
        found["finishTime"] = cloud.now()
        digest = "sha256:" + "0" * 64
        if told["status"] == "SUCCESS" and found.get("images"):
            found["results"] = {"images": [{"name": image, "digest": digest} for image in found["images"]]}


def script_of(cloud: Cloud, kind: str) -> list[dict[str, Any]]:
    return json.loads(json.dumps(cloud.scripts.get(kind, DEFAULT_SCRIPTS[kind])))


# ---- Cloud TPU -----------------------------------------------------------------------------------------------------


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
    made["_script"] = script_of(cloud, "queuedResources")


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
            more = "offered (see https://cloud.google.com/tpu/docs/regions)"
            message = f'There is no more capacity in the zone "{zone}"; you can try in another zone where Cloud TPU Nodes are '
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


def capacity_is_back(cloud: Cloud, zone: str) -> None:
    """Queued resources go on by themselves at their next reading."""


# ---- Filestore, Vertex AI, Cloud Build, Artifact Registry ----------------------------------------------------------


def settle_filestore(cloud: Cloud, name: str, made: dict[str, Any]) -> Any:
    made["state"] = "CREATING"
    for share in made.get("fileShares", []):
        if made.get("tier") in ("BASIC_HDD", "STANDARD") and int(share.get("capacityGb", 0)) < 1024:
            raise Refused("The instance's capacity must be at least 1024 GB")

    def ready() -> None:
        for one in made.get("networks", []):
            one["ipAddresses"] = ["10.20.30.2"]
        made["state"] = "READY"

    return ready


def filestore_gone(cloud: Cloud, request: Request, found: dict[str, Any]) -> None:
    if found.get("deletionProtectionEnabled"):
        message = "The instance has deletion protection enabled. Disable it before deleting the instance."
        raise Refused(message, 400, "FAILED_PRECONDITION")


def settle_job(cloud: Cloud, name: str, made: dict[str, Any]) -> None:
    if not made.get("displayName"):
        raise Refused("display_name is required")
    if not (made.get("jobSpec") or {}).get("workerPoolSpecs"):
        raise Refused(
            "List of found errors: 1.Field: job_spec.worker_pool_specs; Message: At least one worker pool is required."
        )
    made["state"] = "JOB_STATE_PENDING"
    made["_script"] = script_of(cloud, "customJobs")


def cancel_job(cloud: Cloud, request: Request) -> Any:
    found = cloud.need(request.key.removesuffix(":cancel"))
    if found["state"] not in ENDED:
        found |= {"state": "JOB_STATE_CANCELLING", "_script": [{"state": "JOB_STATE_CANCELLED"}]}
    return {}


def create_build(cloud: Cloud, request: Request) -> Any:
    parts = request.name.split("/")
    project, place = parts[1], parts[3] if parts[2] == "locations" else "global"
    steps = request.body.get("steps")
    if not steps:
        raise Refused("invalid build: no build steps specified")
    account = request.body.get("serviceAccount")
    options = request.body.get("options") or {}
    if account and not request.body.get("logsBucket") and options.get("logging") not in ("CLOUD_LOGGING_ONLY", "NONE"):
        message = "if 'build.service_account' is specified, the build must either (a) specify 'build.logs_bucket', (b) "
        raise Refused(
            message
            + "use the REGIONAL_USER_OWNED_BUCKET option, or (c) use either CLOUD_LOGGING_ONLY / NONE logging options"
        )
    for name in request.body.get("substitutions") or {}:
        text = json.dumps([steps, request.body.get("images"), request.body.get("artifacts")])
        if options.get("substitutionOption") != "ALLOW_LOOSE" and f"${{{name}}}" not in text and f"${name}" not in text:
            raise Refused(
                f'generic::invalid_argument: key "{name}" in the substitution data is not matched in the template'
            )
    ident = f"00000000-0000-4000-8000-{cloud.number():0>12}"
    name = f"projects/{project}/locations/{place}/builds/{ident}"
    made = dict(request.body) | {
        "id": ident,
        "name": name,
        "projectId": project,
        "status": "QUEUED",
        "createTime": cloud.now(),
    }
    made |= {"logUrl": f"https://console.cloud.google.com/cloud-build/builds/{ident}?project={project}"}
    made["_script"] = script_of(cloud, "builds")
    cloud.resources[f"cloudbuild/{name}"] = made
    meta = {"@type": "type.googleapis.com/google.devtools.cloudbuild.v1.BuildOperationMetadata", "build": made}
    return {"name": f"operations/build/{project}/{ident}", "metadata": meta, "done": False}


def build(cloud: Cloud, request: Request) -> dict[str, Any]:
    ident = last(request.name.removesuffix(":cancel"))
    key = next((key for key in cloud.resources if key.startswith("cloudbuild/") and last(key) == ident), None)
    if key is None:
        raise Refused(f"generic::not_found: build {ident} was not found", 404)
    return {"key": key} | {"build": cloud.resources[key]}


def get_build(cloud: Cloud, request: Request) -> Any:
    found = build(cloud, request)
    go_on(cloud, found["key"], found["build"])
    return found["build"]


def cancel_build(cloud: Cloud, request: Request) -> Any:
    found = build(cloud, request)["build"]
    found |= {"status": "CANCELLED", "_script": [], "finishTime": cloud.now()}
    return found


def settle_repository(cloud: Cloud, name: str, made: dict[str, Any]) -> None:
    parts = name.split("/")
    made["registryUri"] = f"{parts[3]}-docker.pkg.dev/{parts[1]}/{parts[5]}"
    made["updateTime"] = cloud.now()


# ---- projects, IAM, Service Usage, Logging -------------------------------------------------------------------------


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


def enable(cloud: Cloud, request: Request) -> Any:
    one = last(request.name).partition(":")[0]
    names = request.body.get("serviceIds") or [one]

    def done() -> dict[str, Any]:
        cloud.disabled -= {name.removesuffix(".googleapis.com") for name in names}
        return {"services": [service(cloud, name) for name in names]}

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


KINDS = {
    ("tpu", "queuedResources"), ("tpu", "nodes"), ("file", "instances"), ("aiplatform", "customJobs"),
    ("cloudbuild", "builds"),
    ("artifactregistry", "repositories"), ("artifactregistry", "dockerImages"), ("cloudresourcemanager", "projects"),
    ("iam", "serviceAccounts"), ("serviceusage", "services"), ("logging", "entries"),
}  # fmt: skip
SETTLE = {
    "queuedResources": settle_queued,
    "nodes": settle_node,
    "instances": settle_filestore,
    "customJobs": settle_job,
    "repositories": settle_repository,
}
GONE = {"queuedResources": queued_gone, "nodes": node_gone, "instances": filestore_gone}
COMMON = {"create": create, "get": get, "list": listed, "patch": patch, "delete": delete}
HANDLERS = {
    "customJobs.cancel": cancel_job,
    "builds.create": create_build,
    "builds.get": get_build,
    "builds.cancel": cancel_build,
    "projects.get": project,
    "projects.testIamPermissions": held_permissions,
    "serviceAccounts.testIamPermissions": held_permissions,
    "projects.getIamPolicy": get_policy,
    "projects.setIamPolicy": set_policy,
    "serviceAccounts.getIamPolicy": get_policy,
    "serviceAccounts.setIamPolicy": set_policy,
    "serviceAccounts.create": create_account,
    "services.get": get_service,
    "services.batchGet": get_services,
    "services.enable": enable,
    "services.batchEnable": enable,
    "entries.write": write_log,
    "entries.list": read_log,
}
