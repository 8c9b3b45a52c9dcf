"""The arm without a transformer: the same as scikit-learn's parts written out, on training examples alone, and what a
comparison with it does, says and refuses. No network is trained: made-up fine-tunings answer at once."""

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
import yaml
from finetuned import WORDS, foxes, pretrained_folder
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, f1_score
from sklearn.multiclass import OneVsRestClassifier
from verdict_arms import read_results

from maskwright.config.finetuning import build_finetune_config
from maskwright.core import extras, storage
from maskwright.core.errors import ConfigError, InputError
from maskwright.labels.dataset import read_dataset
from maskwright.tasks.compare import runs
from maskwright.tasks.compare.linear import PENALTIES, LinearFits, features_of
from maskwright.tasks.compare.plan import Budget, read
from maskwright.tasks.compare.verdict import compare, in_words

LABEL = {
    "single_label_classification": lambda words: next((word for word in ("fox", "house") if word in words), "none"),
    "multi_label_classification": lambda words: ",".join(word for word in ("fox", "house") if word in words),
    "regression": lambda words: words.count("the") + 2.5 * words.count("river"),
}
ODD = ("?!", "Über\tden  Fluß …", "e", "naïve_2 3.5")
"""Texts of marks alone, of odd spaces and letters."""


def written(folder, kind, *, pairs, **more):
    """The configuration of a task whose labels follow from words, with files of their own for each split."""
    draw = random.Random(4)
    data = {"text": "a", "label": "label", **({"text_pair": "b"} if pairs else {})}
    for split, count in (("train", 60), ("validation", 24), ("test", 30)):
        rows = []
        for number in range(count):
            first = [*draw.choices(WORDS, k=draw.randint(2, 9)), f"{split}{number}"]
            sides = [first, [draw.choice([word, draw.choice(WORDS)]) for word in first]]
            sides[0][0] = draw.choice(ODD) if number % 7 == 0 else sides[0][0]
            shared = [word for word in sides[0] if word in sides[1]] if pairs else sides[0]
            rows.append({"a": " ".join(sides[0]), "b": " ".join(sides[1]), "label": LABEL[kind](shared)})
        path = folder / f"{split}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        data[split] = str(path)
    return {"data": data, "task": {"kind": kind, **more}, "model": {"init_from": "none"}}


def plainly(fitted_on, examples):
    """The features of `examples`, each vectorizer reading every text from its first character to its last."""
    vectorizers = [
        TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\w+|[^\w\s]+", sublinear_tf=True),
        TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True),
    ]
    pairs = fitted_on[0].text_pair is not None
    texts = [one.text for one in fitted_on] + [one.text_pair for one in fitted_on if pairs]
    first, second = [], []
    for vectorizer in vectorizers:
        vectorizer.fit(texts)
        first.append(vectorizer.transform([one.text for one in examples]).toarray())
        second.append(vectorizer.transform([one.text_pair or "" for one in examples]).toarray())
    if not pairs:
        return csr_matrix(np.hstack(first))
    columns = [a * b for a, b in zip(first, second, strict=True)]
    columns += [np.abs(a - b) for a, b in zip(first, second, strict=True)]
    for a, b in zip(first, second, strict=True):
        columns.append(np.array([[row @ other] for row, other in zip(a, b, strict=True)]))
    sizes = [sorted((len(one.text.split()), len(one.text_pair.split()))) for one in examples]
    columns.append(np.array([[small / large] for small, large in sizes]))
    return csr_matrix(np.hstack(columns))


def regression(penalty):
    return LogisticRegression(C=1 / penalty, solver="liblinear", dual=True, tol=1e-2, random_state=0)


@pytest.mark.parametrize(
    ("kind", "pairs"),
    [
        ("single_label_classification", False),
        ("single_label_classification", True),
        ("multi_label_classification", False),
        ("regression", True),
        ("regression", False),
    ],
)
def test_it_is_what_scikit_learn_says_written_out(kind, pairs, tmp_path):
    config = build_finetune_config(written(tmp_path, kind, pairs=pairs), "task")
    dataset = read_dataset(config.data, config.task, 1)
    train, test = plainly(dataset.train, dataset.train), plainly(dataset.train, dataset.test)
    for features, expected in zip(features_of(dataset.train, dataset.test), (train, test), strict=True):
        assert np.allclose(features.toarray(), expected.toarray(), rtol=0, atol=1e-12)
    fits = LinearFits(config)
    fits.make(str(tmp_path / "fit"), penalty=0.03, seed=1, search=False)
    outcomes = storage.read_json(str(tmp_path / "fit" / "predictions-test.json"))["outcomes"]
    scores = storage.read_json(str(tmp_path / "fit" / "results.json"))["test"]
    if kind == "regression":
        expected = Ridge(alpha=0.03).fit(train.toarray(), [one.value for one in dataset.train]).predict(test)
        assert np.allclose(outcomes, expected, atol=2e-3)
        assert scores["pearson"] == pytest.approx(np.corrcoef(outcomes, [one.value for one in dataset.test])[0, 1])
        assert scores["pearson"] > 0.2
    elif kind == "single_label_classification":
        gold = [one.labels[0] for one in dataset.test]
        named = OneVsRestClassifier(regression(0.03)).fit(train, [one.labels[0] for one in dataset.train]).predict(test)
        assert [dataset.labels[label] for label in outcomes] == named.tolist() and len(set(outcomes)) > 1
        assert scores["accuracy"] == pytest.approx(accuracy_score(gold, named))
    else:
        marks = np.array([[label in one.labels for label in dataset.labels] for one in dataset.train])
        gold = np.array([[label in one.labels for label in dataset.labels] for one in dataset.test])
        each = [regression(0.03).fit(train, column).predict(test) for column in marks.T]
        assert outcomes == [np.flatnonzero(row).tolist() for row in np.stack(each, 1)] and any(outcomes)
        assert scores["f1_micro"] == pytest.approx(f1_score(gold, np.stack(each, 1), average="micro"))


def test_class_weights_two_classes_and_labels_that_no_example_has(tmp_path):
    values = written(tmp_path, "single_label_classification", pairs=False)
    for split in ("train", "validation", "test"):
        path = Path(values["data"][split])
        path.write_text(path.read_text().replace('"house"', '"none"'))
    values["optimizer"] = {"class_weights": {"fox": 5.0, "none": 0.25}}
    config = build_finetune_config(values, "task")
    dataset = read_dataset(config.data, config.task, 1)
    LinearFits(config).make(str(tmp_path / "fit"), penalty=1.0, seed=1, search=False)
    is_none = np.array([one.labels[0] == "none" for one in dataset.train])
    model = regression(1.0).fit(
        plainly(dataset.train, dataset.train), is_none, sample_weight=np.where(is_none, 0.25, 5.0)
    )
    outcomes = storage.read_json(str(tmp_path / "fit" / "predictions-test.json"))["outcomes"]
    assert outcomes == model.predict(plainly(dataset.train, dataset.test)).astype(int).tolist()

    named = ["owl", "fox", "house"]
    several = written(tmp_path, "multi_label_classification", pairs=False, labels=named)
    LinearFits(build_finetune_config(several, "task")).make(str(tmp_path / "owl"), penalty=1.0, seed=1, search=True)
    outcomes = storage.read_json(str(tmp_path / "owl" / "predictions-validation.json"))["outcomes"]
    assert {label for labels in outcomes for label in labels} == {1, 2}
    assert sorted(os.listdir(tmp_path / "owl")) == ["predictions-validation.json", "results.json"]


# ---- in a comparison -------------------------------------------------------------------------------------------------


def answering(task, right):
    """Instead of fine-tunings: answers of which that share is right, others with each seed."""
    (labelled,) = read([str(task.parent / "model"), "random"], [str(task)], "", base=None, budget=Budget([1], 1)).tasks
    dataset = labelled.dataset

    def side_by_side(commands, at_once):
        for number, command in enumerate(commands):
            draw = random.Random(command.run[-20:])
            gold = [dataset.labels.index(one.labels[0]) for one in dataset.test]
            answers = [label if draw.random() < right else 1 - label for label in gold]
            accuracy = sum(a == b for a, b in zip(answers, gold, strict=True)) / len(gold)
            scores = {"validation": {"accuracy": 0.5}, "test": {"accuracy": accuracy}}
            record = {"outcomes": answers, "where": [one.where for one in dataset.test]}
            os.makedirs(command.run)
            storage.write_json(os.path.join(command.run, "predictions-test.json"), record)
            storage.write_json(os.path.join(command.run, "results.json"), scores)
            yield number, 0

    return side_by_side


@pytest.fixture(scope="module")
def task(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("foxes")
    pretrained_folder(folder / "model", tokenizer)
    return foxes(folder)


def test_a_comparison_with_it_goes_on_and_says_that_no_transformer_was_needed(task, tmp_path, monkeypatch):
    model, folder = str(task.parent / "model"), tmp_path / "whole"
    given = {"base": "linear", "budget": Budget(["1e-3", "2e-3"], 8)}
    monkeypatch.setattr(runs, "run_side_by_side", answering(task, 0.6))
    results, report = compare([model, "random"], [str(task)], str(folder), **given)
    said = in_words(results, report, str(folder))
    assert (
        "model hurt on foxes." in said and "No transformer was needed to do better than model: linear has none." in said
    )
    page = (folder / "verdict.md").read_text()
    for told in (
        "no transformer, no pretraining",
        "Penalties, chosen on validation and then kept",
        "Every arm but linear tried the learning rates 1e-3, 2e-3 with seed 0",
        "linear was fitted to whole texts and tried the penalties 0.01, 0.03, 0.1, 0.3, 1, 3, 10 in the same way.",
        "It chose linear's penalty, the learning rates and each run's best checkpoint.",
    ):
        assert told in page, told
    assert (folder / "verdict.html").read_text().count(">linear</text>") == 1, "in the plot of scores"
    (search,) = [one for one in results.searches if one.arm == "linear"]
    assert tuple(penalty for penalty, _ in search.rates) == PENALTIES
    assert search.chosen == max(penalty for penalty, score in search.rates if score == max(dict(search.rates).values()))
    made = folder / "runs" / "foxes" / "linear"
    assert len(list(made.glob("*.log"))) == 7 + 8 and "features, penalty" in (made / "seed-1.log").read_text()
    for search_run in made.glob("penalty-*/"):
        assert "test" not in storage.read_json(str(search_run / "results.json"))
    assert read_results(folder / "results.json").without_transformer == ["linear"]

    # What a kill leaves half done is done again, with the same bytes; what is done is not.
    before = {path: path.read_bytes() for path in folder.rglob("*.*") if path.suffix in (".json", ".html", ".md")}
    for name in ("penalty-0.1/results.json", "seed-2/results.json", "seed-2/predictions-test.json"):
        (made / name).unlink()
    kept = (made / "seed-1" / "results.json").stat().st_mtime_ns
    compare([model, "random"], [str(task)], str(folder), **given)
    assert before == {path: path.read_bytes() for path in before}
    assert kept == (made / "seed-1" / "results.json").stat().st_mtime_ns

    # With one rate, it alone searches.
    few = given | {"budget": Budget(["1e-3"], 1)}
    results, _ = compare([model], [str(task)], str(tmp_path / "few"), **few)
    assert [search.arm for search in results.searches] == ["linear"]
    assert results.protocol.test == "Each run read it once, at its end. The search did not read it."

    # Another arm in its place is another comparison.
    with pytest.raises(InputError, match="holds another comparison: "):
        compare(["linear", model], [str(task)], str(folder), **given | {"base": "model"})


def test_tags_are_refused(tmp_path):
    """Before a model is looked at: there is none."""
    path, kind = tmp_path / "task.yaml", "token_classification"
    path.write_text(yaml.safe_dump({"data": {"train": "train", "test": "test"}, "task": {"kind": kind}}))
    with pytest.raises(InputError) as caught:
        read(["nowhere"], [str(path)], "new", base="linear", budget=Budget([1e-3], 6))
    what = f"linear predicts labels or a number for a text or a pair, but does not support {kind}"
    assert str(caught.value) == f"{path}: {what}. Fix: leave linear out, or this task" and caught.value.exit_code == 2


def test_without_scikit_learn_its_extra_is_named(monkeypatch):
    monkeypatch.setattr(extras, "installed", lambda package: package != "sklearn")
    with pytest.raises(
        ConfigError, match=r"^linear: the package sklearn is not installed\. Fix: .*--linear.*\[linear\]"
    ):
        read(["nowhere", "linear"], ["task.yaml"], "new", base=None, budget=Budget([1e-3], 6))
