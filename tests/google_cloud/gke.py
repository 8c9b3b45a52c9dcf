"""The cluster of an environment, for the real kubectl: what `env` applies, waits for, reads and deletes.

`with environment_cluster(cloud, folder) as cluster:` stands in for `cloud.cluster.access` and for the releases of Kueue
and JobSet. It is there while the fake cloud has the cluster. Deployments are available at once; the Job of `env seed`
runs fill.py for real, in a folder for the disk, where `cluster.runs` is set.
"""

import base64
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import fake_kubernetes
import pytest
from fake_kubernetes import FakeCluster, fake_cluster, now, status
from google_cloud.fake import Cloud
from loopback import Handler, serving

from maskwright.cloud import cluster as product
from maskwright.cloud.environment import Environment
from maskwright.cloud.google.rest import Google
from maskwright.cloud.provision import fill, objects
from maskwright.core.errors import CloudError, MaskwrightError
from maskwright.launch.schedulers.kubernetes.kubectl import Access, SignIn

MORE = {
    "Namespace": ("v1", "namespaces"),
    "Node": ("v1", "nodes"),
    "ServiceAccount": ("v1", "serviceaccounts"),
    "PersistentVolume": ("v1", "persistentvolumes"),
    "PersistentVolumeClaim": ("v1", "persistentvolumeclaims"),
    "Deployment": ("apps/v1", "deployments"),
    "ComputeClass": ("cloud.google.com/v1", "computeclasses"),
    "ResourceFlavor": ("kueue.x-k8s.io/v1beta2", "resourceflavors"),
    "ClusterQueue": ("kueue.x-k8s.io/v1beta2", "clusterqueues"),
    "LocalQueue": ("kueue.x-k8s.io/v1beta2", "localqueues"),
}
KINDS = [*MORE, "ConfigMap", "Job", "JobSet", "Pod"]
CLUSTER_WIDE = ("Namespace", "Node", "PersistentVolume", "ComputeClass", "ResourceFlavor", "ClusterQueue")
SHORT = {"persistentvolumeclaims": ["pvc"], "persistentvolumes": ["pv"]}
RELEASE = """apiVersion: v1
kind: Namespace
metadata: {{name: {name}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: controller, namespace: {name}}}
spec:
  template: {{spec: {{containers: [{{name: manager, image: registry.k8s.io/{name}/manager:v1}}]}}}}
"""


class EnvironmentCluster(FakeCluster):
    """`disk`: the folder that is the data disk; `runs`: what the seeding container does, None leaves it pending."""

    def __init__(self, kinds: list[str], queues: set[str] | None = None) -> None:
        super().__init__(kinds, queues)
        self.disk = Path()
        self.runs: str | None = "fill"
        self.starting = 0
        """So many changes are refused, as while a webhook of an operator starts."""

    def _resources(self, version: str) -> dict[str, Any]:
        found = super()._resources(version)
        for one in found["resources"]:
            one["namespaced"] = one["kind"] not in CLUSTER_WIDE
            one["shortNames"] = SHORT.get(one["name"], [])
        return found

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: bytes) -> tuple[int, dict[str, Any]]:
        if method == "GET" and query.get("watch"):
            return 200, {"type": "BOOKMARK", "object": {"kind": "Status"}}
        if method == "PATCH" and self.starting:
            self.starting -= 1
            return 500, status(500, "InternalError", "failed calling webhook: connection refused")
        if method == "PATCH" and query.get("fieldManager") and path not in self.objects:
            return self.apply(path, json.loads(body))
        of_claim = method == "PATCH" and self.objects[path]["kind"] == "PersistentVolumeClaim"
        if of_claim and json.loads(body)["spec"] != self.objects[path]["spec"]:
            return 422, status(422, "Invalid", "spec is immutable after creation")
        if method == "PATCH" and query.get("fieldManager"):
            with self.lock:
                kept = {key: self.objects[path]["metadata"][key] for key in ("uid", "creationTimestamp")}
                made = json.loads(body)
                if wrong := self._wrong(made):
                    return wrong
                self.objects[path] |= made | {"metadata": made["metadata"] | kept}
                return 200, self.objects[path]
        if method == "DELETE" and path in self.objects:
            with self.lock:
                self.remove(path)
                return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        return super().answer(method, path, query, body)

    def apply(self, path: str, made: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if wrong := self._wrong(made):
            return wrong
        with self.lock:
            made["metadata"] |= {"uid": base64.b32encode(path.encode()).decode()[-24:], "creationTimestamp": now()}
            self.objects[path] = made
        if made["kind"] == "Deployment":
            made["status"] = {"conditions": [{"type": "Available", "status": "True"}]}
        if made["kind"] == "Job" and self.runs is not None:
            self.run_job(made, "/api/v1/namespaces/maskwright")
        return 201, made

    def run_job(self, job: dict[str, Any], folder: str) -> None:
        """With the words of the container, but the folder of the disk and the script where they are here."""
        (container,) = job["spec"]["template"]["spec"]["containers"]
        words = dict(zip(container["args"][3::2], container["args"][4::2], strict=True))
        script = ""
        if "--prepare" in words:
            (self.disk.parent / "prepare.sh").write_text(
                self.objects[f"{folder}/configmaps/seed"]["data"]["prepare.sh"]
            )
            script = str(self.disk.parent / "prepare.sh")
        try:
            if self.runs != "fill":
                raise MaskwrightError(str(self.runs))
            how, result = "Complete", fill.fill(str(self.disk), words.get("--source", ""), script)
        except MaskwrightError as error:
            how, result = "Failed", {"error": str(error)}
        ended = {"terminated": {"exitCode": int(how == "Failed"), "message": json.dumps(result)}}
        self.objects[f"{folder}/pods/seed-0"] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "seed-0",
                "namespace": "maskwright",
                "labels": {"job-name": "seed"},
                "uid": "seed-0",
                "creationTimestamp": now(),
                "ownerReferences": [{"uid": job["metadata"]["uid"]}],
            },
            "spec": {"containers": [{"name": "seed"}]},
            "status": {"containerStatuses": [{"name": "seed", "state": ended}]},
        }
        job["status"] = {"conditions": [{"type": how, "status": "True"}]}

    def names(self, kind: str) -> list[str]:
        return sorted(made["metadata"]["name"] for made in self.of_kind(kind))


@contextmanager
def environment_cluster(cloud: Cloud, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[EnvironmentCluster]:
    patch.setattr(fake_kubernetes, "RESOURCES", {**fake_kubernetes.RESOURCES, **MORE})
    patch.setattr(fake_kubernetes, "FakeCluster", EnvironmentCluster)
    (folder / "disk").mkdir()

    def access(environment: Environment) -> Access:
        where = f"projects/{environment.project}/locations/{environment.location}/clusters/{environment.name}"
        if Google(environment.project).find("container", where) is None:
            raise CloudError("does not exist", reason="missing", where=where, fix="`env up`")
        return Access(namespace=product.NAMESPACE, sign_in=lambda: SignIn(cluster.url, "token"))

    with fake_cluster(KINDS) as made, releases() as address:
        assert isinstance(made, EnvironmentCluster)
        cluster = made
        cluster.disk = folder / "disk"
        patch.setattr(product, "access", access)
        patch.setattr(
            objects, "RELEASES", {name: f"{address}/x/{name}/x/x/v1/manifests.yaml" for name in objects.RELEASES}
        )
        patch.setattr(objects, "PAUSE_SECONDS", 0.01)
        yield cluster


def releases() -> AbstractContextManager[str]:
    class Releases(Handler):
        def do_GET(self) -> None:
            self.reply(200, RELEASE.format(name=self.path.split("/")[2]).encode())

    return serving(Releases)
