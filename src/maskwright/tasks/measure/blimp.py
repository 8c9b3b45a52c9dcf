"""`maskwright evaluate --blimp`: of two sentences that differ in one thing, does the model prefer the grammatical one?

BLiMP (Warstadt et al. 2020, arXiv 1912.00582): JSON lines with `sentence_good`, `sentence_bad`, `UID` (the paradigm)
and `field`. Zorro (Huebner et al. 2021, github.com/phueb/Zorro): a text file `phenomenon-paradigm.txt` for each
paradigm, in which lines 1, 3, … are ungrammatical and the line after each is its grammatical twin.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maskwright.config.pretraining import EngineSection
from maskwright.core import storage
from maskwright.core.console import several
from maskwright.core.errors import InputError, SourceError
from maskwright.tasks.measure.pseudo_likelihood import TokenScores, open_scorer, score_texts, speed
from maskwright.tasks.models.load import TrainedModel
from maskwright.text.compression import ending
from maskwright.text.dedup import is_held_out, text_key
from maskwright.text.encoder import TokenizersEncoder
from maskwright.text.lines import numbered_lines
from maskwright.text.tables import JSON_LINES, open_table

KEYS = ("sentence_good", "sentence_bad")
LAYOUTS = "give BLiMP's .jsonl files or Zorro's .txt files, each also .gz, .zst, .xz or .bz2"


@dataclass(frozen=True)
class Pair:
    """Two sentences that differ in one thing."""

    good: str
    bad: str
    paradigm: str
    field: str
    """BLiMP's field, Zorro's phenomenon; empty if the file names none."""
    where: str
    """`file:line`."""


@dataclass(frozen=True)
class Accuracy:
    """Shares of pairs whose grammatical sentence has the higher score; a tie counts one half."""

    name: str
    field: str
    pairs: int
    sums: float
    """Scores are sums of the log-probabilities."""
    means: float
    """Scores are means of the log-probabilities of a sentence's tokens."""
    shorter: float
    """The same share if the sentence with fewer tokens always scored higher, as sums favour it."""


@dataclass(frozen=True)
class Blimp:
    """Accuracies on minimal pairs. `overall` and `fields` are means over paradigms, each of which counts the same, as
    in published figures."""

    model: str
    data: str
    share: float
    overall: Accuracy
    fields: list[Accuracy]
    paradigms: list[Accuracy]
    identical: list[str]
    """Pairs that were left out because their sentences are equal, as `paradigm (file:line)`."""
    tokens: int
    """Tokens of all different sentences."""
    positions: int
    """Computed positions of the masked copies."""
    seconds: float

    def report(self) -> str:
        part = f", a fixed share of {self.share:g}" if self.share < 1.0 else ""
        fields = self.fields if self.fields[0].name else []
        named = ["paradigm", *(row.name for row in self.paradigms), "all"]
        width = max(map(len, named)) + 2
        head = f"{'pairs':>8}{'sums':>9}{'means':>9}{'shorter':>10}"
        paradigms = several(len(self.paradigms), "paradigm")
        lines = [
            f"{self.model} on {self.data}{part}: {self.overall.pairs:,} pairs of {paradigms}",
            "",
            f"{'paradigm':{width}}{head}",
            *(_line(row, width) for row in self.paradigms),
            "",
            f"{'field' if fields else '':{width}}{head}",
            *(_line(row, width) for row in [*fields, self.overall]),
            "",
            "sums, means: share of pairs whose grammatical sentence has the higher log-probability, as a sum over its",
            "tokens or for each token; a tie counts one half. shorter: the same for the sentence with fewer tokens.",
        ]
        if self.identical:
            lines.append(f"left out, because both sentences are equal: {', '.join(self.identical)}")
        return "\n".join([*lines, speed(self.positions, self.seconds)])


def _line(row: Accuracy, width: int) -> str:
    return f"{row.name:{width}}{row.pairs:8,}{row.sums:9.2%}{row.means:9.2%}{row.shorter:10.2%}"


# ---- files ---------------------------------------------------------------------------------------------------------


def read_pairs(location: str) -> list[Pair]:
    """The pairs of a file, a folder or a glob. Raises `SourceError` with file and line, `InputError` if there are no
    pairs."""
    files = storage.expand([location])
    for kinds, read in ((JSON_LINES, _blimp_file), ((".txt",), _zorro_file)):
        if named := [name for name in files if ending(name) in kinds]:
            return [pair for name in named for pair in read(name)]
    raise InputError("holds no minimal pairs", where=location, fix=LAYOUTS)


def _blimp_file(name: str) -> Iterator[Pair]:
    with open_table(name) as table:
        for number, record in table.rows():
            where = f"{name}:{number}"
            if not all(str(record.get(key) or "").strip() for key in KEYS):
                raise SourceError(f"has no {' and '.join(KEYS)}", where=where, fix=LAYOUTS)
            # One paradigm of BLiMP writes syntax/semantics, the others of that field syntax_semantics.
            field = str(record.get("field") or "").replace("/", "_")
            good, bad = (str(record[key]) for key in KEYS)
            yield Pair(good, bad, str(record.get("UID") or _stem(name)), field, where)


def _zorro_file(name: str) -> Iterator[Pair]:
    lines = [(number, line.strip()) for number, line in numbered_lines(name) if line.strip()]
    if len(lines) % 2:
        what = f"has {len(lines):,} sentences, but needs an even number: each bad sentence is followed by its good twin"
        raise SourceError(what, where=f"{name}:{lines[-1][0]}", fix=LAYOUTS)
    stem = _stem(name)
    for (number, bad), (_, good) in zip(lines[::2], lines[1::2], strict=True):
        yield Pair(good, bad, stem, stem.rpartition("-")[0], f"{name}:{number}")


def _stem(name: str) -> str:
    base = os.path.basename(storage.without_query(name))
    return base[: base.lower().rindex(ending(name))]


def is_in_share(pair: Pair, share: float) -> bool:
    """Whether the pair is in the share, by a hash of the pair alone: 0.1 is always the same tenth, and inside 0.2."""
    return is_held_out(text_key(f"{pair.paradigm}\n{pair.good}\n{pair.bad}".encode()), share)


# ---- scores --------------------------------------------------------------------------------------------------------


def blimp(model: TrainedModel, location: str, *, share: float = 1.0, engine: EngineSection | None = None) -> Blimp:
    """Scores both sentences of each pair. Raises `InputError` or `SourceError` for files without pairs, and for a
    sentence that is too long for the model."""
    chosen = [pair for pair in read_pairs(location) if is_in_share(pair, share)]
    identical = [f"{pair.paradigm} ({pair.where})" for pair in chosen if pair.good == pair.bad]
    pairs = [pair for pair in chosen if pair.good != pair.bad]
    if not pairs:
        raise InputError(f"a share of {share:g} holds no pair", where=location, fix="give a larger --share")
    scorer = open_scorer(model, engine)
    # A sentence that occurs twice is scored once: faster, and equal sentences have equal scores to the last bit.
    sentences = list(dict.fromkeys(text for pair in pairs for text in (pair.good, pair.bad)))
    ids, lengths = TokenizersEncoder(model.tokenizer_folder).encode(sentences)
    number = {text: index for index, text in enumerate(sentences)}
    good, bad = (np.array([number[getattr(pair, side)] for pair in pairs]) for side in ("good", "bad"))
    shortest = np.minimum(lengths[good], lengths[bad])
    if not shortest.min():
        what = "has a sentence without a token of the model's tokenizer"
        raise SourceError(what, where=pairs[int(shortest.argmin())].where, fix="leave the pair out")
    longest = np.maximum(lengths[good], lengths[bad])
    if longest.max() + 2 > model.config.max_seq_len:
        what = f"has a sentence of {longest.max()} tokens, but {model.location} reads {model.config.max_seq_len - 2}"
        raise InputError(what, where=pairs[int(longest.argmax())].where, fix="leave the pair out, or use another model")
    scores = score_texts(scorer, model.vocabulary, ids, lengths)
    paradigms = _by_paradigm(pairs, _compared(scores, lengths, good, bad))
    names = dict.fromkeys(row.field for row in paradigms)
    fields = [_mean(name, [row for row in paradigms if row.field == name]) for name in names]
    return Blimp(
        model=model.location,
        data=location,
        share=share,
        overall=_mean("all", paradigms),
        fields=fields,
        paradigms=paradigms,
        identical=identical,
        tokens=int(lengths.sum()),
        positions=scores.positions,
        seconds=scores.seconds,
    )


def _compared(
    scores: TokenScores, lengths: NDArray[np.int64], good: NDArray[np.int64], bad: NDArray[np.int64]
) -> NDArray[np.float64]:
    """[3, pairs]: 1, 1/2 or 0 by sums, by means, and by the lower number of tokens."""
    measures = np.stack([scores.sums, scores.sums / lengths, -lengths])
    return (np.sign(measures[:, good] - measures[:, bad]) + 1.0) / 2.0


def _by_paradigm(pairs: list[Pair], right: NDArray[np.float64]) -> list[Accuracy]:
    fields = {pair.paradigm: pair.field for pair in pairs}
    paradigm = np.array([pair.paradigm for pair in pairs])
    rows = []
    for name in sorted(fields, key=lambda name: (fields[name], name)):
        chosen = paradigm == name
        rows.append(Accuracy(name, fields[name], int(chosen.sum()), *right[:, chosen].mean(1).tolist()))
    return rows


def _mean(name: str, rows: list[Accuracy]) -> Accuracy:
    means = np.mean([[row.sums, row.means, row.shorter] for row in rows], axis=0)
    return Accuracy(name, name if name != "all" else "", sum(row.pairs for row in rows), *means.tolist())
