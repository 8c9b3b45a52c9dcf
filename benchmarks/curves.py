"""The loss of a run that is killed again and again, compared with an undisturbed run: Hugging Face Trainer and
maskwright.

    python benchmarks/curves.py [--work FOLDER]        two minutes on one core

Both train the model, the text and the settings of `faults.py`, with one learning rate. `kill -9` comes as soon as the
log shows a step of `KILL_AT`, and each side is then started again as its user would: Trainer with
`resume_from_checkpoint=True`, maskwright by the same command. A third run, also without kills, shows whether a side
repeats itself at all. Each attempt is a process of its own, in fp32, with dropout and random masks.

`results/curves.json` holds the loss of each step of each attempt, also of those that were computed twice.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from common import HERE, store_of, write_result
from faults import (
    ROWS,
    SAVE_EVERY,
    SEQ_LEN,
    VOCABULARY,
    HuggingFace,
    Maskwright,
    Side,
    compare,
    generated_text,
    losses,
)

from maskwright.core.console import say

STEPS, KILL_AT = 200, (45, 95, 145)
"""Kills lie between two saves, which come every `SAVE_EVERY` steps."""
LEARNING_RATE = 2e-3


def attempt(side: Side, run: Path, *, resume: bool, kill_at: int | None = None) -> dict[str, Any]:
    """One process, killed when its log has the step `kill_at`; the losses that it logged itself."""
    command = side.command(run, stop_after=None, init_from=None, resume="newest" if resume else None)
    log = run.with_name(f"{run.name}.log")
    before = log.stat().st_size if log.exists() else 0
    with log.open("a") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=HERE.parent)
        while process.poll() is None and (kill_at is None or max(losses(run), default=0) < kill_at):
            time.sleep(0.005 if kill_at else 0.2)
        if kill_at:
            process.kill()
        code = process.wait()
    said = log.read_bytes()[before:].decode(errors="replace")
    if code not in (0, -9) or (code == -9) != (kill_at is not None):
        raise SystemExit(f"{side.name}: exit code {code}, which was not expected: {log}\n{said}")
    began = re.findall(r"continuing at step ([\d,]+)", said)
    first = int(began[-1].replace(",", "")) if began else 0
    logged = {step: loss for step, loss in losses(run).items() if step > first}
    say(f"{side.name}, {run.name}: from step {first} to {max(logged)}")
    return {"began_at": first, "killed": kill_at is not None, "losses": [logged[step] for step in sorted(logged)]}


def curves(side: Side, folder: Path) -> dict[str, Any]:
    straight, again, killed = folder / "straight", folder / "again", folder / "killed"
    left_alone = attempt(side, straight, resume=False)
    attempt(side, again, resume=False)
    attempts = [attempt(side, killed, resume=bool(number), kill_at=step) for number, step in enumerate(KILL_AT)]
    attempts.append(attempt(side, killed, resume=True))
    return {
        "straight": left_alone["losses"],
        "attempts": attempts,
        "straight_twice": compare(side, straight, again, 0, STEPS),
        "end": compare(side, straight, killed, 0, STEPS),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, help="new or empty folder for the runs and their logs; kept when given")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = (arguments.work or Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        store = store_of([generated_text(work / "text.txt")], str(work), VOCABULARY)
        sides: list[Side] = [
            HuggingFace(store, STEPS, learning_rate=LEARNING_RATE),
            Maskwright(store, work / "run.yaml", STEPS, learning_rate=LEARNING_RATE),
        ]
        found: dict[str, dict[str, Any]] = {}
        for side in sides:
            (work / side.name).mkdir()
            found[side.name] = curves(side, work / side.name)
    ratios = {f"{name}_{key}": one["end"][key] for name, one in found.items() for key in ("different_steps", "tensors")}
    ratios |= {f"{name}_different_tensors": one["end"]["different_tensors"] for name, one in found.items()}
    ratios |= {f"{name}_largest_loss_difference": one["end"]["largest_loss_difference"] for name, one in found.items()}
    setting = {"steps": STEPS, "save_every_steps": SAVE_EVERY, "kill_at": KILL_AT, "rows": ROWS, "seq_len": SEQ_LEN}
    write_result("curves", ratios, setting=setting | {"size": "nano", "learning_rate": LEARNING_RATE}, sides=found)


if __name__ == "__main__":
    main()
