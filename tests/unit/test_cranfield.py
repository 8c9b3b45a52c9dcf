"""Cranfield's files in the layout of BEIR."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "cranfield.py"
FILES = {
    "cran.all.1400": """.I 1
.T
a wing in
a slipstream .
.A
brenckman,m.
.B
1958
.W
a wing in
a slipstream .
  lift was
measured .
.A
a stray letter is no author .
.I 2
.T
heat
.W
""",
    "cran.qry": """.I 001
.W
what lifts
a wing .
.I 004
.W
what is heat .
""",
    "cranqrel_corrected": "1 0 1 3\n1 0 2 5\n2 0 2 1\n",
}


def convert(folder: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["cranfield.py", str(folder), str(out)])
    runpy.run_path(str(SCRIPT), run_name="__main__")


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_layout_is_that_of_beir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions are numbered in their order, as judgements do."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    out = tmp_path / "out"
    convert(tmp_path, out, monkeypatch)
    assert lines(out / "corpus.jsonl") == [
        {"_id": "1", "title": "a wing in a slipstream .", "text": "lift was measured . a stray letter is no author ."},
        {"_id": "2", "title": "heat", "text": ""},
    ]
    assert lines(out / "queries.jsonl") == [
        {"_id": "1", "text": "what lifts a wing ."},
        {"_id": "2", "text": "what is heat ."},
    ]
    assert (out / "qrels" / "train.tsv").read_text() == "query-id\tcorpus-id\tscore\n1\t1\t3\n1\t2\t5\n"
    assert (out / "qrels" / "test.tsv").read_text() == "query-id\tcorpus-id\tscore\n2\t2\t1\n"
