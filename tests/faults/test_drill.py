"""The drills pass, a save withstands every fault, and each check sees what it is for: it fails with worse code."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import save_faults
from command_line import maskwright, write_config

from maskwright.core import storage
from maskwright.core.errors import CheckpointError
from maskwright.data.store import TokenStore
from maskwright.engines.base import TrainState
from maskwright.training import checkpoint

# Another test of this process may have started JAX, which warns of every fork. The child writes files and ends.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")


@pytest.mark.long
def test_every_drill_passes(store: TokenStore, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "store").symlink_to(store.location)
    write_config(tmp_path / "run.yaml", "data/store")  # relative, as in the recipes
    found = json.loads(maskwright("drill", "run.yaml", "--work", "work", "--json", cwd=tmp_path))
    assert len(found["results"]) >= 19 and all(good for _, _, good in found["results"])
    seen = {fault: what for fault, what, _ in found["results"]}
    assert "bit-identical" in seen["all of this, against the job left alone"]
    maskwright("drill", "run.yaml", "--work", "work", cwd=tmp_path, code=2)


SAVES = [fault for fault, _ in save_faults.drills("")]


def drill(folder: Path, name: str) -> str:
    return next(action for fault, action in save_faults.drills(str(folder)) if name in fault)()


@pytest.mark.long
@pytest.mark.parametrize("fault", SAVES)
def test_a_save_meets_a_fault_at_each_of_its_file_operations(tmp_path: Path, fault: str) -> None:
    seen = drill(tmp_path, fault)
    assert "kill" not in fault or int(seen.split()[0]) > 20


def manifest_first(target: str, state: TrainState, record: dict[str, Any]) -> None:
    os.makedirs(target)
    storage.write_json(os.path.join(target, checkpoint.MANIFEST), {"format": checkpoint.FORMAT, "files": {}})
    for name in checkpoint.FILES:
        Path(target, name).write_bytes(b"x")


def in_place(target: str, state: TrainState, record: dict[str, Any]) -> None:
    """A save that begins with removing the one before."""
    shutil.rmtree(os.path.join(os.path.dirname(target), "step-00000010"), ignore_errors=True)
    real_write(target, state, record)


real_write = checkpoint._write


@pytest.mark.parametrize("worse", [manifest_first, in_place])
def test_a_worse_save_fails_the_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worse: Any) -> None:
    monkeypatch.setattr(checkpoint, "_write", worse)
    with pytest.raises((AssertionError, CheckpointError), match=r"no checkpoint is left|every checkpoint is damaged"):
        drill(tmp_path, "kill -9")


def test_leftovers_of_a_kill_fail_the_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_sweep", lambda folder: None)
    with pytest.raises(AssertionError, match="left"):
        drill(tmp_path, "kill -9")


def test_a_load_that_does_not_check_fails_the_damages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "load", lambda path: (save_faults.state(int(path[-8:])), {}))
    with pytest.raises(AssertionError, match="step 20 is newest"):
        drill(tmp_path, "damaged")


def test_a_changed_bit_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = checkpoint.load

    def loaded(path: str) -> Any:
        state, record = load(path)
        state.parameters["b.c"] = np.nextafter(state.parameters["b.c"], np.float32(9))
        return state, record

    monkeypatch.setattr(checkpoint, "load", loaded)
    with pytest.raises(AssertionError, match=r"b.c of step \d+ is changed"):
        drill(tmp_path, "disk full")
