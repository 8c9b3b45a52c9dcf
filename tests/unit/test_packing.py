import itertools

import numpy as np
import pytest
from drawn import cases
from hypothesis import given
from hypothesis import strategies as st
from reference import oracles

from maskwright.core.errors import StoreError
from maskwright.data.order import order
from maskwright.data.packing import best_fit, plan, plan_documents


@given(st.integers(3, 70), st.data())
@cases(80)
def test_best_fit_equals_slow_twin(capacity, data):
    sizes = np.array(data.draw(st.lists(st.integers(1, capacity), min_size=1, max_size=120)))
    items, first = best_fit(sizes, capacity)
    assert sorted(items.tolist()) == list(range(len(sizes)))
    rows = [sorted(sizes[items[a:b]].tolist()) for a, b in itertools.pairwise(first)]
    expected = oracles.best_fit_rows(sizes.tolist(), capacity)
    # Rows with equal room are interchangeable, so the twins may fill either; the rows' fill is what must agree.
    assert sorted(map(sum, rows)) == sorted(map(sum, expected))
    assert all(sum(row) <= capacity for row in rows)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=60), st.integers(3, 70))
@cases(60)
def test_documents_are_cut_into_chunks_that_cover_each_token_once(sizes, seq_len):
    ends = np.cumsum(sizes)
    planned = plan_documents(ends, seq_len)
    pieces = planned.all_pieces()
    covered = np.concatenate([np.arange(s, s + n) for s, n in zip(pieces.start, pieces.length, strict=True)])
    assert np.array_equal(np.sort(covered), np.arange(ends[-1]))
    assert planned.totals() == (ends[-1], 2 * len(pieces.start))
    assert pieces.length.max() <= seq_len - 2
    document_of = np.searchsorted(ends, [pieces.start, pieces.start + pieces.length - 1], side="right")
    assert (document_of[0] == document_of[1]).all()


def test_full_sentences_needs_sentences():
    with pytest.raises(StoreError, match="no sentence ends"):
        plan(np.array([10]), None, 16, "full_sentences")


def rows_one_by_one(documents, sentences, seq_len):
    """Rows of (start, length, number of `</s>` after)."""
    units = []
    separators, begin = documents[:-1].tolist(), 0
    for end in sentences.tolist():
        while end - begin > seq_len - 2:
            units.append((begin, seq_len - 2, 0))
            begin += seq_len - 2
        units.append((begin, end - begin, 1))
        begin = end
        while separators and separators[0] <= end:
            units.append((separators.pop(0), 0, 1))
    rows = [[]]
    for unit in units:
        if sum(length + eos for _, length, eos in [*rows[-1], unit]) > seq_len - 1:
            rows.append([])
        rows[-1].append(unit)
    return rows


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 3, 7, 8, 9, 40]), st.booleans()), min_size=1, max_size=60),
    st.integers(4, 40),
)
@cases(150)
def test_full_sentences_equal_slow_twin(made, seq_len):
    """Sentences of any size, some empty and some longer than a row; behind some, a document ends."""
    sentences = np.cumsum([size for size, _ in made])
    documents = np.append(sentences[:-1][[ends for _, ends in made[:-1]]], sentences[-1])
    planned = plan(documents, sentences, seq_len, "full_sentences")
    pieces = planned.all_pieces()
    units = [*zip(pieces.start.tolist(), pieces.length.tolist(), pieces.eos.tolist(), strict=True)]
    assert [units[a:b] for a, b in itertools.pairwise(planned.first.tolist())] == rows_one_by_one(
        documents, sentences, seq_len
    )
    assert np.flatnonzero(pieces.bos).tolist() == planned.first[:-1].tolist()
    assert planned.totals() == (sentences[-1], planned.rows + int(pieces.eos.sum()))
    some = np.random.default_rng(0).integers(0, planned.rows, 7)
    alone = [planned.pieces(np.array([row])) for row in some]
    for one, wanted in zip(planned.pieces(some), zip(*alone, strict=True), strict=True):
        assert np.array_equal(one, np.concatenate(wanted))


SEEDS, EPOCHS = st.integers(0, 2**40), st.integers(0, 99)


@given(st.integers(1, 5_000), SEEDS, EPOCHS)
@cases(60)
def test_order_visits_every_row_once(size, seed, epoch):
    assert sorted(order(seed, epoch, np.arange(size), size).tolist()) == [*range(size)]


@given(st.integers(1, 2**30), SEEDS, EPOCHS, st.data())
@cases(60)
def test_order_equals_slow_twin(size, seed, epoch, data):
    index = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=9))
    assert order(seed, epoch, np.array(index), size).tolist() == [oracles.order(seed, epoch, i, size) for i in index]


def test_order_differs_between_epochs_and_seeds_and_looks_random():
    index = np.arange(10_000)
    first = order(0, 0, index, 10_000)
    for other in (order(0, 1, index, 10_000), order(1, 0, index, 10_000)):
        assert (first == other).mean() < 0.01
    assert abs(np.corrcoef(index, first)[0, 1]) < 0.05
    with pytest.raises(ValueError):
        order(0, 0, np.array([5]), 5)
