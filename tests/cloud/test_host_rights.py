"""What the hosts of an environment may do with its buckets: the fake cloud asks the grants of access.tf, which
`test_terraform.py::test_least_privilege` compares with those that Terraform makes. Hosts of `test_host_startup.py` and
`test_jobs_whole.py` run with the same rights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
import yaml
from google_cloud import iam
from google_cloud.fake import Cloud
from google_cloud.small_terraform import SmallTerraform

from maskwright.cli.main import run
from maskwright.cloud.jobs.lease import WatcherLease
from maskwright.cloud.jobs.spec import JobHosts, find
from maskwright.cloud.jobs.watcher import HISTORY, LIMITS
from maskwright.cloud.provision import commands
from maskwright.core.errors import MaskwrightError
from maskwright.core.folder import Folder
from maskwright.launch.bucket import agent, job_folder, leader
from maskwright.launch.bucket.claims import Slot, Slots
from maskwright.launch.outcome import End

LAB = {"name": "lab1", "project": "lab-proj", "zone": "us-east5-b", "group": {"machine_type": "n2-standard-4"}}
ACCOUNT = "lab1-train@lab-proj.iam.gserviceaccount.com"


@pytest.fixture
def place(cloud: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> JobHosts:
    """A job was submitted, stopped and watched."""
    monkeypatch.chdir(tmp_path)
    cloud.put("gs://lab-proj-maskwright-state/made", "")
    cloud.put("gs://corpus/one/manifest.json", '{"format": 2, "dtype": "uint16"}')
    Path("lab.yaml").write_text(yaml.safe_dump(LAB))
    Path("run.yaml").write_text(yaml.safe_dump({"data": {"store": "gs://corpus/one"}, "schedule": {"steps": 10}}))
    monkeypatch.setattr(commands, "up", SmallTerraform(cloud).up)
    assert (
        run(["submit", "env", "lab.yaml", "run.yaml", "--run", "r", "--up", "--detach", "--stop-after-hours", "9"]) == 0
    )
    place = find("lab.yaml", None)
    WatcherLease(place.folder).poll()
    place.folder.put_json("stop.json", {"submission": 1})
    return place


@pytest.fixture
def as_host(cloud: Cloud, place: JobHosts, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """The job's folder as a host sees it; from here on, gs:// is read and written as the account of hosts."""
    with iam.acting_as(cloud, ACCOUNT) as url:
        monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon", "endpoint_url": url})
        fsspec.get_filesystem_class("gs").clear_instance_cache()
        yield Folder(place.jobs)
    fsspec.get_filesystem_class("gs").clear_instance_cache()


def test_host_reads_its_orders_and_cannot_write_them(cloud: Cloud, place: JobHosts, as_host: Folder) -> None:
    orders = [name.removeprefix("group/") for bucket, name in cloud.objects if bucket == "lab-proj-lab1-jobs"]
    named = {"job.json", "stop.json", "submissions/0001.json", LIMITS, HISTORY, "watch/lease-000001.json"}
    assert named < set(orders) and any(name.startswith("configs/") for name in orders), orders
    for name in orders:
        before = as_host.get(name)
        assert before
        for write in (lambda name: as_host.put(name, b"{}"), as_host.remove):
            with pytest.raises(MaskwrightError, match="cannot be (written|removed): .*storage.objects"):
                write(name)
        assert as_host.get(name) == before
    for name in ("submissions/0002.json", "watch/lease-000002.json", "configs/0.yaml", "../setup/0.sh", "../x"):
        bucket = Folder("gs://lab-proj-lab1-jobs")
        with pytest.raises(MaskwrightError, match="storage.objects.create"):
            bucket.create_json(f"group/{name}".replace("group/../", ""), {})


def test_host_writes_its_reports_claims_and_checkpoints(place: JobHosts, as_host: Folder) -> None:
    one, other = (Slots(as_host, name, 1, 0.0) for name in ("one", "other"))
    slot = one.claim()
    assert slot == Slot(0, 1) and other.claim() == Slot(0, 2) and not one.holds(slot)
    with pytest.raises(MaskwrightError, match="storage.objects.delete"):
        as_host.put_json("claims/host-0-000001.json", {"instance": "other"})
    with pytest.raises(MaskwrightError, match="storage.objects.delete"):
        as_host.remove("claims/host-0-000001.json")

    host = agent.Agent(as_host, 0, 1, once=True, poll_seconds=0.1)
    for _ in range(2):
        host._put_beat(1)
    agent._leave_note(as_host, "one", "no job")
    as_host.remove(job_folder.idle_name("one"))
    attempt = job_folder.attempt_folder(1, 1)
    leader.Leader(as_host, 1, 0.1)._begin(job_folder.read_spec(as_host), 0, [host._beat])  # type: ignore[arg-type]
    as_host.put(job_folder.log_piece(f"{attempt}/host-0", 1), b"a line\n")
    host._place = f"{attempt}/host-0"
    host._put_exit(End(0, 0))
    assert job_folder.last_attempt(as_host, 1) == 1 and job_folder.read_ends(as_host, attempt, 1) == [End(0, 0)]
    as_host.put(job_folder.beat_name(0), b"")
    assert job_folder.read_beat(as_host, 0) is None  # Google refuses to read the first bytes of nothing
    copies = Folder("gs://lab-proj-lab1-runs/runs/r")
    for content in (b"1", b"22"):
        copies.put("step-1/MANIFEST.json", content)
    copies.remove("step-1", recursive=True)
    assert copies.names() == []


def test_host_cannot_take_back_a_result(as_host: Folder) -> None:
    """The others would compute again, with nobody there who watches."""
    assert job_folder.put_result(as_host, 1, job_folder.JobResult(0))
    for write in (lambda name: as_host.put(name, b"{}"), as_host.remove):
        with pytest.raises(MaskwrightError, match=r"storage\.objects\.delete"):
            write("results/0001.json")
    assert (job_folder.read_result(as_host, 1) or job_folder.JobResult(1)).code == 0


def test_host_has_no_other_right(cloud: Cloud, place: JobHosts, as_host: Folder) -> None:
    for location in ("gs://lab-proj-maskwright-state", "gs://corpus/one"):
        with pytest.raises(MaskwrightError, match="storage.objects.get"):
            Folder(location).get("manifest.json")
    cloud.put("gs://lab-proj-lab1-dataset/a", "1")
    dataset = Folder("gs://lab-proj-lab1-dataset")
    assert dataset.get("a") == b"1"
    with pytest.raises(MaskwrightError, match="storage.objects.create"):
        dataset.put("a", b"2")
