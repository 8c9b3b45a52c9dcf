"""ONNX files beside the classes of `transformers`: the same logits at any shape, scores that are the product's own, and
nothing left of what fails."""

import json
import os
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
import transformers
from finetuned import SHAPES, TASKS, finished_run, shape, write_examples

from maskwright.cli import main as cli
from maskwright.config.pretraining import EngineSection
from maskwright.core.errors import InputError, VerificationError
from maskwright.labels.dataset import read_dataset
from maskwright.model.config import SEQUENCE_TASKS
from maskwright.run.directory import RunDirectory
from maskwright.run.record import RecordedText
from maskwright.tasks.export.hugging_face import export
from maskwright.tasks.measure.held_out import evaluate_sources
from maskwright.tasks.measure.labelled import evaluate_labelled
from maskwright.tasks.models.load import load_model
from maskwright.tasks.use.predict import TextOptions

onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")


def shape_of(kind, task):
    return SHAPES[kind] if task == "masked_lm" else shape(kind, task)


def rows(count, length, padded):
    ids = np.random.default_rng(count).integers(5, 400, (count, length))
    mask = np.ones_like(ids)
    if padded:
        mask[1:, length // 3 :] = 0
        ids[mask == 0] = 1
    return ids, mask


EVERY_HEAD = ("roberta", "modernbert", "bert", "distilbert", "mpnet")
"""Of other families one task of texts is enough: further heads add no kind of node to their graphs."""


@pytest.mark.parametrize(
    ("kind", "task"),
    [
        (kind, task)
        for task in ("masked_lm", *TASKS)
        for kind in SHAPES
        if (kind in EVERY_HEAD or task in ("masked_lm", TASKS[0], "question_answering"))
        and (task != "question_answering" or SHAPES[kind].facts.answers_questions)
    ],
)
def test_logits_are_those_of_transformers_at_any_shape(kind, task, tokenizer, tmp_path):
    """At batches and lengths that `export` does not look at. In int8 they are near, and the embeddings are too."""
    run = load_model(str(finished_run(tmp_path / "run", shape_of(kind, task), tokenizer)))
    folder = tmp_path / "model"
    export(replace(run, run=None), str(folder), onnx=True)
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    theirs = getattr(transformers, name).from_pretrained(folder, local_files_only=True).eval()
    names = ["start_logits", "end_logits"] if task == "question_answering" else ["logits"]
    near = {}
    for file in ("model.onnx", "model_int8.onnx"):
        session = onnxruntime.InferenceSession(str(folder / "onnx" / file), providers=["CPUExecutionProvider"])
        takes = [one.name for one in session.get_inputs()]
        assert takes == [
            "input_ids",
            "attention_mask",
            *(["token_type_ids"] if shape_of(kind, task).token_type_stride else []),
        ]
        assert [one.name for one in session.get_outputs()] == names
        off = []
        for ids, mask in (rows(1, 1, False), rows(5, 7, True), rows(3, 61, True), rows(1, 64, False)):
            with torch.no_grad():
                types = np.broadcast_to((np.arange(ids.shape[1]) > 2).astype(np.int64), ids.shape)
                given = dict(zip(takes, (ids, mask, types), strict=False))
                expected = theirs(**{key: torch.from_numpy(value.copy()) for key, value in given.items()})
            said = session.run(names, given)
            for one, found in zip(names, said, strict=True):
                assert found.shape == tuple(expected[one].shape)
                difference = np.abs(found - expected[one].numpy())
                off.append(difference if task in SEQUENCE_TASKS else difference[mask == 1])
        near[file] = max(float(one.max()) for one in off)
    spread = float(np.std(expected[names[0]].detach().numpy()))
    assert near["model.onnx"] < 1e-4 < near["model_int8.onnx"] < max(spread, 1.0)
    sizes = [os.path.getsize(folder / file) for file in ("model.safetensors", "onnx/model_int8.onnx")]
    assert task != "masked_lm" or sizes[1] < sizes[0]
    card = (folder / "README.md").read_text()
    assert "| onnx/model_int8.onnx |" in card and "6 rows of random ids" in card


def table(folder):
    """The model card's figures, by file."""
    lines = [line.strip("| ").split(" | ") for line in (folder / "README.md").read_text().splitlines() if "|" in line]
    head, _, *rest = lines
    return {
        row[0]: {name: float(cell.replace(",", "")) for name, cell in zip(head, row[1:], strict=True)} for row in rest
    }


def record_of(run, keys, text=None):
    """`text`: what the run trains on; by default the labelled files of `keys`."""
    directory = RunDirectory(str(run))
    record = directory.read_record()
    record = replace(record, keys=record.keys | keys)
    if text is None and os.path.exists(keys["data.train"]):
        config = record.finetuning
        text = RecordedText("examples", read_dataset(config.data, config.task, config.seed).fingerprint)
    text = text or record.train
    directory.write_record(replace(record, train=text, held_out={"": text}))


@pytest.mark.parametrize("task", ["token_classification", "question_answering"])
def test_scores_are_those_of_evaluate_on_the_validation_file(task, tokenizer, tmp_path):
    """Padded batches of one text a row, beside packed rows of our own network; by the command."""
    run = finished_run(tmp_path / "run", shape("modernbert", task), tokenizer)
    splits = (("train", 9), ("validation", 30))
    files = {f"data.{split}": write_examples(tmp_path, task, split, count, 3) for split, count in splits}
    record_of(run, {"seed": 0, "data.max_seq_len": 32, **files})
    expected = evaluate_labelled(load_model(str(run)), files["data.validation"], TextOptions(), "cpu").metrics
    assert cli.run(["export", str(run), "--to", str(tmp_path / "model"), "--onnx"]) == 0
    found = table(tmp_path / "model")
    assert "30 examples of the validation split" in (tmp_path / "model" / "README.md").read_text()
    for file in ("model.safetensors", "onnx/model.onnx"):
        assert {name: found[file][name] for name in expected} == pytest.approx(expected, abs=5e-5)
    assert set(found["onnx/model_int8.onnx"]) == {"MB", *expected, "texts/s"}


def test_a_masked_lm_run_is_measured_on_its_held_out_text(store, tokenizer, tmp_path):
    run = finished_run(tmp_path / "run", SHAPES["roberta"], tokenizer)
    text = RecordedText(store.location, store.fingerprint)
    record_of(run, {"data.seq_len": 32, "data.packing": "documents"}, text)
    scores = evaluate_sources(load_model(str(run)), {"": store}, engine=EngineSection(dtype="fp32"))
    expected = asdict(scores.sources[""])
    export(load_model(str(run)), str(tmp_path / "model"), onnx=True)
    for found in [table(tmp_path / "model")[file] for file in ("model.safetensors", "onnx/model.onnx")]:
        assert (found["loss"], found["accuracy"]) == pytest.approx((expected["loss"], expected["accuracy"]), abs=1e-4)


def test_what_is_wrong_leaves_nothing(tokenizer, tmp_path, monkeypatch, capsys):
    from maskwright.model.onnx import graph

    run = finished_run(tmp_path / "run", shape("roberta", "regression"), tokenizer)
    whole = graph.make_model

    def damaged(config, parameters):
        name = "roberta.encoder.layer.1.attention.output.dense.bias"
        return whole(config, {**parameters, name: parameters[name] * np.float32(1.1)})

    with monkeypatch.context() as patch:
        patch.setattr(graph, "make_model", damaged)
        with pytest.raises(VerificationError, match="logits differ by .* in onnxruntime from transformers"):
            export(load_model(str(run)), str(tmp_path / "model"), onnx=True)
        patch.setattr(graph, "LARGEST_FILE", 1000)
        with pytest.raises(InputError, match="an ONNX file holds at most 1.0 kB"):
            export(load_model(str(run)), str(tmp_path / "model"), onnx=True)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "onnxruntime", None)
        assert cli.run(["export", str(run), "--to", str(tmp_path / "model"), "--onnx"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("error: --onnx: the package onnxruntime is not installed.") and "[onnx]" in said
    assert os.listdir(tmp_path) == ["run"]
    record_of(run, {"seed": 0, "data.train": str(tmp_path / "gone.csv")})
    export(load_model(str(run)), str(tmp_path / "model"), onnx=True)
    assert "compared on random ids, not on the run's own data: " in capsys.readouterr().err
