"""What a report shows that has to be computed: the guesses of a few checkpoints, and the held-out loss in parts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from maskwright.core.console import several
from maskwright.core.errors import InputError
from maskwright.report.document import Block, Paragraph
from maskwright.report.run import RecordedRun
from maskwright.report.tables import ReportTable
from maskwright.run.directory import step_folder, whole_steps
from maskwright.tasks.measure.held_out import SHOWN_SOURCES, Evaluation, evaluate_sources
from maskwright.tasks.models.load import TrainedModel, load_model
from maskwright.tasks.models.runs import held_out_stores, model_at
from maskwright.tasks.use.fill import fill
from maskwright.training import checkpoint

GUESSES = 3


def guesses(run: RecordedRun, texts: Sequence[str]) -> list[Block]:
    """What the first, the middle and the last checkpoint that are kept would write for each mask. Raises `InputError`
    for a run without checkpoints or without a masked-LM head."""
    model = load_model(run.location)
    model.require_masked_lm()
    checkpoints = os.path.join(model.folder, "checkpoints")
    steps = whole_steps(checkpoints)
    if not steps:
        raise InputError("has no checkpoint yet", where=run.location, fix="let the run save one, or leave --fill out")
    chosen = sorted({steps[0], steps[len(steps) // 2], steps[-1]})
    models = [_at(model, checkpoints, step) for step in chosen]
    rows = []
    for text in texts:
        answers = [fill(model_at, text, top=GUESSES) for model_at in models]
        for mask in range(len(answers[0])):
            cells = [
                ", ".join(
                    f"{guess.token.strip() or repr(guess.token)} {guess.probability:.0%}" for guess in guesses[mask]
                )
                for guesses in answers
            ]
            rows.append((text if not mask else f"{text} (mask {mask + 1})", *cells))
    header = ("text", *(f"step {step:,}" for step in chosen))
    what = "first, the middle and the last checkpoint that are" if len(chosen) > 2 else "checkpoints that are"
    table = ReportTable(f"The likeliest words for each mask, of the {what} kept", header, tuple(rows), len(header))
    return [table] if len(chosen) > 2 else [table, Paragraph(_more(run, len(steps)), faint=True)]


def _more(run: RecordedRun, kept: int) -> str:
    """How a page comes to three columns: the run's keys decide which checkpoints there are."""
    assert run.record is not None
    section = run.record.config.checkpoint
    keys = {key: getattr(section, key) for key in ("keep", "keep_every_steps", "save_every_steps")}
    have = ", ".join(f"checkpoint.{key} {'not set' if value is None else f'{value:,}'}" for key, value in keys.items())
    more = "A larger checkpoint.keep, or checkpoint.keep_every_steps, keeps some of its beginning and its middle too."
    return f"The run keeps {several(kept, 'checkpoint')} ({have}). {more}"


def _at(model: TrainedModel, checkpoints: str, step: int) -> TrainedModel:
    state, _ = checkpoint.load(os.path.join(checkpoints, step_folder(step)))
    config = model.config if model.run is None else model_at(model.run, step, model.location)
    return replace(model, parameters=state.parameters, step=step, config=config)


def in_parts(run: RecordedRun) -> list[Block]:
    """Held-out loss of the model by frequency of the token and by source. Raises `InputError` where the
    run holds nothing out, or its store is not here."""
    model = load_model(run.location)
    model.require_masked_lm()
    assert model.run is not None
    evaluations = evaluate_sources(model, held_out_stores(model.run)).sources
    return [block for name, evaluation in evaluations.items() for block in _parts(name, evaluation)]


def _parts(name: str, evaluation: Evaluation) -> list[Block]:
    of = f" of {name}" if name else ""
    text = "training text" if evaluation.unigram_of == "train" else "held-out text"
    summary = (
        f"{evaluation.predicted:,} masked tokens{of}: loss {evaluation.loss:.4f}, accuracy {evaluation.accuracy:.2%}; "
        f"the unigram baseline has {evaluation.unigram_loss:.4f} and {evaluation.unigram_accuracy:.2%}."
    )
    tables = [(f"By how often a token is in the {text}{of}", f"times in the {text}", evaluation.by_frequency)]
    if len(evaluation.by_source) > 1:
        tables.append((f"By source{of}, the largest first", "source", evaluation.by_source[:SHOWN_SOURCES]))
    blocks: list[Block] = [Paragraph(summary)]
    for caption, first, parts in tables:
        rows = tuple((part.name, f"{part.predicted:,}", f"{part.loss:.4f}", f"{part.accuracy:.2%}") for part in parts)
        blocks.append(ReportTable(caption, (first, "tokens", "loss", "accuracy"), rows))
    return blocks
