"""The fake refuses what Google refuses: the rest of these tests are worth as much as it is strict."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from typing import Any

import pytest
from google_cloud import judge
from google_cloud.fake import TOKEN, Cloud

P = "projects/lab-proj"
ZONE = f"{P}/zones/us-east5-b"
QUEUE = f"/tpu/v2/{P}/locations/us-east5-b/queuedResources?queuedResourceId=q"


def ask(cloud: Cloud, verb: str, path: str, body: Any = None, token: str | None = TOKEN) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(cloud.url + path, data, headers, method=verb)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read() or b"{}")


def queued(**node: Any) -> dict[str, Any]:
    about = {"acceleratorType": "v5litepod-16", "runtimeVersion": "r"} | node
    return {"tpu": {"nodeSpec": [{"parent": f"{P}/locations/us-east5-b", "nodeId": "n", "node": about}]}}


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (QUEUE, queued(accelerator_type="v4-8"), "Unknown name \"accelerator_type\" at 'tpu.nodeSpec[0].node'"),
        (QUEUE, queued(dataDisks=[{"mode": "RO", "sourceDisk": "d"}]), "tpu.nodeSpec[0].node.dataDisks[0].mode"),
        (QUEUE, queued() | {"queueingPolicy": {"validUntilDuration": "6h"}}, "google.protobuf.Duration"),
        (QUEUE, queued() | {"spot": True}, "Invalid value at 'spot' (Spot)"),
        (QUEUE, queued(runtimeVersion=None), "runtimeVersion"),
        (QUEUE + "&speed=9", queued(), 'Unknown name "speed": Cannot bind query parameter'),
        (QUEUE.split("?")[0], queued(), "queuedResourceId"),
        (f"/compute/v1/{ZONE}/disks", {"name": "D_1"}, "Invalid value for field"),
        (f"/compute/v1/{ZONE}/disks", {"name": "d", "sizeGb": "ten"}, "TYPE_INT64"),
        ("/storage/v1/b?project=p", {"name": "-"}, "Invalid bucket name"),
        ("/storage/v1/b", {"name": "bucket-1"}, "Required parameter: project"),
        (
            f"/aiplatform/v1/{P}/locations/us-central1/customJobs",
            {"displayName": "j", "jobSpec": {}},
            "worker_pool_specs",
        ),
        (f"/cloudbuild/v1/{P}/builds", {"steps": [{"name": "bash"}], "substitutions": {"_A": "1"}}, "is not matched"),
    ],
)
def test_refused(path: str, body: dict[str, Any], said: str, cloud: Cloud) -> None:
    code, answer = ask(cloud, "POST", path, body)
    assert code == 400 and said in answer["error"]["message"]
    assert not cloud.resources and "FAULT" not in answer["error"]["message"]


def test_no_token_no_answer(cloud: Cloud) -> None:
    for token in (None, "another"):
        assert ask(cloud, "GET", f"/compute/v1/{ZONE}/disks", token=token)[0] == 401
    assert ask(cloud, "GET", "/compute/v1/no/such/method")[0] == 404
    assert ask(cloud, "GET", "/nothing/v1/x")[0] == 404


def test_an_answer_of_its_own_that_is_none_of_googles_is_loud(cloud: Cloud) -> None:
    cloud.resources[f"compute/{ZONE}/disks/d"] = {"kind": "compute#disk", "colour": "red"}
    code, answer = ask(cloud, "GET", f"/compute/v1/{ZONE}/disks/d")
    assert code == 400 and "FAULT OF THE FAKE" in answer["error"]["message"] and "colour" in answer["error"]["message"]


def test_generations_and_versions(cloud: Cloud) -> None:
    ask(cloud, "POST", "/storage/v1/b?project=p", {"name": "bucket-1", "versioning": {"enabled": True}})
    cloud.put("gs://bucket-1/a", "1")
    cloud.put("gs://bucket-1/a", "2")
    _, found = ask(cloud, "GET", "/storage/v1/b/bucket-1/o?versions=true")
    first, second = (one["generation"] for one in found["items"])
    assert first < second and cloud.text("gs://bucket-1/a") == "2"
    assert ask(cloud, "DELETE", f"/storage/v1/b/bucket-1/o/a?ifGenerationMatch={first}")[0] == 412
    assert ask(cloud, "DELETE", "/storage/v1/b/bucket-1/o/a")[0] == 204
    assert ask(cloud, "GET", "/storage/v1/b/bucket-1/o/a")[0] == 404
    assert len(ask(cloud, "GET", "/storage/v1/b/bucket-1/o?versions=true")[1]["items"]) == 2
    assert ask(cloud, "DELETE", "/storage/v1/b/bucket-1")[0] == 409


def test_disks_are_shared_only_for_reading(cloud: Cloud) -> None:
    disk, vm = f"/compute/v1/{ZONE}/disks", f"/compute/v1/{ZONE}/instances"
    ask(
        cloud,
        "POST",
        disk,
        {"name": "data", "type": f"{ZONE}/diskTypes/hyperdisk-ml", "accessMode": "READ_WRITE_SINGLE"},
    )

    def machine(name: str, mode: str) -> tuple[int, Any]:
        disks = [{"source": f"{ZONE}/disks/data", "mode": mode}]
        return ask(
            cloud, "POST", vm, {"name": name, "machineType": f"{ZONE}/machineTypes/n2-standard-8", "disks": disks}
        )

    assert machine("writer", "READ_WRITE")[0] == 200
    assert "already being used by" in machine("reader-1", "READ_ONLY")[1]["error"]["message"]
    code, answer = ask(cloud, "DELETE", f"{disk}/data")
    assert code == 400 and answer["error"]["errors"][0]["reason"] == "resourceInUseByAnotherResource"
    _, operation = ask(cloud, "DELETE", f"{vm}/writer")
    assert ask(cloud, "GET", operation["selfLink"].removeprefix(cloud.url))[1]["status"] == "DONE"
    cloud.resources[f"compute/{ZONE}/disks/data"]["accessMode"] = "READ_ONLY_MANY"
    assert machine("reader-1", "READ_ONLY")[0] == machine("reader-2", "READ_ONLY")[0] == 200
    assert "READ_ONLY_MANY" in machine("writer", "READ_WRITE")[1]["error"]["message"]


def test_what_terraform_tells_is_what_rest_shows(cloud: Cloud) -> None:
    def tell(op: str, kind: str, state: dict[str, Any]) -> tuple[int, Any]:
        told = {"op": op, "type": kind, "id": state["name"], "state": state}
        return ask(cloud, "POST", "/__terraform", told, token=None)

    nfs = {
        "name": "lab1-nfs",
        "location": "us-east5-b",
        "tier": "BASIC_HDD",
        "deletion_protection_enabled": True,
        "effective_labels": {"maskwright-environment": "lab1"},
        "file_shares": [{"name": "share", "capacity_gb": 1024}],
        "networks": [{"network": "lab1-net", "modes": ["MODE_IPV4"]}],
    }
    assert tell("create", "google_filestore_instance", nfs)[0] == 200
    _, shown = ask(cloud, "GET", f"/file/v1/{P}/locations/-/instances")
    (one,) = shown["instances"]
    assert one["labels"] == {"maskwright-environment": "lab1"} and one["fileShares"][0]["capacityGb"] == "1024"
    code, answer = tell("delete", "google_filestore_instance", nfs)
    assert code == 400 and "deletion protection" in answer["error"]["message"]
    tell("update", "google_filestore_instance", nfs | {"deletion_protection_enabled": False})
    assert tell("delete", "google_filestore_instance", nfs)[0] == 200
    bucket = {"name": "lab-proj-lab1-runs", "location": "US-EAST5", "versioning": [{"enabled": True}]}
    assert tell("create", "google_storage_bucket", bucket)[0] == 200
    cloud.put("gs://lab-proj-lab1-runs/a", "1")
    code, answer = tell("delete", "google_storage_bucket", bucket)
    assert code == 409 and "force_destroy" in answer["error"]["message"]
    tell("update", "google_storage_bucket", bucket | {"force_destroy": True})
    assert tell("delete", "google_storage_bucket", bucket | {"force_destroy": True})[0] == 200 and not cloud.objects
    cloud.fault("terraform.google_compute_disk.create", 403, "", "made to fail")
    disk = {"name": "lab1-data-1", "zone": "us-east5-b", "size": 10, "type": "hyperdisk-ml"}
    assert tell("create", "google_compute_disk", disk)[0] == 403
    assert tell("create", "google_compute_disk", disk)[0] == 200
    query = "/__terraform?type=google_compute_disk&id=lab1-data-1"
    assert ask(cloud, "GET", query, token=None) == (200, {"state": disk})
    _, operation = ask(cloud, "DELETE", f"/compute/v1/{ZONE}/disks/lab1-data-1")
    ask(cloud, "GET", operation["selfLink"].removeprefix(cloud.url))
    assert ask(cloud, "GET", query, token=None)[0] == 404, "removed behind Terraform's back"


def test_every_method_of_a_document_is_found_by_its_own_path() -> None:
    """Of those that the clients call; a looser template never wins over the one that is meant."""
    for name, version in (
        ("tpu", "v2"),
        ("compute", "v1"),
        ("aiplatform", "v1"),
        ("cloudbuild", "v1"),
        ("storage", "v1"),
    ):
        document = judge.api(name, version)
        assert document is not None
        for method in (
            "queuedResources.create",
            "instances.list",
            "customJobs.cancel",
            "operations.get",
            "objects.delete",
        ):
            for verb, ways in document.methods.items():
                for _, spec, media in ways:
                    if spec["id"].endswith(f".{method}") and not media:
                        path = "/" + document.prefix + re.sub(r"\{\+?\w+\}", "x", spec.get("flatPath", spec["path"]))
                        assert document.match(verb, path)[0]["id"] == spec["id"]
