"""As much of a Kubernetes API server as kubectl asks for, on loopback: which kinds there are, objects that are applied,
listed and deleted, the log of a pod, and a command in it. What it is sent is checked strictly against the published
schemas, and by the rules of GKE for TPU slices and of Kueue for queues. `kubernetes_nodes.py` runs the pods."""

import base64
import hashlib
import json
import ssl
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import RLock
from typing import Any
from urllib.parse import parse_qs, urlsplit

from loopback import Handler, serving
from reference.kubernetes.check import faults, published

RESOURCES = {
    "ConfigMap": ("v1", "configmaps"),
    "Service": ("v1", "services"),
    "Job": ("batch/v1", "jobs"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "JobSet": ("jobset.x-k8s.io/v1alpha2", "jobsets"),
    "Secret": ("v1", "secrets"),
    "Pod": ("v1", "pods"),
    "Workload": ("kueue.x-k8s.io/v1beta2", "workloads"),
}

KIND_LABEL, TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology"
CLASS_LABEL = "cloud.google.com/compute-class"
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
    if CLASS_LABEL in selected and not label and not topology:
        return []  # the ComputeClass has both
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
        self.lock = RLock()
        self.refusals: list[int] = []
        """Statuses of the next answers to lists, such as 503. All else is asked for again by kubectl itself."""
        self.log_of: Callable[[str], tuple[list[str], bool]] = lambda pod: ([], True)
        """The lines of a pod with their times, and whether it has ended."""
        self.run_in: Callable[[str, list[str]], tuple[int, str]] = lambda pod, words: (1, "no such pod\n")
        self.most_log_lines: int | None = None
        """After how many lines a stream of a log is cut."""

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: bytes) -> tuple[int, dict[str, Any]]:
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
        with self.lock:
            if method == "GET" and (found := known.get(path) or self.objects.get(path) or self._list(path, query)):
                return 200, found
            if method == "POST":
                return self._create(path, json.loads(body))
            if method == "PATCH" and query.get("force") and path not in self.objects:
                return self._create(path.rpartition("/")[0], json.loads(body))
            if path not in self.objects:
                return 404, status(404, "NotFound", f"{path} not found")
            if method == "DELETE":
                self.objects[path]["metadata"]["deletionTimestamp"] = now()
                if not self.objects[path]["metadata"].get("finalizers"):
                    self.remove(path)
                return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
            merged = merge(self.objects[path], json.loads(body))
            if wrong := self._wrong(merged):
                return wrong
            self.objects[path] = merged
            return 200, merged

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [made for made in self.objects.values() if made["kind"] == kind]

    def path_of(self, made: dict[str, Any]) -> str:
        version, plural = RESOURCES[made["kind"]]
        return f"{prefix(version)}/namespaces/{made['metadata']['namespace']}/{plural}/{made['metadata']['name']}"

    def add(self, made: dict[str, Any]) -> dict[str, Any]:
        """Keeps an object of a controller, or of `kubectl`."""
        made["metadata"] |= {"uid": uuid.uuid4().hex, "creationTimestamp": now()}
        self.objects[self.path_of(made)] = made
        return made

    def remove(self, path: str) -> None:
        """And what belongs to it, as the garbage collector does."""
        if (made := self.objects.pop(path, None)) is None:
            return
        for other, one in list(self.objects.items()):
            if made["metadata"]["uid"] in [owner["uid"] for owner in one["metadata"].get("ownerReferences", ())]:
                self.remove(other)

    def _list(self, path: str, query: dict[str, list[str]]) -> dict[str, Any] | None:
        kinds = {plural: (kind, version) for kind, (version, plural) in self.resources.items()}
        before, _, plural = path.rpartition("/")
        if plural not in kinds or not before.startswith(prefix(kinds[plural][1])):
            return None
        kind, version = kinds[plural]
        wanted = [one.split("=") for one in query.get("labelSelector", [""])[0].split(",") if one]
        items = [
            made
            for other, made in self.objects.items()
            if other.rpartition("/")[0] == path
            and all(made["metadata"].get("labels", {}).get(key) == value for key, value in wanted)
        ]
        return {"kind": f"{kind}List", "apiVersion": version, "metadata": {}, "items": items}

    def _resources(self, version: str) -> dict[str, Any]:
        same = {"namespaced": True, "verbs": ["get", "list", "create", "patch", "delete"]}
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
        if wrong := self._wrong(made):
            return wrong
        made["metadata"].setdefault("namespace", path.split("/namespaces/")[1].split("/")[0])
        if made["kind"] in ("Job", "JobSet"):
            made["metadata"]["finalizers"] = ["foregroundDeletion"]
        return 201, self.add(made)

    def _wrong(self, made: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
        schemas = published()
        bare = made | {"metadata": {key: made["metadata"][key] for key in made["metadata"] if key not in SERVERS}}
        bare.pop("status", None)
        if made["kind"] in schemas and (wrong := list(faults(bare, schemas[made["kind"]], schemas))):
            return 400, status(400, "BadRequest", f"strict decoding error: {wrong[0]}")
        if wrong := admission(made, self.queues):
            return 403, status(403, "Forbidden", f"admission webhook denied the request: {wrong[0]}")
        return None


REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
"""kubernetes.io/docs/reference/kubernetes-api/common-definitions/status"""
SERVERS = ("uid", "creationTimestamp", "deletionTimestamp", "finalizers")
"""Metadata of the server's own."""


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def merge(old: Any, new: Any) -> Any:
    """JSON merge patch (RFC 7386). A strategic one differs only in lists, none of which is patched here."""
    if not isinstance(new, dict):
        return new
    merged = dict(old) if isinstance(old, dict) else {}
    for key, value in new.items():
        if value is None:
            merged.pop(key, None)
        elif not key.startswith("$"):
            merged[key] = merge(merged.get(key), value)
    return merged


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
    with api_server(cluster) as cluster.url:
        yield cluster


@contextmanager
def api_server(
    cluster: FakeCluster, certificate: Path | None = None, key: Path | None = None, tokens: list[str] | None = None
) -> Iterator[str]:
    """Its address. With a certificate, over TLS. `tokens` gets what requests show to be let in."""

    class ApiServer(Handler):
        def answer(self) -> None:
            cluster.calls.append(f"{self.command} {self.path}")
            if tokens is not None:
                tokens.append(self.headers.get("Authorization", ""))
            parts, body = urlsplit(self.path), self.body()
            query = parse_qs(parts.query)
            if parts.path.endswith("/log"):
                return self.log(parts.path.split("/")[-2], query)
            if cluster.refusals and "labelSelector" in query:
                code = cluster.refusals.pop(0)
                return self.reply(code, status(code, REASONS[code], "made up"))
            if parts.path.endswith("/exec"):
                return self.execute(parts.path.split("/")[-2], query["command"])
            return self.reply(*cluster.answer(self.command, parts.path, query, body))

        def log(self, pod: str, query: dict[str, list[str]]) -> None:
            """As the kubelet: lines as they come, with nine digits of a second; `sinceTime` counts whole seconds."""
            self.send_response(200)
            self.end_headers()
            lines, _ = cluster.log_of(pod)
            tail = query.get("tailLines")
            sent = max(0, len(lines) - int(tail[0])) if tail else 0
            since, shown = query.get("sinceTime", [""])[0][:19], 0
            while True:
                lines, over = cluster.log_of(pod)
                for line in lines[sent:]:
                    if line[:19] >= since:
                        timed = query.get("timestamps") == ["true"]
                        self.wfile.write((line if timed else line.partition(" ")[2]).encode() + b"\n")
                        shown += 1
                        if shown == cluster.most_log_lines:
                            return
                sent = len(lines)
                if over or query.get("follow") != ["true"]:
                    return
                time.sleep(0.02)

        def execute(self, pod: str, words: list[str]) -> None:
            """The WebSocket protocol v5.channel.k8s.io: one byte for the channel, 1 is stdout and 3 the status."""
            key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455
            self.protocol_version = "HTTP/1.1"
            self.send_response(101)
            self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
            self.send_header("Sec-WebSocket-Protocol", "v5.channel.k8s.io")
            self.end_headers()
            code, text = cluster.run_in(pod, words)
            causes = {"details": {"causes": [{"reason": "ExitCode", "message": str(code)}]}}
            failed = status(500, "NonZeroExitCode", f"command terminated with exit code {code}") | causes
            end = failed if code else {"metadata": {}, "status": "Success"}
            for channel, content in ((1, text.encode()), (3, json.dumps(end).encode())):
                payload = bytes([channel]) + content
                length = bytes([len(payload)]) if len(payload) < 126 else b"\x7e" + struct.pack(">H", len(payload))
                self.wfile.write(b"\x82" + length + payload)
            self.wfile.write(b"\x88\x02\x03\xe8")  # closed, 1000
            self.close_connection = True

        do_GET = do_POST = do_PATCH = do_DELETE = answer

    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
    with serving(ApiServer, context) as address:
        yield address


def answers(documents: dict[str, Any]) -> AbstractContextManager[str]:
    """The address of a server that answers GET of these paths."""

    class Documents(Handler):
        def do_GET(self) -> None:
            found = documents.get(urlsplit(self.path).path)
            self.reply(200 if found else 404, found or status(404, "NotFound", self.path))

    return serving(Documents)
