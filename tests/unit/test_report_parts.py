"""Parts of a report, of runs of which only that is known: the command that makes a run again, curves in numbers."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from html_page import Page
from made_record import made_record

from maskwright.config import recipes
from maskwright.config.finetuning import build_finetune_config, read_finetune_config
from maskwright.config.pretraining import build_config, read_config
from maskwright.config.settings import flat, parse_yaml, put
from maskwright.monitor.status import RunReport
from maskwright.report import background, configuration, training
from maskwright.report.document import Code, Drawing, Facts, Folded
from maskwright.report.frame import ReportTable
from maskwright.report.run import RecordedRun


def recorded(name: str, metrics: list[dict[str, Any]], *, finetuning: bool = False, **more: Any) -> RecordedRun:
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
        (
            PRETRAINING,
            {"data.store": None, "data.mixture": {"en": "gs://b/en", "no": {"store": "b", "max_epochs": 2.5}}},
        ),
        ("data: {mixture: a/en:b/sw}\nschedule: {epochs: 2}\n", {"schedule.epochs": None, "schedule.steps": 7}),
        ("nano", {"data.store": "true", "optimizer.beta2": 0.1 + 0.2}),
        (None, {"data.store": "s", "schedule.steps": 9, "data.arrow.column": "~", "data.validation": {"a": "b"}}),
        (FINETUNING, {"optimizer.class_weights": {"no": 0.5, "yes": 1 / 3}, "schedule.steps": 9}),
        (FINETUNING, {"task.labels": {"1": "yes", "0": "no"}, "model.init_from": None, "model.tokenizer": "t"}),
    ],
)
def test_the_printed_command_makes_exactly_the_same_configuration(
    given: str | None, changed: dict[str, Any], tmp_path: Path
) -> None:
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
    assert isinstance(code, Code)
    words = shlex.split(code.text.splitlines()[0])
    assert words[1:5] == [
        "finetune" if finetuning else "pretrain",
        "nano" if given == "nano" else "config.yaml",
        "--run",
        "NEW",
    ]
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


def test_the_preparation_is_printed_as_it_was_typed() -> None:
    def said(**source: Any) -> list[str]:
        card = {"kind": "text", "sources": [{"location": "s", "splits": {}, **source}]}
        run = recorded("r", [], record=made_record(keys={"seed": 3}), card=card)
        (code, *_), (facts, *_) = configuration.how_to_repeat(run), background.data(run)
        assert isinstance(code, Code) and isinstance(facts, Facts)
        return [*code.text.splitlines()[:-2], dict(facts.rows)["Prepared with"]]

    words, line = ["data", "prepare", "a b", "--to", "s"], "maskwright data prepare 'a b' --to s"
    assert said(command=words) == [line, line]
    assert said(command=words, location="gs://b/s") == [line, "# its result was then copied to gs://b/s", line]
    assert said(command=words, command_words=9)[0] == f"{line} # and 4 more words: the store's manifest lists all"
    options = {
        "valid_fraction": 0.1,
        "max_characters": None,
        "cleaning": {"languages": ["en"], "near_duplicates": None},
    }
    assert said(location="a\nb", options=options) == [
        "# a b must exist: no command was recorded that makes it",
        "valid_fraction: 0.1; cleaning: {languages: [en]}",
    ]


def test_differences_are_named_once() -> None:
    run = recorded("one", [], record=made_record(keys={"seed": 3, "data.store": "s"}))
    table, *_ = configuration.configuration(run)
    assert isinstance(table, ReportTable)
    assert table.caption == f"Of {len(run.config)} keys, these differ from the defaults"


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({"en": 970, "de": 20, "fr": 6, "sw": 4}, "en 97.0%, de 2.0%, other 1.0% (of 1,000 evenly spaced documents"),
        ({"sw": 8}, "sw 100.0% (of 8 evenly"),
        ({}, None),
        (None, None),
    ],
)
def test_a_card_says_languages_where_they_were_counted(known: dict[str, int] | None, said: str | None) -> None:
    totals = {"documents": 3, "tokens": 9}
    source = {"splits": {"train": totals, "valid": totals}, "languages": known}
    card = {"kind": "text", "sources": [source]}
    (facts, *_) = background.data(recorded("one", [], card=card))
    assert isinstance(facts, Facts)
    told = dict(facts.rows).get("Languages")
    assert told is said is None or (told or "").startswith(said or "nothing")
    assert any(line.startswith("languages: ") for line in background.in_short(card)) == bool(known)


def test_several_runs_have_marks_of_their_own_colours() -> None:
    happened: list[dict[str, Any]] = [{"event": "saved", "step": 5}, {"event": "spiked", "step": 200, "loss": 30.0}]
    happened += [{"event": "started", "step": step, "attempt": 1 + step // 100} for step in (0, 100)]
    runs = [recorded(name, LOGGED, history=happened) for name in ("one", "two")]
    (drawn, *_) = training.curves(runs)
    assert isinstance(drawn, Drawing)
    page = Page(drawn.html)
    marks = {line["class"] for line in page.all("line") if "tick" in (line.get("class") or "")}
    assert marks == {f"tick {kind} own s{place}" for kind in ("started", "spiked") for place in (0, 1)}
    assert "two: attempt 2 from step 100" in page.text and drawn.legend.count("restart") == 1
