"""How the terraform binary is run: with a script in its place that notes what it was given."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from maskwright.cloud.environment import build_environment
from maskwright.cloud.google.rest import Google
from maskwright.cloud.provision.terraform_cli import Terraform, _changes

ENVIRONMENT = {"name": "lab1", "project": "lab-proj", "zone": "us-east5-b"}
BINARY = """#!/bin/bash
case $1 in
  init) env >"$NOTES/environment"; [ -e .terraform.lock.hcl ] || echo "hashes $$" >.terraform.lock.hcl ;;
  plan) touch next.tfplan; exit 2 ;;
  show) echo '{"resource_changes": []}' ;;
  apply)
    trap 'echo stopping; told=yes' INT
    echo creating
    echo yes >"$NOTES/begun"
    # Only `wait` is interrupted: bash forgets a SIGINT that comes while it waits for another program.
    for ((turn = 0; turn < TURNS; turn++)); do sleep 0.1 & wait $!; echo still creating; [ -z "$told" ] || break; done
    echo "${told:-undisturbed}" >"$NOTES/saved" ;;
esac
"""
RUN = """
import signal
from maskwright.cli.main import stopped_by
from maskwright.core.signals import ending, raise_on
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup, or in the background
raise_on(ending(), stopped_by)
from maskwright.cloud.environment import build_environment
from maskwright.cloud.google.rest import Google
from maskwright.cloud.provision.terraform_cli import Terraform
from maskwright.cloud.google.rest import Google
Google("lab-proj")
made = Terraform(build_environment({"name": "lab1", "project": "lab-proj", "zone": "us-east5-b"}, ""))
with made.ready():
    made.apply(made.plan({}))
"""


@pytest.fixture
def notes(cloud, tmp_path, monkeypatch):
    cloud.put("gs://lab-proj-maskwright-state/made", "")
    Google("lab-proj")  # gives gcsfs the token
    binary = tmp_path / "bin" / "terraform"
    binary.parent.mkdir()
    binary.write_text(BINARY)
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", f"{binary.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NOTES", str(tmp_path))
    monkeypatch.setenv("TURNS", "10")
    return tmp_path


def appears(path):
    until = time.monotonic() + 120
    while not path.exists() or not (text := path.read_text()):
        assert time.monotonic() < until, f"{path} does not appear"
        time.sleep(0.02)
    return text


@pytest.mark.parametrize(
    ("number", "said", "turns"), [(signal.SIGKILL, "undisturbed", "10"), (signal.SIGHUP, "yes", "200")]
)
def test_terraform_saves_the_state_when_we_are_killed(notes, number, said, turns, monkeypatch):
    """It must neither die of a pipe that nobody reads nor, when the terminal goes, be left to run on unasked."""
    monkeypatch.setenv("TURNS", turns)
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen([sys.executable, "-c", RUN], cwd=root, stderr=subprocess.PIPE) as ours:
        appears(notes / "begun")
        ours.send_signal(number)
        assert appears(notes / "saved").strip() == said


def test_what_is_left_in_the_work_folder(notes, monkeypatch):
    monkeypatch.setenv("TF_CLI_ARGS_apply", "-lock=false")
    monkeypatch.setenv("TF_VAR_name", "other")
    terraform = Terraform(build_environment(ENVIRONMENT, ""))
    folder = Path(terraform.folder)
    folder.mkdir(parents=True)
    old = folder / "of_an_older_version.tf"
    old.write_text("")
    with terraform.ready():
        terraform.plan({})
        assert (folder / "next.tfplan").exists() and not old.exists()
    assert not list(folder.glob("*.tfplan")), "it holds what the state holds"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    given = (notes / "environment").read_text()
    assert "lock=false" not in given and "TF_VAR_name" not in given


def test_all_users_run_the_provider_of_the_first(notes, cloud, monkeypatch):
    """The hashes that the first `init` wrote are beside the state, and each later one has to agree with them."""
    found = []
    for user in ("ada", "grace"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(notes / user))
        terraform = Terraform(build_environment(ENVIRONMENT, ""))
        with terraform.ready():
            found.append((Path(terraform.folder) / ".terraform.lock.hcl").read_text())
    (kept,) = [name for _, name in cloud.objects if name.startswith("env/lab1/terraform-")]
    assert found[0] == found[1] == cloud.text(f"gs://lab-proj-maskwright-state/{kept}")


def test_what_was_replaced_already_loses_nothing_more():
    disk = {"address": "google_compute_disk.data[0]", "type": "google_compute_disk"}
    entries = [{**disk, "change": {"actions": ["delete"], "before": {}}, **more} for more in ({}, {"deposed": "a1b2"})]
    assert [change.loses_data for change in _changes({"resource_changes": entries})] == [True, False]
