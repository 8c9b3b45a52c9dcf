import numpy as np
import pytest
from reference import oracles

from maskwright.core.errors import StoreError
from maskwright.data.packing import best_fit, plan, plan_documents


@pytest.mark.parametrize("seed", range(6))
def test_best_fit_equals_slow_twin(seed: int) -> None:
    generator = np.random.default_rng(seed)
    capacity = int(generator.integers(8, 70))
    sizes = generator.integers(3, capacity + 1, int(generator.integers(1, 400)))
    items, first = best_fit(sizes, capacity)
    assert sorted(items.tolist()) == list(range(len(sizes)))
    rows = [sorted(sizes[items[a:b]].tolist()) for a, b in zip(first[:-1], first[1:], strict=True)]
    expected = oracles.best_fit_rows(sizes.tolist(), capacity)
    # Rows with equal room are interchangeable, so the twins may fill either; the rows' fill is what must agree.
    assert sorted(map(sum, rows)) == sorted(map(sum, expected))
    assert all(sum(row) <= capacity for row in rows)


def test_best_fit_leaves_little_room() -> None:
    sizes = np.clip(np.random.default_rng(0).geometric(0.01, 50_000), 3, 512)
    _, first = best_fit(sizes, 512)
    assert 1 - sizes.sum() / ((len(first) - 1) * 512) < 0.005


def test_documents_are_cut_into_chunks_that_cover_each_token_once() -> None:
    ends = np.cumsum(np.random.default_rng(1).integers(1, 200, 500))
    layout = plan_documents(ends, 64)
    covered = np.concatenate([np.arange(s, s + n) for s, n in zip(layout.start, layout.length, strict=True)])
    assert np.array_equal(np.sort(covered), np.arange(ends[-1]))
    assert layout.length.max() <= 62
    document_of = np.searchsorted(ends, [layout.start, layout.start + layout.length - 1], side="right")
    assert (document_of[0] == document_of[1]).all()


def test_full_sentences_needs_sentences() -> None:
    with pytest.raises(StoreError, match="no sentence ends"):
        plan(np.array([10]), None, 16, "full_sentences")
