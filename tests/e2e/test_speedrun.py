"""The benchmark that races recipes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from reference.stored import documents_of

from maskwright.data.store import TokenStore

ROOT = Path(__file__).resolve().parents[2]
RECIPE = {
    "data": {"store": "none", "seq_len": 32},
    "model": {"size": "nano", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "max_seq_len": 128},
    "optimizer": {"learning_rate": 1e-2},
    "schedule": {"steps": 6},
    "evaluation": {"max_rows": 4},
    "engine": {"device": "cpu", "threads": 1},
    "logging": {"report_to": [], "every_steps": 1},
}


@pytest.mark.long
def test_the_speedrun_trains_judges_and_goes_on(corpus, tmp_path):
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(RECIPE))
    words = [sys.executable, ROOT / "benchmarks" / "speedrun", "own", "tiny.yaml", "--text", corpus, "--target", "5.9"]
    for _ in range(2):
        said = subprocess.run([*words, "--seeds", "2"], cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True)
        assert "The claim does not hold, p must be below 0.01, and 3 seeds are the least" in said.stdout
    record = json.loads((tmp_path / "record" / "record.json").read_text())
    assert [one["seed"] for one in record["results"]] == record["seeds"] and len(record["seeds"]) == 2
    assert len(list(tmp_path.glob("speedrun/runs/*/*/log.txt"))) == 2  # the second command trained nothing
    of, judged = (TokenStore(str(tmp_path / "speedrun" / "own" / name)) for name in ("store", "judged"))
    held = {one.tobytes() for one in documents_of(judged.split("valid"))}
    seen = {one.tobytes() for side in ("train", "valid") for one in documents_of(of.split(side))}
    assert len(held) > 5 and seen and not held & seen
    subprocess.run([sys.executable, ROOT / "benchmarks" / "speedrun" / "table.py"], check=True)
    changed = subprocess.run(["git", "status", "--porcelain", "benchmarks/speedrun"], cwd=ROOT, stdout=subprocess.PIPE)
    assert changed.stdout == b""  # the table and the plot are those of the records
