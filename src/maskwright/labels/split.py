"""Stratified shares of the training split: one held out for validation, and a smaller one to train on.

The choice depends on the seed and the texts alone, by keyed random numbers over their hash. So the order of lines and
the number of files do not matter, texts that are equal but for case, white space and punctuation stay on one side (no
validation text is trained on), and a smaller share lies inside every larger one. A shuffle by index would guarantee
none of this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from maskwright.config.finetuning import Task
from maskwright.core.console import several
from maskwright.core.errors import InputError
from maskwright.data import bits
from maskwright.labels.example import Example, folded
from maskwright.text.dedup import text_key

HOLD_OUT_PURPOSE, FRACTION_PURPOSE = 16, 17
QUANTILES = 10
"""Strata of a regression: tenths of the training labels."""


def hold_out(examples: Sequence[Example], task: Task, seed: int, share: float) -> tuple[list[Example], list[Example]]:
    """(train, validation), both in the order of `examples`. Each label keeps a training example.

    Raises `InputError` for a share of no example.
    """
    units = _units(examples, task, seed, HOLD_OUT_PURPOSE)
    taken = _chosen(units, share, from_the_end=True) & ~units.first_of_a_label
    chosen = taken[units.of_example]
    if not chosen.any():
        if len(examples) == 1 and (words := len(examples[0].words)):
            what, fix = f"holds one sentence of {words:,} words", "put a blank line after each sentence"
            raise InputError(f"{what}, so none can be held out for validation", where=examples[0].where, fix=fix)
        different = len(units.sizes)
        what = f"too few training examples ({len(examples)}) to hold out {share:g} of them for validation"
        where, fix = "data.validation_fraction", "raise it, give more examples, or name a file under data.validation"
        if different <= len(examples) / 2:
            shared = "context" if task.kind == "question_answering" else "text"
            part, same, key = several(different, f"different {shared}"), "equal ones", "data.text"
            if examples[0].group:
                part, same, key = several(different, "part"), "those that share a text or a group", "data.group"
            what = f"{len(examples)} training examples have only {part}; {same} stay on one side, so none is held out"
            where, fix = examples[0].where, f"check {key}, or name a file under data.validation"
        raise InputError(what, where=where, fix=fix)
    train = [example for example, is_out in zip(examples, chosen, strict=True) if not is_out]
    return train, [example for example, is_out in zip(examples, chosen, strict=True) if is_out]


def take_fraction(examples: Sequence[Example], task: Task, seed: int, fraction: float) -> list[Example]:
    """A share of each label's examples, in the order of `examples`, with at least one of each label."""
    if fraction == 1.0:
        return list(examples)
    units = _units(examples, task, seed, FRACTION_PURPOSE)
    chosen = (_chosen(units, fraction) | units.first_of_a_label)[units.of_example]
    return [example for example, is_taken in zip(examples, chosen, strict=True) if is_taken]


@dataclass(frozen=True)
class _Units:
    """Parts that are chosen or left as a whole: examples with one text or of one `data.group`, or questions about one
    context."""

    of_example: NDArray[np.int64]
    sizes: NDArray[np.int64]
    strata: NDArray[np.int64]
    """The rarest label in each unit, so that rare labels get their share in multi-label and tagged texts too. All are
    in one stratum with `data.group`, since one group may be more than the share of several labels."""
    order: NDArray[np.int64]
    """The units in their random order; groups that are the first of a label come first."""
    thresholds: dict[int, float]
    """By stratum, a number in [0, 1) that rounds its share up or down: unbiased, and monotonic in the share."""
    first_of_a_label: NDArray[np.bool_]
    """Whether a unit is the first in that order with one of its labels."""


def _units(examples: Sequence[Example], task: Task, seed: int, purpose: int) -> _Units:
    of_part: dict[int, int] = {}
    parts = _parts(examples, task)
    for part, example in zip(parts, examples, strict=True):
        value = _hash(example, task)
        of_part[part] = min(value, of_part.get(part, value))
    hashes = np.array([of_part[part] for part in parts], np.uint64)
    keys, of_example = np.unique(hashes, return_inverse=True)
    marks: list[set[int]] = [set() for _ in keys]
    for unit, marks_of_example in zip(of_example, _marks(examples, task), strict=True):
        marks[unit] |= marks_of_example
    frequency = Counter(chain.from_iterable(marks))
    strata = np.array([min(unit, key=lambda mark: (frequency[mark], mark), default=-1) for unit in marks], np.int64)
    order = np.argsort(bits.extend(bits.key(seed, purpose, 0), keys), kind="stable")
    is_first, seen_marks = np.zeros(len(keys), np.bool_), set[int]()
    for unit in order:
        is_first[unit] = not marks[unit] <= seen_marks
        seen_marks |= marks[unit]
    if examples[0].group:
        strata[:], order = 0, order[np.argsort(~is_first[order], kind="stable")]
    stratum_idx = np.unique(strata)
    draws = bits.uniform(bits.extend(bits.key(seed, purpose, 1), (stratum_idx + 1).astype(np.uint64)))
    thresholds = dict(zip(stratum_idx.tolist(), draws.tolist(), strict=True))
    return _Units(of_example, np.bincount(of_example), strata, order, thresholds, is_first)


def _chosen(units: _Units, share: float, *, from_the_end: bool = False) -> NDArray[np.bool_]:
    """[units]: whether each is chosen. In each stratum, units are chosen in the random order, or in its reverse, until
    they hold its share of examples."""
    chosen = np.zeros(len(units.sizes), np.bool_)
    order = units.order[::-1] if from_the_end else units.order
    for stratum, threshold in units.thresholds.items():
        members = order[units.strata[order] == stratum]
        sizes = units.sizes[members]
        before = np.cumsum(sizes) - sizes
        chosen[members] = before < np.floor(sizes.sum() * share + threshold)
    return chosen


def _parts(examples: Sequence[Example], task: Task) -> list[int]:
    """[examples]: the same number for examples that share a text or a group, also through others."""
    texts, above = [key_of(_folded(example, task)) for example in examples], dict[int, int]()

    def top(part: int) -> int:
        while part in above:
            above[part] = part = above.get(above[part], above[part])  # halves the way, which a common text makes long
        return part

    for text, example in zip(texts, examples, strict=True):
        if example.group and (one := top(text)) != (other := top(key_of(f"group\0{example.group}"))):
            above[one] = other
    return [top(text) for text in texts]


def _folded(example: Example, task: Task) -> str:
    """What examples share that stay together: the text, or a question's context, so that no answer to another question
    about it is trained on."""
    return folded(example.text_pair or "") if task.kind == "question_answering" else example.folded


def _hash(example: Example, task: Task) -> int:
    content = " ".join((example.text_pair or "").split()) if task.kind == "question_answering" else example.content
    return key_of(content)


def key_of(content: str) -> int:
    """64 bits of a text's hash, by which a share is drawn."""
    return int.from_bytes(text_key(content.encode())[:8], "little")


def _marks(examples: Sequence[Example], task: Task) -> list[set[int]]:
    """[examples]: properties to stratify by: labels, tenths of the values, or whether there is an answer."""
    if task.kind == "regression":
        values = np.array([example.value for example in examples])
        edges = np.quantile(values, np.arange(1, QUANTILES) / QUANTILES)
        return [{int(tenth)} for tenth in np.searchsorted(edges, values)]
    if task.kind == "question_answering":
        return [{int(bool(example.answers))} for example in examples]
    names = sorted({name for example in examples for name in example.labels})
    index_of = {name: index for index, name in enumerate(names)}
    return [{index_of[name] for name in example.labels} for example in examples]
