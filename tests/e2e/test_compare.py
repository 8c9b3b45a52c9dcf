"""`maskwright compare` from YAML to page: equal budgets, test sets read last, restarts that change nothing."""

import json
import os
import random
import shutil
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
import yaml
from command_line import COMMAND, maskwright
from finetuned import foxes, pretrained_folder
from verdict_arms import read_results
from warm import Popen

from maskwright import compare
from maskwright.config.finetuning import FinetuneConfig, Task
from maskwright.core import storage
from maskwright.core.errors import HealthError, InputError, JobError
from maskwright.labels.dataset import Dataset
from maskwright.labels.example import Answer, Example
from maskwright.labels.metrics import Predictions, measure, metric_names
from maskwright.labels.scoring import scorer
from maskwright.monitor.status import look
from maskwright.run.directory import RunDirectory, Status
from maskwright.tasks.compare import plan, runs
from maskwright.tasks.compare.arms import ArmStart, read_starts
from maskwright.tasks.compare.plan import ArmTraining, Budget, LabelledTask, read
from maskwright.tasks.compare.runs import ComparedRun
from maskwright.tasks.compare.verdict import _protocol, left, outcomes, verdict_task
from maskwright.tasks.compare.verdict import compare as make

WORDS = ["the", "fox", "garden", "river"]


@pytest.fixture
def model(tmp_path, tokenizer):
    return pretrained_folder(tmp_path / "model", tokenizer)


@pytest.fixture
def task(tmp_path):
    return foxes(tmp_path)


@pytest.fixture(autouse=True)
def forked(monkeypatch):
    """Threads of the tokenizer's would keep `warm` from forking the runs, and each would load torch anew."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")


def below(folder, name):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob(name))}


def stop(folder, words, number, run, cwd):
    """Starts the comparison, and sends it the signal when that run has begun to train. Returns its exit code."""
    with Popen([*COMMAND, *map(str, words)], cwd=cwd) as process:
        metrics = folder / "runs" / "foxes" / run / "metrics.jsonl"
        deadline = time.monotonic() + 240
        while not metrics.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(number)
        code = process.wait(240)
    folder, deadline = metrics.parent, time.monotonic() + 240
    while look(str(folder)).held_by and time.monotonic() < deadline:  # the kernel ends it with its parent
        time.sleep(0.02)
    assert not look(str(folder)).held_by
    return code


def test_one_comparison_stopped_and_killed_is_the_same_page(model, task, tmp_path):
    """And what it holds: the search without a test set, the fresh seeds, scores that are those of the runs."""
    folder = tmp_path / "whole"
    words = ["compare", model, "--base", "random", "--task", task]
    words += ["--learning-rates", "1e-3,4e-3", "--seeds", 2]
    said = maskwright(*words, "--to", folder, cwd=tmp_path)
    assert "Cannot conclude whether model helped on foxes." in said and "at least 6 seeds" in said
    results = read_results(folder / "results.json")
    assert [arm.name for arm in results.arms] == ["random", "model"]
    assert [(run.arm, run.seed) for run in results.runs] == [(a, s) for s in (1, 2) for a in ("random", "model")]
    for run in results.runs:
        directory = RunDirectory(str(folder / "runs" / "foxes" / run.arm / f"seed-{run.seed}"))
        record, losses = directory.read_record().keys, [x["loss"] for x in directory.read_metrics() if "loss" in x]
        (search,) = [one for one in results.searches if one.arm == run.arm]
        assert (record["optimizer.learning_rate"], record["seed"]) == (search.chosen, run.seed)
        assert dict(search.rates)[search.chosen] == max(score for _, score in search.rates)
        assert (run.lowest_loss, run.final_loss) == (min(losses), losses[-1])
        scores = storage.read_json(directory.path("results.json"))
        assert run.score == scores["test"]["accuracy"] and not os.path.exists(directory.checkpoints)
        for rate, score in search.rates:
            tried = folder / "runs" / "foxes" / run.arm / f"rate-{rate!r}"
            found = json.loads((tried / "results.json").read_text())
            assert "test" not in found and found["validation"]["accuracy"] == score
            assert not (tried / "predictions-test.json").exists()

    # Nothing is made again, and another comparison does not mix with this one.
    before = {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*")}
    again = maskwright(*words, "--to", folder, "--json", cwd=tmp_path)
    assert json.loads(again)["comparisons"][0]["verdict"] == "cannot conclude"
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*")}
    maskwright(*words[:-1], 3, "--to", folder, cwd=tmp_path, code=2)

    stopped = tmp_path / "stopped"
    shutil.copytree(folder, stopped)
    for name in ("results.json", "verdict.html", "verdict.md"):
        (stopped / name).unlink()
    for name in ("random/seed-2", "model/seed-2"):
        shutil.rmtree(stopped / "runs" / "foxes" / name)
    words += ["--to", stopped]
    assert stop(stopped, words, signal.SIGTERM, "random/seed-2", tmp_path) == 75
    assert stop(stopped, words, signal.SIGKILL, "model/seed-2", tmp_path) == -signal.SIGKILL
    assert not (stopped / "verdict.html").exists()
    maskwright(*words, cwd=tmp_path)
    for name in ("results.json", "predictions-*.json", "verdict.*"):
        assert below(stopped, name) == below(folder, name), name


@pytest.mark.long
def test_runs_that_the_health_check_stops_are_named_and_scored(model, task, tmp_path):
    """At this rate weights are not finite after one step. For the recipe, random weights are drawn twice too."""
    twin = str(tmp_path / "twin")
    shutil.copytree(model, twin)
    words = ["compare", f"ours={model},{twin}", "--base", "random", "--task", task, "--learning-rates", "1e38"]
    said = maskwright(*words, "--seeds", 1, "--to", "fault", cwd=tmp_path)
    assert "4 of the 4 runs learned nothing or had a fault" in said and "2 pretraining runs" in said
    results = read_results(tmp_path / "fault" / "results.json")
    assert all("its last finite weights are scored" in run.fault for run in results.runs)
    assert {arm.pretraining_runs for arm in results.arms} == {("1", "2"), ("model", "twin")}


# ---- before the first run --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("models", "base", "said"),
    [
        (["random"], None, "random alone cannot be compared"),
        (["linear", "random"], None, "linear and random alone cannot be compared"),
        (["a"], None, "a alone cannot be compared"),
        (["x/a", "y/a"], None, "two arms are called a"),
        (["a", "b=a"], None, "is named twice"),
        (["a", "random", "random"], None, "two arms are called random"),
        (["a", "linear"], "random=b", "random=b is not an arm of this comparison"),
        (["a", "random=b"], None, "random is the name of an arm without a model folder"),
        (["x/linear", "a"], None, "linear is the name of an arm without a model folder"),
        (["a=a1,a2", "linear"], None, "linear has no pretraining runs, so it cannot be compared by recipe"),
        (["a", "b"], "c", "c is not an arm of this comparison"),
        (["a=a1,a2", "b"], None, "b has one pretraining run where another arm has several"),
        (["a", "b="], None, "'b=' lacks a folder"),
        (["a", "b=x,,y"], None, "'b=x,,y' lacks a folder"),
    ],
)
def test_arms_that_are_none_are_refused(models, base, said):
    with pytest.raises(InputError) as caught:
        read_starts(models, base)
    assert said in str(caught.value) and "Fix: " in str(caught.value)


def test_arms_and_their_order(tmp_path, monkeypatch):
    def names(models, base=None):
        return [start.name for start in read_starts(models, base)]

    assert names(["x/a", "y/b/"]) == ["a", "b"]
    assert names(["x/a"], "random") == names(["random", "x/a"]) == ["random", "a"]
    assert names(["x/a", "b", "random"], "b") == names(["x/a", "x/b", "random"], "x/b") == ["b", "a", "random"]
    assert names(["x/a"], "x/b") == ["b", "a"], "a base that is no arm yet is one more"
    (tmp_path / "c" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "c")
    assert names(["x/a"], "b") == names(["x/a", "x/b"], "b") == ["b", "a"]
    first, second = read_starts(["mine=x/a,y/a", "random"], None)
    assert first.name == "mine" and [os.path.basename(os.path.dirname(one)) for one in first.locations] == ["x", "y"]
    assert second == ArmStart("random", first.locations, random=True)
    assert names(["random", "x/a", "linear"]) == names(["x/a", "linear"], "random") == ["random", "a", "linear"]
    assert names(["x/a", "random"], "linear") == ["linear", "a", "random"]
    assert read_starts(["linear", "random", "x/a"], None)[1].locations == (os.path.abspath("x/a"),)
    bucket, _ = read_starts(["gs://bucket/runs/one/", "random"], None)
    assert bucket == ArmStart("one", ("gs://bucket/runs/one",))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(InputError, match="is named twice"):
        names([str(tmp_path / "a"), str(tmp_path / "b")])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"learning_rates": ()}, "() is not a grid of learning rates. Fix: give positive learning rates, each once"),
        ({"learning_rates": "1e-3"}, "learning_rates: is '1e-3'. Fix: give a list"),
        ({"learning_rates": 1e-3}, "learning_rates: is 0.001. Fix: give a list"),
        ({"learning_rates": ["1e-3", "fast"]}, "learning_rates: is ['1e-3', 'fast']. Fix: give a list"),
        ({"learning_rates": [1e-3, 1e-3]}, "0.001,0.001 is not a grid"),
        ({"learning_rates": [-1.0]}, "-1.0 is not a grid"),
        ({"learning_rates": [float("nan")]}, "nan is not a grid"),
        ({"learning_rates": [True]}, "learning_rates: is [True]. Fix: give a list"),
        ({"seeds": 0}, "seeds: is 0. Fix: give an integer ≥ 1"),
        ({"seeds": 6.0}, "seeds: is 6.0. Fix"),
        ({"search_seed": -1}, "search seed is -1. Fix: give an integer ≥ 0"),
        ({"workers": 0}, "workers: is 0. Fix: give an integer ≥ 1"),
    ],
)
def test_what_is_no_budget_is_refused(given, said, tmp_path):
    """By Python and the command alike, before anything is looked at: there are no such models."""
    with pytest.raises(InputError) as caught:
        compare(["a", "b"], "none.yaml", tmp_path / "new", **given)
    assert said in str(caught.value) and not (tmp_path / "new").exists()


def test_tasks_that_cannot_be_judged_are_refused(model, task, tmp_path):
    values = yaml.safe_load(task.read_text())

    def said(overrides=(), **data):
        path = tmp_path / "other.yaml"
        path.write_text(yaml.safe_dump({**values, "data": {**values["data"], **data}}))
        with pytest.raises(InputError) as caught:
            read([model], [str(path)], "new", base="random", budget=Budget((1e-3,), 6), overrides=overrides)
        return str(caught.value)

    assert "has no test set" in said(test=None)
    assert "seed is set by the comparison itself" in said(("seed=4",))
    (tmp_path / "odd.csv").write_text("text,label\na fox,good\na house,purple\n")
    assert "odd.csv:3" in said(test=str(tmp_path / "odd.csv"))
    (tmp_path / "pool").mkdir()
    for split, name in (("train", "a.csv"), ("test", "held.csv")):
        shutil.copyfile(values["data"][split], tmp_path / "pool" / name)
    inside = said(train=str(tmp_path / "pool"), test=str(tmp_path / "pool" / "held.csv"))
    assert (
        "pool, holds the test set: runs that choose a learning rate read no test set, and would train on it" in inside
    )
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    words = ["compare", model, "--base", "random", "--task", str(task), "--to"]
    maskwright(*words, "full", cwd=tmp_path, code=2)
    maskwright(*words, "new", "--set", "data.label=colour", cwd=tmp_path, code=2)
    maskwright(*words, "new", "--learning-rates", "1e-3,fast", cwd=tmp_path, code=2)
    assert not (tmp_path / "new").exists() and sorted(os.listdir(tmp_path / "full")) == ["notes.txt"]


def test_last_finite_weights_that_are_not_finite_are_a_word(model, task, tmp_path, monkeypatch):
    """Every run ends as its health check ends one, also that which only scores."""

    def fails(commands, at_once):
        assert at_once == 3
        for number, command in enumerate(commands):
            os.makedirs(command.run)
            RunDirectory(command.run).write_status(Status("failed", exit=HealthError.exit_code, message="not finite"))
            yield number, HealthError.exit_code

    budget = Budget([1e-3], 1, at_once=3)
    monkeypatch.setattr(runs, "run_side_by_side", fails)
    with pytest.raises(JobError, match="scores weights that are not finite: not finite"):
        make([model], [str(task)], str(tmp_path / "new"), base="random", budget=budget)


def test_arms_that_read_other_test_questions_are_not_compared():
    short, long = Example("dev.json", 1, "Who?", "fox"), Example("dev.json", 2, "Who " * 99, "fox")
    plan._require_same_test([short, long], [short, long], "b")
    with pytest.raises(InputError, match=r"^dev.json:2: this question is too long for the rows of one model: b"):
        plan._require_same_test([short, long], [short], "b")


def test_the_page_says_where_budgets_are_not_equal(model, task, capsys):
    for seeds, warned in ((5, "with 5 seeds, 1 comparison cannot conclude anything. Fix: give --seeds 6"), (6, "")):
        made = read([model], [str(task)], "new", base="random", budget=Budget((1e-3,), seeds))
        said = capsys.readouterr().err
        assert warned in said and ("conclude" in said) is bool(warned)
    assert [(stage["runs"], stage["done"]) for stage in left(made)] == [(0, 0), (12, 0)]
    (own,) = made.tasks
    assert _protocol(made).budget == (
        "The same for every arm. foxes: 10 steps of 16 examples (1.98 epochs), rows up to 32 tokens. "
        "Every arm had the learning rate 1e-3."
    )
    asks = replace(own, config=own.config.model_copy(update={"task": Task(kind="question_answering")}))
    asks = replace(asks, arms={"random": own.arms["random"], "model": ArmTraining(12, 48)})
    assert _protocol(replace(made, tasks=(asks,))).budget.startswith(
        "foxes: random 10 steps of 16 windows, rows up to 32 tokens and model 12 steps of 16 windows, rows up to 48"
    )


# ---- predictions in the verdict's form -------------------------------------------------------------------------------

TAGS = ("O", "B-X", "I-X", "B-Y")
EXAMPLES = {
    "single_label_classification": lambda draw, n: Example("a", n, labels=(draw.choice(TAGS),)),
    "multi_label_classification": lambda draw, n: Example("a", n, labels=tuple(draw.sample(TAGS, draw.randint(0, 3)))),
    "regression": lambda draw, n: Example("a", n, value=draw.random()),
    "token_classification": lambda draw, n: Example("a", n, words=("x",) * 6, labels=tuple(draw.choices(TAGS, k=6))),
    "question_answering": lambda draw, n: Example("a", n, answers=(Answer(f"the {draw.choice(WORDS)} fox", 0),)),
}
FOUND = {
    "single_label_classification": lambda draw: draw.randrange(4),
    "multi_label_classification": lambda draw: tuple(sorted(draw.sample(range(4), draw.randint(0, 3)))),
    "regression": lambda draw: draw.random(),
    "token_classification": lambda draw: tuple(draw.choices(range(4), k=6)),
    "question_answering": lambda draw: draw.choice(["a river fox", "fox", "near"]),
}


@pytest.mark.parametrize(
    ("kind", "metric"),
    [
        *((kind, None) for kind in EXAMPLES),
        ("token_classification", "accuracy"),
        ("question_answering", "exact_match"),
        ("single_label_classification", "matthews_corrcoef"),
    ],
)
def test_the_verdict_scores_what_the_run_scored(kind, metric, tmp_path):
    draw = random.Random(1)
    examples = [replace(EXAMPLES[kind](draw, number), group=f"patient {number // 2}") for number in range(40)]
    found = tuple(FOUND[kind](draw) for _ in examples)
    labels = TAGS if "classification" in kind else ()
    own = Task(kind=kind)
    config = FinetuneConfig.model_construct(task=own)
    dataset = Dataset([], [], examples, labels, None, "")
    metric = metric or {"regression": "pearson"}.get(kind, metric_names(own, labels)[0])
    given = LabelledTask("task", "task.yaml", config, dataset, metric, {})
    run = ComparedRun(given, ArmStart("a", ("a",)), 0, 1e-3, 1, False, str(tmp_path))
    record = {"outcomes": found, "where": [one.where for one in examples]}
    storage.write_json(str(tmp_path / "predictions-test.json"), record)
    task = verdict_task(given)
    assert task.groups == tuple(number // 2 for number in range(40))
    binary = kind == "multi_label_classification"  # each label is a question of its own
    assert task.guessing == (np.log(2 if binary else len(TAGS)) if labels else None)
    score = scorer(task.scoring, [outcomes(given, run)])(np.ones((1, len(examples)), np.float32))
    assert score.item() == pytest.approx(measure(own, labels, examples, Predictions(found, None))[metric], abs=1e-12)
    if task.kind == "tokens":  # words beyond the longest row, of tags without O, are wrong for both
        found = ((-1,) * 6, *found[1:-1], (*found[-1][:3], -1, -1, -1))
        storage.write_json(str(tmp_path / "predictions-test.json"), record | {"outcomes": found})
        score = scorer(task.scoring, [outcomes(given, run)])(np.ones((1, len(examples)), np.float32))
        expected = measure(own, labels, examples, Predictions(found, None))[metric]
        assert score.item() == pytest.approx(expected, abs=1e-12)
    with pytest.raises(InputError, match="predictions for other examples"):
        outcomes(replace(given, dataset=replace(dataset, test=examples[::-1])), run)
    for content, said in (("", "is not JSON: Expecting value"), ("{}", "has no where"), ("[]", "has no where")):
        (tmp_path / "predictions-test.json").write_text(content)
        with pytest.raises(InputError, match=rf"{said}\. Fix: remove the run's folder and run the same command again"):
            outcomes(given, run)
