"""The pairs of a question and a passage in each update of a training for search."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maskwright.config.retrieval import RetrievalConfig
from maskwright.data import bits
from maskwright.labels.retrieval import Collection, Query

ORDER_PURPOSE, NEGATIVES_PURPOSE = 19, 20
LOOKED_AT = 8
"""Pairs that an update may skip for each that it may hold, which bounds the search for fitting pairs."""
NONE = -1
Update = NDArray[np.int64]
"""[pairs, 3]: indices of a question of the training split, of a passage that answers it, and a passage that does not
(`NONE` without such a judgement)."""


def planned_updates(collection: Collection, config: RetrievalConfig) -> list[Update]:
    """All updates of a training, as a function of the seed. Every passage of an update is a wrong answer to all
    questions but its own, so no update holds a question twice, or a passage that answers another of its questions.
    Updates are smaller than `batch.examples` if too few compatible questions are left. Each epoch uses every pair
    once."""
    pairs = _Pairs(collection, config.seed)
    steps, epochs = config.schedule.steps, config.schedule.epochs or 3.0
    updates: list[Update] = []
    seen = epoch = 0
    while True:
        for update in pairs.epoch(epoch, config.batch.examples):
            updates.append(update)
            seen += len(update)
            if len(updates) == steps or (steps is None and seen >= epochs * collection.pairs):
                return updates
        epoch += 1


@dataclass
class _Together:
    """The content of an update so far; the first of equal texts stands for all."""

    questions: set[str]
    passages: set[int]
    answers: set[int]
    """Passages that answer one of its questions."""


class _Pairs:
    def __init__(self, collection: Collection, seed: int) -> None:
        self._collection, self._seed = collection, seed
        first: dict[str, int] = {}
        self._first = [first.setdefault(text, number) for number, text in enumerate(collection.passages)]
        no_wrong = [[*query.relevant, *([] if query.own is None else [query.own])] for query in collection.train]
        self._answers = [{self._first[passage] for passage in passages} for passages in no_wrong]
        self._wrong = [[passage for passage, grade in query.grades.items() if grade <= 0] for query in collection.train]
        self._has_wrong = any(self._wrong)
        self._all = [(number, passage) for number, query in enumerate(collection.train) for passage in query.relevant]
        self._turns = [0] * len(collection.train)

    def epoch(self, epoch: int, examples: int) -> Iterator[Update]:
        keys = bits.extend(bits.key(self._seed, ORDER_PURPOSE, epoch), np.arange(len(self._all), dtype=np.uint64))
        order = np.argsort(keys, kind="stable").tolist()
        waiting = deque(
            (*self._all[number], self._wrong_answer(self._all[number][0], epoch, number)) for number in order
        )
        while waiting:
            yield self._next(waiting, examples)

    def _next(self, waiting: deque[tuple[int, int, int]], examples: int) -> Update:
        together = _Together(set(), set(), set())
        chosen: list[tuple[int, int, int]] = []
        passed: list[tuple[int, int, int]] = []
        while waiting and len(chosen) < examples and len(passed) < LOOKED_AT * examples:
            pair = waiting.popleft()
            (chosen if self._joins(pair, together) else passed).append(pair)
        waiting.extendleft(reversed(passed))
        return np.array(chosen, np.int64)

    def _joins(self, pair: tuple[int, int, int], together: _Together) -> bool:
        """Adds the pair to the others if it is compatible."""
        number, *passages = pair
        text, answers = self._collection.train[number].text, self._answers[number]
        firsts = {self._first[passage] for passage in passages if passage != NONE}
        if text in together.questions or firsts & (together.answers | together.passages) or answers & together.passages:
            return False
        together.questions.add(text)
        together.passages |= firsts
        together.answers |= answers
        return True

    def _wrong_answer(self, number: int, epoch: int, pair: int) -> int:
        """One of the question's own hard negatives, in turn over all epochs. A question without one gets a random
        passage if others have some."""
        own = self._wrong[number]
        if own:
            self._turns[number] += 1
            return own[(self._turns[number] - 1) % len(own)]
        if not self._has_wrong:
            return NONE
        keys = bits.extend(bits.key(self._seed, NEGATIVES_PURPOSE, epoch, pair), np.arange(100, dtype=np.uint64))
        drawn = (bits.uniform(keys) * len(self._first)).astype(int).tolist()
        return next((other for other in drawn if self._first[other] not in self._answers[number]), drawn[0])


def texts_of(queries: Sequence[Query], passages: Sequence[str], pairs: Update) -> dict[str, list[str]]:
    """The columns that sentence-transformers trains on. `pairs` may lack its third column."""
    columns = {"question": [queries[number].text for number in pairs[:, 0]]}
    columns["passage"] = [passages[number] for number in pairs[:, 1]]
    if pairs.shape[1] > 2:
        columns["negative"] = [passages[number] for number in pairs[:, 2]]
    return columns
