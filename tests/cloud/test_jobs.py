"""`submit env lab.yaml` on the made-up cloud: what is refused, what hosts are told, how a job is seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from google_cloud.fake import Cloud
from google_cloud.small_terraform import SmallTerraform

from maskwright.cli import env
from maskwright.cli.main import run
from maskwright.cloud import record
from maskwright.cloud.environment import read_environment
from maskwright.cloud.jobs.watcher import PermanentRefusal
from maskwright.cloud.provision import commands
from maskwright.cloud.record import EnvironmentRecord
from maskwright.core.folder import Folder
from maskwright.launch.target import parse_spec

SLICE = {"accelerator": "v6e", "topology": "4x4", "provisioning_model": "SPOT"}
GROUP = {"machine_type": "g2-standard-24", "size": 2}
DISK = {"size_gb": 100, "source": "gs://corpus/stores"}
RUN = {
    "data": {"store": "gs://corpus/stores/one"},
    "schedule": {"steps": 10},
    "batch": {"virtual_workers": 16},
    "engine": {"kind": "jax"},
}
BUCKET = "lab-proj-lab1-jobs"
Say = Callable[..., str]


@pytest.fixture
def cloud(empty_cloud: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cloud:
    empty_cloud.put("gs://lab-proj-maskwright-state/made", "")
    for folder in ("one", "deep/two"):
        empty_cloud.put(f"gs://corpus/stores/{folder}/manifest.json", '{"format": 2, "dtype": "uint16"}')
    small = SmallTerraform(empty_cloud)
    monkeypatch.setattr(commands, "up", small.up)
    monkeypatch.setattr(commands, "down", small.down)
    empty_cloud.small = small  # type: ignore[attr-defined]
    monkeypatch.chdir(tmp_path)
    lab(slice=SLICE)
    Path("run.yaml").write_text(yaml.safe_dump(RUN))
    return empty_cloud


def lab(**parts: Any) -> None:
    Path("lab.yaml").write_text(yaml.safe_dump({"name": "lab1", "project": "lab-proj", "zone": "us-east5-b", **parts}))


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str]) -> Say:
    def said(*words: str, code: int = 0) -> str:
        got = run(list(words))
        text = "".join(capfd.readouterr())
        assert got == code, text
        return text

    return said


def submit(*words: str) -> list[str]:
    return ["submit", "env", "lab.yaml", "run.yaml", "--run", "one", *words]


REFUSED: list[tuple[str, dict[str, Any], list[str], str]] = [
    ("neither", {}, [], "lab.yaml: has neither slice nor group. Fix: add a section"),
    ("both", {"slice": SLICE, "group": GROUP}, [], "has a slice and a group. Fix: --target slice"),
    ("other target", {"slice": SLICE}, ["--target", "group"], "--target: has no group. Fix: --target slice"),
    (
        "torch",
        {"slice": SLICE},
        ["--set", "engine.kind=torch"],
        "engine.kind: torch does not compute on TPUs, and jax does. Fix: add --set engine.kind=jax",
    ),
    (
        "cpu",
        {"slice": SLICE},
        ["--set", "engine.device=cpu"],
        "engine.device: cpu is not a TPU. Fix: add --set engine.device=tpu",
    ),
    (
        *("all at once", {"slice": SLICE}),
        ["--set", "engine.kind=torch", "--set", "batch.virtual_workers=1", "--set", "batch.micro_batch_rows=32"],
        "Fix: add --set engine.kind=jax --set batch.virtual_workers=16 --set batch.micro_batch_rows=2\n",
    ),
    ("tpu", {"group": GROUP}, ["--set", "engine.device=tpu"], "engine.device: is tpu, and 2 GPUs on each node ask for"),
    (
        *("relative", {"slice": SLICE, "disk": DISK}, ["--set", "data.store=data/one"]),
        "data.store: data/one is not on the hosts. Fix: add --set data.store=/mnt/common/shared_pd/one\n",
    ),
    (
        *("not copied", {"slice": SLICE, "disk": DISK}, ["--set", "data.store=/mnt/common/shared_pd/three"]),
        "/three will not be on the disk. Fix: add --set data.store=/mnt/common/shared_pd/deep/two, or another of /mnt/",
    ),
    (
        *("not seeded", {"slice": SLICE, "disk": DISK}, ["--set", "data.store=/mnt/common/shared_pd/deep/two"]),
        "the disk, which is to hold /mnt/common/shared_pd/deep/two, is not seeded yet. Fix: maskwright env seed",
    ),
    (
        *("no place", {"slice": SLICE}, ["--set", "data.store=store"]),
        "data.store: store is not on the hosts. Fix: gs://BUCKET/STORE, which each host fetches",
    ),
    (
        *("model in a bucket", {"slice": SLICE}, ["--set", "model.init_from=gs://b/roberta"]),
        "model.init_from: gs://b/roberta is read as a folder on the hosts. Fix: a folder below /mnt/common/shared_pd",
    ),
    (
        *("epochs", {"slice": SLICE}, ["--set", "data.store=epochs", "--set", "data.format=pregenerated"]),
        "data.store: epochs is not on the hosts. Fix: where the epochs lie: `maskwright data convert EPOCHS",
    ),
    (
        *(
            "epochs in a bucket",
            {"slice": SLICE},
            ["--set", "data.store=gs://b/e", "--set", "data.format=pregenerated"],
        ),
        "gs://b/e is read as a folder on the hosts. Fix: where the epochs lie: `maskwright data convert EPOCHS",
    ),
    ("no hosts", {"slice": SLICE}, [], "there is no slice. Fix: maskwright env up lab.yaml --only slice, or submit"),
    ("no limit", {"slice": SLICE}, ["--max-cost", "inf"], "--max-cost: inf is not a limit. Fix: give a number"),
    ("no price", {"slice": SLICE}, ["--max-cost", "1", "--prices", "none.yaml"], "none.yaml: no such file"),
]


@pytest.mark.parametrize(("parts", "words", "line"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_is_refused_before_it_costs(
    cloud: Cloud, say: Say, parts: dict[str, Any], words: list[str], line: str
) -> None:
    lab(**parts)
    assert line in say(*submit(*words), code=2)
    assert not [key for key in cloud.resources if "instance" in key]
    assert not [name for _, name in cloud.objects if name.startswith("jobs/")]


def test_secrets_and_addresses_are_refused(cloud: Cloud, say: Say) -> None:
    Path("run.yaml").write_text(yaml.safe_dump(RUN) + "# https://me:hunter2@example.com\n")
    assert "run.yaml: holds a secret" in say(*submit(), code=2)
    Path("run.yaml").write_text(yaml.safe_dump(RUN))
    words = ["submit", "env", "lab.yaml", "run.yaml", "--run"]
    for wrong in ("gs://bucket/runs/one", "a b", "/mnt/x/"):
        expected = 0 if wrong == "/mnt/x/" else 2
        said = say(*words, wrong, "--dry-run", code=expected)
        assert ("is not a run directory on a host" in said) == (expected == 2)
    copies = {
        parse_spec(say(*words, run, "--dry-run"), "").command.overrides[-1] for run in ("a/x", "b/x", "b/x/", "b//x")
    }
    assert len(copies) == 2, "folders of one name have copies of their own"


def test_what_hosts_are_told(cloud: Cloud, say: Say) -> None:
    limits = ["--stop-after-hours", "5", "--stop-after-steps", "7"]
    spec = parse_spec(say(*submit("--dry-run", "--env", "HF_TOKEN", *limits)), "job.json")
    command = spec.command
    assert command.config.startswith(f"gs://{BUCKET}/slice/configs/") and command.config.endswith(".yaml")
    copies = "checkpoint.copy_to=gs://lab-proj-lab1-runs/runs/one"
    assert (command.run, command.overrides) == ("runs/one", ("engine.device=tpu", copies))
    assert (command.stop_after_hours, command.stop_after_steps) == (None, 7)  # hours are the watcher's to count
    assert (spec.environment, spec.folder, spec.restarts, spec.grace_seconds) == (("HF_TOKEN",), ".", 10, 30)
    saves = ["--restarts", "3", "--set", "checkpoint.grace_seconds=40"]
    spec = parse_spec(say(*submit("--dry-run", *saves)), "job.json")
    assert (spec.restarts, spec.grace_seconds) == (3, 45)

    lab(group=GROUP, nfs={"share": "share"})
    own = ["--set", "checkpoint.copy_to=gs://mine/one", "--set", "engine.kind=torch"]
    command = parse_spec(say(*submit("--dry-run", *own)), "job.json").command
    assert command.run == "/mnt/common/nfs_share/runs/one" and command.processes == 2
    assert command.overrides == ("checkpoint.copy_to=gs://mine/one", "engine.kind=torch", "engine.device=cuda")
    lab(slice=SLICE, disk=DISK, nfs={"share": "share"}, host={"container": "mine", "setup": "mine.sh"})
    seeded = EnvironmentRecord(seeded={"files": 1})
    record.write(read_environment("lab.yaml"), seeded)
    arrow = ["--set", "data.format=arrow", "--set", "data.arrow.tokenizer=/mnt/common/shared_pd/tok"]
    say(*submit("--dry-run", *arrow, "--set", "data.store=/mnt/common/shared_pd/shards"))
    assert "is read as a folder on the hosts" in say(*submit("--dry-run", *arrow), code=2)  # gs://corpus/stores/one
    for store in ("/mnt/common/shared_pd/one", "/mnt/common/nfs_share/x", "/mnt/common/own", "/in/the/image"):
        say(*submit("--dry-run", "--set", f"data.store={store}"))


def test_detached_job_is_seen_followed_and_stopped(cloud: Cloud, say: Say) -> None:
    assert "nothing was submitted yet" in say("logs", "lab.yaml", code=2)
    text = say(*submit("--up", "--detach", "--stop-after-hours", "9", "--down-when-done", "--json"))
    told, _ = json.JSONDecoder().raw_decode(text)
    assert (told["submitted"], told["job"], told["where"]) == (True, "lab.yaml", f"gs://{BUCKET}/slice")
    assert "`maskwright env watch lab.yaml` watches its hosts" in text
    folder = Folder(f"gs://{BUCKET}/slice")
    spec = folder.get_json("job.json")
    assert spec and spec["submission"] == 1
    assert cloud.text(spec["command"]["config"]) == Path("run.yaml").read_text()
    assert folder.get_json("watch/limits.json") == {
        "submission": 1,
        "max_usd": None,
        "stop_after_hours": 9.0,
        "down_when_done": True,
        "rates": [],
    }
    assert [key for key in cloud.resources if key.endswith("/instanceGroupManagers/lab1-slice")]
    say(*submit("--detach"))  # who takes it up without a limit does not lift it
    limits = folder.get_json("watch/limits.json")
    assert limits and limits["stop_after_hours"] == 9.0 and limits["down_when_done"]

    at = "reports/0001/attempt-001"
    folder.put_json(f"{at}/start.json", {"hosts": 4})
    for worker in range(4):
        beat = {"beat": 1, "submission": 1, "idle": worker == 3, "instance": f"lab1-slice-{worker}"}
        folder.put_json(f"reports/hosts/host-{worker}.json", beat)
        folder.put(f"{at}/host-{worker}/log-000001.txt", f"one {worker}\ntwo {worker}\n".encode())
    said = say("status", "lab.yaml")
    assert "lab1 slice: submission 1, attempt 1, going on" in said
    assert "host 2: lab1-slice-2 computes" in said and "host 3: lab1-slice-3 waits" in said
    assert json.loads(say("status", "lab.yaml", "--json"))["jobs"][0]["submission"] == 1
    assert say("logs", "lab.yaml", "--lines", "1").splitlines() == [f"host {n} | two {n}" for n in range(4)]
    documents = map(json.loads, say("logs", "lab.yaml", "--lines", "1", "--json").splitlines())
    assert list(documents) == [{"version": 1, "host": n, "line": f"two {n}"} for n in range(4)]
    another = say("submit", "env", "lab.yaml", "run.yaml", "--run", "two", code=2)
    assert "another job is not over yet" in another

    result = {"code": 75, "cause": "", "report": ["first: host 0: exit 75, stopped early"], "time": 0.0}
    folder.put_json("results/0001.json", result)
    assert "one 0" in say("logs", "lab.yaml", "--follow", code=75)
    assert "over, exit 75" in say("stop", "lab.yaml") and folder.get_json("stop.json") is None
    assert "over, exit 75" in say("status", "lab.yaml")


def test_watch_ends_with_the_jobs_code_and_takes_down(cloud: Cloud, say: Say) -> None:
    say(*submit("--up", "--detach", "--down-when-done"))
    folder = Folder(f"gs://{BUCKET}/slice")
    folder.put_json("results/0001.json", {"code": 3, "cause": "host 1: exit 3", "report": [], "time": 0.0})
    said = say("env", "watch", "lab.yaml", "--poll-seconds", "0.1", "--json", code=3)
    *words, last = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert "the job failed: host 1: exit 3" in last["error"]["message"] and last["error"]["exit_code"] == 3
    assert {(word["version"], word["submission"]) for word in words} == {(1, 1)}
    told = [(word["action"], word["hosts"], word["exit_code"], word["looks"]) for word in words]
    assert told == [("down", True, None, 1), ("end", False, 3, 2), ("leave", False, None, 2)]
    assert words[1]["why"] == "host 1: exit 3" and words[0]["machines"] == 4 and words[0]["time"] > 1e9
    assert not [key for key in cloud.resources if key.endswith("/instanceGroupManagers/lab1-slice")]


def test_detached_job_that_will_never_have_hosts_is_no_success(cloud: Cloud, say: Say) -> None:
    say(*submit("--up", "--detach"))
    Folder(f"gs://{BUCKET}/slice").put_json("results/0001.json", {"code": 0, "cause": "", "report": []})
    for key in [key for key in cloud.resources if "/instance" in key]:
        del cloud.resources[key]
    cloud.small.fails = [PermanentRefusal("may not compute.instances.create", fix="ask")]  # type: ignore[attr-defined]
    assert "the job failed: may not compute.instances.create" in say(*submit("--up", "--detach"), code=1)


def test_env_down_ends_the_job_so_that_no_watcher_brings_the_hosts_back(
    cloud: Cloud, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env, "_audit", lambda *_, json: None)  # of the real `down`
    say(*submit("--up", "--detach"))
    folder = Folder(f"gs://{BUCKET}/slice")
    assert "this stops the job on its slice (submission 1)" in say(
        "env", "down", "lab.yaml", "--only", "slice", "--yes"
    )
    result = folder.get_json("results/0001.json")
    assert result and (result["code"], result["cause"]) == (75, "env down deleted its hosts")
    say("env", "watch", "lab.yaml", "--poll-seconds", "0.1", code=75)
    assert not [key for key in cloud.resources if key.endswith("/instanceGroupManagers/lab1-slice")]
    say("env", "down", "lab.yaml", "--only", "slice", "--yes")
    assert folder.get_json("results/0001.json") == result


def test_job_on_one_of_two_kinds_of_hosts_is_found(cloud: Cloud, say: Say) -> None:
    lab(slice=SLICE, group={**GROUP, "machine_type": "n2-standard-4"})
    say(*submit("--up", "--detach", "--target", "group"))
    said = say("status", "lab.yaml")
    assert "lab1 slice: nothing was submitted yet" in said and "lab1 group: submission 1" in said
    assert "has not begun yet" in say("logs", "lab.yaml")
    say(*submit("--up", "--detach", "--target", "slice"))
    assert "has a job on its slice and one on its group" in say("stop", "lab.yaml", code=2)
