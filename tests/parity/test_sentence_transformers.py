"""Both kinds of model of `sentence-transformers` on exported folders, beside our own numbers."""

import json
import logging
import warnings
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import transformers
from finetuned import finished_run, shape

from maskwright.cli.main import run as command
from maskwright.core import storage
from maskwright.core.errors import InputError
from maskwright.labels.example import Example
from maskwright.tasks.export.sentence_transformers import export_as
from maskwright.tasks.models.load import load_model
from maskwright.tasks.models.modules import prompt_of
from maskwright.tasks.use.embed import vectors
from maskwright.tasks.use.predict import ask, engine_for

GENERATOR = np.random.default_rng(4)
WORDS = ["fox", "garden", "the", "rained", "Größe", "letters,", "again!", "blue"]
TEXTS = [" ".join(GENERATOR.choice(WORDS, GENERATOR.integers(1, 50))) for _ in range(12)]
"""Texts of every length; the longest are cut at 64 tokens."""
PAIRS = list(zip(TEXTS[:6], TEXTS[6:], strict=True))
CLASSES = {
    "dense": "SentenceTransformer",
    "rerank": "CrossEncoder",
}


@contextmanager
def no_warning():
    """Fails for a warning of Python's, and for whatever transformers and sentence-transformers would warn of in their
    logs, which they silence where a test has exported before."""
    said = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    transformers.logging.set_verbosity_warning()
    loggers = [logging.getLogger(name) for name in ("transformers", "sentence_transformers", None)]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
    assert not said


def loaded(kind, folder):
    import sentence_transformers

    with no_warning():
        model = getattr(sentence_transformers, CLASSES[kind])(str(folder), device="cpu", local_files_only=True)
    saves_the_same(model, Path(folder))
    return model


def saves_the_same(model, folder):
    """What the package writes of the modules that it has loaded is what we wrote. It keeps versions, and has the length
    of texts with the tokenizer. Of a dense folder, which is in an older form, it writes the pooling in its own."""
    again = folder.with_name(f"{folder.name}-again")
    model.save_pretrained(str(again), create_model_card=False)
    if (folder / "1_Pooling").exists():
        ours, theirs = (json.loads((place / "1_Pooling" / "config.json").read_text()) for place in (folder, again))
        mode = "cls" if ours["pooling_mode_cls_token"] else "mean"
        assert theirs == {"embedding_dimension": 32, "pooling_mode": mode, "include_prompt": True}
        return
    for file in again.rglob("*.json"):
        if file.name in ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json") or (
            file.parent != again
        ):
            ours, theirs = (json.loads((place / file.relative_to(again)).read_text()) for place in (folder, again))
            if isinstance(theirs, dict):
                theirs.pop("__version__", None)
                ours = {key: value for key, value in ours.items() if key not in ("max_seq_length", "model_kwargs")}
            assert ours == theirs, file


@pytest.mark.long
@pytest.mark.parametrize("architecture", ["roberta", "modernbert", "bert", "eurobert", "gte"])
def test_vectors_are_ours(architecture, tokenizer, tmp_path):
    """Loaded without a warning."""
    run = str(finished_run(tmp_path / "run", shape(architecture, "masked_lm"), tokenizer))
    assert command(["export", run, "--to", str(tmp_path / "dense"), "--sentence-transformers", "dense"]) == 0
    theirs = loaded("dense", tmp_path / "dense").encode(TEXTS, batch_size=5)
    examples = [Example("x", number, text=text) for number, text in enumerate(TEXTS)]
    np.testing.assert_allclose(theirs, vectors(load_model(run), examples, 64, "cpu"), atol=1e-5)


def test_vectors_follow_the_modules_of_a_folder(tokenizer, tmp_path, capsys):
    """Poolings in the form of version 6 and of older ones, and prompts. An export keeps them."""
    folder = tmp_path / "dense"
    export_as(
        "dense", load_model(str(finished_run(tmp_path / "run", shape("bert", "masked_lm"), tokenizer))), str(folder)
    )
    examples = [Example("x", number, text=text) for number, text in enumerate(TEXTS)]
    modules = json.loads((folder / "modules.json").read_text())
    own = {"prompts": {"query": "search: ", "document": ""}, "default_prompt_name": "query"}
    own["similarity_fn_name"] = "dot"
    storage.write_json(str(folder / "config_sentence_transformers.json"), own)
    words = json.loads((folder / "tokenizer.json").read_text())
    storage.write_json(str(folder / "tokenizer.json"), words | {"normalizer": {"type": "Lowercase"}})
    as_it_is = json.loads((folder / "tokenizer_config.json").read_text()) | {"tokenizer_class": "TokenizersBackend"}
    storage.write_json(str(folder / "tokenizer_config.json"), as_it_is)
    for row, (pooling, later, length, refused) in enumerate(
        (
            ({"pooling_mode": "cls"}, ["base.modules.normalize.Normalize"], 24, ""),
            ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, ["models.Normalize"], 64, ""),
            ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}, [], 16, ""),
            ({"pooling_mode_max_tokens": True}, [], 64, "makes vectors by pooling by pooling_mode_max_tokens, which"),
            (
                {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
                [],
                64,
                "makes vectors by pooling",
            ),
            ({"pooling_mode": "mean"}, [], 64, r"makes vectors by their first 8 numbers \(truncate_dim\), which only"),
            (
                {"pooling_mode": "mean"},
                ["models.Dense"],
                64,
                "makes vectors by Dense, which only sentence",
            ),
        )
    ):
        more = [{"idx": 2, "name": "2", "path": "2", "type": f"sentence_transformers.{kind}"} for kind in later]
        (folder / "2").mkdir(exist_ok=True)
        storage.write_json(str(folder / "2" / "config.json"), {})
        storage.write_json(str(folder / "modules.json"), [*modules, *more])
        storage.write_json(str(folder / "1_Pooling" / "config.json"), {"word_embedding_dimension": 32, **pooling})
        own["default_prompt_name"] = None if row == 2 else "query"
        truncated = {"truncate_dim": 8} if "truncate_dim" in refused else {}
        storage.write_json(str(folder / "config_sentence_transformers.json"), own | truncated)
        settings = {"max_seq_length": length, "do_lower_case": True}
        storage.write_json(str(folder / "sentence_bert_config.json"), settings)
        model = load_model(str(folder), bare=True)
        assert model.max_seq_len == length
        if refused:
            with pytest.raises(InputError, match=refused):
                vectors(model, examples, length, "cpu")
            continue
        import sentence_transformers

        theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        said = theirs.encode(TEXTS)
        np.testing.assert_allclose(vectors(model, examples, length, "cpu"), said, atol=1e-5)
        assert ("get none of its prompts, query ('search: ')" in capsys.readouterr().err) == (row == 2)
        for name in ("query", "document"):
            ours = vectors(model, examples, length, "cpu", prompt=name)
            np.testing.assert_allclose(ours, theirs.encode(TEXTS, prompt_name=name), atol=1e-5)
        export_as("dense", model, str(tmp_path / f"again-{row}"))
        again = loaded("dense", tmp_path / f"again-{row}")
        np.testing.assert_allclose(again.encode(TEXTS), said, atol=1e-5)
        assert [again.prompts, again.default_prompt_name, again.similarity_fn_name] == [*own.values()]
        export_as(None, model, str(tmp_path / f"plain-{row}"))
        warned = f"warning: {folder}: its modules.json makes other vectors than the mean" in capsys.readouterr().err
        assert warned == (row < 2)
    storage.write_json(str(folder / "tokenizer.json"), words)
    with pytest.raises(InputError, match="makes vectors by Dense, lower case, which"):
        vectors(model, examples, 64, "cpu")
    storage.write_json(str(folder / "config_sentence_transformers.json"), {"model_type": "CrossEncoder"})
    with pytest.raises(InputError, match="is a CrossEncoder of sentence-transformers, which makes no vector of a text"):
        vectors(model, examples, 64, "cpu")
    with pytest.raises(InputError, match=r"has no prompt 'query'\. Fix: leave it out"):
        prompt_of(str(tmp_path), "query")


def answers_of(model):
    """What a fine-tuned model finds for each of `PAIRS`."""
    examples = [Example("x", n, text=a, text_pair=b) for n, (a, b) in enumerate(PAIRS)]
    return ask(engine_for(model, "cpu"), model, examples, model.max_seq_len or 64)[0]


def scores_of(model):
    return np.array(list(answers_of(model).outcomes), np.float64)


@pytest.mark.parametrize("architecture", ["modernbert", "bert"])
def test_a_classifier_becomes_one_score(architecture, tokenizer, tmp_path):
    """The score's sigmoid is the label's probability, for either label, and where labels do not exclude each other."""
    for task in ("single_label_classification", "multi_label_classification"):
        config = replace(shape(architecture, task), num_labels=2 if task == "single_label_classification" else 3)
        model = load_model(str(finished_run(tmp_path / task, config, tokenizer)))
        shares = answers_of(model).probabilities
        for number, label in enumerate(model.labels):
            folder = str(tmp_path / f"{task}-{number}")
            assert export_as("rerank", model, folder, relevant=label)["largest_logit_difference"] < 1e-5
            told = load_model(folder)
            assert told.config.num_labels == 1 and told.max_seq_len == model.max_seq_len
            np.testing.assert_allclose(1 / (1 + np.exp(-scores_of(told))), shares[:, number], atol=1e-6)
        theirs = loaded("rerank", folder)
        assert theirs.max_seq_length == model.max_seq_len == 64
        np.testing.assert_allclose(theirs.predict(PAIRS, batch_size=4), shares[:, number], atol=1e-5)


def test_what_makes_no_such_folder(tokenizer, tmp_path, capfd):
    run = {task: str(finished_run(tmp_path / task, shape("roberta", task), tokenizer)) for task in TASKS}
    for task, words, said in (
        ("regression", ["rerank", "--relevant", "yes"], "predicts a number, and has no labels. Fix: name no relevant"),
        ("masked_lm", ["rerank"], "has learned to score no pairs. Fix: fine-tune it on pairs"),
        ("masked_lm", ["dense", "--relevant", "yes"], "a relevant label is for rerank alone. Fix: leave it out"),
        ("masked_lm", ["dense", "--onnx"], "ONNX files need a model with a head, which dense lacks. Fix: leave"),
        ("token_classification", ["rerank"], "is a RobertaForTokenClassification, which scores no pairs. Fix: use "),
        ("single_label_classification", ["rerank"], "chooses among 3 labels, which make no single score. Fix: fine"),
        ("multi_label_classification", ["rerank"], "does not name the relevant label. Fix: name it with"),
        ("multi_label_classification", ["rerank", "--relevant", "no"], "has no label 'no'. Fix: name it with --rele"),
    ):
        assert command(["export", run[task], "--to", str(tmp_path / "to"), "--sentence-transformers", *words]) == 2
        assert said in capfd.readouterr().err.splitlines()[-1]
    assert command(["export", run["masked_lm"], "--to", str(tmp_path / "to"), "--relevant", "yes"]) == 2
    assert "a relevant label is for rerank alone" in capfd.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(TASKS)


TASKS = (
    *("masked_lm", "regression", "token_classification"),
    *("single_label_classification", "multi_label_classification"),
)


def test_a_card_says_how_the_folder_is_used(tokenizer, tmp_path, capfd):
    run = str(finished_run(tmp_path / "run", shape("bert", "masked_lm"), tokenizer))
    capfd.readouterr()
    words = ["export", run, "--to", str(tmp_path / "dense"), "--sentence-transformers", "dense", "--json"]
    assert command(words) == 0
    value = json.loads(capfd.readouterr().out)
    assert value["largest_hidden_state_difference"] < 1e-5 and "largest_logit_difference" not in value
    card = (tmp_path / "dense" / "README.md").read_text()
    assert (
        "library_name: sentence-transformers\npipeline_tag: sentence-similarity\ntags: [bert, dense, maskwright]"
        in card
    )
    assert "its fp32 hidden states differ by at most" in card
    assert "`sentence_transformers.SentenceTransformer` loads it" in card
    with pytest.raises(InputError, match="is not empty"):
        export_as("dense", load_model(run), str(tmp_path / "dense"))
