"""Wall clock to a held-out loss, against run_mlm's recipe under Hugging Face Trainer.

    python benchmarks/time_to_loss.py --text 'corpus/*.txt' --seeds 0 1 2

For each seed the peer trains mini (4 layers x 256, vocabulary 8,192, rows of 128) for `--seconds` at its best settings,
with a schedule that ends on time; then we train mini by `recipes/modern.yaml` in a fifth of that, with a validation
every 20 steps. Both are judged by `maskwright evaluate` on the same held-out rows and masks, which are framed as ours
are in training: the peer's rows hold `<s>` and `</s>` only where documents meet, which costs it a little. Start-up,
compilation and validation count for neither.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from typing import Any

from common import HERE, process, store_of, write_result

from maskwright.core.console import say

VOCABULARY, SEQ_LEN = 8192, 128
EVERY_STEPS = 20


def maskwright(*arguments: object) -> str:
    command = [sys.executable, "-m", "maskwright", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)}\n{result.stderr}")
    return result.stdout


def judge(model: str, store: str) -> dict[str, float]:
    found = json.loads(maskwright("evaluate", model, "--store", store, "--seq-len", SEQ_LEN, "--json"))
    return {"loss": found["loss"], "accuracy": found["accuracy"]}


def curve(run: str) -> list[tuple[float, float]]:
    """(training seconds, held-out loss) at each validation; seconds of the steps alone, from the rates that were
    logged."""
    seconds, before, points = 0.0, 0, []
    with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as file:
        for line in map(json.loads, file):
            if "tokens_per_second" in line:
                seconds += (line["tokens"] - before) / line["tokens_per_second"]
                before = line["tokens"]
            else:
                points.append((seconds, line["valid_loss"]))
    return points


def ours(store: str, run: str, steps: int, seed: int, rows: int) -> dict[str, Any]:
    shutil.rmtree(run, ignore_errors=True)
    keys = {
        "data.store": store,
        "data.seq_len": SEQ_LEN,
        "model.size": "mini",
        "schedule.steps": steps,
        "schedule.warmup_steps": round(0.06 * steps),
        "schedule.decay_steps": round(0.4 * steps),
        "batch.micro_batch_rows": rows,
        "batch.virtual_workers": 1,
        "evaluation.every_steps": EVERY_STEPS,
        "evaluation.max_rows": 512,
        "logging.every_steps": EVERY_STEPS,
        "seed": seed,
    }
    overrides = [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
    maskwright("pretrain", HERE.parent / "recipes" / "modern.yaml", "--run", run, *overrides)
    points = curve(run)
    return {"seconds": points[-1][0], "steps": steps, **judge(run, store), "curve": points}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--work")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--hf-rows", type=int, default=16)
    parser.add_argument("--hf-learning-rate", type=float, default=1e-3)
    parser.add_argument("--rows", type=int, default=32)
    arguments = parser.parse_args()
    work = arguments.work or tempfile.mkdtemp()
    store = store_of(arguments.text, work, VOCABULARY)
    # A short run shows how many steps a fifth of the time holds.
    trial = ours(store, os.path.join(work, "trial"), 60, 0, arguments.rows)
    steps = int(arguments.seconds / 5 / (trial["seconds"] / trial["steps"]))
    results = []
    for seed in arguments.seeds:
        folder = os.path.join(work, f"hf-{seed}")
        options = {"size": "mini", "seq-len": SEQ_LEN, "rows": arguments.hf_rows, "seconds": arguments.seconds}
        options |= {"learning-rate": arguments.hf_learning_rate, "seed": seed, "to": folder}
        peer = process("peers/hf_trainer.py", store, *(p for k, v in options.items() for p in (f"--{k}", v)))
        peer = {"seconds": peer["training_seconds"], "steps": peer["steps"], **judge(folder, store)}
        own = ours(store, os.path.join(work, f"run-{seed}"), steps, seed, arguments.rows)
        reached = next((seconds for seconds, loss in own["curve"] if loss <= peer["loss"]), math.inf)
        results.append({"seed": seed, "hf": peer, "maskwright": own, "seconds_to_the_peers_loss": reached})
        say(json.dumps(results[-1]))
    write_result(
        "time-to-loss",
        {
            "hf_seconds_over_ours": min(r["hf"]["seconds"] / r["seconds_to_the_peers_loss"] for r in results),
            "hf_loss_minus_ours": min(r["hf"]["loss"] - r["maskwright"]["loss"] for r in results),
        },
        seeds=results,
        hf={"rows": arguments.hf_rows, "learning_rate": arguments.hf_learning_rate},
        note="both ratios are the worst seed's: seconds until our held-out loss is first at or below the peer's last "
        "(0 if never), and losses after the peer's whole time and after a fifth of it",
    )


if __name__ == "__main__":
    main()
