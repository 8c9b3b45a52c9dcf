"""Machines in the place of a slice or group, which a test gives to a watcher and takes away."""

from __future__ import annotations

from dataclasses import dataclass, field

from maskwright.cloud.jobs.policy import Rules
from maskwright.cloud.jobs.watcher import MachineState


@dataclass
class Machinery:
    """Two machines, in one of two places."""

    place: int | None = None
    running: int = 0
    stopped: tuple[str, ...] = ()
    dry: set[int] = field(default_factory=set)
    fails: list[BaseException | None] = field(default_factory=list)
    acts: list[str] = field(default_factory=list)
    price: float = 10.0
    repairs: bool = False

    def describe(self) -> MachineState:
        names = tuple(f"m-{n}" for n in range(self.running))
        trouble = "stockout" if self.place in self.dry and not self.running else ""
        making = bool(trouble)
        return MachineState(
            2, self.place or 0, self.place is not None, names, self.stopped, self.running, making, trouble
        )

    def has_bucket(self) -> bool:
        return True

    def rules(self) -> Rules:
        return Rules(patience_seconds=(600.0, 600.0), base_seconds=10.0, cap_seconds=60.0, seed="t")

    def usd_per_hour(self, placement: int) -> float:
        return self.price

    def up(self, placement: int) -> None:
        self._fail()
        assert self.place is None, "another one is there"
        self.acts.append(f"up {placement}")
        self.place, self.running = placement, 0 if placement in self.dry else 2

    def down(self) -> None:
        self._fail()
        self.acts.append("down")
        self.place, self.running, self.stopped = None, 0, ()

    def repair(self) -> bool:
        self._fail()
        if not self.repairs or self.place in self.dry:
            return False
        self.acts.append("repair")
        self.running, self.stopped = 2, ()
        return True

    def force_delete(self) -> None:
        self.acts.append("remove")
        self.place, self.running, self.stopped = None, 0, ()

    def _fail(self) -> None:
        if self.fails and (error := self.fails.pop(0)):
            raise error
