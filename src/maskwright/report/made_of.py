"""What a report carries for programs: all that `maskwright reproduce` needs of a run, as JSON in the page's head."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

from maskwright.core.secrets import redact_all
from maskwright.report.frame import escaped
from maskwright.report.run import RecordedRun

NAME, FORMAT = "maskwright-run", 1
KEYS = ("config", "store_fingerprint", "tokenizer_fingerprint", "base_weights", "base", "threads", "lineage", "changes")
"""Of the run's record."""


def made_of(run: RecordedRun) -> dict[str, Any]:
    """A run without a checkpoint has no `weights_sha256`."""
    started, step = run.at("started"), run.saved.get("step")
    return {
        "format": FORMAT,
        "run": run.location,
        "kind": "finetune" if run.is_finetuning else "pretrain",
        **{key: run.record.get(key) for key in KEYS},
        "environment": run.environment,
        "engine": started[-1].get("engine") if started else None,
        "step": step,
        "ended": run.look.state == "done" or step == run.of,
        "weights_sha256": run.saved.get("weights_sha256"),
        "valid_loss": run.last("valid_loss"),
    }


def can_be_reproduced(run: RecordedRun) -> bool:
    """Whether `maskwright reproduce` takes it: one that has ended, with the configuration that it began with."""
    made = made_of(run)
    return bool(made["weights_sha256"] and made["ended"] and not made["changes"])


def in_head(run: RecordedRun) -> str:
    """HTML."""
    content = json.dumps(redact_all(made_of(run)), ensure_ascii=False)
    return f'<meta name="{NAME}" content="{escaped(content)}">'


def read_page(html: str) -> list[dict[str, Any]]:
    """What the runs of a page were made of; none of a page that carries nothing. Raises `ValueError` for damage."""
    found: list[dict[str, Any]] = []

    class Head(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            own = dict(attrs)
            if tag == "meta" and own.get("name") == NAME:
                found.append(json.loads(own.get("content") or ""))

    Head().feed(html)
    return found
