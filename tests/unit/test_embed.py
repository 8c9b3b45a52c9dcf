"""Vectors of texts beside those of `transformers`. `tests/parity` has `sentence-transformers` beside them."""

import json

import numpy as np
import pyarrow.parquet
import pytest
import torch
import transformers
from finetuned import finished_run, shape

from maskwright.cli.main import run as command
from maskwright.tasks.models.load import load_model
from maskwright.tasks.use import embed as module

GENERATOR = np.random.default_rng(4)
WORDS = ["fox", "garden", "the", "rained", "Größe", "letters,", "again!", "blue"]
TEXTS = [" ".join(GENERATOR.choice(WORDS, GENERATOR.integers(1, 50))) for _ in range(20)]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS), encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", ["roberta", "modernbert"])
def test_vectors_are_those_of_transformers(kind, source, tokenizer, tmp_path, monkeypatch):
    """20 texts of every length, the longest cut, eight at a time."""
    monkeypatch.setattr(module, "EXAMPLES_AT_ONCE", 8)
    run, folder = str(finished_run(tmp_path / "run", shape(kind, "masked_lm"), tokenizer)), tmp_path / "folder"
    out = tmp_path / "vectors.npy"
    assert command(["embed", run, "--input", str(source), "--to", str(out), "--device", "cpu"]) == 0
    assert command(["export", run, "--to", str(folder), "--sentence-transformers", "dense"]) == 0
    ours = np.load(out)
    assert ours.shape == (20, 32) and ours.dtype == np.float32
    tokens = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    model = transformers.AutoModel.from_pretrained(str(folder), local_files_only=True).eval()
    for text, vector in zip(TEXTS, ours, strict=True):
        inputs = tokens(text, truncation=True, max_length=64, return_tensors="pt")
        with torch.no_grad():
            hidden = model(input_ids=inputs["input_ids"]).last_hidden_state[0]
        np.testing.assert_allclose(vector, hidden.mean(0).numpy(), atol=2e-5)
    beside = tmp_path / "vectors.parquet"
    assert command(["embed", str(folder), "--input", str(source), "--to", str(beside), "--device", "cpu"]) == 0
    table = pyarrow.parquet.read_table(beside)
    assert table.column("text").to_pylist() == TEXTS
    np.testing.assert_allclose(np.array(table.column("embedding").to_pylist()), ours, atol=1e-6)
    path = folder / "tokenizer_config.json"  # the limit of folders of other tools, as transformers cuts at it
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": 9}))
    (folder / "modules.json").unlink()
    assert load_model(str(folder), bare=True).max_seq_len == 9
    faster = ["--to", str(out), "--device", "cpu", "--dtype", "bf16"]
    assert command(["embed", run, "--input", str(source), *faster]) == 0
    assert 1e-4 < np.abs(np.load(out) - ours).max() < 0.03 * np.abs(ours).max()


def test_mistakes(source, tokenizer, tmp_path, capfd, monkeypatch):
    run = str(finished_run(tmp_path / "run", shape("roberta", "regression"), tokenizer))
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("sentence1,sentence2\na,b\n")
    for words, said in (
        (["--input", str(source), "--to", str(tmp_path / "a.csv")], "cannot be written. Fix: give a name that ends in"),
        (["--input", str(pairs), "--to", str(tmp_path / "a.npy")], "has two texts. Fix: name the column of one"),
    ):
        assert command(["embed", run, *words]) == 2
        assert said in capfd.readouterr().err.splitlines()[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pairs.csv", "run"]
    given = ["--input", str(pairs), "--text-column", "sentence2", "--to", str(tmp_path / "a.npy"), "--device", "cpu"]
    assert command(["embed", run, *given]) == 0 and np.load(tmp_path / "a.npy").shape == (1, 32)
    assert "a.npy: 1 vector of 32 numbers" in capfd.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr("os.access", lambda place, _: place != str(tmp_path))  # tests may run as root, who may write
        patch.setattr(module, "vectors", None)
        assert command(["embed", run, *given]) == 2, "before the work"
    denied = f"error: {tmp_path}: cannot be written to: permission denied. Fix: check the permissions, or choose"
    assert capfd.readouterr().err.startswith(denied)


def test_texts_that_the_tokenizer_cannot_read_are_told(tokenizer_of, tmp_path, capfd):
    """Two texts of unknown tokens have one vector, and one label."""
    run = finished_run(tmp_path / "run", shape("bert", "single_label_classification"), tokenizer_of("bert"))
    (tmp_path / "a.txt").write_text("the fox\nᐃᓄᒃ\nᐅᖃᓕ\n")
    for verb, output in (("embed", "a.npy"), ("predict", "a.csv")):
        words = [verb, str(run), "--input", str(tmp_path / "a.txt"), "--to", str(tmp_path / output)]
        assert command([*words, "--device", "cpu"]) == 0
        assert "warning: 2 of 3 texts have tokens that are unknown to the tokenizer; 'ᐃᓄᒃ' at" in capfd.readouterr().err
    assert np.ptp(np.load(tmp_path / "a.npy")[1:], axis=0).max() < 1e-6
