"""Metrics for a hyperparameter tuning job of Vertex AI: a file that the service reads, as Google's package
cloudml-hypertune 0.1.0.dev6 writes it."""

from __future__ import annotations

import json
import os
import time

from maskwright.core import storage

TRIAL, FILE = "CLOUD_ML_TRIAL_ID", "CLOUD_ML_HP_METRIC_FILE"
DEFAULT_FILE = "/tmp/hypertune/output.metrics"
LINES = 100
"""Lines kept, the newest ones."""


def report(name: str, value: float, step: int) -> None:
    """Adds a line inside a trial, and does nothing elsewhere. The study's spec must use this name of the metric."""
    if TRIAL not in os.environ:
        return
    path = os.environ.get(FILE, DEFAULT_FILE)
    storage.make_folder(os.path.dirname(path))
    before: list[str] = []
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            before = file.read().splitlines()
    line = {
        "timestamp": time.time(),
        "trial": os.environ[TRIAL],
        name: str(value),
        "global_step": str(step),
        "checkpoint_path": "",
    }
    lines = [*before, json.dumps(line, sort_keys=True)][-LINES:]
    with storage.atomic_writer(path) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())
