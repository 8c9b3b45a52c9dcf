"""Mixtures of stores: which source each row is from, beside a twin that counts row by row."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import documents, prepared, small_config
from drawn import cases
from hypothesis import assume, example, given
from hypothesis import strategies as st

from maskwright.config.pretraining import RunConfig
from maskwright.core.errors import ConfigError, StoreError
from maskwright.data import mixing
from maskwright.data.loader import Loader
from maskwright.data.mixing import counts_in_block, mixed_order, weights_by_size
from maskwright.data.opening import open_store
from maskwright.data.order import RowOrder, order
from maskwright.data.prepare.request import PrepareOptions
from maskwright.data.store import TokenStore
from maskwright.tasks.pretrain.prepare import prepare_run
from maskwright.text.sources import Sources

SEED = 3


def slow_mixture(
    sizes: list[int], weights: list[float], most: list[float | None], rows: int
) -> list[tuple[int, int, int]]:
    """(source, its epoch, its row) of each row, with nothing but counters."""
    given, weights, result = [0] * len(sizes), list(weights), []
    start = block = 0
    while any(weights) and len(result) < rows:
        counts = counts_in_block(np.array(weights)).tolist()
        key = start + block * mixing.BLOCK
        places = order(SEED ^ mixing.SEED_OF_BLOCKS, key, np.arange(mixing.BLOCK), mixing.BLOCK).tolist()
        block += 1
        for place in places:
            source = next(number for number in range(len(counts)) if place < sum(counts[: number + 1]))
            epoch, index = divmod(given[source], sizes[source])
            row = int(order(SEED, epoch, np.array([index]), sizes[source])[0])
            result.append((source, epoch, row))
            given[source] += 1
            limit = most[source]
            if limit is not None and given[source] == int(limit * sizes[source]):
                weights[source] = 0.0
                start, block = len(result), 0
                break
    return result[:rows]


SOURCES = st.tuples(
    st.integers(1, 400), st.sampled_from([0.1, 0.3, 1.0, 3.0]), st.sampled_from([None, 0.5, 1.0, 1.5, 3.0])
)
"""(rows, weight, most epochs) of a source."""


@given(st.lists(SOURCES, min_size=1, max_size=4))
@example([(50, 3.0, None), (13, 1.0, None)])
@example([(64, 1.0, 1.0), (64, 1.0, 1.0)])  # both end at once
@example([(32, 1.0, 1.0), (100, 1.0, None)])  # one ends with a block
@example([(9, 0.1, 0.2), (400, 0.8, None), (11, 0.1, 1.0)])  # a row of the first
@cases(20)
def test_mixed_order_equals_slow_twin(sources: list[tuple[int, float, float | None]]) -> None:
    sizes, weights, most = (list(part) for part in zip(*sources, strict=True))
    assume(all(limit is None or limit * size >= 1 for size, limit in zip(sizes, most, strict=True)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixing, "BLOCK", 64)
        expected = slow_mixture(sizes, weights, most, 300)
        mixed = mixed_order(SEED, [RowOrder(SEED, size) for size in sizes], weights, most)
        assert (mixed.end is None) == (None in most) and len(expected) == min(mixed.end or 300, 300)
        epochs, rows = mixed.at(np.arange(len(expected)))
        first = np.cumsum(sizes) - sizes
        assert [(e, r) for e, r in zip(epochs.tolist(), rows.tolist(), strict=True)] == [
            (epoch, first[source] + row) for source, epoch, row in expected
        ]
        some = np.random.default_rng(0).permutation(len(expected))[:50]  # any rows, in any order
        assert np.array_equal(mixed.at(some)[1], rows[some])
        later = np.arange(min(40, len(expected) - 1), len(expected))
        assert np.array_equal(mixed.at(later)[1], rows[later])  # after a look at later ones
        for count in {0, *(one for one in (1, 63, 64, 65) if one <= len(expected)), len(expected)}:
            read = np.bincount([source for source, _, _ in expected[:count]], minlength=len(sizes))
            assert np.allclose(mixed.epochs(count), read / sizes)
        if mixed.end is not None:
            with pytest.raises(ConfigError, match="every source has reached its max_epochs"):
                mixed.at(np.array([mixed.end]))


def test_weights_by_size() -> None:
    assert weights_by_size([300, 100], 1.0) == [0.75, 0.25]
    assert weights_by_size([300, 100], 0.0) == [0.5, 0.5]
    assert weights_by_size([1_000_000, 100], 0.5) == pytest.approx([1000 / 1010, 10 / 1010])
    with pytest.raises(ConfigError, match="a source has 1e-06 of the weight"):
        counts_in_block(np.array([1.0, 1e-6]))


@pytest.fixture(scope="module")
def second(tokenizer: str, tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    folder = tmp_path_factory.mktemp("second")
    text = "\n\n".join("\n".join(lines) for lines in documents(80, seed=7))
    (folder / "other.txt").write_text(text, encoding="utf-8")
    sources = Sources([str(folder / "other.txt")], layout="sentences")
    return prepared(sources, tokenizer, folder / "store", PrepareOptions(valid_fraction=0.1))


@pytest.fixture(scope="module")
def mixed(store: TokenStore, second: TokenStore) -> Callable[..., RunConfig]:
    def config(first: dict[str, Any] | None = None, other: dict[str, Any] | None = None, **keys: Any) -> RunConfig:
        sources = {"a": {"store": store.location} | (first or {}), "b": {"store": second.location} | (other or {})}
        return small_config(store.location, **{"data.store": None, "data.mixture": sources, **keys})

    return config


def loader(config: RunConfig) -> Loader:
    return Loader(config, open_store(config.data))


@pytest.mark.parametrize("packing", ["documents", "full_sentences"])
def test_rows_of_a_mixture_are_those_of_its_stores(
    packing: str, mixed: Callable[..., RunConfig], store: TokenStore, second: TokenStore
) -> None:
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


def test_a_source_read_too_often_is_doubted_by_name(mixed: Callable[..., RunConfig]) -> None:
    """The text as a whole is read 30 times, the second source far more often."""
    whole = loader(mixed({"weight": 1.0}, {"weight": 9.0}))
    steps = 30 * whole.rows.totals.rows // whole.config.rows_per_step
    first, *others = prepare_run(mixed({"weight": 1.0}, {"weight": 9.0}, **{"schedule.steps": steps})).warnings()
    assert re.match(r"the run reads b \d\d\d? times, and BERT read its own 40 .* or set its max_epochs$", first)
    assert not any("run reads" in line for line in others)
    found = prepare_run(mixed({"weight": 1.0}, {"weight": 1.0}, **{"schedule.steps": 9 * steps})).warnings()
    assert ", and 1 other above 40 times, and BERT" in found[0]


def test_colons_and_alpha(store: TokenStore, second: TokenStore, tmp_path: Path) -> None:
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
def test_mixtures_that_cannot_be_are_refused(
    first: dict[str, Any], other: dict[str, Any], keys: dict[str, Any], why: str, mixed: Callable[..., RunConfig]
) -> None:
    with pytest.raises(ConfigError, match=why):
        mixed(first, other, **keys)


def test_sources_that_do_not_fit_are_refused(
    mixed: Callable[..., RunConfig], tokenizer_of: Callable[[str], str], tokenizer: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"every source has reached its max_epochs after \d+ of 400 steps"):
        prepare_run(mixed({"max_epochs": 1.0}, {"max_epochs": 1.0}, **{"schedule.steps": 400}))
    (tmp_path / "few.txt").write_text("A dog saw stones.\n", encoding="utf-8")
    for name, folder in (("few", tokenizer), ("foreign", tokenizer_of("bert"))):
        prepared(tmp_path / "few.txt", folder, tmp_path / name, PrepareOptions(valid_fraction=0.0))
    with pytest.raises(ConfigError, match=r"max_epochs 0.0001 is less than one of [\d,]+ rows"):
        prepare_run(mixed({"max_epochs": 0.0001}, {}))
    with pytest.raises(StoreError, match="tokens to train on, but one row needs 30"):
        prepare_run(mixed({}, {"store": str(tmp_path / "few")}))
    with pytest.raises(StoreError, match="was made with another tokenizer"):
        prepare_run(mixed({}, {"store": str(tmp_path / "foreign")}))
    with pytest.raises(StoreError, match="is not a token store"):
        prepare_run(mixed({}, {"store": str(tmp_path / "none")}))
