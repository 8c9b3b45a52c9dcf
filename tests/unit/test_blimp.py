"""Minimal pairs: what is read, which share is taken, what counts as right; pseudo-perplexity and the parts of
`evaluate`."""

import gzip
import json
import shutil
from dataclasses import asdict

import numpy as np
import pytest
from conftest import documents, prepared
from reference.stored import documents_of

from maskwright.config.pretraining import EngineSection
from maskwright.core.errors import InputError
from maskwright.data.loader import validation_batches, validation_rows
from maskwright.data.prepare.request import PrepareOptions
from maskwright.data.rows import open_rows
from maskwright.engines.base import EvalStats
from maskwright.model.config import ModelConfig
from maskwright.model.hf.names import pieces
from maskwright.model.initial import initial_parameters
from maskwright.tasks.measure import blimp as task
from maskwright.tasks.measure import pseudo_likelihood
from maskwright.tasks.measure.held_out import evaluate_sources
from maskwright.tasks.models.load import TrainedModel
from maskwright.text.sources import Sources
from maskwright.text.tokenizer import load_tokenizer
from maskwright.text.vocabulary import read_vocabulary

CPU = EngineSection(device="cpu", dtype="fp32", threads=1)


def model_of(tokenizer, favoured=None, *, is_random=False):
    """A model that gives each token the same probability but `favoured` a higher one, whatever its neighbours are; or
    one of random weights."""
    words = read_vocabulary(tokenizer)
    config = ModelConfig(words.size, 32, 1, 2, 64, 66, architecture="modernbert")
    parameters = initial_parameters(config, 3)
    names = {piece.name: piece.hf_name for piece in pieces(config)}
    parameters[names["word.weight"]] *= 20.0 if is_random else 0.0
    if favoured is not None:
        ids = load_tokenizer(tokenizer, special_tokens_are_text=True).encode(favoured, add_special_tokens=False).ids
        parameters[names["head.bias"]][ids] = 3.0
    return TrainedModel("model", config, parameters, tokenizer, words)


def blimp_line(good, bad, paradigm, field):
    record = {"UID": paradigm, "field": field, "pairID": "0", "sentence_good": good, "sentence_bad": bad}
    return json.dumps(record) + "\n"


@pytest.fixture(scope="module")
def pairs_file(tmp_path_factory):
    """Sentences with " the" instead of " a" in one paradigm, the reverse in another, and two that are equal."""
    path = tmp_path_factory.mktemp("pairs") / "blimp.jsonl.gz"
    lines = []
    for number in range(6):
        the, a = (f"Nobody saw {article} bridge{' again' * number}." for article in ("the", "a"))
        lines += [blimp_line(the, a, "definite", "syntax_semantics"), blimp_line(a, the, "indefinite", "morphology")]
    lines.append(blimp_line("The same.", "The same.", "definite", "syntax/semantics"))
    path.write_bytes(gzip.compress("".join(lines).encode()))
    return path


def test_blimps_and_zorros_files(pairs_file, tmp_path):
    found = task.read_pairs(str(pairs_file))
    assert len(found) == 13 and {pair.field for pair in found} == {"syntax_semantics", "morphology"}
    assert found[2].where == f"{pairs_file}:3"
    (tmp_path / "subject_verb-in_question.txt").write_text("at this things .\nat this .\n")
    (tmp_path / "z-islands-adjunct.txt").write_text("bad 1\r\ngood 1\r\n\r\nbad 2\r\ngood 2")
    zorro = task.read_pairs(str(tmp_path))
    assert [(pair.paradigm, pair.field, pair.good, pair.bad) for pair in zorro] == [
        ("subject_verb-in_question", "subject_verb", "at this .", "at this things ."),
        ("z-islands-adjunct", "z-islands", "good 1", "bad 1"),
        ("z-islands-adjunct", "z-islands", "good 2", "bad 2"),
    ]
    assert zorro[2].where.endswith("adjunct.txt:4")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", "one\n\ntwo\nthree\n", "a.txt:4: has 3 sentences, but needs an even number"),
        ("a.jsonl", '{"sentence_good": "x"}\n', "a.jsonl:1: has no sentence_good and sentence_bad"),
        ("a.jsonl", '\n{"sentence_good"\n', "a.jsonl:2: is not JSON"),
        ("a.csv", "x\n", "a.csv: holds no minimal pairs"),
    ],
)
def test_faulty_pairs_are_named_by_line(tmp_path, name, content, expected):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as caught:
        task.read_pairs(str(tmp_path / name))
    assert expected in str(caught.value) and caught.value.fix


def test_a_share_is_fixed_nested_and_about_its_size():
    pairs = [task.Pair(f"good {i}", f"bad {i}", "p", "f", "") for i in range(3000)]
    tenth, fifth = ({pair for pair in pairs if task.is_in_share(pair, share)} for share in (0.1, 0.2))
    assert tenth < fifth and 240 < len(tenth) < 360 and 520 < len(fifth) < 680
    assert all(task.is_in_share(pair, 1.0) for pair in pairs)
    assert sum(int(pair.good[5:]) for pair in tenth) == 463_602  # the same ones in any process and version


def test_a_constant_model_scores_exactly_one_half(tokenizer, pairs_file):
    found = task.blimp(model_of(tokenizer), str(pairs_file), engine=CPU)
    assert [row.means for row in (found.overall, *found.fields, *found.paradigms)] == [0.5] * 5
    # As sums, equal probabilities favour the sentence with fewer tokens, and " the" and " a" are one each.
    assert found.overall.sums == found.overall.shorter == 0.5
    assert found.identical == [f"definite ({pairs_file}:13)"] and found.overall.pairs == 12
    assert "left out, because both sentences are equal: definite (" in found.report()


def test_what_a_model_prefers_is_what_it_is_scored_by(tokenizer, pairs_file):
    found = task.blimp(model_of(tokenizer, " the"), str(pairs_file), engine=CPU)
    assert [(row.name, row.field, row.pairs, row.sums, row.means) for row in found.paradigms] == [
        ("indefinite", "morphology", 6, 0.0, 0.0),
        ("definite", "syntax_semantics", 6, 1.0, 1.0),
    ]
    assert [row.name for row in found.fields] == ["morphology", "syntax_semantics"] and found.overall.sums == 0.5
    assert json.loads(json.dumps(asdict(found)))["overall"]["pairs"] == 12


def test_a_sentence_that_is_too_long_is_named(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text("short\nshorter\n" + "word " * 80 + "\nshort\n")
    with pytest.raises(InputError, match=r"a\.txt:3: has a sentence of \d+ tokens, but model reads 64"):
        task.blimp(model_of(tokenizer), str(tmp_path / "a.txt"), engine=CPU)


def test_text_without_tokens_is_named(tokenizer, tmp_path):
    shutil.copytree(tokenizer, folder := tmp_path / "tokenizer")
    values = json.loads((folder / "tokenizer.json").read_text())
    values["normalizer"] = {"type": "Replace", "pattern": {"String": "\u200b"}, "content": ""}  # as BERT's does
    (folder / "tokenizer.json").write_text(json.dumps(values))
    model = model_of(str(folder))
    (tmp_path / "a.txt").write_text("a fox\na dog\n\u200b\na fox\n")
    with pytest.raises(InputError, match=r"a\.txt:3: has a sentence without a token"):
        task.blimp(model, str(tmp_path / "a.txt"), engine=CPU)
    (tmp_path / "b.txt").write_text("\u200b\n")
    with pytest.raises(InputError, match=r"b\.txt: holds no tokens"):
        pseudo_likelihood.pseudo_perplexity(model, Sources([str(tmp_path / "b.txt")]), seq_len=9, engine=CPU)


def test_pseudo_perplexity_of_documents_cut_into_windows(tokenizer, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("The fox saw stones. Nobody followed a bridge again!\nA dog.\n\nThe river crossed blue paper.\n")
    model = model_of(tokenizer, is_random=True)
    found = pseudo_likelihood.pseudo_perplexity(model, Sources([str(path)], layout="sentences"), seq_len=9, engine=CPU)
    encoder = load_tokenizer(tokenizer, special_tokens_are_text=True)
    documents = ["The fox saw stones. Nobody followed a bridge again! A dog.", "The river crossed blue paper."]
    encoded = [encoder.encode(text, add_special_tokens=False).ids for text in documents]
    windows = [ids[begin : begin + 7] for ids in encoded for begin in range(0, len(ids), 7)]
    scorer = pseudo_likelihood.open_scorer(model, CPU)
    pieces = ((np.array(ids), np.array([len(ids)])) for ids in windows)
    alone = [pseudo_likelihood.score_texts(scorer, model.vocabulary, *piece).sums[0] for piece in pieces]
    assert (found.documents, found.windows, found.tokens) == (2, len(windows), sum(map(len, windows)))
    assert found.loss == pytest.approx(-sum(alone) / found.tokens, rel=1e-5)
    assert found.pseudo_perplexity == pytest.approx(np.exp(found.loss))


# ---- the parts of held-out text ------------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", ["documents", "full_sentences"])
def test_each_label_is_found_in_the_store_again(store, packing):
    rows = open_rows(store, "valid", 32, packing)
    chosen, texts = validation_rows(rows, 20), [set(ids.tolist()) for ids in documents_of(rows.split)]
    batches = validation_batches(store, seq_len=32, packing=packing, max_rows=20, micro_batch_rows=4)
    for number, batch in enumerate(batches):
        taken = batch.weights > 0
        row, position = np.divmod(batch.predict_index[taken].astype(np.int64), 32)
        document = rows.documents_at(chosen[4 * number + row], position)
        assert all(label in texts[one] for one, label in zip(document, batch.labels[taken], strict=True))


def test_evaluation_by_frequency_and_source(tokenizer, tmp_path):
    for name, count, seed in (("a", 30, 1), ("b", 60, 2)):
        texts = "\n\n".join("\n".join(lines) for lines in documents(count, seed, longest=9))
        (tmp_path / f"{name}.txt").write_text(texts)
    sources = Sources([str(tmp_path / "a.txt"), str(tmp_path / "b.txt")], layout="sentences")
    store = prepared(sources, tokenizer, tmp_path / "store", PrepareOptions(valid_fraction=0.5))
    model = model_of(tokenizer, is_random=True)
    found = evaluate_sources(model, {"": store}, seq_len=32, max_rows=40, engine=CPU).sources[""]

    batches = validation_batches(store, seq_len=32, packing="documents", max_rows=40, micro_batch_rows=8)
    scorer = pseudo_likelihood.open_scorer(model, CPU)
    stats = sum((scorer.evaluate([batch]) for batch in batches), EvalStats())
    assert (found.loss, found.accuracy) == pytest.approx((stats.loss, stats.accuracy), rel=1e-6)
    for parts in (found.by_frequency, found.by_source):
        assert sum(part.predicted for part in parts) == found.predicted == stats.weight
        assert sum(part.loss * part.predicted for part in parts) / found.predicted == pytest.approx(found.loss)
        assert sum(part.accuracy * part.predicted for part in parts) == pytest.approx(stats.correct)

    counts = store.split("train").counts(store.vocabulary.size)
    labels = np.concatenate([batch.labels[batch.weights > 0] for batch in batches])
    tens = np.count_nonzero((counts[labels] >= 10) & (counts[labels] < 100))
    assert {part.name: part.predicted for part in found.by_frequency}["10 to 99"] == tens > 0
    origins = [store.origin("valid", number) for number in range(store.split("valid").documents)]
    found_in = [origin.rpartition(":")[0] for origin in origins]
    assert [sources.files[number] for number in store.source_numbers("valid", 0)] == found_in
    assert [part.name for part in found.by_source] == [sources.files[1], sources.files[0]]
    assert sources.files[0] in found.report()
