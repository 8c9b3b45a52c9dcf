"""`maskwright reproduce` of a run; and the benchmark that races recipes, which shares its comparison."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from command_line import maskwright
from reference.stored import documents_of

from maskwright.core.errors import InputError, VerificationError
from maskwright.data.store import TokenStore
from maskwright.prove import reproduce as task

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


def test_a_run_is_reproduced(store: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(store.location, "store")
    Path("tiny.yaml").write_text(yaml.safe_dump(RECIPE | {"data": {"store": "store", "seq_len": 32}}))
    maskwright("pretrain", "tiny.yaml", "--run", "run", cwd=tmp_path)
    said = maskwright("reproduce", "run", "--check", cwd=tmp_path)
    assert "tokenizer: " in said and "nothing was trained; it would be compared bit by bit" in said
    assert not Path("reproduced").exists()
    said = maskwright("reproduce", "run", cwd=tmp_path)
    assert said.splitlines()[-1] == "  reproduced: the weights are bit-identical"
    Path("store").rename("moved")
    maskwright("reproduce", "run", "--check", "--store", "moved", cwd=tmp_path)
    Path("moved").rename("store")
    run, record = task._original("run")
    older = {"engine.kind": "jax", "engine.device": "cuda", "engine.reproducibility": "exact"}
    of_jax = replace(record, keys=record.keys | older)  # as records were before these were refused
    assert of_jax.pretraining.engine.device == "cuda"
    assert task._keys(of_jax, "run", None)["engine.reproducibility"] == "fast"
    other = replace(record, train=replace(record.train, fingerprint="0" * 64))
    monkeypatch.setattr(task, "_original", lambda what: (run, other))
    with pytest.raises(InputError, match=r"run: its text has the fingerprint \w+, not 0{16}\. Fix: restore"):
        task.reproduce("run", "again", check=True)


@pytest.mark.parametrize(
    ("other", "p", "says"),
    [
        ([], None, "NOT reproduced: the weights differ on a machine of the same kind"),
        (["torch 1.0, here 2.0"], None, "not judged: one run shows no spread"),
        (["torch 1.0, here 2.0"], 0.02, "  reproduced: the values differ with p = 0.02"),
        (["torch 1.0, here 2.0"], 0.002, "NOT reproduced: the values differ with p = 0.002"),
    ],
)
def test_other_bits_are_judged_by_the_kind_of_machine(other: list[str], p: float | None, says: str) -> None:
    found = task.Reproduction("run", {}, other, [1.0], [1.5], exact=False, p=p)
    assert says in found.report() and found.differs == says.startswith("NOT")
    if found.differs:
        with pytest.raises(VerificationError):
            task.require_reproduced(found)
    else:
        task.require_reproduced(found)


def test_a_machine_is_of_another_kind_by_each_fact() -> None:
    facts = {"hardware": {"cpu": "Zen 5", "instructions": "avx2"}, "packages": {"torch": "1.0"}, "maskwright": "0.1"}
    first = task.kind_of(facts, engine="cpu, fp32")
    second = task.kind_of({**facts, "packages": {"torch": "2.0"}}, engine=None)
    assert task.other_kind(first, second) == ["engine cpu, fp32, here not known", "torch 1.0, here 2.0"]
    assert task.other_kind(first, first) == []


@pytest.mark.long
def test_the_speedrun_trains_judges_and_goes_on(corpus: Path, tmp_path: Path) -> None:
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
