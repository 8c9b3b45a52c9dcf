"""Retrieval: what files of a collection may hold, metrics beside their definitions, the arms without a transformer
written out, and what a comparison of made-up fine-tunings says and refuses."""

import json
import math
import os
import random
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import warm
import yaml
from finetuned import WORDS, foxes, pretrained_folder
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import ndcg_score

from maskwright.config.retrieval import RetrievalConfig, RetrievalData, read_task_config
from maskwright.core import extras, storage
from maskwright.core.errors import ConfigError, InputError
from maskwright.labels import ranking
from maskwright.labels.ranking import ranked, record_of_scores, score_rankings
from maskwright.labels.retrieval import Collection, Query, _hold_out, read_collection
from maskwright.labels.scoring import Scoring, scorer
from maskwright.tasks.compare.plan import Budget, read
from maskwright.tasks.compare.retrieval import LexicalRuns, RetrievalTask
from maskwright.tasks.search.updates import planned_updates, texts_of

PLACES = ["Rome", "Oslo", "Lima", "Bonn", "Kyiv", "Cork"]


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def judged(*rows):
    return "query-id\tcorpus-id\tscore\n" + "".join("\t".join(map(str, row)) + "\n" for row in rows)


def collection_in(folder):
    """The YAML of a collection whose questions share words with the passages that answer them: 40 passages, 24
    questions to learn from and 12 of the test."""
    draw = random.Random(2)
    passages = [
        {"_id": f"p{n}", "title": draw.choice(PLACES) if n % 2 else "", "text": " ".join(draw.choices(WORDS, k=12))}
        for n in range(40)
    ]
    queries, rows = [], {"train": [], "test": []}
    for n in range(36):
        answers = draw.sample(range(40), 3)
        words = [word for p in answers[:2] for word in passages[p]["text"].split()[:4]]
        queries.append({"_id": n, "text": " ".join([*words, f"question{n}"])})
        rows["test" if n % 3 == 0 else "train"] += [
            (n, f"p{p}", grade) for p, grade in zip(answers, (2, 1, 0), strict=True)
        ]
    (folder / "corpus.jsonl").write_text(lines(*passages))
    (folder / "queries.jsonl").write_text(lines(*queries))
    for split, of_split in rows.items():
        (folder / f"{split}.tsv").write_text(judged(*of_split))
    data = {"corpus": "corpus.jsonl", "queries": "queries.jsonl", "train": "train.tsv", "test": "test.tsv"}
    values = {"task": {"kind": "retrieval"}, "data": {key: str(folder / name) for key, name in data.items()}}
    path = folder / "places.yaml"
    path.write_text(yaml.safe_dump(values | {"model": {"init_from": "none"}}))
    return path


def test_a_collection_is_read_and_its_questions_held_out_by_the_seed(tmp_path):
    config = read_task_config(str(collection_in(tmp_path)))
    assert isinstance(config, RetrievalConfig) and config.evaluation.metric == "ndcg@10"
    whole = read_collection(config.data.model_copy(update={"validation": config.data.test, "test": None}), 0)
    assert (len(whole.passages), len(whole.train), len(whole.validation), whole.pairs) == (40, 24, 12, 48)
    assert whole.passages[1].split()[0] in PLACES and whole.passages[0].split()[0] in WORDS
    assert whole.with_repeated_answers() == whole.asked_in_training() == 0
    asked = replace(whole.validation[0], text=f"{whole.train[0].text.upper()} ?")
    assert replace(whole, validation=[asked, whole.validation[1]]).asked_in_training() == 1
    answers = whole.validation[0].relevant
    twice = replace(whole, passages=[*whole.passages, *(whole.passages[one] for one in answers)])
    assert twice.with_repeated_answers() == sum(any(one in answers for one in q.relevant) for q in whole.validation)
    first = whole.train[0]
    assert first.text.endswith("question1") and sorted(first.grades.values()) == [0, 1, 2]
    assert first.where == f"{tmp_path / 'queries.jsonl'}:2" and len(first.relevant) == 2

    held = {seed: read_collection(config.data, seed) for seed in range(4)}
    for split in held.values():
        assert len(split.validation) in (2, 3) and len(split.test) == 12  # a tenth of 24
        assert sorted(query.text for query in [*split.train, *split.validation]) == sorted(q.text for q in whole.train)
    assert len({tuple(query.text for query in split.validation) for split in held.values()}) > 1
    assert held[0].fingerprint == read_collection(config.data, 0).fingerprint != held[1].fingerprint
    # The order of lines does not choose.
    path = tmp_path / "train.tsv"
    head, *rest = path.read_text().splitlines()
    path.write_text("\n".join([head, *reversed(rest)]) + "\n")
    again = read_collection(config.data, 0).validation
    assert {query.text for query in again} == {query.text for query in held[0].validation}


CORPUS = lines({"_id": "a", "text": "one", "title": None}, {"_id": "b", "text": "two"})
QUERIES, JUDGED = lines({"_id": 7, "text": "which?"}), judged(("7", "a", 1))
TOO_FEW = "data.validation_fraction: 1 question: too few different ones to hold out 0.1"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("train.tsv", judged(("7", "a", 1), ("8", "a", 1)), "train.tsv:3: there is no question '8'"),
        ("train.tsv", judged(("7", "c", 1)), "train.tsv:2: there is no passage 'c'"),
        ("train.tsv", judged(("7", "a", 0), ("7", "b", 0)), "train.tsv:2: no passage answers this question, since all"),
        ("train.tsv", judged(("7", "a", 1), ("7", "a", 2)), "train.tsv:3: judges passage 'a' for question '7' again"),
        ("train.tsv", judged(("7", "a", "1.5")), "train.tsv:2: the score is '1.5'"),
        ("train.tsv", JUDGED, TOO_FEW),
        ("queries.jsonl", lines({"_id": "7", "text": " "}), "queries.jsonl:1: this question is empty"),
        ("train.tsv", "query\tcorpus\n7\ta\n", "train.tsv:1: has no column 'query-id'"),
        ("train.tsv", judged(), "train.tsv: holds no judgements"),
        ("test.tsv", judged(("7", "b", 1)), "test.tsv:2: this question is in the train split as well"),
        ("corpus.jsonl", lines({"_id": "a", "text": "one"}) * 2, "corpus.jsonl:2: has the same _id 'a' as "),
        ("corpus.jsonl", lines({"_id": "a"}), "corpus.jsonl:1: has no text"),
        ("corpus.jsonl", lines({"text": "one"}), "corpus.jsonl:1: has no _id"),
        ("corpus.jsonl", "\n", "corpus.jsonl: holds no lines"),
        ("queries.jsonl", lines({"_id": "7", "text": 3}), "queries.jsonl:1: text is not a text, but 3"),
        ("queries.jsonl", "{", "queries.jsonl:1: is not JSON"),
    ],
)
def test_a_bad_line_is_named(file, content, message, tmp_path):
    files = {"corpus.jsonl": CORPUS, "queries.jsonl": QUERIES, "train.tsv": JUDGED, file: content}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    names = {"corpus": "corpus.jsonl", "queries": "queries.jsonl", "train": "train.tsv"}
    more = {"test": "test.tsv"} if "test.tsv" in files else {}
    data = RetrievalData(**{key: str(tmp_path / name) for key, name in (names | more).items()})
    with pytest.raises(InputError) as caught:
        read_collection(data, 0)
    where = "" if message == TOO_FEW else f"{tmp_path}/"
    assert f"{where}{message}" in str(caught.value) and "Fix: " in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_question_in_other_words_clothes_is_not_held_out_of_training():
    asked = [Query(text, {0: 1}, "q.jsonl:1") for text in ("Who is it?", "who  is it", "where is it", "when is it")]
    for seed in range(20):
        train, held = _hold_out(asked, seed, 0.5)
        assert (asked[0] in train) is (asked[1] in train) and len(train) + len(held) == 4 and train


def test_a_question_that_is_a_passage_does_not_answer_itself(tmp_path):
    """By its id and text, as in ArguAna; the same id for other texts, as where both are counted, says nothing."""
    texts = {"a": ("T", "One thing."), "b": ("", "two"), "c": ("", "three"), "d": ("", "four more")}
    (tmp_path / "c.jsonl").write_text(lines(*({"_id": k, "title": t, "text": x} for k, (t, x) in texts.items())))
    asked = {"a": "one  thing", "b": "two", "c": "which?", "d": "four more!"}
    (tmp_path / "q.jsonl").write_text(lines(*({"_id": key, "text": text} for key, text in asked.items())))
    (tmp_path / "t.tsv").write_text(judged(("a", "b", 1), ("b", "b", 1), ("c", "a", 1), ("d", "a", 1)))
    names = {"corpus": "c.jsonl", "queries": "q.jsonl", "train": "t.tsv"}
    data = RetrievalData(**{key: str(tmp_path / name) for key, name in names.items()}, validation_fraction=0.3)
    found = read_collection(data, 0)
    both = [*found.train, *found.validation]
    assert {query.text: query.own for query in both} == {"one  thing": 0, "two": None, "which?": None, "four more!": 3}


def test_metrics_are_their_definitions(monkeypatch):
    generator = np.random.default_rng(1)
    scores = generator.standard_normal((9, 130))
    grades = generator.integers(-1, 4, (9, 130)) * (generator.random((9, 130)) < 0.1)
    grades[:, 5] = 2
    queries = [Query("", {p: int(g) for p, g in enumerate(row) if g}, "") for row in grades]
    monkeypatch.setattr(ranking, "AT_ONCE", 4)
    rankings = ranked(9, lambda some: scores[some])
    equal = np.round(scores, 1)  # of which many are equal, at the last place too
    whole = np.argsort(-equal, axis=1, kind="stable")[:, :101]
    assert np.array_equal(ranked(9, lambda some: equal[some]), whole)
    assert rankings.shape == (9, 101)
    found = score_rankings(queries, rankings)
    for query in range(9):
        gains = grades[query].clip(0)
        assert found["ndcg@10"][query] == pytest.approx(ndcg_score([gains], [scores[query]], k=10))
        order = sorted(range(130), key=lambda passage: -scores[query, passage])
        relevant = set(np.flatnonzero(gains).tolist())
        assert found["recall@100"][query] == len(relevant & set(order[:100])) / len(relevant)
        first = next(place for place, passage in enumerate(order, 1) if passage in relevant)
        assert found["mrr@10"][query] == (1 / first if first <= 10 else 0)
    assert len(set(found["mrr@10"])) > 2 and 0 < min(found["recall@100"]) < 1
    weights = generator.integers(1, 4, (5, 9)).astype(np.float32)  # as a bootstrap draws them
    drawn = scorer(Scoring("scores", "mean", (), ()), [found["ndcg@10"]])(weights)[:, 0]
    assert drawn == pytest.approx(np.array([np.average(found["ndcg@10"], weights=row) for row in weights]))
    means, record = record_of_scores(queries, rankings)
    assert means["examples"] == 9 and means["ndcg@10"] == pytest.approx(np.mean(record["outcomes"]["ndcg@10"]))
    # Of equal scores, the earlier passage is first; nothing found scores 0.
    assert ranked(1, lambda some: np.array([[1.0, 2.0, 2.0, 1.0]])).tolist() == [[1, 2, 0, 3]]
    assert {values[0] for values in score_rankings(queries[:1], np.full((1, 1), -1)).values()} == {0.0}
    assert ranked(1, lambda some: np.array([[0.0, 0.5, 0.0]]), above=0.0).tolist() == [[1, -1, -1]]
    one = Query("", {100: 1}, "", own=3)  # found 100th, without itself
    assert score_rankings([one], np.arange(101)[None])["recall@100"] == [1.0]


def plain_bm25(passages, query):
    """Sparck Jones' weights as Lucene has them, summed word by word."""
    texts = [passage.lower().split() for passage in passages]
    mean = sum(map(len, texts)) / len(texts)
    scores = []
    for words in texts:
        score = 0.0
        for word in query.lower().split():
            holders = sum(word in other for other in texts)
            weight = math.log(1 + (len(texts) - holders + 0.5) / (holders + 0.5))
            count = words.count(word)
            score += weight * count / (count + 1.5 * (1 - 0.75 + 0.75 * len(words) / mean))
        scores.append(score)
    return scores


def plain_tf_idf(passages, query):
    total = np.zeros(len(passages))
    for options in ({"ngram_range": (1, 2), "token_pattern": r"\w+"}, {"analyzer": "char_wb", "ngram_range": (2, 4)}):
        vectorizer = TfidfVectorizer(sublinear_tf=True, **options).fit(passages)
        total += (vectorizer.transform([query]) @ vectorizer.transform(passages).T).toarray()[0]
    return total.tolist()


@pytest.mark.parametrize(("arm", "plainly"), [("bm25", plain_bm25), ("linear", plain_tf_idf)])
def test_lexical_arms_are_their_formulas(arm, plainly, tmp_path):
    config = read_task_config(str(collection_in(tmp_path)))
    collection = read_collection(config.data, 3)
    task = RetrievalTask("places", "", config, collection, {})
    runs = LexicalRuns(task, arm)
    runs.make(str(tmp_path / "search"), seed=3, search=True)
    runs.make(str(tmp_path / "final"), seed=3, search=False)
    assert sorted(os.listdir(tmp_path / "search")) == ["predictions-validation.json", "results.json"]
    scores = np.array([plainly(collection.passages, query.text) for query in collection.test])
    expected = score_rankings(collection.test, ranked(len(scores), lambda some: scores[some].round(5), above=0.0))
    written = storage.read_json(str(tmp_path / "final" / "predictions-test.json"))
    assert written["where"] == [query.where for query in collection.test]
    assert written["outcomes"] == expected and 0.3 < np.mean(expected["ndcg@10"]) < 1
    results = storage.read_json(str(tmp_path / "final" / "results.json"))
    assert results["test"]["mrr@10"] == pytest.approx(np.mean(expected["mrr@10"]))


def planned(queries, passages, **more):
    values = {"task": {"kind": "retrieval"}, "data": dict.fromkeys(("corpus", "queries", "train"), "x")}
    config = RetrievalConfig.model_validate(values | {"model": {"init_from": "x"}} | more)
    return planned_updates(Collection(passages, queries, [], [], ""), config)


def test_no_update_holds_a_right_answer_as_a_wrong_one():
    draw = random.Random(5)
    passages = [f"passage {number % 55}" for number in range(60)]  # some are equal
    queries = [
        Query(f"q{n % 28}", {p: draw.choice([0, 1, 2]) for p in draw.sample(range(60), 5)}, "") for n in range(30)
    ]
    queries = [query for query in queries if query.relevant]
    for n, query in enumerate(queries):
        if passages[n] not in {passages[p] for p in query.grades}:
            queries[n] = replace(query, own=n)
    pairs = sum(len(query.relevant) for query in queries)
    updates = planned(queries, passages, batch={"examples": 8}, schedule={"epochs": 4})
    counts = {}
    for update in updates:
        assert 1 <= len(update) <= 8
        texts = [queries[question].text for question in update[:, 0]]
        assert len(set(texts)) == len(texts)
        for row, (question, passage, negative) in enumerate(update.tolist()):
            counts[question, passage] = counts.get((question, passage), 0) + 1
            right = {passages[p] for p in (*queries[question].relevant, queries[question].own) if p is not None}
            wrong = [passages[p] for other, line in enumerate(update.tolist()) for p in line[1:] if other != row]
            assert queries[question].grades[passage] > 0 and not right & {*wrong, passages[negative]}
    assert set(counts.values()) == {4} and len(counts) == pairs
    assert np.mean([len(update) for update in updates]) > 5
    again = planned(queries, passages, batch={"examples": 8}, schedule={"epochs": 4})
    assert all(np.array_equal(one, other) for one, other in zip(updates, again, strict=True))
    other = planned(queries, passages, batch={"examples": 8}, schedule={"epochs": 4}, seed=1)
    assert not np.array_equal(updates[0], other[0])
    assert len(planned(queries, passages, schedule={"steps": 70})) == 70


def test_few_questions_make_small_updates_and_hard_negatives_take_turns():
    passages = [f"passage {number}" for number in range(40)]
    queries = [Query("plain", {0: 1}, ""), Query("judged", {1: 2, 2: 1, **dict.fromkeys(range(10, 17), 0)}, "")]
    updates = planned(queries, passages, schedule={"epochs": 4})
    assert {len(update) for update in updates} == {1, 2}
    rows = np.concatenate(updates)
    assert rows[rows[:, 0] == 1, 2].tolist() == [10, 11, 12, 13, 14, 15, 16, 10]
    by_chance = rows[rows[:, 0] == 0, 2]
    assert len(set(by_chance.tolist())) > 1 and 0 not in by_chance
    plain = np.concatenate(planned(queries[:1], passages))
    assert texts_of(queries, passages, plain[:, :2]) == {"question": ["plain"] * 3, "passage": ["passage 0"] * 3}
    assert (plain[:, 2] == -1).all()
    assert texts_of(queries, passages, rows[:1])["negative"] == [passages[rows[0, 2]]]


@pytest.fixture(scope="module")
def task(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("places")
    pretrained_folder(folder / "model", tokenizer)
    return collection_in(folder)


def test_arms_and_commands_of_another_kind_are_refused(task, tmp_path, monkeypatch):
    model, budget = str(task.parent / "model"), Budget([1e-3], 6)
    labelled = foxes(tmp_path)
    with pytest.raises(InputError, match=r"foxes\.yaml: bm25 ranks passages, but does not support single.* leave"):
        read([model, "bm25"], [str(labelled)], "new", base=None, budget=budget)
    with pytest.raises(ConfigError, match=r"evaluation\.metric is 'accuracy'.* Fix: give one of ndcg@10, recall@100"):
        read([model, "random"], [str(task)], "new", base=None, budget=budget, overrides=["evaluation.metric=accuracy"])
    with pytest.raises(ConfigError, match="schedule: schedule has steps and epochs"):
        read_task_config(str(task), ["schedule={epochs: 1, steps: 2}"])
    with pytest.raises(ConfigError, match=r"unknown key optimizer\.kind\. Fix: remove it; a retrieval task"):
        read_task_config(str(task), ["optimizer.kind=adamw"])
    monkeypatch.setattr(extras, "installed", lambda package: package != "bm25s")
    with pytest.raises(ConfigError, match=r"^bm25: the package bm25s is not installed\. Fix: .*--search.*\[search\]"):
        read(["nowhere", "bm25"], [str(task)], "new", base=None, budget=budget)
    monkeypatch.setattr(extras, "installed", lambda package: package != "sentence_transformers")
    with pytest.raises(ConfigError, match=r"^task\.kind retrieval: the package sentence_transformers is not installed"):
        read([model, "linear"], [str(task)], "new", base=None, budget=budget)


def test_bm25_leaves_the_accelerator_to_the_trainings():
    """bm25s starts JAX when it is imported, and JAX takes a GPU's memory."""
    pytest.importorskip("bm25s", reason="needs the extra search")
    use = "from maskwright.tasks.compare.retrieval import _bm25; _bm25(['a fox'])"
    code = f"import sys; {use}; print('jax' in sys.modules)"
    process = warm.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.communicate() == ("False\n", None) and process.returncode == 0
