"""`env status` of an environment on the fake cloud: what there is, how each host is, and what its disk holds."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from google_cloud import compute
from google_cloud.calling import command_line
from google_cloud.fake import Cloud
from in_process import Cli

from maskwright.cloud import record
from maskwright.cloud.environment import Environment, build_environment
from maskwright.cloud.provision import variables
from maskwright.cloud.record import EnvironmentRecord
from maskwright.launch.target import JobSpec, Training

LAB: dict[str, Any] = {
    "name": "lab1",
    "project": "lab-proj",
    "zone": "us-east5-b",
    "disk": {"size_gb": 100, "source": "gs://corpus/text"},
    "slice": {"accelerator": "v6e", "topology": "4x4", "provisioning_model": "SPOT"},
}
LABELS = {"maskwright-environment": "lab1"}
P = "projects/lab-proj"
ZONE = f"{P}/zones/us-east5-b"
SOFTWARE = {"maskwright": "0.3.0", "image": "sha256:aaaa"}
SEEDED = {"files": 12, "bytes": 3_500_000_000, "manifest_sha256": "0", "time": "2026-11-20T10:00:00Z"}


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with command_line(capfd) as call:
        yield call


@pytest.fixture
def environment() -> Environment:
    return build_environment(LAB, "lab.yaml")


@pytest.fixture
def lab(cloud: Cloud, environment: Environment) -> Cloud:
    """As `env init`, `up` and `seed` leave it."""
    for bucket in (environment.state, environment.dataset_bucket, environment.runs_bucket, environment.jobs_bucket):
        cloud.put(f"gs://{bucket}/some", "x")
        cloud.resources[f"storage/b/{bucket}"]["labels"] = LABELS if bucket != environment.state else {}
    known = EnvironmentRecord(seeded=SEEDED, disk_gb=100, disk_type="hyperdisk-ml")
    record.write(environment, known)
    cloud.put(
        f"gs://{environment.state}/env/lab1/wanted.json", json.dumps(variables.variables(environment, known, None))
    )
    compute.make(cloud, f"{P}/global/networks", {"name": "lab1-net"})
    account = {"email": "lab1-train@lab-proj.iam.gserviceaccount.com"}
    cloud.resources[f"iam/{P}/serviceAccounts/{account['email']}"] = account | {"name": "x"}
    disk = {"name": "lab1-data-1", "sizeGb": "100", "type": f"{ZONE}/diskTypes/hyperdisk-ml"}
    compute.make(cloud, f"{ZONE}/disks", disk | {"accessMode": "READ_ONLY_MANY", "labels": LABELS})
    machine = {"machineType": "ct6e-standard-4t", "scheduling": {"provisioningModel": "SPOT"}, "labels": LABELS}
    compute.make(cloud, f"{P}/global/instanceTemplates", {"name": "lab1-slice-t1", "properties": machine})
    template = f"{P}/global/instanceTemplates/lab1-slice-t1"
    group = {"name": "lab1-slice", "targetSize": 4, "instanceTemplate": template}
    policy = {"instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"}}
    compute.make(cloud, f"{ZONE}/instanceGroupManagers", group | policy)
    return cloud


def run(cloud: Cloud) -> list[str]:
    """All hosts come up; their names."""
    from maskwright.cloud.google import groups
    from maskwright.cloud.google.rest import Google

    for _ in range(4):
        found = groups.describe(Google("lab-proj"), "us-east5-b", "lab1-slice")
    assert found is not None and all(member.running for member in found.members)
    return [member.name for member in found.members]


def beat(cloud: Cloud, worker: int, instance: str, *, old: bool = False, **changes: Any) -> None:
    value = {"beat": 9, "submission": 1, "idle": False, "instance": instance, "software": SOFTWARE} | changes
    place = f"gs://lab-proj-lab1-jobs/slice/reports/hosts/host-{worker}.json"
    cloud.put(place, json.dumps(value))
    if old:
        age(cloud, place, 600)


def note(cloud: Cloud, folder: str, instance: str, value: dict[str, Any], *, seconds: float = 0) -> None:
    place = f"gs://lab-proj-lab1-jobs/slice/reports/{folder}/{instance}.json"
    cloud.put(place, json.dumps(value))
    age(cloud, place, seconds)


def age(cloud: Cloud, place: str, seconds: float) -> None:
    bucket, _, name = place.removeprefix("gs://").partition("/")
    about = cloud.objects[bucket, name][-1].about
    about["updated"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - seconds))


def look(cli: Cli, tmp_path: Path, **changes: Any) -> dict[str, Any]:
    path = tmp_path / "lab.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in (LAB | changes).items() if value}))
    told = cli("env", "status", path, "--json")
    assert told.code == 0, told.err
    said = cli("env", "status", path)
    assert said.code == 0 and said.out.startswith("lab1: ")
    found: dict[str, Any] = json.loads(told.out)
    return found | {"text": said.out}


def verdicts(found: dict[str, Any]) -> dict[str, str]:
    return {host["name"]: host["verdict"] for host in found["hosts"][0]["hosts"]}


def test_a_whole_environment_at_work(lab: Cloud, cli: Cli, tmp_path: Path) -> None:
    for worker, name in enumerate(run(lab)):
        beat(lab, worker, name)
        note(lab, "health", name, {"step": "agent", "ok": True, "what": ""})
    spec = JobSpec(Training("x", "r"))
    lab.put("gs://lab-proj-lab1-jobs/slice/job.json", spec.to_json())
    found = look(cli, tmp_path)
    assert set(verdicts(found).values()) == {"works"} and all(host["well"] for host in found["hosts"][0]["hosts"])
    assert f"`maskwright env plan {tmp_path}/lab.yaml` shows what `env up` would change" in found["text"]
    assert "slice: ct6e-standard-4t 4x4 SPOT in us-east5-b: 4 of 4 hosts, 4 well" in found["text"]
    assert "disk lab1-data-1: seeded on 2026-11-20 with 12 files, 3.5 GB" in found["text"]
    assert "lab1 slice: submission 1" in found["text"] and found["jobs"][0]["submission"] == 1
    assert "USD/hour" in found["text"] and "left over" not in found["text"]


def test_each_host_is_what_machine_start_up_and_beat_say_together(lab: Cloud, cli: Cli, tmp_path: Path) -> None:
    a, b, c, d = run(lab)
    beat(lab, 0, a, idle=True)
    beat(lab, 1, b, old=True)
    note(lab, "health", b, {"step": "agent", "ok": True}, seconds=3600)
    note(lab, "health", c, {"step": "mounts", "ok": False, "what": "10.1.2.3:/share cannot be mounted. Fix: see NFS"})
    note(lab, "health", d, {"step": "image", "ok": True, "what": "pulling"}, seconds=120)
    found = look(cli, tmp_path)
    assert verdicts(found) == {a: "waits", b: "silent", c: "failed", d: "starting"}
    details = {host["name"]: host["detail"] for host in found["hosts"][0]["hosts"]}
    assert details[c].startswith("mounts: 10.1.2.3:/share cannot be mounted")
    assert details[d].startswith("image for 2:0")
    assert "4 of 4 hosts, 2 well" in found["text"]
    assert f"{b} host 1: silent (running, beat 10:0" in found["text"]


def test_hosts_that_stopped_themselves_are_well_and_those_that_were_taken_are_not(
    lab: Cloud, cli: Cli, tmp_path: Path
) -> None:
    a, b, c, d = run(lab)
    for worker, name in enumerate((a, b, c, d)):
        beat(lab, worker, name, gone=name == a)
    lab.resources[f"compute/{ZONE}/instances/{a}"]["status"] = "TERMINATED"
    note(lab, "idle", a, {"what": "no job for 60 minutes"})
    lab.preempt("lab1-slice", [1])
    found = look(cli, tmp_path)
    assert verdicts(found) == {a: "stopped", b: "gone", c: "works", d: "works"}
    assert f"{a}: stopped (terminated); no job for 60 minutes" in found["text"]
    instances = {item["name"]: item["bills"] for item in found["exists"]["items"] if item["kind"] == "instance"}
    assert instances[a] is None and instances[c] == "machine"


def test_a_stockout_is_said_in_googles_words(lab: Cloud, cli: Cli, tmp_path: Path) -> None:
    lab.stockout("us-east5-b")
    found = look(cli, tmp_path)
    assert set(verdicts(found).values()) == {"failed"}
    assert "ZONE_RESOURCE_POOL_EXHAUSTED" in found["text"] and "0 well" in found["text"]


def test_a_host_with_other_software_than_most_is_named(lab: Cloud, cli: Cli, tmp_path: Path) -> None:
    for worker, name in enumerate(run(lab)):
        beat(lab, worker, name, software=SOFTWARE | ({"image": "sha256:bbbb"} if worker == 2 else {}))
    found = look(cli, tmp_path)
    odd = [host["index"] for host in found["hosts"][0]["hosts"] if host["detail"]]
    assert odd == [2] and "runs image sha256:bbbb" in found["text"]


def test_before_the_first_up_nothing_exists(cloud: Cloud, cli: Cli, tmp_path: Path) -> None:
    assert "nothing exists" in look(cli, tmp_path)["text"]


def test_hosts_that_cannot_be_looked_at_are_said(lab: Cloud, cli: Cli, tmp_path: Path) -> None:
    lab.deny("compute.instanceGroupManagers.get", "compute.instanceGroupManagers.list")
    found = look(cli, tmp_path)
    assert "compute.instanceGroupManagers.get" in found["hosts"][0]["trouble"]
    assert "cannot be read" in found["text"]
