"""Fine-tuned models as folders: what is exported is what `transformers` computes, and it loads again with its head."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from finetuned import LABELS, SHAPES, TASKS, finished_run, shape
from safetensors.numpy import save_file

from maskwright.config.finetuning import LABELLED, Task
from maskwright.core import storage
from maskwright.core.errors import InputError, ModelError
from maskwright.labels.encode import encode
from maskwright.labels.example import Example
from maskwright.model.config import SEQUENCE_TASKS, ModelConfig, TaskKind
from maskwright.model.hf.config import read_hf_config, read_labels, to_hf_config
from maskwright.model.initial import initial_parameters
from maskwright.model.torch.networks import build
from maskwright.tasks.export.hugging_face import export
from maskwright.tasks.models.load import TrainedModel, load_model


@pytest.mark.parametrize(
    ("kind", "task"),
    [
        (kind, task)
        for kind in SHAPES
        for task in TASKS
        if task != "question_answering" or SHAPES[kind].facts.answers_questions
    ],
)
def test_export_of_every_head_is_proven_and_loads_again(
    kind: str, task: TaskKind, tokenizer: str, tmp_path: Path
) -> None:
    """`export` compares logits and tokens with the class that config.json names, and raises if they differ."""
    config = shape(kind, task)
    run = load_model(str(finished_run(tmp_path / "run", config, tokenizer)))
    assert run.task and run.task.doc_stride == 8 and run.config == config
    folder = str(tmp_path / "model")
    storage.write_json(str(tmp_path / "run" / "results.json"), {"step": 7, "test": {"examples": 3, "loss": 0.5}})
    assert export(run, folder) < 1e-5
    assert "- test, 3 examples: loss 0.5000" in (tmp_path / "model" / "README.md").read_text()
    again = load_model(folder)
    assert (again.config, again.labels) == (config, run.labels) == (config, LABELS if task in LABELLED else ())
    assert (again.max_seq_len, again.may_be_none) == (run.max_seq_len, run.may_be_none)
    own = {"doc_stride": 8} if task == "question_answering" else {}
    assert again.max_seq_len == 64 and again.task == Task(kind=task, **own)
    assert all(np.array_equal(value, run.parameters[name]) for name, value in again.parameters.items())
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        written = json.load(file)
    if task in LABELLED:
        assert written["id2label"] == {"0": "O", "1": "B-PER", "2": "I-PER"} and written["label2id"]["I-PER"] == 2
    assert written.get("problem_type") == (task if task in SEQUENCE_TASKS else None)
    if kind == "roberta":
        assert export(again, str(tmp_path / "again")) < 1e-5


@pytest.mark.parametrize("kind", ["roberta", "modernbert"])
def test_words_are_tagged_alike_by_the_exported_folder(kind: str, tokenizer: str, tmp_path: Path) -> None:
    """A tagger's folder is used on words, as a reader of its card would."""
    run = load_model(str(finished_run(tmp_path / "run", shape(kind, "token_classification"), tokenizer)))
    folder = str(tmp_path / "model")
    export(run, folder)
    words = ["The", "fox", "Größe", "saw", "the", "garden."]
    encoded = encode(
        [Example("a", 1, words=tuple(words))], run.tokenizer_folder, Task(kind="token_classification"), (), 64
    )
    row = torch.from_numpy(encoded.row(0).astype(np.int64))[None]
    positions = torch.arange(row.shape[1])[None]
    places = torch.from_numpy(encoded.targets.position.astype(np.int64))  # type: ignore[union-attr]
    ours = build(run.config, run.parameters)(row, positions, torch.ones_like(row), places)
    theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder, local_files_only=True).eval()
    given = theirs(words, is_split_into_words=True, return_tensors="pt")
    said = model(input_ids=given["input_ids"], attention_mask=given["attention_mask"]).logits[0]
    first = [given.word_ids().index(word) for word in range(len(words))]
    assert (ours - said[first]).abs().max() < 1e-5
    assert model.config.id2label[int(said[first[0]].argmax())] in LABELS
    given = theirs(" ".join(words), return_offsets_mapping=True)
    spans = [given["offset_mapping"][given.word_ids().index(word)] for word in range(2)]
    assert [begin for begin, _ in spans] == [0, len("The ")] and all(begin < end for begin, end in spans)
    apart = theirs(words, is_split_into_words=True, return_offsets_mapping=True)
    assert all(apart["offset_mapping"][apart.word_ids().index(word)][0] == 0 for word in range(len(words)))


def write_folder(folder: Path, config: ModelConfig, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(to_hf_config(config) | changes))
    save_file(initial_parameters(config, 0), str(folder / "model.safetensors"))
    return folder


@pytest.mark.parametrize(
    ("changes", "task", "labels"),
    [
        ({"problem_type": None}, "single_label_classification", ("LABEL_0", "LABEL_1", "LABEL_2")),
        (
            {"problem_type": "multi_label_classification"},
            "multi_label_classification",
            ("LABEL_0", "LABEL_1", "LABEL_2"),
        ),
        ({"problem_type": None, "id2label": {"0": "x"}}, "regression", ()),
        ({"problem_type": None, "id2label": None}, "single_label_classification", ("LABEL_0", "LABEL_1")),
        (
            {"architectures": ["RobertaForTokenClassification"]},
            "token_classification",
            ("LABEL_0", "LABEL_1", "LABEL_2"),
        ),
        ({"architectures": ["RobertaModel"]}, "masked_lm", ()),
    ],
)
def test_heads_of_folders_by_the_rules_of_transformers(
    changes: dict[str, Any], task: str, labels: tuple[str, ...], tmp_path: Path
) -> None:
    folder = str(write_folder(tmp_path / "model", shape("roberta", "single_label_classification"), **changes))
    config = read_hf_config(folder)
    assert (config.task, read_labels(folder, config)) == (task, labels)
    assert config.classifier_dropout_prob == (0.0 if task == "masked_lm" else 0.25)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"problem_type": "ranking"}, "problem_type is 'ranking'"),
        ({"id2label": {"0": "a", "2": "b"}}, "id2label does not name the outputs from 0 on"),
        ({"id2label": {"0": "a", "1": "a"}}, "id2label gives two outputs one name"),
        ({"id2label": ["a", "b"]}, "id2label does not name the outputs"),
        ({"classifier_dropout": 2.0}, "classifier_dropout is 2.0"),
        ({"classifier_pooling": "mean"}, "classifier_pooling is 'mean', only 'cls' is supported"),
        ({"architectures": ["ModernBertForQuestionAnswering"]}, "has 3 outputs for question_answering"),
    ],
)
def test_heads_that_cannot_be_read(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", shape("modernbert", "single_label_classification"), **changes)
    with pytest.raises(ModelError, match=said):
        read_hf_config(str(folder))


def test_runs_whose_labels_are_not_their_heads(tokenizer: str, tmp_path: Path) -> None:
    folder = finished_run(tmp_path / "run", shape("roberta", "token_classification"), tokenizer)
    record = json.loads((folder / "config.resolved.json").read_text())
    for change, said in (
        ({"labels": ["O"]}, "`labels` do not match 3"),
        ({"config": record["config"] | {"task.kind": "x"}}, "task.kind is 'x'"),
    ):
        (folder / "config.resolved.json").write_text(json.dumps(record | change))
        with pytest.raises(InputError, match=said):
            load_model(str(folder))


def test_commands_for_masked_lms_refuse_other_heads(tokenizer: str, tmp_path: Path) -> None:
    from maskwright.tasks.use.fill import fill

    model: TrainedModel = load_model(str(finished_run(tmp_path / "run", shape("roberta", "regression"), tokenizer)))
    with pytest.raises(InputError, match="is a RobertaForSequenceClassification, without a masked-LM head"):
        fill(model, "a <mask>")
