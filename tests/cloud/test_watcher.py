"""Watchers at work on a folder in the place of a bucket, and on machines that the test gives and takes."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
from google_cloud.machinery import Machinery

from maskwright.cloud.jobs import lease as lease_module
from maskwright.cloud.jobs import watcher as module
from maskwright.cloud.jobs.lease import WatcherLease
from maskwright.cloud.jobs.policy import Action
from maskwright.cloud.jobs.watcher import HISTORY, JobLimits, PermanentRefusal, Watcher
from maskwright.core.errors import Locked, MaskwrightError
from maskwright.core.folder import Folder
from maskwright.launch.bucket.leader import Leader
from maskwright.launch.target import JobSpec, Training

Killed = KeyboardInterrupt
"""What no code under test catches, as SIGKILL."""


@dataclass
class Scene:
    folder: Folder
    machinery: Machinery
    now: float = 1_000_000.0
    watcher: Watcher | None = None

    def watching(self, limits: JobLimits | None = None) -> Watcher:
        self.watcher = Watcher(self.folder, self.machinery, limits, clock=lambda: self.now)
        return self.watcher

    def turn(self, seconds: float = 10.0) -> Action:
        """Hosts that run have agents that beat."""
        assert self.watcher
        self.now += seconds
        for worker in range(self.machinery.running):
            self.folder.put_json(
                f"reports/hosts/host-{worker}.json", {"beat": int(self.now), "submission": 1, "idle": False}
            )
        return self.watcher.poll()

    def until(self, kind: str, turns: int = 60) -> Action:
        for _ in range(turns):
            action = self.turn()
            if action.kind == kind:
                return action
        raise AssertionError(f"never {kind}: {self.machinery.acts}")

    def result(self, code: int) -> None:
        self.folder.put_json("results/0001.json", {"code": code, "cause": "", "report": [], "time": 0.0})


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(lease_module, "SILENT_SECONDS", 0.0)
    folder = Folder(f"file://{tmp_path}/jobs")
    folder.put("job.json", JobSpec(Training("x", "r"), grace_seconds=30.0).to_json().encode())
    return Scene(folder, Machinery())


def test_preempted_group_is_made_again_there_then_elsewhere(scene: Scene) -> None:
    scene.watching()
    scene.until("make")
    assert scene.turn().why == "all run"
    scene.machinery.running = 0  # taken away
    assert "preempted" in scene.turn().why
    scene.machinery.dry = {0}
    scene.until("make")
    scene.until("make")
    assert scene.machinery.acts == ["up 0", "down", "up 0", "down", "up 1"]
    assert scene.turn().why == "all run"
    scene.result(0)
    assert scene.turn() == Action("end", "", code=0) and scene.machinery.place == 1


@pytest.mark.parametrize("point", ["down", "up"])
def test_watcher_killed_in_an_act_is_followed_by_one_that_goes_on(scene: Scene, point: str) -> None:
    scene.watching()
    scene.until("make")
    scene.turn()
    scene.machinery.running = 0
    scene.turn()
    scene.machinery.fails = [None, Killed()] if point == "down" else [None, None, Killed()]  # the first is repair's
    with pytest.raises(Killed):
        scene.until("make")
    before = scene.folder.get_json(HISTORY)
    assert before and before["phase"] == "making"
    scene.watching()
    scene.until("make")
    assert scene.machinery.running == 2 and scene.turn().kind == "nothing"


def test_held_lock_is_waited_for_and_counts_as_no_try(scene: Scene) -> None:
    scene.machinery.fails = [Locked("another run holds the state", fix="wait") for _ in range(5)]
    scene.watching()
    scene.until("make")
    assert scene.machinery.acts == ["up 0"] and not scene.machinery.fails
    history = scene.folder.get_json(HISTORY)
    assert history and (history["tries"], history["rounds"], history["placement"]) == (0, 0, 0)


def test_failing_api_is_tried_again_with_waits_and_a_refusal_is_the_jobs_end(scene: Scene) -> None:
    scene.machinery.fails = [
        MaskwrightError("the API fails", fix="x"),
        PermanentRefusal("may not", fix="ask for the role"),
    ]
    scene.watching()
    assert "the API fails" in scene.turn().why
    assert "the API fails" in scene.turn().why  # and now it waits
    assert scene.until("end").code == 1
    result = scene.folder.get_json("results/0001.json")
    assert result and result["code"] == 1 and "may not" in result["cause"]


def test_host_that_refuses_ends_the_job_by_its_line(scene: Scene) -> None:
    scene.watching()
    scene.until("make")
    scene.folder.put_json(
        "reports/health/m-1.json", {"step": "agent", "ok": False, "what": "the agent ended with 1: oh"}
    )
    assert scene.turn().kind == "nothing"
    line = "no TPU: /dev/accel0 is absent. Fix: image"
    scene.folder.put_json("reports/health/m-1.json", {"step": "devices", "ok": False, "final": True, "what": line})
    action = scene.until("end")
    assert action.code == 1 and f"m-1: devices: {line}" in action.why
    # It stopped itself meanwhile. A new submission gets new hosts, once.
    scene.machinery.running, scene.machinery.stopped = 0, ("m-0", "m-1")
    scene.folder.put_json("reports/idle/m-1.json", {"what": "start-up failed"})
    scene.folder.put("job.json", JobSpec(Training("x", "r"), submission=2).to_json().encode())
    assert scene.turn().kind == "make" and scene.machinery.acts == ["up 0", "down", "up 0"]


def test_hosts_that_stopped_themselves_are_made_again_when_there_is_a_job(scene: Scene) -> None:
    scene.machinery.place, scene.machinery.stopped = 0, ("m-0", "m-1")
    for name in scene.machinery.stopped:
        scene.folder.put_json(f"reports/idle/{name}.json", {"what": "no job"})
    scene.result(0)
    scene.watching()
    assert scene.turn().kind == "end" and scene.machinery.acts == []
    scene.folder.put("job.json", JobSpec(Training("x", "r"), submission=2).to_json().encode())
    assert scene.turn().kind == "make" and scene.machinery.acts == ["down", "up 0"]


def test_group_gets_back_the_hosts_it_lost_and_old_words_do_not_count(scene: Scene) -> None:
    scene.machinery.repairs = True
    scene.watching()
    scene.until("make")
    scene.machinery.running, scene.machinery.stopped = 1, ("m-1",)
    scene.until("make")
    assert scene.machinery.acts == ["up 0", "repair"] and scene.turn().why == "all run"
    for name in ("m-0", "m-1"):  # they could not start, and stopped themselves
        scene.folder.put_json(
            f"reports/health/{name}.json", {"step": "mounts", "ok": False, "final": True, "what": "no NFS"}
        )
        scene.folder.put_json(f"reports/idle/{name}.json", {"what": "start-up failed"})
    scene.machinery.running, scene.machinery.stopped = 0, ("m-0", "m-1")
    assert "m-0: mounts: no NFS" in scene.until("end").why
    scene.folder.put("job.json", JobSpec(Training("x", "r"), submission=2).to_json().encode())
    assert scene.turn().kind == "make" and scene.turn().why == "all run"


def test_budget_saves_then_takes_down_even_when_nothing_answers(scene: Scene) -> None:
    JobLimits(1, max_usd=1.0, rates=(10.0, 10.0)).store(scene.folder)
    scene.watching()
    asked = scene.until("ask")  # 20 USD an hour: after three minutes
    assert "--max-cost 1 is reached" in asked.why and scene.folder.get_json("stop.json") == {"submission": 1}
    history = scene.folder.get_json(HISTORY)
    assert history and 1.0 <= history["usd"] <= 1.0 + 20.0 * 10 / 3600
    end = scene.until("end")
    assert end.code == 75 and scene.machinery.acts == ["up 0", "down"] and scene.machinery.place is None
    result = scene.folder.get_json("results/0001.json")
    assert result and result["code"] == 75 and "--max-cost" in result["cause"]


def test_budget_goes_on_counting_in_the_next_watcher_and_survives_a_lock(scene: Scene) -> None:
    JobLimits(1, stop_after_hours=0.1).store(scene.folder)
    scene.watching()
    scene.until("make")
    scene.turn(200.0)
    scene.watching()
    assert scene.until("ask").why.startswith("--stop-after-hours 0.1 is reached")
    scene.result(75)
    scene.machinery.fails = [Locked("another run holds the state", fix="wait")] * 2
    end = scene.until("end")
    assert end.code == 75 and scene.machinery.acts == ["up 0", "down"]


def test_budget_goes_past_a_lock_that_never_opens(scene: Scene) -> None:
    JobLimits(1, stop_after_hours=0.1).store(scene.folder)
    scene.watching()
    scene.until("make")
    scene.machinery.fails = [Locked("another run holds the state", fix="wait")] * 99
    assert scene.until("end").code == 75
    assert scene.machinery.acts == ["up 0", "remove"] and len(scene.machinery.fails) == 96


def test_budget_is_kept_without_the_bucket_and_whatever_somebody_writes_there(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    JobLimits(1, stop_after_hours=0.1).store(scene.folder)
    scene.watching()
    scene.until("make")
    scene.turn()
    scene.folder.put_json(module.LIMITS, {"submission": 1, "stop_after_hours": float("nan"), "rates": "x"})
    scene.folder.put_json(HISTORY, {"format": 1, "submission": 1, "hours": 0.0, "usd": -5.0})
    scene.turn()
    history = scene.folder.get_json(HISTORY)
    assert history and history["hours"] > 0.005

    def gone(*_: object) -> None:
        raise MaskwrightError("the bucket cannot be reached", fix="x")

    monkeypatch.setattr(Folder, "get", gone)
    scene.machinery.fails = [MaskwrightError("nor can Terraform's", fix="x")] * 99
    said = [scene.watcher.poll() for scene.now in (scene.now + 10.0 * n for n in range(60)) if scene.watcher]
    assert scene.machinery.acts == ["up 0", "remove"] and len(scene.machinery.fails) == 96
    (down,) = [action for action in said if action.kind == "down"]
    assert "--stop-after-hours 0.1 is reached" in down.why and "the bucket cannot be reached" in down.why
    assert scene.machinery.place is None


def test_error_that_nobody_has_thought_of_ends_no_watcher(scene: Scene) -> None:
    scene.machinery.fails = [ZeroDivisionError("oh"), None]
    assert scene.watching() and scene.turn().why == "ZeroDivisionError: oh; trying again"
    scene.until("make")
    assert scene.machinery.acts == ["up 0"]


def test_host_that_was_lost_after_it_had_been_idle_is_a_try_as_any(scene: Scene) -> None:
    """Its note of before must not have it made again and again without a wait."""
    scene.machinery.place, scene.machinery.stopped, scene.machinery.repairs = 0, ("m-0", "m-1"), True
    for name in scene.machinery.stopped:
        scene.folder.put_json(f"reports/idle/{name}.json", {"what": "no job"})
    scene.watching()
    assert scene.turn().kind == "make" and scene.machinery.acts == ["repair"]
    scene.machinery.running, scene.machinery.stopped = 0, ("m-0", "m-1")  # taken away before their agents spoke
    assert scene.turn().kind == "wait"


def test_down_when_done(scene: Scene) -> None:
    JobLimits(1, down_when_done=True).store(scene.folder)
    scene.watching()
    scene.until("make")
    scene.result(0)
    assert scene.until("end").code == 0 and scene.machinery.acts == ["up 0", "down"]


def test_limits_of_another_submission_do_not_count(scene: Scene) -> None:
    JobLimits(7, stop_after_hours=0.001, down_when_done=True).store(scene.folder)
    scene.watching(JobLimits(max_usd=1e9, rates=(10.0,)))
    scene.until("make")
    for _ in range(20):
        assert scene.turn().kind == "nothing"


def test_unknown_beat_is_not_a_life(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = scene.watching()

    def beats(**beat: object) -> int:
        scene.folder.put_json("reports/hosts/host-0.json", beat)
        return watcher._live_agents(1)

    assert beats(beat=5) == 0 and beats(beat=5) == 0
    assert beats(beat=6) == 1
    assert beats(beat=7, gone=True) == 0
    monkeypatch.setattr(module, "LOST_SECONDS", 0.0)
    assert beats(beat=8) == 0 and beats(beat=8) == 0


def test_watcher_and_leader_read_what_hosts_say_at_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read of one host waits here for that of the other."""
    scene.watching()
    scene.until("make")
    head, both = Folder.head, threading.Barrier(2, timeout=60.0)

    def waiting(folder: Folder, name: str, count: int) -> bytes | None:
        if re.search(r"/(host|m)-\d", name):
            both.wait()
        return head(folder, name, count)

    monkeypatch.setattr(Folder, "head", waiting)
    assert scene.turn().why == "all run"  # heartbeats and health
    Leader(scene.folder, 2, 5.0).poll(JobSpec(Training("x", "r")), 1, False)  # heartbeats and ends


# ---- one at a time ---------------------------------------------------------------------------------------------------


def test_one_lease_at_a_time_and_the_silent_one_is_taken_over(tmp_path: Path) -> None:
    folder, now = Folder(f"file://{tmp_path}"), 0.0
    first, second, third = (WatcherLease(folder, clock=lambda: now) for _ in range(3))
    assert first.poll() and not second.poll() and not third.poll()
    assert second.holder.startswith("process ")
    now = 80.0
    assert first.poll() and not second.poll()  # it beats
    now = 169.0
    assert not second.poll() and not third.poll()
    now = 260.0
    assert second.poll() and not third.poll()
    assert not first.poll()  # it was asleep, and stands back
    second.leave()
    assert third.poll()


def test_of_many_that_try_at_once_one_gets_it(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    folder = Folder(f"file://{tmp_path}")
    leases = [WatcherLease(folder) for _ in range(16)]
    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(WatcherLease.poll, leases)) == 1


def test_second_watcher_does_nothing_and_takes_over(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "SILENT_SECONDS", 1e9)
    first = scene.watching()
    scene.until("make")
    second = scene.watching()
    scene.machinery.running = 0
    for _ in range(5):
        assert scene.turn().why.startswith("watched by process")
    assert scene.machinery.acts == ["up 0"]
    first.leave()
    scene.until("make")
    scene.result(3)
    assert scene.watcher is second and scene.turn().code == 3


def test_second_watcher_does_not_go_before_the_hosts_that_the_first_is_to_take_away(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "SILENT_SECONDS", 1e9)
    JobLimits(1, down_when_done=True).store(scene.folder)
    scene.watching()
    scene.until("make")
    scene.result(0)
    scene.watching()  # the first one was killed
    assert scene.turn().why.startswith("the job is over: process ")
    monkeypatch.setattr(lease_module, "SILENT_SECONDS", 0.0)
    assert scene.until("end").code == 0 and scene.machinery.acts == ["up 0", "down"]
