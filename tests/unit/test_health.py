"""Spikes, chance and zeros in a curve of losses."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from maskwright.config.finetuning import FinetuneConfig
from maskwright.core.errors import HealthError
from maskwright.training import loop
from maskwright.training.health import WINDOW_LINES, LossWatch


def curve(length, seed=0):
    """A falling loss with the noise of small batches."""
    generator = np.random.default_rng(seed)
    return [3.0 + 6.0 * math.exp(-step / 60) + 0.1 * float(generator.standard_normal()) for step in range(length)]


def warnings(capsys):
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]


@pytest.mark.parametrize("seed", range(20))
def test_an_ordinary_curve_gives_no_warning(seed, capsys):
    watch = LossWatch(math.log(50_000), 100)
    assert not any(watch.look(10 * number, loss) for number, loss in enumerate(curve(400, seed)))
    assert warnings(capsys) == []


@pytest.mark.parametrize("at", [220, 399])
def test_a_spike_is_seen_where_it_is(at, capsys):
    losses = curve(400)
    losses[at] += 2.5
    watch = LossWatch(math.log(50_000), 100)
    assert [number for number, loss in enumerate(losses) if watch.look(number, loss)] == [at]
    (line,) = warnings(capsys)
    assert f"step {at}: loss {losses[at]:.3f} is far above" in line


def test_a_continued_watch_judges_as_an_unbroken_one():
    losses = curve(250)
    losses[220] += 2.5
    whole = LossWatch(math.log(50_000), 100)
    expected = [whole.look(number, loss) for number, loss in enumerate(losses)]
    again = LossWatch(math.log(50_000), 100, [(loss, 0) for loss in losses[:200]])
    assert [again.look(number, loss) for number, loss in enumerate(losses[200:], 200)] == expected[200:]
    later = LossWatch(math.log(50_000), 100, [(loss, 0) for loss in losses])
    assert later._losses == whole._losses and expected.index(True) == 220


def test_a_new_level_is_accepted_in_the_end():
    losses = [3.0 + 0.01 * math.sin(step) for step in range(60)] + [5.0 + 0.01 * math.sin(step) for step in range(60)]
    watch = LossWatch(math.log(50_000), 0)
    spikes = [number for number, loss in enumerate(losses) if watch.look(number, loss)]
    assert spikes == list(range(60, 70))
    watch = LossWatch(math.log(50_000), 0)
    phased = [watch.look(number, loss, number // 60) for number, loss in enumerate(losses)]
    assert not any(phased), "each phase has a level of its own"


def test_a_loss_that_stays_at_chance_is_named_once(capsys):
    watch = LossWatch(math.log(1000), warmup_steps=20)
    for step in range(4 * WINDOW_LINES):
        watch.look(step, math.log(1000) + 0.01 * math.sin(step))
    (line,) = warnings(capsys)
    assert f"{math.log(1000):.3f}" in line


def test_a_loss_of_zero_is_flagged(capsys):
    LossWatch(math.log(1000), 0).look(3, 0.0)
    assert "exactly 0" in warnings(capsys)[0]


def test_fine_tuning_without_labels_is_told_of_words_and_its_own_keys(capsys):
    counters = SimpleNamespace(empty_steps=1)
    job = SimpleNamespace(config=FinetuneConfig.model_construct(), counters=counters, step=3, steps=100)
    loop._watch_empty(job)
    (line,) = warnings(capsys)
    assert "step 2: no word had a label in the last 1 global batches" in line
    counters.empty_steps = loop.MOST_EMPTY_STEPS
    with pytest.raises(HealthError, match=r"no word had a label .* with a higher batch\.examples") as found:
        loop._watch_empty(job)
    assert "masking" not in str(found.value)
    counters.empty_steps = job.steps = 3  # a short run, all of it
    with pytest.raises(HealthError, match="in the last 3 global batches"):
        loop._watch_empty(job)
