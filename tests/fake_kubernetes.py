"""As much of a Kubernetes API server as `kubectl apply` asks for, on loopback: which kinds there are, that it validates
fields itself, and objects that are kept. What it is sent is checked strictly against the published schemas, and by the
rules of GKE for TPU slices and of Kueue for queues."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from reference.kubernetes.check import faults, published

RESOURCES = {
    "ConfigMap": ("v1", "configmaps"),
    "Service": ("v1", "services"),
    "Job": ("batch/v1", "jobs"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "JobSet": ("jobset.x-k8s.io/v1alpha2", "jobsets"),
    "TrainJob": ("trainer.kubeflow.org/v1alpha1", "trainjobs"),
    "TrainingRuntime": ("trainer.kubeflow.org/v1alpha1", "trainingruntimes"),
    "RayJob": ("ray.io/v1", "rayjobs"),
}


KIND_LABEL, TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
FLAT = {
    "1x1": {1: 1}, "2x2": {4: 1}, "2x4": {8: 1, 4: 2}, "4x4": {4: 4}, "4x8": {4: 8}, "8x8": {4: 16}, "8x16": {4: 32},
    "16x16": {4: 64},
}  # fmt: skip
SOLID = {"2x2x1": {4: 1}, "2x2x2": {4: 2}, "2x2x4": {4: 4}, "2x4x4": {4: 8}, "4x4x4": {4: 16}, "4x4x8": {4: 32}}
NODE_POOLS = {
    "tpu-v4-podslice": SOLID,
    "tpu-v5-lite-podslice": FLAT,
    "tpu-v5p-slice": SOLID,
    "tpu-v6e-slice": FLAT,
    "tpu7x": SOLID,
}
"""Number of nodes by the chips of one, by topology, by the label of the nodes: the smaller pools that GKE has.
docs.cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus"""


def admission(made: dict[str, Any], queues: set[str] | None) -> list[str]:
    """What GKE's and Kueue's webhooks, and pods that would wait forever, have against an object. `queues` that there
    are, if each job has to name one. The rules are the documentation's; the words are made up."""
    if made["kind"] not in ("Job", "JobSet"):
        return []
    spec = made["spec"]
    jobs = [spec] if made["kind"] == "Job" else [job["template"]["spec"] for job in spec["replicatedJobs"]]
    wrong = [fault for job in jobs for fault in _of_tpus(job, made["kind"])]
    if queues is not None and (queue := made["metadata"].get("labels", {}).get(QUEUE_LABEL)) not in queues:
        wrong.append(f"queue {queue} does not exist" if queue else f"the label {QUEUE_LABEL} is missing")
    return wrong


def _of_tpus(job: dict[str, Any], kind: str) -> list[str]:
    pod = job["template"]["spec"]
    selected = pod.get("nodeSelector", {})
    label, topology = selected.get(KIND_LABEL), selected.get(TOPOLOGY_LABEL)
    (amounts,) = (container["resources"] for container in pod["containers"])
    request, limit = (amounts[which].get("google.com/tpu") for which in ("requests", "limits"))
    if request is None and limit is None:
        return ["no google.com/tpu is asked for on nodes of TPUs"] if label or topology else []
    if request != limit:
        return [f"google.com/tpu: {request} requested, limit {limit}"]
    if label is None or topology is None:
        return [f"google.com/tpu without {TOPOLOGY_LABEL if label else KIND_LABEL}"]
    if topology not in NODE_POOLS.get(label, {}):
        return [f"no node pool of {label} has the topology {topology}"]
    nodes = NODE_POOLS[label][topology].get(int(request))
    if nodes is None:
        return [f"{request} chips are not those of a node of {label} {topology}"]
    if (job["completionMode"], job["completions"], job["parallelism"]) != ("Indexed", nodes, nodes):
        return [f"{job['parallelism']} pods on {nodes} nodes of {label} {topology}"]
    if nodes > 1 and kind != "JobSet" and "subdomain" not in pod:
        return ["pods of several hosts have no names"]
    return []


class FakeCluster:
    """`kinds` it has; `objects` by path; `calls` as `METHOD path?query`; `queues` that jobs have to name one of."""

    def __init__(self, kinds: list[str], queues: set[str] | None = None) -> None:
        self.queues = queues
        self.resources = {kind: RESOURCES[kind] for kind in kinds}
        self.objects: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.url = ""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        versions = sorted({version for version, _ in self.resources.values()})
        groups = {version.partition("/")[0]: version for version in versions if "/" in version}
        known: dict[str, dict[str, Any]] = {
            "/version": {"major": "1", "minor": "37", "gitVersion": "v1.37.0"},
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/apis": {
                "kind": "APIGroupList",
                "apiVersion": "v1",
                "groups": [
                    {"name": group, "versions": [{"groupVersion": version, "version": version.rpartition("/")[2]}]}
                    for group, version in groups.items()
                ],
            },
            "/openapi/v3": {
                "paths": {prefix(v)[1:]: {"serverRelativeURL": f"/openapi/v3{prefix(v)}"} for v in versions}
            },
        }
        for version in versions:
            known[prefix(version)] = self._resources(version)
            known[f"/openapi/v3{prefix(version)}"] = self._openapi(version)
        if method == "GET" and (found := known.get(path) or self.objects.get(path)):
            return 200, found
        if method == "POST":
            return self._create(path, json.loads(body))
        return 404, status(404, "NotFound", f"{path} not found")

    def _resources(self, version: str) -> dict[str, Any]:
        same = {"namespaced": True, "verbs": ["get", "create", "patch"]}
        found = [
            {"name": plural, "singularName": kind.lower(), "kind": kind, **same}
            for kind, (where, plural) in self.resources.items()
            if where == version
        ]
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": found}

    def _openapi(self, version: str) -> dict[str, Any]:
        """That fields are validated here: else kubectl would want whole schemas, and do it itself."""
        group, _, name = version.rpartition("/")
        paths = {
            f"{prefix(version)}/namespaces/{{namespace}}/{plural}/{{name}}": {
                "patch": {
                    "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
                    "responses": {},
                    "x-kubernetes-group-version-kind": {"group": group, "version": name, "kind": kind},
                }
            }
            for kind, (where, plural) in self.resources.items()
            if where == version
        }
        return {"openapi": "3.0.0", "info": {"title": "made up", "version": "1"}, "paths": paths}

    def _create(self, path: str, made: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        schemas = published()
        if wrong := list(faults(made, schemas[made["kind"]], schemas)):
            return 400, status(400, "BadRequest", f"strict decoding error: {wrong[0]}")
        if wrong := admission(made, self.queues):
            return 403, status(403, "Forbidden", f"admission webhook denied the request: {wrong[0]}")
        made["metadata"].setdefault("namespace", path.split("/namespaces/")[1].split("/")[0])
        self.objects[f"{path}/{made['metadata']['name']}"] = made
        return 201, made


def prefix(version: str) -> str:
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def status(code: int, reason: str, message: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": code,
    }


@contextmanager
def fake_cluster(kinds: list[str], queues: set[str] | None = None) -> Iterator[FakeCluster]:
    cluster = FakeCluster(kinds, queues)

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            cluster.calls.append(f"{self.command} {self.path}")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            code, value = cluster.answer(self.command, urlsplit(self.path).path, body)
            content = json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = answer

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    cluster.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield cluster
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
