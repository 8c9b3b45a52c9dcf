"""`env status` where the cluster does not answer, and `env audit`; tests/cloud/test_whole_life.py has the rest."""

import re
from pathlib import Path

import fsspec.config
import pytest
from google_cloud.fake import TOKEN

from maskwright.cloud import cluster, record
from maskwright.cloud.environment import read_environment
from maskwright.cloud.record import EnvironmentRecord
from maskwright.cloud.report import audit, status
from maskwright.core.errors import CloudError, MaskwrightError
from maskwright.launch.schedulers.kubernetes.kubectl import Access

SEEDED = {"files": 12, "bytes": 3_500_000_000, "manifest_sha256": "0", "time": "2026-11-20T10:00:00Z"}


@pytest.fixture
def location(cloud, tmp_path):
    path = tmp_path / "lab.yaml"
    path.write_text("{name: lab1, project: lab-proj, zone: us-east5-b, disk: {size_gb: 100, source: 'gs://corpus/x'}}")
    cloud.put("gs://lab-proj-maskwright-state/env/started", "")
    return str(path)


def test_a_cluster_that_does_not_answer_is_said(location, cloud, monkeypatch):
    def access(environment):
        def sign_in():
            raise CloudError("no answer", reason="permission", where=environment.name, fix="ask for it")

        return Access(sign_in=sign_in)

    monkeypatch.setattr(cluster, "access", access)
    name = "container/projects/lab-proj/locations/us-east5-b/clusters/lab1"
    cloud.resources[name] = {"name": "lab1", "status": "RECONCILING"}
    found = status.read(location)
    assert found.cluster.startswith("RECONCILING in us-east5-b, cannot be read: lab1: no answer")
    assert "disk lab1-data-1: not seeded" in found.report()


def test_the_disk_is_what_the_record_says(location, cloud):
    environment = read_environment(location)
    record.folder(environment)
    assert fsspec.config.conf["gs"]["token"].token == TOKEN, "a record is read before anything else asks Google"
    record.write(environment, EnvironmentRecord(2, SEEDED, 100, "hyperdisk-ml"))
    report = status.read(location).report()
    assert "lab1: cluster absent" in report and "lab1-data-2: seeded on 2026-11-20 with 12 files, 3.5 GB" in report
    cloud.put("gs://lab-proj-maskwright-state/env/lab1/record-2.json", "{")
    with pytest.raises(MaskwrightError, match="is not a record of format 2"):
        status.read(location)


def test_an_audit_lists_what_terraform_created_and_costs_money(location):
    """Every type of deploy/terraform costs, or is known to be free."""
    terraform = Path(__file__).parents[2] / "deploy" / "terraform"
    types = {
        name for path in terraform.rglob("*.tf") for name in re.findall(r'(?m)^resource "(\w+)"', path.read_text())
    }
    free = {"google_compute_network", "google_compute_subnetwork", "google_compute_router", "google_service_account"}
    assert types - free - {name for name in types if name.endswith("_iam_member")} == set(audit.COSTS)
    state = {
        "google_compute_disk.data[0]": {"name": "lab1-data-1", "zone": "us-east5-b"},
        "google_compute_network.own[0]": {"name": "lab1-net"},
        "google_artifact_registry_repository.images": {"repository_id": "lab1", "location": "us-east5"},
    }
    found = audit.audit(read_environment(location), state)
    names = ["lab1", "lab1-data-1", "lab-proj-maskwright-state"]
    assert [item.name for item in found.items] == names
    assert "compute_disk lab1-data-1 in us-east5-b: its size" in found.report()
    assert "labels.maskwright-environment:lab1 OR labels.goog-k8s-cluster-name:lab1" in found.report()
