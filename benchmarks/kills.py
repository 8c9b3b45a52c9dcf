"""Two hundred kills: runs of several kinds, killed with SIGKILL at random moments, against the same runs left alone.

    python benchmarks/kills.py --store data/store --kills 204

Moments are random in time, so they fall into starts, steps, validations and saves. Checked at the end of each run:
weights, optimizer state and metrics bit for bit; that no step was ever computed with another loss, in any attempt;
and how many seconds of training each kill cost, from the checkpoint that the restart began with to the last step.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import re
import shutil
import tempfile
import time
from typing import Any

from common import write_result

from maskwright.config.pretraining import RunConfig, build_config
from maskwright.core import storage
from maskwright.core.console import say
from maskwright.prove.verify_resume import compare, start_run
from maskwright.run.directory import RunDirectory
from maskwright.training import checkpoint

SAVE_EVERY_SECONDS = 1.0
KINDS: dict[str, dict[str, Any]] = {
    "roberta, adamw, dropout, 2 virtual workers, bf16": {
        "model": {"size": "nano", "hidden_dropout": 0.1, "attention_dropout": 0.1},
        "batch": {"micro_batch_rows": 8, "virtual_workers": 2},
    },
    "modernbert, muon, spans, wsd": {
        "model": {"size": "nano", "architecture": "modernbert"},
        "optimizer": {"kind": "muon"},
        "masking": {"kind": "span", "rate": 0.15},
        "phases": [{"until_share": 0.6, "seq_len": 32, "masking_rate": 0.3}],
        "schedule": {"kind": "wsd"},
    },
    "roberta, full sentences, whole words, fp32": {
        "data": {"packing": "full_sentences"},
        "model": {"size": "nano", "hidden_dropout": 0.1},
        "masking": {"kind": "whole_word"},
        "engine": {"dtype": "fp32"},
    },
    "roberta, muon, cosine, no clipping": {
        "model": {"size": "nano"},
        "optimizer": {"kind": "muon", "max_grad_norm": None},
        "schedule": {"kind": "cosine"},
    },
}


def config_of(kind: dict[str, Any], store: str, steps: int) -> RunConfig:
    values: dict[str, Any] = {
        "data": {"store": store, "seq_len": 64},
        "batch": {"micro_batch_rows": 8},
        "schedule": {"steps": steps, "warmup_steps": 20},
        "checkpoint": {"save_every_seconds": SAVE_EVERY_SECONDS},
        "evaluation": {"every_steps": max(steps // 6, 1), "max_rows": 32},
        "logging": {"every_steps": 1, "report_to": []},
        "engine": {"threads": 1},
    }
    for section, keys in kind.items():
        values[section] = {**values.get(section, {}), **keys}
    return build_config(values, "kills")


def lost_seconds(directory: RunDirectory) -> float:
    """Of training: of the steps after the newest checkpoint, by the times of their log lines. They are of one attempt,
    since a restart drops what it computes again."""
    saved = max(checkpoint.whole_steps(directory.checkpoints), default=0)
    times = [line["time"] for line in directory.read_metrics() if "loss" in line and line["step"] > saved]
    if len(times) < 2:
        return 0.0
    return (times[-1] - times[0]) * len(times) / (len(times) - 1)


def losses_differ(directory: RunDirectory) -> list[int]:
    """Steps that two attempts logged with different numbers."""
    seen: dict[int, set[str]] = {}
    with open(directory.path("log.txt"), encoding="utf-8") as file:
        for match in re.finditer(r"step (\d+)  (loss \S+  learning_rate \S+  grad_norm \S+)", file.read()):
            seen.setdefault(int(match.group(1)), set()).add(match.group(2))
    return [step for step, numbers in seen.items() if len(numbers) > 1]


def one_kind(config: RunConfig, kills: int, folder: str, generator: random.Random) -> dict[str, Any]:
    file = os.path.join(folder, "config.yaml")
    storage.write_json(file, config.model_dump())
    straight, killed = (RunDirectory(os.path.join(folder, name)) for name in ("straight", "killed"))
    begin = time.monotonic()
    if start_run("pretrain", file, straight).wait():
        raise SystemExit(f"the run failed: {straight.location}.log")
    whole = time.monotonic() - begin
    lost, reached = [], []
    for number in range(kills):
        process = start_run("pretrain", file, killed)
        # Most of a start is imports; a fifth of the kills fall anywhere, the others where it trains.
        early = 0.0 if number % 5 == 0 else 2.0
        time.sleep(early + generator.random() * max(0.5, min(whole, 2.5 * SAVE_EVERY_SECONDS)))
        process.kill()
        if process.wait() == 0:
            break
        reached.append(max((line["step"] for line in killed.read_metrics()), default=0))
        lost.append(lost_seconds(killed))
    if start_run("pretrain", file, killed).wait():
        raise SystemExit(f"the run failed: {killed.location}.log")
    tensors, lines, differences = compare(straight, killed)
    return {
        "kills": len(lost),
        "reached": reached,
        "lost_seconds": [round(value, 3) for value in lost],
        "tensors": tensors,
        "metric_lines": lines,
        "differences": differences,
        "steps_with_other_losses": losses_differ(killed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True, help="token store, prepared from sentences")
    parser.add_argument("--kills", type=int, default=204)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    generator, results = random.Random(arguments.seed), {}
    each = -(-arguments.kills // len(KINDS))
    for name, kind in KINDS.items():
        folder = tempfile.mkdtemp(prefix="maskwright-kills-")
        results[name] = one_kind(config_of(kind, arguments.store, arguments.steps), each, folder, generator)
        say(f"{name}: {results[name]}")
        shutil.rmtree(folder)
    lost = list(itertools.chain.from_iterable(result["lost_seconds"] for result in results.values()))
    write_result(
        "kills",
        {
            "kills": len(lost),
            "different_ends": sum(bool(result["differences"]) for result in results.values()),
            "steps_with_other_losses": sum(len(result["steps_with_other_losses"]) for result in results.values()),
            "most_seconds_lost": max(lost),
        },
        save_every_seconds=SAVE_EVERY_SECONDS,
        runs=results,
    )


if __name__ == "__main__":
    main()
