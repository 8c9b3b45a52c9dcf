"""Phases: where they end, what they change, and which rows each one reads."""

import numpy as np
import pytest
from conftest import small_config
from reference import oracles

from maskwright.config.pretraining import build_config, stage_at
from maskwright.core.errors import ConfigError
from maskwright.data.loader import Loader
from maskwright.data.mixing import MixedOrder
from maskwright.data.mixture import MixedRows
from maskwright.data.opening import open_store
from maskwright.data.rows import open_rows
from maskwright.run.directory import RunDirectory
from maskwright.tasks.measure.held_out import evaluate_sources
from maskwright.tasks.models.load import load_model
from maskwright.tasks.models.runs import model_at
from maskwright.tasks.pretrain.run import pretrain


def build(phases, **keys):
    plain = {"data": {"store": "s", "seq_len": 512}, "schedule": {"steps": 100}}
    return build_config({**plain, "batch": {"virtual_workers": 8}, "phases": phases, **keys}, "run.yaml")


def test_each_stage_is_the_run_with_what_its_phase_sets():
    tokens = 40 * 64 * 128 + 2 * 128 * 128
    first = {"until_share": 0.4, "seq_len": 128, "masking_rate": 0.4}
    second = {"until_step": 42, "seq_len": 128, "rows_per_step": 128}
    stages = build([first, second, {"until_step": 90, "masking_kind": "span"}]).stages
    assert [(stage.begin, stage.end) for stage in stages] == [(0, 40), (40, 42), (42, 90), (90, 100)]
    assert [stage.first_row for stage in stages] == [0, 40 * 64, 40 * 64 + 2 * 128, 42 * 64 + 2 * 64 + 48 * 64]
    assert stages[2].first_token == tokens
    one, two, three, rest = (stage.config for stage in stages)
    plain = build([])

    def at(step):
        return stage_at(stages, step).config

    assert rest == plain and at(99) == at(500) == rest and at(41) == two
    assert (one.data.seq_len, one.masking.rate, one.rows_per_step) == (128, 0.4, 64)
    assert (two.data.seq_len, two.masking, two.batch.micro_batch_rows) == (128, plain.masking, 16)
    assert three == plain.model_copy(update={"masking": plain.masking.model_copy(update={"kind": "span"})})
    assert stage_at(plain.stages, 0).config is plain and len(plain.stages) == 1


OF_A = {"until_step": 9, "mixture_weights": {"a": 1}}
TWO, EPOCHS = {"data": {"mixture": {"a": "x", "b": "y"}}}, {"schedule": {"epochs": 2.0}}


@pytest.mark.parametrize(
    ("phases", "keys", "why"),
    [
        ([{"until_share": 0.5}, {"until_step": 50}], {}, "before the previous phase (step 50). Fix: give phases incr"),
        ([{"until_share": 0.001}], {}, "phases.0 ends at step 0"),
        ([{"until_step": 101}], {}, "ends at step 101, but the run has 100. Fix: end it earlier, or raise"),
        ([{"until_share": 0.5, "until_step": 9}], {}, "has until_share and until_step. Fix: give it either"),
        ([{"seq_len": 64}], {}, "phases.0: does not give its end. Fix: give it either until_share or until_step"),
        ([{"until_step": 9, "seq_len": 4}], {}, "phases.0.seq_len is 4. Fix: give an integer ≥ 8"),
        ([{"until_step": 9, "seq_len": 1024}], {}, "above the 512 tokens that the model reads. Fix: lower it, or set"),
        ([{"until_step": 9, "rows_per_step": 12}], {}, "8 virtual workers do not divide it. Fix: set 16"),
        ([OF_A], {}, "names a, but there are no sources, because data.mix"),
        ([OF_A], TWO, "gives b no weight, nor does data.mixture. Fix: give each source one"),
        ([{"until_step": 9, "seq_len": 64}], EPOCHS, "schedule.epochs needs rows of one length"),
        ([{"until_step": 9, "mixture_weights": {"a": 1, "b": 2}}], EPOCHS | TWO, "one length and one mixture, and"),
    ],
)
def test_phases_that_cannot_be_are_refused_in_one_line(phases, keys, why):
    with pytest.raises(ConfigError) as refused:
        build(phases, **keys)
    assert why in str(refused.value) and str(refused.value).count("\n") == 0


def phased(config, **keys):
    """A third of the rows with 16 tokens, some with 24, the rest with 32."""
    phases = [
        {"until_step": 30, "seq_len": 16, "rows_per_step": 16},
        {"until_step": 50, "seq_len": 16},
        {"until_step": 90, "seq_len": 24, "rows_per_step": 24},
    ]
    return config(**{"schedule.steps": 200, "phases": phases, **keys})


def rows_read(loader, begin, end):
    """(epoch, row) of each row of these updates."""
    numbers = [loader.row_numbers(step, worker) for step in range(begin, end) for worker in (0, 1)]
    return [pair for epochs, rows in numbers for pair in zip(epochs.tolist(), rows.tolist(), strict=True)]


def test_each_phase_has_epochs_of_its_own(store, config):
    """Every row once in each of them, in the order of that epoch; no two phases have an epoch of one number, so masks
    are drawn anew."""
    loader = Loader(phased(config), store)
    first_epoch, read = 0, 0.0
    bounds = ((16, 0, 50, 30 * 16 + 20 * 8), (24, 50, 90, 40 * 24), (32, 90, 400, 310 * 8))
    for phase, (seq_len, begin, end, rows) in zip(loader.data_phases, bounds, strict=True):
        size = open_rows(store, "train", seq_len, "documents").totals.rows
        assert phase.rows.totals.seq_len == seq_len and phase.rows.totals.rows == size
        expected = [
            (first_epoch + n // size, oracles.order(0, first_epoch + n // size, n % size, size)) for n in range(rows)
        ]
        assert rows_read(loader, begin, end) == expected
        assert loader.epoch(begin) == pytest.approx(read)
        first_epoch, read = first_epoch + -(-rows // size), read + rows / size
        assert loader.epoch(end) == pytest.approx(read)
    plain = config(**{"schedule.steps": 200, "phases": [{"until_step": 90, "masking_rate": 0.4}]})
    assert rows_read(Loader(plain, store), 0, 200) == rows_read(Loader(config(), store), 0, 200), "rows go on"


def test_a_mixture_changes_its_weights(store, tmp_path):
    """In the middle only one source is read, with shorter rows; before and after, both are."""
    (tmp_path / "again").symlink_to(store.location)
    sources = {"a": {"store": store.location, "weight": 3}, "b": {"store": str(tmp_path / "again"), "weight": 1}}
    phases = [{"until_step": 40}, {"until_step": 80, "seq_len": 16, "mixture_weights": {"a": 0}}]
    keys = {"data.store": None, "data.mixture": sources, "schedule.steps": 120, "phases": phases}
    run = small_config("", **keys)
    loader = Loader(run, open_store(run.data))
    first, middle, last = loader.data_phases
    assert isinstance(first.order, MixedOrder) and isinstance(first.rows, MixedRows)
    given = first.order.source_rows(320).tolist()
    assert sum(given) == 320 and given[0] == pytest.approx(240, abs=30)
    sizes = [{seq_len: open_rows(store, "train", seq_len, "documents").totals.rows} for seq_len in (16, 32)]
    short, long = sizes[0][16], sizes[1][32]
    assert middle.read.tolist() == pytest.approx([count / long for count in given])
    assert last.read.tolist() == pytest.approx([given[0] / long, given[1] / long + 320 / short])
    border = int(first.rows.first[1])
    epochs = [{(row >= border, epoch) for epoch, row in rows_read(loader, begin, begin + 40)} for begin in (0, 80)]
    assert not epochs[0] & epochs[1], "later epochs of each source"
    read = loader.sources_read(80)
    assert [share for _, share, _ in read] == pytest.approx([given[0] / 640, (given[1] + 320) / 640])
    shapes = [loader.batches(step)[0].input_ids.shape for step in (39, 40, 79, 80)]
    assert shapes == [(4, 32), (4, 16), (4, 16), (4, 32)]
    everything = loader.epoch(120) * 2
    assert everything == pytest.approx(sum(epochs for _, _, epochs in loader.sources_read(120)))


def test_a_base_of_rotary_positions_is_trained_with_and_exported(config, store, tmp_path):
    """A run whose every update has the base is the run of a model that has it; one that never reaches it is not."""
    keys = {"model.architecture": "modernbert", "schedule.steps": 4, "schedule.warmup_steps": 1}
    keys |= {"checkpoint.save_every_steps": 2}
    runs = {
        "plain": config(**keys),
        "all": config(**keys, phases=[{"until_share": 1.0, "rope_theta": 500.0}]),
        "half": config(**keys, phases=[{"until_step": 2}, {"until_share": 1.0, "rope_theta": 500.0}]),
    }
    weights, losses = {}, {}
    for name, run in runs.items():
        pretrain(run, str(tmp_path / name))
        model = load_model(str(tmp_path / name))
        assert model.config.rope_theta == (10_000.0 if name == "plain" else 500.0)
        weights[name] = model.parameters["model.layers.0.attn.Wqkv.weight"]
        lines = RunDirectory(str(tmp_path / name)).read_metrics()
        losses[name] = [line["loss"] for line in lines if "loss" in line]
        judged = evaluate_sources(model, {"": store}, max_rows=8, engine=run.engine).sources[""]
        assert judged.loss == pytest.approx(lines[-1]["valid_loss"], rel=1e-6)
    assert losses["half"][:2] == losses["plain"][:2] and losses["half"][2] != losses["plain"][2]
    assert losses["all"][0] != losses["plain"][0] and not np.array_equal(weights["all"], weights["half"])
    record = RunDirectory(str(tmp_path / "half")).read_record()
    assert [model_at(record, step, "x").rope_theta for step in (0, 2, 3, 4)] == [10_000.0, 10_000.0, 500.0, 500.0]
    with pytest.raises(ConfigError, match="roberta has no rotary positions. Fix: leave it out, or set model.archi"):
        config(phases=[{"until_share": 1.0, "rope_theta": 500.0}])
