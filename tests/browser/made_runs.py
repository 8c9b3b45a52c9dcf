"""Run directories as training writes them, made in a moment: for whoever looks at runs."""

import json
import math
import os
import random
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from made_record import made_record

from maskwright.core.pids import pid_started, this_pid_space
from maskwright.run.directory import HISTORY, MANIFEST, RunDirectory, Status, step_folder
from maskwright.run.heartbeat import Beat, file_name

HOST = "vm"


@dataclass
class MadeRun:
    """A run directory. `lines` log lines lie between its first step and `step`."""

    folder: Path
    step: int = 4_000
    of: int = 10_000
    lines: int = 400
    phase: str = "training"
    seed: int = 0
    peak: float = 1e-3
    """The highest learning rate."""
    ranks: int = 1
    hung: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    slow: tuple[int, ...] = ()
    message: str = ""
    exit: int | None = None
    age: float = 0.0
    """Seconds since its last sign of life."""
    metric: str = ""
    """What a fine-tuning run is judged by; empty for pretraining."""
    config: dict[str, Any] = field(default_factory=dict)
    events: tuple[dict[str, Any], ...] = ()
    log: tuple[str, ...] = ()

    def write(self) -> Self:
        self.folder.mkdir(parents=True)
        self.now = time.time() - self.age
        every = max(1, self.step // max(self.lines, 1))
        self.every = every
        steps = [number * every for number in range(1, self.lines + 1)]
        with open(self.folder / "metrics.jsonl", "w") as file:
            file.writelines(self.line(step) for step in steps)
        self._records()
        self._beats()
        self._checkpoints(steps[-1] if steps else 0)
        return self

    def line(self, step: int) -> str:
        """Of `metrics.jsonl`; at every twentieth, an evaluation after it."""
        chance = random.Random(self.seed * 1_000_003 + step)
        loss = 2.4 + 0.1 * (self.seed % 7) + 6.2 * math.exp(-step / (0.16 * self.of)) + chance.gauss(0, 0.06)
        warm = min(1.0, step / (0.06 * self.of))
        when = self.now - (self.step - step) * 0.4
        found = {
            "step": step,
            "epoch": 0,
            "tokens": step * 4096,
            "loss": round(loss, 5),
            "learning_rate": self.peak * warm * (1 - 0.9 * step / self.of),
            "masking_rate": 0.3,
            "grad_norm": round(0.8 + 1.4 * math.exp(-step / 500) + abs(chance.gauss(0, 0.12)), 4),
            "tokens_per_second": round(10_200 + chance.gauss(0, 350), 1),
            "time": when,
        }
        text = json.dumps(found) + "\n"
        if step // self.every % 20 == 0:
            held_out = {"step": step, "valid_loss": round(loss + 0.06, 5), "valid_accuracy": round(0.9 - loss / 12, 4)}
            held_out |= {f"valid_{self.metric}": round(1.05 - loss / 9, 4)} if self.metric else {}
            text += json.dumps(held_out | {"time": when}) + "\n"
        return text

    def grow(self, lines: int) -> None:
        """Goes on training."""
        self.now = time.time()
        steps = [self.step + self.every * number for number in range(1, lines + 1)]
        with open(self.folder / "metrics.jsonl", "a") as file:
            file.writelines(self.line(step) for step in steps)
        self.step = steps[-1]
        self._records()
        self._beats()

    def _records(self) -> None:
        last = json.loads(self.line(self.step).split("\n")[0])
        going = self.phase not in ("done", "stopped", "failed")
        status = Status(
            phase=self.phase,  # type: ignore[arg-type]
            step=self.step,
            of=self.of,
            tokens=self.step * 4096,
            loss=last["loss"] if self.lines else None,
            tokens_per_second=last["tokens_per_second"] if self.lines else None,
            eta_seconds=(self.of - self.step) * 0.4 if going else None,
            saved=True,
            heartbeat=self.now,
            host=HOST,
            pid=os.getpid(),
            message=self.message,
            exit=self.exit,
        )
        config = {"seed": self.seed, "optimizer.learning_rate": self.peak, "schedule.steps": self.of, **self.config}
        self._json("status.json", asdict(status))
        of_kind = {"kind": "finetune", "metric": self.metric} if self.metric else {}
        RunDirectory(str(self.folder)).write_record(made_record(keys=config, steps=self.of, **of_kind))
        began = self.now - self.step * 0.4
        started = {"time": began, "step": 0, "event": "started", "attempt": 1, "host": HOST, "engine": "torch"}
        lines = [started, *({"time": began + one["step"] * 0.4, **one} for one in self.events)]
        (self.folder / HISTORY).write_text("".join(json.dumps(one) + "\n" for one in lines))
        said = self.log or tuple(f"step {step}  loss 3.21" for step in range(0, self.step, max(1, self.step // 300)))
        (self.folder / "log.txt").write_text("".join(f"2026-11-23 05:52:50  {one}\n" for one in said))

    def _beats(self) -> None:
        """This process stands for all ranks that live."""
        (self.folder / "processes").mkdir(exist_ok=True)
        over = self.phase in ("done", "stopped", "failed")
        for rank in range(self.ranks):
            silent = 200.0 if rank in self.hung else 0.0
            gone = rank in self.lost
            beat = Beat(
                rank=rank,
                world_size=self.ranks,
                host=HOST if rank < 8 else f"{HOST}-{rank // 8 + 1}",
                machine=this_pid_space(),
                pid=2**22 + rank if gone else os.getpid(),
                pid_started=1 if gone else pid_started(os.getpid()),
                start="first",
                attempt=1,
                started=self.now - 4_000,
                time=self.now - (60.0 if gone else 0.0),
                every_seconds=5.0,
                step=self.step,
                stepped=self.now - silent,
                doing="ended" if over else "computing" if rank in self.hung + self.slow else "waiting",
                since=self.now - silent,
                moved=self.now - silent,
                seconds_per_step=0.4,
                busy_seconds_per_step=0.38 if rank in self.slow else 0.1,
                exit=(self.exit or 0) if over else None,
            )
            self._json(f"processes/{file_name(rank)}", asdict(beat))

    def _checkpoints(self, last: int) -> None:
        """Two whole ones, and one that is being written."""
        for number, step in enumerate((last // 2, last * 3 // 4, last)):
            if not step:
                continue
            place = self.folder / "checkpoints" / step_folder(step)
            place.mkdir(parents=True)
            (place / "model.safetensors").write_bytes(bytes(1000))
            if number < 2 or self.phase == "done":
                files = {"model.safetensors": {"bytes": 74_000_000, "sha256": "0" * 64}}
                self._json(f"checkpoints/{place.name}/{MANIFEST}", {"step": step, "files": files})

    def _json(self, name: str, value: dict[str, Any]) -> None:
        path = self.folder / name
        draft = path.with_name(f".{path.name}.draft")
        draft.write_text(json.dumps(value))
        os.replace(draft, path)


def crowd(root: Path, count: int, lines: int) -> None:
    """As many runs, with a file of metrics that they share."""
    first = MadeRun(root / "sweep" / "run-000", step=lines * 10, of=lines * 12, lines=lines, phase="done").write()
    for number in range(1, count):
        made = MadeRun(
            root / "sweep" / f"run-{number:03d}",
            step=lines * 10 - 37 * number,
            of=lines * 12,
            lines=0,
            seed=number,
            phase=("training", "done", "stopped", "failed")[number % 4],
            exit=1 if number % 4 == 3 else None,
            message="out of memory" if number % 4 == 3 else "",
            peak=1e-3 * (1 + number % 5),
        ).write()
        os.unlink(made.folder / "metrics.jsonl")
        os.link(first.folder / "metrics.jsonl", made.folder / "metrics.jsonl")
