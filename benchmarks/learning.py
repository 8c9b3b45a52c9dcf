"""The held-out loss of whole recipes, step by step, and a quickstart's verdict.

    python benchmarks/learning.py --store STORE --work FOLDER        a quarter of an hour of one core

`quickstart` reads the documentation strings of the machine's Python code; `nano` and `nano-modern`, which is as large
and has `modern`'s settings, read the store, such as one of books with 8,000 tokens. Other recipes take hours.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from common import write_result
from pydantic import TypeAdapter

from maskwright.verdict.judge import judge
from maskwright.verdict.results import Results

EVERY = ("--set", "evaluation.every_steps=200", "--set", "logging.report_to=[]")
MODERN = {"model.architecture": "modernbert", "optimizer.kind": "muon", "optimizer.learning_rate": 4e-3}
MODERN |= {"optimizer.weight_decay": 0.3, "schedule.kind": "wsd", "schedule.decay_share": 0.4}


def maskwright(work: Path, *words: object) -> None:
    subprocess.run([sys.executable, "-m", "maskwright", *map(str, words)], cwd=work, check=True, stdout=sys.stderr)


def curve(run: Path) -> dict[str, Any]:
    """Points of (step, held-out loss), the unigram baseline, and seconds from the first evaluation to the last."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    held_out = [line for line in lines if "valid_loss" in line]
    baseline = next(iter(json.loads((run / "data.json").read_text())["unigram"].values()))
    return {
        "points": [(line["step"], round(line["valid_loss"], 3)) for line in held_out],
        "masked_accuracy": held_out[-1]["valid_accuracy"],
        "unigram": round(baseline["loss"], 2),
        "seconds": round(held_out[-1]["time"] - held_out[0]["time"]),
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
    maskwright(work, "pretrain", "nano", "--run", "nano", *store)
    maskwright(work, "pretrain", "nano", "--run", "nano-modern", *store, *changed)
    if not (work / "quickstart" / "verdict" / "results.json").exists():
        maskwright(work, "quickstart", "--verdict", "--to", "quickstart")
    runs = {"nano": work / "nano", "nano-modern": work / "nano-modern", "quickstart": work / "quickstart" / "run"}
    curves = {name: curve(run) for name, run in runs.items()}
    write_result("learning", {name: one["points"][-1][1] for name, one in curves.items()}, curves=curves)

    results = TypeAdapter(Results).validate_json((work / "quickstart" / "verdict" / "results.json").read_bytes())
    (found,) = judge(results, class_draws=0).comparisons
    scores = {
        arm.name: [round(100 * run.score, 1) for run in results.of(arm, results.tasks[0])] for arm in results.arms
    }
    verdict = {key: round(100 * getattr(found, key), 1) for key in ("difference", "low", "high")}
    task = {"metric": results.tasks[0].metric, "test_examples": results.tasks[0].test_examples}
    means = {name: float(np.mean(values)) for name, values in scores.items()}
    write_result(
        "quickstart", means, verdict={**verdict, "p": found.p, "verdict": found.verdict}, scores=scores, **task
    )


if __name__ == "__main__":
    main()
