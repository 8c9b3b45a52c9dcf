"""`maskwright evaluate`: masked accuracy and loss on held-out text, compared with guessing by unigram frequencies; also
by a token's frequency in the training text, and by its file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from maskwright.config.pretraining import EngineSection, Optimizer
from maskwright.core.console import progress
from maskwright.data.batch import Batch
from maskwright.data.loader import validation_batches, validation_rows
from maskwright.data.packing import Packing
from maskwright.data.rows import open_rows
from maskwright.data.store import SplitName, TokenStore
from maskwright.engines.base import Engine, TrainState
from maskwright.engines.choose import make_engine
from maskwright.tasks.models.load import TrainedModel
from maskwright.tasks.start.data_card import token_counts, unigram
from maskwright.text.arrays import Int64

MICRO_BATCH_ROWS, SHOWN_SOURCES = 8, 20


@dataclass(frozen=True)
class TokenGroup:
    """Scores on a group of the masked tokens."""

    name: str
    predicted: int
    """Number of tokens."""
    loss: float
    accuracy: float


@dataclass(frozen=True)
class Evaluation:
    """Scores on held-out text with fixed 15 % masks. Losses are nats a token."""

    model: str
    store: str
    predicted: int
    """Number of tokens."""
    loss: float
    accuracy: float
    perplexity: float
    unigram_loss: float
    unigram_accuracy: float
    unigram_of: SplitName
    """The text whose frequencies the unigram baseline and `by_frequency` use."""
    by_frequency: list[TokenGroup]
    """Groups by the token's count in that text, in powers of ten."""
    by_source: list[TokenGroup]
    """Groups by the file that the store was made from, the largest first."""

    def report(self) -> str:
        lines = [
            f"{self.model} on {self.store}: {self.predicted:,} masked tokens of held-out text",
            f"{'':18}{'loss':>8}  {'accuracy':>8}",
            f"{'model':18}{self.loss:8.4f}  {self.accuracy:8.2%}",
            f"{'unigram baseline':18}{self.unigram_loss:8.4f}  {self.unigram_accuracy:8.2%}",
            f"perplexity {self.perplexity:,.1f}",
        ]
        if self.unigram_of != "train":
            lines.append("the baseline counts its frequencies in the held-out text itself")
        text = "training text" if self.unigram_of == "train" else "held-out text"
        lines += ["", *_table(f"times in the {text}", self.by_frequency)]
        if len(self.by_source) > 1:
            lines += ["", *_table("source", self.by_source[:SHOWN_SOURCES])]
        if (more := len(self.by_source) - SHOWN_SOURCES) > 0:
            lines.append(f"{more:,} sources with fewer tokens are not shown; --json lists them")
        return "\n".join(lines)


@dataclass(frozen=True)
class Evaluations:
    """Evaluations of a model on several stores."""

    model: str
    sources: dict[str, Evaluation]
    """Evaluations by the name of the source."""

    def report(self) -> str:
        width = max(map(len, ("source", *self.sources))) + 2
        return "\n".join(
            [
                f"{self.model} on the held-out text of {len(self.sources)} sources, against the unigram baseline",
                f"{'source':{width}}{'tokens':>8}{'loss':>10}{'accuracy':>10}{'perplexity':>12}{'unigram':>10}{'':10}",
                *(
                    f"{name:{width}}{row.predicted:8,}{row.loss:10.4f}{row.accuracy:10.2%}{row.perplexity:12,.1f}"
                    f"{row.unigram_loss:10.4f}{row.unigram_accuracy:10.2%}"
                    for name, row in self.sources.items()
                ),
                "",
                "by frequency and by file: --json lists both, --store FOLDER shows one source's",
            ]
        )


def _table(title: str, parts: list[TokenGroup]) -> list[str]:
    width = max(len(title), *(len(part.name) for part in parts)) + 2
    return [
        f"{title:{width}}{'tokens':>8}{'loss':>10}{'accuracy':>10}",
        *(f"{part.name:{width}}{part.predicted:8,}{part.loss:10.4f}{part.accuracy:10.2%}" for part in parts),
    ]


def row_tokens(model: TrainedModel, wanted: int | None = None) -> int:
    """Tokens in a row: `wanted`, else the run's, else the model's longest row up to 512."""
    return wanted or (model.run.pretraining.data.seq_len if model.run else min(512, model.config.max_seq_len))


def evaluate_sources(
    model: TrainedModel,
    stores: Mapping[str, TokenStore],
    *,
    seq_len: int | None = None,
    max_rows: int = 512,
    engine: EngineSection | None = None,
) -> Evaluations:
    """Evaluates the model on each store, on up to `max_rows` rows of it. Raises `StoreError` if a store was made with
    another tokenizer or holds nothing out."""
    model.require_masked_lm()
    for store in stores.values():
        store.require_tokenizer(model.vocabulary, model.location)
    scorer = make_engine(model.config, Optimizer(), engine or EngineSection(), seed=0)
    scorer.write(TrainState(0, model.parameters))
    seq_len = row_tokens(model, seq_len)
    evaluations = {name: _evaluate_store(model, store, scorer, seq_len, max_rows) for name, store in stores.items()}
    return Evaluations(model.location, evaluations)


def _evaluate_store(model: TrainedModel, store: TokenStore, scorer: Engine, seq_len: int, max_rows: int) -> Evaluation:
    packing = model.run.pretraining.data.packing if model.run else "documents"
    batches = validation_batches(
        store, seq_len=seq_len, packing=packing, max_rows=max_rows, micro_batch_rows=MICRO_BATCH_ROWS
    )
    scores, waiting = [], iter(batches)
    with progress("evaluate", len(batches), "batches") as bar:
        while group := list(islice(waiting, scorer.dp_degree)):
            scores.append(scorer.log_probs(group))
            bar.advance(len(group))
    losses, correct = -np.concatenate([score[0] for score in scores]), np.concatenate([score[1] for score in scores])
    unigram_of: SplitName = "train" if store.split("train").documents else "valid"
    known_text = store.split(unigram_of)
    counts = token_counts(known_text, store.vocabulary.size)
    unigram_loss, unigram_accuracy = unigram(counts, batches)
    labels = np.concatenate([batch.labels[batch.weights > 0] for batch in batches])
    decades, sources = _decades(counts, known_text.tokens)[labels], _sources(store, batches, seq_len, packing, max_rows)
    by_source = _parts(sources, store.locations, losses, correct)
    loss = float(losses.mean(dtype=np.float64))
    return Evaluation(
        model=model.location,
        store=store.location,
        predicted=len(labels),
        loss=loss,
        accuracy=float(correct.mean()),
        perplexity=math.exp(min(loss, 700.0)),
        unigram_loss=unigram_loss,
        unigram_accuracy=unigram_accuracy,
        unigram_of=unigram_of,
        by_frequency=_parts(decades, BANDS, losses, correct),
        by_source=sorted(by_source, key=lambda part: -part.predicted),
    )


BANDS = ["0", *(f"{10**power:,} to {10 ** (power + 1) - 1:,}" for power in range(19))]


def _decades(counts: Int64, tokens: int) -> Int64:
    """[vocab_size]: the number of digits of each id's count in a text of `tokens` tokens, scaled up if `counts` are of
    a part; 0 for a count of 0."""
    return np.searchsorted(10 ** np.arange(18), counts * (tokens / max(counts.sum(), 1)), side="right")


def _sources(store: TokenStore, batches: list[Batch], seq_len: int, packing: Packing, max_rows: int) -> Int64:
    """[n]: for each label with a weight, the number of its document's source."""
    rows = open_rows(store, "valid", seq_len, packing)
    chosen = validation_rows(rows, max_rows)
    index = [
        batch.predict_index[batch.weights > 0] + number * MICRO_BATCH_ROWS * seq_len
        for number, batch in enumerate(batches)
    ]
    row, position = np.divmod(np.concatenate(index).astype(np.int64), seq_len)
    document = rows.documents_at(chosen[row], position)
    sources = np.empty(len(document), np.int64)
    ends = np.cumsum([shard.documents for shard in rows.split.shards])
    shard_idx = np.searchsorted(ends, document, side="right")
    for shard in np.unique(shard_idx).tolist():
        in_shard = shard_idx == shard
        before = int(ends[shard]) - rows.split.shards[shard].documents
        sources[in_shard] = store.source_numbers("valid", shard)[document[in_shard] - before]
    return sources


def _parts(
    number: Int64, names: list[str], losses: NDArray[np.float32], correct: NDArray[np.bool_]
) -> list[TokenGroup]:
    """A group for each number that occurs, in rising order."""
    order = np.argsort(number, kind="stable")
    parts, starts = np.unique(number[order], return_index=True)
    groups = []
    for part, chosen in zip(parts.tolist(), np.split(order, starts[1:]), strict=False):
        loss, accuracy = float(losses[chosen].mean(dtype=np.float64)), float(correct[chosen].mean())
        groups.append(TokenGroup(names[part], len(chosen), loss, accuracy))
    return groups
