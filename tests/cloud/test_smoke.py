"""`env smoke` without a cloud: what it would run, that it asks, and that it always takes away what it made."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml
from google_cloud.calling import command_line
from google_cloud.fake import Cloud
from google_cloud.terraform_world import TerraformWorld, why_not
from in_process import Cli, Result

from maskwright.cloud import smoke
from maskwright.cloud.environment import build_environment
from maskwright.cloud.smoke import Smoke
from maskwright.config.pretraining import read_config
from maskwright.core.errors import JobError, StoppedEarly
from maskwright.processes import child

BASE = build_environment({"name": "laboratory-number-1", "project": "lab-proj", "zone": "us-east5-b"}, "x")


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with command_line(capfd) as call:
        yield call


@pytest.fixture
def planned(tmp_path: Path, cloud: Cloud) -> Smoke:
    cloud.put("gs://lab-proj-laboratory-nu-smoke-dataset/there", "")
    return smoke.plan(BASE, "vm", None, str(tmp_path))


class Recorder:
    """Runs nothing; `fails`: the code of the first command that begins so."""

    def __init__(self, **fails: int) -> None:
        self.ran: list[str] = []
        self.fails = {name.replace("_", " "): code for name, code in fails.items()}

    def __call__(self, words: Sequence[str]) -> int:
        self.ran.append(" ".join(words[:2]) if words[0] != "submit" else "submit")
        return next((code for name, code in self.fails.items() if self.ran[-1] == name), 0)


WHOLE = [
    "tokenizer train",
    "data prepare",
    "env init",
    "env up",
    "env image",
    "env seed",
    "env up",
    "submit",
    "env status",
]
END = ["env down", "env audit"]


def test_the_whole_way_and_back(planned: Smoke, cloud: Cloud) -> None:
    run = Recorder()
    os.makedirs(planned.path("data/store"))
    Path(planned.path("data/store/part")).write_text("tokens")
    smoke.smoke(planned, image=True, run=run)
    assert run.ran == [*WHOLE, *END]
    assert cloud.text(f"{planned.source}/store/part") == "tokens"


@pytest.mark.parametrize("step", ["env init", "env up", "env seed", "submit"])
def test_whatever_fails_all_is_taken_away_and_its_code_is_told(planned: Smoke, step: str) -> None:
    run = Recorder(**{step.replace(" ", "_"): 3})
    with pytest.raises(JobError) as caught:
        smoke.smoke(planned, image=False, run=run)
    told = ["env status"] if step in ("env seed", "submit") else []  # what there is, before it goes
    assert caught.value.exit_code == 3 and run.ran[-3 - len(told) :] == [step, *told, *END]


def test_an_interruption_takes_all_away_too(planned: Smoke) -> None:
    ran: list[str] = []

    def run(words: Sequence[str]) -> int:
        ran.append(" ".join(words[:2]))
        if words[0] == "submit":
            raise StoppedEarly("by SIGINT")
        return 0

    with pytest.raises(StoppedEarly):
        smoke.smoke(planned, image=False, run=run)
    assert ran[-2:] == END


def test_what_could_not_be_taken_away_is_the_exit_code(planned: Smoke, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(JobError, match="not everything was deleted"):
        smoke.smoke(planned, image=False, run=Recorder(env_audit=1))
    assert "STILL THERE, AND IT MAY COST MONEY" in capfd.readouterr().err


@pytest.mark.parametrize("kind", ["vm", "tpu"])
def test_its_files_are_an_environment_and_a_run_and_google_ends_the_machine(tmp_path: Path, kind: smoke.Kind) -> None:
    planned = smoke.plan(BASE, kind, "image:1", str(tmp_path))
    smoke.write(planned)
    values = yaml.safe_load(Path(planned.yaml).read_text())
    again = build_environment(values, planned.yaml)
    assert again == planned.environment and again.name == "laboratory-nu-smoke" and again.host.container == "image:1"
    hosts = again.slice or again.group
    assert hosts is not None and hosts.max_run_hours == 0.5 and hosts.hosts == 1
    assert hosts.provisioning_model == "SPOT" and again.disk and again.disk.size_gb == smoke.DISK_GB
    config = read_config(planned.path("run.yaml"))
    assert config.data.store == "/mnt/common/shared_pd/store"
    assert config.engine.kind == ("jax" if kind == "tpu" else "torch")


def test_every_command_and_option_that_it_types_exists(planned: Smoke, cli: Cli) -> None:
    for words in (*planned.preparation(), *planned.trial(True), *planned.teardown()):
        known = set(re.findall(r"--[a-z][a-z-]+", cli(*words[:2], "--help").out))
        assert {word for word in words if word.startswith("--")} <= known, words


def test_its_text_becomes_a_token_store(tmp_path: Path) -> None:
    """For real: the first two commands."""
    planned = smoke.plan(BASE, "vm", None, str(tmp_path))
    smoke.write(planned)
    for words in planned.preparation()[:2]:
        subprocess.run([sys.executable, "-m", "maskwright", *words], check=True, capture_output=True)
    assert (tmp_path / "data" / "store" / "manifest.json").exists()


def test_it_says_what_it_costs_and_that_nobody_ran_it_and_asks(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(yaml.safe_dump(BASE.model_dump(exclude_defaults=True)))
    result = cli("env", "smoke", path)
    assert result.code == 2 and "cannot ask for confirmation without a terminal" in result.err
    assert "without access to Google Cloud" in result.err
    assert re.search(r"About 0\.\d\d USD if it takes 1 h", result.err)
    assert "have never run it" in " ".join(cli("env", "smoke", "--help").out.split())
    drawn = cli("env", "smoke", path, "--on", "tpu", "--dry-run")
    assert drawn.code == 0 and "accelerator: v6e" in drawn.out
    assert (
        drawn.out.index("env up")
        < drawn.out.index("submit ")
        < drawn.out.index("env down")
        < drawn.out.index("env audit")
    )
    told = json.loads(cli("env", "smoke", path, "--dry-run", "--json").out)
    assert told["environment"]["name"] == "laboratory-nu-smoke" and told["image"].endswith(
        "/laboratory-nu-smoke/maskwright"
    )
    assert [step["exit_code"] for step in told["steps"]] == [None] * len([*WHOLE, *END]) and told["taken_away"] is None


def test_a_program_is_told_each_command_and_what_became_of_it(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Recorder(env_init=3)
    monkeypatch.setattr(child, "run", run)
    path = tmp_path / "lab.yaml"
    path.write_text(yaml.safe_dump(BASE.model_dump(exclude_defaults=True)))
    words = ("env", "smoke", path, "--container", "image:1", "--yes", "--json")
    result = cli(*words)
    told, error = json.loads(result.out), json.loads(result.err.splitlines()[-1])["error"]
    assert (result.code, error["exit_code"], told["version"], told["image"]) == (3, 3, 1, "image:1")
    assert [step["exit_code"] for step in told["steps"]] == [0, 0, 3, 0, 0] and told["taken_away"] is True
    assert error["where"] == told["steps"][2]["command"] == f"maskwright env init {told['files']}/smoke.yaml"
    run.fails = {"tokenizer train": 2, "env audit": 1}
    assert json.loads(cli(*words).out)["taken_away"] is False


@pytest.mark.long
def test_all_but_the_job_for_real_on_the_fake_cloud(
    cloud: Cloud, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With real Terraform. What runs on machines is stood in for: the seeder by its result, the job by its code."""
    if reason := why_not():
        pytest.skip(reason)
    planned, ran = smoke.plan(BASE, "tpu", "image:1", str(tmp_path / "smoke")), []
    seeder = "compute/projects/lab-proj/zones/us-east5-b/instances/laboratory-nu-smoke-seeder"

    def fill() -> None:
        while not over.is_set():
            if seeder in cloud.resources:
                items = {one["key"]: one["value"] for one in cloud.resources[seeder]["metadata"]["items"]}
                done = {"ok": True, "files": 3, "bytes": 99, "manifest_sha256": "0" * 64, "seconds": 1.0}
                cloud.put(items["maskwright-seed-result"], json.dumps(done))
            time.sleep(0.05)

    def run(words: Sequence[str]) -> int:
        ran.append((" ".join(words), Result(0, "", "") if words[0] == "submit" else cli(*words)))
        if words[0] == "submit":
            assert "compute/projects/lab-proj/zones/us-east5-b/instanceGroupManagers/laboratory-nu-smoke-slice" in (
                cloud.resources
            )
        return ran[-1][1].code

    over = threading.Event()
    with TerraformWorld(tmp_path / "terraform", cloud=cloud.url).served() as world:
        for name, value in {**world.environment(), "XDG_CACHE_HOME": str(tmp_path)}.items():
            monkeypatch.setenv(name, value)
        thread = threading.Thread(target=fill)
        thread.start()
        try:
            smoke.smoke(planned, image=False, run=run)
        finally:
            over.set()
            thread.join()
            for words, result in ran:
                print(f"$ {words}: {result.code}\n{result.out[-1500:]}{result.err[-1500:]}")
    assert [result.code for _, result in ran] == [0] * len(ran)
    assert ran[-1][1].out.startswith("kept, and costs money:\n  bucket lab-proj-maskwright-state")
