"""Pseudo-log-likelihood (Salazar et al. 2020, arXiv 1910.14659): the sum of the log-probabilities that a masked
language model gives each token of a text from all the others, with one token masked at a time.

A text of n tokens makes n copies of n + 2 positions (`<s> … </s>`), each with one `<mask>`. Copies are best-fit packed
into rows, and attention stays inside a copy, so nearly no position is padding. All batches have one shape, logits are
computed for the masked positions only, and everything is in fp32.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from maskwright.config.pretraining import EngineSection, Optimizer
from maskwright.core.console import human_count, human_seconds, progress
from maskwright.core.errors import InputError
from maskwright.data.batch import Batch
from maskwright.data.encode import encode_documents
from maskwright.data.packing import best_fit, plan_documents
from maskwright.engines.base import Engine, TrainState
from maskwright.engines.choose import make_engine
from maskwright.tasks.models.load import TrainedModel
from maskwright.text.arrays import Int64
from maskwright.text.encoder import TokenizersEncoder
from maskwright.text.sources import Sources
from maskwright.text.vocabulary import Vocabulary

BATCH_TOKENS, ROW_TOKENS = 4096, 128
"""Positions computed at once, and in a row unless a text is longer. On a CPU, rows of 64, 128 and 256 tokens and rows
of one copy without padding are equally fast, and rows of 512 slower by a third (mini in fp32, copies of 13 tokens)."""


@dataclass(frozen=True)
class MaskedCopies:
    """The masked copies of some texts, packed into rows. Copy i masks the i-th of all the texts' tokens. Special tokens
    are not counted, since they are never predicted."""

    vocabulary: Vocabulary
    ids: NDArray[np.int32]
    """The framed texts, one after the other."""
    begin: Int64
    """[texts], where each framed text begins in `ids`."""
    size: Int64
    """[texts], the tokens of each framed text."""
    text: Int64
    """[copies], the text of each copy."""
    masked: Int64
    """[copies], the masked position in the framed text."""
    order: Int64
    """[copies], the copies in the order of the rows."""
    first: Int64
    """[rows + 1], the first copy of each row, in `order`."""
    row_tokens: int

    @classmethod
    def of(cls, ids: NDArray[np.integer], lengths: Int64, vocabulary: Vocabulary) -> MaskedCopies:
        """`ids`: of all texts, one after the other, without special tokens around them; `lengths` [texts], none of them
        0."""
        size = lengths + 2
        begin, end = np.cumsum(size) - size, np.cumsum(size)
        framed = np.empty(int(size.sum()), np.int32)
        framed[begin], framed[end - 1] = vocabulary.bos, vocabulary.eos
        text = np.repeat(np.arange(len(size)), lengths)
        masked = np.arange(len(text)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + 1
        framed[begin[text] + masked] = ids
        is_predicted = ~np.isin(ids, sorted(vocabulary.additional))
        text, masked = text[is_predicted], masked[is_predicted]
        row_tokens = max(ROW_TOKENS, -(-int(size.max()) // 64) * 64)
        order, first = best_fit(size[text], row_tokens)
        return cls(vocabulary, framed, begin, size, text, masked, order, first, row_tokens)

    @property
    def positions(self) -> int:
        """Positions of all copies, without padding."""
        return int(self.size[self.text].sum())

    def batches(self) -> Iterator[Batch]:
        """Each row has as many slots for predictions as the row with the most copies; the last rows may be padding."""
        M, rows = max(1, BATCH_TOKENS // self.row_tokens), len(self.first) - 1
        slots = int(np.diff(self.first).max())
        for row in range(0, rows, M):
            yield self._batch(row, min(row + M, rows), M, slots)

    def _batch(self, low: int, high: int, M: int, slots: int) -> Batch:
        T, first = self.row_tokens, self.first[low : high + 1]
        copies, counts = self.order[first[0] : first[-1]], np.diff(first)
        row = np.repeat(np.arange(high - low), counts)
        number = np.arange(len(copies)) - np.repeat(first[:-1] - first[0], counts)
        size = self.size[self.text[copies]]
        begin = np.cumsum(size) - size
        into = begin - np.repeat(begin[first[:-1] - first[0]], counts) + row * T  # where each copy goes
        at = np.arange(size.sum()) - np.repeat(begin, size)
        filled = np.repeat(into, size) + at

        ids = np.full(M * T, self.vocabulary.pad, np.int32)
        positions, segments = np.zeros((2, M * T), np.int32)
        ids[filled] = self.ids[np.repeat(self.begin[self.text[copies]], size) + at]
        positions[filled], segments[filled] = at, np.repeat(number + 1, size)
        slot, place = row * slots + number, into + self.masked[copies]
        index, labels = np.zeros((2, M * slots), np.int32)
        weights = np.zeros(M * slots, np.float32)
        index[slot], labels[slot], weights[slot] = place, ids[place], 1.0
        ids[place] = self.vocabulary.mask
        rows = [array.reshape(M, T) for array in (ids, positions, segments)]
        return Batch(rows[0], rows[1], rows[2], index, labels, weights)


@dataclass(frozen=True)
class TokenScores:
    """A model's log-probabilities of the tokens of some texts."""

    log_probs: NDArray[np.float32]
    """[tokens], nats, each token masked alone, without tokens that are never predicted."""
    sums: NDArray[np.float64]
    """[texts], their pseudo-log-likelihoods."""
    positions: int
    """Computed positions of the masked copies."""
    seconds: float


def open_scorer(model: TrainedModel, engine: EngineSection | None = None) -> Engine:
    """An engine with the model's weights, in fp32. Raises `InputError` if the model has another head."""
    model.require_masked_lm()
    in_fp32 = (engine or EngineSection()).model_copy(update={"dtype": "fp32"})
    scorer = make_engine(model.config, Optimizer(), in_fp32, seed=0)
    scorer.write(TrainState(0, model.parameters))
    return scorer


def score_texts(scorer: Engine, vocabulary: Vocabulary, ids: NDArray[np.integer], lengths: Int64) -> TokenScores:
    """`ids`: of all texts, one after the other, without special tokens around them; `lengths` [texts], none of them
    0."""
    copies, began = MaskedCopies.of(ids, lengths, vocabulary), time.perf_counter()
    batches, parts = copies.batches(), []
    with progress("score", copies.positions, "positions") as bar:
        while group := list(islice(batches, scorer.dp_degree)):
            parts.append(scorer.log_probs(group)[0])
            bar.advance(sum(batch.text_tokens for batch in group))
    log_probs = np.empty(len(copies.text), np.float32)
    log_probs[copies.order] = np.concatenate(parts)
    sums = np.bincount(copies.text, weights=log_probs, minlength=len(lengths))
    return TokenScores(log_probs, sums.astype(np.float64), copies.positions, time.perf_counter() - began)


# ---- a text file ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PseudoPerplexity:
    """Pseudo-perplexity of some documents, each token masked alone."""

    model: str
    text: str
    documents: int
    windows: int
    """Pieces of documents that were scored alone."""
    window_tokens: int
    """The most tokens that a window may have."""
    tokens: int
    loss: float
    """Minus the mean log-probability, nats a token."""
    pseudo_perplexity: float
    positions: int
    """Computed positions of the masked copies."""
    seconds: float

    def report(self) -> str:
        return "\n".join(
            [
                f"{self.model} on {self.text}: {self.documents:,} documents in {self.windows:,} windows of up to "
                f"{self.window_tokens:,} tokens, {self.tokens:,} tokens, each masked alone",
                f"pseudo-perplexity {self.pseudo_perplexity:,.2f} (loss {self.loss:.4f})",
                speed(self.positions, self.seconds),
            ]
        )


def speed(positions: int, seconds: float) -> str:
    return f"{human_count(positions)} positions in {human_seconds(seconds)}, {positions / seconds:,.0f} a second"


def pseudo_perplexity(
    model: TrainedModel, sources: Sources, *, seq_len: int, engine: EngineSection | None = None
) -> PseudoPerplexity:
    """exp of the mean loss of all tokens. A document of more than `seq_len` - 2 tokens is cut into consecutive windows
    of that length, as `data.packing: documents` cuts it in training. Raises `SourceError` for faulty text."""
    scorer = open_scorer(model, engine)
    documents = list(sources)
    if not documents:
        raise InputError("holds no text", where=sources.files[0], fix="give a file that contains text")
    byte_length = np.array(model.vocabulary.byte_length, np.int32)
    encoded = encode_documents(TokenizersEncoder(model.tokenizer_folder), documents, byte_length)
    if model.vocabulary.additional.issuperset(np.unique(encoded.ids).tolist()):
        raise InputError("holds no tokens of the model's tokenizer", where=sources.files[0], fix="give another text")
    cut = plan_documents(np.cumsum(encoded.document_sizes), seq_len).all_pieces()
    in_order = cut.length[np.argsort(cut.start)]
    scores = score_texts(scorer, model.vocabulary, encoded.ids, in_order)
    loss = -float(scores.log_probs.mean(dtype=np.float64))
    return PseudoPerplexity(
        model=model.location,
        text=sources.files[0] if len(sources.files) == 1 else f"{len(sources.files):,} files",
        documents=len(documents),
        windows=len(in_order),
        window_tokens=seq_len - 2,
        tokens=len(scores.log_probs),
        loss=loss,
        pseudo_perplexity=math.exp(min(loss, 700.0)),
        positions=scores.positions,
        seconds=scores.seconds,
    )
