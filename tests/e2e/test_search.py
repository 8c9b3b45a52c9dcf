"""`maskwright finetune` of a retrieval task: sentence-transformers learns, and what it saves is what was scored."""

import json
import shutil

import numpy as np
import pytest
from finetuned import SHAPES, finished_run

from maskwright.cli.main import run as command
from maskwright.config.retrieval import RetrievalConfig, RetrievalOptimizer, read_task_config
from maskwright.core.errors import HealthError, InputError
from maskwright.labels.example import Example
from maskwright.labels.ranking import ranked, record_of_scores
from maskwright.labels.retrieval import read_collection
from maskwright.run.directory import RunDirectory
from maskwright.tasks.models.load import load_model
from maskwright.tasks.search import finetune
from maskwright.tasks.search.finetune import finetune_for_search
from maskwright.tasks.use.embed import vectors

pytestmark = pytest.mark.long
LETTERS = ["fox", "garden", "house", "river", "blue", "rained", "again", "letters"]
FILLERS = ["the", "a", "was", "near", "and"]


def task_of(folder, tokenizer, *, steps=60, learning_rate=2e-3):
    """A retrieval task that only training can solve: a question shares but a filler with the passage that answers."""
    model = finished_run(folder / "model", SHAPES["roberta"], tokenizer)
    pairs = list(zip(LETTERS[::2], LETTERS[1::2], strict=True))
    texts = [(f"{first} {filler} {first}", f"{second} {filler}") for first, second in pairs for filler in FILLERS]
    for name, side in (("queries", 0), ("corpus", 1)):
        records = [json.dumps({"_id": str(n), "text": text[side]}) for n, text in enumerate(texts)]
        (folder / f"{name}.jsonl").write_text("\n".join(records) + "\n")
    for split in ("train", "validation", "test"):
        place = ("train", "validation", "test").index(split)
        rows = [f"{n}\t{n}\t1" for n in range(len(texts)) if (0, 0, 0, 1, 2)[n % 5] == place]
        (folder / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")
    names = {"corpus": "corpus.jsonl", "queries": "queries.jsonl"} | {
        s: f"{s}.tsv" for s in ("train", "validation", "test")
    }
    values = {
        "task": {"kind": "retrieval"},
        "data": {key: str(folder / name) for key, name in names.items()},
        "model": {"init_from": str(model)},
        "batch": {"examples": 8},
        "optimizer": {"learning_rate": learning_rate},
        "schedule": {"steps": steps},
    }
    path = folder / "search.yaml"
    path.write_text(json.dumps(values))
    config = read_task_config(str(path))
    assert isinstance(config, RetrievalConfig)
    return config


def test_it_learns_to_search_twice_alike_and_begins_again(tokenizer, tmp_path):
    config = task_of(tmp_path, tokenizer)
    prompts = {"query": "blue ", "document": "river "}
    own = tmp_path / "model" / "tokenizer" / "config_sentence_transformers.json"
    own.write_text(json.dumps({"prompts": prompts}))
    untrained = config.model_copy(update={"optimizer": RetrievalOptimizer(learning_rate=1e-30)})
    before = finetune_for_search(untrained, str(tmp_path / "untrained"))
    results = finetune_for_search(config, str(tmp_path / "one"))
    assert before["test"]["mrr@10"] < 0.5 < results["test"]["mrr@10"], "a question finds the passages of its word"
    assert results["test"].keys() == {"examples", "ndcg@10", "recall@100", "mrr@10"}
    lines = RunDirectory(str(tmp_path / "one")).read_metrics()
    assert lines[-1]["step"] == 60 and lines[-1]["loss"] < lines[0]["loss"] / 2

    # A training that was stopped begins again, and ends with the same bits.
    again = tmp_path / "again"
    again.mkdir()
    shutil.copy(tmp_path / "one" / "retrieval.json", again)
    (again / "model").mkdir()
    (again / "metrics.jsonl").write_text('{"step": 3, "loss": 9.0}\n')
    finetune_for_search(config, str(again))
    for name in ("results.json", "predictions-test.json", "metrics.jsonl", "model/model.safetensors"):
        assert (again / name).read_bytes() == (tmp_path / "one" / name).read_bytes(), name
    assert not (again / "trainer").exists() and not (again / "start").exists()

    # What it saves is what scored with its prompts, and other commands read it.
    model, collection = load_model(str(again / "model"), bare=True), read_collection(config.data, 0)
    asked, passages = (
        vectors(model, [Example("x", n, text=text) for n, text in enumerate(texts)], 64, "cpu", prompt=name)
        for name, texts in (("query", [query.text for query in collection.test]), ("document", collection.passages))
    )
    cosines = asked @ passages.T / np.linalg.norm(asked, axis=1)[:, None] / np.linalg.norm(passages, axis=1)
    means, _ = record_of_scores(collection.test, ranked(len(asked), lambda some: cosines[some]))
    assert means == pytest.approx(results["test"])

    # Another configuration, or another folder, is left alone; what has ended stays.
    assert finetune_for_search(config, str(again)) == results
    with pytest.raises(InputError, match=r"another training for search: optimizer\.learning_rate: 0\.002 -> 1e-30"):
        finetune_for_search(untrained, str(again))
    with pytest.raises(InputError, match=r"holds checkpoints, which does not belong to a training for search"):
        finetune_for_search(config, str(tmp_path / "model"))


def test_vectors_that_are_not_finite_score_nothing(tokenizer, tmp_path):
    config = task_of(tmp_path, tokenizer, steps=12, learning_rate=1e30)
    with pytest.raises(HealthError, match="its vectors are not finite.*set a lower optimizer.learning_rate") as caught:
        finetune_for_search(config, str(tmp_path / "run"))
    assert caught.value.exit_code == 3
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["fault"] and results["test"]["ndcg@10"] == results["validation"]["mrr@10"] == 0.0
    assert all(np.isfinite(line["loss"]) for line in RunDirectory(str(tmp_path / "run")).read_metrics())


def test_the_command_and_what_it_refuses(tokenizer, tmp_path, capsys, monkeypatch):
    task_of(tmp_path, tokenizer, steps=3)
    task, run = str(tmp_path / "search.yaml"), str(tmp_path / "run")
    assert command(["finetune", task, "--run", run, "--dry-run", "--json"]) == 0
    line = "20 passages, 12 questions to learn from with 12 pairs: 3 steps of 6.7 pairs on average"
    assert json.loads(capsys.readouterr().out) == {"version": 1, "lines": [line], "warnings": []}
    assert not (tmp_path / "run").exists()
    assert command(["finetune", task, "--run", run, "--processes", "2"]) == 2
    assert "error: --processes: is not for task.kind retrieval, which sentence-t" in capsys.readouterr().err

    # It gives signs of life after each batch, of an update and of texts, however seldom it writes a line.
    told = []
    write = RunDirectory.write_status

    def keep(directory, status):
        told.append((status.phase, status.step))
        write(directory, status)

    monkeypatch.setattr(RunDirectory, "write_status", keep)
    monkeypatch.setattr(finetune, "STATUS_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(finetune, "LOG_LINES", 1)
    assert command(["finetune", task, "--run", run, "--json", "--set", "model.weights=random"]) == 0
    ended = json.loads(capsys.readouterr().out)
    assert (ended["run"], ended["state"], ended["status"]["step"]) == (run, "done", 3)
    assert {("training", step) for step in range(3)} < set(told) and told[-1] == ("done", 3)
    assert told.count(("evaluating", 3)) == 1 + 3 + 2  # on entering, a batch of each kind of texts, two rankings
    assert command(["stop", run]) == 2
    assert "is a training for search, which accepts no requests. Fix: end it with Ctrl-C" in capsys.readouterr().err
