"""What a model is worth on text, from Python."""

from __future__ import annotations

from maskwright.api.given import Device, Location, integer, location, require_word
from maskwright.api.models import Model
from maskwright.core.config import Engine
from maskwright.core.errors import InputError
from maskwright.data.opening import recorded_stores
from maskwright.data.store import TokenStore
from maskwright.tasks.blimp import Blimp
from maskwright.tasks.blimp import blimp as judge_pairs
from maskwright.tasks.evaluate import Evaluation, Evaluations, evaluate_sources, row_tokens
from maskwright.tasks.models import TrainedModel, load_model
from maskwright.tasks.pseudo_likelihood import PseudoPerplexity, pseudo_perplexity
from maskwright.tasks.scores import Scores, judge
from maskwright.text.sources import Sources


def evaluate(
    model: Location | Model,
    *,
    store: Location | None = None,
    blimp: Location | None = None,
    share: float = 1.0,
    text: Location | None = None,
    examples: Location | None = None,
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

    Raises `InputError` if more than one is asked for, or the model has nothing to be measured on.
    """
    if (store, blimp, text, examples).count(None) < 3:
        raise InputError("store, blimp, text and examples are measured one at a time", fix="give one of them")
    require_word(device, "device", Device)
    max_rows = integer(max_rows, "max_rows", 1)
    trained, engine = _trained(model), Engine(device=device)  # type: ignore[arg-type]
    if examples is not None or (trained.task is not None and (store, blimp, text).count(None) == 3):
        trained.require_task()
        return judge(trained, None if examples is None else location(examples), device)
    if blimp is not None:
        return judge_pairs(trained, location(blimp), share=share, engine=engine)
    if text is not None:
        return pseudo_perplexity(
            trained, Sources([location(text)]), seq_len=row_tokens(trained, seq_len), engine=engine
        )
    if store is None and not (trained.run or {}).get("store"):
        raise InputError("a model folder names no text to evaluate on", fix="give store, blimp or text")
    stores = {"": TokenStore(location(store))} if store is not None else recorded_stores(trained.run or {})
    judged = evaluate_sources(trained, stores, seq_len=seq_len, max_rows=max_rows, engine=engine)
    return judged.sources.get("", judged)


def _trained(model: Location | Model) -> TrainedModel:
    return model.whole if isinstance(model, Model) else load_model(location(model))
