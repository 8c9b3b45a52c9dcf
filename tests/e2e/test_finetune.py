"""Fine-tuning from files to results: every task, exact resume, any number of processes, JAX, and plain transformers."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from ended_runs import metrics
from finetuned import TASKS, pretrained_folder, texts, write_examples
from html_page import Page
from sklearn.utils.class_weight import compute_class_weight

from maskwright.config.finetuning import build_finetune_config
from maskwright.config.settings import flat
from maskwright.core import storage
from maskwright.core.errors import ConfigError, InputError, ModelError, StoppedEarly
from maskwright.data.batch import Batch
from maskwright.engines.torch.engine import TorchEngine
from maskwright.labels.metrics import Predictions
from maskwright.labels.rows import Packer, in_order, prediction_batches
from maskwright.model.config import training_flops
from maskwright.model.initial import with_outputs
from maskwright.report import page
from maskwright.report.run import read_all
from maskwright.run.directory import RunDirectory
from maskwright.tasks.export.hugging_face import export
from maskwright.tasks.finetune.prepare import finetune, prepare_finetuning
from maskwright.tasks.measure.labelled import evaluate_labelled
from maskwright.tasks.models.load import load_model
from maskwright.tasks.start.engine import start_engine
from maskwright.tasks.use.predict import TextOptions
from maskwright.training.stop import StopRequest


@pytest.fixture
def make(tmp_path, tokenizer):
    def made(kind="single_label_classification", **keys):
        values = {
            "task": {"kind": kind, "doc_stride": 4},
            "data": {
                "train": write_examples(tmp_path, kind, "train", 40, 1),
                "validation": write_examples(tmp_path, kind, "validation", 21, 2),
                "test": write_examples(tmp_path, kind, "test", 13, 3),
                "max_seq_len": 48,
            },
            "model": {"tokenizer": tokenizer, "size": "nano"},
            "optimizer": {"learning_rate": 2e-3},
            "schedule": {"steps": 10},
            "batch": {"examples": 12},
            "evaluation": {"every_steps": 4},
            "engine": {"device": "cpu", "dtype": "fp32", "threads": 1},
            "logging": {"every_steps": 1, "report_to": []},
        }
        for dotted, value in keys.items():
            section, _, key = dotted.partition(".")
            if key:
                values[section] = {**values.get(section, {}), key: value}
            else:
                values[section] = value
        return build_finetune_config(values, "test")

    return made


def prepared(config):
    return prepare_finetuning(config, RunDirectory("nowhere"))


def test_the_work_of_a_run_is_what_it_computes(make, tmp_path, monkeypatch):
    """Its tokens are those of the rows that it packs, and those of its evaluations but for what pads them."""
    ready, seen = prepared(make()), list[Batch]()
    counted, predict = ready.work, TorchEngine.predict

    def spy(engine, batches):
        seen.extend(batches)
        return predict(engine, batches)

    monkeypatch.setattr(TorchEngine, "predict", spy)
    finetune(make(), str(tmp_path / "run"))
    epochs = np.concatenate([ready.train.rows_at(step) for step in range(10)]).reshape(3, 40)
    assert (np.sort(epochs) == np.arange(40)).all() and (epochs[0] != epochs[1]).any()
    rows = [ready.train.batches(step, [0])[0].input_ids for step in range(10)]
    found = [training_flops(ready.model, ids.size, ids.size * ids.shape[1], 0.0) for ids in rows]
    assert counted.flops == pytest.approx(float(np.mean(found)))
    assert counted.micro_batch == (max(ids.size for ids in rows), ready.train.packer.T, 0.0)
    assert counted.evaluated == pytest.approx(sum(batch.input_ids.size for batch in seen), rel=0.3)


def test_what_a_model_does_not_read_and_does_not_tell_apart_is_said(make, tokenizer_of, capsys):
    keys = {"data.max_seq_len": 9, "model.max_seq_len": 32, "model.tokenizer": tokenizer_of("bert")}
    ready = prepared(make(**keys, **{"evaluation.metric": "f1"}))
    assert "best by f1 of 'good', the second of task.labels\n" in ready.describe()
    cut = sum(len(text.split()) > 7 for text in texts(40, 1))
    (line,) = ready.warnings()
    found = ready.train.packer.encoded.cut
    assert 0 < cut <= found and line == (
        f"the model does not read the rest of {found} training texts, beyond 9 tokens; it would with a larger "
        "data.max_seq_len, up to 32"
    )
    train = Path(ready.config.data.train)
    records = train.read_text().splitlines()
    odd = [record.replace('"text": "', '"text": "\u2603 ') for record in records[:4]]
    (train.parent / "odd.jsonl").write_text("\n".join([*records, *odd]))
    *_, line = prepared(make(**keys, **{"data.train": str(train.parent / "odd.jsonl")})).warnings()
    assert line.startswith("4 of 44 training examples have tokens that are unknown to the tokenizer; '\u2603' at ")
    assert line.endswith("odd.jsonl:41 has '\u2603', which is in none of its tokens")
    odd = [record.replace('"text": "', '"text": "e\u0301 ') for record in records]
    (train.parent / "nfd.jsonl").write_text("\n".join(odd))
    for kind, warned in (("roberta", True), ("bert-uncased", False)):
        more = {"model.tokenizer": tokenizer_of(kind), "data.train": str(train.parent / "nfd.jsonl")}
        *_, line = prepared(make(**{**keys, **more})).warnings()
        assert line.startswith("40 of ") == warned and ("unicodedata.normalize('NFC', text)" in line) == warned
    asked = []
    for size in (3, 5, 9, 12):
        answer = {"text": [" ".join("a" * size)], "answer_start": [2]}
        asked.append({"question": f"who {size}?", "context": "b " + "a " * (size + 9), "answers": answer})
    (train.parent / "asked.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked))
    limit = {"kind": "question_answering", "doc_stride": 4, "max_answer_length": 5}
    *_, line = prepared(
        make("question_answering", task=limit, **{"data.train": str(train.parent / "asked.jsonl")})
    ).warnings()
    assert line.startswith("2 of 4 training examples have an answer longer than 5 tokens, which no prediction is; ")
    assert line.endswith("; task.max_answer_length: 12 allows them all")
    capsys.readouterr()
    for outcomes, said in (((0,) * 21, True), ((0,) * 20 + (1,), False)):
        ready._warn_of_predictions("validation", Predictions(outcomes, None), ready.dataset.validation, {})
        assert ("every prediction is the same" in capsys.readouterr().err) == said
    names, train_examples = ready.dataset.labels, ready.dataset.train
    turned = tuple((names.index(one.labels[0]) + 1) % len(names) for one in train_examples)
    ready._warn_of_predictions("test", Predictions(turned, None), train_examples, {})
    assert "test: most examples of" in capsys.readouterr().err
    number = prepared(make("regression"))
    values = np.array([one.value for one in number.dataset.validation])
    for mse, said in ((float(values.var()) * 1.1, True), (float(values.var()) / 2, False)):
        number._warn_of_predictions("test", Predictions(tuple(values), None), number.dataset.validation, {"mse": mse})
        assert ("no nearer to the labels than their mean" in " ".join(capsys.readouterr().err.split())) == said
    several = prepared(make("multi_label_classification"))
    gold = [bool(example.labels) for example in several.dataset.validation]
    shares = np.where(gold, 0.25, 0.1)[:, None].repeat(2, 1).astype(np.float32)
    none = Predictions(((),) * len(gold), shares)
    several._warn_of_predictions("validation", none, several.dataset.validation, {})
    said_of_labels = " ".join(capsys.readouterr().err.split())
    assert "every text gets no label: the probabilities are 0.100 to 0.250, the task.threshold 0.5. " in said_of_labels
    assert "set task.threshold: 0.24, with which f1_micro would be 0." in said_of_labels


def same(first, second):
    assert metrics(first) == metrics(second)
    for name in ("results.json", "predictions-test.json", "predictions-validation.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    a, b = load_model(str(first)).parameters, load_model(str(second)).parameters
    assert all(np.array_equal(a[name], b[name]) for name in a | b)


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("few_shapes", [False, True])
def test_packed_rows_teach_and_say_what_one_example_a_row_does(kind, few_shapes, make):
    """The update's loss, gradient norm and new weights, and the logits of every example."""
    ready = prepared(make(kind, **{"model.hidden_dropout": 0.0, "model.attention_dropout": 0.0}))
    encoded, pad = ready.train.packer.encoded, ready.model.pad_token_id
    packer = Packer.of(encoded, kind, pad, few_shapes=few_shapes)
    rows = ready.train.rows_at(1)
    slow = alone(packer, rows)
    packed = packer.pack(rows).batch
    assert len(packed.input_ids) < len(rows) or kind == "question_answering"
    engines = [start_engine(ready, None, 1) for _ in range(2)]
    found = []
    for engine, batch in zip(engines, (packed, slow), strict=True):
        engine.write(ready.starting_state())
        stats = engine.step([batch], 1e-2, lambda: False)
        found.append((float(stats.loss_sum), float(stats.weight), float(stats.grad_norm)))
    assert found[0] == pytest.approx(found[1], rel=2e-5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Packer, "_places", None)  # its work grows with the square of a whole split's examples
        batches = prediction_batches(packer, 3 * packer.T)
    logits = in_order(packer, batches, engines[0].predict([one.batch for one in batches]))
    engines[1].write(engines[0].read())
    every = np.arange(len(encoded))
    twin = engines[1].predict([alone(packer, every)])
    targets = encoded.targets
    if kind == "question_answering":
        lengths = np.diff(encoded.offsets)
        twin = np.concatenate([row[:n] for row, n in zip(twin.reshape(len(every), -1, 2), lengths, strict=True)])
    elif kind == "token_classification":
        counts = np.diff(targets.offsets)
        twin = np.concatenate([row[:n] for row, n in zip(twin.reshape(len(every), -1, 3), counts, strict=True)])
    assert np.abs(logits - twin).max() < 2e-5


def alone(packer, rows):
    """One example a row, written plainly."""
    encoded, M, T = packer.encoded, len(rows), packer.T
    ids, positions, segments = np.full((M, T), packer.pad, np.int32), *np.zeros((2, M, T), np.int32)
    for at, row in enumerate(rows):
        own = encoded.row(int(row))
        ids[at, : len(own)], positions[at, : len(own)], segments[at, : len(own)] = own, range(len(own)), 1
    targets = encoded.targets
    if packer.kind == "question_answering":
        labels = np.stack([targets.start[rows], targets.end[rows]], 1)
        return Batch(ids, positions, segments, np.arange(M * T, dtype=np.int32), labels, np.ones(M, np.float32))
    if packer.kind == "token_classification":
        most = int(np.diff(targets.offsets).max())
        index, labels = np.zeros((2, M, most), np.int32)
        weights = np.zeros((M, most), np.float32)
        for at, row in enumerate(rows):
            here = slice(int(targets.offsets[row]), int(targets.offsets[row + 1]))
            n = here.stop - here.start
            index[at, :n], labels[at, :n], weights[at, :n] = at * T + targets.position[here], targets.tag[here], 1
        return Batch(ids, positions, segments, index.ravel(), labels.ravel(), weights.ravel())
    labels = targets[rows]
    if packer.kind == "multi_label_classification":
        labels = labels.astype(np.float32)
    if packer.kind == "regression":
        labels = labels[:, None]
    return Batch(ids, positions, segments, (np.arange(M) * T).astype(np.int32), labels, np.ones(M, np.float32))


@pytest.mark.parametrize("kind", TASKS)
def test_resume_is_bit_identical(kind, make, tmp_path):
    """Dropout is on, as RoBERTa was published; the stop lies between two evaluations."""
    config = make(kind, **{} if kind == "regression" else {"schedule": {"epochs": 3.0}})  # both are ten steps
    assert prepared(config).model.hidden_dropout_prob == 0.1
    finetune(config, str(tmp_path / "straight"))
    with pytest.raises(StoppedEarly):
        finetune(config, str(tmp_path / "stopped"), stop_request=StopRequest(stop_after_steps=6))
    assert not (tmp_path / "stopped/results.json").exists()
    finetune(config, str(tmp_path / "stopped"))
    same(tmp_path / "straight", tmp_path / "stopped")
    finetune(config, str(tmp_path / "stopped"))  # there is nothing left to do
    runs = read_all([str(tmp_path / "straight"), str(tmp_path / "stopped")])
    assert runs[0].card == runs[1].card and runs[0].card["examples"]["train"] and runs[0].card["examples_by_tokens"]
    page.write(str(tmp_path / "report.html"), runs)
    assert "Scores of the best checkpoint" in Page((tmp_path / "report.html").read_text()).text
    same(tmp_path / "straight", tmp_path / "stopped")
    results = json.loads((tmp_path / "straight/results.json").read_text())
    lines = [line for line in metrics(tmp_path / "straight") if "valid_loss" in line]
    metric = {"regression": "mse", "multi_label_classification": "f1_micro"}.get(kind, "f1")
    metric = "valid_" + ("accuracy" if kind == "single_label_classification" else metric)
    record = json.loads((tmp_path / "straight/config.resolved.json").read_text())
    assert f"valid_{record['metric']}" == metric
    best = (min if kind == "regression" else max)(lines, key=lambda line: line[metric])
    assert results["step"] == best["step"] == load_model(str(tmp_path / "straight")).step
    assert {key: value for key, value in results["validation"].items() if key != "examples"} == {
        key.removeprefix("valid_"): value for key, value in best.items() if key.startswith("valid_")
    }
    assert results["test"]["examples"] == 13


def test_processes_give_the_same_bits(make, tmp_path):
    config = make(**{"batch.virtual_workers": 2, "schedule.steps": 4, "evaluation.every_steps": 2})
    file = tmp_path / "run.yaml"
    file.write_text(config.model_dump_json())
    for count in ("1", "2"):
        words = ["finetune", str(file), "--run", str(tmp_path / count), "--processes", count]
        done = subprocess.run([sys.executable, "-m", "maskwright", *words], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    same(tmp_path / "1", tmp_path / "2")


@pytest.mark.long
@pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="needs the extra jax")
@pytest.mark.parametrize("kind", ["token_classification"])
def test_jax_learns_what_torch_does(kind, make, tmp_path):
    keys = {
        "model.hidden_dropout": 0.0,
        "model.attention_dropout": 0.0,
        "optimizer.label_smoothing": 0.1,
    }
    keys |= {"optimizer.class_weights": "balanced", "optimizer.layer_decay": 0.5, "schedule.steps": 5}
    for engine in ("torch", "jax"):
        finetune(make(kind, **keys, **{"engine.kind": engine}), str(tmp_path / engine))
    ours, theirs = (metrics(tmp_path / engine) for engine in ("torch", "jax"))
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one == pytest.approx(other, abs=1e-4)


SMOOTHED = {"optimizer.layer_decay": 0.5, "optimizer.label_smoothing": 0.1, "batch.virtual_workers": 2}


@pytest.mark.parametrize(
    ("architecture", "keys"),
    [
        ("roberta", {"optimizer.class_weights": "balanced"}),
        ("modernbert", {"optimizer.class_weights": {"good": 2.0, "bad": 0.5}}),
        ("roberta", SMOOTHED),
        ("modernbert", SMOOTHED),
    ],
)
def test_losses_are_those_of_plain_transformers(architecture, keys, make, tmp_path):
    """Twenty steps of the exported class with torch's AdamW, on the same examples one a row, from the same weights."""
    keys = {**keys, "model.hidden_dropout": 0.0, "model.attention_dropout": 0.0, "schedule.steps": 20}
    config = make(**keys, **{"model.architecture": architecture, "optimizer.weight_decay": 0.1})
    ready = prepared(config)
    finetune(config, str(tmp_path / "run"))
    lines = [line for line in RunDirectory(str(tmp_path / "run")).read_metrics() if "loss" in line]
    assert all(line["examples_per_second"] > 0 for line in lines)
    found = [line["loss"] for line in lines]
    theirs = transformers_model(ready)
    optimizer = torch.optim.AdamW(groups(theirs, ready, config.optimizer.layer_decay), betas=(0.9, 0.98), eps=1e-6)
    targets = ready.train.packer.encoded.targets
    given = keys.get("optimizer.class_weights")
    of_ids = {i: given[label] for i, label in enumerate(ready.dataset.labels)} if isinstance(given, dict) else given
    weights = compute_class_weight(of_ids, classes=np.arange(2), y=targets).astype(np.float32)
    smoothing = config.optimizer.label_smoothing
    loss_of = torch.nn.CrossEntropyLoss(torch.from_numpy(weights), label_smoothing=smoothing)
    losses = []
    for step in range(20):
        rows = ready.train.rows_at(step)
        batch = alone(ready.train.packer, rows)
        ids, real = torch.from_numpy(batch.input_ids).long(), torch.from_numpy(batch.segment_ids).long()
        logits, labels = theirs(input_ids=ids, attention_mask=real).logits, torch.from_numpy(targets[rows]).long()
        loss = loss_of(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = ready.config.learning_rate_at(step) * group["scale"]
        optimizer.step()
        losses.append(float(loss.detach()))
    assert np.abs(np.array(found) - np.array(losses)).max() < 1e-5


def transformers_model(ready):
    from maskwright.model.hf.config import to_hf_config

    values = to_hf_config(ready.model, ready.dataset.labels)
    kind = getattr(transformers, values["architectures"][0])
    made = kind(kind.config_class(**values, attn_implementation="eager")).train()
    tensors = {name: torch.from_numpy(value.copy()) for name, value in ready.starting_state().parameters.items()}
    assert not made.load_state_dict(tensors, strict=False).unexpected_keys
    return made


def groups(model, ready, layer_decay):
    """A group for each parameter: matrices are decayed, and each layer learns `layer_decay` times the one above."""
    layers, found = ready.model.num_hidden_layers, []
    for name, parameter in model.named_parameters():
        power = 0
        if ".layer." in name or ".layers." in name:
            number = int(
                name.partition(".layer.")[2].partition(".")[0] or name.partition(".layers.")[2].partition(".")[0]
            )
            power = layers - number
        elif "embeddings" in name:
            power = layers + 1
        scale, decay = layer_decay**power, 0.1 if parameter.ndim >= 2 else 0.0
        found.append({"params": [parameter], "scale": scale, "weight_decay": decay, "lr": 0.0})
    return found


def test_dropout_is_that_of_the_models_config_unless_it_is_set(make, tokenizer, tmp_path):
    folder = pretrained_folder(tmp_path / "folder", tokenizer)
    path = Path(folder) / "config.json"
    dropouts = {"hidden_dropout_prob": 0.25, "attention_probs_dropout_prob": 0.0}
    path.write_text(json.dumps(json.loads(path.read_text()) | dropouts))
    for keys, hidden in (({}, 0.25), ({"model.hidden_dropout": 0.5}, 0.5)):
        model = prepared(make(model={"init_from": folder}, **{"data.max_seq_len": 16}, **keys)).model
        assert (model.hidden_dropout_prob, model.attention_probs_dropout_prob) == (hidden, 0.0)
    fresh = prepared(make()).model
    assert (fresh.hidden_dropout_prob, fresh.attention_probs_dropout_prob) == (0.1, 0.1)


def test_starts_from_a_run_a_fine_tuned_run_or_random(make, tmp_path, capsys):
    finetune(make(**{"schedule.steps": 2}), str(tmp_path / "first"))
    first = load_model(str(tmp_path / "first"))
    same_labels = prepared(make(model={"init_from": str(tmp_path / "first")}))
    assert all(
        np.array_equal(value, first.parameters[name]) for name, value in same_labels.starting_state().parameters.items()
    )
    name, own = "classifier.out_proj.weight", {"model": {"init_from": str(tmp_path / "first")}}
    turned = prepared(make(**own, **{"task.labels": [*reversed(first.labels)]})).starting_state().parameters[name]
    assert np.array_equal(turned, first.parameters[name][::-1]), "each label keeps its row"
    capsys.readouterr()
    renamed = make(**own, **{"task.labels": {label: f"my {label}" for label in first.labels}})
    assert not np.array_equal(prepared(renamed).starting_state().parameters[name], first.parameters[name])
    assert "so the head's last matrix is new; if they mean the same, name them" in capsys.readouterr().err
    number = prepared(make("regression", model={"init_from": str(tmp_path / "first")}))
    found = number.starting_state().parameters
    assert found["classifier.out_proj.weight"].shape == (1, 128)
    assert np.array_equal(found["classifier.dense.weight"], first.parameters["classifier.dense.weight"])
    fresh = prepared(make(model={"init_from": str(tmp_path / "first"), "weights": "random"}))
    word = "roberta.embeddings.word_embeddings.weight"
    assert not np.array_equal(fresh.starting_state().parameters[word], first.parameters[word])
    assert fresh.began_from() is None
    continued = make(**{"model": {"init_from": str(tmp_path / "first")}, "schedule.steps": 2, "checkpoint.keep": 2})
    finetune(continued, str(tmp_path / "second"))
    record = json.loads((tmp_path / "second/config.resolved.json").read_text())
    more = make(**{"model": {"init_from": str(tmp_path / "first")}, "schedule.steps": 2, "checkpoint.keep": 3})
    finetune(more, str(tmp_path / "second"))  # a key that may change: the record is written again
    again = json.loads((tmp_path / "second/config.resolved.json").read_text())
    assert again["config"]["checkpoint.keep"] == 3 and again["began_from"] == record["began_from"]
    with pytest.raises(ConfigError, match="for single_label_classification, not for token_class"):
        prepared(make("token_classification", model={"init_from": str(tmp_path / "first")}))


def test_numbers_are_learned_alike_in_bf16_whatever_their_mean_and_spread(make, tmp_path):
    """bf16 knows 2000 and 2016, and no year between."""
    keys = {"schedule.steps": 20, "evaluation.every_steps": 20, "engine.dtype": "bf16"}
    finetune(config := make("regression", **keys), str(tmp_path / "counts"))
    for split in tmp_path.glob("*.jsonl"):
        lines = map(json.loads, split.read_text().splitlines())
        split.write_text("\n".join(json.dumps(line | {"label": 2000 + 3 * line["label"]}) for line in lines))
    finetune(config, str(tmp_path / "years"))
    counts, years = (
        storage.read_json(str(tmp_path / name / "predictions-test.json"))["outcomes"] for name in ("counts", "years")
    )
    assert np.std(counts) > 0.1 and years == pytest.approx(2000 + 3 * np.array(counts), abs=1e-2)
    found = evaluate_labelled(model := load_model(str(tmp_path / "years")), None, TextOptions(), "cpu")
    of_counts = storage.read_json(str(tmp_path / "counts/results.json"))["test"]
    assert found.metrics["mse"] == pytest.approx(9 * of_counts["mse"], rel=2e-2)
    make("regression")  # writes the counts again
    ready = prepared(make("regression", model={"init_from": str(tmp_path / "years")}))
    assert ready.unit is not None and ready.unit[0] < 9.0
    mean, deviation = ready.unit
    for name, value in with_outputs(ready.starting_state().parameters, deviation, mean).items():
        assert value == pytest.approx(model.parameters[name], rel=1e-5, abs=1e-5), name


def test_a_run_killed_before_its_first_save_begins_from_its_model_again(make, tmp_path):
    """Not from random weights, of which only its head is made."""
    first, whole, killed = (str(tmp_path / name) for name in ("first", "whole", "killed"))
    finetune(make(**{"schedule.steps": 2}), first)
    config = make("multi_label_classification", model={"init_from": first}, **{"schedule.steps": 2})
    finetune(config, whole)
    shutil.copytree(
        whole, killed, ignore=shutil.ignore_patterns("checkpoints", "status.json", "*dictions*", "results*")
    )
    finetune(config, killed)
    same(tmp_path / "whole", tmp_path / "killed")


def test_a_run_ends_when_it_no_longer_improves(make, tmp_path):
    keys = {
        "evaluation.every_steps": 1,
        "evaluation.patience": 2,
        "optimizer.learning_rate": 1e-9,
        "schedule.steps": 40,
    }
    finetune(make(**keys), str(tmp_path / "run"))
    lines = [line["step"] for line in metrics(tmp_path / "run") if "valid_loss" in line]
    results = json.loads((tmp_path / "run/results.json").read_text())
    assert len(lines) < 20 and lines[-1] == results["step"] + 2
    finetune(make(**keys), str(tmp_path / "run"))
    assert lines == [line["step"] for line in metrics(tmp_path / "run") if "valid_loss" in line]


def test_a_copy_is_the_model_that_the_run_is(make, tmp_path):
    """Also where the last evaluation, which comes after the last save, is the best."""
    run, copies = tmp_path / "run", f"file://{tmp_path}/copies"
    finetune(make(**{"evaluation.metric": "loss", "schedule.steps": 6, "checkpoint.copy_to": copies}), str(run))
    state = json.loads((run / "checkpoints/step-00000006/state.json").read_text())
    models = [load_model(location) for location in (str(run), copies)]
    assert state["best_step"] == 4 and [model.step for model in models] == [6, 6]
    assert all(model.run and RunDirectory(model.folder).has_ended(model.run) for model in models)


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"evaluation.metric": "f2"}, "has no metric f2"),
        ({"data.max_seq_len": 64, "model.max_seq_len": 32}, "data.max_seq_len 64 is above the 32 tokens"),
        (
            {"kind": "question_answering", "data.max_seq_len": 8, "model.max_seq_len": 128},
            r"train.json record 1: the question's .* Fix: set data.max_seq_len to \d+ or more",
        ),
        ({"optimizer.class_weights": {"good": 2.0}}, "bad is left out"),
        ({"model": {"init_from": "nowhere"}}, "no such folder"),
    ],
)
def test_mistakes_end_before_anything_is_written(keys, what, make, tmp_path):
    with pytest.raises((ConfigError, InputError, ModelError), match=what):
        finetune(make(**keys), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"schedule": {"steps": 9, "decay_steps": 2}}, "kind linear has no decay_steps"),
        ({"batch": {"examples": 5, "virtual_workers": 2}}, "2 virtual workers cannot share 5 examples evenly"),
        (
            {"optimizer.class_weights": {True: "much"}},
            "class_weights: .True: 'much'. does not give labels weights. Fix: w",
        ),
        ({"optimizer.class_weights": [1, 2]}, r"class_weights: .1, 2. does not give labels weights"),
    ],
)
def test_configurations_that_mean_nothing(keys, what, make):
    with pytest.raises(ConfigError, match=what):
        make(**keys)


def test_weights_of_classes_that_are_numbers_or_booleans_are_of_their_words(make):
    """As they are after a round through JSON, in which rank 0 tells the others its configuration."""
    for written, words in (({0: 1.0, 1: 2.0}, ["0", "1"]), ({True: 1, False: 2}, ["true", "false"])):
        config = flat(make(**{"optimizer.class_weights": written}))
        assert list(config["optimizer.class_weights"]) == words
        assert json.loads(json.dumps(config)) == config


@pytest.mark.parametrize("kind", TASKS)
def test_evaluate_finds_the_results_again_in_run_and_export(kind, make, tmp_path):
    run, folder = str(tmp_path / "run"), str(tmp_path / "model")
    finetune(make(kind, **{"schedule.steps": 12}), run)
    results = json.loads((tmp_path / "run" / "results.json").read_text())["test"]
    results.pop("loss")
    found = evaluate_labelled(load_model(run), None, TextOptions(), "cpu")
    assert {"examples": found.count, **found.metrics} == pytest.approx(results, abs=1e-6)
    assert export(load_model(run), folder) < 1e-4
    model = load_model(folder)
    assert model.may_be_none is (False if kind == "question_answering" else None)
    assert model.pairs is (None if kind in ("question_answering", "token_classification") else False)
    again = evaluate_labelled(model, found.examples, TextOptions(), "cpu")
    assert again.metrics == pytest.approx(found.metrics, abs=1e-6) and again.confusion == found.confusion


def test_a_question_that_is_too_long_can_be_left_out_of_every_split(make, tmp_path, capfd):
    given = {"schedule.steps": 2, "data.on_bad_input": "skip"}
    config = make("question_answering", **given)
    for name in ("train", "validation", "test"):
        squad = json.loads((tmp_path / f"{name}.json").read_text())
        paragraphs = squad["data"][0]["paragraphs"]
        first = paragraphs[0]
        long = {**first, "qas": [{**first["qas"][0], "id": "long", "question": "what animal " * 40}]}
        (tmp_path / f"{name}.json").write_text(json.dumps({"data": [{"paragraphs": [long, *paragraphs]}]}))
    ready = prepared(config)
    assert ready.dataset.report.sizes == {"train": 40, "validation": 21, "test": 13}
    assert any("3 records are left out" in line and "leave 0 of a row's 48" in line for line in ready.warnings())
    finetune(config, str(tmp_path / "run"))
    results = json.loads((tmp_path / "run" / "results.json").read_text())["test"]
    results.pop("loss")
    found = evaluate_labelled(load_model(str(tmp_path / "run")), None, TextOptions(), "cpu")
    assert {"examples": found.count, **found.metrics} == pytest.approx(results, abs=1e-6) and found.count == 13
    assert "test.json record 1 is left out: the question's" in capfd.readouterr().err
    with pytest.raises(InputError, match=r"record 1: the question's .*, or data\.on_bad_input: skip$"):
        prepared(config.model_copy(update={"data": config.data.model_copy(update={"on_bad_input": "error"})}))
