"""The held-out loss of whole recipes, step by step.

    python benchmarks/learning.py --store STORE --work FOLDER        ten minutes of two cores

`quickstart` reads the documentation strings of the machine's Python code; `nano` and `nano-modern`, which is as large
and has `modern`'s settings, read the store, such as one of books with 8,000 tokens. Other recipes take hours.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import write_result

EVERY = ("--set", "evaluation.every_steps=200", "--set", "logging.report_to=[]")
MODERN = {"model.architecture": "modernbert", "optimizer.kind": "muon", "optimizer.learning_rate": 4e-3}
MODERN |= {"optimizer.weight_decay": 0.3, "schedule.kind": "wsd", "schedule.decay_share": 0.4}


def maskwright(work: Path, core: int, *words: object) -> None:
    command = ["taskset", "-c", str(core), sys.executable, "-m", "maskwright", *map(str, words)]
    subprocess.run(command, cwd=work, check=True, stdout=sys.stderr)


def curve(run: Path) -> dict[str, Any]:
    """Points of (step, held-out loss), the accuracy at the end, and the unigram baseline."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    held_out = [line for line in lines if "valid_loss" in line]
    baseline = next(iter(json.loads((run / "data.json").read_text())["unigram"].values()))
    return {
        "points": [(line["step"], round(line["valid_loss"], 3)) for line in held_out],
        "masked_accuracy": held_out[-1]["valid_accuracy"],
        "unigram": round(baseline["loss"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    arguments = parser.parse_args()
    work = arguments.work.resolve()
    os.makedirs(work, exist_ok=True)
    store = ("--set", f"data.store={arguments.store.resolve()}", *EVERY)
    changed = [word for key, value in MODERN.items() for word in ("--set", f"{key}={value}")]
    with ThreadPoolExecutor() as pool:
        first = pool.submit(maskwright, work, 0, "quickstart", "--to", "quickstart")
        maskwright(work, 1, "pretrain", "nano", "--run", "nano", *store)
        maskwright(work, 1, "pretrain", "nano", "--run", "nano-modern", *store, *changed)
        first.result()
    runs = {"nano": work / "nano", "nano-modern": work / "nano-modern", "quickstart": work / "quickstart" / "run"}
    curves = {name: curve(run) for name, run in runs.items()}
    write_result("learning", {name: one["points"][-1][1] for name, one in curves.items()}, curves=curves)


if __name__ == "__main__":
    main()
