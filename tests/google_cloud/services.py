"""The fake cloud's services besides storage, as far as they are called: what exists is read in one way for all.

States go on with each `get` of a resource: `DEFAULT_SCRIPTS`, or what `cloud.script` says.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from google_cloud import storage
from google_cloud.judge import Refused, Request

if TYPE_CHECKING:
    from google_cloud.fake import Cloud

NUMBER = "123456789012"
DEFAULT_SCRIPTS: dict[str, list[dict[str, Any]]] = {
    "customJobs": [{"state": "JOB_STATE_RUNNING"}, {"state": "JOB_STATE_SUCCEEDED"}],
    "builds": [{"status": "WORKING"}, {"status": "SUCCESS"}],
}
ENDED = {"JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED"}
COMPARISON = re.compile(r'([\w.-]+(?:\."[^"]+")?)\s*(>=|=)\s*("[^"]*"|\S+)')


def call(cloud: Cloud, request: Request) -> Any:
    *_, collection, verb = ("", *request.id.split("."))
    function = HANDLERS.get(f"{collection}.{verb}") or {"get": get, "list": listed}.get(verb)
    if function is None:
        raise NotImplementedError(request.id)
    return function(cloud, request)


def get(cloud: Cloud, request: Request) -> Any:
    found = cloud.need(request.key)
    go_on(cloud, request.key, found)
    return found


def listed(cloud: Cloud, request: Request) -> Any:
    matches = matcher(request.query.get("filter", ""))
    found = [one for _, one in cloud.below(request.key) if matches(one)]
    return page(found, request.query, request.api.list_key(request.method))


def page(found: list[Any], asked: dict[str, Any], key: str) -> dict[str, Any]:
    first, size = int(asked.get("pageToken") or 0), int(asked.get("pageSize") or asked.get("maxResults") or 500)
    more = {"nextPageToken": str(first + size)} if first + size < len(found) else {}
    return {key: found[first : first + size], **more}


def matcher(text: str) -> Callable[[Any], bool]:
    """Of a list's `filter`: comparisons joined by AND or spaces."""
    wanted = COMPARISON.findall(text)
    if COMPARISON.sub("", text).replace("AND", "").strip():
        raise Refused(f"Invalid value for field 'filter': '{text}'. Invalid list filter expression.")

    def holds(body: Any, field: str, sign: str, value: str) -> bool:
        for part in field.split("."):
            body = body.get(part) if isinstance(body, dict) else None
        return str(body) == value.strip('"') if sign == "=" else str(body) >= value.strip('"')

    return lambda body: all(holds(body, *one) for one in wanted)


def go_on(cloud: Cloud, key: str, found: dict[str, Any]) -> None:
    """To the next state of the resource's script."""
    if not found.get("_script"):
        return
    found["_left"] = found.get("_left", cloud.polls_of(f"states.{key.rsplit('/', 2)[1]}")) - 1
    if found["_left"] > 0:
        return
    del found["_left"]
    said = dict(found["_script"].pop(0))
    found |= said
    if said.get("state") in ENDED:
        found["endTime"] = cloud.now()
    if said.get("status") == "SUCCESS" and found.get("images"):
        digest = f"sha256:{hashlib.sha256(json.dumps(found.get('source')).encode()).hexdigest()}"
        found["results"] = {"images": [{"name": image, "digest": digest} for image in found["images"]]}


def script_of(cloud: Cloud, kind: str) -> list[dict[str, Any]]:
    return json.loads(json.dumps(cloud.scripts.get(kind, DEFAULT_SCRIPTS[kind])))


# ---- projects, Service Usage, Logging ------------------------------------------------------------------------------


def always_there(cloud: Cloud, request: Request) -> Any:
    """Types of machines and disks: all that are asked for, but those in `cloud.absent`."""
    if request.name in cloud.absent:
        raise Refused(f"The resource '{request.name}' was not found", 404)
    return {"kind": f"compute#{request.id.split('.')[1][:-1]}", "name": request.name.rpartition("/")[2]}


def project(cloud: Cloud, request: Request) -> Any:
    name = request.name.rpartition("/")[2]
    if request.api.name == "compute":
        return {"kind": "compute#project", "name": name}
    if name != cloud.project:
        resource = f"'//cloudresourcemanager.googleapis.com/projects/{name}' (or it may not exist)."
        raise Refused(f"Permission 'resourcemanager.projects.get' denied on resource {resource}", 403)
    return {"name": f"projects/{NUMBER}", "projectId": cloud.project, "state": "ACTIVE"}


def service(cloud: Cloud, name: str) -> dict[str, Any]:
    on = name.removesuffix(".googleapis.com") not in cloud.disabled
    return {"name": f"projects/{NUMBER}/services/{name}", "state": "ENABLED" if on else "DISABLED"}


def get_services(cloud: Cloud, request: Request) -> Any:
    return {"services": [service(cloud, name.rpartition("/")[2]) for name in request.lists.get("names", [])]}


def enable(cloud: Cloud, request: Request) -> Any:
    """An operation that is done after some polls."""
    from google_cloud.fake import Operation

    names = request.body["serviceIds"]

    def done() -> dict[str, Any]:
        cloud.disabled -= {name.removesuffix(".googleapis.com") for name in names}
        return {"@type": "type.googleapis.com/x", "services": [service(cloud, name) for name in names]}

    name = f"operations/operation-{cloud.number()}"
    cloud.operations[name] = Operation({"name": name, "done": False}, cloud.polls_of(request.id), done)
    return operation(cloud, request, name, polled=0)


def operation(cloud: Cloud, request: Request, name: str = "", polled: int = 1) -> Any:
    one = cloud.operations[name or request.name]
    one.left -= polled
    if one.left <= 0 and not one.body["done"]:
        one.body |= {"done": True, "response": one.finish()}
    return dict(one.body)


def read_log(cloud: Cloud, request: Request) -> Any:
    matches = matcher(request.body.get("filter", ""))
    return page([entry for entry in cloud.logs if matches(entry)], request.body, "entries")


# ---- Vertex AI and Cloud Build -------------------------------------------------------------------------------------


def create_job(cloud: Cloud, request: Request) -> Any:
    if not (request.body.get("jobSpec") or {}).get("workerPoolSpecs"):
        raise Refused("List of found errors: 1.Field: job_spec.worker_pool_specs; Message: At least one is required.")
    name = f"{request.name}/{cloud.number()}"
    fixed = request.api.read_only(request.method)
    made = {field: value for field, value in request.body.items() if field not in fixed}
    made |= {"name": name, "createTime": cloud.now(), "state": "JOB_STATE_PENDING"}
    made["_script"] = script_of(cloud, "customJobs")
    cloud.resources[f"aiplatform/{name}"] = made
    return made


def cancel_job(cloud: Cloud, request: Request) -> Any:
    found = cloud.need(request.key.removesuffix(":cancel"))
    if found["state"] not in ENDED:
        found |= {"state": "JOB_STATE_CANCELLING", "_script": [{"state": "JOB_STATE_CANCELLED"}]}
    return {}


def create_build(cloud: Cloud, request: Request) -> Any:
    parts, body = request.name.split("/"), request.body
    project, place = parts[1], parts[3] if parts[2] == "locations" else "global"
    if not body.get("steps"):
        raise Refused("invalid build: no build steps specified")
    options = body.get("options") or {}
    logged = body.get("logsBucket") or options.get("logging") in ("CLOUD_LOGGING_ONLY", "NONE")
    if body.get("serviceAccount") and not logged:
        raise Refused("if 'build.service_account' is specified, the build must specify 'build.logs_bucket', or …")
    text = json.dumps([body["steps"], body.get("images"), body.get("artifacts")])
    for name in body.get("substitutions") or {}:
        if options.get("substitutionOption") != "ALLOW_LOOSE" and f"${{{name}}}" not in text and f"${name}" not in text:
            raise Refused(f'key "{name}" in the substitution data is not matched in the template')
    ident = f"00000000-0000-4000-8000-{cloud.number():0>12}"
    name = f"projects/{project}/locations/{place}/builds/{ident}"
    made = {**body, "id": ident, "name": name, "projectId": project, "status": "QUEUED", "createTime": cloud.now()}
    made |= {"logUrl": f"https://console.cloud.google.com/cloud-build/builds/{ident}?project={project}"}
    made["_script"] = script_of(cloud, "builds")
    cloud.resources[f"cloudbuild/{name}"] = made
    meta = {"@type": "type.googleapis.com/google.devtools.cloudbuild.v1.BuildOperationMetadata", "build": made}
    return {"name": f"operations/build/{project}/{ident}", "metadata": meta, "done": False}


# ---- what Terraform's provider changes -----------------------------------------------------------------------------


SHOWN = {
    "google_artifact_registry_repository": "artifactregistry",
    "google_compute_disk": "compute",
    "google_compute_network": "compute",
    "google_container_cluster": "container",
    "google_filestore_instance": "file",
    "google_storage_bucket": "storage",
}
"""Types that other requests see, with their service. Their ID is the path there; a bucket's is its name."""


def key_of(kind: str, ident: str) -> str | None:
    return f"{SHOWN[kind]}/{'b/' if kind == 'google_storage_bucket' else ''}{ident}" if kind in SHOWN else None


def read_state(cloud: Cloud, kind: str, ident: str) -> dict[str, Any] | None:
    """None also when somebody has removed it behind Terraform's back."""
    key = key_of(kind, ident)
    return None if key and key not in cloud.resources else cloud.terraform.get((kind, ident))


def change_state(cloud: Cloud, op: str, kind: str, ident: str, state: dict[str, Any]) -> None:
    """Raises `Refused` as the REST call that the provider makes would."""
    key = key_of(kind, ident)
    if op == "create" and read_state(cloud, kind, ident) is not None:
        raise Refused(f"The resource '{ident}' already exists", 409)
    if op == "delete":
        if kind == "google_storage_bucket":
            before = cloud.terraform[kind, ident]
            if any(owner == ident for owner, _ in cloud.objects) and not before.get("force_destroy"):
                raise Refused(f"Error trying to delete bucket {ident} containing objects", 409, reason="conflict")
            cloud.objects = {where: kept for where, kept in cloud.objects.items() if where[0] != ident}
        cloud.terraform.pop((kind, ident), None)
        cloud.resources.pop(key or "", None)
        return
    cloud.terraform[kind, ident] = state
    if key is None:
        return
    about = {"labels": state.get("effective_labels") or {}, "name": state["name"]}
    if kind == "google_storage_bucket":
        versioning = {"enabled": any(block.get("enabled") for block in state.get("versioning") or [])}
        about |= {"location": str(state["location"]), "versioning": versioning}
        made = cloud.resources.get(key) or storage.make_bucket(cloud, about)
        about = made | about
    elif kind == "google_container_cluster":
        dns = {"endpoint": f"gke-{state['name']}.us-east5.gke.goog", "allowExternalTraffic": True}
        about = {"name": state["name"], "location": state["location"], "status": "RUNNING"}
        about |= {"controlPlaneEndpointsConfig": {"dnsEndpointConfig": dns}}
        about |= {"resourceLabels": state.get("resource_labels") or {}}
    elif kind == "google_compute_disk":
        about["accessMode"] = state.get("access_mode")
    cloud.resources[key] = about


HANDLERS: dict[str, Callable[[Any, Request], Any]] = {
    "machineTypes.get": always_there,
    "diskTypes.get": always_there,
    "projects.get": project,
    "services.batchGet": get_services,
    "services.batchEnable": enable,
    "operations.get": operation,
    "entries.list": read_log,
    "customJobs.create": create_job,
    "customJobs.cancel": cancel_job,
    "builds.create": create_build,
}
