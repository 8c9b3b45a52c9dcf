"""Threads of a run that wait for a core: the kernel's files as Linux writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from maskwright.training.crowding import Crowding


class Machine:
    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 100.0
        self.threads = {"10": [5.0, 1.0], "11": [0.0, 0.0]}
        self.write()

    def write(self) -> None:
        for thread, (ran, waited) in self.threads.items():
            (self.folder / thread).mkdir(exist_ok=True)
            (self.folder / thread / "schedstat").write_text(f"{ran * 1e9:.0f} {waited * 1e9:.0f} 7\n")

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
    crowding = Crowding(str(tmp_path), lambda: machine.now)
    machine.passes(20.0, t10=(0.2, 0.8))
    assert crowding.look() is None  # not long enough yet
    machine.passes(20.0, t10=(1.0, 0.0), t11=(0.9, 0.1))
    said = crowding.look()
    assert said and "waited for 40% of the last 40 seconds" in said and "OMP_WAIT_POLICY=passive" in said
    machine.passes(40.0, t10=(0.2, 0.8))
    assert crowding.look() is None


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
    crowding = Crowding(str(tmp_path), lambda: machine.now)
    for _ in range(3):
        machine.passes(31.0, **threads)
        assert crowding.look() is None


def test_who_waits_passively_is_told_to_end_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    machine = Machine(tmp_path)
    crowding = Crowding(str(tmp_path), lambda: machine.now)
    machine.passes(60.0, t10=(0.5, 0.5))
    said = crowding.look()
    assert said and said.endswith("Fix: end them")


def test_a_system_that_does_not_tell(tmp_path: Path) -> None:
    now = [0.0]
    crowding = Crowding(str(tmp_path / "absent"), lambda: now[0])
    now[0] = 100.0
    assert crowding.look() is None
