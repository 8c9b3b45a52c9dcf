"""A run's record for `maskwright reproduce`."""

from __future__ import annotations

from typing import Any

from maskwright.report.run import RecordedRun

KEYS = (
    *("config", "rows", "store_fingerprint", "tokenizer_fingerprint", "base_weights", "base", "threads", "lineage"),
    *("changes", "row_planning"),
)
"""Keys of the run's record."""


def made_of(run: RecordedRun) -> dict[str, Any]:
    """The record of a run; without a checkpoint, it has no `weights_sha256`."""
    started, step = run.at("started"), run.saved.get("step")
    return {
        "run": run.location,
        "kind": "finetune" if run.is_finetuning else "pretrain",
        **{key: run.record.get(key) for key in KEYS},
        "environment": run.environment,
        "engine": started[-1].get("engine") if started else None,
        "step": step,
        "ended": run.report.state == "done" or (step is not None and step == run.planned),
        "weights_sha256": run.saved.get("weights_sha256"),
        "valid_loss": run.last("valid_loss"),
    }


def can_be_reproduced(run: RecordedRun) -> bool:
    """Whether `maskwright reproduce` accepts the run: it has ended, with the configuration of its start."""
    record = made_of(run)
    return bool(record["weights_sha256"] and record["ended"] and not record["changes"])
