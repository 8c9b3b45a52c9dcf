"""deploy/terraform with the real terraform binary, and a stand-in provider that takes what the real one takes.

What it makes is in a file; the last tests use the real gcs backend and the fake cloud. Nothing here met Google.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google_cloud import iam, storage, terraform_world
from google_cloud.fake import Cloud, fake_cloud
from google_cloud.sandbox import HOST, script_text
from google_cloud.terraform_world import ROOT, SOURCE, Terraform, TerraformWorld, copy_of_source

from maskwright.cloud.environment import Environment, build_environment
from maskwright.cloud.provision.variables import seeder, variables
from maskwright.cloud.record import EnvironmentRecord
from maskwright.core.secrets import redact

pytestmark = pytest.mark.skipif(terraform_world.why_not() is not None, reason=str(terraform_world.why_not()))
DISK = {"size_gb": 2055, "source": "gs://corpus/text"}
SLICE = {"accelerator": "v6e", "topology": "4x4", "provisioning_model": "SPOT"}
GROUP = {"machine_type": "g2-standard-12", "size": 2}
SEEDED = {"files": 1, "bytes": 1, "manifest_sha256": "0" * 64, "time": "2026-11-20T00:00:00Z"}
MANAGER, TEMPLATE = "google_compute_instance_group_manager", "google_compute_instance_template"
POLICY, DATA_DISK = "google_compute_resource_policy", "google_compute_disk"
SCHEMA = json.loads((ROOT / "tests" / "google_cloud" / "provider_schema.json").read_text())


def environment(**parts: Any) -> Environment:
    values = {"name": "lab1", "project": "lab-proj", "zone": "us-east5-b", "labels": {"team": "nlp"}, **parts}
    return build_environment(values, "lab.yaml")


def lab(*, generation: int = 1, seeded: bool = False, **parts: Any) -> dict[str, Any]:
    """Variables as the product writes them, of an environment with these parts."""
    return variables(environment(**parts), EnvironmentRecord(generation, SEEDED if seeded else None), None)


def seeding(**parts: Any) -> dict[str, Any]:
    return {**lab(**parts), "seeder": seeder(environment(**parts), EnvironmentRecord(), None)}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, no_network: bool) -> Path:
    """A work folder after `terraform init`, which finds the provider in a mirror; state in a file."""
    folder = tmp_path_factory.mktemp("prepared")
    terraform = Terraform(copy_of_source(folder / "work"), TerraformWorld(folder))
    assert "hashicorp/google v8.7.0" in terraform.run("init")
    return folder / "work"


@pytest.fixture
def terraform(prepared: Path, tmp_path: Path) -> Iterator[Terraform]:
    work = tmp_path / "work"
    shutil.copytree(prepared, work, symlinks=True)
    with TerraformWorld(tmp_path).served() as world:
        yield Terraform(work, world)


def test_formatted(terraform: Terraform) -> None:
    assert terraform.run("fmt", "-check", "-recursive", str(SOURCE)) == ""


def test_valid_without_a_warning(terraform: Terraform) -> None:
    found = json.loads(terraform.run("validate", "-json"))
    assert found["valid"] and found["diagnostics"] == []


def test_its_own_tests(terraform: Terraform) -> None:
    assert re.search(r"Success! \d\d passed, 0 failed", terraform.run("test"))


WRONG = """
resource "google_compute_disk" "a" {
  name = "a"
  scheduling_config { preemptible = true }
}
resource "google_compute_disk" "b" {
  name       = "b"
  acess_mode = null
}
resource "google_compute_disk" "c" {
  name = "c"
  size = []
}
resource "google_compute_firewall" "d" {
  name      = "d"
  network   = "n"
  direction = "INCOMING"
}
"""


def test_arguments_that_the_provider_does_not_have(terraform: Terraform) -> None:
    """That the stand-in judges as the provider would is what the other tests rest on."""
    (terraform.folder / "more.tf").write_text(WRONG)
    found = json.loads(terraform.run("validate", "-json", code=1))["diagnostics"]
    said = " ".join(f"{one['summary']}: {one['detail']}" for one in found)
    assert 'Blocks of type "scheduling_config" are not expected here' in said
    assert 'An argument named "acess_mode" is not expected here' in said
    assert "Inappropriate value for attribute" in said
    (terraform.folder / "more.tf").write_text(WRONG[WRONG.index('resource "google_compute_firewall"') :])
    assert 'expected direction to be one of ["INGRESS", "EGRESS"], got INCOMING' in terraform.run("validate", code=1)


EVERYTHING = {"disk": DISK, "slice": SLICE, "group": GROUP, "nfs": {"share": "code"}, "network": {"nat": True}}
EVERYTHING |= {"seeded": True}


@pytest.fixture(scope="module")
def everything(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Terraform, str]:
    """An environment with all parts, not to be changed; and what its plan said."""
    folder = tmp_path_factory.mktemp("everything")
    shutil.copytree(prepared, folder / "work", symlinks=True)
    terraform = Terraform(folder / "work", TerraformWorld(folder))
    planned = terraform.plan(lab(**EVERYTHING), code=2)
    terraform.apply(lab(**EVERYTHING))
    return terraform, planned


def test_everything_and_then_nothing_to_do(everything: tuple[Terraform, str]) -> None:
    terraform, _ = everything
    terraform.plan(lab(**EVERYTHING))
    outputs = json.loads(terraform.run("output", "-json"))
    assert {name: output["value"] for name, output in outputs.items()} == {
        "buckets": {name: f"lab-proj-lab1-{name}" for name in ("dataset", "runs", "jobs")},
        "hosts": {"group": 2, "slice": 4},
        "nfs_address": "10.20.30.2:/code",
        "repository": "us-east5-docker.pkg.dev/lab-proj/lab1",
        "service_account": "lab1-train@lab-proj.iam.gserviceaccount.com",
    }


def test_no_secret_in_plan_and_state(everything: tuple[Terraform, str]) -> None:
    terraform, planned = everything
    for text in (planned, terraform.state()):
        assert_no_secret(text, terraform)


def assert_no_secret(text: str, terraform: Terraform) -> None:
    assert terraform.environment["GOOGLE_OAUTH_ACCESS_TOKEN"] not in text
    text = text.replace('"index_key"', '"index"')  # Terraform's, of for_each; taken for the name of a secret
    assert redact(text) == text


def test_labels_wherever_there_can_be_any(everything: tuple[Terraform, str]) -> None:
    """`env down` finds by them what is left. Boot disks take theirs from the machine's disk block."""
    terraform, _ = everything
    carried = {"maskwright-environment": "lab1", "team": "nlp"}
    found = 0
    for key, state in terraform.world.resources.items():
        boots = [disk for disk in state.get("disk") or [] if disk["boot"]]
        for place in [*([state] if "labels" in SCHEMA[key.split("|")[0]]["attributes"] else []), *boots]:
            assert place["labels"] == carried, key
            found += 1
    assert found >= 9


def test_no_public_address(everything: tuple[Terraform, str]) -> None:
    terraform, _ = everything
    interfaces = [(k, i) for k, s in terraform.world.resources.items() for i in s.get("network_interface") or []]
    assert len(interfaces) == 2
    for key, interface in interfaces:
        assert interface["access_config"] == [] == interface["ipv6_access_config"], key
    assert not [key for key in terraform.world.resources if "address" in key.split("|")[0]]


def test_hosts_read_the_metadata_that_is_written(everything: tuple[Terraform, str]) -> None:
    terraform, _ = everything
    states = {key: state for key, state in terraform.world.resources.items() if key.startswith(TEMPLATE)}
    written = {state["metadata"]["maskwright-kind"]: state["metadata"] for state in states.values()}
    read = set(re.findall(r"\bmaskwright-[a-z-]+", _attributes("startup.sh")))
    assert read, "startup.sh has changed how it reads metadata"
    assert read - set(written["slice"]) == {"maskwright-setup"}, "the one that is null here"
    assert written["slice"]["maskwright-topology"] == "4x4"
    assert written["slice"]["startup-script"] == script_text("startup.sh")
    script = {"startup-script": "…", "shutdown-script": "…"}
    assert written["group"] | script == script | {
        "enable-oslogin": "TRUE",
        "block-project-ssh-keys": "TRUE",
        "serial-port-enable": "FALSE",
        "maskwright-environment": "lab1",
        "maskwright-kind": "group",
        "maskwright-hosts": "2",
        "maskwright-spec": "gs://lab-proj-lab1-jobs/group/job.json",
        "maskwright-mount-point": "/mnt/common",
        "maskwright-nfs": "10.20.30.2:/code",
        "maskwright-disk": "shared-pd",
        "maskwright-container": lab()["host"]["container"],
        "maskwright-version": lab()["host"]["version"],
        "maskwright-idle-minutes": "60",
    }


def test_no_shell_function_stands_twice() -> None:
    """Both scripts have their own `begin`, `report_failure` and `main`; common.sh calls the second."""
    defined = {path.name: set(re.findall(r"(?m)^(\w+)\(\) ", path.read_text())) for path in HOST.glob("*.sh")}
    assert len(defined["common.sh"]) > 10
    assert defined["startup.sh"] & defined["seed.sh"] == {"begin", "report_failure", "main", "mount_disk"}
    assert not defined["common.sh"] & (defined["startup.sh"] | defined["seed.sh"])


def _attributes(script: str) -> str:
    lines = (SOURCE / "host" / script).read_text().splitlines()
    return "\n".join(line for line in lines if line.strip().startswith("attribute "))


def test_least_privilege(everything: tuple[Terraform, str]) -> None:
    """None on the project: the account that applies this then needs no right to grant there. The conditions are those
    under which tests have hosts run (`iam.grant_hosts`)."""
    terraform, _ = everything
    given = {
        (state.get("bucket") or state["repository"], state["role"]): state.get("condition") or []
        for key, state in terraform.world.resources.items()
        if key.split("|")[0].endswith("_iam_member")
    }
    assert set(given) == {
        ("lab-proj-lab1-dataset", "roles/storage.objectViewer"),
        ("lab-proj-lab1-runs", "roles/storage.objectUser"),
        ("lab-proj-lab1-jobs", "roles/storage.objectViewer"),
        ("lab-proj-lab1-jobs", "roles/storage.objectUser"),
        ("lab-proj-lab1-jobs", "roles/storage.objectCreator"),
        ("lab1", "roles/artifactregistry.reader"),
    }
    assert not [key for key in terraform.world.resources if "service_account_key" in key]
    cloud = Cloud()
    iam.grant_hosts(cloud, "a", **{name: f"lab-proj-lab1-{name}" for name in ("dataset", "runs", "jobs")})
    for (bucket, role), conditions in given.items():
        if bucket != "lab1":
            (binding,) = [one for one in storage.policy(cloud, bucket)["bindings"] if one["role"] == role]
            expressions = [binding["condition"]["expression"]] if "condition" in binding else []
            assert [condition["expression"] for condition in conditions] == expressions


def test_disk_is_written_and_then_read(terraform: Terraform) -> None:
    """The seeding machine is gone before the disk becomes read-only, and hosts attach it after that."""
    terraform.apply(seeding(disk=DISK, slice=SLICE))
    key = f"{DATA_DISK}|projects/lab-proj/zones/us-east5-b/disks/lab1-data-1"
    assert terraform.world.resources[key]["access_mode"] == "READ_WRITE_SINGLE"
    machine = terraform.world.resources[
        "google_compute_instance|projects/lab-proj/zones/us-east5-b/instances/lab1-seeder"
    ]
    assert machine["metadata"] == {
        "startup-script": script_text("seed.sh"),
        "enable-oslogin": "TRUE",
        "block-project-ssh-keys": "TRUE",
        "serial-port-enable": "FALSE",
        "maskwright-environment": "lab1",
        "maskwright-seed-source": "gs://corpus/text",
        "maskwright-seed-result": "gs://lab-proj-lab1-runs/seed/lab1-data-1/result.json",
        "maskwright-disk": "shared-pd",
    }
    assert machine["network_interface"][0]["access_config"] == []
    terraform.apply(lab(disk=DISK, slice=SLICE, seeded=True))
    changes = [change for change in terraform.world.changes() if change[1] != TEMPLATE]
    assert sorted(changes[:2]) == [
        ("delete", "google_compute_instance", "lab1-seeder"),
        ("delete", MANAGER, "lab1-slice"),
    ]
    assert changes[2:] == [("update", DATA_DISK, "lab1-data-1"), ("create", MANAGER, "lab1-slice")]
    assert terraform.world.resources[key]["access_mode"] == "READ_ONLY_MANY"
    terraform.plan(lab(disk=DISK, slice=SLICE, seeded=True))


def order(terraform: Terraform, *kinds: str) -> list[tuple[str, str]]:
    """(op, type) of the last apply's changes of these types."""
    return [(op, kind) for op, kind, _ in terraform.world.changes() if kind in kinds]


def test_another_topology_replaces_the_slice_in_order(terraform: Terraform) -> None:
    terraform.apply(lab(slice=SLICE))
    terraform.apply(lab(slice={**SLICE, "topology": "8x8"}))
    assert order(terraform, MANAGER, POLICY) == [
        ("delete", MANAGER),
        ("create", POLICY),
        ("create", MANAGER),
        ("delete", POLICY),
    ]
    names = [name for op, kind, name in terraform.world.changes() if kind == POLICY]
    assert names == ["lab1-slice-8x8", "lab1-slice-4x4"]
    changes = [(op, kind) for op, kind, _ in terraform.world.changes()]
    assert changes.index(("delete", TEMPLATE)) > changes.index(("create", MANAGER))
    terraform.plan(lab(slice={**SLICE, "topology": "8x8"}))


def test_slice_of_one_host_has_no_policy(terraform: Terraform) -> None:
    """Terraform 1.11 cannot plan `replace_triggered_by` with a resource of which there is none."""
    terraform.apply(lab(slice=SLICE))
    terraform.apply(lab(slice={**SLICE, "topology": "2x2"}))
    assert order(terraform, MANAGER, POLICY) == [("delete", MANAGER), ("create", MANAGER), ("delete", POLICY)]
    terraform.plan(lab(slice={**SLICE, "topology": "2x2"}))
    terraform.apply(lab(slice=SLICE))
    assert order(terraform, MANAGER, POLICY) == [("delete", MANAGER), ("create", POLICY), ("create", MANAGER)]


def test_new_disk_is_there_before_the_old_one_goes(terraform: Terraform) -> None:
    """And no host holds the old one by then: Google would not delete it."""
    terraform.apply(lab(disk=DISK, slice=SLICE, seeded=True))
    terraform.apply(lab(disk=DISK, slice=SLICE, generation=2, seeded=True))
    names = {"lab1-data-1": "old", "lab1-data-2": "new", "lab1-slice": "hosts"}
    assert [(op, names[name]) for op, kind, name in terraform.world.changes() if name in names] == [
        ("delete", "hosts"),
        ("create", "new"),
        ("create", "hosts"),
        ("delete", "old"),
    ]


def test_other_place_of_the_slice(terraform: Terraform) -> None:
    """A fallback in another region: its subnetwork is there from the start, so nothing else moves."""
    slice_ = {**SLICE, "fallbacks": [{"zone": "us-east1-d", "provisioning_model": "FLEX_START"}], "max_run_hours": 24}
    terraform.apply(lab(slice=slice_))
    terraform.apply(variables(environment(slice=slice_), EnvironmentRecord().moved("slice", 1), None))
    assert {kind for _, kind, _ in terraform.world.changes()} == {MANAGER, TEMPLATE, POLICY}
    made = [entry["state"] for entry in terraform.world.journal() if entry["op"] == "create"]
    assert [state["zone"] for state in made if "target_size_policy" in state] == ["us-east1-d"]
    assert [state["region"] for state in made if "workload_policy" in state] == ["us-east1"]


def test_half_failed_apply_is_finished_by_the_next(terraform: Terraform) -> None:
    what = "The zone 'us-east5-b' does not have enough resources available to fulfill the request"
    terraform.apply(lab(slice=SLICE, group=GROUP))
    terraform.world.fail(f"terraform.{MANAGER}.create", 403, what, reason="ZONE_RESOURCE_POOL_EXHAUSTED")
    said = terraform.apply(lab(slice={**SLICE, "topology": "8x8"}, group=GROUP), code=1)
    assert what in " ".join(said.replace("│", " ").split())
    assert ("create", MANAGER, "lab1-slice") not in terraform.world.changes()
    terraform.apply(lab(slice={**SLICE, "topology": "8x8"}, group=GROUP))
    assert ("create", MANAGER, "lab1-slice") in terraform.world.changes()
    assert "lab1-group" not in {name for _, _, name in terraform.world.changes()}
    assert not [key for key in terraform.world.resources if key.endswith("lab1-slice-4x4")], "nothing is left behind"
    terraform.plan(lab(slice={**SLICE, "topology": "8x8"}, group=GROUP))


def test_what_went_behind_its_back_is_made_again(terraform: Terraform) -> None:
    terraform.apply(lab(slice=SLICE))
    terraform.world.remove(f"{MANAGER}|projects/lab-proj/zones/us-east5-b/instanceGroupManagers/lab1-slice")
    assert "1 to add, 0 to change, 0 to destroy" in terraform.plan(lab(slice=SLICE), code=2)


def test_data_is_not_destroyed_unless_asked(terraform: Terraform) -> None:
    terraform.apply(lab(nfs={}, slice=SLICE))
    said = terraform.run("destroy", "-auto-approve", code=1)
    kept = {key.split("|")[0] for key in terraform.world.resources}
    assert {"google_storage_bucket", "google_filestore_instance"} <= kept and MANAGER not in kept
    assert said.count("deletion_policy is PREVENT") == 4
    terraform.apply({**lab(nfs={}, slice=SLICE), "delete_data": True})
    terraform.run("destroy", "-auto-approve")
    assert terraform.world.resources == {}


REGIONS = [
    "africa-south1", "asia-east1", "asia-east2", "asia-northeast1",
    "asia-northeast2", "asia-northeast3", "asia-south1", "asia-south2",
    "asia-southeast1", "asia-southeast2", "asia-southeast3", "australia-southeast1",
    "australia-southeast2", "europe-central2", "europe-north1", "europe-north2",
    "europe-southwest1", "europe-west1", "europe-west10", "europe-west12",
    "europe-west2", "europe-west3", "europe-west4", "europe-west6",
    "europe-west8", "europe-west9", "me-central1", "me-central2",
    "me-west1", "northamerica-northeast1", "northamerica-northeast2", "northamerica-south1",
    "southamerica-east1", "southamerica-west1", "us-central1", "us-central2",
    "us-east1", "us-east4", "us-east5", "us-east7",
    "us-south1", "us-west1", "us-west2", "us-west3",
    "us-west4", "us-west8",
]  # fmt: skip
"""docs.cloud.google.com/compute/docs/regions-zones, and those where TPUs are"""


def test_regions_have_ranges_of_their_own(terraform: Terraform) -> None:
    terraform.apply({**lab(), "regions": REGIONS})
    kind = "google_compute_subnetwork"
    ranges = {s["region"]: s["ip_cidr_range"] for k, s in terraform.world.resources.items() if k.startswith(kind)}
    assert len(set(ranges.values())) == len(REGIONS) == len(ranges)
    number = int(hashlib.md5(b"us-east5").hexdigest()[:3], 16)
    assert ranges["us-east5"] == f"10.{number // 16}.{number % 16 * 16}.0/20"
    terraform.apply({**lab(), "regions": ["us-west1", "us-east5"]})
    assert not [change for change in terraform.world.changes() if change[2] == "lab1-us-east5"], "a range stays"


# ---- with the gcs backend and the fake cloud ----------------------------------------------------------------------


@pytest.fixture
def cloud(no_network: bool) -> Any:
    with fake_cloud() as cloud:
        yield cloud


@pytest.fixture
def in_cloud(cloud: Cloud, tmp_path: Path) -> Iterator[Callable[[], Terraform]]:
    """A new work folder on each call, as on another machine: only the state's bucket is shared."""
    cloud.put("gs://lab-proj-maskwright-state/made", "")
    with TerraformWorld(tmp_path, cloud=cloud.url).served() as world:
        environment = {**terraform_world.clean(dict(os.environ)), **cloud.environment(), **world.environment()}

        def work() -> Terraform:
            folder = tmp_path / f"work-{len(list(tmp_path.glob('work-*')))}"
            shutil.copytree(SOURCE, folder)
            terraform = Terraform(folder, world, environment)
            bucket = "-backend-config=bucket=lab-proj-maskwright-state"
            terraform.run("init", bucket, "-backend-config=prefix=env/lab1")
            return terraform

        yield work


def test_state_in_a_bucket_and_what_is_made_in_the_cloud(cloud: Cloud, in_cloud: Callable[[], Terraform]) -> None:
    everything = lab(**EVERYTHING)
    in_cloud().apply(everything)
    group = cloud.resources["compute/projects/lab-proj/zones/us-east5-b/instanceGroupManagers/lab1-slice"]
    assert group["targetSize"] == 4
    other = in_cloud()
    other.plan(everything)
    text = cloud.text("gs://lab-proj-maskwright-state/env/lab1/default.tfstate")
    assert_no_secret(text, other)
    cloud.put("gs://lab-proj-lab1-runs/runs/base/status.json", "{}")
    other.apply({**everything, "delete_data": True})
    other.run("destroy", "-auto-approve")
    assert [key for key in cloud.resources if "lab1" in key and not key.startswith("policy/")] == []


def test_every_step_of_a_life_is_one_that_the_cloud_allows(cloud: Cloud, in_cloud: Callable[[], Terraform]) -> None:
    """Disks in use, policies of living groups and templates of groups are not deleted there, as at Google's."""
    terraform = in_cloud()
    larger = {**SLICE, "topology": "8x8"}
    terraform.apply(seeding(disk=DISK, group=GROUP))
    terraform.apply(lab(disk=DISK, slice=SLICE, group=GROUP, seeded=True))
    terraform.apply(lab(disk=DISK, slice=larger, group=GROUP, generation=2))
    terraform.apply(lab(disk=DISK, slice=larger, group=GROUP, generation=2, seeded=True))
    terraform.plan(lab(disk=DISK, slice=larger, group=GROUP, generation=2, seeded=True))
    terraform.apply(lab())
    kinds = ("disks/", "instances/", "instanceGroupManagers/", "instanceTemplates/", "resourcePolicies/")
    assert not [key for key in cloud.resources if any(f"/{kind}lab1" in key for kind in kinds)]


def test_held_lock_is_told(cloud: Cloud, in_cloud: Callable[[], Terraform]) -> None:
    terraform = in_cloud()
    lock = {"ID": "1795165645", "Operation": "OperationTypeApply", "Who": "ada@desk", "Version": "1.11.4"}
    lock |= {"Created": "2026-11-20T09:00:00Z", "Path": "gs://lab-proj-maskwright-state/env/lab1/default.tflock"}
    cloud.put(lock["Path"], json.dumps(lock))
    said = terraform.apply(lab(), code=1)
    assert "Error acquiring the state lock" in said and "ada@desk" in said
    assert terraform.world.journal() == []


def test_refusal_of_the_cloud_is_in_its_words(cloud: Cloud, in_cloud: Callable[[], Terraform]) -> None:
    cloud.deny("compute.networks.create")
    said = " ".join(in_cloud().apply(lab(), code=1).replace("│", " ").split())
    assert "googleapi: Error 403: Required 'compute.networks.create' permission" in said
