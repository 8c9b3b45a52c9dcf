"""`maskwright evaluate`, for the command and for Python: the requested measurement, its options, and the default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from maskwright.config.pretraining import EngineSection
from maskwright.core.encodings import UTF8
from maskwright.core.errors import InputError
from maskwright.data.opening import open_evaluation_store
from maskwright.tasks.measure.blimp import Blimp, blimp
from maskwright.tasks.measure.held_out import Evaluation, Evaluations, evaluate_sources, row_tokens
from maskwright.tasks.measure.labelled import Scores, evaluate_labelled
from maskwright.tasks.measure.pseudo_likelihood import PseudoPerplexity, pseudo_perplexity
from maskwright.tasks.models.load import TrainedModel
from maskwright.tasks.models.runs import held_out_stores
from maskwright.tasks.use.predict import TextOptions
from maskwright.text.sources import Sources

Measurement = Evaluation | Evaluations | Blimp | PseudoPerplexity | Scores
SHORTEST = 8
"""The fewest tokens in a row, as for `data.seq_len`."""


@dataclass(frozen=True)
class EvaluationRequest:
    """A measurement by at most one of the first four. The default is the text that the model's run holds out."""

    store: str | None = None
    """A token store, or a folder of Arrow files, which counts as held out as a whole."""
    blimp: str | None = None
    """Minimal pairs."""
    text: str | None = None
    """Text whose pseudo-perplexity to measure."""
    examples: str | None = None
    """Labelled examples."""
    share: float = 1.0
    """The share of the minimal pairs to score."""
    max_rows: int = 512
    seq_len: int | None = None
    layout: str = "auto"
    text_column: Sequence[str] = ()
    """Columns of the text or of labelled examples; several are joined by a space."""
    text_pair: str | None = None
    label: Sequence[str] = ()
    encoding: str | None = None
    """Of the text, or of labelled examples."""


USES = {
    "store": ("max_rows", "seq_len"),
    "blimp": ("share",),
    "text": ("seq_len", "layout", "text_column", "encoding"),
    "examples": ("text_column", "text_pair", "label", "encoding"),
}
"""The other options that each measurement uses."""


def require_one(request: EvaluationRequest) -> None:
    """Raises `InputError` if more than one measurement is requested."""
    if sum(getattr(request, name) is not None for name in USES) > 1:
        *names, last = (f"`{name}`" for name in USES)
        raise InputError(f"{', '.join(names)} and {last} are measured one at a time", fix="give one of them")


def measure(
    model: TrainedModel,
    request: EvaluationRequest,
    *,
    device: str = "auto",
    sources: Callable[[str, str, str], Sources] = lambda text, column, encoding: Sources(
        [text], text_column=column, encoding=encoding
    ),
) -> Measurement:
    """Measures the model. `sources` opens `request.text`, by its location, column and encoding. Raises `InputError` for
    more than one measurement, for an option that the measurement does not use, for a value out of the model's range,
    and without anything to measure the model on."""
    require_one(request)
    chosen = next((name for name in USES if getattr(request, name) is not None), None)
    if chosen is None:
        chosen = "store" if model.task is None else "examples"
    if chosen == "examples":
        model.require_task()
    else:
        model.require_masked_lm()
    _require_used(request, chosen)
    _require_range(model, request)
    if chosen == "examples":
        options = TextOptions(request.text_column, request.text_pair, request.label, encoding=request.encoding)
        return evaluate_labelled(model, request.examples, options, device)
    from maskwright.engines.torch.prepare import choose_device

    engine = EngineSection(device=choose_device(device, "device"))  # type: ignore[arg-type]
    if request.blimp is not None:
        return blimp(model, request.blimp, share=request.share, engine=engine)
    if request.text is not None:
        if len(request.text_column) > 1:
            raise InputError("`text_column` names several columns", fix="name one of `text`")
        text = sources(request.text, [*request.text_column, "text"][0], request.encoding or UTF8)
        return pseudo_perplexity(model, text, seq_len=row_tokens(model, request.seq_len), engine=engine)
    if request.store is not None:
        data = model.run.pretraining.data if model.run else None
        stores = {"": open_evaluation_store(request.store, data, model.tokenizer_folder)}
    elif model.run is None:
        raise InputError("a model folder names no text to evaluate on", fix="give `store`, `blimp` or `text`")
    else:
        stores = held_out_stores(model.run)
    evaluations = evaluate_sources(model, stores, seq_len=request.seq_len, max_rows=request.max_rows, engine=engine)
    return evaluations.sources.get("", evaluations)


def _require_used(request: EvaluationRequest, chosen: str) -> None:
    for field in fields(EvaluationRequest):
        if field.name in USES or field.name in USES[chosen] or getattr(request, field.name) == field.default:
            continue
        users = " or ".join(f"`{name}`" for name, options in USES.items() if field.name in options)
        what = f"`{field.name}` is not used by the measurement with `{chosen}`"
        raise InputError(what, fix=f"leave it out, or use it with {users}")


def _require_range(model: TrainedModel, request: EvaluationRequest) -> None:
    most = model.config.max_seq_len
    if request.seq_len is not None and not SHORTEST <= request.seq_len <= most:
        what = f"`seq_len` {request.seq_len} is outside the model's range {SHORTEST} … {most}"
        raise InputError(what, fix="give one in that range")
