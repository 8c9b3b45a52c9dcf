"""What a user is told about keys that do not exist, values that are none, options of other programs, and memory."""

import re
import signal

import pytest
import typer.main
from pydantic import ValidationError

from maskwright.cli import main
from maskwright.config import pretraining as c
from maskwright.config.finetuning import FinetuneConfig, build_finetune_config
from maskwright.config.foreign_names import FINETUNING, FOREIGN, OPTIONS, VALUES
from maskwright.config.settings import Guide, Section, is_misspelt, keys_in, keys_of
from maskwright.core.errors import ConfigError

LEAST = {"data": {"store": "s"}, "schedule": {"steps": 100}}


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("data: {store: s}\nschedule: {steps: 100, warmup_steps: 3}\n")
    return str(path)


def told(values):
    with pytest.raises(ConfigError) as caught:
        c.build_config(values, "run.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("optimizer.learning_rat=1e-3", "did you mean optimizer.learning_rate?"),
        ("optimizer.warmup_steps=3", "did you mean schedule.warmup_steps?"),
        ("steps=10", "did you mean schedule.steps?"),
        ("shedule.steps=5", "did you mean schedule.steps?"),
        ("batch.size=64", "batch.micro_batch_rows is the batch of one device"),
        ("num-train-epochs=3", "did you mean schedule.epochs?"),
        ("bf16=true", "did you mean engine.dtype: bf16?"),
        ("model.pooler=1", "see the keys in `maskwright schema`"),  # not schedule.power
        ("optimizer.learning_rate=0", "is 0. Fix: give a number > 0; the default is 0.0005"),
        ("schedule.steps=1.5", "is 1.5. Fix: give an integer ≥ 1"),
        ("schedule.steps=true", "is True. Fix: give an integer ≥ 1"),
        ("data.seq_len=nine", "is 'nine'. Fix: give an integer ≥ 8 and ≤ 8192; the default is 512"),
        ("model.size=huge", "is 'huge'. Fix: give one of nano, mini, small, base, large; the default is base"),
        ("evaluation.patience=0", "is 0. Fix: give an integer ≥ 1, or null"),
        ("model.new_head=1", "is 1. Fix: give true or false; the default is false"),
        ("schedule.steps=3", "so the run would never peak. Fix: raise schedule.steps, or --set"),
        ("schedule=5", "is 5, but it is a section. Fix: give it keys: epochs, steps, kind"),
        ("logging.report_to=[tensorboard, bogus]", "report_to.1 is 'bogus'. Fix: give one of tensorboard, wandb,"),
        ("logging.report_to=bogus", "Fix: give a list, each entry one of tensorboard, wandb, mlflow; the default is"),
        ("schedule={stepz: 3}", "unknown key schedule.stepz. Fix: did you mean schedule.steps?"),
        ("schedule={kind: wsd}", "key schedule.steps is missing"),
    ],
)
def test_what_the_command_line_gave_is_blamed_on_it(override, words, recipe):
    with pytest.raises(ConfigError) as caught:
        c.read_config(recipe, [override])
    assert str(caught.value).startswith(f"--set {override.partition('=')[0]}: ") and words in str(caught.value)
    assert str(caught.value).count("\n") == 0


def test_every_mistake_is_named_on_a_line_of_its_own():
    foreign = {"learning_rate": 1e-3, "num_train_epochs": 3, "trainer": {"seq_length": 12}, "optimizer": None}
    header, *lines = told({"schedul": {"steps": 10}, "model": {"size": "tiny"}, **foreign}).splitlines()
    assert header == "run.yaml: has 7 mistakes; each line below shows how to fix one"
    assert [line.partition(". Fix: ")[0].strip() for line in lines] == [
        "model.size is 'tiny'",
        "section optimizer is empty",
        "unknown key schedul",
        "unknown key learning_rate",
        "unknown key num_train_epochs",
        "unknown key trainer.seq_length",
        "key data.store is missing",
    ]
    assert "  unknown key schedul. Fix: did you mean schedule?" in lines
    assert "  unknown key trainer.seq_length. Fix: did you mean data.seq_len?" in lines


def test_what_is_misspelt_or_empty_is_not_missing_as_well():
    assert told({"data": {"stor": "s"}, "schedule": {"steps": 1}}).endswith("data.stor. Fix: did you mean data.store?")
    assert told({**LEAST, "schedule": None}).startswith("run.yaml: section schedule is empty. Fix: give it schedule.st")
    missing = "run.yaml: key schedule.steps is missing. Fix: add it, an integer ≥ 1, or null: "
    assert told({"data": {"store": "s"}}).startswith(missing)


@pytest.mark.parametrize("given", [{}, {"model": None}, {"model": {}}])
def test_a_section_whose_every_key_may_be_left_out_says_what_it_lacks(given):
    with pytest.raises(ConfigError) as caught:
        build_finetune_config({"data": {"train": "news.csv"}, **given}, "news.yaml")
    fix = "name a run or a model folder as model.init_from; or give model.tokenizer and a size"
    assert str(caught.value) == f"news.yaml: model: model has neither init_from nor tokenizer. Fix: {fix}"


@pytest.mark.parametrize("kind", ["regression", "single_label_classification", "token_classification"])
def test_several_label_columns_are_for_several_labels(kind):
    given = {"task": {"kind": kind}, "data": {"train": "a.csv", "label": ["a", "b"]}, "model": {"init_from": "m"}}
    with pytest.raises(ConfigError, match=f"data.label lists columns, but {kind} reads one. Fix: name one"):
        build_finetune_config(given, "a.yaml")


def test_a_section_that_nothing_speaks_for_is_named_itself():
    class Inner(Section):
        name: str | None = None

    class Outer(Section):
        inner: Inner

    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({})
    error = Guide(Outer, "it", "look them up").explain(caught.value, "a.yaml")
    assert str(error) == "a.yaml: section inner is missing. Fix: add it, with keys: name"


def test_names_of_other_programs_lead_to_real_keys():
    """A key takes the value that is named with it; a sentence speaks of keys that are there."""
    known = keys_of(c.RunConfig)
    for table, keys, section in ((FOREIGN, known, c.RunConfig), (FINETUNING, keys_of(FinetuneConfig), FinetuneConfig)):
        for said in set(table.values()):
            words = {word.strip("`,;:.()").partition("=")[0] for word in said.split()}
            named = {word for word in words if word.partition(".")[0] in section.model_fields and "." in word}
            assert {word for word in named if not word.endswith("*")} <= set(keys), said
            for key, _, value in (word.partition("=") for word in keys_in(said)):
                assert key in keys and (not value or keys[key].accepts(value)), said
    for key, ours in VALUES.items():
        taken = known.get(key) or keys_of(FinetuneConfig)[key]
        assert all(" " in value or taken.accepts(value) for value in ours.values()), key


@pytest.mark.parametrize(
    ("key", "value", "fix"),
    [
        ("lr_scheduler_type", "polynomial_decay", "did you mean schedule.kind: linear?"),
        ("lr_scheduler_type", "cosine", "did you mean schedule.kind?"),
        ("schedule.kinds", "round", "did you mean schedule.kind? schedule.kind takes one of linear, cosine, wsd"),
        ("num_cores", 8, "did you mean engine.kind: jax and engine.device: tpu and engine.devices?"),
        ("input_shapes", "2x512", "did you mean batch.micro_batch_rows: 2 and data.seq_len: 512?"),
        ("report_to", "none", "did you mean logging.report_to: []?"),
        ("optimizer.kind", "decoupled_adamw", "give adamw, and divide weight_decay by learning_rate"),
        ("optimizer.kind", "adam", "give adamw"),
        ("schedule.min_lr", 1e-5, "schedule.final_lr_share is that rate divided by optimizer.learning_rate"),
        ("checkpoint.every_steps", 500, "did you mean checkpoint.save_every_steps?"),
        ("evaluation.steps", 500, "did you mean evaluation.every_steps?"),
        ("model.layers", 6, "did you mean model.num_hidden_layers?"),
    ],
)
def test_a_key_of_another_program_brings_its_value(key, value, fix):
    section, _, leaf = key.rpartition(".")
    given = {section: {**LEAST.get(section, {}), leaf: value}} if section else {leaf: value}
    assert f"Fix: {fix}" in told({**LEAST, **given})


def test_a_misspelt_name_has_a_typo_or_two():
    near = [("stepz", "steps"), ("stpes", "steps"), ("learnin_rat", "learning_rate"), ("kepe", "keep")]
    far = [("sched", "seed"), ("pooler", "power"), ("labels", "phases"), ("eps", "steps"), ("kepy", "keep")]
    assert [is_misspelt(*pair) for pair in near + far] == [True] * len(near) + [False] * len(far)


def test_options_of_other_programs_lead_to_real_options():
    groups = [typer.main.get_command(main.app)]
    known = set()
    for command in groups:
        if hasattr(command, "list_commands"):  # those of `submit` are made on demand
            groups += [command.get_command(None, name) for name in command.list_commands(None)]
        known |= {option for parameter in command.params for option in parameter.opts}
    assert {option for options in OPTIONS.values() for option in options} <= known


class OutOfMemoryError(RuntimeError):
    """As torch's, of a GPU."""


@pytest.mark.parametrize("error", [MemoryError, OutOfMemoryError])
@pytest.mark.parametrize("command", [*main.LESS_MEMORY, "export"])
def test_what_takes_less_memory_is_there_in_the_command(command, error, monkeypatch, capsys):
    known = typer.main.get_command(main.app)
    options = {option for parameter in known.commands[command].params for option in parameter.opts}
    config = {"pretrain": c.RunConfig, "finetune": FinetuneConfig, "compare": FinetuneConfig}.get(command)
    keys = {*keys_of(config)} if config else set()

    def fail(**_):
        raise error

    monkeypatch.setattr(main, "app", fail)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert main.run([command]) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: out of memory. Fix: ") and told.count("\n") == 1
    assert {*re.findall(r"--[a-z-]+", told)} <= options
    assert {*re.findall(r"[a-z]+\.[a-z_]+", told)} <= keys
