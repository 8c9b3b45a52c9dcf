"""What `predict` writes: that of `transformers` on the exported folder, in the order of the input, in every format."""

import csv
import json
import shutil
from dataclasses import replace

import numpy as np
import pyarrow.parquet
import pytest
import torch
import transformers
from finetuned import LABELS, finished_run, shape

import maskwright
from maskwright.api.models import Model
from maskwright.cli.main import run as command
from maskwright.core.errors import InputError
from maskwright.labels.answers import best_answers
from maskwright.labels.encode import encode
from maskwright.labels.example import Example
from maskwright.labels.metrics import Predictions
from maskwright.model.initial import with_outputs
from maskwright.tasks.export.hugging_face import export
from maskwright.tasks.models.load import load_model
from maskwright.tasks.use import predict as module

GENERATOR = np.random.default_rng(5)
WORDS = ["fox", "garden", "the", "rained", "Größe", "letters,", "again!", "blue"]
TEXTS = [" ".join(GENERATOR.choice(WORDS, GENERATOR.integers(1, 60))) for _ in range(25)]


def made(task, tokenizer, folder):
    """(run, tokenizer and model of its export as `transformers` loads them)."""
    run = str(finished_run(folder / "run", shape("modernbert", task), tokenizer, noise=0.5))
    exported = str(folder / "model")
    export(load_model(run), exported)
    kind = getattr(transformers, json.loads((folder / "model" / "config.json").read_text())["architectures"][0])
    loaded = kind.from_pretrained(exported, local_files_only=True).eval()
    return run, transformers.AutoTokenizer.from_pretrained(exported, local_files_only=True), loaded


def logits(tokens, model, *given):
    """Of one text, without any padding."""
    inputs = tokens(*given, truncation=True, max_length=64, return_tensors="pt")
    with torch.no_grad():
        return model(input_ids=inputs["input_ids"]).logits[0].double().numpy()


def written(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def predicted(*words):
    assert command(["predict", *map(str, words), "--device", "cpu"]) == 0


def test_classes_of_pairs_in_every_format(tokenizer, tmp_path, monkeypatch):
    """25 pairs of every length, some cut, seven at a time: from the run and from its export."""
    monkeypatch.setattr(module, "EXAMPLES_AT_ONCE", 7)
    run, tokens, model = made("single_label_classification", tokenizer, tmp_path)
    pairs = list(zip(TEXTS, reversed(TEXTS), strict=True))
    with (tmp_path / "pairs.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["id", "premise", "hypothesis"], *([n, a, b] for n, (a, b) in enumerate(pairs))])
    expected = []
    for a, b in pairs:
        exact = np.exp(logits(tokens, model, a, b))
        expected.append(exact / exact.sum())
    assert len({row.argmax() for row in expected}) > 1
    for source in (run, tmp_path / "model"):
        out = tmp_path / "out.jsonl"
        predicted(source, "--input", tmp_path / "pairs.csv", "--to", out, "--probabilities", "--max-seq-len", 64)
        for line, (record, (a, b), shares) in enumerate(zip(written(out), pairs, expected, strict=True), 2):
            assert (record["line"], record["text"], record["text_pair"]) == (line, a, b)
            assert record["label"] == LABELS[shares.argmax()]
            assert record["score"] == pytest.approx(shares.max(), abs=2e-5) == record["probability"][record["label"]]
            assert [*record["probability"].values()] == pytest.approx(shares.tolist(), abs=2e-5)
    first = written(tmp_path / "out.jsonl")
    rounded = maskwright.load(run, device="cpu", dtype="bf16").predict(pairs, probabilities=True)
    scores = np.array([[record["probability"][label] for label in LABELS] for record in rounded])
    assert 1e-4 < np.abs(scores - expected).max() < 0.02
    for ending in ("csv", "tsv", "parquet"):
        out = tmp_path / f"out.{ending}"
        predicted(run, "--input", tmp_path / "pairs.csv", "--to", out, "--probabilities", "--max-seq-len", 64)
        if ending == "parquet":
            assert pyarrow.parquet.read_table(out).to_pylist() == first
            continue
        with out.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, delimiter="\t" if ending == "tsv" else ","))
        assert [row["label"] for row in rows] == [record["label"] for record in first]
        assert [float(row["probability_B-PER"]) for row in rows] == [r["probability"]["B-PER"] for r in first]


def test_pairs_keep_their_token_types_in_transformers(tokenizer_of, tmp_path):
    """A tokenizer of no class of its own, which transformers 5 lets give ids alone unless its files say more."""
    shutil.copytree(tokenizer_of("bert"), tmp_path / "tokenizer")
    names = tmp_path / "tokenizer" / "tokenizer_config.json"
    names.write_text(json.dumps(json.loads(names.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    own = shape("bert", "single_label_classification")
    model = load_model(str(finished_run(tmp_path / "run", own, str(tmp_path / "tokenizer"), noise=0.5)))
    export(model, str(tmp_path / "model"))
    theirs = transformers.pipeline("text-classification", str(tmp_path / "model"), top_k=None)
    pairs = [*zip(TEXTS, reversed(TEXTS), strict=True)]
    ours = maskwright.load(tmp_path / "run", device="cpu").predict(pairs, probabilities=True)
    for (text, pair), record in zip(pairs, ours, strict=True):
        said = {one["label"]: one["score"] for one in theirs({"text": text, "text_pair": pair}, truncation=True)}
        assert said == pytest.approx(record["probability"], abs=2e-5)


def test_several_labels_and_numbers(tokenizer, tmp_path):
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"body": text}) + "\n" for text in TEXTS), encoding="utf-8")
    for task in ("multi_label_classification", "regression"):
        (tmp_path / task).mkdir()
        run, tokens, model = made(task, tokenizer, tmp_path / task)
        out = tmp_path / task / "out.jsonl"
        predicted(run, "--input", texts, "--to", out, "--text-column", "body", "--max-seq-len", 64)
        for record, text in zip(written(out), TEXTS, strict=True):
            found = logits(tokens, model, text)
            if task == "regression":
                assert record["score"] == pytest.approx(found[0], abs=1e-4)
                assert set(record) == {"line", "text", "score"}
                continue
            shares = 1.0 / (1.0 + np.exp(-found))
            assert record["label"] == [name for name, share in zip(LABELS, shares, strict=True) if share > 0.5]
            assert record["score"] == pytest.approx(shares[shares > 0.5].tolist(), abs=2e-5)
            middle = float(np.sort(shares)[:2].mean())  # all labels but one are above it
            predicted(run, "--input", texts, "--to", out, "--text-column", "body", "--threshold", f"{middle:.6f}")
            record = written(out)[TEXTS.index(text)]
            assert record["label"] == [name for name, share in zip(LABELS, shares, strict=True) if share > middle]
            assert len(record["label"]) == len(LABELS) - 1
    trained = replace(load_model(str(tmp_path / "multi_label_classification/run")), pairs=True)
    export(trained.with_threshold(0.125), str(tmp_path / "folder"))
    assert load_model(str(tmp_path / "folder")).require_task().threshold == 0.125
    with pytest.raises(InputError, match="is one text, unlike the training examples of .* Fix: give both texts$"):
        maskwright.load(tmp_path / "folder", device="cpu").predict(TEXTS[:1])
    with pytest.raises(InputError, match="which has no threshold"):
        load_model(str(tmp_path / "regression/run")).with_threshold(0.125)
    years = load_model(str(tmp_path / "regression/run"))
    years = replace(years, parameters=with_outputs(years.parameters, 1.0, 2007.0))  # in bf16, 2007 is 2008
    exact, rounded = (Model(years, "cpu", dtype).predict(TEXTS) for dtype in ("fp32", "bf16"))
    assert 0 < max(abs(one["score"] - other["score"]) for one, other in zip(exact, rounded, strict=True)) < 0.6


def test_words_without_pieces_have_no_score(tokenizer, tmp_path):
    """Such as a word of spaces without width, of which BERT's tokenizers keep nothing. Others have their own."""
    model = load_model(str(finished_run(tmp_path / "run", shape("modernbert", "token_classification"), tokenizer)))
    shares = np.eye(len(LABELS), dtype=np.float32)[:3] * np.array([[0.9], [0.8], [0.7]], np.float32)
    example = Example("a.conll", 1, words=("paris", "\u200b", "is", "nice"))
    words = np.array([[0, 0], [0, 2], [0, 3]], np.int32)
    (record,) = module.records(model, [example], Predictions(((0, 0, 1, 2),), shares, words), probabilities=True)
    assert record["scores"] == pytest.approx([0.9, None, 0.8, 0.7], abs=1e-6)
    assert [one and max(one.values()) for one in record["probabilities"]] == record["scores"]


def test_words_get_tags_in_columns_and_in_lists(tokenizer, tmp_path):
    """The last sentence is longer than the model: what it did not see is outside of all spans."""
    run, tokens, model = made("token_classification", tokenizer, tmp_path)
    sentences = [text.split() for text in [*TEXTS[:6], " ".join(WORDS * 12)]]
    source = tmp_path / "words.conll"
    source.write_text("\n".join("".join(f"{word}\n" for word in words) for words in sentences), encoding="utf-8")
    out, columns = tmp_path / "out.jsonl", tmp_path / "out.conll"
    predicted(run, "--input", source, "--to", out, "--max-seq-len", 64, "--probabilities")
    predicted(run, "--input", source, "--to", columns, "--max-seq-len", 64)
    for record, words in zip(written(out), sentences, strict=True):
        inputs = tokens(words, is_split_into_words=True, truncation=True, max_length=64, return_tensors="pt")
        with torch.no_grad():
            said = model(input_ids=inputs["input_ids"]).logits[0].double().softmax(-1).numpy()
        of_word = inputs.word_ids()
        firsts = [said[of_word.index(word)] for word in range(len(words)) if word in of_word]
        tags = [LABELS[share.argmax()] for share in firsts]
        assert record["words"] == words and record["tags"] == tags + ["O"] * (len(words) - len(tags))
        kept = [score for score in record["scores"] if score is not None]
        assert kept == pytest.approx([share.max() for share in firsts], abs=2e-5)
        assert [*record["probabilities"][0].values()] == pytest.approx(firsts[0].tolist(), abs=2e-5)
    assert None in written(out)[-1]["scores"]
    pairs = [list(zip(record["words"], record["tags"], strict=True)) for record in written(out)]
    assert columns.read_text() == "\n".join("".join(f"{word}\t{tag}\n" for word, tag in one) for one in pairs)


def test_texts_get_tags_of_their_words_and_spans(tokenizer, tmp_path):
    """From a column of texts, from a Label Studio task and in Python, as from the words themselves."""
    run, _, _ = made("token_classification", tokenizer, tmp_path)
    texts = [text.replace(" ", "  ", 1) for text in TEXTS[:6]]
    sources = {"csv": tmp_path / "a.csv", "jsonl": tmp_path / "a.jsonl", "json": tmp_path / "a.json"}
    sources["csv"].write_text("text\n" + "".join(f'"{text}"\n' for text in texts), encoding="utf-8")
    sources["jsonl"].write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    sources["json"].write_text(json.dumps([{"id": 1, "data": {"text": text}} for text in texts]), encoding="utf-8")
    words, out = tmp_path / "words.jsonl", tmp_path / "out.jsonl"
    found = {}
    for name, source in sources.items():
        predicted(run, "--input", source, "--to", out, "--max-seq-len", 64)
        found[name] = [{key: value for key, value in record.items() if key != "line"} for record in written(out)]
    assert found["csv"] == found["jsonl"] == found["json"]
    in_python = maskwright.load(run, device="cpu").predict(texts, max_seq_len=64)
    assert [{**record, "scores": None} for record in in_python] == [{**one, "scores": None} for one in found["csv"]]
    words.write_text("".join(json.dumps({"words": one["words"]}) + "\n" for one in found["csv"]), encoding="utf-8")
    predicted(run, "--input", words, "--to", out, "--max-seq-len", 64)
    spans = [record.pop("spans") for record in found["csv"]]
    assert [record | {"line": number} for number, record in enumerate(found["csv"], 1)] == written(out)
    assert any(spans)
    for text, record, of_text in zip(texts, found["csv"], spans, strict=True):
        tagged = [word for word, tag in zip(record["words"], record["tags"], strict=True) if tag != "O"]
        assert "".join(tagged) == "".join("".join(span["text"].split()) for span in of_text)
        assert all(text[span["start"] : span["end"]] == span["text"] and span["label"] == "PER" for span in of_text)
    predicted(run, "--input", sources["csv"], "--to", tmp_path / "out.parquet", "--max-seq-len", 64)
    assert [row["spans"] for row in pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()] == spans


def test_questions_get_answers(tokenizer, tmp_path, capfd):
    run, _, model = made("question_answering", tokenizer, tmp_path)
    texts = [text for text in TEXTS if len(text) > 20]
    records = [{"id": f"q{n}", "question": "Who?", "context": one} for n, one in enumerate(texts)]
    source = tmp_path / "questions.jsonl"
    source.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    examples = [Example("a", 1, one["question"], one["context"]) for one in records]
    task = load_model(run).task
    assert task
    encoded = encode(examples, tokenizer, task, (), 64, labelled=False)
    sides = [[], []]
    for row in range(len(encoded)):
        with torch.no_grad():
            said = model(input_ids=torch.from_numpy(encoded.row(row).astype(np.int64))[None])
        sides[0].append(said.start_logits[0].numpy())
        sides[1].append(said.end_logits[0].numpy())
    starts, ends = map(np.concatenate, sides)
    # Length, windows and whether there may be no answer are those of training, for the exported folder too.
    lengths = {"max_seq_len": 64, "doc_stride": task.doc_stride, "max_answer_len": task.max_answer_length}
    assert model.config.task_specific_params["question-answering"] == {**lengths, "handle_impossible_answer": True}
    out, answers, found = tmp_path / "out.csv", tmp_path / "answers.json", list[list[str]]()
    for extra, none in (((), True), (("--always-answer",), False)):
        expected = best_answers(encoded, examples, starts, ends, task.max_answer_length, may_be_none=none)
        predicted(run, "--input", source, "--to", out, *extra)
        with out.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert [row["answer"] for row in rows] == expected and any(expected) and all(expected) is not none
        assert [row["id"] for row in rows] == [one["id"] for one in records]
        predicted(tmp_path / "model", "--input", source, "--to", answers, *extra)
        assert json.loads(answers.read_text()) == {row["id"]: row["answer"] for row in rows}
        found.append(expected)
    # A model that may give no answer gives none on a file of answers alone too.
    scores = []
    capfd.readouterr()
    for one, always in zip(records, found[1], strict=True):
        one["answers"] = {"text": [always], "answer_start": [one["context"].index(always)]}
    source.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    for place in (run, tmp_path / "model"):
        assert command(["evaluate", str(place), "--input", str(source), "--device", "cpu", "--json"]) == 0
        scores.append(json.loads(capfd.readouterr().out)["metrics"]["exact_match"])
    assert scores == [np.mean([a == b for a, b in zip(*found, strict=True)])] * 2 and scores[0] < 1


def test_mistakes_are_one_line_and_write_nothing(tokenizer, tmp_path, capfd):
    run = finished_run(tmp_path / "run", shape("roberta", "single_label_classification"), tokenizer)
    plain = finished_run(tmp_path / "plain", shape("roberta", "masked_lm"), tokenizer)
    tagger = finished_run(tmp_path / "tagger", shape("roberta", "token_classification"), tokenizer)
    asks = finished_run(tmp_path / "asks", shape("roberta", "question_answering"), tokenizer)
    asked = '"question": "Who?", "context": "A fox."}\n'
    files = {
        "good.csv": "text\nA fox.\n",
        "other.csv": "body\nA fox.\n",
        "gap.csv": 'text\nA fox.\n" "\nA dog.\n',
        "ids.jsonl": f'{{"id": 7, {asked}' * 2,
        "no_ids.jsonl": "{" + asked,
        "long.jsonl": "{" + asked.replace("Who?", "the " * 20),
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    good, other, gap, ids, no_ids, long = (tmp_path / name for name in files)
    out, answers = tmp_path / "out.csv", tmp_path / "answers.json"
    cases = [
        ((run, good, "--to", answers), "is of a kind that cannot be written"),
        ((asks, ids, "--to", answers), "ids.jsonl:2: has the id of line 1, '7', under"),
        ((asks, no_ids, "--to", answers), "no_ids.jsonl:1: has no id, under which"),
        ((plain, good), "is a RobertaForMaskedLM, which has learned no task. Fix: fine-tune it first"),
        ((run, other), "no column with a usual name for the text (columns: body). Fix: name it as --text-column,"),
        ((run, other, "--text-column", "sentence"), "has no column 'sentence' (columns: body). Fix: name another as"),
        ((run, gap), "gap.csv:3: column 'text' is empty. Fix: write a text there, or delete the record, or --on"),
        ((run, good, "--max-seq-len", 65), "but the model reads 64. Fix: set --max-seq-len to 64 or less"),
        ((run, good, "--no-answer"), "--no-answer is for questions, not for single_label_classification"),
        (
            (asks, long, "--max-seq-len", 16),
            "leave 0 of a row's 16 for the context, and windows share 5. Fix: set --max",
        ),
        ((run, tmp_path / "none.csv"), "none.csv"),
        ((tagger, good), "is of a kind that cannot be written"),
        ((run, good, "--to", good), "is also the input"),
        ((run, good, "--text-pair", "b"), "--text-pair is given without --text-column"),
        ((run, good, "--text-column", 0, "--text-pair", "title"), "are given partly by number and partly by name. Fix"),
    ]
    for (model, source, *options), said in cases:
        given = ["predict", model, "--input", source, *options, *(() if "--to" in options else ("--to", out))]
        assert command([*map(str, given)]) == 2, given
        error = capfd.readouterr().err.splitlines()[-1]
        assert said in f"{error}\n" and error.startswith("error: ") and not out.exists(), error
    cut = ["predict", str(asks), "--input", str(long), "--to", str(out), "--max-seq-len"]
    assert command([*cut, "40"]) == 0
    capfd.readouterr()
    long.write_text(files["no_ids.jsonl"] + files["long.jsonl"] + files["no_ids.jsonl"])
    assert command([*cut, "16", "--on-bad-input", "skip"]) == 0
    assert "long.jsonl:2 is left out: the question's 22 tokens leave 0 of a row's 16" in capfd.readouterr().err
    assert [row.split(",")[0] for row in out.read_text().splitlines()] == ["line", "1", "3"]
    assert command(["predict", str(run), "--input", str(gap), "--to", str(out), "--on-bad-input", "skip"]) == 0
    assert f"{gap}:3 is left out: column 'text' is empty" in capfd.readouterr().err
    assert [row.split(",")[0] for row in out.read_text().splitlines()] == ["line", "2", "4"]
    assert command(["predict", str(run), "--input", str(good), "--to", str(out), "--text-column", "0"]) == 0
    shown = capfd.readouterr().err
    assert "the text is column 0, and the first line is a text too" in shown and ": 2 predictions of" in shown
    assert command(["predict", str(run), "--input", str(good), "--to", str(out)]) == 0
    assert ": 1 prediction of" in capfd.readouterr().err


def test_evaluate_judges_fine_tuned_models(tokenizer, tmp_path, capfd, monkeypatch):
    """The gold labels are what `predict` said, but for the first three, which are all another one."""
    run, _, _ = made("single_label_classification", tokenizer, tmp_path)
    texts, out, gold = tmp_path / "texts.csv", tmp_path / "out.jsonl", tmp_path / "gold.tsv"
    texts.write_text("text\n" + "".join(f'"{text}"\n' for text in TEXTS), encoding="utf-8")
    predicted(run, "--input", texts, "--to", out)
    said = [record["label"] for record in written(out)]
    in_cp1252 = tmp_path / "cp1252.csv"
    in_cp1252.write_text(texts.read_text(encoding="utf-8"), encoding="cp1252")
    predicted(run, "--input", in_cp1252, "--to", out, "--encoding", "cp1252")
    assert [record["label"] for record in written(out)] == said and written(out)[4]["text"] == TEXTS[4]
    true = [LABELS[LABELS.index(label) - 1] for label in said[:3]] + said[3:]
    lines = (f"{text}\t{label}\n" for text, label in zip(TEXTS, true, strict=True))
    gold.write_text("text\tlabel\n" + "".join(lines), encoding="utf-8")
    capfd.readouterr()
    assert command(["evaluate", run, "--input", str(gold), "--device", "cpu", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["metrics"]["accuracy"] == 22 / 25 and found["count"] == 25 and found["labels"] == [*LABELS]
    table = np.array(found["confusion"])
    assert table.sum() == 25 and np.trace(table) == 22
    assert [table[:, n].sum() for n in range(3)] == [said.count(label) for label in LABELS]
    assert sum(part["count"] for part in found["calibration"]["bins"]) == 25
    assert command(["evaluate", str(tmp_path / "model"), "--input", str(gold), "--device", "cpu"]) == 0
    shown = capfd.readouterr().out
    assert "accuracy               0.8800" in shown and "weighted avg" in shown and "expected calibration" in shown
    hidden = tmp_path / "hidden.csv"
    hidden.write_text("text,label\n" + "".join(f'"{text}",O\n' for text in TEXTS), encoding="utf-8")
    assert command(["evaluate", run, "--input", str(hidden), "--device", "cpu"]) == 0
    assert f"warning: {hidden}: all 25 examples have the label 'O'. If they are hidden, no" in capfd.readouterr().err
    columns = tmp_path / "columns.csv"  # without a header line, as AG News: the label comes first
    columns.write_text("".join(f'{label},"{text}"\n' for text, label in zip(TEXTS, true, strict=True)))
    numbered = json.loads(record := (tmp_path / "run" / "config.resolved.json").read_text())
    numbered["config"] |= {"data.label": 0, "data.text": 1}
    (tmp_path / "run" / "config.resolved.json").write_text(json.dumps(numbered))
    assert command(["evaluate", run, "--input", str(columns), "--device", "cpu", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["metrics"] == found["metrics"]
    (tmp_path / "run" / "config.resolved.json").write_text(record)
    columns.write_text(columns.read_text(encoding="utf-8"), encoding="shift_jisx0213")
    by_number = [str(columns), "--text-column", "1", "--label", "0", "--encoding", "shift_jisx0213"]
    assert command(["evaluate", str(tmp_path / "model"), "--input", *by_number, "--device", "cpu", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["metrics"]["accuracy"] == 22 / 25
    mistakes = [
        ([], "has neither data.test nor data.validation; its results.json lists the scores on its held-out exam"),
        (["--input", str(texts)], f"{texts}:1: has no column with a usual name for the labels (columns: text). Fix"),
        (["--input", str(gold), "--text-column", "x"], "has no column 'x' (columns: text, label). Fix: name another"),
        (["--store", "s", "--label", "label"], "without a masked-LM head"),
    ]
    for given, what in mistakes:
        assert command(["evaluate", run, *given, "--device", "cpu"]) == 2
        assert what in capfd.readouterr().err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("evaluate", "predict", "embed"):
        given = ["--input", str(gold), *(["--to", str(tmp_path / "new.parquet")] * (name != "evaluate"))]
        assert command([name, run, *given, "--device", "cuda"]) == 2
        assert "error: --device: cuda was requested, but torch sees no CUDA device" in capfd.readouterr().err
    gold.write_text("text\tlabel\nA fox.\tB-LOC\n", encoding="utf-8")
    assert command(["evaluate", run, "--input", str(gold), "--device", "cpu"]) == 2
    assert f"{gold}:2: label 'B-LOC' is none of the model's (O, B-PER, I-PER). Fix: write" in capfd.readouterr().err
