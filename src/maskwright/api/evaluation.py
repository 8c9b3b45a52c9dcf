"""Evaluation of a model, from Python."""

from __future__ import annotations

from collections.abc import Sequence

from maskwright.api.given import Device, Location, checked, location, location_if_any
from maskwright.api.models import Model
from maskwright.config.settings import Count, Fraction
from maskwright.tasks.measure.blimp import Blimp
from maskwright.tasks.measure.evaluate import EvaluationRequest, measure
from maskwright.tasks.measure.held_out import Evaluation, Evaluations
from maskwright.tasks.measure.labelled import Scores
from maskwright.tasks.measure.pseudo_likelihood import PseudoPerplexity
from maskwright.tasks.models.load import load_model

Columns = str | int | Sequence[str | int]
"""A column's name, or its number from 0 in a file without a header line; or several."""


@checked
def evaluate(
    model: Location | Model,
    *,
    store: Location | None = None,
    blimp: Location | None = None,
    share: Fraction = 1.0,
    text: Location | None = None,
    examples: Location | None = None,
    text_column: Columns = (),
    text_pair: str | int | None = None,
    label: Columns = (),
    encoding: str | None = None,
    max_rows: Count = 512,
    seq_len: int | None = None,
    device: Device = "auto",
) -> Evaluation | Evaluations | Blimp | PseudoPerplexity | Scores:
    """One measurement, each with `report()`, its text as the command prints it:

    - of a masked language model, held-out loss and accuracy on `store`, or on the run's own (`Evaluation`; of a
      mixture `Evaluations`, by source), on at most `max_rows` rows of `seq_len` tokens each;
    - `blimp`: a fixed `share` of minimal pairs (`Blimp`);
    - `text`: the pseudo-perplexity of a text (`PseudoPerplexity`);
    - of a fine-tuned model, every metric on its own test set or on the file `examples` (`Scores`).

    `text_column` names a column of `text`, or columns of `examples`, joined by a space; `text_pair` and `label` are
    columns of `examples`. Default: the run's own, or one of GLUE's names. `encoding`: of `text` or `examples`, such as
    cp1252; default: the run's for `examples`, else UTF-8.

    Raises `InputError` for more than one measurement, for a value that the measurement does not use or the model does
    not accept, and without data to measure on.
    """
    places = location_if_any(store), location_if_any(blimp), location_if_any(text), location_if_any(examples)
    columns = _columns(text_column), None if text_pair is None else str(text_pair), _columns(label)
    request = EvaluationRequest(*places, share, max_rows, seq_len, "auto", *columns, encoding)
    return measure(model.whole if isinstance(model, Model) else load_model(location(model)), request, device=device)


def _columns(given: Columns) -> tuple[str, ...]:
    return tuple(map(str, [given] if isinstance(given, str | int) else given))
