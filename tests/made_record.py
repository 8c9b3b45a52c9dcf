"""A run's record, without a run."""

from __future__ import annotations

from typing import Any, Literal

from maskwright.config.finetuning import build_finetune_config
from maskwright.config.pretraining import build_config
from maskwright.config.settings import flat
from maskwright.run.record import RecordedText, RunRecord

PRETRAINING = {"data": {"store": "none"}, "schedule": {"steps": 7}}
FINETUNING = {"data": {"train": "none"}, "schedule": {"steps": 7}, "model": {"init_from": "none"}}


def made_record(
    kind: Literal["pretrain", "finetune"] = "pretrain", keys: dict[str, Any] | None = None, **more: Any
) -> RunRecord:
    """`keys`: dotted keys that differ from the defaults. `more`: other fields."""
    config = build_config(PRETRAINING, "") if kind == "pretrain" else build_finetune_config(FINETUNING, "")
    text, digests = (
        RecordedText("none", "none"),
        dict.fromkeys(("digest", "tokenizer_fingerprint", "roles_sha256"), "none"),
    )
    given: dict[str, Any] = {"steps": 7, "model": {}, "dtype": "float32", "train": text, "held_out": {"": text}}
    given |= {"keys": flat(config) | (keys or {}), "began_from": None}
    return RunRecord(kind=kind, **given | digests | more)
