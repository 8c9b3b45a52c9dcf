"""The Python interface: the command's runs, errors and predictions, and callbacks that cannot disturb them."""

import inspect
import json
import os
import subprocess
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow
import pytest
import warm
from ended_runs import require_same, state
from finetuned import finished_run, foxes, pretrained_folder, shape
from safetensors.numpy import load_file, save_file
from typer.main import get_command

import maskwright
from maskwright.api import training
from maskwright.api.given import nested, override
from maskwright.api.runs import Page
from maskwright.cli.main import app
from maskwright.config.settings import flat
from maskwright.core import errors
from maskwright.core.errors import ConfigError, InputError, MaskwrightError, ModelError, StoppedEarly, StoreError
from maskwright.processes.parent import PARENT
from maskwright.tasks.models.load import load_model
from maskwright.tasks.pretrain.run import pretrain
from maskwright.tasks.use import predict
from maskwright.training import checkpoint

OF_A_COMMAND = {"num_nodes", "gpus_per_node", "node_rank", "rendezvous", "profile_steps"}
"""Options for machines and for a developer, of the command alone."""


@pytest.fixture(autouse=True)
def forked(monkeypatch):
    """Processes that begin with torch imported, whose parent is the server that forks them."""

    def start(words, *, env, **options):
        env = dict(env)
        assert env.pop(PARENT) == str(os.getpid())
        return warm.Popen(words, env=env, **options)

    starts = SimpleNamespace(Popen=start, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(training, "subprocess", starts)
    monkeypatch.setattr(training, "LISTEN_SECONDS", 0.02)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture
def values(config):
    made = config(**{"evaluation.every_steps": 4, "checkpoint.save_every_steps": 4})
    return {key: value for key, value in flat(made).items() if value is not None}


def test_every_name_of_the_interface_is_there_and_documented():
    for name in maskwright.__all__:
        assert getattr(maskwright, name).__doc__
    assert {*maskwright.__all__} <= {*dir(maskwright)}
    with pytest.raises(AttributeError, match="no attribute 'pretrian'"):
        maskwright.pretrian  # noqa: B018


def test_a_run_is_the_commands_whatever_callbacks_do(values, config, tmp_path, capsys):
    folder, heard, saved = str(tmp_path / "run"), list[tuple[int, float]](), list[int]()

    def spoil(record):
        heard.append((record["step"], record.pop("loss")))
        record["step"] = -1
        raise ZeroDivisionError

    def remember(step, location):
        assert checkpoint.load(location)[0].step == step
        saved.append(step)
        sys.exit("enough")

    with pytest.raises(StoppedEarly) as stopped:
        maskwright.pretrain(values, folder, stop_after_steps=6, on_log=spoil, on_save=remember)
    assert stopped.value.reason == "limit" and "--stop-after-steps 6" in stopped.value.what
    evaluated = []
    run = maskwright.pretrain(
        values, folder, on_log=spoil, on_evaluate=lambda one: evaluated.append(one["step"]), on_save=remember
    )
    said = capsys.readouterr().err
    for told in ("on_log raised ZeroDivisionError", "on_save raised SystemExit: enough;"):
        assert said.count(f"warning: {told}") == 2  # once a call
    assert "continuing at step 6" in said

    pretrain(config(**{"evaluation.every_steps": 4, "checkpoint.save_every_steps": 4}), str(tmp_path / "straight"))
    require_same(state(tmp_path / "straight"), state(tmp_path / "run"))
    losses = [(one["step"], one["loss"]) for one in run.metrics if "loss" in one]
    assert heard == losses and [step for step, _ in losses] == [*range(1, 13)]
    assert saved == [4, 6, 8, 12] and evaluated == [8, 12]
    assert run.status is not None and (run.status.phase, run.checkpoints[-1]) == ("done", 12)
    assert run.config["schedule.steps"] == 12 and run.results is None and run.lineage == []
    drawn = run.plot(maskwright.Run(str(tmp_path / "straight")))
    assert drawn == run.plot(str(tmp_path / "straight")) == run.plot(tmp_path / "straight")
    assert "held-out loss" in drawn.html and drawn._repr_html_().startswith("<iframe srcdoc=")
    run.report().save(tmp_path / "report.html")
    frame = run.frame()
    assert [*frame.index] == [*range(13)] and [*frame["loss"].dropna().items()] == losses
    assert frame["valid_loss"].dropna().to_dict() == {
        one["step"]: one["valid_loss"] for one in run.metrics if "valid_loss" in one
    }
    assert "How to repeat it" in (tmp_path / "report.html").read_text()
    assert maskwright.evaluate(run, max_rows=8).report().startswith(f"{folder} on ")


def test_a_data_frame_takes_pandas_and_nothing_else_does(tmp_path, monkeypatch):
    (tmp_path / "config.resolved.json").write_text("{}")
    run = maskwright.Run(tmp_path)
    assert run.frame().empty
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "valid_loss": 6.0}\n{"step": 5, "loss": 5.5}\n')
    assert run.frame().to_dict("index")[5]["loss"] == 5.5
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="needs the package pandas") as refused:
        run.frame()
    assert "pip install pandas" in (refused.value.fix or "") and len(run.metrics) == 2


def test_a_run_that_is_interrupted_is_saved_first(values, tmp_path):
    def interrupt(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        maskwright.pretrain({**values, "schedule.steps": 5000}, str(tmp_path / "run"), on_log=interrupt)
    run = maskwright.Run(str(tmp_path / "run"))
    assert run.status is not None and (run.status.phase, run.status.exit) == ("stopped", 75)
    assert run.checkpoints[-1] == run.status.step > 0


def test_errors_are_the_commands(values, tmp_path):
    run = str(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"^config: unknown key schedule\.stepz"):
        maskwright.pretrain({**values, "schedule.stepz": 3}, run)
    with pytest.raises(StoreError) as refused:
        maskwright.pretrain(values, run, overrides={"data.store": tmp_path / "nowhere"})
    assert refused.value.where == str(tmp_path / "nowhere") and "maskwright data prepare" in (refused.value.fix or "")
    with pytest.raises(InputError, match="processes"):
        maskwright.pretrain(values, run, processes=0)
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match="is not there"):
        maskwright.Run(run).metrics  # noqa: B018
    with pytest.raises(InputError, match="is not on this machine"):
        maskwright.Run("gs://bucket/run").status  # noqa: B018
    for use in (maskwright.load, maskwright.Run(run).plot, maskwright.Run(run).report):
        with pytest.raises(InputError, match="3 has no location|model: is 3"):
            use(3)
    with pytest.raises(InputError, match=r"nowhere: there is no such folder\. Fix: make it with mkdir -p"):
        Page("<p>").save(tmp_path / "nowhere" / "page.html")
    with pytest.raises(InputError, match=r"page\.pdf: ends with \.pdf\. Fix: name a file \.html$"):
        Page("<p>").save(tmp_path / "page.pdf")
    assert not (tmp_path / "page.pdf").exists()
    for count in (maskwright.Store(values["data.store"]).tokens, maskwright.Store(values["data.store"]).documents):
        assert count("valid") > 0
        with pytest.raises(InputError, match=r"split: is 'foo'\. Fix: give one of train, valid"):
            count("foo")


def test_of_two_processes_the_one_that_failed_says_why(values, tmp_path):
    """The launcher's own error would only say that the job failed; and a run that recovers has not failed."""
    with pytest.raises(StoreError) as refused:
        maskwright.pretrain({**values, "data.store": "nowhere"}, tmp_path / "run", processes=2)
    assert (refused.value.where or "").endswith("nowhere")
    run = maskwright.pretrain({**values, "schedule.steps": 4}, tmp_path / "run", processes=2)
    assert run.checkpoints == [4]


def test_keys_of_both_forms_come_together(tmp_path):
    given = {"schedule.steps": np.int64(50), "schedule": {"kind": "wsd"}, "data": {"store": maskwright.Store("s")}}
    assert nested(given) == {"schedule": {"steps": 50, "kind": "wsd"}, "data": {"store": "s"}}
    assert nested({"model.init_from": tmp_path, "optimizer": {"betas": (0.9, np.float32(0.5))}}) == {
        "model": {"init_from": str(tmp_path)},
        "optimizer": {"betas": [0.9, 0.5]},
    }
    changed = {"schedule": {"steps": 4, "kind": "wsd"}}
    override(changed, {"schedule.steps": 5, "optimizer.learning_rate": 0.1})
    assert changed == {"schedule": {"steps": 5, "kind": "wsd"}, "optimizer": {"learning_rate": 0.1}}


@pytest.mark.parametrize(
    ("config", "overrides", "said"),
    [
        ({"schedule.steps": 5, "schedule": {"steps": 4}}, {}, "schedule.steps is given twice"),
        ({"schedule": 3, "schedule.steps": 4}, {}, "schedule is given twice"),
        ({3: 4}, {}, "the key 3 is not a string"),
        ({"seed": object()}, {}, "a object is not a value"),
        ({}, {"schedule": {"steps": 5}}, "schedule names a whole section"),
        ({"seed": 3}, {"seed.of": 5}, "seed is not a section"),
        ({"data.store": "gs://me:hunter2@bucket"}, {}, "^config: data.store holds a secret: gs://me:\\*\\*\\*@bucket"),
        ({}, {"data.store": "gs://me:hunter2@bucket"}, "^overrides: data.store: data.store holds a secret"),
        ("nano", {"data.stor": "s"}, "^overrides: data.stor: unknown key data.stor. Fix: did you mean data.store?"),
        (
            "nano",
            {"schedule.steps": 0},
            "^overrides: schedule.steps: schedule.steps is 0. Fix: leave it out: schedule.epochs",
        ),
    ],
)
def test_what_is_no_configuration_is_refused(config, overrides, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        maskwright.pretrain(config, tmp_path / "run", overrides=overrides)


def test_arguments_that_the_command_would_not_take_are_refused(corpus, tmp_path, tokenizer):
    folder, strange = pretrained_folder(tmp_path / "model", tokenizer), dict[str, Any](device="cud")
    model = maskwright.load(folder)
    refused = [
        (lambda: maskwright.load(folder, **strange), "device: is 'cud'. Fix: give one of auto, cpu,"),
        (lambda: maskwright.evaluate(model, store="s", max_rows=0), "max_rows: is 0"),
        (lambda: maskwright.evaluate(model, store="s", seq_len=4096), "`seq_len` 4096 is outside the model's range"),
        (lambda: maskwright.evaluate(model, store="s", seq_len=True), "seq_len: is True"),
        (
            lambda: maskwright.train_tokenizer(corpus, tmp_path / "new", kind="kmer"),
            "kind kmer needs an alphabet. Fix: give alphabet dna or protein",
        ),
        (lambda: maskwright.evaluate(model, blimp="s", share=1.5), "share: is 1.5. Fix: give a number ≥ 0 and ≤ 1"),
        (
            lambda: maskwright.evaluate(model, store="s", text="t"),
            "`store`, `blimp`, `text` and `examples` are measured one at",
        ),
        (
            lambda: maskwright.evaluate(model),
            "a model folder names no text to evaluate on. Fix: give `store`, `blimp` or `t",
        ),
        (lambda: model.embed(["a"], max_seq_len=4), "max_seq_len: is 4. Fix: give an integer ≥ 8"),
        (lambda: model.fill(["the <mask>."]), "text: is ['the <mask>.']. Fix: give a string"),
        (lambda: model.fill("the <mask>.", top=0), "top: is 0. Fix: give an integer ≥ 1"),
    ]
    for texts, said in (
        ("one string", "texts: 'one string' is no list of texts. Fix: give a list, even of one text"),
        (
            pyarrow.table({"text": ["a", "b"]}),
            "texts: pyarrow.Table text: string ---- text: [[ is no list of texts. Fix: give a list, even",
        ),
        ({"text": ["a", "b"]}, "texts: {'text': ['a', 'b']} is no list of texts"),
        ({"a", "b"}, "is no list of texts"),
        ([{"text": "a"}], "texts:1: {'text': 'a'} is no text"),
        ([], "texts: the list is empty"),
        (["a", float("nan")], "texts:2: nan is no text"),
        ([(1, 2)], "is no text"),
        ([("a", "b", "c")], "has 3 parts"),
        ([("a", "b")], "has 2 parts. Fix: give one text"),
        (["a", " "], "texts:2: is empty. Fix: remove it"),
    ):
        refused.append((partial[object](model.embed, texts), said))
    prepare = partial(maskwright.prepare, corpus, tokenizer, tmp_path / "new")
    refused += [
        (partial(prepare, valid_fraction="x"), "valid_fraction: is 'x'. Fix: give a number"),
        (
            partial(prepare, min_characters=9, max_characters=3),
            "max_characters: is 3, below `min_characters`. Fix: give an integer ≥ 9",
        ),
    ]
    for option, value, fix in (
        ("vocab_size", 300.0, "give an integer"),
        ("min_frequency", 0, "give an integer ≥ 1"),
        ("kind", "bp", "give one of bpe, wordpiece, unigram"),
        ("on_bad_input", "bp", "give one of error, re"),
    ):
        train = partial[object](maskwright.train_tokenizer, corpus, tmp_path / "new", **{option: value})
        refused.append((train, f"{option}: is {value!r}. Fix: {fix}"))
    for option, value, fix in (("overrides", ["seed=3"], "a mapping"), ("on_log", 5, "a function")):
        for train in (maskwright.pretrain, maskwright.finetune):
            given = partial[object](train, {}, tmp_path / "new", **{option: value})
            refused.append((given, f"{option}: is {value!r}. Fix: give {fix}"))
    given = partial[object](maskwright.compare, [folder], "a", tmp_path / "new", overrides=5)
    for use, said in (*refused, (given, "overrides: is 5. Fix: give a mapping")):
        with pytest.raises(InputError) as error:
            use()
        assert said in str(error.value)
    assert len(model.fill("the <mask>.", top=np.int64(2))[0]) == 2
    assert not (tmp_path / "new").exists()


def test_home_is_found_where_no_shell_expands_it(corpus, tmp_path, monkeypatch, cli):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert maskwright.train_tokenizer(corpus, "~/python", vocab_size=300) == str(tmp_path / "python")
    assert cli("tokenizer", "train", corpus, "--to=~/command", "--vocab-size", 300).code == 0
    assert (tmp_path / "python").is_dir() and (tmp_path / "command").is_dir()


def test_a_folder_that_is_taken_is_refused_in_words_for_both(corpus, tmp_path, tokenizer):
    folder = pretrained_folder(tmp_path / "model", tokenizer)
    for use in (
        lambda: maskwright.load(folder).export(folder),
        lambda: maskwright.prepare(corpus, tokenizer, folder),
        lambda: maskwright.train_tokenizer(corpus, folder),
    ):
        with pytest.raises(InputError) as refused:
            use()
        assert refused.value.where == folder and (refused.value.fix or "").startswith("choose another folder")


def test_an_encoder_without_a_head_embeds_and_nothing_else(tmp_path, tokenizer):
    folder = tmp_path / "model"
    weights = load_file(f"{pretrained_folder(folder, tokenizer)}/model.safetensors")
    bare = {name.removeprefix("roberta."): value for name, value in weights.items() if name.startswith("roberta.")}
    save_file(bare, str(folder / "model.safetensors"))
    model = maskwright.load(folder)
    assert model.embed(np.array(["the fox", "an old house"])).shape[0] == 2
    for use in (lambda: model.fill("the <mask>"), lambda: model.export(str(tmp_path / "hf")), lambda: _held_out(model)):
        with pytest.raises(ModelError, match="is a bare encoder"):
            use()


def _held_out(model):
    maskwright.evaluate(model, store="store")


@pytest.mark.parametrize(
    "error",
    [
        MaskwrightError("failed"),
        ConfigError("is wrong", where="a.yaml", fix="mend it", lines=("b: too", "c: also")),
        StoppedEarly("stopped", reason="asked"),
        errors.HealthError("not finite", step=7, fix="lower the rate"),
        errors.HealthError("diverged"),
        errors.CloudError("is refused", reason="quota"),
        errors.JobError("its host failed", 3, where="lab"),
        errors.Locked("is held", where="run", fix="wait"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_same_in_another_process(error):
    error.sent_by_a_library = object()
    again = errors.from_record(json.loads(json.dumps(errors.as_record(error))))
    assert type(again) is type(error) and (str(again), again.exit_code) == (str(error), error.exit_code)
    held = {name: value for name, value in vars(error).items() if name != "sent_by_a_library"}
    assert {name: tuple(value) if name == "lines" else value for name, value in vars(again).items()} == held


def test_no_secret_is_in_an_errors_record():
    key = "AKIA" + "ABCDEFGHIJKLMNOP"
    error = ConfigError("is refused", where=f"s3://{key}:hidden@bucket", fix="none", lines=(f"https://u:{key}@host/",))
    assert "hidden" not in json.dumps(errors.as_record(error))


def test_a_fine_tuned_model_predicts_as_the_command_does(tmp_path, tokenizer, capfd):
    location = str(finished_run(tmp_path / "run", shape("roberta", "single_label_classification"), tokenizer))
    (tmp_path / "texts.jsonl").write_text('{"text": "the fox saw a garden"}\n{"text": "an old house"}\n')
    model, output = maskwright.load(location), tmp_path / "said.jsonl"
    predict.predict(
        load_model(location),
        str(tmp_path / "texts.jsonl"),
        str(output),
        options=predict.TextOptions(),
        probabilities=True,
    )
    expected = [json.loads(line) for line in output.read_text().splitlines()]
    said = model.predict(["the fox saw a garden", "an old house"], probabilities=True)
    assert said == [{key: value for key, value in one.items() if key != "line"} for one in expected]
    assert model.task == "single_label_classification" and said[0]["label"] in model.labels
    capfd.readouterr()
    assert model.embed(["the fox", "an old house"]).shape == (2, 32)
    assert "does not read" not in capfd.readouterr().err
    model.embed(["the fox " * 20], max_seq_len=8)
    assert "warning: the model does not read the rest of 1 text, beyond 8 tokens" in capfd.readouterr().err
    model.predict(["the fox " * 20, "an old house"], max_seq_len=16)
    assert "warning: the model does not read the rest of 1 text, beyond 16 tokens" in capfd.readouterr().err
    (tmp_path / "columns.csv").write_text(f"O,the fox\n{said[0]['label']},an old house\n")
    scores = maskwright.evaluate(model, examples=tmp_path / "columns.csv", text_column=1, label=[0])
    assert "columns.csv: 2 examples" in scores.report()
    with pytest.raises(InputError, match="text_column: is \\[1.0\\]. Fix: give a string, or an integer, or a list"):
        maskwright.evaluate(model, examples="x", text_column=[1.0])
    with pytest.raises(InputError, match="without a masked-LM head"):
        model.fill("the <mask>")
    asks = maskwright.load(finished_run(tmp_path / "asks", shape("roberta", "question_answering"), tokenizer))
    assert len(asks.predict([("who saw it?", "the fox saw a garden")])) == 1
    with pytest.raises(InputError, match="texts:1: is not a question with its context. Fix: give both, in a tuple"):
        asks.predict(["who saw it?"])
    with pytest.raises(InputError, match="question_answering has no probabilities"):
        asks.predict([("who saw it?", "the fox")], probabilities=True)


def test_a_fine_tuning_ends_with_its_scores(tmp_path, tokenizer):
    task = foxes(tmp_path)
    model = pretrained_folder(tmp_path / "model", tokenizer)
    run = maskwright.finetune(str(task), str(tmp_path / "run"), overrides={"model.init_from": model})
    assert run.results is not None and run.results["step"] in run.checkpoints
    scores = maskwright.evaluate(run)
    assert scores.report() == maskwright.evaluate(run.load()).report()
    assert repr(run.load()) == f"Model({run.location!r}, task='single_label_classification')"
    assert repr(run.plot()) == "Page()"


def test_text_becomes_a_store(corpus, tmp_path, store):
    folder = maskwright.train_tokenizer(str(corpus), str(tmp_path / "tokenizer"), vocab_size=400, layout="sentences")
    made = maskwright.prepare([str(corpus)], folder, str(tmp_path / "store"), valid_fraction=0.1, layout="sentences")
    assert made.documents() + made.documents("valid") == 300
    assert made.tokens() == store.split("train").tokens and "300 read" in str(made)
    assert str(made).startswith(f"{made.location}: format ")
    assert [source["location"] for source in made.sources] == store.locations
    options = dict[str, Any](layout="sentences", workers=2, mask_pii=["email"], letters="keep")
    (tmp_path / "held.txt").write_text("The old fox saw a garden.\n\nA house stood there.\n")
    cleaned = maskwright.prepare(corpus, folder, tmp_path / "cleaned", valid_files=tmp_path / "held.txt", **options)
    assert cleaned.documents("valid") == 2 and "email" in str(cleaned.manifest["options"])
    with pytest.raises(InputError, match="`valid_fraction` and `valid_files` both choose the held-out text"):
        maskwright.prepare(corpus, folder, tmp_path / "two", valid_files=corpus, valid_fraction=0.1)


@pytest.mark.parametrize(
    ("function", "words", "named_otherwise", "only_there"),
    [
        (maskwright.prepare, "data prepare", {"src": "text"}, set()),
        (maskwright.train_tokenizer, "tokenizer train", {"src": "text"}, set()),
        (maskwright.pretrain, "pretrain", {}, {*OF_A_COMMAND, "simulated_gpus", "b_size", "datapath", "dry_run"}),
        (maskwright.finetune, "finetune", {}, {*OF_A_COMMAND, "dry_run"}),
        (maskwright.evaluate, "evaluate", {}, {"layout", "page"}),
    ],
)
def test_python_has_the_options_of_the_command(function, words, named_otherwise, only_there):
    command = get_command(app)
    for word in words.split():
        command = command.commands[word]
    typed = {named_otherwise.get(each.name, each.name) for each in command.params} - only_there - {"as_json"}
    assert typed == {*inspect.signature(function).parameters} - {"on_log", "on_evaluate", "on_save"}
