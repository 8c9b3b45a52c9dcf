"""The GKE cluster of an environment, for kubectl: `kubectl(["get", "pods"], access=access(environment))`.

kubectl gets the cluster's DNS endpoint, whose certificate is a public one, and a token of Google's, so neither gcloud
nor its plugin is needed: docs.cloud.google.com/kubernetes-engine/docs/concepts/network-isolation#dns-based_endpoint
"""

from __future__ import annotations

from functools import lru_cache

from maskwright.cloud.environment import Environment
from maskwright.cloud.google.rest import Google
from maskwright.core.errors import CloudError
from maskwright.launch.schedulers.kubernetes.kubectl import Access, SignIn

NAMESPACE = "maskwright"
"""Namespace of an environment's jobs."""


def access(environment: Environment) -> Access:
    """Asks Google only when a command runs, so `kubectl` raises its `CloudError`s, "missing" without a cluster."""
    google = Google(environment.project)

    @lru_cache(maxsize=1)
    def server() -> str:
        where = environment.cluster_path
        cluster = google.call("container", "GET", where)
        dns = cluster.get("controlPlaneEndpointsConfig", {}).get("dnsEndpointConfig", {})
        if not dns.get("endpoint"):
            fix = "turn it on with `maskwright env up`"
            raise CloudError("has no DNS endpoint", reason="missing", where=where, fix=fix)
        return f"https://{dns['endpoint']}"

    return Access(namespace=NAMESPACE, sign_in=lambda: SignIn(server(), google.token()))
