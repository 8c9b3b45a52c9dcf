"""A batch that cannot be computed names its text."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from maskwright.core.errors import HealthError
from maskwright.data.loader import Loader
from maskwright.engines.torch.passes import Passes
from maskwright.run.directory import RunDirectory
from maskwright.tasks.pretrain import run as task

STEP, WORKER, ROW = 6, 1, 2
KEYS = {
    "schedule.steps": 12,
    "logging.every_steps": 1,
    "checkpoint.save_every_steps": 4,
    "checkpoint.keep": 9,
    "model.hidden_dropout": 0.1,
    "phases": [{"until_step": 9, "causal_share": 0.5}],
}


def poison(monkeypatch, row):
    """This row, as it is masked in that step, has no finite logits and no finite loss."""
    forward = Passes.forward

    def poisoned(self, batch, *targets):
        return forward(self, batch, *targets) * (np.nan if (batch.input_ids == row).all(1).any() else 1.0)

    monkeypatch.setattr(Passes, "forward", poisoned)


def test_a_batch_that_cannot_be_computed_names_its_documents(config, store, tmp_path, monkeypatch):
    run, loader = config(**KEYS), Loader(config(**KEYS), store)
    bad = loader.batch(STEP, WORKER)
    poison(monkeypatch, bad.input_ids[ROW])
    with pytest.raises(HealthError, match=f"step {STEP}: the loss or its gradient is not finite"):
        task.pretrain(run, str(tmp_path / "run"))
    steps = [line["step"] for line in RunDirectory(str(tmp_path / "run")).read_metrics() if "loss" in line]
    assert steps == list(range(1, STEP + 1))

    folder = tmp_path / "run" / "not-finite" / "step-00000006"
    kept = load_file(folder / f"batch-{WORKER:03d}.safetensors")
    assert np.array_equal(kept["input_ids"], bad.input_ids) and np.array_equal(kept["labels"], bad.labels)
    record = json.loads((folder / "step.json").read_text())
    assert (record["step"], record["checkpoint"], record["seed"]) == (STEP, "step-00000004", run.seed)
    assert (record["masking_rate"], record["causal_share"]) == (run.masking.rate, 0.5)
    noted = next(row for row in record["rows"] if (row["virtual_worker"], row["row"]) == (WORKER, ROW))
    assert noted["documents"]
    for document in noted["documents"]:
        place, _, line = document["place"].rpartition(":")
        assert Path(place).exists() and int(line) > 0
