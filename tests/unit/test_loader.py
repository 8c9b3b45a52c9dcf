import numpy as np
import pytest
from drawn import cases
from hypothesis import given
from hypothesis import strategies as st
from reference import oracles
from reference.stored import rows_of, shard_of

from maskwright.core.errors import StoreError
from maskwright.data.loader import Loader, validation_batches
from maskwright.data.rows import open_rows
from maskwright.data.store import Split

TEXTS = st.lists(
    st.lists(st.lists(st.integers(5, 98), min_size=1, max_size=9), min_size=1, max_size=4), min_size=1, max_size=4
)
"""Documents of a shard, by sentence."""


@given(st.lists(TEXTS, min_size=1, max_size=6), st.integers(5, 24))
@cases(30)
def test_rows_of_short_documents_in_many_shards_equal_slow_twin(texts, seq_len):
    """Shards of a few tokens, sentences of one: every border of a shard is the border of a row or a frame somewhere."""
    split = Split([shard_in_sentences(some) for some in texts])
    full, packed = (rows_of(split, seq_len, packing) for packing in ("full_sentences", "documents"))
    found = full.materialize(np.arange(full.totals.rows))
    expected = [row for some in texts for row in oracles.full_sentences(some, seq_len, 0, 2)]
    assert len(expected) == full.totals.rows
    for row, wanted in enumerate(expected):
        ids, positions, segments = (part[row].tolist() for part in found)
        size, rest = len(wanted), seq_len - len(wanted)
        assert (ids, segments) == (wanted + [1] * rest, [1] * size + [0] * rest)
        assert positions[:size] == [*range(size)]
    chunks = list[tuple[int, ...]]()
    for ids, positions, segments in zip(*packed.materialize(np.arange(packed.totals.rows)), strict=True):
        assert (ids[segments == 0] == 1).all()
        for segment in range(1, segments.max() + 1):
            assert positions[segments == segment].tolist() == [*range((segments == segment).sum())]
            chunks.append(tuple(ids[segments == segment].tolist()))
    whole = [[i for part in text for i in part] for some in texts for text in some]
    room = seq_len - 2
    assert sorted(chunks) == sorted((0, *ids[i : i + room], 2) for ids in whole for i in range(0, len(ids), room))


def shard_in_sentences(texts):
    sentences = np.cumsum([len(part) for text in texts for part in text])
    documents = np.cumsum([sum(map(len, text)) for text in texts])
    return shard_of([i for text in texts for part in text for i in part], documents.tolist(), sentences.tolist())


def test_an_epoch_is_every_row_once_however_it_is_split(store, config):
    keys = {"masking.mask_share": 0.0, "masking.random_share": 0.0}  # shown as they are
    size = Loader(config(), store).rows.totals.rows
    batches = {}
    for rows, workers in ((4, 2), (8, 1), (1, 8)):
        loader = Loader(config(**{"batch.micro_batch_rows": rows, "batch.virtual_workers": workers, **keys}), store)
        steps = -(-size // 8)
        batches[rows] = np.concatenate([b.input_ids for step in range(steps) for b in loader.batches(step)])[:size]
    assert np.array_equal(batches[4], batches[8])
    assert np.array_equal(batches[4], batches[1])
    everything, _, _ = open_rows(store, "train", 32, "documents").materialize(np.arange(size))
    assert sorted(map(tuple, batches[4].tolist())) == sorted(map(tuple, everything.tolist()))


def test_a_run_of_two_maskings_has_the_first_again_in_its_third_epoch(store, config):
    """Causal rows, too. Without the key, each epoch has masks of its own, of which the first two are these."""
    shape = {"batch.micro_batch_rows": 32, "batch.virtual_workers": 1, "masking.causal_share": 0.3}

    def seen(**keys):
        loader, found = Loader(config(**shape, **keys), store), {}
        for step in range(3 * loader.rows.totals.rows // 32):
            batch, (epochs, rows) = loader.batch(step, 0), loader.row_numbers(step, 0)
            for at, place in enumerate(zip(epochs.tolist(), rows.tolist(), strict=True)):
                one = batch.part(at, at + 1)
                found[place] = b"".join(array.tobytes() for array in one.arrays.values())
        return found

    plain, two = seen(), seen(**{"masking.epochs": 2})
    rows = [row for epoch, row in two if epoch == 2]
    assert len(rows) > 500 and all(two[2, row] == two[0, row] for row in rows)
    assert np.mean([two[1, row] == two[0, row] for row in rows]) < 0.01
    assert all(two[place] == plain[place] for place in two if place[0] < 2)
    assert np.mean([plain[2, row] == plain[0, row] for row in rows]) < 0.01


def test_validation_is_the_same_in_every_run_and_padded_at_the_end(store):
    batches = validation_batches(store, seq_len=32, packing="documents", max_rows=10, micro_batch_rows=4)
    assert [b.input_ids.shape for b in batches] == [(4, 32)] * 3
    assert (batches[-1].segment_ids[2:] == 0).all()
    assert batches[-1].weights.reshape(4, -1)[2:].sum() == 0
    smaller = validation_batches(store, seq_len=32, packing="documents", max_rows=10, micro_batch_rows=5)
    joined = np.concatenate([b.input_ids for b in batches])[:10]
    assert np.array_equal(joined, np.concatenate([b.input_ids for b in smaller]))
    whole = validation_batches(store, seq_len=32, packing="documents", max_rows=10_000, micro_batch_rows=64)
    tokens = sum(int((batch.segment_ids > 0).sum()) for batch in whole)
    share = 0.15 * 30 / 32  # no ends of rows
    assert sum(batch.predicted for batch in whole) / tokens == pytest.approx(share, rel=0.06)


def test_fewer_rows_than_a_batch_is_refused(store, config):
    with pytest.raises(StoreError, match="one step needs 8,000"):
        Loader(config(**{"batch.micro_batch_rows": 1000, "batch.virtual_workers": 8}), store)


@pytest.mark.parametrize("seed", range(4))
def test_long_spans_are_copied_as_short_ones_are_gathered(seed, monkeypatch):
    """The two ways of `Split.gather` agree on every token that a frame does not overwrite."""
    generator = np.random.default_rng(seed)
    sizes = [2000, 900, 1500]
    shards = [generator.integers(5, 60_000, size).astype(np.uint16) for size in sizes]
    split = Split([shard_of(ids.tolist(), [len(ids)]) for ids in shards])
    shard = generator.integers(0, 3, 6)
    length = generator.integers(130, 400, 6)
    within = np.array([generator.integers(1, sizes[s] - n + 1) for s, n in zip(shard, length, strict=True)])
    within[0] = sizes[shard[0]] - length[0]  # to the very end of its shard
    after = generator.integers(0, 3, 6)
    arguments = (shard, within, length, np.ones(6, np.int64), after)
    copied = split.gather(*arguments)
    monkeypatch.setattr("maskwright.data.store.LONG_SPAN_TOKENS", 10**9)
    gathered = split.gather(*arguments)
    place = 0
    for s, first, size, behind in zip(shard, within, length, after, strict=True):
        wanted = shards[s][first : first + size]
        for found in (copied, gathered):
            assert np.array_equal(found[place + 1 : place + 1 + size], wanted)
        place += 1 + size + behind
    assert place == len(copied) == len(gathered)


@pytest.mark.parametrize("packing", ["documents", "full_sentences"])
def test_work_of_a_step_is_that_of_its_batches(store, config, packing):
    """From the plan alone, as against counting in the rows: positions in use and pairs that attend to each other."""
    loader = Loader(config(**{"data.packing": packing}), store)
    for step in range(7):
        used, pairs = 0, 0
        for batch in loader.batches(step):
            used += batch.text_tokens
            for row in batch.segment_ids.tolist():
                pairs += sum(row.count(segment) ** 2 for segment in set(row) - {0})
        assert loader.work(step) == (used, pairs)
