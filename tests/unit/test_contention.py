"""Threads of a run that wait for a core: the kernel's files as Linux writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from maskwright.training.contention import Contention


class Machine:
    def __init__(self, folder: Path) -> None:
        self.folder, self.now, self.throttled = folder, 100.0, 0
        self.threads = {"10": [5.0, 1.0], "11": [0.0, 0.0]}
        self.write()

    def write(self) -> None:
        for thread, (ran, waited) in self.threads.items():
            (self.folder / thread).mkdir(exist_ok=True)
            (self.folder / thread / "schedstat").write_text(f"{ran * 1e9:.0f} {waited * 1e9:.0f} 7\n")

    def contention(self, cores: int = 2) -> Contention:
        return Contention(str(self.folder), lambda: self.now, lambda: cores, lambda: self.throttled)

    def passes(self, seconds: float, **threads: tuple[float, float]) -> None:
        """`threads`: what each ran and waited meanwhile, as shares."""
        self.now += seconds
        for name, shares in threads.items():
            own = self.threads.setdefault(name.lstrip("t"), [0.0, 0.0])
            for index, share in enumerate(shares):
                own[index] += share * seconds
        self.write()


def test_what_waits_for_a_core_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    machine = Machine(tmp_path)
    contention = machine.contention()
    machine.passes(20.0, t10=(0.2, 0.8))
    assert contention.look() is None  # not long enough yet
    machine.passes(20.0, t10=(1.0, 0.0), t11=(0.9, 0.1))
    said = contention.look()
    assert said and "waited for 40% of the last 40 seconds" in said and "OMP_WAIT_POLICY=passive" in said
    machine.passes(40.0, t10=(0.2, 0.8))
    assert contention.look() is None


@pytest.mark.parametrize(
    "threads",
    [
        {"t10": (0.98, 0.02), "t11": (0.9, 0.1)},  # cores of one's own, all but
        {"t10": (1.0, 0.0), "t12": (0.1, 0.35)},  # what saves in the background waits for our own threads
        {"t10": (0.0, 0.0), "t11": (0.05, 0.0)},  # sleeping
    ],
)
def test_what_is_no_crowd(tmp_path: Path, threads: dict[str, tuple[float, float]]) -> None:
    machine = Machine(tmp_path)
    contention = machine.contention()
    for _ in range(3):
        machine.passes(31.0, **threads)
        assert contention.look() is None


@pytest.mark.parametrize(("cores", "throttled"), [(1, 0), (2, 3)])
def test_ones_own_threads_and_a_quota_are_no_other_programs(tmp_path: Path, cores: int, throttled: int) -> None:
    machine = Machine(tmp_path)
    contention = machine.contention(cores)
    machine.passes(40.0, t10=(0.5, 0.5), t11=(0.5, 0.5))
    machine.throttled = throttled
    assert contention.look() is None


def test_threads_that_begin_and_end_meanwhile_are_left_out(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    (tmp_path / "09").mkdir()  # it ends as its file is opened
    contention = machine.contention()
    machine.threads["12"] = [50.0, 400.0]
    machine.passes(40.0, t10=(1.0, 0.0))
    assert contention.look() is None


@pytest.mark.parametrize(
    ("policy", "others", "end"), [("PASSIVE", ["t11"], "slowest thread"), ("ACTIVE", [], "seconds")]
)
def test_who_waits_passively_or_for_nobody_is_told_to_end_the_others(
    policy: str, others: list[str], end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    machine = Machine(tmp_path)
    contention = machine.contention()
    machine.passes(60.0, **dict.fromkeys(["t10", *others], (0.5, 0.5)))
    said = contention.look()
    assert said and said.endswith(f"{end}. Fix: end them")


def test_a_system_that_does_not_tell(tmp_path: Path) -> None:
    now = [0.0]
    contention = Contention(str(tmp_path / "absent"), lambda: now[0], lambda: 2)
    now[0] = 100.0
    assert contention.look() is None
