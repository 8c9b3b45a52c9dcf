"""Rows that are read causally: against a loop over their predictions, and by row alone."""

import numpy as np
import pytest

from maskwright.config.pretraining import EngineSection, build_config
from maskwright.data.batch import Batch
from maskwright.data.causal import is_causal, read_causally
from maskwright.data.loader import Loader, validation_batches
from maskwright.model.config import model_config
from maskwright.tasks.pretrain.warnings import unusual_settings


def loader_of(store, phases=(), **masking):
    values = {
        "data": {"store": store.location, "seq_len": 32},
        "masking": {"rate": 0.3, **masking},
        "schedule": {"steps": 10, "warmup_steps": 1},
        "batch": {"micro_batch_rows": 8, "virtual_workers": 2},
        "phases": list(phases),
    }
    return Loader(build_config(values, "test"), store)


@pytest.mark.parametrize("kind", ["token", "whole_word", "span"])
def test_a_causal_row_tells_each_token_by_the_one_before(store, kind):
    plain, half = (loader_of(store, kind=kind, causal_share=share) for share in (0.0, 0.5))
    seen = 0
    for step, worker in ((0, 0), (0, 1), (7, 1)):
        epochs, rows = half.row_numbers(step, worker)
        causal = is_causal(0.5, seed=0, epochs=epochs, rows=rows)
        masked, found = plain.batch(step, worker), half.batch(step, worker)
        ids = half.rows_at(step).materialize(rows)[0]
        slots, T = len(found.labels) // len(ids), ids.shape[1]
        for m, is_one in enumerate(causal):
            its = slice(m * slots, (m + 1) * slots)
            if not is_one:
                for name in ("input_ids", "segment_ids"):
                    assert np.array_equal(getattr(found, name)[m], getattr(masked, name)[m])
                assert np.array_equal(found.predict_index[its], masked.predict_index[its])
                continue
            assert np.array_equal(found.input_ids[m], ids[m])
            assert np.array_equal(found.segment_ids[m], -masked.segment_ids[m])
            assert np.array_equal(found.labels[its], masked.labels[its])
            assert np.array_equal(found.weights[its], masked.weights[its])
            for place, label, weight in zip(
                found.predict_index[its], found.labels[its], found.weights[its], strict=True
            ):
                if weight:
                    assert place // T == m and ids[m, place % T + 1] == label
                    assert found.segment_ids[m, place % T] == found.segment_ids[m, place % T + 1] < 0
                    seen += 1
        assert found.text_tokens == masked.text_tokens and found.predicted == masked.predicted
    assert seen > 50


def test_a_share_of_the_rows_whatever_shares_them_out():
    rows = np.arange(20_000)
    for share in (0.0, 0.0625, 0.5, 1.0):
        found = is_causal(share, seed=3, epochs=np.full_like(rows, 2), rows=rows)
        assert abs(found.mean() - share) < 4 * (share * (1 - share) / len(rows)) ** 0.5 + 1e-12
        assert np.array_equal(found[777:800], is_causal(share, seed=3, epochs=np.full(23, 2), rows=rows[777:800]))
    here, epoch, seed = (
        is_causal(0.5, seed=seed, epochs=np.full_like(rows, epoch), rows=rows)
        for seed, epoch in ((3, 2), (3, 1), (4, 2))
    )
    for other in (epoch, seed):
        assert abs((here == other).mean() - 0.5) < 0.02


def test_what_begins_a_segment_is_not_predicted():
    """Where no special token stands before it."""
    segments = np.array([[1, 1, 2, 2, 0]], np.int32)
    index, ones = np.array([0, 2, 3], np.int32), np.ones(3, np.float32)
    batch = Batch(segments, segments, segments, index, np.array([7, 8, 9], np.int32), ones)
    found = read_causally(batch, segments, np.array([True]))
    assert found.weights.tolist() == [0, 0, 1] and found.predict_index.tolist() == [0, 2, 2]
    assert found.labels.tolist() == [0, 0, 9]
    assert found.segment_ids.tolist() == [[-1, -1, -2, -2, 0]]


def test_held_out_rows_are_masked_ones(store):
    batches = validation_batches(store, seq_len=32, packing="documents", max_rows=8, micro_batch_rows=4)
    assert not any(batch.reads_causally for batch in batches)
    assert loader_of(store, causal_share=1.0).batch(0, 0).reads_causally


@pytest.mark.parametrize(
    ("share", "phases", "tried"),
    [
        (0.0, [], [(False, False)]),
        (1.0, [], [(True, True)]),
        (0.1, [], [(False, None), (True, None)]),
        (0.0, [{"until_step": 5, "causal_share": 1.0}], [(True, True), (False, False)]),
    ],
)
def test_masked_and_causal_rows_are_both_tried(store, share, phases, tried):
    """Attention may be computed in other ways for them, which may need more memory. Where a step mixes both, all of its
    batches say so, whatever their own rows are."""
    trials = loader_of(store, phases=phases, causal_share=share).trials(0, [0, 1])
    kinds = [[(batch.reads_causally, batch.part(0, 1).causal) for batch in batches] for _, batches in trials]
    assert kinds == [[one, one] for one in tried]


def test_a_run_that_reads_causally_throughout_never_sees_a_mask(store):
    never = "masking.causal_share 1: the model never sees <mask>"
    for share, phases, warned in (
        (1.0, [], True),
        (0.9, [], False),
        (1.0, [{"until_step": 5, "causal_share": 0.5}], False),
    ):
        config = loader_of(store, phases=phases, causal_share=share).config
        assert any(never in line for line in unusual_settings(config)) == warned
    causal = [{"until_step": 5, "causal_share": 1.0, "masking_rate": 0.9}]
    assert not any("less than half" in line for line in unusual_settings(loader_of(store, phases=causal).config))


def test_a_tpus_program_is_chosen_by_how_its_rows_are_read(store, monkeypatch):
    """A phase of causal rows alone has a kernel there too; on a CPU one program serves all phases."""
    pytest.importorskip("jax", reason="needs the extra jax")
    from maskwright.engines.choose import make_engine
    from maskwright.engines.jax.layout import ShardingLayout

    phases = [{"until_step": 1, "causal_share": 1.0}, {"until_step": 2, "causal_share": 0.5}]
    loader = loader_of(store, phases=phases)
    config = loader.config.model_copy(update={"engine": EngineSection(kind="jax", device="cpu", dtype="bf16")})
    shape = model_config(config.model.model_copy(update={"size": "nano"}), store.vocabulary.size, 32)
    engine = make_engine(shape, config.optimizer, config.engine, 0)
    ways = {}
    for chip in ("cpu", "TPU v4"):
        monkeypatch.setattr(ShardingLayout, "chip", chip)
        ways[chip] = [engine.program_like(loader.batch(step, 0)).way(128) for step in range(3)]
    assert ways == {"cpu": ["dense"] * 3, "TPU v4": ["causal splash", "dense", "splash"]}
