import numpy as np
import pytest
from reference import oracles

from maskwright.data.order import order


@pytest.mark.parametrize("size", [1, 2, 3, 5, 17, 256, 1000, 4097])
def test_order_visits_every_row_once(size: int) -> None:
    rows = order(seed=3, epoch=1, index=np.arange(size), size=size)
    assert sorted(rows.tolist()) == list(range(size))


@pytest.mark.parametrize("size", [1, 7, 100, 12_345_678])
def test_order_equals_slow_twin(size: int) -> None:
    index = np.unique(np.random.default_rng(size).integers(0, size, 50))
    for seed, epoch in ((0, 0), (2**40, 7)):
        expected = [oracles.order(seed, epoch, int(i), size) for i in index]
        assert order(seed, epoch, index, size).tolist() == expected


def test_order_differs_between_epochs_and_seeds_and_looks_random() -> None:
    index = np.arange(10_000)
    first = order(0, 0, index, 10_000)
    for other in (order(0, 1, index, 10_000), order(1, 0, index, 10_000)):
        assert (first == other).mean() < 0.01
    assert abs(np.corrcoef(index, first)[0, 1]) < 0.05


def test_order_outside_the_epoch_is_refused() -> None:
    with pytest.raises(ValueError):
        order(0, 0, np.array([5]), 5)
