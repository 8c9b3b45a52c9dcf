"""A run's record, and its checkpoints, without a run."""

from pathlib import Path
from typing import Any, Literal

import numpy as np

from maskwright.config.finetuning import build_finetune_config
from maskwright.config.pretraining import build_config
from maskwright.config.settings import flat
from maskwright.engines.base import TrainState
from maskwright.run.directory import RunDirectory
from maskwright.run.record import RecordedText, RunRecord
from maskwright.training import checkpoint

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


def saved(folder: Path, *steps: int, best: int | None = None, numbers: int = 100) -> RunDirectory:
    """A run with checkpoints of these steps, whose numbers are the step's."""
    directory = RunDirectory(str(folder))
    folder.mkdir(exist_ok=True)
    directory.write_record(made_record())
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    for step in steps:
        arrays = {"a": np.full(numbers, step, np.float32)}
        record = {"counters": {}} | ({} if best is None else {"best_step": best})
        checkpoint.save(directory.checkpoints, TrainState(step, arrays, {"exp_avg": arrays}), record, keep=9)
    return directory
