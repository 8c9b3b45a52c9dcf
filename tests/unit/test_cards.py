"""Names that others gave, in pages of Markdown and in a model card: text, and never markup."""

import re
from dataclasses import replace

import pytest
import yaml
from finetuned import finished_run, shape
from made_record import made_record

from maskwright.config.finetuning import build_finetune_config
from maskwright.config.places import PLACES
from maskwright.config.pretraining import RunConfig, build_config
from maskwright.config.settings import flat
from maskwright.core import storage
from maskwright.report.markdown import code, literal
from maskwright.run.record import FromFolder, FromRun, RecordedText
from maskwright.tasks.export.hugging_face import model_card
from maskwright.tasks.models.load import load_model

STEPS = {"schedule": {"steps": 7}}
HOSTILE = "x\n---\n# h\n\n| a | <script>`[b](c)``\x1b]0;m\x07\n- d"
SHOWN = r"x --- \# h \| a \| \<script\>\`\[b\](c)\`\`�\]0;m� - d"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (HOSTILE, SHOWN),
        ("- x", r"\- x"),
        ("---", r"\---"),
        ("+ x", r"\+ x"),
        ("===", r"\==="),
        ("1. x", r"1\. x"),
        ("2024) x", r"2024\) x"),
        ("-0.5", "-0.5"),
        ("+3 %", "+3 %"),
        ("1.5 a = b", "1.5 a = b"),
    ],
)
def test_no_name_is_markup(words, shown):
    assert literal(words) == shown


def test_code_ends_where_it_should():
    assert code("step-4") == "`step-4`"
    assert code("a`b``c\n```") == "```` a`b``c ``` ````"


def structure(card):
    """The front matter, and what each line behind it begins with."""
    _, front, body = card.split("---\n", 2)
    return yaml.safe_load(front), [re.match(r"[#>|` -]*", line)[0] for line in body.splitlines()]


def test_a_card_names_no_place(tokenizer, tmp_path):
    pretraining = {
        "data": {"mixture": {"a": "s3://private/a", "b": "s3://private/b"}, "validation": {"c": "s3://private/c"}},
        "model": {"init_from": "s3://private/d"},
        "checkpoint": {"copy_to": "s3://private/e"},
    }
    arrow = {"data": {"store": "s3://private/f", "format": "arrow", "arrow": {"tokenizer": "s3://private/g"}}}
    labelled = {
        "data": {side: f"s3://private/{side}.csv" for side in ("train", "validation", "test")},
        "model": {"tokenizer": "s3://private/h", "size": "nano"},
        "checkpoint": {"copy_to": "s3://private/i"},
    }
    configs = [
        build_config(pretraining | STEPS, ""),
        build_config(arrow | STEPS, ""),
        build_finetune_config(labelled, ""),
    ]
    run = finished_run(tmp_path / "run", shape("roberta", "single_label_classification"), tokenizer)
    trained = load_model(str(run))
    for config in configs:
        assert not [key for key in config.locations if not any(f"{key}.".startswith(f"{one}.") for one in PLACES)]
        kind = "pretrain" if isinstance(config, RunConfig) else "finetune"
        card = model_card(replace(trained, run=made_record(kind, flat(config))), 0.0)
        assert "schedule" in card and "private" not in card


def test_names_change_nothing_in_a_model_card(tokenizer, tmp_path):
    trained = load_model(
        str(finished_run(tmp_path / "run", shape("roberta", "single_label_classification"), tokenizer))
    )

    record = trained.run

    def card(name):
        origin = FromFolder(f"base/{name}", {name: name})
        parent = FromRun(name, 4, "kept", "--from", name, name, name, 5, 0, None, origin)
        text = RecordedText(name, name)
        of_name = replace(record, digest=name, train=text, held_out={name: text}, began_from=parent)
        splits = {side: {"documents": 1, "tokens": 2} for side in ("train", "valid")}
        source = {"name": name, "splits": splits, "languages": {name: 1.0}}
        storage.write_json(
            str(tmp_path / "run" / "data.json"),
            {"kind": "text", "sources": [source], "unigram": {name: {"loss": 1.0, "accuracy": 0.5}}},
        )
        storage.write_json(str(tmp_path / "run" / "results.json"), {"test": {"examples": 3, name: 0.5}})
        return model_card(replace(trained, location=f"runs/{name}", fetched_to=str(tmp_path / "run"), run=of_name), 0.0)

    innocent, hostile = structure(card("name")), structure(card(HOSTILE))
    assert hostile == innocent
    assert f"# {SHOWN}\n" in card(HOSTILE) and " fine-tuned from " in card("name")
