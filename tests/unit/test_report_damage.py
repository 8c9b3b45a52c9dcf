"""Runs that ended badly, and the reports of them: a process that was killed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import small_config

from maskwright.core.errors import InputError
from maskwright.data.store import TokenStore
from maskwright.report.page import NOTHING, contents
from maskwright.report.run import read
from maskwright.tasks.pretrain import pretrain
from maskwright.tasks.speedrun.reproduce import Places, reproduce


@pytest.fixture(scope="module")
def whole(store: TokenStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("damage") / "whole"
    pretrain(small_config(store.location, **{"schedule.steps": 4, "schedule.warmup_steps": 1}), str(place))
    return place


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def text_of(run: Path) -> str:
    """All that its page says."""
    return str(contents([read(str(run))], NOTHING, None))


def edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def kill(run: Path) -> None:
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
def test_a_run_that_was_killed_says_so_and_what_the_same_command_does(run: Path, saved: bool) -> None:
    kill(run)
    if not saved:
        shutil.rmtree(run / "checkpoints")
    said = text_of(run)
    assert read(str(run)).look.state == "lost"
    gone = "After step 3 the process was gone without a word, last heard of at 2023-11-14 22:13:20 UTC, and nobody has"
    assert gone in said
    begins = "To do: the same command begins it again, since it has no checkpoint."
    assert ("To do: the same command continues it." if saved else begins) in said
    with pytest.raises(InputError) as error:
        reproduce(str(run), str(run / "again"), Places(None, (), None, ""))
    assert f"the command that started it goes on with it: `maskwright pretrain … --run {run}`" in str(error.value)
