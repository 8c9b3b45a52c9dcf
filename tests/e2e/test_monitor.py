"""`status`, `logs --follow` and `stop` on a real run of two processes, of which one is stopped and killed. All verdicts
on ranks are in unit/test_judge.py."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import warm
from command_line import COMMAND, free_port, maskwright, write_config
from conftest import small_config
from private_network import wait_until

from maskwright.core.folder import Folder
from maskwright.monitor.status import look
from maskwright.run import liveness
from maskwright.run.heartbeat import read_beats

STARTER = """
import os, signal
from maskwright.engines.torch.weights import FlatWeights
from maskwright.training import beats
beats.EVERY_SECONDS, beats.WINDOW_SECONDS = 0.25, 2.0
update = FlatWeights.update
def stops(self, *arguments):
    if os.environ["RANK"] == "1" and os.path.exists("stop"):
        os.unlink("stop")
        os.kill(os.getpid(), signal.SIGSTOP)
    update(self, *arguments)
FlatWeights.update = stops
from maskwright.cli.main import main
main()
"""
"""Rank 1 is stopped where it was asked for by a file: the other, which has made its own update, waits for weights."""


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(liveness, "STALE_SECONDS", 4.0)
    monkeypatch.setattr(liveness, "HUNG_SECONDS", 4.0)


@dataclass
class Team:
    folder: Path
    run: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """The two of the last start."""
    begun: list[Any] = field(default_factory=list)

    def start(self):
        port = free_port()
        self.processes = []
        for rank in range(2):
            several = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "RANK": str(rank)}
            words = ["pretrain", str(self.folder / "run.yaml"), "--run", str(self.run)]
            with open(self.folder / f"rank{rank}.txt", "wb") as said:
                process = warm.Popen(
                    [sys.executable, "-c", STARTER, *words], cwd=self.folder, env={**os.environ, **several}, stderr=said
                )
            self.processes.append(process)
            self.begun.append(process)

    def said(self):
        return "\n".join((self.folder / f"rank{rank}.txt").read_text() for rank in range(2))

    def wait_for(self, condition, seconds=300.0):
        deadline, found = time.monotonic() + seconds, None
        while time.monotonic() < deadline:
            if self.run.exists() and any(self.run.iterdir()):
                found = look(str(self.run))
                if condition(found):
                    return found
            time.sleep(0.05)
        raise AssertionError(f"{found.report() if found else 'no run'}\n{self.said()}")

    def trains(self):
        return self.wait_for(
            lambda found: (
                found.state == "running"
                and verdicts(found) == {0: "fine", 1: "fine"}
                and all(one.beat.doing in ("step", "computing", "waiting") for one in found.ranks)
                and all(one.beat.step > 5 for one in found.ranks)
            )
        )

    def codes(self):
        return [process.wait(timeout=300.0) for process in self.processes]


def verdicts(found):
    return {one.beat.rank: one.verdict for one in found.ranks}


@pytest.fixture
def team(store, tmp_path):
    keys = {"schedule.steps": 100_000, "checkpoint.save_every_steps": 100, "logging.every_steps": 5}
    keys |= {"optimizer.learning_rate": 1e-4}
    (tmp_path / "run.yaml").write_text(small_config(store.location, **keys).model_dump_json())
    made = Team(tmp_path, tmp_path / "run")
    yield made
    for process in made.begun:
        process.kill()
        process.wait()


def test_a_rank_that_is_stopped_then_killed_and_the_log_meanwhile(team):
    said = team.folder / "follower.txt"
    with said.open("wb") as file:
        following = warm.Popen([*COMMAND, "logs", "--follow", str(team.run)], stdout=subprocess.PIPE, stderr=file)
    team.begun.append(following)
    wait_until(lambda: "no run there yet" in said.read_text())
    team.start()
    first = team.trains()
    assert [one.beat.pid for one in first.ranks] == [process.pid for process in team.processes]
    rank_1 = team.processes[1].pid

    (team.folder / "stop").touch()
    found = team.wait_for(lambda found: verdicts(found) == {0: "fine", 1: "hung"})
    assert found.state == "hung" and f"kill -CONT {rank_1}" in found.report()
    printed = json.loads(maskwright("status", team.run, "--json", cwd=team.folder))
    assert printed["state"] == "hung" and printed["ranks"][1]["verdict"] == "hung"
    team.wait_for(lambda found: found.ranks[1].seconds > 5.0)
    # By the files alone, as on another machine, whose clock says when a file is old.
    wait_until(lambda: liveness.hung(read_beats(Folder(str(team.run))), time.time()) == 1)
    os.kill(rank_1, signal.SIGCONT)
    team.trains()

    os.kill(rank_1, signal.SIGKILL)
    found = team.wait_for(lambda found: verdicts(found)[1] == "lost")
    assert f"rank 1 (process {rank_1} on" in found.report()
    assert team.codes() == [75, -signal.SIGKILL]
    found = look(str(team.run))
    assert (found.state, verdicts(found)) == ("stopped", {0: "ended", 1: "lost"})
    assert found.status and found.status.reason == "lost" and found.ranks[0].beat.reason == "lost"

    wait_until(lambda: "for its launcher to start it again" in said.read_text())
    team.start()
    again = team.trains()
    assert again.status and again.status.attempt == 2 and [one.beat.attempt for one in again.ranks] == [2, 2]
    assert "stopped at step" in maskwright("stop", team.run, cwd=team.folder)
    assert team.codes() == [76, 76]
    found = look(str(team.run))
    assert (found.state, verdicts(found)) == ("stopped", {0: "ended", 1: "ended"})
    assert {one.beat.exit for one in found.ranks} == {76}

    out = following.communicate(timeout=120.0)[0].decode()
    assert following.returncode == 76, said.read_text()
    assert out == (team.run / "log.txt").read_text() and "attempt 1: " in out and "attempt 2: " in out


# ---- one process, and folders that are no run -----------------------------------------------------------------------


def test_looking_changes_nothing(store, tmp_path):
    write_config(tmp_path / "run.yaml", store.location, steps=20)
    maskwright("pretrain", "run.yaml", "--run", "run", cwd=tmp_path)
    (tmp_path / "run" / "lock").unlink()

    def everything():
        return {str(path): path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    before = everything()
    maskwright("status", "run", cwd=tmp_path)
    maskwright("logs", "run", cwd=tmp_path)
    assert everything() == before


def test_ctrl_c_ends_the_following_quietly(tmp_path):
    process = warm.Popen(
        [*COMMAND, "logs", "--follow", "run"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr and "no run there yet" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=120.0)
    finally:
        process.kill()
    assert (process.returncode, out, said) == (130, "", "")
