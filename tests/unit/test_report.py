"""What a run writes for its report, the report, and its parts of runs of which only that is known."""

import json
import math
import random
import re
import shlex
import shutil
from collections import Counter
from dataclasses import replace

import fsspec
import numpy as np
import pytest
from conftest import small_config
from html_page import Page
from made_record import made_record
from reference.stored import documents_of

from maskwright.config import recipes
from maskwright.config.finetuning import build_finetune_config, read_finetune_config
from maskwright.config.pretraining import build_config, read_config
from maskwright.config.settings import flat, parse_yaml, put
from maskwright.core import extras
from maskwright.core.errors import StoppedEarly
from maskwright.data.loader import validation_batches
from maskwright.engines.base import StepStats
from maskwright.engines.torch.engine import TorchEngine
from maskwright.monitor.status import RunReport
from maskwright.report import background, configuration, curves, incidents, training
from maskwright.report.curves import COLUMNS, Curve, Level, Panel, stack, thinned
from maskwright.report.document import Code, Facts, Folded
from maskwright.report.page import contents, write
from maskwright.report.run import RecordedRun, read, read_all
from maskwright.tasks.measure import held_out
from maskwright.tasks.pretrain.run import pretrain
from maskwright.tasks.start import data_card
from maskwright.text.cleaning.language import language_of
from maskwright.text.tokenizer import load_tokenizer
from maskwright.training.stop import StopRequest

COPIES = "memory://report/copies"
KEYS = {
    "schedule.steps": 40,
    "checkpoint.save_every_steps": 4,
    "checkpoint.keep": 3,
    "checkpoint.copy_to": COPIES,
    "evaluation.every_steps": 10,
}


@pytest.fixture(scope="module")
def folder(store, tmp_path_factory):
    """A run that was stopped at step 10, went on, and had a spike at its 30th step."""
    place = tmp_path_factory.mktemp("report") / "run"
    real, at = TorchEngine.step, 0

    def inflated(self, *arguments):
        nonlocal at
        at += 1
        stats = real(self, *arguments)
        assert stats is not None
        return StepStats(float(stats.loss_sum) * (30.0 if at == 30 else 1.0), stats.weight, stats.grad_norm)

    fsspec.filesystem("memory").store.clear()  # of a run that this process has made before
    (place.parent / "run.yaml").write_text("schedule: {steps: 40}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchEngine, "step", inflated)
        config, given = small_config(store.location, **KEYS), str(place.parent / "run.yaml")
        with pytest.raises(StoppedEarly):
            pretrain(config, str(place), config_file=given, stop_request=StopRequest(stop_after_steps=10))
        pretrain(config, str(place))
    return place


def test_a_run_writes_its_history_and_what_it_was_trained_on(folder, store):
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    told = [(line["event"], line["step"]) for line in lines if line["event"] != "saved"]
    assert told == [("started", 0), ("ended", 10), ("started", 10), ("spiked", 30), ("ended", 40)]
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    assert (lines[-1]["phase"], lines[-1]["exit"]) == ("done", 0)
    saved = {line["step"] for line in lines if line["event"] == "saved"}
    assert {4, 8, 10, 40} <= saved
    card = json.loads((folder / "data.json").read_text())
    batches = validation_batches(store, seq_len=32, packing="documents", max_rows=8, micro_batch_rows=4)
    counts = Counter(token for one in documents_of(store.split("train")) for token in one.tolist())
    labels = [label for batch in batches for label in batch.labels[batch.weights > 0].tolist()]
    loss = -sum(math.log((counts[label] + 1) / (counts.total() + 400)) for label in labels) / len(labels)
    right = labels.count(counts.most_common(1)[0][0]) / len(labels)
    assert tuple(card["unigram"][""].values()) == pytest.approx((loss, right), rel=1e-12)
    assert card["chance"] == math.log(400)
    (source,) = card["sources"]
    assert source["splits"] == store.manifest["splits"] and source["fingerprint"] == store.fingerprint
    assert sum(source["documents_by_tokens"].values()) == store.split("train").documents
    assert source["languages"] == data_card.languages_of(store, store.split("train"))


def test_the_page_says_what_the_run_recorded(folder, tmp_path):
    run = read(str(folder))
    write(str(tmp_path / "page.html"), [run], dollars_per_hour=3.0)
    text = (tmp_path / "page.html").read_text()
    page = Page(text)
    assert not {"script", "img", "link", "iframe"} & {tag for tag, _ in page.elements}
    assert not re.findall(r"url\(|@import|src=|https?:", text)
    losses = [line["valid_loss"] for line in run.metrics if "valid_loss" in line]
    baseline = run.card["unigram"][""]["loss"]
    for words in (
        *(f"Held-out loss{losses[-1]:.3f}", f"unigram baseline {baseline:.3f}", "ln V 5.99", "clipped above 1"),
        *(f"Perplexity{math.exp(losses[-1]):,.1f}", f"Cost${3.0 * (run.seconds or 0) / 3600:.2f}"),
        *("The loss spiked at step 30", "in 2 starts"),
        *("step 10 of 40 is saved", "maskwright pretrain config.yaml --run NEW"),
    ):
        assert words in page.text, words
    kinds = [element["class"] for element in page.all("line") if "tick" in (element.get("class") or "")]
    assert {"tick saved", "tick started", "tick spiked"} == set(kinds)
    assert len([dot for dot in page.all("circle") if dot["class"] == "s1"]) == len(losses) == 5
    defaults = configuration._defaults(run)
    differing = {key for key, value in run.config.items() if value != defaults[key] and value is not None}
    assert all(key in page.text for key in differing) and "optimizer.beta1" in page.text


def test_the_command_writes_a_page_of_several_runs(folder, tmp_path, cli):
    other = tmp_path / "else" / "run"
    shutil.copytree(folder, other)
    record = json.loads((other / "config.resolved.json").read_text())
    record["config"] |= {"optimizer.learning_rate": 0.5, "optimizer.weight_decay": 0.010000001, "seed": 3}
    (other / "config.resolved.json").write_text(json.dumps(record))
    out = tmp_path / "out.html"
    assert cli("report", folder, other, "--to", out).code == 0
    said = Page(out.read_text()).text
    assert "Keys in which the runs differ" in said and "optimizer.learning_rate0.0030.5" in said
    assert "optimizer.weight_decay0.010.010000001" in said and "seed03" in said
    names = [run.name for run in read_all([str(folder), str(other)])]
    assert len(set(names)) == 2 and names[1] == "else/run"


def test_runs_in_a_bucket_and_their_copies(folder):
    here, bucket = read(str(folder)), fsspec.filesystem("memory")
    bucket.put(f"{folder}/", "/bucket/run/", recursive=True)
    there, copied = read("memory://bucket/run"), read(COPIES)
    assert (there.metrics, there.history, there.card) == (here.metrics, here.history, here.card)
    assert copied.report.state == "only checkpoints" and copied.card == here.card
    assert copied.config == here.config and copied.points("loss") == here.points("loss")
    assert copied.metrics == here.metrics and copied.points("valid_loss") == here.points("valid_loss"), "to its end"
    title, sections = contents([there, copied])
    assert title == "2 runs: run and copies" and sections


def test_a_copy_of_an_unfinished_run_says_how_far_it_is(folder):
    bucket = fsspec.filesystem("memory")
    for name in bucket.ls("/report/copies", detail=False):
        if name.endswith(("history.jsonl", "metrics.jsonl", "data.json")) or "/step-" in name:
            bucket.copy(name, name.replace("copies", "unfinished"), recursive=True)
    *_, newest = (name for name in bucket.find("/report/unfinished") if name.endswith("/config.resolved.json"))
    record = json.loads(bucket.cat(newest))
    for steps, share, ended in ((80, "50% of 80 steps", False), (40, "100% of 40 steps", True)):
        bucket.pipe(newest, json.dumps(record | {"steps": steps}).encode())
        copied = read("memory://report/unfinished")
        assert (copied.report.state, copied.step, copied.has_ended) == ("only checkpoints", 40, ended)
        assert share in str(contents([copied]))


def test_what_is_no_run_is_one_line_and_exit_2(folder, tmp_path, cli):
    (tmp_path / "empty").mkdir()
    (tmp_path / "compared").mkdir()
    (tmp_path / "compared" / "compare.json").write_text("{}")
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (broken / "config.resolved.json").write_text("{")
    (tmp_path / "compared.html").mkdir()
    page = tmp_path / "page.html"
    for words, said in (
        ((tmp_path / "empty",), "is not there, or is empty"),
        ((tmp_path / "compared",), "open its verdict.html"),
        ((broken,), "is not a run's record"),
        ((folder, f"{folder}/"), "is given twice"),
        ((folder, "--to", tmp_path / "page.pdf"), "ends with .pdf"),
        ((folder, "--to", tmp_path / "none" / "page.html"), f"{tmp_path}/none: there is no such"),
        ((folder, "--to", tmp_path / "compared.html"), "compared.html: is a folder"),
    ):
        result = cli("report", *words, *([] if "--to" in words else ["--to", page]))
        assert (result.code, result.err.count("\n")) == (2, 1) and said in result.error
    assert not page.exists() and not (tmp_path / "none").exists()


def test_a_run_that_has_only_begun_has_a_page(folder, tmp_path):
    begun = tmp_path / "begun"
    begun.mkdir()
    shutil.copy(folder / "config.resolved.json", begun)
    for name in ("history.jsonl", "metrics.jsonl", "data.json"):
        (begun / name).write_text('{"step": 1, "loss": NaN, "time": "soon"}\nhalf a li')
    write(str(tmp_path / "page.html"), [read(str(begun))])
    text = Page((tmp_path / "page.html").read_text()).text
    assert "no log line yet" in text and "optimizer.learning_rate" in text


def test_no_secret_is_on_a_page(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "c4n4ry-token")
    secret = tmp_path / "secret"
    shutil.copytree(folder, secret)
    (secret / "config.yaml").write_text("data: {store: 'https://me:c4n4ry-password@host/x'} # c4n4ry-token\n")
    with open(secret / "history.jsonl", "a") as file:
        file.write(json.dumps({"event": "ended", "step": 1, "time": 1.0, "message": "<b>c4n4ry-token"}) + "\n")
    write(str(tmp_path / "page.html"), [read(str(secret))])
    text = (tmp_path / "page.html").read_text()
    assert "c4n4ry" not in text and "<b>***" not in text and "***" in text


def test_kills_are_starts_without_a_last_word(folder):
    run = read(str(folder))
    assert incidents.kills(run) == 0
    engine = {"engine": "torch on cpu, 1 thread, 2 processes", "processes": 2}
    lines = [line | (engine if line["event"] == "started" else {}) for line in run.history if line["event"] != "ended"]
    killed = RecordedRun(**{**run.__dict__, "history": lines})
    assert incidents.kills(killed) == 1
    said = incidents.in_words(killed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(incidents, "MOST_LINES", 2)
        assert incidents.in_words(killed) == [f"{len(said) - 2} earlier ones are in history.jsonl.", *said[-2:]]
    assert any("disappeared without a message" in line for line in said)
    assert any("(torch on cpu, 1 thread, 2 processes)." in line for line in said)
    assert ", 1 restart (after a kill), 1 spike." in incidents.summary(killed)
    start = next(line for line in lines if line["event"] == "started")
    for events, told in (
        ("sss", "2 restarts (each after a kill)"),
        ("sess", "2 restarts (1 after a kill)"),
        ("sesss", "3 restarts (2 after kills)"),
        ("ses", "1 restart,"),
    ):
        history = [start if one == "s" else {**start, "event": "ended"} for one in events]
        assert told in incidents.summary(RecordedRun(**{**run.__dict__, "history": history}))


def test_thinned_curves_keep_the_ends_and_each_column_highest_and_lowest():
    generator = random.Random(0)
    last = 100_000.0
    points = [(float(step), generator.gauss(3, 1)) for step in range(1, 100_001)]
    points[43_210] = (43_211.0, 99.0)
    found = thinned(points, last)
    assert len(found) <= 4 * (COLUMNS + 1) and found == sorted(found) and set(found) <= set(points)
    assert (43_211.0, 99.0) in found and found[0] == points[0] and found[-1] == points[-1]
    inside = {}
    kept = {}
    for some, columns in ((points, inside), (found, kept)):
        for step, value in some:
            columns.setdefault(int(step / last * COLUMNS), []).append(value)
    assert inside.keys() == kept.keys()
    assert all((min(inside[one]), max(inside[one])) == (min(kept[one]), max(kept[one])) for one in inside)
    assert len(stack([Panel("loss", [Curve("a", points)])], last, "x")) < 40_000


@pytest.mark.parametrize(
    "values", [[0.0], [5.0, 5.0], [1e-5, 4e-4], [0.2, 3.0, 1e6], [-3.0, 2.0], [8.3, 2.1, 6.0], [1e9, 2e9]]
)
def test_scales_hold_their_values_between_few_marks(values):
    for height, may_be_log in ((60, False), (240, True)):
        curve, level = Curve("a", [*enumerate(values)]), Level("line", max(values))
        heights = curves._heights(Panel("x", [curve], [level], (), height, False, may_be_log))
        assert heights.share(min(values)) >= 0.0 and heights.share(max(values)) <= 1.0
        assert 2 <= len(heights.marks()) <= height // curves.BETWEEN_MARKS + 3
        labels = [heights.label(mark) for mark in heights.marks()]
        assert len(set(labels)) == len(labels)


def test_lengths_and_frequencies_are_those_of_a_slow_count(store, monkeypatch):
    sizes = [0, 1, 2, 3, 4, 7, 8, 1023, 1024, 5]
    slow = {}
    for size in sizes:
        limit = 1
        while limit <= size:
            limit *= 2
        slow[str(limit)] = slow.get(str(limit), 0) + 1
    assert data_card.by_powers_of_two(np.array(sizes)) == slow
    split = store.split("train")
    whole = data_card.token_counts(split, 400)
    monkeypatch.setattr(data_card, "MOST_COUNTED_TOKENS", split.tokens // 4 + 1)
    monkeypatch.setattr("maskwright.data.store.BLOCK_TOKENS", 1000)
    some, slow_counts = data_card.token_counts(split, 400), np.zeros(400, np.int64)
    for shard_idx, shard in enumerate(split.shards):
        for begin, end in [*zip(*shard.documents_at(), strict=True)][::4]:
            np.add.at(slow_counts, split.ids(shard_idx)[begin:end], 1)
    assert (some == slow_counts).all() and (some <= whole).all() and 0 < some.sum() < whole.sum()
    # Digits of counts of a quarter of the text are those of the whole text's, where chance does not decide.
    of_part, of_all = (held_out._decades(counts, split.tokens)[some > 20] for counts in (some, whole))
    assert len(of_all) > 30 and np.abs(of_part - of_all).mean() < 0.2


@pytest.mark.parametrize("most", [2_000, 50])
def test_languages_are_those_of_a_slow_count(store, monkeypatch, most):
    pytest.importorskip("py3langid", reason="the extra `clean` is not installed")
    monkeypatch.setattr(data_card, "SAMPLE_DOCUMENTS", most)
    split = store.split("train")
    tokenizer = load_tokenizer(store.tokenizer_folder, special_tokens_are_text=False)
    slow = {}
    for document in range(0, split.documents, math.ceil(split.documents / most)):
        name = language_of(tokenizer.decode(documents_of(split)[document][:256].tolist()))[0]
        slow[name] = slow.get(name, 0) + 1
    found = data_card.languages_of(store, split)
    assert found == slow and list(found.values()) == sorted(slow.values(), reverse=True)
    assert found["en"] > sum(slow.values()) / 2 and sum(slow.values()) <= most
    monkeypatch.setitem(store.manifest, "sources", [{"location": "a/genome.fa.gz"}])
    assert data_card.languages_of(store, split) == {}
    monkeypatch.setattr(extras, "installed", lambda package: package != "py3langid")
    assert data_card.languages_of(store, split) is None


def test_a_repository_of_the_users_around_the_package_is_not_its_revision(tmp_path, monkeypatch):
    from maskwright.tasks.start import engine

    asked = []
    monkeypatch.setattr(engine.subprocess, "run", lambda words, **_: asked.append(words) or 1 / 0)
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(engine.maskwright, "__file__", str(tmp_path / ".venv/lib/site-packages/maskwright/__init__.py"))
    assert engine._revision() is None and not asked
    monkeypatch.setattr(engine.maskwright, "__file__", str(tmp_path / "src/maskwright/__init__.py"))
    with pytest.raises(ZeroDivisionError):
        engine._revision()


def recorded(name, metrics, *, finetuning=False, **more):
    """A run of which this is known."""
    record = made_record("finetune" if finetuning else "pretrain")
    look = RunReport(name, "done", "", "", 0.0, None, None)
    return replace(RecordedRun(name, look, record, {}, {}, metrics, [], {}, None, {}), **more)


PRETRAINING = "data: {store: s}\nschedule: {steps: 10}\noptimizer: {learning_rate: 0.004}\n"
FINETUNING = "data: {train: a.csv}\nmodel: {init_from: m}\ntask: {labels: [no, yes]}\n"


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        (PRETRAINING, {}),
        (PRETRAINING, {"optimizer.weight_decay": 0.012345678, "optimizer.learning_rate": 0.0040000001}),
        (PRETRAINING, {"optimizer.max_grad_norm": None, "optimizer.eps": 1e-12, "logging.report_to": ["wandb"]}),
        (PRETRAINING, {"phases": [{"until_share": 0.5, "seq_len": 64}], "logging.report_to": []}),
        (PRETRAINING, {"data.store": "it's $HOME, 100% [mine]: \x7f\u2028\U0001f600", "model.init_from": "1e-3"}),
        (PRETRAINING, {"data.store": None, "data.mixture": {"en": "gs://en", "no": {"store": "b", "format": "arrow"}}}),
        ("data: {mixture: a/en:b/sw}\nschedule: {epochs: 2}\n", {"schedule.epochs": None, "schedule.steps": 7}),
        ("nano", {"data.store": "true", "optimizer.beta2": 0.1 + 0.2}),
        (None, {"data.store": "s", "schedule.steps": 9, "data.arrow.column": "~", "data.validation": {"a": "b"}}),
        (FINETUNING, {"optimizer.class_weights": {"no": 0.5, "yes": 1 / 3}, "schedule.steps": 9}),
        (FINETUNING, {"task.labels": {"1": "yes", "0": "no"}, "model.init_from": None, "model.tokenizer": "t"}),
    ],
)
def test_the_printed_command_makes_exactly_the_same_configuration(given, changed, tmp_path):
    finetuning = given == FINETUNING
    base = recipes.read(given) if given == "nano" else given
    values = parse_yaml(base or "{}", "config.yaml")
    for key, value in changed.items():
        put(values, key, value, key)
    build, read_again = (build_finetune_config, read_finetune_config) if finetuning else (build_config, read_config)
    made = json.loads(json.dumps(flat(build(values, "config.yaml"))))
    record = made_record("finetune" if finetuning else "pretrain", made)
    run = recorded("r", [], record=record, config_text=base)
    code, *folded = configuration.how_to_repeat(run)
    words = shlex.split(code.text.splitlines()[0])
    of_kind = ["finetune" if finetuning else "pretrain", "nano" if given == "nano" else "config.yaml"]
    assert words[1:5] == [*of_kind, "--run", "NEW"]
    place = words[2]
    if folded:
        (block,) = folded
        assert isinstance(block, Folded) and isinstance(block.blocks[0], Code)
        (tmp_path / "config.yaml").write_text(block.blocks[0].text)
        place = str(tmp_path / "config.yaml")
    assert words[5::2] == ["--set"] * (len(words[5:]) // 2)
    again = read_again(place, words[6::2])
    assert json.loads(json.dumps(flat(again))) == made
    if not changed:
        assert words[5:] == []


LOGGED = [
    {"step": step, "loss": 9.0 - step / 100, "learning_rate": 1e-3, "tokens_per_second": 12_345.0}
    for step in range(10, 401, 10)
]


def test_the_preparation_is_printed_as_it_was_typed():
    def said(**source):
        card = {"kind": "text", "sources": [{"location": "s", "splits": {}, **source}]}
        run = recorded("r", [], record=made_record(keys={"seed": 3}), card=card)
        (code, *_), (facts, *_) = configuration.how_to_repeat(run), background.data(run)
        assert isinstance(code, Code) and isinstance(facts, Facts)
        return [*code.text.splitlines()[:-2], dict(facts.rows)["Prepared with"]]

    words, line = ["data", "prepare", "a b", "--to", "s"], "maskwright data prepare 'a b' --to s"
    assert said(command=words) == [line, line]
    assert said(command=words, location="gs://b/s") == [line, "# its result was then copied to gs://b/s", line]
    assert said(command=words, command_words=9)[0] == f"{line} # and 4 more words: the store's manifest lists all"
    options = {"valid_fraction": 0.1, "cleaning": {"languages": ["en"], "near_duplicates": None}}
    assert said(location="a\nb", options=options) == [
        "# a b must exist: no command was recorded that makes it",
        "valid_fraction: 0.1; cleaning: {languages: [en]}",
    ]


def test_a_card_says_languages_where_they_were_counted():
    for known, said in (
        ({"en": 970, "de": 20, "fr": 6, "sw": 4}, "en 97.0%, de 2.0%, other 1.0% (of 1,000 evenly spaced documents"),
        ({"sw": 8}, "sw 100.0% (of 8 evenly"),
        ({}, None),
        (None, None),
    ):
        totals = {"documents": 3, "tokens": 9}
        card = {"kind": "text", "sources": [{"splits": {"train": totals, "valid": totals}, "languages": known}]}
        (facts, *_) = background.data(recorded("one", [], card=card))
        told = dict(facts.rows).get("Languages")
        assert told is said is None or (told or "").startswith(said or "nothing")
        assert any(line.startswith("languages: ") for line in background.in_short(card)) == bool(known)


def test_several_runs_have_marks_of_their_own_colours():
    happened = [{"event": "saved", "step": 5}, {"event": "spiked", "step": 200, "loss": 30.0}]
    happened += [{"event": "started", "step": step, "attempt": 1 + step // 100} for step in (0, 100)]
    runs = [recorded(name, LOGGED, history=happened) for name in ("one", "two")]
    (drawn, *_) = training.curves(runs)
    page = Page(drawn.html)
    marks = {line["class"] for line in page.all("line") if "tick" in (line.get("class") or "")}
    assert marks == {f"tick {kind} own s{place}" for kind in ("started", "spiked") for place in (0, 1)}
    assert "two: attempt 2 from step 100" in page.text and drawn.legend.count("restart") == 1
