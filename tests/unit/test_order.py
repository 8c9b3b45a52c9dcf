import numpy as np
import pytest
from drawn import cases
from hypothesis import given
from hypothesis import strategies as st
from reference import oracles

from maskwright.data.order import order

SEEDS, EPOCHS = st.integers(0, 2**40), st.integers(0, 99)


@given(st.integers(1, 5_000), SEEDS, EPOCHS)
@cases(60)
def test_order_visits_every_row_once(size: int, seed: int, epoch: int) -> None:
    assert sorted(order(seed, epoch, np.arange(size), size).tolist()) == [*range(size)]


@given(st.integers(1, 2**30), SEEDS, EPOCHS, st.data())
@cases(60)
def test_order_equals_slow_twin(size: int, seed: int, epoch: int, data: st.DataObject) -> None:
    index = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=9))
    assert order(seed, epoch, np.array(index), size).tolist() == [oracles.order(seed, epoch, i, size) for i in index]


def test_order_differs_between_epochs_and_seeds_and_looks_random() -> None:
    index = np.arange(10_000)
    first = order(0, 0, index, 10_000)
    for other in (order(0, 1, index, 10_000), order(1, 0, index, 10_000)):
        assert (first == other).mean() < 0.01
    assert abs(np.corrcoef(index, first)[0, 1]) < 0.05
    with pytest.raises(ValueError):
        order(0, 0, np.array([5]), 5)
