"""Fine-tuned models as folders: what is exported is what `transformers` computes, and it loads again with its head."""

import json
import os

import numpy as np
import pytest
from finetuned import LABELS, SHAPES, TASKS, finished_run, save_model, shape

from maskwright.config.finetuning import LABELLED, Task
from maskwright.core import storage
from maskwright.core.errors import InputError, ModelError
from maskwright.model.config import SEQUENCE_TASKS
from maskwright.model.hf.config import read_hf_config, read_labels
from maskwright.model.initial import initial_parameters
from maskwright.tasks.export.hugging_face import export
from maskwright.tasks.models.load import load_model


@pytest.mark.parametrize(
    ("kind", "task"),
    [
        (kind, task)
        for kind in SHAPES
        for task in TASKS
        if task != "question_answering" or SHAPES[kind].facts.answers_questions
    ],
)
def test_export_of_every_head_is_proven_and_loads_again(kind, task, tokenizer, tmp_path):
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


THREE = ("LABEL_0", "LABEL_1", "LABEL_2")


@pytest.mark.parametrize(
    ("changes", "task", "labels"),
    [
        ({"problem_type": None}, "single_label_classification", THREE),
        ({"problem_type": "multi_label_classification"}, "multi_label_classification", THREE),
        ({"problem_type": None, "id2label": {"0": "x"}}, "regression", ()),
        ({"id2label": {"0": 5, "1": 7}}, "single_label_classification", ("5", "7")),
        ({"problem_type": None, "id2label": None}, "single_label_classification", THREE[:2]),
        ({"architectures": ["RobertaForTokenClassification"]}, "token_classification", THREE),
        ({"architectures": ["RobertaModel"]}, "masked_lm", ()),
    ],
)
def test_heads_of_folders_by_the_rules_of_transformers(changes, task, labels, tmp_path):
    given = shape("roberta", "single_label_classification")
    folder = save_model(tmp_path, initial_parameters(given, 0), given, **changes)
    config = read_hf_config(folder)
    assert (config.task, read_labels(folder, config)) == (task, labels)
    assert config.classifier_dropout_prob == (0.0 if task == "masked_lm" else 0.25)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"problem_type": "ranking"}, "problem_type is 'ranking'"),
        ({"id2label": {"0": "a"}}, "has one output for single_label_classification, so all texts get it"),
        ({"id2label": {"0": "a", "2": "b"}}, "id2label does not name the outputs from 0 on"),
        ({"id2label": {"0": "a", "1": "a"}}, "id2label gives two outputs one name"),
        ({"id2label": ["a", "b"]}, "id2label does not name the outputs"),
        ({"classifier_dropout": 2.0}, "classifier_dropout is 2.0"),
        ({"classifier_pooling": "late"}, "classifier_pooling is 'late'.* the first token or of the mean"),
        ({"architectures": ["ModernBertForQuestionAnswering"]}, "has 3 outputs for question_answering"),
    ],
)
def test_heads_that_cannot_be_read(changes, said, tmp_path):
    given = shape("modernbert", "single_label_classification")
    with pytest.raises(ModelError, match=said):
        read_hf_config(save_model(tmp_path, initial_parameters(given, 0), given, **changes))


def test_runs_whose_labels_are_not_their_heads(tokenizer, tmp_path):
    folder = finished_run(tmp_path / "run", shape("roberta", "token_classification"), tokenizer)
    record = json.loads((folder / "config.resolved.json").read_text())
    for change, said in (
        ({"labels": ["O"]}, "`labels` do not match 3"),
        ({"config": record["config"] | {"task.kind": "x"}}, "task.kind is 'x'"),
    ):
        (folder / "config.resolved.json").write_text(json.dumps(record | change))
        with pytest.raises(InputError, match=said):
            load_model(str(folder))
