"""The audit names what costs money: what `env up` created, what the cluster created, and what is left over."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from google_cloud.fake import Cloud

from maskwright.cloud.environment import Environment, build_environment
from maskwright.cloud.google.rest import Google
from maskwright.cloud.report import audit as module
from maskwright.cloud.report.audit import ResourceAudit, audit
from maskwright.core.errors import CloudError

LAB = {"name": "lab1", "project": "lab-proj", "zone": "us-east5-b"}
OURS, NODE = {"maskwright-environment": "lab1"}, {"goog-k8s-cluster-name": "lab1"}
ZONE = "compute/projects/lab-proj/zones/us-east5-b"


@pytest.fixture
def environment() -> Environment:
    return build_environment(LAB, "lab.yaml")


def plant(cloud: Cloud, key: str, labels: dict[str, str]) -> None:
    name = key.rpartition("/")[2]
    link = {"kind": "compute#x", "selfLink": f"{cloud.url}/{key}"} if key.startswith("compute/") else {}
    cloud.resources[key] = {"name": name, "labels": labels, **link}


CLUSTER = ("google_container_cluster", {"name": "lab1", "location": "us-east5"})
DISK = ("google_compute_disk", {"name": "lab1-data-1", "zone": "us-east5-b"})
NETWORK = ("google_compute_network", {"name": "lab1-net"})
NAT = ("google_compute_router_nat", {"name": "lab1-us-east5", "region": "us-east5"})
IMAGES = ("google_artifact_registry_repository", {"name": "", "repository_id": "lab1", "location": "us-east5"})


def look(environment: Environment, *resources: tuple[str, dict[str, Any]]) -> ResourceAudit:
    """With what Terraform's state has, by address."""
    state = {f"{kind}.number_{number}": values for number, (kind, values) in enumerate(resources)}
    return audit(Google("lab-proj"), environment, state)


def names(found: ResourceAudit) -> tuple[list[str], list[str]]:
    """(kept, left over)"""
    kept = [item.name for item in found.items if item.why]
    return sorted(kept), sorted(item.name for item in found.left_over)


def test_what_costs_is_kept_or_left_over(cloud: Cloud, environment: Environment) -> None:
    cloud.put("gs://lab-proj-maskwright-state/x", "")
    for name, labels in (("lab1-data-1", OURS), ("by-hand", OURS), ("pvc-1", NODE), ("other", {"of": "somebody"})):
        plant(cloud, f"{ZONE}/disks/{name}", labels)
    plant(cloud, f"{ZONE}/disks/of-lab1-b", {"maskwright-environment": "lab1-b"})  # which the search finds too
    plant(cloud, f"{ZONE}/instances/gke-lab1-slice-1", {**OURS, **NODE})
    plant(cloud, "compute/projects/lab-proj/global/instanceTemplates/gke-lab1", OURS)
    up = look(environment, CLUSTER, DISK, NETWORK, NAT, IMAGES)
    created = ["lab1", "lab1", "lab1-data-1", "lab1-us-east5"]
    assert names(up) == ([*["gke-lab1-slice-1", "lab-proj-maskwright-state"], *created, "pvc-1"], ["by-hand"])
    assert not up.clean and "left over, and costs money:\n  Disk by-hand in us-east5-b: its size" in up.report()
    down = look(environment, DISK)
    assert names(down)[1] == ["by-hand", "gke-lab1-slice-1", "pvc-1"], "no cluster is there to delete them"
    told = json.loads(json.dumps(down.to_json()))
    assert [item["name"] for item in told["items"] if item["why"] is None] == ["by-hand", "pvc-1", "gke-lab1-slice-1"]


def test_nothing_left_is_clean_although_the_search_lags(cloud: Cloud, environment: Environment) -> None:
    gone = {"assetType": "compute.googleapis.com/Disk", "labels": OURS, "location": "us-east5-b"}
    cloud.indexed = [
        {**gone, "name": f"//{ZONE.replace('/', '.googleapis.com/', 1)}/disks/deleted-{n}"} for n in range(3)
    ]
    found = look(environment)
    assert found.clean and found.report() == "lab1: nothing exists that costs money"
    cloud.indexed = [
        {**gone, "assetType": "new.googleapis.com/Thing", "name": "//new.googleapis.com/projects/x/things/y"}
    ]
    assert "Thing y in us-east5-b: it may cost money" in look(environment).report()


def test_a_search_that_fails_is_not_clean_and_what_exists_is_named_all_the_same(
    cloud: Cloud, environment: Environment
) -> None:
    cloud.deny("cloudasset.assets.searchAllResources")
    found = look(environment, CLUSTER)
    assert not found.clean and names(found) == (["lab1"], [])
    assert "not searched for left-overs: " in found.report() and "roles/cloudasset.viewer" in found.report()
    cloud.disable_api("cloudasset")
    assert "gcloud services enable cloudasset.googleapis.com" in look(environment).report()


def test_credentials_that_google_refuses_end_it(
    cloud: Cloud, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "expired-token-0123")
    with pytest.raises(CloudError, match="credentials"):
        look(environment)


def test_terraform_creates_nothing_that_costs_and_is_not_listed() -> None:
    """Every type of deploy/terraform is priced in the audit or known to be free."""
    terraform = Path(__file__).parents[2] / "deploy" / "terraform"
    types = {
        name
        for path in terraform.rglob("*.tf")
        for name in re.findall(r'(?m)^resource "(google_\w+)"', path.read_text())
    }
    free = {"google_compute_network", "google_compute_subnetwork", "google_compute_router", "google_service_account"}
    free |= {name for name in types if name.endswith("_iam_member")}
    assert types - free <= set(module.CREATED)
