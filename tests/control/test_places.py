"""The places to run: their options, what each refuses, and how a run in each is written."""

import dataclasses
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.main import get_command

from maskwright.cli import places
from maskwright.cli.main import app
from maskwright.cloud.vertex.request import TPU_KINDS
from maskwright.core.errors import InputError, StoppedEarly
from maskwright.launch.ray import submit as ray
from maskwright.launch.schedulers import slurm
from maskwright.launch.target import Training, submit
from maskwright.launch.tpu_vm import TpuSlice
from maskwright.machine.tpus import TPUS
from maskwright.processes import child
from maskwright.processes.child import FinetuneCommand

MOST_OPTIONS = dict.fromkeys(places.PLACES, 23) | {"kubernetes": 32}
"""Of one place. A cluster of Kubernetes has many owners' habits."""
CHOICES = {"kind", "via", "strategy", "target"}
SHARED = "data: {store: /shared/store}\nschedule: {steps: 10}\n"
"""YAML of a run whose store all machines see."""


@pytest.mark.parametrize("name", places.PLACES)
def test_a_place_has_few_options_and_each_says_what_it_is(name):
    group = get_command(app).commands["submit"]
    parameters = group.get_command(None, name).params
    shown = [one for one in parameters if one.param_type_name == "option" and not one.hidden and one.name != "help"]
    assert 8 <= len(shown) <= MOST_OPTIONS[name], [one.name for one in shown]
    for one in shown:
        assert one.help[0].isupper() and one.help.rstrip().endswith((".", ")")), one.name
        assert one.metavar or one.is_flag or one.name in CHOICES, one.name
    assert {one.name for one in parameters if getattr(one, "hidden", False)} == {"simulated_gpus", "b_size", "datapath"}
    required = {one.name for one in parameters if one.required}
    own = {field.name for field in dataclasses.fields(places.place(name)) if field.default is dataclasses.MISSING}
    assert required == {"config", "run"} | own


def test_the_page_of_ways_has_the_kinds_of_tpu():
    page = (Path(__file__).resolve().parents[2] / "docs" / "where-to-run.md").read_text(encoding="utf-8")
    kinds = re.findall(r"^\| .*?`(?:submit|env) (\w+).*?` \| (v\d[\w, ]*) \|", page, re.MULTILINE)
    gke = [kind for kind, tpu in TPUS.items() if tpu.gke_label]
    by_tpu_api = [kind for kind, tpu in TPUS.items() if tpu.type_prefix]
    assert {way: row.split(", ") for way, row in kinds} == {
        "vertex": list(TPU_KINDS), "kubernetes": gke, "up": gke, "slice": by_tpu_api,
    }  # fmt: skip


def test_what_is_required_is_asked_for(cli):
    for words, missing in (
        (["slurm", "a.yaml"], "--run"),
        (["slice", "pod"], "CONFIG"),
        (["vertex", "a.yaml", "--run", "/r/a", "--image", "i"], "--region"),
    ):
        result = cli("submit", *words)
        assert result.code == 2 and f": {missing} is missing. Fix: give {missing}" in result.err


def test_fine_tuning_goes_to_the_same_places(cli, tmp_path, monkeypatch):
    """And every file that it reads has to be there."""
    file = tmp_path / "news.yaml"
    file.write_text("data: {train: /shared/train.csv}\nmodel: {init_from: /shared/model}\n")
    result = cli("submit", "slurm", file, "--run", "/shared/a", "--dry-run")
    assert result.code == 0 and "finetune" in result.out and " pretrain " not in result.out
    result = cli("submit", "slurm", file, "--run", "/shared/a", "--dry-run", "--from", "/shared/b@5")
    assert result.code == 2 and "--from: is for pretraining" in result.err
    pod = ["submit", "kubernetes", file, "--run", "/runs/a", "--image", "i", "--mount", "runs:/runs"]
    result = cli(*pod, "--dry-run")
    assert result.code == 2 and "data.train: /shared/train.csv is not in a pod" in result.err
    result = cli(*pod, "--mount", "data:/shared", "--dry-run")
    assert result.code == 0 and "- finetune\n" in result.out and "- pretrain\n" not in result.out
    file.write_text("model: {init_from: /shared/model}\n")
    monkeypatch.setattr(TpuSlice, "describe", lambda place: ("READY", "v4-16", 2))
    labels = ["--run", "/shared/a", "--set", "data.train=/shared/train.csv", "--dry-run"]
    for where in (["slurm", file], ["slice", "pod", "not-here.yaml"], ["slice", "pod", "gs://b/a.yaml"]):
        result = cli("submit", *where, *labels)
        assert result.code == 0 and " finetune " in result.out, result.err


def document(out):
    found = json.loads(out)
    assert found.pop("version") == 1
    return found


@pytest.mark.parametrize(
    ("place", "words", "where"),
    [
        ("ray", ["CONFIG", "--address", "http://127.0.0.1:9", "--dry-run"], "http://127.0.0.1:9"),
        ("slurm", ["CONFIG", "--dry-run"], "sbatch"),
        ("kubernetes", ["CONFIG", "--image", "i", "--mount", "runs:/shared", "--dry-run"], "kubectl"),
    ],
)
def test_a_program_is_told_what_would_be_submitted(cli, tmp_path, place, words, where):
    config = tmp_path / "run.yaml"
    config.write_text(SHARED)
    words = ["submit", place, *(str(config) if word == "CONFIG" else word for word in words), "--run", "/shared/a"]
    shown, told = cli(*words), cli(*words, "--json")
    assert shown.code == told.code == 0, told.err
    found = document(told.out)
    assert found.pop("shown").strip() == shown.out.strip() != ""
    rest = {"run": "/shared/a", "job": None, "follow": None, "end": None}
    assert found == {"place": place, "submitted": False, "where": where, **rest}


def test_a_program_is_told_the_job_before_it_is_followed(cli, tmp_path, monkeypatch):
    """And the job's own lines are on stderr. An error is a document too."""
    run, config = str(tmp_path / "a"), tmp_path / "run.yaml"
    config.write_text(SHARED)
    monkeypatch.setattr(slurm, "_sbatch", lambda text: "4711")
    told = cli("submit", "slurm", config, "--run", run, "--name", "lab", "--json")
    commands = {"follow": "tail -F lab-4711.log", "end": "scancel 4711"}
    taken = {"place": "slurm", "submitted": True, "where": "sbatch", "run": run, "job": "4711", **commands}
    assert (told.code, document(told.out)) == (0, taken | {"shown": "4711"})

    def follow(head, name):
        print("host 0 | step 1")
        raise StoppedEarly("the same submission continues the run", where=f"ray:{name}")

    monkeypatch.setattr(ray.Ray, "_head", SimpleNamespace(address="http://head"))
    monkeypatch.setattr(ray.Ray, "_send", lambda place, command: "a-1")
    monkeypatch.setattr(ray, "follow_to_its_end", follow)
    told = cli("submit", "ray", config, "--run", run, "--follow", "--json")
    commands = {"follow": "maskwright logs ray:a-1 --follow", "end": "maskwright stop ray:a-1"}
    taken = {"place": "ray", "submitted": True, "where": "http://head", "run": run, "job": "ray:a-1", **commands}
    assert (told.code, document(told.out)) == (75, taken | {"shown": ""})
    *_, line, error = told.err.splitlines()
    assert line == "host 0 | step 1" and json.loads(error)["error"]["exit_code"] == 75


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["logs", "ray:a", "--follow", "--lines", "3"], "--lines: is for a run directory"),
        (["stop", "ray:a", "--checkpoint"], "--checkpoint: is for a run directory"),
        (["stop", "vertex:p/us-central1/1", "--checkpoint"], "--checkpoint: is for a run directory"),
        (["status", "runs/a", "--address", "http://127.0.0.1:1"], "--address: is for a Ray job"),
        (["status", "ray:../a"], "ray:ID: 'ray:../a' is not a Ray job"),
        (["status", "kubernetes:", "--address", "http://127.0.0.1:1"], "--address: is for a Ray job"),
    ],
)
def test_what_means_nothing_at_a_target_is_refused_once(cli, words, complaint):
    result = cli(*words)
    assert result.code == 2 and result.error.startswith(complaint), result.err


@pytest.mark.parametrize(
    ("at_once", "given", "policy"), [(1, None, "None"), (2, None, "passive"), (2, "active", "active")]
)
def test_threads_of_commands_that_share_the_cores_sleep_while_they_wait(tmp_path, monkeypatch, at_once, given, policy):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if given:
        monkeypatch.setenv("OMP_WAIT_POLICY", given)
    words = [sys.executable, "-c", "import os; print(os.environ.get('OMP_WAIT_POLICY'))"]
    monkeypatch.setattr(child, "python_module", lambda *_: words)
    logs = [str(tmp_path / f"{name}.log") for name in "ab"]
    ends = child.run_side_by_side([FinetuneCommand("t.yaml", "run", (), log) for log in logs], at_once)
    assert sorted(ends) == [(0, 0), (1, 0)]
    assert [Path(log).read_text().strip() for log in logs] == [policy] * 2


def test_a_program_submits_as_the_command_line_does(tmp_path, capsys):
    (tmp_path / "a.yaml").write_text("data: {store: /data/s}\nschedule: {steps: 1}\n")
    command = Training(str(tmp_path / "a.yaml"), "/runs/a")
    submit(places.place("ray")(follow=True), command, dry_run=True)
    assert "entrypoint   exec maskwright pretrain a.yaml --run /runs/a\n" in capsys.readouterr().out
    for secret in (command.setting("a=https://me:hunter2@host"), command):
        place = places.place("slice")("pod", setup=None if secret is not command else "curl https://me:hunter2@host")
        with pytest.raises(InputError, match="holds a secret"):
            submit(place, secret, dry_run=True)
