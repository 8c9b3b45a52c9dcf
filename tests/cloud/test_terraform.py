"""deploy/terraform with the real terraform binary, and a stand-in provider that takes what the real one takes.

What it makes is in the fake cloud; test_whole_life.py has the real gcs backend. Nothing here met Google.
"""

import json
import re
import shutil

import pytest
from google_cloud import terraform_world
from google_cloud.fake import fake_cloud
from google_cloud.terraform_world import ROOT, SOURCE, Terraform, TerraformWorld, copy_of_source

from maskwright.cloud.environment import build_environment
from maskwright.cloud.provision.variables import variables
from maskwright.cloud.record import EnvironmentRecord

pytestmark = pytest.mark.skipif(terraform_world.why_not() is not None, reason=str(terraform_world.why_not()))
DISK = {"size_gb": 2055, "source": "gs://corpus/text"}
SEEDED = {"files": 1, "bytes": 1, "manifest_sha256": "0" * 64, "time": "2026-11-20T00:00:00Z"}
CLUSTER, POOL = "google_container_cluster", "google_container_node_pool"
SCHEMA = json.loads((ROOT / "tests" / "google_cloud" / "provider_schema.json").read_text())


def environment(**parts):
    values = {"name": "lab1", "project": "lab-proj", "zone": "us-east5-b", "labels": {"team": "nlp"}, **parts}
    return build_environment(values, "lab.yaml")


def lab(*, generation=1, seeded=False, **parts):
    """Variables as the product writes them, of an environment with these parts."""
    return variables(environment(**parts), EnvironmentRecord(generation, SEEDED if seeded else None))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, no_network):
    """A work folder after `terraform init`, which finds the provider in a mirror; state in a file."""
    folder = tmp_path_factory.mktemp("prepared")
    with fake_cloud() as cloud:
        terraform = Terraform(copy_of_source(folder / "work"), TerraformWorld(folder, cloud))
        assert "hashicorp/google v8.7.0" in terraform.run("init")
    return folder / "work"


@pytest.fixture
def terraform(prepared, tmp_path):
    work = tmp_path / "work"
    shutil.copytree(prepared, work, symlinks=True)
    with fake_cloud() as cloud, TerraformWorld(tmp_path, cloud).served() as world:
        yield Terraform(work, world)


def test_formatted(terraform):
    assert terraform.run("fmt", "-check", "-recursive", str(SOURCE)) == ""


def test_valid_without_a_warning(terraform):
    found = json.loads(terraform.run("validate", "-json"))
    assert found["valid"] and found["diagnostics"] == []


def test_its_own_tests(terraform):
    assert re.search(r"Success! \d+ passed, 0 failed", terraform.run("test"))


EVERYTHING = {"disk": DISK, "nfs": {"share": "code"}, "network": {"nat": True}, "seeded": True}


@pytest.fixture(scope="module")
def everything(prepared, tmp_path_factory):
    """An environment with all parts, not to be changed."""
    folder = tmp_path_factory.mktemp("everything")
    shutil.copytree(prepared, folder / "work", symlinks=True)
    with fake_cloud() as cloud:
        terraform = Terraform(folder / "work", TerraformWorld(folder, cloud))
        terraform.apply(lab(**EVERYTHING))
        yield terraform


def test_labels_wherever_there_can_be_any(everything):
    """A search finds by them what is left."""
    terraform = everything
    carried = {"maskwright-environment": "lab1", "team": "nlp"}
    labelled = []
    for key, state in terraform.world.resources.items():
        attributes = SCHEMA[key.split("|")[0]]["attributes"]
        for name in {"labels", "resource_labels"} & set(attributes):
            assert state[name] == carried, key
            labelled.append(key)
    (pool,) = [state for key, state in terraform.world.resources.items() if key.startswith(POOL)]
    assert pool["node_config"][0]["resource_labels"] == carried and len(labelled) >= 7


def test_least_privilege(everything):
    """One role on the project, without which nodes can write no logs; jobs have none."""
    terraform = everything
    given = {
        (state.get("bucket") or state.get("repository") or state.get("service_account_id") or "project", state["role"])
        for key, state in terraform.world.resources.items()
        if key.split("|")[0].endswith("_iam_member")
    }
    train = "projects/lab-proj/serviceAccounts/lab1-train@lab-proj.iam.gserviceaccount.com"
    assert given == {
        ("lab-proj-lab1-dataset", "roles/storage.objectViewer"),
        ("lab-proj-lab1-runs", "roles/storage.objectUser"),
        ("lab1", "roles/artifactregistry.reader"),
        ("lab1-k8s", "roles/artifactregistry.reader"),
        (train, "roles/iam.workloadIdentityUser"),
        ("project", "roles/container.defaultNodeServiceAccount"),
    }
    (binding,) = [s for k, s in terraform.world.resources.items() if "service_account_iam_member" in k]
    assert binding["member"] == "serviceAccount:lab-proj.svc.id.goog[maskwright/train]"
    assert not [key for key in terraform.world.resources if "service_account_key" in key or "address" in key]


def test_larger_cluster_changes_in_place_and_another_location_is_another_cluster(terraform):
    terraform.apply(lab())
    terraform.apply(lab(cluster={"release_channel": "STABLE"}))
    assert terraform.world.changes() == [("update", CLUSTER, "lab1")]
    terraform.apply(lab(cluster={"location": "us-east5"}))
    kinds = [(op, kind) for op, kind, _ in terraform.world.changes()]
    assert kinds.index(("delete", POOL)) < kinds.index(("delete", CLUSTER)) < kinds.index(("create", CLUSTER))
    terraform.plan(lab(cluster={"location": "us-east5"}))
