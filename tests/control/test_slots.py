"""Hosts that no machine tells which of the hosts they are, what a job learns of the others, and hosts without a job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from fake_gcs import fake_gcs
from fake_metadata import FakeMetadata, fake_metadata
from fake_tpu import Hosts

from maskwright.config.pretraining import read_config
from maskwright.core.errors import InputError
from maskwright.core.folder import Folder
from maskwright.launch.bucket import agent as agent_module
from maskwright.launch.bucket import job_folder, leader, machine
from maskwright.launch.bucket.claims import Slot, Slots
from maskwright.launch.bucket.job_folder import JobResult
from maskwright.launch.target import JobSpec, Training

COMMAND = [sys.executable, "-m", "maskwright"]


@pytest.fixture(params=["file", "gs"])
def location(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "file":
        yield f"file://{tmp_path}/jobs"
        return
    pytest.importorskip("gcsfs", reason="needs the gcs extra")
    import fsspec

    with fake_gcs() as store:
        monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon", "endpoint_url": store.url})
        fsspec.get_filesystem_class("gs").clear_instance_cache()
        yield "gs://bucket/jobs/slice"


def test_hosts_that_claim_at_once_get_different_numbers(location: str) -> None:
    def claim(number: int) -> Slot | None:
        return Slots(Folder(location), f"host-{number}", 8, 90.0).claim()

    with ThreadPoolExecutor(12) as threads:
        found = list(threads.map(claim, range(12)))
    assert sorted(slot.index for slot in found if slot) == list(range(8))
    assert {slot.claim for slot in found if slot} == {1} and found.count(None) == 4
    again = [claim(number) for number in range(12)]
    assert again == found  # each is who it was


def test_silent_host_is_replaced_and_learns_of_it(location: str) -> None:
    folder = Folder(location)
    first, second = (Slots(folder, name, 1, 0.3) for name in ("first", "second"))
    slot = first.claim()
    assert slot == Slot(0, 1)
    for beat in range(4):
        folder.put_json("reports/hosts/host-0.json", {"beat": beat})
        assert second.claim() is None
        time.sleep(0.1)
    time.sleep(0.3)
    assert first.holds(slot)
    assert second.claim() == Slot(0, 2) and not first.holds(slot)
    folder.put_json("reports/hosts/host-0.json", {"beat": 1, "gone": True, "instance": "second"})
    assert Slots(folder, "third", 1, 90.0).claim() == Slot(0, 3)  # at once: it said that it left


def test_newcomers_do_not_take_one_number_from_each_other(location: str) -> None:
    """Two machines have gone, one silently, and two come in their place: neither has beaten when the other looks."""
    folder = Folder(location)
    for name in ("left", "died"):
        assert Slots(folder, name, 2, 90.0).claim()
    folder.put_json("reports/hosts/host-0.json", {"beat": 7, "gone": True, "instance": "left"})
    folder.put_json("reports/hosts/host-1.json", {"beat": 7, "gone": False, "instance": "died"})
    one, other = (Slots(folder, name, 2, 0.5) for name in ("one", "other"))
    assert one.claim() == Slot(0, 2)
    assert other.claim() is None
    time.sleep(0.6)
    folder.put_json("reports/hosts/host-0.json", {"beat": 1, "gone": False, "instance": "one"})
    assert other.claim() == Slot(1, 2)
    assert one.holds(Slot(0, 2))


def test_create_of_which_the_answer_was_lost_has_won(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gcsfs", reason="needs the gcs extra")
    import fsspec

    with fake_gcs() as store:
        monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon", "endpoint_url": store.url})
        fsspec.get_filesystem_class("gs").clear_instance_cache()
        store.lose_answers = True
        assert Slots(Folder("gs://bucket/jobs"), "one", 1, 90.0).claim() == Slot(0, 1)


def test_configuration_in_a_bucket_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gcsfs", reason="needs the gcs extra")
    import fsspec

    recipe = Path(__file__).resolve().parents[2] / "recipes" / "roberta-base.yaml"
    with fake_gcs() as store:
        monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon", "endpoint_url": store.url})
        fsspec.get_filesystem_class("gs").clear_instance_cache()
        store.objects["runs/one.yaml"] = recipe.read_bytes()
        assert read_config("gs://bucket/runs/one.yaml", ["seed=7"]) == read_config(str(recipe), ["seed=7"])
        with pytest.raises(InputError, match=r"gs://bucket/runs/two.yaml: no such file"):
            read_config("gs://bucket/runs/two.yaml", [])


def test_machine_that_tells_and_machine_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_metadata("host-x", {"worker-id": "3"}) as fake:
        monkeypatch.setenv("GCE_METADATA_HOST", fake.host)
        assert machine.assigned_index() == 3 and machine.address() == "127.0.0.1"
        fake.attributes = {"agent-worker-number": "1", "worker-id": "3"}
        assert machine.assigned_index() == 1
        fake.attributes = {}
        assert machine.assigned_index() is None
        fake.failures = [503]
        with pytest.raises(InputError, match="did not give agent-worker-number"):
            machine.assigned_index()
    with pytest.raises(InputError, match="did not give"):  # it was there a moment ago
        machine.assigned_index()
    assert machine.address().count(".") == 3


# ---- agents in processes of their own -------------------------------------------------------------------------------


class Group:
    """Two hosts without numbers, with a metadata server each."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.hosts = folder / "bucket", Hosts(folder / "hosts", 3)
        self.started: list[subprocess.Popen[str]] = []
        self.metadata: list[FakeMetadata] = [stack.enter_context(fake_metadata(f"g-{n}", {})) for n in range(3)]
        self.spec = f"file://{self.folder}/job.json"

    def process(self, *words: str, host: int = 0) -> subprocess.Popen[str]:
        environment = {
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "PATH": self.hosts.path,
            "HOME": str(self.hosts.home(host)),
            "GCE_METADATA_HOST": self.metadata[host].host,
        }
        pipe = subprocess.PIPE
        process = subprocess.Popen([*COMMAND, *words], env=environment, stdout=pipe, stderr=pipe, text=True)
        self.started.append(process)
        return process

    def agent(self, host: int, *words: str) -> subprocess.Popen[str]:
        common = ["agent", self.spec, "--num-hosts=2", f"--instance=g-{host}", "--poll-seconds=0.2"]
        return self.process(*common, *words, host=host)

    def submit(self, *words: str) -> subprocess.Popen[str]:
        return self.process("submit", "bucket", self.spec, "a.yaml", "--run", "r", "--grace-seconds=3", *words)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with ExitStack() as stack:
        group = Group(tmp_path, stack)
        yield group
        for process in group.started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def end(process: subprocess.Popen[str], code: int) -> tuple[list[str], str]:
    out, err = process.communicate(timeout=240)
    assert process.returncode == code, out + err
    return out.splitlines(), err


def wait_for(path: Path) -> None:
    until = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < until, path
        time.sleep(0.05)


TELL = 'echo "$*"; '


def test_recreated_host_takes_over_and_the_job_goes_on(group: Group) -> None:
    """One of two hosts is taken away (SIGTERM, as in a preemption) and another one comes under a new name."""
    for host in range(3):
        group.hosts.plan(host, TELL + "trap 'echo saving; exit 75' TERM; touch up; [ -e ../go ] || sleep 600 & wait")
    agents = [group.agent(host, "--once") for host in (0, 1)]
    submitted = group.submit()
    wait_for(group.hosts.file(0, "up"))
    wait_for(group.hosts.file(1, "up"))
    claims = {json.loads(p.read_text())["instance"] for p in (group.folder / "claims").glob("*-000001.json")}
    assert claims == {"g-0", "g-1"}
    workers = {
        json.loads(path.read_text())["instance"]: path for path in (group.folder / "reports/hosts").glob("host-?.json")
    }
    lost = 1 if workers["g-1"].name == "host-1.json" else 0  # not the leader
    for host in range(3):
        (group.hosts.home(host) / "go").touch()
    agents[lost].terminate()
    end(agents[lost], 75)
    assert json.loads(workers[f"g-{lost}"].read_text())["gone"]
    came = group.agent(2, "--once")
    out, err = end(submitted, 0)
    end(came, 0)
    end(agents[1 - lost], 0)
    assert "attempt 2 begins on 2 hosts" in err and "host 1 | saving" in out
    for attempt in (1, 2):
        for worker in (0, 1):
            node = f"--num-nodes 2 --node-rank {worker} --rendezvous 127.0.0.1:{29400 + attempt}"
            assert f"host {worker} | pretrain a.yaml --run r {node}" in out
    assert json.loads((group.folder / "claims" / "host-1-000002.json").read_text())["instance"] == "g-2"
    assert (
        json.loads((group.folder / "reports/0001/attempt-002/start.json").read_text())["addresses"] == ["127.0.0.1"] * 2
    )
    assert group.hosts.left_over() == []


def test_host_that_was_replaced_while_it_slept_ends_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(f"file://{tmp_path}")
    slots = Slots(folder, "old", 1, 90.0)
    slot = slots.claim()
    agent = agent_module.Agent(folder, 0, 1, once=True, poll_seconds=0.1, instance="old", slots=slots, slot=slot)
    agent._sync()
    assert not agent.displaced
    assert Slots(folder, "new", 1, 0.0).claim() == Slot(0, 2)
    before = folder.get("reports/hosts/host-0.json")
    agent._sync()
    assert agent.displaced
    agent.leave(agent_module.Stop())
    assert folder.get("reports/hosts/host-0.json") == before  # that beat is the new host's


def test_host_without_a_job_ends_and_says_so(group: Group) -> None:
    note = group.folder / "reports/idle/g-0.json"
    _, err = end(group.agent(0, "--idle-minutes=0.02"), 0)
    assert "no job for 0.02 minutes: ending" in err
    assert json.loads(note.read_text())["what"] == "no job for 0.02 minutes"
    other = group.agent(0)  # it is up again
    until = time.monotonic() + 120
    while note.exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    other.terminate()
    end(other, 75)


def test_host_for_which_there_is_no_place_ends_too(group: Group) -> None:
    for host in (0, 1):
        group.agent(host)
        wait_for(group.folder / "reports/hosts" / f"host-{host}.json")
    _, err = end(group.agent(2, "--idle-minutes=0.02"), 0)
    assert "all host numbers are taken" in err and "no free host number for 0.02 minutes: ending" in err
    assert json.loads((group.folder / "reports/idle/g-2.json").read_text())["what"].startswith("no free host number")


def test_job_that_comes_with_the_last_minute_keeps_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(f"file://{tmp_path}")
    agent = agent_module.Agent(folder, 0, 2, once=False, poll_seconds=0.1, instance="g", idle_seconds=0.0)
    put = Folder.put_json

    def submit_meanwhile(self: Folder, name: str, value: object) -> None:
        put(self, name, value)
        if name.startswith("reports/idle/"):
            self.put("job.json", JobSpec(Training("a.yaml", "r")).to_json().encode())

    monkeypatch.setattr(Folder, "put_json", submit_meanwhile)
    agent._sync()
    assert not agent.idle_for_good and folder.get("reports/idle/g.json") is None
    agent._sync()  # a job is waiting for hosts
    assert not agent.idle_for_good
    folder.put_json("results/0001.json", {"code": 0})
    agent._sync()
    assert agent.idle_for_good and folder.get_json("reports/idle/g.json")


def test_host_whose_job_waits_for_another_one_in_vain_does_not_bill_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(f"file://{tmp_path}")
    folder.put("job.json", JobSpec(Training("a.yaml", "r")).to_json().encode())
    stays = agent_module.Agent(folder, 0, 2, once=False, poll_seconds=0.1, instance="s")
    agent = agent_module.Agent(folder, 0, 2, once=False, poll_seconds=0.1, instance="g", idle_seconds=0.0)
    agent._sync()
    assert not agent.idle_for_good
    monkeypatch.setattr(agent_module, "WAIT_SECONDS", 0.0)
    for one in (agent, stays):
        one._sync()
    assert agent.idle_for_good and not stays.idle_for_good  # where idle hosts stay, so does this one
    note = folder.get_json("reports/idle/g.json")
    assert note and note["what"].startswith("no peers for")


def test_hosts_with_different_images_begin_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Folder(f"file://{tmp_path}")
    folder.put("job.json", JobSpec(Training("a.yaml", "r")).to_json().encode())
    agent = agent_module.Agent(folder, 0, 2, once=True, poll_seconds=0.1)
    other = {"submission": 1, "idle": True, "software": {**agent._beat.software, "image": "sha256:other"}}
    for beat in range(3):
        folder.put_json("reports/hosts/host-1.json", {**other, "beat": beat})
        agent._sync()
    assert job_folder.last_attempt(folder, 1) == 0
    said = capsys.readouterr().err
    assert said.count("host 1 runs") == 1 and "sha256:other" in said
    folder.put_json("reports/hosts/host-1.json", {**other, "beat": 4, "software": agent._beat.software})
    agent._sync()
    assert job_folder.last_attempt(folder, 1) == 1


def test_host_that_said_that_it_goes_is_lost_at_once(tmp_path: Path) -> None:
    folder = Folder(f"file://{tmp_path}")
    lead, spec = leader.Leader(folder, 1, 0.1, saved=lambda spec: 0), JobSpec(Training("a.yaml", "r"), restarts=0)
    folder.put_json("reports/hosts/host-0.json", {"beat": 1})
    lead.poll(spec, 1, False)
    assert job_folder.read_result(folder, 1) is None
    folder.put_json("reports/hosts/host-0.json", {"beat": 2, "gone": True})
    lead.poll(spec, 1, False)
    assert (job_folder.read_result(folder, 1) or JobResult(0)).cause == "host 0: lost (its agent was stopped)"
