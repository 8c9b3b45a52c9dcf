"""Mixtures of stores: which source each row is from, beside a twin that counts row by row."""

import re

import numpy as np
import pytest
from conftest import documents, prepared, small_config
from drawn import cases
from hypothesis import example, given
from hypothesis import strategies as st

from maskwright.core.errors import ConfigError, StoreError
from maskwright.data import mixing
from maskwright.data.loader import Loader
from maskwright.data.mixing import MixedOrder, counts_in_block, weights_by_size
from maskwright.data.opening import open_store
from maskwright.data.order import RowOrder, order
from maskwright.data.prepare.request import PrepareOptions
from maskwright.tasks.pretrain.prepare import prepare_run
from maskwright.text.sources import Sources

SEED = 3


def slow_mixture(sizes, weights, rows):
    """(source, its epoch, its row) of each row, with nothing but counters."""
    given, result = [0] * len(sizes), []
    counts = counts_in_block(np.array(weights)).tolist()
    for key in range(0, rows, mixing.BLOCK):
        for place in order(SEED ^ mixing.SEED_OF_BLOCKS, key, np.arange(mixing.BLOCK), mixing.BLOCK).tolist():
            source = next(number for number in range(len(counts)) if place < sum(counts[: number + 1]))
            epoch, index = divmod(given[source], sizes[source])
            row = int(order(SEED, epoch, np.array([index]), sizes[source])[0])
            result.append((source, epoch, row))
            given[source] += 1
    return result[:rows]


@given(st.lists(st.tuples(st.integers(1, 400), st.sampled_from([0.1, 0.3, 1.0, 3.0])), min_size=1, max_size=4))
@example([(50, 3.0), (13, 1.0)])
@cases(20)
def test_mixed_order_equals_slow_twin(sources):
    sizes, weights = (list(part) for part in zip(*sources, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixing, "BLOCK", 64)
        expected = slow_mixture(sizes, weights, 300)
        mixed = MixedOrder(SEED, weights, [RowOrder(SEED, size) for size in sizes])
        epochs, rows = mixed.at(np.arange(len(expected)))
        first = np.cumsum(sizes) - sizes
        assert [(e, r) for e, r in zip(epochs.tolist(), rows.tolist(), strict=True)] == [
            (epoch, first[source] + row) for source, epoch, row in expected
        ]
        some = np.random.default_rng(0).permutation(len(expected))[:50]  # any rows, in any order
        assert np.array_equal(mixed.at(some)[1], rows[some])
        assert np.array_equal(mixed.at(np.arange(40, 300))[1], rows[40:])  # after a look at later ones
        for count in (0, 1, 63, 64, 65, 300):
            read = np.bincount([source for source, _, _ in expected[:count]], minlength=len(sizes))
            assert np.allclose(mixed.epochs(count), read / sizes)


def test_a_thread_gets_its_own_block():
    """Not another's, which the other writes into the cache at any moment: one prefetches, one logs the epoch."""

    class Shared(MixedOrder):
        def __setattr__(self, name, value):
            super().__setattr__(name, (value[0], *value[:0:-1]) if name == "_assigned" and value else value)

    alone, shared = (kind(SEED, [2, 1], [RowOrder(SEED, 50), RowOrder(SEED, 90)]) for kind in (MixedOrder, Shared))
    assert np.array_equal(shared.at(np.arange(99)), alone.at(np.arange(99)))


def test_weights_by_size():
    assert weights_by_size([300, 100], 1.0) == [0.75, 0.25]
    assert weights_by_size([300, 100], 0.0) == [0.5, 0.5]
    assert weights_by_size([1_000_000, 100], 0.5) == pytest.approx([1000 / 1010, 10 / 1010])
    with pytest.raises(ConfigError, match="a source has 1e-06 of the weight"):
        counts_in_block(np.array([1.0, 1e-6]))


@pytest.fixture(scope="module")
def second(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("second")
    text = "\n\n".join("\n".join(lines) for lines in documents(80, seed=7))
    (folder / "other.txt").write_text(text, encoding="utf-8")
    sources = Sources([str(folder / "other.txt")], layout="sentences")
    return prepared(sources, tokenizer, folder / "store", PrepareOptions(valid_fraction=0.1))


@pytest.fixture(scope="module")
def mixed(store, second):
    def config(first=None, other=None, **keys):
        sources = {"a": {"store": store.location} | (first or {}), "b": {"store": second.location} | (other or {})}
        return small_config(store.location, **{"data.store": None, "data.mixture": sources, **keys})

    return config


def loader(config):
    return Loader(config, open_store(config.data))


@pytest.mark.parametrize("packing", ["documents", "full_sentences"])
def test_rows_of_a_mixture_are_those_of_its_stores(packing, mixed, store, second):
    whole = loader(mixed({"weight": 1.0}, {"weight": 2.0}, **{"data.packing": packing}))
    alone = [loader(small_config(one.location, **{"data.packing": packing})) for one in (store, second)]
    sizes = [side.rows.totals.rows for side in alone]
    first, total = sizes[0], whole.rows.totals.rows
    assert total == sum(sizes)
    every = zip(*(side.rows.materialize(np.arange(size)) for side, size in zip(alone, sizes, strict=True)), strict=True)
    order = np.random.default_rng(0).permutation(total)
    for found, expected in zip(whole.rows.materialize(order), every, strict=True):
        assert np.array_equal(found, np.concatenate(expected)[order])
    for row in (first - 1, first, total - 1):
        side, own = (alone[0], row) if row < first else (alone[1], row - first)
        names = {open_store(side.config.data).origin("train", number) for number in side.rows.documents(own)}
        opened = open_store(whole.config.data)
        assert {opened.origin("train", number) for number in whole.rows.documents(row)} == names
    works = [side.rows.work(np.arange(3)) for side in alone]
    both = whole.rows.work(np.array([0, 1, 2, first, first + 1, first + 2]))
    assert both == tuple(one + two for one, two in zip(*works, strict=True))


def test_a_source_read_too_often_is_doubted_by_name(mixed):
    """The text as a whole is read 30 times, the second source far more often."""
    whole = loader(mixed({"weight": 1.0}, {"weight": 9.0}))
    steps = 30 * whole.rows.totals.rows // whole.config.rows_per_step
    first, *others = prepare_run(mixed({"weight": 1.0}, {"weight": 9.0}, **{"schedule.steps": steps})).warnings()
    assert re.match(r"the run reads b \d\d\d? times, and BERT read its own 40 .* or its weight$", first)
    assert not any("run reads" in line for line in others)
    found = prepare_run(mixed({"weight": 1.0}, {"weight": 1.0}, **{"schedule.steps": 9 * steps})).warnings()
    assert ", and 1 other above 40 times, and BERT" in found[0]


def test_colons_and_alpha(store, second, tmp_path):
    (tmp_path / "shard0").symlink_to(store.location)
    (tmp_path / "shard1").symlink_to(second.location)
    both = f"{tmp_path}/shard0:{tmp_path}/shard1"
    tokens = [one.manifest["splits"]["train"]["tokens"] for one in (store, second)]
    for alpha, expected in ((1.0, [count / sum(tokens) for count in tokens]), (0.0, [0.5, 0.5])):
        keys = {"data.store": None, "data.mixture": both, "data.mixture_alpha": alpha, "schedule.steps": 2000}
        names, shares, _ = zip(*loader(small_config("", **keys)).sources_read(2000), strict=True)
        assert names == ("shard0", "shard1") and shares == pytest.approx(expected, abs=0.02)
    with pytest.raises(ConfigError, match=r"2 folders have the name 'x'. Fix: name them"):
        small_config("", **{"data.store": None, "data.mixture": "a/x:b/x:c/x-0"})


@pytest.mark.parametrize(
    ("first", "other", "keys", "why"),
    [
        ({"weight": 0.0}, {"weight": 1.0}, {}, r"data.mixture.a.weight is 0.0. Fix: give a number > 0"),
        ({"weight": float("inf")}, {"weight": 1.0}, {}, "data.mixture.a.weight is inf"),
        ({"weight": 1.0}, {}, {}, "b has no weight, but others have"),
        ({"weight": 1.0}, {"weight": 1.0}, {"data.mixture_alpha": 0.5}, "the sources have weights"),
        ({}, {}, {"data.store": "x"}, "mixture replaces store"),
        ({"stor": "x"}, {}, {}, "stor"),
    ],
)
def test_mixtures_that_cannot_be_are_refused(first, other, keys, why, mixed):
    with pytest.raises(ConfigError, match=why):
        mixed(first, other, **keys)


def test_sources_that_do_not_fit_are_refused(mixed, tokenizer_of, tokenizer, tmp_path):
    (tmp_path / "few.txt").write_text("A dog saw stones.\n", encoding="utf-8")
    for name, folder in (("few", tokenizer), ("foreign", tokenizer_of("bert"))):
        prepared(tmp_path / "few.txt", folder, tmp_path / name, PrepareOptions(valid_fraction=0.0))
    with pytest.raises(StoreError, match="tokens to train on, but one row needs 30"):
        prepare_run(mixed({}, {"store": str(tmp_path / "few")}))
    with pytest.raises(StoreError, match="was made with another tokenizer"):
        prepare_run(mixed({}, {"store": str(tmp_path / "foreign")}))
    with pytest.raises(StoreError, match="is not a token store"):
        prepare_run(mixed({}, {"store": str(tmp_path / "none")}))
