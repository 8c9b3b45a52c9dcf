"""Rows planned by the shard: what is kept of a plan, and what a start costs."""

import json
import os
import shutil
import tracemalloc
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from reference.stored import rows_of, shard_of

from maskwright.core import storage
from maskwright.data.order import RowOrder
from maskwright.data.plans import ShardPlans
from maskwright.data.rows import open_rows
from maskwright.data.store import Shard, Split


def all_rows(rows):
    return [part.tolist() for part in rows.materialize(np.arange(rows.totals.rows))]


def files_of(cache):
    return sorted(cache.rglob("*.columns"))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MASKWRIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("packing", ["documents", "full_sentences"])
def test_a_plan_is_kept_and_a_damaged_one_is_made_again(store, cache, packing):
    wanted = all_rows(open_rows(store, "train", 32, packing))
    files = files_of(cache)
    assert len(files) == len(store.split("train").shards) > 2
    stamps = [file.stat().st_mtime_ns for file in files]
    assert all_rows(open_rows(store, "train", 32, packing)) == wanted
    assert [file.stat().st_mtime_ns for file in files] == stamps
    whole = files[1].read_bytes()
    for damaged in (whole[:-9], whole[:40] + bytes([whole[40] ^ 1]) + whole[41:], b"", None):
        if damaged is None:
            files[1].unlink()
        else:
            files[1].write_bytes(damaged)
        assert all_rows(open_rows(store, "train", 32, packing)) == wanted
        assert files[1].read_bytes() == whole
    (counted,) = cache.rglob("rows.json")
    right = counted.read_text()
    for wrong in ("{", "[]", json.dumps({**json.loads(right), "rows": [1]}), right.replace('"rows"', '"lines"')):
        counted.write_text(wrong)
        assert all_rows(open_rows(store, "train", 32, packing)) == wanted
        assert json.loads(counted.read_text()) == json.loads(right)


@pytest.mark.parametrize("why", ["a file", "no lock", "full at the second shard", "full at the counts"])
def test_where_no_plan_can_be_kept_rows_are_the_same(why, store, cache, monkeypatch, capsys):
    """A start where the disk or a quota is full goes on like one where the cache cannot be written, and warns once."""
    wanted = all_rows(open_rows(store, "train", 32, "documents"))
    shutil.rmtree(cache)
    monkeypatch.setattr("maskwright.data.plans.MOST_MADE", 2)
    if why == "a file":
        cache.write_text("")
    refused = {"full at the second shard": "00001.columns", "full at the counts": "rows.json"}.get(why)

    @contextmanager
    def atomic_writer(path, *, sync=True, real=storage.atomic_writer):
        if os.path.basename(path) == refused:
            raise OSError(122, "Disk quota exceeded")
        with real(path, sync=sync) as file:
            yield file

    def pwrite(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage, "atomic_writer", atomic_writer)
    if why == "no lock":
        monkeypatch.setattr(os, "pwrite", pwrite)
    capsys.readouterr()
    rows = open_rows(store, "train", 32, "documents")
    kept = len(store.split("train").shards) if why == "full at the counts" else 2
    assert all_rows(rows) == wanted and len(rows.plans._cached) == kept
    assert capsys.readouterr().err.count("rows are planned again at each start") == 1


def test_a_few_plans_are_mapped_at_once(store, cache, monkeypatch):
    wanted = all_rows(open_rows(store, "train", 32, "documents"))
    monkeypatch.setattr("maskwright.data.plans.MOST_MAPPED", 1)
    monkeypatch.setattr("maskwright.data.store.MOST_MAPPED", 1)
    rows = open_rows(store, "train", 32, "documents")
    assert all_rows(rows) == wanted and len(rows.plans._cached) == len(rows.split._mapped) == 1


class MadeUp:
    """A store of many shards of 64 million tokens, all alike: pages of 300 to 700 tokens, sentences of 20."""

    location = "made up"

    def __init__(self, folder, shards):
        tokens, self.fingerprint = 64_000_000, f"{shards:06}" * 11
        with open(folder / "ids", "wb") as file:
            file.truncate(2 * tokens)  # a hole: it takes no room
        self.reads = 0
        sentences = np.arange(20, tokens + 1, 20)
        pages = sentences[np.cumsum(np.tile([15, 20, 25, 30, 35], tokens // 2_500)) - 1]

        def read(ends):
            self.reads += 1
            return ends

        ids = np.asarray(np.memmap(folder / "ids", "<u2", "r"))
        shard = Shard(tokens, len(pages), lambda: ids, lambda: read(pages), lambda: read(sentences))
        self.made = Split([shard] * shards)
        self.vocabulary = SimpleNamespace(bos=0, pad=1, eos=2, size=50_265)

    def split(self, _):
        return self.made


@pytest.mark.parametrize(("shards", "packing"), [(580, "full_sentences"), (4_000, "documents")])
def test_a_start_costs_the_same_for_any_number_of_shards(shards, packing, cache, tmp_path):
    """37 billion tokens as RoBERTa packs them, and a terabyte of pages. All plans are made here by planning one shard:
    the others are links to its file."""
    one, many, seq_len = MadeUp(tmp_path, 1), MadeUp(tmp_path, shards), 512
    open_rows(one, "train", seq_len, packing)
    (plan,), (counted,) = files_of(cache), cache.rglob("rows.json")
    folder = plan.parent.with_name(plan.parent.name.replace(one.fingerprint[:24], many.fingerprint[:24]))
    folder.mkdir()
    for number in range(shards):
        os.link(plan, folder / f"{number:05}.columns")
    totals = json.loads(counted.read_text())
    (folder / "rows.json").write_text(json.dumps({name: some * shards for name, some in totals.items()}))
    step, peaks = np.arange(256), []
    for store in (one, many):
        store.reads = 0
        store.made = Split(store.made.shards)
        tracemalloc.start()
        rows = open_rows(store, "train", seq_len, packing)
        order = RowOrder(1, rows.totals.rows)
        chosen = order.at(10**7 * step)[1]
        ids, _, _ = rows.materialize(chosen)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert ids.shape == (256, seq_len) and store.reads == 0
    assert rows.totals.rows == shards * totals["rows"][0] and rows.totals.text_tokens == shards * 64_000_000
    assert len(np.unique(np.searchsorted(rows.first, chosen, side="right"))) > 150
    assert peaks[1] - peaks[0] < 12e6, "a few kilobytes a shard: what is counted of it, and 256 maps"


def test_rows_of_parts_of_shards_are_in_the_order_that_is_asked_for():
    split = Split([shard_of([5 + number] * 40, [*range(4, 41, 4)]) for number in range(7)])
    rows = rows_of(split, 9, "documents")
    every = all_rows(rows)
    some = np.random.default_rng(3).integers(0, rows.totals.rows, 60)
    found = [part.tolist() for part in rows.materialize(some)]
    assert found == [[part[row] for row in some] for part in every]
    assert rows.documents(int(some[0])) and rows.work(some)[0] == int(np.count_nonzero(found[2]))
    assert isinstance(rows.plans, ShardPlans)
