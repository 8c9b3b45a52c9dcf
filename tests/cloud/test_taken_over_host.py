"""Somebody owns one host of an environment, and writes whatever its account may write (`test_host_rights.py`): neither
the other hosts' agents, nor who follows the job, nor the watcher that keeps its budget stops over it."""

from __future__ import annotations

from pathlib import Path

import pytest
from google_cloud.machinery import Machinery

from maskwright.cloud.jobs import lease as lease_module
from maskwright.cloud.jobs.watcher import JobLimits, Watcher
from maskwright.core.errors import JobError, MaskwrightError, StoppedEarly
from maskwright.core.folder import Folder
from maskwright.launch.bucket import agent as agent_module
from maskwright.launch.bucket import job_folder
from maskwright.launch.bucket.agent import Agent
from maskwright.launch.bucket.claims import Slots
from maskwright.launch.bucket.place import BucketPlace, read_report
from maskwright.launch.target import JobSpec, Training

ATTEMPT = "reports/0001/attempt-001"
WRITABLE = [
    "claims/host-0-000001.json",
    "claims/host-x.json",
    "reports/hosts/host-0.json",
    "reports/hosts/host-1.json",
    "reports/hosts/host-99999999999.json",
    "reports/health/m-0.json",
    "reports/idle/m-0.json",
    "reports/0001/attempt-x/start.json",
    f"{ATTEMPT}/start.json",
    f"{ATTEMPT}/end.json",
    f"{ATTEMPT}/host-0/exit.json",
    f"{ATTEMPT}/host-0/log-000001.txt",
    f"{ATTEMPT}/host-1/exit.json",
    f"{ATTEMPT}/host-1/log-x.txt",
]
GARBAGE = [
    b"",
    b"{}",
    b"\xff\0",
    b"[" * 100_000,
    b'{"beat": "1", "hosts": "2", "ends": 9, "code": null, "ok": [], "instance": [], "software": 1}',
    b'{"beat": 1, "hosts": 10000000000, "addresses": {}, "ends": 5000, "newest": 0, "host": 0, "code": 1e99}',
]


class Computing:
    """A job's process that goes on."""

    over, ends = False, ()

    def __init__(self, *_: object, **__: object) -> None: ...

    def request_stop(self) -> None: ...


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """With a job."""
    monkeypatch.setattr(lease_module, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(agent_module, "ShellAttempt", Computing)
    folder = Folder(f"file://{tmp_path}")
    folder.put("job.json", JobSpec(Training("x", "r"), grace_seconds=30.0).to_json().encode())
    return folder


def act(agent: Agent, host: int) -> None:
    """As `Agent.poll` does, which waits out errors that are lines."""
    try:
        agent._sync()
        Slots(agent.folder, f"m-{host}", 2, 0.0).claim()
    except MaskwrightError:
        pass


@pytest.mark.parametrize("garbage", GARBAGE)
def test_nothing_that_a_host_writes_stops_the_others(
    folder: Folder, garbage: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    agents = [Agent(folder, host, 2, once=True, poll_seconds=0.1) for host in range(2)]
    now, machinery = 1e6, Machinery(0, running=2)
    watcher = Watcher(folder, machinery, JobLimits(1, max_usd=15.0, rates=(10.0, 10.0)), clock=lambda: now)
    assert watcher.poll().kind == "nothing"

    def leave() -> None:
        raise StoppedEarly("no longer followed")

    for name in WRITABLE:
        folder.put(name, garbage)
        for host, agent in enumerate(agents):
            act(agent, host)
        assert "trying again" not in watcher.poll().why
        assert read_report(folder, "lab1").submission == 1
        BucketPlace(f"{folder.location}/job.json").logs(follow=False, lines=None, show=lambda host, line: None)
        with pytest.raises(StoppedEarly, match="no longer followed"):
            job_folder.follow(folder, 1, 0.01, leave)
    now += 3600.0  # two hosts at 10 USD
    assert watcher.poll().kind == "ask"
    now += 600.0
    assert watcher.poll().kind == "down" and machinery.acts == ["down"]


@pytest.mark.parametrize("garbage", [*GARBAGE, b'{"code": 256, "cause": ""}', b'{"code": 0, "cause": 1}'])
def test_result_that_is_none_ends_the_job_and_its_hosts(folder: Folder, garbage: bytes) -> None:
    assert folder.create("results/0001.json", garbage)
    machinery = Machinery(0, running=2)
    watcher = Watcher(folder, machinery, JobLimits(1, down_when_done=True))
    with pytest.raises(JobError, match="a host wrote something else than a result to") as caught:
        job_folder.follow(folder, 1, 0.01, watcher.poll)
    assert caught.value.exit_code == 1
    while (end := watcher.poll()).kind != "end":
        pass
    assert end.code == 1 and machinery.acts == ["down"]


def test_of_a_file_without_end_a_part_is_read(folder: Folder, tmp_path: Path) -> None:
    """4 TiB, which nothing holds in memory."""
    agent, watcher = Agent(folder, 0, 2, once=True, poll_seconds=0.1), Watcher(folder, Machinery(0, running=2))
    for name in [*WRITABLE, "results/0001.json"]:
        folder.put(name, b"")
        with (tmp_path / name).open("r+b") as file:
            file.truncate(1 << 42)
    act(agent, 0)
    assert watcher.poll().code == 1
    read_report(folder, "lab1")
    assert len(job_folder.read_piece(folder, f"{ATTEMPT}/host-0", 1) or []) == 1


def test_last_attempt_is_found_without_a_list_of_what_others_have_written(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, head = list[str](), Folder.head
    monkeypatch.setattr(Folder, "head", lambda self, name, most: (reads.append(name), head(self, name, most))[1])
    monkeypatch.setattr(Folder, "names", lambda *_: 1 / 0)
    for last in range(21):
        if last:
            folder.put_json(f"{job_folder.attempt_folder(1, last)}/start.json", {})
        found = [job_folder.last_attempt(folder, 1, known) for known in range(last + 1)]
        assert found == [last] * (last + 1)
    reads.clear()
    assert job_folder.last_attempt(folder, 1, 20) == 20 and len(reads) == 1


def test_what_was_written_in_advance_is_of_no_submission(folder: Folder) -> None:
    """Else the next job would be over at once, or begin where somebody says."""
    assert folder.create_json("results/0002.json", {"code": 0})
    folder.put_json(f"{job_folder.attempt_folder(3, 1)}/start.json", {"hosts": 2, "addresses": ["10.0.0.9", ""]})
    job_folder.put_result(folder, 1, job_folder.JobResult(0))
    assert job_folder.put_spec(folder, JobSpec(Training("y", "s"))) == 4


def test_no_host_computes_after_the_result(folder: Folder) -> None:
    agent = Agent(folder, 1, 2, once=False, poll_seconds=0.1)
    job_folder.put_result(folder, 1, job_folder.JobResult(0))
    folder.put_json(f"{job_folder.attempt_folder(1, 2)}/start.json", {"hosts": 2, "addresses": ["10.0.0.9", ""]})
    agent._sync()
    assert folder.names(f"{job_folder.attempt_folder(1, 2)}") == ["start.json"]
