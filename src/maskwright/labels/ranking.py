"""Metrics of rankings of passages, question by question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.config.retrieval import RetrievalMetric
from maskwright.labels.retrieval import Query

DEEPEST = 100
"""Positions of a ranking that a metric reads. One more is ranked, since a question's own passage is left out."""
AT_ONCE = 64
"""Questions whose scores for all passages are held at a time."""
Rankings = NDArray[np.int64]
"""[questions, places]: indices of passages, the best first; -1 for none."""


def ranked(queries: int, scores: Callable[[slice], NDArray[Any]], above: float = -np.inf) -> Rankings:
    """The `DEEPEST` + 1 best passages of each question. `scores`: of some questions for all passages, [questions,
    passages]; `AT_ONCE` questions are held at a time. Of equal scores, the earlier passage comes first. A passage
    whose score is not `above` was not found: its place holds -1."""
    some = (slice(start, start + AT_ONCE) for start in range(0, queries, AT_ONCE))
    return np.stack([_best(scores_P, above) for part in some for scores_P in scores(part)])


def _best(scores_P: NDArray[Any], above: float) -> NDArray[np.int64]:
    """The best passages of one question. Only those that may be among them are sorted."""
    candidates = np.arange(len(scores_P))
    most = DEEPEST + 1
    if len(scores_P) > most:
        least = np.partition(scores_P, -most)[-most]
        better = np.flatnonzero(scores_P > least)
        candidates = np.concatenate([better, np.flatnonzero(scores_P == least)[: most - len(better)]])
    order = candidates[np.argsort(-scores_P[candidates], kind="stable")]
    return np.where(scores_P[order] > above, order, -1)


def score_rankings(queries: Sequence[Query], rankings: Rankings) -> dict[RetrievalMetric, list[float]]:
    """Each metric, question by question: 1 is best.

    ndcg@10: the passages' scores, each divided by log2(1 + its place), over the same sum for the best possible ranking
    (Järvelin and Kekäläinen 2002, doi 10.1145/582415.582418; gains are the scores themselves, as in trec_eval).
    recall@100: the share of the passages with a score above 0 that is among the first 100.
    mrr@10: 1 / the place of the first of them, or 0 after place 10."""
    scores: dict[RetrievalMetric, list[float]] = {"ndcg@10": [], "recall@100": [], "mrr@10": []}
    discounts = 1.0 / np.log2(np.arange(2, 12))
    for query, ranking in zip(queries, rankings.tolist(), strict=True):
        relevant = query.relevant
        ranking = [passage for passage in ranking if passage != query.own][:DEEPEST]
        gains = np.array([relevant.get(passage, 0) for passage in ranking], np.float64)
        ideal = np.array(sorted(relevant.values(), reverse=True)[:10], np.float64)
        scores["ndcg@10"].append(float(gains[:10] @ discounts[: len(gains[:10])] / (ideal @ discounts[: len(ideal)])))
        scores["recall@100"].append(float((gains > 0).sum() / len(relevant)))
        places = np.flatnonzero(gains[:10])
        scores["mrr@10"].append(float(1.0 / (1 + places[0])) if len(places) else 0.0)
    return scores


def record_of_scores(queries: Sequence[Query], rankings: Rankings) -> tuple[dict[str, Any], dict[str, Any]]:
    """The scores of a split for a run's results and its predictions: means, and the score of each question."""
    scores = score_rankings(queries, rankings)
    means: dict[str, float] = {metric: float(np.mean(values)) for metric, values in scores.items()}
    where = [query.where for query in queries]
    return {"examples": len(queries), **means}, {"outcomes": scores, "where": where}
