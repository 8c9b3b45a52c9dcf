"""The fake cloud's younger services, which share one way of creating, reading and waiting: GKE, Filestore, Vertex
AI, Cloud Build, Artifact Registry, IAM, projects, Service Usage, Logging.

States go on with each `get` of a resource: `DEFAULT_SCRIPTS`, or what `cloud.script` says.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from google_cloud import platform
from google_cloud.judge import Refused, Request
from google_cloud.names import last, matcher

if TYPE_CHECKING:
    from google_cloud.fake import Cloud

DEFAULT_SCRIPTS: dict[str, list[dict[str, Any]]] = {
    "customJobs": [{"state": "JOB_STATE_RUNNING"}, {"state": "JOB_STATE_SUCCEEDED"}],
    "builds": [{"status": "WORKING"}, {"status": "SUCCESS"}],
}
ENDED = {"JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED"}
BUILD_ENDED = {"SUCCESS", "FAILURE", "INTERNAL_ERROR", "TIMEOUT", "CANCELLED", "EXPIRED"}


ASSETS = {"disks": "Disk", "instances": "Instance", "clusters": "Cluster", "b": "Bucket", "customJobs": "CustomJob"}
ASSETS |= {"instanceTemplates": "InstanceTemplate", "repositories": "Repository"}


def search_assets(cloud: Cloud, request: Request) -> Any:
    """Labelled resources, by words of a label's value: "lab1" finds "lab1-b" too. `cloud.indexed` has what the search
    still finds after its deletion."""
    wanted = re.findall(r"labels\.([\w-]+):([\w-]+)", request.query.get("query", ""))
    found = list(cloud.indexed)
    for key, one in sorted(cloud.resources.items()):
        service, _, name = key.partition("/")
        kind = ASSETS.get(name.rpartition("/")[0].rpartition("/")[2], "Other")
        labels = one.get("labels") or {}
        if any(
            value in re.split(r"[-_]", str(labels.get(label))) or labels.get(label) == value for label, value in wanted
        ):
            place = re.search(r"(?:zones|regions|locations)/([^/]+)", name)
            about = {"assetType": f"{service}.googleapis.com/{kind}", "location": place[1] if place else "global"}
            found.append({"name": f"//{service}.googleapis.com/{name.removeprefix('b/')}", "labels": labels, **about})
    first = int(request.query.get("pageToken") or 0)
    more = {"nextPageToken": str(first + 2)} if first + 2 < len(found) else {}
    return {"results": found[first : first + 2], **more}


def call(cloud: Cloud, request: Request) -> Any:
    if request.id == "cloudasset.searchAllResources":
        return search_assets(cloud, request)
    collection = request.id.split(".")[-2]
    if collection == "operations":
        return operation(cloud, request)
    function = HANDLERS.get(".".join(request.id.split(".")[-2:])) or COMMON.get(request.verb)
    if function is None or (request.api.name, collection) not in KINDS:
        raise NotImplementedError(request.id)
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
    if "_script" not in found or not found["_script"]:
        return
    found["_left"] = found.get("_left", cloud.polls_of(f"states.{kind}")) - 1
    if found["_left"] > 0:
        return
    del found["_left"]
    told = dict(found["_script"].pop(0))
    found |= told
    if told.get("state") in ENDED | {"JOB_STATE_RUNNING"} or told.get("status") in BUILD_ENDED | {"WORKING"}:
        found.setdefault("startTime", cloud.now())
    if told.get("state") in ENDED:
        found["endTime"] = cloud.now()
    if told.get("status") in BUILD_ENDED:
        found["finishTime"] = cloud.now()
        digest = f"sha256:{hashlib.sha256(json.dumps(found.get('source')).encode()).hexdigest()}"
        if told["status"] == "SUCCESS" and found.get("images"):
            found["results"] = {"images": [{"name": image, "digest": digest} for image in found["images"]]}


def script_of(cloud: Cloud, kind: str) -> list[dict[str, Any]]:
    return json.loads(json.dumps(cloud.scripts.get(kind, DEFAULT_SCRIPTS[kind])))


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


KINDS = {
    ("tpu", "queuedResources"), ("tpu", "nodes"), ("file", "instances"),
    ("file", "backups"), ("aiplatform", "customJobs"), ("cloudbuild", "builds"),
    ("artifactregistry", "repositories"), ("artifactregistry", "tags"), ("cloudresourcemanager", "projects"),
    ("iam", "serviceAccounts"), ("serviceusage", "services"), ("logging", "entries"), ("container", "clusters"),
}  # fmt: skip
SETTLE = {
    "instances": settle_filestore,
    "customJobs": settle_job,
    "repositories": settle_repository,
}
GONE = {"instances": filestore_gone}
COMMON = {"create": create, "get": get, "list": listed, "patch": patch, "delete": delete}
HANDLERS = platform.HANDLERS | {
    "customJobs.cancel": cancel_job,
    "builds.create": create_build,
    "builds.get": get_build,
    "builds.cancel": cancel_build,
}
