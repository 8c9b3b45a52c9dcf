"""Shared by all benchmarks: the corpus, processes of their own, alternation, and the dated result."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from maskwright.core.console import say
from maskwright.data.prepare.driver import prepare
from maskwright.data.prepare.request import PrepareOptions, Request
from maskwright.tasks.start.engine import environment
from maskwright.text.sources import Sources
from maskwright.text.tokenizer import train_tokenizer

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "datasets", "gigatoken", "numpy")


def store_of(text: list[str], work: str, vocab_size: int, valid_fraction: float = 0.04) -> str:
    """A token store of the text, made once in `work`; one document in 25 is held out by default."""
    tokenizer, store = (os.path.join(work, f"{kind}-{vocab_size}") for kind in ("tokenizer", "store"))
    sources = Sources(text)
    if not os.path.exists(os.path.join(tokenizer, "tokenizer.json")):
        train_tokenizer(sources, tokenizer, vocab_size=vocab_size)
    prepare(Request(sources, tokenizer, store, PrepareOptions(valid_fraction=valid_fraction)))
    return store


def process(script: str, *arguments: object, environment: Mapping[str, str] = {}) -> dict[str, Any]:
    """Runs a script of this folder by itself; the JSON on its last line. Its messages go to stderr's log."""
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parent, env=os.environ | environment)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)}\n{result.stderr}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def alternate(sides: Mapping[str, Callable[[], dict[str, Any]]], rounds: int) -> dict[str, list[dict[str, Any]]]:
    """A B A B …: each side once a round, so that a slow minute of the machine meets both."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for number in range(rounds):
        for name, run in sides.items():
            results[name].append(run())
            say(f"round {number + 1}, {name}: {json.dumps(results[name][-1])}")
    return results


def medians(results: dict[str, list[dict[str, Any]]], key: str) -> dict[str, dict[str, float]]:
    """By side: median, least and most of a number."""
    summary = {}
    for name, runs in results.items():
        values = [run[key] for run in runs]
        summary[name] = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return summary


def write_result(row: str, ratios: dict[str, float], **details: Any) -> None:
    """`results/ROW.json`, which replaces the previous one; `report.py` makes the table from these."""
    here = environment()
    record = {
        "row": row,
        "date": datetime.date.today().isoformat(),
        "ratios": {name: float(f"{value:.4g}") for name, value in ratios.items()},
        **details,
        **({"accelerator": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}),
        "machine": {key: value for key, value in here["hardware"].items() if key != "host"},
        "versions": {"python": sys.version.split()[0], **_versions()},
        "commit": here["revision"],
    }
    path = RESULTS / f"{row}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps({"row": row, **record["ratios"]}))


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
