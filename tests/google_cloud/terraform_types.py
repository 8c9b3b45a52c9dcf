"""What Terraform makes, in the same world as what REST shows: `POST /__terraform`, sent by the stand-in provider.

A resource's state (snake_case, blocks as lists) becomes the JSON of the REST resource by the discovery document's
schema of it; only where the two are built differently is there code for a type. Types without a REST counterpart here
(IAM members, NAT, bucket objects' helpers) are kept as Terraform's alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from google_cloud import compute, platform, services, storage
from google_cloud.judge import Refused, api
from google_cloud.names import last
from google_cloud.standin_world import told

if TYPE_CHECKING:
    from google_cloud.fake import Cloud

ZONE, REGION, GLOBAL = (
    "projects/{project}/zones/{zone}/",
    "projects/{project}/regions/{region}/",
    "projects/{project}/global/",
)
COMPUTE = {
    "google_compute_disk": ("Disk", ZONE + "disks"),
    "google_compute_network": ("Network", GLOBAL + "networks"),
    "google_compute_subnetwork": ("Subnetwork", REGION + "subnetworks"),
    "google_compute_router": ("Router", REGION + "routers"),
}
RENAMED = {  # REST field -> Terraform's attribute, where it is not the same words
    "Disk": {"sizeGb": "size", "sourceImage": "image", "accessMode": "access_mode"},
    "FileShareConfig": {"capacityGb": "capacity_gb"},
}


def read(cloud: Cloud, kind: str, ident: str) -> dict[str, Any] | None:
    """As it was told, with what was changed behind Terraform's back; None also when it was removed there."""
    known = cloud.terraform.get((kind, ident))
    if known is None or (known["key"] and known["key"] not in cloud.resources):
        return None
    state = dict(known["state"])
    return state


def tell(cloud: Cloud, op: str, kind: str, ident: str, state: dict[str, Any]) -> dict[str, Any]:
    """The state with what Google fills in. Raises `Refused` as the REST call that the provider makes would."""
    project = state.get("project") or cloud.project
    known = cloud.terraform.get((kind, ident))
    if op == "create":
        if known and (not known["key"] or known["key"] in cloud.resources):
            raise Refused(f"The resource '{ident}' already exists", 409)
        permit(cloud, kind, "create", ident)
        key = create(cloud, kind, project, state)
    elif op == "update":
        if known is None:
            raise Refused(f"{kind} {ident} was not found", 404)
        permit(cloud, kind, "update", ident)
        key = known["key"]
        if key:
            update(cloud, kind, key, project, state)
    elif op == "delete":
        permit(cloud, kind, "delete", ident)
        if known:
            delete(cloud, kind, known["key"], known["state"] | state)
            del cloud.terraform[kind, ident]
        return {}
    else:
        raise Refused(f"op is create, update or delete, not {op}")
    filled = computed(cloud, kind, key)
    cloud.terraform[kind, ident] = {"state": told(state, filled), "key": key}
    return filled | told(state, filled)


def permit(cloud: Cloud, kind: str, verb: str, ident: str) -> None:
    if kind in COMPUTE:
        cloud.allow(f"compute.{COMPUTE[kind][1].rsplit('/', 1)[1]}.{verb}", ident)
    elif kind in OTHERS:
        cloud.allow(f"{OTHERS[kind][0]}.{verb}", ident)
    elif kind in POLICIES:
        cloud.allow(f"{POLICIES[kind]}.setIamPolicy", ident)


def computed(cloud: Cloud, kind: str, key: str | None) -> dict[str, Any]:
    """What the provider reads back: links, addresses, e-mail."""
    body = cloud.resources.get(key or "", {})
    found: dict[str, Any] = {}
    if kind in COMPUTE and key:
        found = {"self_link": body["selfLink"], "creation_timestamp": body["creationTimestamp"]}
    elif kind == "google_storage_bucket" and key:
        found = {
            "self_link": body["selfLink"],
            "url": f"gs://{body['id']}",
            "project_number": int(body["projectNumber"]),
        }
    elif kind == "google_filestore_instance" and key:
        found = {"create_time": body["createTime"]}
        found["networks"] = [{"ip_addresses": one["ipAddresses"]} for one in body.get("networks", [])]
    elif kind == "google_service_account" and key:
        found = {
            "email": body["email"],
            "name": body["name"],
            "unique_id": body["uniqueId"],
            "member": f"serviceAccount:{body['email']}",
        }
    elif kind == "google_artifact_registry_repository" and key:
        found = {
            "name": last(body["name"]),
            "registry_uri": body["registryUri"],
            "create_time": body["createTime"],
        }
    return found


# ---- from Terraform's shape to REST's ------------------------------------------------------------------------------


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])|(?<=[A-Z])([A-Z])(?=[a-z])", lambda hit: f"_{hit[0]}", name).lower()


def to_rest(document: str, version: str, schema: str, state: dict[str, Any]) -> dict[str, Any]:
    """Fields of the schema that the state has under the same words, to any depth."""
    known = api(document, version)
    assert known is not None
    made: dict[str, Any] = {}
    for field, spec in known.schemas[schema].get("properties", {}).items():
        words = RENAMED.get(schema, {}).get(field, snake(field))
        value = state.get(words)
        if value is None and words.endswith("s"):
            value = state.get(words.removesuffix("s"))  # blocks are named in the singular: network_interface
        if value is None or value == [] or value == "":
            continue
        inner = spec.get("$ref") or spec.get("items", {}).get("$ref")
        if inner and spec.get("type") == "array" and isinstance(value, list):
            made[field] = [to_rest(document, version, inner, one) for one in value if isinstance(one, dict)]
        elif inner:
            block = value[0] if isinstance(value, list) else value
            if isinstance(block, dict):
                made[field] = to_rest(document, version, inner, block)
        elif "enum" in spec and value not in spec["enum"]:
            continue  # a word of the stand-in's for what the provider would have been told
        elif spec.get("type") == "string":
            made[field] = str(value) if not isinstance(value, bool) else str(value).lower()
        elif spec.get("type") == "integer":
            made[field] = int(value)
        else:
            made[field] = value
    return made


def labels(state: dict[str, Any]) -> dict[str, Any]:
    found = state.get("effective_labels") or state.get("labels") or {}
    return {"labels": found} if found else {}


def compute_body(kind: str, state: dict[str, Any]) -> dict[str, Any]:
    schema = COMPUTE[kind][0]
    made = to_rest("compute", "v1", schema, state)
    for field in (
        "id",
        "selfLink",
        "creationTimestamp",
        "zone",
        "region",
        "labelFingerprint",
        "fingerprint",
        "labels",
        "status",
    ):
        made.pop(field, None)
    if kind == "google_compute_disk":
        made["type"] = f"diskTypes/{last(str(state.get('type') or 'pd-standard'))}"
    return made | labels(state)


def create(cloud: Cloud, kind: str, project: str, state: dict[str, Any]) -> str | None:
    if kind in OTHERS:
        return OTHERS[kind][1](cloud, state)
    if kind not in COMPUTE:
        return extra(cloud, kind, state, there=True)
    place = {
        "project": project,
        "zone": last(str(state.get("zone") or "")),
        "region": last(str(state.get("region") or "")),
    }
    collection = COMPUTE[kind][1].format(**place)
    if "//" in collection:
        raise Refused(f"{kind} {state.get('name')} has neither zone nor region")
    compute.make(cloud, collection, compute_body(kind, state), wait=True)
    return f"compute/{collection}/{state['name']}"


def update(cloud: Cloud, kind: str, key: str, project: str, state: dict[str, Any]) -> None:
    body = cloud.need(key)
    if kind in COMPUTE:
        changed = compute_body(kind, state)
        body |= changed | {field: body[field] for field in ("type",) if field in body}
    elif kind == "google_storage_bucket":
        body |= bucket_body(state)
    elif kind == "google_filestore_instance":
        body |= {"deletionProtectionEnabled": bool(state.get("deletion_protection_enabled"))} | labels(state)


def delete(cloud: Cloud, kind: str, key: str | None, state: dict[str, Any]) -> None:
    if key is None or key not in cloud.resources:
        extra(cloud, kind, state, there=False)
    elif kind in COMPUTE:
        compute.remove(cloud, key.removeprefix("compute/"))
    elif kind == "google_storage_bucket":
        name = last(key)
        if any(owner == name for owner, _ in cloud.objects) and not state.get("force_destroy"):
            message = f"Error trying to delete bucket {name} containing objects without `force_destroy` set to true"
            raise Refused(message, 409, reason="conflict")
        storage.remove_bucket(cloud, name, force=True)
    elif kind == "google_filestore_instance" and cloud.resources[key].get("deletionProtectionEnabled"):
        raise Refused(
            "The instance has deletion protection enabled. Disable it before deleting the instance.",
            400,
            "FAILED_PRECONDITION",
        )
    else:
        del cloud.resources[key]


# ---- what is not Compute's -----------------------------------------------------------------------------------------


def bucket_body(state: dict[str, Any]) -> dict[str, Any]:
    made = {
        "name": state["name"],
        "location": str(state.get("location") or "US"),
        "versioning": {"enabled": False},
    } | labels(state)
    access: dict[str, Any] = {"publicAccessPrevention": state.get("public_access_prevention") or "inherited"}
    access["uniformBucketLevelAccess"] = {"enabled": bool(state.get("uniform_bucket_level_access"))}
    for block in state.get("versioning") or []:
        made["versioning"] = {"enabled": bool(block.get("enabled"))}
    return made | {"iamConfiguration": access}


def make_bucket(cloud: Cloud, state: dict[str, Any]) -> str:
    storage.make_bucket(cloud, bucket_body(state))
    return f"storage/b/{state['name']}"


def make_filestore(cloud: Cloud, state: dict[str, Any]) -> str:
    place = state.get("location") or state.get("zone")
    name = f"projects/{state.get('project') or cloud.project}/locations/{place}/instances/{state['name']}"
    if f"file/{name}" in cloud.resources:
        raise Refused(f"Resource '{name}' already exists", 409)
    made = to_rest("file", "v1", "Instance", state)
    for field in ("state", "etag", "labels", "tags", "statusMessage"):
        made.pop(field, None)
    made |= {"name": name, "createTime": cloud.now()} | labels(state)
    services.settle_filestore(cloud, name, made)()
    cloud.resources[f"file/{name}"] = made
    return f"file/{name}"


def make_cluster(cloud: Cloud, state: dict[str, Any]) -> str:
    """What other commands ask of it: whether it runs, and where."""
    name = f"projects/{state.get('project') or cloud.project}/locations/{state['location']}/clusters/{state['name']}"
    if f"container/{name}" in cloud.resources:
        raise Refused(f"Already exists: {name}", 409)
    dns = {"endpoint": f"gke-{state['name']}.us-east5.gke.goog", "allowExternalTraffic": True}
    cloud.resources[f"container/{name}"] = {
        "name": state["name"],
        "location": state["location"],
        "status": "RUNNING",
        "resourceLabels": state.get("resource_labels") or {},
        "controlPlaneEndpointsConfig": {"dnsEndpointConfig": dns},
    }
    return f"container/{name}"


def make_account(cloud: Cloud, state: dict[str, Any]) -> str:
    about = {"displayName": state["display_name"]} if state.get("display_name") else {}
    return f"iam/{platform.make_account(cloud, state['account_id'], about)['name']}"


def make_repository(cloud: Cloud, state: dict[str, Any]) -> str:
    place = f"projects/{state.get('project') or cloud.project}/locations/{state.get('location')}"
    name = f"{place}/repositories/{state['repository_id']}"
    if f"artifactregistry/{name}" in cloud.resources:
        raise Refused("the repository already exists", 409)
    made: dict[str, Any] = {
        "name": name,
        "format": state.get("format") or "DOCKER",
        "createTime": cloud.now(),
    } | labels(state)
    services.settle_repository(cloud, name, made)
    cloud.resources[f"artifactregistry/{name}"] = made
    return f"artifactregistry/{name}"


def extra(cloud: Cloud, kind: str, state: dict[str, Any], *, there: bool) -> None:
    """Members of policies, APIs, objects: no resource of their own, but an effect."""
    if kind == "google_project_service":
        name = str(state.get("service", "")).removesuffix(".googleapis.com")
        if there:
            cloud.disabled.discard(name)
    elif kind.endswith("_iam_member") and state.get("role"):
        target = str(state.get("bucket") or state.get("service_account_id") or state.get("repository") or cloud.project)
        if kind == "google_storage_bucket_iam_member":
            found = storage.policy(cloud, target)
        else:
            found = platform.policy(cloud, f"projects/{target}" if kind == "google_project_iam_member" else target)
        binding = {"role": state["role"], "members": [state["member"]]}
        for condition in state.get("condition") or []:
            binding["condition"] = {key: condition[key] for key in ("title", "expression")}
        if there and binding not in found["bindings"]:
            found["bindings"].append(binding)
        elif not there and binding in found["bindings"]:
            found["bindings"].remove(binding)
    elif kind == "google_storage_bucket_object":
        bucket, name = str(state.get("bucket")), str(state.get("name"))
        if there:
            storage.store(cloud, bucket, {"name": name}, str(state.get("content") or "").encode(), {})
        elif (bucket, name) in cloud.objects:
            storage.retire(cloud, storage.bucket(cloud, bucket), (bucket, name))


POLICIES = {
    "google_project_iam_member": "cloudresourcemanager.projects",
    "google_storage_bucket_iam_member": "storage.buckets",
    "google_artifact_registry_repository_iam_member": "artifactregistry.projects.locations.repositories",
}
OTHERS: dict[str, tuple[str, Callable[..., str]]] = {
    "google_storage_bucket": ("storage.buckets", make_bucket),
    "google_filestore_instance": ("file.projects.locations.instances", make_filestore),
    "google_container_cluster": ("container.projects.locations.clusters", make_cluster),
    "google_service_account": ("iam.projects.serviceAccounts", make_account),
    "google_artifact_registry_repository": ("artifactregistry.projects.locations.repositories", make_repository),
}
