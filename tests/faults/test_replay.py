"""A batch that cannot be computed names its text, and any step can be computed again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_record import made_record
from safetensors.numpy import load_file

from maskwright.config.pretraining import RunConfig
from maskwright.core.errors import HealthError, InputError
from maskwright.data.batch import Batch
from maskwright.data.loader import Loader
from maskwright.data.store import TokenStore
from maskwright.engines.torch.passes import Passes
from maskwright.prove.replay import replay
from maskwright.run.directory import RunDirectory
from maskwright.tasks.pretrain import run as task

STEP, WORKER, ROW = 6, 1, 2
KEYS: dict[str, Any] = {
    "schedule.steps": 12,
    "logging.every_steps": 1,
    "checkpoint.save_every_steps": 4,
    "checkpoint.keep": 9,
    "model.hidden_dropout": 0.1,
    "phases": [{"until_step": 9, "causal_share": 0.5}],
}


def poison(monkeypatch: pytest.MonkeyPatch, row: np.ndarray) -> None:
    """This row, as it is masked in that step, has no finite logits and no finite loss."""
    forward = Passes.forward

    def poisoned(self: Passes, batch: Batch, *targets: Any) -> Any:
        return forward(self, batch, *targets) * (np.nan if (batch.input_ids == row).all(1).any() else 1.0)

    monkeypatch.setattr(Passes, "forward", poisoned)


def test_a_batch_that_cannot_be_computed_names_its_documents(
    config: Callable[..., RunConfig], store: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, loader = config(**KEYS), Loader(config(**KEYS), store)
    bad = loader.batch(STEP, WORKER)
    poison(monkeypatch, bad.input_ids[ROW])
    with pytest.raises(HealthError, match=f"step {STEP}: the loss or its gradient is not finite"):
        task.pretrain(run, str(tmp_path / "run"))
    steps = [line["step"] for line in RunDirectory(str(tmp_path / "run")).read_metrics() if "loss" in line]
    assert steps == list(range(1, STEP + 1))

    folder = tmp_path / "run" / "replay" / "step-00000006"
    kept = load_file(folder / f"batch-{WORKER:03d}.safetensors")
    assert np.array_equal(kept["input_ids"], bad.input_ids) and np.array_equal(kept["labels"], bad.labels)
    record = json.loads((folder / "replay.json").read_text())
    assert (record["step"], record["checkpoint"], record["seed"]) == (STEP, "step-00000004", run.seed)
    assert (record["masking_rate"], record["causal_share"]) == (run.masking.rate, 0.5)
    noted = next(row for row in record["rows"] if (row["virtual_worker"], row["row"]) == (WORKER, ROW))
    assert noted["documents"]
    for document in noted["documents"]:
        place, _, line = document["place"].rpartition(":")
        assert Path(place).exists() and int(line) > 0

    result = replay(str(tmp_path / "run"), STEP)
    assert result.error and result.loss is None and (result.start, result.again) == ("step-00000004", 2)
    worst = result.rows[0]
    assert (worst.origin.virtual_worker, worst.origin.row) == (WORKER, ROW) and not np.isfinite(worst.loss)
    assert all(np.isfinite(row.loss) for row in result.rows[1:])
    assert worst.origin.documents[0].place == noted["documents"][0]["place"]
    assert noted["documents"][0]["place"] in result.report().splitlines()[3]
    line = Path(place).read_text().splitlines()[int(line) - 1]
    assert worst.text.split()[0] in Path(place).read_text() and line


@pytest.mark.parametrize("step", [0, 3, 4, 11])
def test_any_step_is_computed_again_to_the_bit(config: Callable[..., RunConfig], tmp_path: Path, step: int) -> None:
    task.pretrain(config(**KEYS), str(tmp_path / "run"))
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    result = replay(str(tmp_path / "run"), step)
    assert result.error is None and result.loss == result.logged_loss is not None
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_a_step_that_the_run_does_not_have_is_refused(config: Callable[..., RunConfig], tmp_path: Path) -> None:
    task.pretrain(config(**KEYS), str(tmp_path / "run"))
    with pytest.raises(InputError, match="step 12 is not one of the run's 12"):
        replay(str(tmp_path / "run"), 12)
    record = tmp_path / "run" / "config.resolved.json"
    record.write_text(json.dumps(made_record("finetune").to_json()))
    with pytest.raises(InputError, match="run: was fine-tuned, but replay computes only steps of pretraining. Fix: "):
        replay(str(tmp_path / "run"), 3)
