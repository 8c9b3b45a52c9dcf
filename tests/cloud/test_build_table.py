"""The older set-up's table of actions: each row's commands, and what is in no row."""

import itertools
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from maskwright.cli.main import run
from maskwright.cloud.environment import read_environment
from maskwright.cloud.old_setup import build_table
from maskwright.cloud.old_setup.build_table import commands, row_of
from maskwright.core.errors import InputError, StoppedEarly
from maskwright.processes import child
from maskwright.processes.child import CommandSequence

D, T = "default", "true"
IMAGE, UP, RESEED = "image e.yaml --yes", "env up e.yaml --yes", "env seed e.yaml --replace --yes"
SLICE, GROUP = "env down e.yaml --only slice --yes", "env down e.yaml --only group --yes"
ROWS = [
    (("initialize", D, D, D), ["env init e.yaml"]),
    (("initialize", D, D, T), ["env init e.yaml", IMAGE, "env seed e.yaml --yes"]),
    (("update", D, D, T), [IMAGE, RESEED]),
    (("update", D, T, T), [IMAGE, RESEED, UP]),
    (("destroy", D, D, T), ["env down e.yaml --only disk --delete-data --yes"]),
    (("create", D, D, D), [IMAGE, UP]),
    (("update", T, D, D), [IMAGE, UP]),
    (("update", T, D, T), [IMAGE, UP]),
    (("update", T, T, D), [IMAGE, UP]),
    (("update", T, T, T), [IMAGE, UP]),
    (("update", D, T, D), [IMAGE, UP]),
    (("destroy", T, D, D), [SLICE]),
    (("destroy", T, D, T), [SLICE]),
    (("destroy", D, T, D), [GROUP]),
    (("destroy", D, T, T), [GROUP]),
    (("destroy", T, T, D), [SLICE, GROUP]),
    (("destroy", T, T, T), [SLICE, GROUP]),
    (("destroy", D, D, D), ["env down e.yaml --yes", "env down e.yaml --only nfs --delete-data --yes"]),
]


@pytest.mark.parametrize(("asked", "listed"), ROWS, ids=[",".join(asked) for asked, _ in ROWS])
def test_row_runs_its_commands(asked, listed):
    found, _ = commands(row_of(*asked), "e.yaml", ["slice", "group"])
    assert [" ".join(words) for words in found] == listed


def test_everything_else_is_refused_with_the_table(capsys):
    known = {asked for asked, _ in ROWS}
    asked = set(itertools.product(("initialize", "create", "update", "destroy", "default", "Create"), *[(D, T)] * 3))
    assert known < asked
    for one in sorted(asked - known):
        with pytest.raises(InputError) as caught:
            row_of(*one)
        told = "`maskwright image`" if one[0] == D else "is in no row of the table"
        assert told in str(caught.value)
        assert "_BUILD_ACTION" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["True", "yes", "1", "tru"])
def test_flags_are_true_or_left_out(value):
    with pytest.raises(InputError, match="is not true"):
        row_of("update", value, D, D)
    assert row_of("update", "false", "", T) == row_of("update", D, D, T)


@pytest.mark.parametrize(
    ("asked", "parts", "listed", "told"),
    [
        (("update", D, T, D), ["slice"], [IMAGE, UP], "there is no group, as jobs run on the slice's own hosts"),
        (("update", T, D, D), ["group"], [IMAGE, UP], "there is no slice, so _TPU=true"),
        (("destroy", D, T, D), ["slice"], [], "there is no group"),
        (("destroy", T, T, D), ["slice"], [SLICE], "there is no group"),
        (("destroy", T, T, D), ["group"], [GROUP], "there is no slice"),
    ],
)
def test_a_part_that_the_yaml_lacks_is_said(asked, parts, listed, told):
    found, remarks = commands(row_of(*asked), "e.yaml", parts)
    assert [" ".join(words) for words in found] == listed and told in " ".join(remarks)


def test_refilling_has_a_substitution(tmp_path, capsys):
    path = tmp_path / "e.yaml"
    path.write_text(LAB)
    words = ["env", "build", str(path), "--disk", "true", "--dry-run", "--action"]
    assert run([*words, "update"]) == 0
    shown = capsys.readouterr()
    image = f"maskwright image {path} --yes\n"
    assert shown.out == f"{image}maskwright env seed {path} --replace --yes\n" and "_REFILL=true fills a" in shown.err
    assert run([*words, "update", "--refill", "true"]) == 0
    assert capsys.readouterr().out == f"{image}maskwright env seed {path} --replace --yes --again\n"
    assert run([*words, "destroy", "--refill", "true"]) == 2
    assert "_REFILL: is for update with _DISK=true" in capsys.readouterr().err
    assert run([*words, "destroy", "--tpu", "true", "--json"]) == 0
    shown = capsys.readouterr()
    step = {"command": f"maskwright env down {path} --only slice --yes", "exit_code": None, "seconds": None}
    assert json.loads(shown.out)["steps"] == [step] and "_DISK=true has no effect in this row" in shown.err


def test_create_needs_something_to_create_and_names_who_builds():
    row = row_of("create", D, D, D)
    assert commands(row, "e.yaml", ["group"], "me@lab-proj")[0][0][-2:] == ["--service-account", "me@lab-proj"]
    with pytest.raises(InputError, match="neither slice nor group"):
        commands(row, "e.yaml", [])


def test_words_are_ones_that_the_command_line_knows():
    from typer.main import get_command

    from maskwright.cli.main import app

    for row in build_table.ROWS:
        for command in row.commands:
            *path, _ = (words := command.split())[: words.index("ENV") + 1]
            known_by = get_command(app)
            for name in path:
                known_by = known_by.commands[name]
            options = words[len(path) + 1 :]
            known = {option for parameter in known_by.params for option in parameter.opts}
            assert {word for word in options if word.startswith("--")} <= known, command


LAB = "name: lab1\nproject: lab-proj\nzone: us-east5-b\nslice: {accelerator: v6e, topology: 4x4}\n"


def test_first_failure_ends_the_build_with_its_code(tmp_path, monkeypatch, capsys):
    codes = iter([0, 3])
    monkeypatch.setattr(child, "run", lambda words: next(codes))
    path = tmp_path / "e.yaml"
    path.write_text(LAB)
    assert run(["env", "build", str(path), "--action", "create", "--json"]) == 3
    shown = capsys.readouterr()
    told, error = json.loads(shown.out), json.loads(shown.err.splitlines()[-1])["error"]
    image = read_environment(str(path)).built_image
    assert (told["version"], told["environment"], told["image"]) == (1, str(path), image)
    assert [step["exit_code"] for step in told["steps"]] == [0, 3]
    assert error["where"] == told["steps"][1]["command"] and told["steps"][1]["seconds"] >= 0
    codes = iter([75])
    assert run(["env", "build", str(path), "--action", "create"]) == 75
    assert "the commands after it are not run" in capsys.readouterr().err


def test_page_has_every_row():
    page = (Path(__file__).parents[2] / "deploy" / "older-setup.md").read_text()
    for row in build_table.ROWS:
        assert " · ".join(f"`{command}`" for command in row.commands) in page, row


def test_a_build_that_is_stopped_lets_its_command_clean_up(tmp_path, monkeypatch):
    """A seeding machine would be left, and a lock on the state. One that is not stopped gives its code."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexit 7\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    assert child.run(["seed", "lab.yaml"]) == 7
    program.write_text(
        f"#!/bin/bash\ntrap 'sleep 0.5; echo yes >{tmp_path}/clean; exit 75' TERM\necho yes >{tmp_path}/begun\n"
        "for _ in $(seq 100); do sleep 0.1; done\n"
    )

    def stop(number, frame):
        raise StoppedEarly("by SIGTERM")

    def stop_once_begun():
        while not (tmp_path / "begun").exists():  # its trap is set before
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGALRM)

    steps = CommandSequence()
    before = signal.signal(signal.SIGALRM, stop)
    thread = threading.Thread(target=stop_once_begun, daemon=True)
    thread.start()
    try:
        with pytest.raises(StoppedEarly):
            build_table.run([["env", "seed", "lab.yaml"]], steps)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert (tmp_path / "begun").exists() and (tmp_path / "clean").exists()
    assert [(step.command, step.exit_code) for step in steps.ran] == [("maskwright env seed lab.yaml", None)]
