"""Checkpoints, run directory, progress: the loop's small parts."""

import io
import os
import random
import shutil
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from maskwright.config.pretraining import CheckpointSection
from maskwright.core.console import Progress
from maskwright.core.errors import CheckpointError, InputError
from maskwright.engines import ceiling
from maskwright.engines.base import StepStats, TrainState
from maskwright.engines.ceiling import SHAPES as ALL_SHAPES
from maskwright.engines.ceiling import Ceiling, gemm_ceiling
from maskwright.machine import hardware
from maskwright.run.directory import RunDirectory, Status
from maskwright.run.metric_names import trainer_names
from maskwright.training import checkpoint
from maskwright.training.metrics import Counters, Speed, TensorBoard
from maskwright.training.stop import StopRequest
from maskwright.training.vote import SAVE, STOP, Vote


def test_ranks_save_once_though_they_learn_of_a_vote_two_steps_later():
    """The highest vote of a step is known one step later, and a rank that has saved may vote once more meanwhile."""
    vote = Vote(CheckpointSection(save_every_steps=None), StopRequest(), Mock(world_size=2, rank=1), 0)
    saves = []
    for step, highest in enumerate((0, 0, 0, SAVE, SAVE, SAVE, 0, SAVE), 1):
        vote.take(highest)
        if vote.due_to_save(step):
            saves.append(step)
            vote.saved(step)
    assert saves == [4, 8] and not vote.stops
    vote.take(STOP)
    assert vote.stops


@pytest.fixture
def whole_measurement(monkeypatch):
    """As in a run that is no test."""
    monkeypatch.setattr(ceiling, "SHAPES", ALL_SHAPES)
    monkeypatch.setattr(ceiling, "SHAPE_SECONDS", 0.1)


@pytest.mark.usefixtures("whole_measurement")
def test_the_ceiling_is_what_no_busy_neighbour_decides():
    """At each start the same neighbour: half of the products take four times as long, and some of them 2 % more."""
    found = []
    for start in range(8):
        chance = random.Random(start)

        def prepare(m, k, n, chance=chance):
            each = 2.0 * m * k * n / 2e12
            return lambda count: sum(each * chance.uniform(1.0, 1.02) * chance.choice((1.0, 4.0)) for _ in range(count))

        found.append(gemm_ceiling(prepare))
    assert max(found) <= 2e12 and min(found) >= 0.97 * 2e12


@pytest.mark.usefixtures("whole_measurement")
@pytest.mark.parametrize(
    ("flops_per_second", "memory", "shapes", "found"),
    [
        (7.34e14, 1e9, ALL_SHAPES, 0.996),  # its clock is low for 50 ms, and 0.05 ms are lost each time
        (7.34e14, 2e8, ALL_SHAPES[:3], 0.987),  # no room for the largest
        (2e12, 1e9, ALL_SHAPES[:2], 0.995),  # a CPU
        (9e10, 1e9, ((256, 768, 3072), (256, 2048, 2048)), 0.995),  # one of them
    ],
)
def test_a_fast_device_gets_larger_products_many_at_a_time_once_it_is_awake(flops_per_second, memory, shapes, found):
    clock, asked, sleeps = 0.0, [], flops_per_second > 1e13

    def prepare(m, k, n):
        if 2 * (m * k + k * n + m * n) > memory:
            raise torch.OutOfMemoryError

        def products(count):
            nonlocal clock
            seconds = count * 2.0 * m * k * n / flops_per_second * (5.0 if sleeps and clock < 0.05 else 1.0) + 5e-5
            clock += seconds
            return seconds

        asked.append((m, k, n))
        return products

    assert gemm_ceiling(prepare) / flops_per_second == pytest.approx(found, abs=0.003)
    assert tuple(asked[1::2]) == shapes  # before each, a few rows show how many are taken


def test_no_share_of_the_ceiling_is_above_1():
    """Also where the measurement met a busy neighbour."""
    found = Ceiling(3e12)
    assert found.share(1.5e12) == 0.5 and found.share(4e12) == 1.0 and found.share(3e12) == 0.75


def test_a_checkpoint_keeps_every_counter():
    counters, empty = Counters(tokens=7), StepStats(0.0, 0.0, 0.0)
    for _ in range(3):
        counters.add(empty, tokens=5)
    again = Counters(**counters.to_json())
    assert vars(again) == vars(counters)
    again.add(empty, tokens=5)
    assert again.take_loss() == 0.0 and (again.empty_steps, again.tokens) == (4, 27)


def test_evaluating_and_saving_take_no_time_of_training():
    now = 0.0
    speed = Speed(lambda: now)
    speed.start()
    now = 2.0
    speed.count(100, 1e3)
    with speed.paused(), speed.part("evaluate"):
        now = 10.0
    now = 12.0
    speed.count(100, 1e3)
    assert speed.take() == (50.0, 500.0, 0.5) and speed.parts == {"evaluate": 8.0}
    now = 14.0  # a line that is read late: the device computed for these seconds too
    speed.count(300, 1e3)
    now = 15.0
    assert speed.take() == (100.0, 1e3 / 3.0, 1.0 / 3.0)
    speed.pause()
    now = 20.0
    with speed.paused():
        now = 30.0
    assert (speed.total_seconds, speed.total_tokens) == (7.0, 500)


def state(step, seed=0):
    generator = np.random.default_rng(seed)
    arrays = {name: generator.standard_normal((4, 3)).astype(np.float32) for name in ("a", "b.c")}
    return TrainState(step, arrays, {"exp_avg": dict(arrays), "exp_avg_sq": dict(arrays)})


def test_checkpoint_round_trip_and_keeping(tmp_path):
    folder = str(tmp_path)
    (tmp_path / "step-00000010").mkdir()
    (tmp_path / "step-00000010" / "model.safetensors").write_bytes(b"half, of a killed save")
    for absent in (folder, f"{folder}/none"):
        assert checkpoint.load_newest(absent, set_aside=True) is None
    for step in (10, 20, 30):
        checkpoint.save(folder, state(step, seed=step), {"counters": {"tokens": step}}, keep=2)
    assert checkpoint.whole_steps(folder) == [20, 30]
    assert sorted(os.listdir(folder)) == ["step-00000020", "step-00000030"]
    loaded = checkpoint.load_newest(folder, set_aside=True)
    assert loaded
    found, record = loaded
    assert (found.step, record["counters"]) == (30, {"tokens": 30})
    for name, value in state(30, seed=30).parameters.items():
        assert np.array_equal(found.parameters[name], value)
        assert np.array_equal(found.moments["exp_avg_sq"][name], value)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "MANIFEST.json"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "remove"])
def test_damaged_newest_is_named_and_the_one_before_used(name, damage, tmp_path, capfd):
    folder = str(tmp_path)
    for step in (10, 20):
        checkpoint.save(folder, state(step), {}, keep=5)
    path = tmp_path / "step-00000020" / name
    content = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    else:
        content[-3] ^= 0x10  # of safetensors in the last tensor: no header and no length shows it
        path.write_bytes(content[:-5] if damage == "truncate" else content)
    loaded = checkpoint.load_newest(folder, set_aside=True)
    assert loaded and loaded[0].step == 10
    if (name, damage) == ("MANIFEST.json", "remove"):
        return  # then it never was a checkpoint, and nothing is wrong
    message = capfd.readouterr().err
    assert "step-00000020" in message and "using the checkpoint before: " in message
    assert (tmp_path / "damaged-step-00000020").exists()
    (tmp_path / "step-00000010" / "model.safetensors").write_bytes(b"")
    for _ in range(2):  # also when asked again
        with pytest.raises(CheckpointError, match="every checkpoint is damaged"):
            checkpoint.load_newest(folder, set_aside=True)


def test_full_disk_is_said_before_anything_is_written(tmp_path, monkeypatch):
    checkpoint.save(str(tmp_path), state(10), {}, keep=1)
    monkeypatch.setattr(hardware, "free_disk_bytes", lambda path: 1000)
    with pytest.raises(CheckpointError, match="the disk has 1.0 kB free"):
        checkpoint.save(str(tmp_path), state(20), {}, keep=1)
    assert checkpoint.whole_steps(str(tmp_path)) == [10]


def test_cut_and_odd_records_are_passed_over(tmp_path):
    directory = RunDirectory(str(tmp_path))
    directory.write_status(Status(phase="training", step=7, of=9))
    status = directory.read_status()
    assert status and (status.step, status.heartbeat > 0) == (7, True)
    (tmp_path / "request.json").mkdir()
    for odd in ("", '{"heartbeat": "x", "step": 5, "phase": "training", "attempt": null}'):
        (tmp_path / "status.json").write_text(odd)
        assert directory.read_status() is None and directory.take_request() is None
    (tmp_path / "status.json").write_text('{"step": 5, "phase": "training", "key of a later version": null}')
    status = directory.read_status()
    assert status and (status.heartbeat, status.step, status.phase, status.attempt) == (0.0, 5, "training", 1)
    lines = '{"step": 1}\n{"step": 2}\n'
    (tmp_path / "metrics.jsonl").write_text(lines + '{"step": "x"}\n[]\n{"step": 3}\n\0\0\0\n{"step": 4, "lo')
    assert directory.read_metrics() == [{"step": 1}, {"step": 2}, {"step": 3}]
    assert directory.drop_metrics_after(2) == 1
    assert (tmp_path / "metrics.jsonl").read_text() == lines


def test_progress_without_a_terminal_is_a_line_every_15_seconds():
    now, out = 0.0, io.StringIO()
    bar = Progress("train", 100, "steps", stream=out, clock=lambda: now)
    for step in range(40):
        now = step + 1.0
        bar.advance(1, note=f"loss {step}")
    bar.close()
    lines = out.getvalue().splitlines()
    assert lines[0] == "train        15%  15/100 steps  1 steps/s  ETA 85 s  loss 14"
    assert len(lines) == 3


def test_tensorboard_reads_the_events(tmp_path):
    """Also after a restart at step 10, when the first attempt had come to 300; varints then take two bytes."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for done, steps in ((0, {5: 2.5, 10: 2.25, 300: 9.0}), (10, {20: 2.0, 300: 1.5})):
        board = TensorBoard(str(tmp_path / "events"), done)
        for step, loss in steps.items():
            board.add(step, trainer_names({"step": step, "loss": loss, "tokens": 10**12, "kind": "a word"}))
        board.close()
    events = EventAccumulator(str(tmp_path / "events")).Reload()
    assert events.Tags()["scalars"] == ["train/loss", "train/num_input_tokens_seen"]
    losses = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert losses == [(5, 2.5), (10, 2.25), (20, 2.0), (300, 1.5)]
    assert events.Scalars("train/num_input_tokens_seen")[0].value == np.float32(1e12)
    assert abs(events.Scalars("train/loss")[-1].wall_time - os.path.getmtime(tmp_path / "events")) < 60


def test_events_that_cannot_be_written_are_said_once_and_left_out(tmp_path, capfd):
    (tmp_path / "events").write_text("a file where a folder should be")
    board = TensorBoard(str(tmp_path / "events"), 0)
    for step in range(3):
        board.add(step, {"loss": 1.0})
    board.close()
    assert capfd.readouterr().err.count("TensorBoard events cannot be written") == 1


def test_only_what_saves_have_left_is_swept(tmp_path):
    for name in ("step-notes", "step-00000003", "step-00000004.tmp-77", "damaged-step-00000002"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("x")
    checkpoint.save(str(tmp_path), state(10), {}, keep=1)
    assert sorted(os.listdir(tmp_path)) == ["damaged-step-00000002", "step-00000010", "step-notes"]


def test_a_checkpoint_of_a_newer_format_is_refused_not_set_aside(tmp_path):
    for step in (10, 20):
        checkpoint.save(str(tmp_path), state(step), {}, keep=2)
    manifest = tmp_path / "step-00000020" / "MANIFEST.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(InputError, match="has format 2, but this version reads 1"):
        checkpoint.load_newest(str(tmp_path), set_aside=True)
    assert sorted(os.listdir(tmp_path)) == ["step-00000010", "step-00000020"]


def test_a_checkpoint_under_another_steps_name_is_not_used(tmp_path):
    checkpoint.save(str(tmp_path), state(10), {}, keep=2)
    shutil.copytree(tmp_path / "step-00000010", tmp_path / "step-00000099")
    loaded = checkpoint.load_newest(str(tmp_path), set_aside=True)
    assert loaded and loaded[0].step == 10 and (tmp_path / "damaged-step-00000099").exists()
