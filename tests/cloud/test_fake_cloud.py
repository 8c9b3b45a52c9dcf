"""The fake refuses what Google refuses: the rest of these tests are worth as much as it is strict."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest
from google_cloud.fake import TOKEN, Cloud

P = "projects/lab-proj"
JOBS = f"/aiplatform/v1/{P}/locations/us-central1/customJobs"
DISKS = f"/compute/v1/{P}/zones/us-east5-b/disks"


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


def job(**pool: Any) -> dict[str, Any]:
    return {"displayName": "j", "jobSpec": {"workerPoolSpecs": [{"replicaCount": "1", **pool}]}}


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (JOBS, job(machine_spec={}), "Unknown name \"machine_spec\" at 'jobSpec.workerPoolSpecs[0]'"),
        (JOBS, job(machineSpec={"acceleratorType": "L5"}), "jobSpec.workerPoolSpecs[0].machineSpec.acceleratorType"),
        (JOBS, job(replicaCount="two"), "TYPE_INT64"),
        (JOBS, job(containerSpec={"imageUri": None}), "containerSpec.imageUri"),
        (JOBS, {"jobSpec": {**job()["jobSpec"], "scheduling": {"timeout": "6h"}}}, "google.protobuf.Duration"),
        (JOBS, {"displayName": "j", "jobSpec": {}}, "worker_pool_specs"),
        (JOBS + "?speed=9", job(), 'Unknown name "speed": Cannot bind query parameter'),
        ("/storage/v1/b?project=p", {"name": "-"}, "Invalid bucket name"),
        ("/storage/v1/b", {"name": "bucket-1"}, "Required parameter: project"),
        (f"/cloudbuild/v1/{P}/builds", {"steps": [{"name": "bash"}], "substitutions": {"_A": "1"}}, "is not matched"),
    ],
)
def test_refused(path: str, body: dict[str, Any], said: str, cloud: Cloud) -> None:
    code, answer = ask(cloud, "POST", path, body)
    assert code == 400 and said in answer["error"]["message"]
    assert not cloud.resources and "FAULT" not in answer["error"]["message"]


def test_an_answer_of_its_own_that_is_none_of_googles_is_loud(cloud: Cloud) -> None:
    cloud.resources[f"{DISKS[1:].replace('/v1', '')}/d"] = {"kind": "compute#disk", "colour": "red"}
    code, answer = ask(cloud, "GET", f"{DISKS}/d")
    assert code == 400 and "FAULT OF THE FAKE" in answer["error"]["message"] and "colour" in answer["error"]["message"]
