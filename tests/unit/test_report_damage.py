"""Runs that ended badly, and their reports: damaged records, and a process that was killed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import small_config

from maskwright.cli import main
from maskwright.report.page import contents
from maskwright.report.run import CONTENTS, METRICS, read
from maskwright.tasks.pretrain.run import pretrain


@pytest.fixture(scope="module")
def whole(store, tmp_path_factory):
    place = tmp_path_factory.mktemp("damage") / "whole"
    pretrain(small_config(store.location, **{"schedule.steps": 4, "schedule.warmup_steps": 1}), str(place))
    return place


@pytest.fixture
def run(whole, tmp_path):
    """A copy to be damaged."""
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def text_of(run):
    """All that its page says."""
    return str(contents([read(str(run))]))


def edit(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def kill(run):
    """Makes it the run of a process that a signal killed at step 3."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    edit(run / "status.json", phase="training", step=3, of=100, exit=None, message="", saved=False, heartbeat=1.7e9)
    (beat,) = (run / "processes").glob("*.json")
    edit(beat, doing="computing", exit=None, pid=gone.pid)
    for name in ("history.jsonl", "metrics.jsonl"):
        lines = [json.loads(line) for line in (run / name).read_text().splitlines()]
        kept = [json.dumps(one) for one in lines if one["step"] <= 3 and one.get("event") in (None, "started")]
        (run / name).write_text("\n".join(kept) + "\n")


@pytest.mark.parametrize("saved", [False, True])
def test_a_run_that_was_killed_says_so_and_what_the_same_command_does(run, saved):
    kill(run)
    edit(run / "config.resolved.json", steps=100)
    if not saved:
        shutil.rmtree(run / "checkpoints")
    said = text_of(run)
    assert read(str(run)).report.state == "lost"
    gone = "After step 3 the process disappeared without a message, last heartbeat at 2023-11-14 22:13:20 UTC"
    assert gone in said
    begins = "To do: the same command begins it again, since it has no checkpoint."
    assert ("To do: the same command continues it." if saved else begins) in said


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("status.json", b"{", "is damaged"),
        (METRICS, b"\x00\xff no line", "has no whole line"),
        (METRICS, None, "has no whole line"),
        ("history.jsonl", b"no record\n", "has no whole line"),
        ("data.json", b"[]", "is damaged"),
        ("environment.json", b"{", "is damaged"),
        ("checkpoints/step-00000004/MANIFEST.json", b"{", "is damaged"),
    ],
)
def test_a_damaged_record_is_named_on_the_page_and_in_the_terminal(run, name, content, what, capfd):
    assert read(str(run)).damaged == ()
    if content is None:
        (run / name).unlink()
    else:
        (run / name).write_bytes(content)
    capfd.readouterr()
    assert main.run(["report", str(run), "--to", f"{run}.html"]) == 0
    lacks = CONTENTS[Path(name).name]
    told = f"{run}/{name}: {what}; the page lacks {lacks}. Fix: restore the file, and repeat the command"
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert line == f"warning: {told}"
    assert f"{told}." in text_of(run)
    lost = name == "status.json"
    assert (read(str(run)).state, read(str(run)).of) == ("not known" if lost else "done", 4)
    assert text_of(run).count("Fix: ") == 1 and "continue from" not in text_of(run)


def test_without_its_state_a_run_has_not_ended_before_its_last_step(run):
    kill(run)
    (run / "status.json").write_text("{")
    (run / "checkpoints/step-00000004").rename(run / "checkpoints/step-00000003")
    found = read(str(run))
    assert (found.state, found.step, found.of) == ("not known", 3, 4)


def test_lines_that_are_damaged_are_counted(run):
    with open(run / METRICS, "a") as file:
        file.write('garbage\n{"loss": 1.0}\n{"step": 5, "lo')
    edit(run / "status.json", phase="training")  # so the last line may be under way
    (line,) = read(str(run)).damaged
    assert "metrics.jsonl: 2 of " in line and " lines are damaged; the page lacks some points of the curves. " in line
    edit(run / "status.json", phase="done")
    assert "metrics.jsonl: 3 of " in read(str(run)).damaged[0]
