"""A run's record for `maskwright reproduce`, as JSON in the head of its page."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

from maskwright.core.secrets import redact_all
from maskwright.report.frame import escaped
from maskwright.report.run import RecordedRun

NAME, FORMAT = "maskwright-run", 1
KEYS = (
    *("config", "rows", "store_fingerprint", "tokenizer_fingerprint", "base_weights", "base", "threads", "lineage"),
    "changes",
)
"""Keys of the run's record."""


def made_of(run: RecordedRun) -> dict[str, Any]:
    """The record of a run; without a checkpoint, it has no `weights_sha256`."""
    started, step = run.at("started"), run.saved.get("step")
    return {
        "format": FORMAT,
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


def in_head(run: RecordedRun) -> str:
    """The record as HTML."""
    content = json.dumps(redact_all(made_of(run)), ensure_ascii=False)
    return f'<meta name="{NAME}" content="{escaped(content)}">'


def read_page(html: str) -> list[dict[str, Any]]:
    """The records of the runs of a page; empty for a page without any. Raises `ValueError` for damage."""
    runs: list[dict[str, Any]] = []

    class Head(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            attributes = dict(attrs)
            if tag == "meta" and attributes.get("name") == NAME:
                runs.append(json.loads(attributes.get("content") or ""))

    Head().feed(html)
    return runs
