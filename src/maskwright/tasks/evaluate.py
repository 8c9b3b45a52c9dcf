"""`maskwright evaluate`: held-out masked accuracy and loss, beside what unigram frequencies alone would give."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from maskwright.core import config as run
from maskwright.core.console import progress
from maskwright.data.batch import Batch
from maskwright.data.loader import validation_batches
from maskwright.data.store import SplitName, TokenStore
from maskwright.engines.base import EvalStats, TrainState
from maskwright.engines.choose import make_engine
from maskwright.tasks.models import TrainedModel


@dataclass(frozen=True)
class Evaluation:
    """On held-out text with fixed 15 % masks. Losses are nats a token."""

    model: str
    store: str
    predicted: int
    """Tokens."""
    loss: float
    accuracy: float
    perplexity: float
    unigram_loss: float
    unigram_accuracy: float
    unigram_of: SplitName
    """The text whose frequencies the unigram baseline takes."""

    def report(self) -> str:
        lines = [
            f"{self.model} on {self.store}: {self.predicted:,} masked tokens of held-out text",
            f"{'':18}{'loss':>8}  {'accuracy':>8}",
            f"{'model':18}{self.loss:8.4f}  {self.accuracy:8.2%}",
            f"{'unigram baseline':18}{self.unigram_loss:8.4f}  {self.unigram_accuracy:8.2%}",
            f"perplexity {self.perplexity:,.1f}",
        ]
        if self.unigram_of != "train":
            lines.append("the baseline has its frequencies from the held-out text itself")
        return "\n".join(lines)


def evaluate(
    model: TrainedModel,
    store: TokenStore,
    *,
    seq_len: int | None = None,
    max_rows: int = 512,
    engine: run.Engine | None = None,
) -> Evaluation:
    """Raises `StoreError` if the store was made with another tokenizer or holds nothing out."""
    model.require_masked_lm()
    store.require_tokenizer(model.vocabulary, model.location)
    values = model.run["config"] if model.run else {}
    batches = validation_batches(
        store,
        seq_len=seq_len or values.get("data.seq_len") or min(512, model.config.max_seq_len),
        packing=values.get("data.packing", "documents"),
        max_rows=max_rows,
        micro_batch_rows=8,
    )
    scorer = make_engine(model.config, run.Optimizer(), engine or run.Engine(), seed=0)
    scorer.write(TrainState(0, model.parameters))
    stats = EvalStats()
    with progress("evaluate", len(batches), "batches") as bar:
        for batch in batches:
            stats += scorer.evaluate([batch])
            bar.advance()
    unigram_of: SplitName = "train" if store.split("train").documents else "valid"
    unigram_loss, unigram_accuracy = unigram(store, batches, unigram_of)
    return Evaluation(
        model=model.location,
        store=store.location,
        predicted=int(stats.weight),
        loss=stats.loss,
        accuracy=stats.accuracy,
        perplexity=math.exp(min(stats.loss, 700.0)),
        unigram_loss=unigram_loss,
        unigram_accuracy=unigram_accuracy,
        unigram_of=unigram_of,
    )


def unigram(store: TokenStore, batches: list[Batch], side: SplitName = "train") -> tuple[float, float]:
    """(loss, accuracy) of guessing by frequency in one side of the store alone (add-one smoothed): the training text,
    or where the store is a test set only, the held-out text itself, which no unigram model can beat."""
    counts = store.split(side).counts(store.vocabulary.size).astype(np.float64) + 1.0
    labels = np.concatenate([batch.labels[batch.weights > 0] for batch in batches])
    if not len(labels):
        return 0.0, 0.0
    log_share = np.log(counts / counts.sum())
    return float(-log_share[labels].mean()), float((labels == counts.argmax()).mean())
