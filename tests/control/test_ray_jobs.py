"""What a Ray job is before and after Ray has it, and what its node does; without Ray."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import maskwright, write_config
from private_network import processes, wait_until

from maskwright.core.errors import InputError, JobError, StoppedEarly
from maskwright.launch import checks
from maskwright.launch.ray import gang as ray_gang
from maskwright.launch.ray import jobs, submit
from maskwright.launch.ray.gang import Gang, choose, require_lasting
from maskwright.launch.ray.jobs import RayJob, conclude, find_address, parse_id
from maskwright.launch.ray.member import Member
from maskwright.launch.ray.submit import Ray
from maskwright.launch.target import Training
from maskwright.processes.child import last_words

CPU = {"CPU": 8.0}
BIG, SMALL = {"CPU": 64.0, "GPU": 8.0}, {"CPU": 16.0, "GPU": 4.0}
HEAD = {"CPU": 0.0}


# ---- the gang ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machines", "nodes", "gpus", "gang"),
    [
        ([CPU], None, None, Gang(1, 0)),
        ([HEAD, BIG, BIG], None, None, Gang(2, 8)),
        ([HEAD, BIG, SMALL], None, None, Gang(3, 4)),
        ([BIG], 2, None, Gang(2, 4)),
        ([BIG, BIG], 2, None, Gang(2, 8)),
        ([BIG, SMALL], 3, None, Gang(3, 4)),
        ([BIG, SMALL], None, 4, Gang(3, 4)),
        ([BIG, SMALL], None, 0, Gang(1, 0)),
        ([BIG], 4, 0, Gang(4, 0)),
        ([CPU, CPU], 3, None, Gang(3, 0)),
    ],
)
def test_what_was_not_asked_for_is_what_there_is(
    machines: list[Mapping[str, float]], nodes: int | None, gpus: int | None, gang: Gang
) -> None:
    assert choose(machines, nodes, gpus, 96) == gang


@pytest.mark.parametrize(
    ("virtual_workers", "gang"), [(1, Gang(1, 1)), (6, Gang(1, 6)), (12, Gang(2, 6)), (7, Gang(1, 7))]
)
def test_what_is_chosen_shares_out_the_batch(virtual_workers: int, gang: Gang) -> None:
    assert choose([BIG, BIG], None, None, virtual_workers) == gang


def test_as_many_are_chosen_as_the_configuration_asks_for() -> None:
    assert choose([BIG, BIG], None, None, 96, devices=4) == Gang(1, 4)
    assert choose([BIG, BIG], 2, None, 96, devices=4) == Gang(2, 2)


@pytest.mark.parametrize(
    ("machines", "nodes", "gpus", "has"),
    [
        ([CPU], 1, 1, "8 CPUs, 0 GPUs"),
        ([BIG], 3, 4, "64 CPUs, 8 GPUs"),
        ([SMALL, SMALL], 1, 8, "16 CPUs, 4 GPUs; 16 CPUs, 4 GPUs"),
        ([HEAD], 1, 0, "0 CPUs, 0 GPUs"),
        ([], None, None, "nothing"),
        ([{"CPU": 1.0, "GPU": 8.0}], 1, 8, "1 CPUs, 8 GPUs"),
    ],
)
def test_more_than_there_is_is_refused(
    machines: list[Mapping[str, float]], nodes: int | None, gpus: int | None, has: str
) -> None:
    with pytest.raises(InputError, match=f"machines have {has}"):
        choose(machines, nodes, gpus, 96)


def test_who_is_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ray_gang.job_id() is None
    metadata = {"job_submission_id": "a", ray_gang.RESTARTS_KEY: "2"}
    monkeypatch.setenv(ray_gang.DRIVER, json.dumps({"runtime_env": {}, "metadata": metadata}))
    assert ray_gang.job_id() == "a"
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert ray_gang.job_id() is None
    monkeypatch.delenv("WORLD_SIZE")
    for odd in ("", "no JSON", "[]", '{"metadata": 3}'):
        monkeypatch.setenv(ray_gang.DRIVER, odd)
        assert ray_gang.job_id() is None


def test_what_would_be_lost_with_the_job_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    require_lasting("/runs/a", {"data.store": "/data/store", "model.init_from": None}, None)
    require_lasting("/runs/a", {"data.store": "store", "model.init_from": "gs://b/model"}, str(tmp_path))
    for run, store, init_from, folder, where in [
        ("runs/a", "/data/store", None, None, "--run runs/a"),
        ("/runs/a", "store", None, None, "data.store: store"),
        ("/runs/a", "/store", "model", str(tmp_path), "model.init_from: model"),
    ]:
        with pytest.raises(InputError, match="relative") as caught:
            require_lasting(run, {"data.store": store, "model.init_from": init_from}, folder)
        assert caught.value.where == where
    (tmp_path / "run.yaml").write_text("data: {store: /s}\nschedule: {steps: 9}\n")
    job = Ray(address="http://127.0.0.1:1")
    with pytest.raises(InputError, match="relative, and not in the job's working directory") as caught:
        job.submit(Training(str(tmp_path / "run.yaml"), "/runs/a", begin_from="runs/b@40"), dry_run=True)
    assert caught.value.where == "--from: runs/b"


def test_recipe_of_a_job_that_ray_started(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr(ray_gang, "train", lambda command, *more: given.append(command))
    config, _ = checks.read(command := Training("nano", "/runs/a", overrides=("data.store=/store",)))
    ray_gang.train_as_a_job(command, config, None, None)
    assert list(given[0].files) == ["nano.yaml"] and given[0].pretrain.config == "{files}/nano.yaml"


# ---- the job -------------------------------------------------------------------------------------------------------


def test_names_and_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_id("ray:one-286e7d") == "one-286e7d"
    for odd in ("one", "ray:", "ray:../a", "slice:a"):
        with pytest.raises(InputError, match="is not a Ray job"):
            parse_id(odd)
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    assert find_address(None) == "http://127.0.0.1:8265"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert find_address(None) == "http://127.0.0.1:8265"
    monkeypatch.setenv("RAY_ADDRESS", "https://ray.example/")
    assert find_address(None) == "https://ray.example"
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://a:1")
    assert (find_address(None), find_address("http://b:2")) == ("http://a:1", "http://b:2")
    with pytest.raises(InputError, match="not an HTTP address"):
        find_address("auto")


@pytest.mark.parametrize(
    ("entrypoint", "run"),
    [
        ("exec maskwright pretrain a.yaml --run /runs/a/ --num-nodes 2", "/runs/a"),
        ("python -m maskwright pretrain a.yaml --run='/runs/a b'", "/runs/a b"),
        ("exec maskwright finetune a.yaml --run /runs/a", "/runs/a"),
        ("maskwright evaluate --run /runs/a", None),
        ("maskwright pretrain --run", None),
        ("echo 'pretrain", None),
    ],
)
def test_run_of_a_submitted_command(entrypoint: str, run: str | None) -> None:
    assert jobs._run_of(entrypoint) == run


@pytest.mark.parametrize(
    ("state", "code", "why", "exit_code", "said"),
    [
        ("FAILED", 2, "", 2, "exit 2"),
        ("FAILED", 3, "", 3, "exit 3"),
        ("FAILED", 75, "", 75, "continues the run"),
        ("STOPPED", None, "", 75, "continues the run"),
        ("FAILED", -9, "", 1, "killed by SIGKILL"),
        ("FAILED", 137, "", 1, "killed by SIGKILL"),
        ("FAILED", 127, "", 1, "not installed"),
        ("FAILED", 255, "", 255, "the job failed: exit 255"),
        ("FAILED", None, "RUNTIME_ENV_SETUP_FAILURE no such package", 1, "did not start"),
        ("FAILED", None, "JOB_SUPERVISOR_ACTOR_DIED node gone", 75, "node gone; the same submission continues"),
    ],
)
def test_exit_code_of_a_job_that_is_over(state: str, code: int | None, why: str, exit_code: int, said: str) -> None:
    kind = StoppedEarly if exit_code == 75 else JobError
    with pytest.raises(kind, match=said) as caught:
        conclude(RayJob("a", state, code, None, None, None, why))
    assert caught.value.exit_code == exit_code
    conclude(RayJob("a", "SUCCEEDED", 0, None, None, None, ""))


@pytest.mark.parametrize(
    ("state", "code", "printed", "exit_code", "last"),
    [
        ("RUNNING", None, "", None, None),
        ("SUCCEEDED", 0, "begun\nhost 0 | done: /runs/a\n", 0, "done: /runs/a"),
        ("FAILED", 2, "host 0 | error: no label\nerror: the job failed\n", 2, "error: no label"),
        ("STOPPED", None, "host 0 | stopped: saved\n", 75, "stopped: saved"),
        (
            "FAILED",
            127,
            "sh: maskwright: not found\n",
            1,
            "ray:seed-1-a: `maskwright` is not installed on the cluster.",
        ),
        (None, None, "", 75, None),
    ],
)
def test_the_end_of_one_of_many_jobs(
    state: str | None, code: int | None, printed: str, exit_code: int | None, last: str | None, tmp_path: Path
) -> None:
    """Below what the run printed, lines of launchers begin with `==`. A head that started again knows no job."""
    known = [RayJob("seed-1-a", state, code, "/runs/a", 0.0, None, "")] if state else []
    place, log = Ray(), tmp_path / "a.log"
    place.__dict__["_head"] = SimpleNamespace(jobs=lambda: known, logs=lambda job: printed)
    assert place.live(["/runs/a", "/runs/b"]) == ({"/runs/a": "seed-1-a"} if state == "RUNNING" else {})
    assert place.ended("seed-1-a", str(log)) == exit_code
    assert log.exists() == (last is not None)
    assert last is None or last_words(str(log)).startswith(last)


def test_what_is_refused_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert Ray().entrypoint(Training("a b.yaml", "/runs/a")) == "exec maskwright pretrain 'a b.yaml' --run /runs/a"
    assert Ray().name("/runs/a/").startswith("a-") and jobs.ID.fullmatch(Ray().name("/runs/ü/"))
    with pytest.raises(InputError, match="is not a valid ID"):
        Ray(job_id="a/b")
    monkeypatch.setenv("HF_TOKEN", "hf_123456789")
    monkeypatch.setenv("PAGE", "http://me:hunter2@proxy")
    for name in ("HF_TOKEN", "PAGE"):
        with pytest.raises(InputError, match="looks like a secret") as caught:
            Ray(env=(name,)).values()
        assert "hunter2" not in str(caught.value) and "hf_1" not in str(caught.value)

    folder = tmp_path / "work"
    folder.mkdir()
    for name in (".gitignore", "words.bin"):
        (folder / name).write_text("*\n")
    (folder / ".git").mkdir()
    with submit._packed(str(folder), "a.yaml", "x") as packed:
        assert sorted(os.listdir(packed)) == [".gitignore", "a.yaml", "words.bin"]
    monkeypatch.setattr(submit, "LARGEST_FOLDER_BYTES", 3)
    with pytest.raises(InputError, match="more than 100 MiB"), submit._packed(str(folder), "a.yaml", "x"):
        pass


def test_submit_says_what_it_would_do(tmp_path: Path) -> None:
    write_config(tmp_path / "run.yaml", "/data/store")
    words = ("submit", "ray", "run.yaml", "--run", "/runs/a", "--dry-run")
    seed = ("--simulated_gpus=8", "--b_size=64", "--datapath", "/data/other", "--num-nodes", 2, "--gpus-per-node", 4)
    lines = maskwright(*words, *seed, cwd=tmp_path).splitlines()
    keys = "--set batch.virtual_workers=8 --set batch.micro_batch_rows=64 --set data.store=/data/other"
    gang = "--num-nodes 2 --gpus-per-node 4"
    assert lines[1] == f"entrypoint   exec maskwright pretrain run.yaml --run /runs/a {keys} {gang}"
    assert lines[2:] == ["uploaded     run.yaml", "environment  RAY_JOB_STOP_WAIT_TIME_S=60"]
    assert maskwright(*words, cwd=tmp_path).splitlines()[1].endswith("pretrain run.yaml --run /runs/a")
    maskwright(*words[:3], "--run", "runs/a", cwd=tmp_path, code=2)
    maskwright(*words, "--datapath", "store", cwd=tmp_path, code=2)
    maskwright("pretrain", "run.yaml", "--run", "runs/a", "--gpus-per-node", 2, cwd=tmp_path, code=2)
    # Nothing answers there: an error, and no wait.
    has_ray = importlib.util.find_spec("ray") is not None
    maskwright(*words[:-1], "--address", "http://127.0.0.1:9", cwd=tmp_path, code=1 if has_ray else 2)


# ---- the node ------------------------------------------------------------------------------------------------------


@pytest.fixture
def stand_in(tmp_path: Path) -> dict[str, str]:
    """A package of that name, which prints its arguments and does what the file that they name says."""
    package = tmp_path / "stand-in" / "maskwright"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("import sys\nprint(*sys.argv[2:])\nexec(open(sys.argv[1]).read())\n")
    return {"PYTHONPATH": str(package.parent)}


def begin(stand_in: dict[str, str], does: str, run: str, grace_seconds: float = 5.0) -> Member:
    member = Member()
    member.start(["{files}/a.py", "one", run], run, {"a.py": does.encode()}, stand_in, grace_seconds)
    return member


def heard(member: Member, seconds: float = 120.0) -> tuple[list[str], int | None, str]:
    lines, deadline = [], time.monotonic() + seconds
    while time.monotonic() < deadline:
        more, over, code, reason = member.poll(0.2)
        lines += more
        if over:
            return lines, code, reason
    raise AssertionError(lines)


def test_lines_and_exit_code_of_a_worker(stand_in: dict[str, str], tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    says = "import sys, os\nprint('out')\nprint('err', file=sys.stderr)\nprint(len('x' * 10), end='')\n"
    stop = "open(os.environ['MASKWRIGHT_REASON_FILE'], 'w').write('asked\\n'); sys.exit(75)"
    assert heard(begin(stand_in, says + stop, run)) == ([f"one {run}", "out", "err", "10"], 75, "asked")
    assert heard(begin(stand_in, "import os; os.kill(os.getpid(), 9)", run))[1] == 137
    lines, code, _ = heard(begin({"PATH": ""}, "", run))
    assert code == 1 and "cannot be started" in lines[0]


def test_a_worker_that_is_told_to_end_has_its_grace_period(stand_in: dict[str, str], tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    catch = (
        "import signal, sys, time\ndef stop(*_): {}\nsignal.signal(15, stop)\nprint('on', flush=True)\ntime.sleep(60)"
    )
    member = begin(stand_in, catch.format("print('saved'); sys.exit(75)"), run)
    wait_until(lambda: "on" in member.poll(1.0)[0])
    member.request_stop()
    assert heard(member) == (["saved"], 75, "")

    member = begin(stand_in, catch.format("None") + "\ntime.sleep(60)", run, grace_seconds=0.5)
    wait_until(lambda: "on" in member.poll(1.0)[0])
    member.request_stop()
    assert heard(member)[1] == 137

    member = Member()
    member.request_stop()
    member.start(["{files}/a.py"], run, {}, stand_in, 1.0)
    assert heard(member) == ([], 75, "")


def test_who_begins_again_waits_for_what_still_saves(stand_in: dict[str, str], tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    first = begin(stand_in, "import time\nprint('on', flush=True)\ntime.sleep(60)", run)
    wait_until(lambda: "on" in first.poll(1.0)[0])
    assert Member().prepare(run, "127.0.0.1", 0.3)[1] is False
    assert Member().prepare(run + "2", "127.0.0.1", 0.3)[1] is True
    os.kill(processes("-m", "one", run)[0], signal.SIGKILL)
    port, free = Member().prepare(run, "127.0.0.1", 10.0)
    assert free and 1024 <= port < 65536
    assert heard(first)[1] == 137
