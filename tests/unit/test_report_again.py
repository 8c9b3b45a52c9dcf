"""What a report says to do is done: the commands that make a run again."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import documents

from maskwright.config.settings import nested
from maskwright.report import configuration
from maskwright.report.document import Code
from maskwright.report.run import read

Call = Callable[..., tuple[int, str]]
KEYS = {
    "data.store": "store",
    "data.seq_len": 32,
    "model.size": "nano",
    "model.hidden_size": 32,
    "model.num_attention_heads": 2,
    "schedule.steps": 4,
    "schedule.warmup_steps": 1,
    "batch.micro_batch_rows": 4,
    "engine.device": "cpu",
    "engine.dtype": "fp32",
    "engine.threads": 1,
    "evaluation.max_rows": 8,
    "logging.every_steps": 1,
    "logging.report_to": [],
}


def fingerprint() -> str:
    return str(json.loads(Path("store/manifest.json").read_text())["fingerprint"])


def test_the_printed_commands_make_the_run_again(
    tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    pytest.importorskip("py3langid", reason="the extra `clean` is not installed")
    monkeypatch.chdir(tmp_path)
    stories = ["\n".join([*lines, f"Write to story{at}@example.org."]) for at, lines in enumerate(documents(60))]
    foreign = "Der alte Lehrer hat gestern im Garten viele Briefe geschrieben, und dann hat es geregnet."
    Path("a.txt").write_text("\n\n".join([*stories, foreign]) + "\n")
    Path("config.yaml").write_text(json.dumps(nested(KEYS)))
    typed = ["--tokenizer", tokenizer, "--to", "store", "--valid-fraction", "0.2", "--layout", "sentences"]
    assert call("data", "prepare", "a.txt", *typed, "--language", "en", "--mask-pii", "email")[0] == 0
    manifest = json.loads(Path("store/manifest.json").read_text())
    assert manifest["counts"]["left_out"] and manifest["command"][:4] == ["data", "prepare", "a.txt", "--tokenizer"]
    assert call("pretrain", "config.yaml", "--run", "runs/one")[0] == 0
    run = read("runs/one")
    first, steps, *_ = (block.text for block in configuration.how_to_repeat(run) if isinstance(block, Code))
    assert first == "maskwright reproduce runs/one"
    assert call("reproduce", "runs/one", "--check")[0] == 0
    commands = [shlex.split(line)[1:] for line in steps.splitlines() if not line.startswith("#")]
    assert [words[0] for words in commands] == ["data", "pretrain", "export"]
    made = fingerprint()
    code, told = call(*commands[0])
    assert code == 0 and "already prepared" in told
    shutil.rmtree("store")
    for words in commands:
        assert call(*words)[0] == 0, words
    assert fingerprint() == made
    weights = [
        next(Path(run).glob("checkpoints/step-*4/model.safetensors")).read_bytes() for run in ("runs/one", "NEW")
    ]
    assert weights[0] == weights[1]
