"""Jobs that hosts fetch: agents in processes of their own, a folder in the place of a bucket, a metadata server."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fake_tpu import Hosts, metadata_server

from maskwright.core.console import show_line
from maskwright.core.errors import InputError, MaskwrightError, StoppedEarly
from maskwright.core.folder import Folder
from maskwright.launch.bucket import agent as agent_module
from maskwright.launch.bucket import job_folder, leader, machine
from maskwright.launch.bucket.job_folder import JobResult
from maskwright.launch.bucket.place import BucketPlace
from maskwright.launch.outcome import End
from maskwright.launch.target import JobSpec, Training
from maskwright.run.directory import MANIFEST, step_folder

COMMAND = [sys.executable, "-m", "maskwright"]
JOB = Training("a.yaml", "runs/a")


@dataclass
class Bucket:
    folder: Path
    hosts: Hosts
    metadata: list[str]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def spec(self) -> str:
        return f"file://{self.folder}/job.json"

    def process(self, *arguments: str, worker: int | None = None, **more: str) -> subprocess.Popen[str]:
        environment = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "PATH": self.hosts.path, **more}
        if worker is not None:
            environment |= {"HOME": str(self.hosts.home(worker)), "GCE_METADATA_HOST": self.metadata[worker]}
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [*COMMAND, *arguments], env=environment, stdout=pipe, stderr=pipe, text=True, cwd=self.folder.parent
        )
        self.started.append(process)
        return process

    def agent(self, worker: int, *arguments: str, **more: str) -> subprocess.Popen[str]:
        return self.process("agent", self.spec, "--poll-seconds=0.2", *arguments, worker=worker, **more)

    def submit(self, *arguments: str, **more: str) -> subprocess.Popen[str]:
        words = ["bucket", self.spec, "a.yaml", "--run", "runs/a", "--grace-seconds=3"]
        return self.process("submit", *words, *arguments, **more)

    def json(self, name: str) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.folder / name).read_text())
        return value


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    with ExitStack() as stack:
        servers = [stack.enter_context(metadata_server(worker, 2)) for worker in (0, 1)]
        bucket = Bucket(tmp_path / "bucket", Hosts(tmp_path / "hosts", 2), servers)
        yield bucket
        for process in bucket.started:
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


def test_whole_life_of_a_job_that_hosts_fetch(bucket: Bucket) -> None:
    """A host's process is killed, both begin again, and end well; then a second submission is stopped."""
    for worker in (0, 1):
        plan = (
            f'echo "w{worker} n$n $HF_TOKEN"; [ $n = 1 ] && {{ [ {worker} = 1 ] && kill -KILL $$; exit 75; }}; exit 0'
        )
        bucket.hosts.plan(worker, plan)
    agents = [bucket.agent(worker, "--json", HF_TOKEN="hf_made_up_secret") for worker in (0, 1)]
    out, err = end(bucket.submit("--env", "HF_TOKEN", "--set", "a.b='c d'"), 0)
    assert {f"host {w} | w{w} n{n} ***" for w in (0, 1) for n in (1, 2)} == {line for line in out if line.strip()}
    assert "attempt 2 begins on 2 hosts" in err and bucket.json("results/0001.json")["code"] == 0
    assert bucket.json("reports/0001/attempt-001/host-1/exit.json")["code"] == 137

    for worker in (0, 1):
        bucket.hosts.plan(worker, "trap 'echo saving; exit 75' TERM; touch up; sleep 600 & wait")
    submitted = bucket.submit("--env", "HF_TOKEN", "--restarts=0", "--json")
    wait_for(bucket.hosts.file(0, "up"))
    wait_for(bucket.hosts.file(1, "up"))
    other = bucket.submit()
    _, err = end(other, 2)
    assert "another job is not over yet" in err and f"`maskwright stop {bucket.spec}`" in err
    status, _ = end(bucket.process("status", bucket.spec), 0)
    assert "submission 2, attempt 1, going on" in status[0] and all(
        " computes, by its last" in one for one in status[1:]
    )
    said, _ = end(bucket.process("stop", bucket.spec), 0)
    assert "submission 2, attempt 1, over, exit 75" in said[0]
    out, err = end(submitted, 75)
    log, _ = end(bucket.process("logs", bucket.spec, "--lines=1"), 0)
    assert log == ["host 0 | saving", "host 1 | saving"]
    log, _ = end(bucket.process("logs", bucket.spec, "--lines=1", "--json"), 0)
    assert list(map(json.loads, log)) == [{"version": 1, "host": host, "line": "saving"} for host in (0, 1)]
    assert "host 1 | saving" in err and json.loads("\n".join(out))["job"] == bucket.spec
    assert bucket.json("job.json")["submission"] == 2
    assert all(agent.poll() is None for agent in agents)  # they wait for the next one
    for host, (agent, first) in enumerate(zip(agents, (75, 137), strict=True)):
        agent.terminate()
        out, err = end(agent, 75)
        assert f"host {host} | saving" in err
        documents = list(map(json.loads, out))
        assert {(told.pop("version"), told.pop("host"), told.pop("time") > 1e9) for told in documents} == {
            (1, host, True)
        }
        assert len({told.pop("instance") for told in documents}) == 1
        told = [(one["event"], one["submission"], one["attempt"], one["exit_code"]) for one in documents]
        assert told == [
            ("waits", None, None, None),
            ("begins", 1, 1, None),
            ("ends", 1, 1, first),
            ("begins", 1, 2, None),
            ("ends", 1, 2, 0),
            ("begins", 2, 1, None),
            ("ends", 2, 1, 75),
            ("leaves", None, None, None),
        ]
        assert documents[-1]["why"] == "told to end"
    assert bucket.hosts.left_over() == []
    written = [file for file in bucket.folder.rglob("*") if file.is_file()]  # nobody writes any more
    assert written and not [file for file in written if b"hf_made_up_secret" in file.read_bytes()]


def test_first_error_is_final_and_the_others_are_ended(bucket: Bucket) -> None:
    bucket.hosts.plan(0, "trap 'exit 75' TERM; touch up; sleep 600 & wait")
    bucket.hosts.plan(1, "while ! [ -e ../../host-0/maskwright/up ]; do sleep 0.1; done; echo 'error: bad'; exit 3")
    agents = [bucket.agent(worker, "--once") for worker in (0, 1)]
    out, err = end(bucket.submit(), 3)
    lines = err.splitlines()
    first = lines.index("first: host 1: exit 3")
    assert lines[first + 1 :][:2] == ["host 1 | error: bad", "host 0: exit 75, stopped early, told to end"]
    assert lines[-1].endswith("the job failed: host 1: exit 3") and "host 1 | error: bad" in out
    for agent in agents:
        out, err = end(agent, 3)
    assert "host 1 | error: bad" in out and err.splitlines()[-1].endswith("the job failed: host 1: exit 3")
    assert not (bucket.folder / "reports/0001/attempt-002").exists()


def test_host_that_dies_and_comes_back_is_taken_in_with_the_next_attempt(bucket: Bucket) -> None:
    """Its agent is killed with it: the one that is started at the next boot must not join what went on without it."""
    for worker in (0, 1):
        bucket.hosts.plan(worker, "[ $n = 2 ] && exit 0; trap 'exit 75' TERM; touch up; sleep 600 & wait")
    agents = [bucket.agent(worker, "--once") for worker in (0, 1)]
    submitted = bucket.submit()
    wait_for(bucket.hosts.file(1, "up"))
    wait_for(bucket.hosts.file(0, "up"))
    agents[1].kill()
    agents[1].communicate()
    again = bucket.agent(1, "--once")
    _, err = end(submitted, 0)
    assert "attempt 2 begins" in err
    end(again, 0)
    end(agents[0], 0)
    said = bucket.json("reports/0001/attempt-001/host-1/exit.json")
    assert said["code"] is None and "was restarted" in said["why"]
    assert bucket.json("reports/0001/attempt-001/host-0/exit.json")["told"]
    assert bucket.hosts.left_over() == []


def test_submitter_may_leave_and_come_back(bucket: Bucket) -> None:
    bucket.hosts.plan(0, "while ! [ -e go ]; do sleep 0.1; done")
    agents = [bucket.agent(0, "--once", "--host-index=0", "--num-hosts=1")]
    first = bucket.submit()
    wait_for(bucket.hosts.file(0, "n"))
    first.terminate()
    _, err = end(first, 75)
    assert "the job goes on" in err and agents[0].poll() is None
    second = bucket.submit()
    assert second.stderr and "submitted before, following it" in second.stderr.readline()
    bucket.hosts.file(0, "go").touch()
    end(second, 0)
    assert bucket.json("job.json")["submission"] == 1
    end(agents[0], 0)


def test_job_without_hosts_is_ended_by_who_asks(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    place = BucketPlace(bucket.spec)
    job_folder.put_spec(Folder(f"file://{bucket.folder}"), JobSpec(JOB))
    Folder(f"file://{bucket.folder}").put_json(job_folder.beat_name(0), {"beat": 7})  # a host that was preempted
    with pytest.raises(MaskwrightError, match=r"still running after 0.1 s"):
        place.stop(wait_seconds=0.1)
    monkeypatch.setattr(leader, "LOST_SECONDS", 0.3)
    assert "over, exit 75 (stopped while no host was there)" in place.stop(wait_seconds=60.0)
    assert "over, exit 75" in place.stop(wait_seconds=0.0), "again, at once"
    bucket.hosts.plan(0, "exit 0")
    agents = [bucket.agent(0, "--once", "--host-index=0", "--num-hosts=1")]
    end(bucket.submit(), 0)
    end(agents[0], 0)


def test_variable_that_a_host_lacks_is_a_final_error(bucket: Bucket) -> None:
    agent = bucket.agent(0, "--once", "--num-hosts=1")
    _, err = end(bucket.submit("--env", "NOT_HERE", NOT_HERE="a value of the submitter's"), 2)
    assert "NOT_HERE is not set for the agent on this host" in err
    end(agent, 2)
    written = [path.read_text() for path in bucket.folder.rglob("*") if path.is_file()]  # nobody writes any more
    assert any("NOT_HERE" in text for text in written) and not any("a value of" in text for text in written)


def test_agent_needs_a_place_and_a_number(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with metadata_server(3, 8) as host:
        monkeypatch.setenv("GCE_METADATA_HOST", host)
        assert machine.attribute("agent-worker-number") == "3"
        with pytest.raises(InputError, match="--host-index: 3 is not in"):
            agent_module.run_agent(f"file://{tmp_path}/job.json", None, 2, once=True, poll_seconds=1)
    with pytest.raises(InputError, match=r"did not give agent-worker-number.* Fix: .*--host-index"):
        agent_module.run_agent(f"file://{tmp_path}/job.json", None, None, once=True, poll_seconds=1)
    for wrong in ("gs://bucket/jobs/", "job.json"):
        with pytest.raises(InputError, match=r"is not job\.json in a folder"):
            job_folder.spec_folder(wrong)
    with pytest.raises(InputError, match="holds a secret"):
        Folder("https://me:hunter2@host/jobs")
    with pytest.raises(InputError, match="no file system is known by nosuch:"):
        Folder("nosuch://bucket/jobs")


def test_files_of_a_bucket(tmp_path: Path) -> None:
    for location in (f"file://{tmp_path}/deep/er", "memory://jobs/a"):
        folder = Folder(location)
        assert folder.get("a/b.json") is None and folder.names("a") == []
        folder.put_json("a/b.json", {"c": "é"})
        folder.put("a/sub/x", b"1")
        assert folder.get_json("a/b.json") == {"c": "é"} and folder.names("a") == ["b.json", "sub"]
        folder.put("a/b.json", b"[1]")
        assert folder.get_json("a/b.json") is None
    (tmp_path / "file").write_text("")
    with pytest.raises(MaskwrightError, match="file"):
        Folder(f"file://{tmp_path}/file").put("a", b"")


def test_files_of_a_bucket_of_google(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gcsfs", reason="needs the gcs extra")
    import fsspec
    from fake_gcs import fake_gcs

    with fake_gcs() as store:
        monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon", "endpoint_url": store.url})
        fsspec.get_filesystem_class("gs").clear_instance_cache()
        folder, other = Folder("gs://bucket/jobs/one"), Folder("gs://bucket/jobs/one")
        assert folder.get("job.json") is None and folder.names("reports/0001") == []
        other.put("reports/0001/attempt-001/start.json", b"{}")
        other.put("reports/0001/x.json", b"{}")
        assert folder.names("reports/0001") == ["attempt-001", "x.json"]
        for content in (b"1", b"22"):
            other.put("job.json", content)
            assert folder.get("job.json") == content
        store.failures += [403] * 20
        with pytest.raises(MaskwrightError, match=r"gs://bucket/jobs/one/job.json: cannot be read"):
            folder.get("job.json")


def test_beat_of_a_host_that_is_gone_begins_no_job(tmp_path: Path) -> None:
    folder = Folder(f"file://{tmp_path}")
    folder.put("job.json", JobSpec(JOB).to_json().encode())
    folder.put_json("reports/hosts/host-1.json", {"beat": 9, "submission": 1, "idle": True})
    agent = agent_module.Agent(folder, 0, 2, once=True, poll_seconds=0.1)
    for _ in range(5):
        agent._sync()
    assert job_folder.last_attempt(folder, 1) == 0
    folder.put_json("reports/hosts/host-1.json", {**asdict(agent._beat), "beat": 10, "submission": 1, "idle": True})
    agent._sync()
    assert job_folder.last_attempt(folder, 1) == 1


def test_restarts_pause_and_a_job_that_saves_nothing_is_given_up(tmp_path: Path) -> None:
    """Each attempt is killed. The third has saved; another agent of host 0 goes on with the count."""
    folder, spec, now, saved = Folder(f"file://{tmp_path}"), JobSpec(JOB, restarts=2), 0.0, 0

    def lead() -> leader.Leader:
        return leader.Leader(folder, 1, 5.0, clock=lambda: now, saved=lambda spec: saved)

    host_0, pauses, ended = lead(), list[float](), 0.0
    for turn in range(200):
        now = float(turn)
        folder.put_json("reports/hosts/host-0.json", {"beat": turn, "submission": 1, "idle": True})
        before = job_folder.last_attempt(folder, 1)
        host_0.poll(spec, before, False)
        if job_folder.read_result(folder, 1) is not None:
            break
        if (number := job_folder.last_attempt(folder, 1)) > before:
            pauses.append(now - ended)
            host_0, ended, saved = lead() if number == 2 else host_0, now, 100 if number > 2 else 0
            folder.put_json(f"{job_folder.attempt_folder(1, number)}/host-0/exit.json", asdict(End(0, 137, time=now)))
    result = job_folder.read_result(folder, 1)
    assert result and (result.code, result.cause) == (1, "host 0: killed by SIGKILL")
    assert pauses[1:] == [11.0, 21.0, 11.0, 21.0]  # a second of it until the end is seen; never a third in a row


def test_host_that_was_made_again_sees_checkpoints_where_copies_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    command = Training(
        "a.yaml", "runs/a", ("data.store=s", "schedule.steps=9", f"checkpoint.copy_to=file://{tmp_path}/c")
    )
    for config, place, step in ((False, "job/runs/a/checkpoints", 3), (True, "c", 7), (True, "c", 8)):
        (tmp_path / "job").mkdir(exist_ok=True)
        (tmp_path / "job" / "a.yaml").write_text("{}") if config else None
        Folder(str(tmp_path)).put(f"{place}/{step_folder(step)}/{MANIFEST}", b"{}")
        assert leader.saved_step(JobSpec(command, folder="job")) == step


def test_host_whose_beat_stands_still_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(f"file://{tmp_path}")
    folder.put("job.json", JobSpec(JOB, restarts=0).to_json().encode())
    agent = agent_module.Agent(folder, 0, 2, once=True, poll_seconds=0.1)
    for beat in (1, 2):
        folder.put_json(
            "reports/hosts/host-1.json", {**asdict(agent._beat), "beat": beat, "submission": 1, "idle": True}
        )
        agent._sync()
    exit_ = {"host": 0, "code": 75, "told": False, "reason": "", "why": "", "tail": [], "time": 0.0}
    folder.put_json("reports/0001/attempt-001/host-0/exit.json", exit_)
    folder.put_json("reports/hosts/host-1.json", {"beat": 3, "submission": 1, "idle": False})
    agent._sync()
    assert folder.get_json("results/0001.json") is None
    monkeypatch.setattr(leader, "LOST_SECONDS", 0.0)
    agent._sync()
    result = folder.get_json("results/0001.json")
    assert result is not None and result["code"] == 75 and "host 1: lost (no heartbeat" in result["report"][0]


def test_log_of_a_bucket_that_cannot_be_reached_is_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(agent_module, "LOG_BYTES", 100)
    agent = agent_module.Agent(Folder(f"file://{tmp_path}"), 0, 1, once=True, poll_seconds=1)
    for number in range(1000):
        agent._take_line(0, f"line {number}")
    assert sum(map(len, agent._log)) <= 100 and agent._log[-1] == b"line 999\n"


def test_spec_of_another_version_is_refused(tmp_path: Path) -> None:
    text = JobSpec(JOB).to_json().replace('"format": 2', '"format": 3')
    (tmp_path / "job.json").write_text(text)
    with pytest.raises(InputError, match="format 3, this version reads 2"):
        BucketPlace(f"file://{tmp_path}/job.json").submit(JOB, dry_run=False)


def test_bucket_that_cannot_be_reached_for_a_while_ends_no_following(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Folder(f"file://{tmp_path}")
    folder.put("reports/0001/attempt-001/host-0/log-000001.txt", b"once\n")
    folder.put_json("reports/0001/attempt-001/start.json", {"hosts": 1})
    read, calls = Folder.head, [0]

    def failing(self: Folder, name: str, count: int) -> bytes | None:
        calls[0] += "log-" not in name
        if 5 < calls[0] < 11:
            raise MaskwrightError("the network is down", where=name)
        if calls[0] == 11:
            self.put_json("results/0001.json", {"code": 0, "cause": "", "report": []})
        return read(self, name, count)

    monkeypatch.setattr(Folder, "head", failing)
    rounds = []
    job_folder.follow(folder, 1, 0.01, lambda: rounds.append(1))
    said = capsys.readouterr()
    assert said.out.count("host 0 | once") == 1 and said.err.count("the network is down") == 1
    assert len(rounds) >= 5  # what else is to be done goes on meanwhile
    folder.put_json("reports/0002/attempt-001/start.json", {"hosts": 1})
    ends = iter([None, None, StoppedEarly("as a signal says"), RuntimeError()])  # the third is among the logs
    with pytest.raises(StoppedEarly, match="as a signal says"):
        job_folder.follow(folder, 2, 0.01, lambda: (_ for _ in ()).throw(end) if (end := next(ends)) else None)
    monkeypatch.setattr(Folder, "head", lambda self, name, count: (_ for _ in ()).throw(MaskwrightError("may not")))
    with pytest.raises(MaskwrightError, match="may not"):
        job_folder.follow(folder, 1, 0.01)


def test_long_job_is_taken_up_from_its_newest_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever reads its log reads its end, and lets the watcher have its turns meanwhile."""
    folder, happened = Folder(f"file://{tmp_path}"), list[str]()
    folder.put("job.json", JobSpec(JOB).to_json().encode())
    for attempt, host in itertools.product((1, 2), range(4)):
        place = tmp_path / f"reports/0001/attempt-{attempt:03d}/host-{host}"
        place.mkdir(parents=True)
        place.with_name("start.json").write_text('{"hosts": 4}')
        for piece in range(1, 501 if attempt == 2 else 13):
            text = f"a{attempt} p{piece} first\na{attempt} p{piece} last\n"
            (place / f"log-{piece:06d}.txt").write_text(text)
    job_folder.put_result(folder, 1, JobResult(0))
    head = Folder.head
    monkeypatch.setattr(Folder, "head", lambda self, name, most: (happened.append(name), head(self, name, most))[1])

    job_folder.follow(folder, 1, 0.01, lambda: happened.append("meanwhile"))
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == "host 3 | a2 p500 last" and said.out.count("a1 p12 last") == 4
    assert "p1 " not in said.out and said.err.count("older lines of the hosts' logs are left out") == 1
    spans = [list(span) for watcher, span in itertools.groupby(happened, "meanwhile".__eq__) if not watcher]
    assert not any("log-" in name for name in spans[0]) and max(map(len, spans)) <= 11
    assert sum(map(len, spans)) < 100

    happened.clear()
    BucketPlace(f"{folder.location}/job.json").logs(follow=False, lines=3, show=show_line)
    assert capsys.readouterr().out.splitlines()[:3] == [
        f"host 0 | a2 p{end}" for end in ("499 last", "500 first", "500 last")
    ]
    assert len(happened) == 4 + 4 * 2
    BucketPlace(f"{folder.location}/job.json").stop()
    assert len(happened) < 120
    BucketPlace(f"{folder.location}/job.json").logs(follow=False, lines=None, show=show_line)
    assert capsys.readouterr().out.count("a2 p1 first") == 4


def test_of_two_that_submit_at_once_one_is_refused(tmp_path: Path) -> None:
    folder, other = Folder(f"file://{tmp_path}"), JobSpec(Training("b.yaml", "runs/b"))

    def meanwhile(submission: int) -> None:
        with pytest.raises(InputError, match=r"another job was submitted here at the same moment\. Fix: submit again"):
            job_folder.put_spec(folder, other)

    assert job_folder.put_spec(folder, JobSpec(JOB), meanwhile) == 1
    assert job_folder.read_spec(folder) == JobSpec(JOB)
    folder.remove("job.json")  # as if it had been killed in between: the same command goes on
    assert job_folder.put_spec(folder, JobSpec(JOB)) == 1


def test_first_result_counts(tmp_path: Path) -> None:
    folder = Folder(f"file://{tmp_path}")
    assert job_folder.put_result(folder, 1, JobResult(0))
    assert not job_folder.put_result(folder, 1, JobResult(75, "taken away"))
    assert (job_folder.read_result(folder, 1) or JobResult(1)).code == 0
