"""Retrieval as a task of a comparison, and its arms without a transformer: BM25, and TF-IDF of words and characters.

Neither learns from judgements, and neither is random: the seed only decides which questions are held out."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.config.retrieval import RetrievalConfig
from maskwright.core import storage
from maskwright.labels.ranking import ranked, record_of_scores
from maskwright.labels.retrieval import Collection, Query, read_collection
from maskwright.run.directory import RESULTS, RunDirectory
from maskwright.tasks.compare.arms import BM25, ArmTraining
from maskwright.tasks.compare.linear import WORD, TextFeatures

K1, B = 1.5, 0.75
"""How soon a word's repetitions stop counting, and how much a passage's length counts: the defaults of `bm25s`."""
SETTINGS = {"k1": K1, "b": B, "word": WORD}
"""The settings that decide the numbers of BM25, except the texts."""


@dataclass(frozen=True)
class RetrievalTask:
    name: str
    location: str
    """The name of its YAML."""
    config: RetrievalConfig
    """The configuration of the first arm with a model."""
    collection: Collection
    arms: dict[str, ArmTraining]
    """By arm, except arms without a transformer."""

    @property
    def metric(self) -> str:
        return self.config.evaluation.metric

    @property
    def fingerprint(self) -> str:
        return self.collection.fingerprint


def read_retrieval_task(name: str, location: str, config: RetrievalConfig, longest: dict[str, int]) -> RetrievalTask:
    """`longest`: by arm, the tokens that its model reads."""
    collection = read_collection(config.data, config.seed)
    arms = {
        arm: ArmTraining(config.schedule.steps, min(config.data.max_seq_len, tokens)) for arm, tokens in longest.items()
    }
    return RetrievalTask(name, location, config, collection, arms)


Scorer = Callable[[list[Query]], Callable[[slice], NDArray[Any]]]
"""Questions -> a function that scores some of them for all passages."""


class LexicalRuns:
    """The runs of one arm without a transformer on one task, made one after the other with one index."""

    def __init__(self, task: RetrievalTask, arm: str) -> None:
        self._task, self._arm = task, arm
        self._scorer: Scorer | None = None

    def make(self, folder: str, *, seed: int, search: bool) -> None:
        """Writes the scores of one run as a fine-tuned model does. A `search` reads no test set."""
        began = time.monotonic()
        data = self._task.config.data
        collection = read_collection(data.model_copy(update={"test": None}) if search else data, seed)
        if self._scorer is None:
            self._scorer = (_bm25 if self._arm == BM25 else _tf_idf)(collection.passages)
        storage.make_folder(folder)
        directory = RunDirectory(folder)
        results: dict[str, Any] = {"fault": ""}
        for split in ("validation",) if search else ("validation", "test"):
            queries: list[Query] = getattr(collection, split)
            results[split], predictions = record_of_scores(
                queries, ranked(len(queries), self._scorer(queries), above=0.0)
            )
            storage.write_json(directory.path(f"predictions-{split}.json"), predictions)
        with open(f"{folder}.log", "a", encoding="utf-8") as log:
            log.write(f"{len(collection.passages):,} passages: {time.monotonic() - began:.2f} s\n")
        storage.write_json(directory.path(RESULTS), results)


def _bm25(passages: list[str]) -> Scorer:
    """BM25 in Lucene's variant (Kamphuis et al. 2020, doi 10.1007/978-3-030-45442-5_4), by the package bm25s: words in
    lower case, no stemming, no stop words, so that it works in any language with spaces."""
    with _without_jax():
        from bm25s import BM25 as Index
    index = Index(k1=K1, b=B, method="lucene")
    index.index([_words(passage) for passage in passages], show_progress=False)

    def scorer(queries: list[Query]) -> Callable[[slice], NDArray[Any]]:
        return lambda some: np.stack([index.get_scores(_words(query.text)) for query in queries[some]])

    return scorer


@contextmanager
def _without_jax() -> Iterator[None]:
    """bm25s starts JAX when it is imported, which would occupy most of a GPU's memory, or a whole TPU, that the
    trainings of this process need."""
    if "jax" in sys.modules:
        yield
        return
    sys.modules["jax"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["jax"]


def _words(text: str) -> list[str]:
    return re.findall(WORD, text.lower())


def _tf_idf(passages: list[str]) -> Scorer:
    """The cosine of two texts in the features of the linear model, with the document frequencies of the passages."""
    features = TextFeatures(passages)
    of_passages = features.of_texts(passages)

    def scorer(queries: list[Query]) -> Callable[[slice], NDArray[Any]]:
        of_queries = features.of_texts([query.text for query in queries])
        return lambda some: (of_queries[some] @ of_passages.T).toarray()

    return scorer
