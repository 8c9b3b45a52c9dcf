"""What a model is worth on text, from Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from maskwright.api.given import Device, Location, integer, location, number, require_word
from maskwright.api.models import Model
from maskwright.core.errors import InputError
from maskwright.tasks.measure.blimp import Blimp
from maskwright.tasks.measure.evaluate import SHORTEST, EvaluationRequest, measure, require_one
from maskwright.tasks.measure.held_out import Evaluation, Evaluations
from maskwright.tasks.measure.labelled import Scores
from maskwright.tasks.measure.pseudo_likelihood import PseudoPerplexity
from maskwright.tasks.models.load import load_model

Columns = str | int | Sequence[str | int]
"""A column's name, or its number from 0 in a file without a header line; or several."""


def evaluate(
    model: Location | Model,
    *,
    store: Location | None = None,
    blimp: Location | None = None,
    share: float = 1.0,
    text: Location | None = None,
    examples: Location | None = None,
    text_column: Columns = (),
    text_pair: str | int | None = None,
    label: Columns = (),
    encoding: str | None = None,
    max_rows: int = 512,
    seq_len: int | None = None,
    device: str = "auto",
) -> Evaluation | Evaluations | Blimp | PseudoPerplexity | Scores:
    """One measurement, each with `report()`, its text as the command prints it:

    - of a masked language model, held-out loss and accuracy on `store`, or on the run's own (`Evaluation`; of a
      mixture `Evaluations`, by source), on at most `max_rows` rows of `seq_len` tokens each;
    - `blimp`: minimal pairs, of which a fixed `share` is taken (`Blimp`);
    - `text`: the pseudo-perplexity of a text (`PseudoPerplexity`);
    - of a fine-tuned model, every metric on its own test set or on the file `examples` (`Scores`).

    `text_column` is that of `text` or of `examples`, where several are joined by a space; `text_pair` and `label` are
    those of `examples`. Those that are not given are the run's own, or have one of GLUE's names. `encoding` is that of
    `text` or of `examples`, such as cp1252; by default the run's for `examples`, or UTF-8.

    Raises `InputError` if more than one is asked for, for a value that the measurement does not use or the model does
    not take, and where the model has nothing to be measured on.
    """
    request = EvaluationRequest(
        store=None if store is None else location(store),
        blimp=None if blimp is None else location(blimp),
        text=None if text is None else location(text),
        examples=None if examples is None else location(examples),
        share=number(share, "share"),
        max_rows=integer(max_rows, "max_rows", 1),
        text_column=_columns(text_column, "text_column"),
        text_pair=None if text_pair is None else _columns([text_pair], "text_pair")[0],
        label=_columns(label, "label"),
        encoding=encoding,
        seq_len=None if seq_len is None else integer(seq_len, "seq_len", SHORTEST),
    )
    require_word(device, "device", Device)
    require_one(request)
    return measure(model.whole if isinstance(model, Model) else load_model(location(model)), request, device=device)


def _columns(given: Columns, where: str) -> tuple[str, ...]:
    columns = [given] if isinstance(given, str | int) or not isinstance(given, Iterable) else list(given)
    if wrong := [column for column in columns if not isinstance(column, str | int)]:
        raise InputError(f"{wrong[0]!r:.40} is not a column", where=where, fix="give its name, or its number from 0")
    return tuple(map(str, columns))
