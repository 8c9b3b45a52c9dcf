"""`maskwright plan`: the model against what was measured, the probe against real steps, the words of both."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from recipe_times import table
from scipy import stats

from maskwright.cli import plan as command
from maskwright.cli.main import run
from maskwright.cloud.prices import gpu_machine, hourly_offers
from maskwright.config.pretraining import RunConfig, build_config
from maskwright.core.console import human_bytes, human_time
from maskwright.core.errors import ConfigError, InputError
from maskwright.machine.tpus import TPUS, topologies_by_chips
from maskwright.model.config import training_flops
from maskwright.tasks.planning import estimate, projection, slices, trial
from maskwright.tasks.planning.devices import ACCELERATORS, DEVICES, place
from maskwright.tasks.planning.enough import continuing, enough
from maskwright.tasks.planning.expected import Load, seconds_here, time_here
from maskwright.tasks.planning.interval import Interval, mean_of
from maskwright.tasks.planning.labelled import LabelledWork
from maskwright.tasks.planning.probe import probe
from maskwright.tasks.planning.run import PlanReport, prepared
from maskwright.tasks.planning.steps import extrapolated, seconds_of
from maskwright.tasks.planning.trial import time_before
from maskwright.tasks.planning.work import Work, memory, work_of, work_without_store
from maskwright.tasks.pretrain.prepare import prepare_run
from maskwright.tasks.start.capacity import state

VOCABULARY = 50_265


def work(size: str, rows: int, tokens: int, **keys: Any) -> Work:
    """Of a run without a store, whose rows are one document each, as in the benchmarks."""
    run_keys = {
        "data": {"store": "nowhere", "seq_len": tokens},
        "model": {"size": size, **keys.pop("model", {})},
        "schedule": {"steps": 1000, "warmup_steps": 1},
        "batch": {"micro_batch_rows": rows, **keys.pop("batch", {})},
        **keys,
    }
    config = build_config(run_keys, "a test")
    return work_without_store(config, slices.model_of(config, VOCABULARY))


# ---- the model against what was measured ----------------------------------------------------------------------------


MODERNBERT = {
    "architecture": "modernbert",
    "num_hidden_layers": 22,
    "intermediate_size": 1152,
    "global_attn_every_n_layers": 3,
    "local_attention": 128,
}


@pytest.mark.parametrize(
    ("size", "rows", "tokens", "model", "measured", "off"),
    [
        ("base", 128, 512, {}, 689_690, 0.02),  # which calibrated it
        ("large", 64, 512, {}, 225_072, 0.05),
        ("base", 64, 1024, MODERNBERT, 416_918, 0.15),
        ("nano", 256, 128, {}, 7_922_347, 0.2),
    ],
)
def test_the_model_is_near_what_an_h200_did(
    size: str, rows: int, tokens: int, model: dict[str, Any], measured: float, off: float
) -> None:
    """On one, compiled, with exact sums (docs/experiments-archive.md)."""
    found, _ = projection.rate(work(size, rows, tokens, model=model), place("h200"))
    assert found.mid == pytest.approx(measured, rel=off) and found.low < measured < found.high


@pytest.mark.parametrize(
    ("size", "rows", "tokens", "measured"), [("base", 8, 512, 978), ("small", 8, 512, 4061), ("mini", 32, 128, 15213)]
)
def test_two_zen_5_cores_are_inside_their_band(size: str, rows: int, tokens: int, measured: float) -> None:
    """The medians of benchmarks/results/cpu-*.json."""
    found, _ = projection.rate(work(size, rows, tokens), place("cpu:2"))
    assert found.low < measured < found.high


@pytest.mark.parametrize(
    ("size", "rows", "tokens", "peak"), [("small", 8, 512, (2.3, 2.5)), ("mini", 32, 128, (1.2, 1.6))]
)
def test_measured_peaks_are_inside_the_band_of_memory(
    size: str, rows: int, tokens: int, peak: tuple[float, float]
) -> None:
    """GB on a CPU in bf16, where freed memory is kept (docs/experiments-archive.md)."""
    parts = memory(work(size, rows, tokens), 1, low_precision=True, plain_attention=True, processes=True)
    low, high = (sum(parts.values()) / 1e9 * factor for factor in estimate.MEMORY_BAND)
    assert low < peak[0] < peak[1] < high


@pytest.mark.parametrize("architecture", ["roberta", "modernbert"])
def test_flops_are_those_of_a_log_line(architecture: str) -> None:
    model: dict[str, Any] = {"architecture": architecture}
    if architecture == "modernbert":
        model |= {"global_attn_every_n_layers": 3, "local_attention": 64}
    one = work("small", 8, 512, model=model)
    assert one.flops == pytest.approx(training_flops(one.model, one.tokens, one.pairs, one.predicted), rel=1e-12)


def test_more_devices_and_more_work_move_the_model_in_the_right_direction() -> None:
    base = work("base", 128, 512, batch={"virtual_workers": 8})
    speed = {on: projection.rate(base, place(on))[0].mid for on in ("t4", "a100", "h100", "h200", "h100:8", "cpu:2")}
    assert speed["cpu:2"] < speed["t4"] < speed["a100"] < speed["h100"] < speed["h200"] < speed["h100:8"]
    assert 7 < speed["h100:8"] / speed["h100"] < 8
    small = projection.rate(work("nano", 16, 64), place("h100:8"))[0]
    assert small.high < 1e6, "a small step waits for its launches"
    parts, whole = (memory(base, n, low_precision=True, plain_attention=False, processes=False) for n in (8, 1))
    assert parts["moments"] == whole["moments"] / 8
    of_number = whole["weights"] / 6  # one in bf16 to compute with, and one in fp32
    assert parts["weights"] == of_number * (2 + 4 / 8)


def test_time_here_is_the_work_over_the_share_of_the_ceiling() -> None:
    one = Load(1e12, 0.0, 768, 12, 1, 4)
    found = seconds_here(one, 1e12, "cpu", 10)
    assert found and found.mid == pytest.approx(10 / 0.707)
    amx = [seconds_here(one, ceiling, "cpu", 10) for ceiling in (1.88e12, 4e12)]
    assert amx[0] == amx[1] and amx[0] and amx[0].mid == pytest.approx(found.mid / 1.88), "more than Zen 5 has"
    judged = seconds_here(replace(one, evaluations=5e11), 1e12, "cpu", 10)
    assert judged and judged.mid == pytest.approx(1.5 * found.mid)
    labelled = LabelledWork(cast(Any, None), 1e12, (0,), 1e12, 1, 0.0, 0.0)
    for other in (replace(one, jax=True), replace(one, labelled=labelled)):
        wider = seconds_here(other, 1e12, "cpu", 10)
        assert wider and wider.high / wider.low > found.high / found.low
    gpus = [seconds_here(replace(one, jax=jax), 1e12, "cuda", 10) for jax in (False, True)]
    assert gpus[0] and gpus[1] and gpus[1].mid == pytest.approx(gpus[0].mid / projection.JAX_SHARE)
    small = seconds_here(replace(one, flops=1e6), 1e12, "cuda", 10)
    assert small and small.mid == pytest.approx(10 * projection.STEP_SECONDS), "the host's own time"
    assert seconds_here(one, 1e12, "mps", 10) is seconds_here(one, 1e12, "tpu", 10) is None


def test_compiling_is_no_part_of_a_step() -> None:
    class Compiler:
        def __init__(self) -> None:
            self.report = {"compiles": [{"seconds": 1.0}]}

    engine: Any = Compiler()
    assert seconds_of(engine, lambda: engine.report["compiles"].append({"seconds": 50.0})) < -40.0


def test_an_interval_of_a_mean_is_students() -> None:
    for values in ([1.0, 2.0], [3.0, 3.5, 2.9, 3.3], [1.0, 1.2] * 15):
        found = mean_of(values)
        referee = stats.t.interval(0.95, len(values) - 1, loc=found.mid, scale=stats.sem(values))
        assert found.high == pytest.approx(referee[1], rel=2e-2)
        assert found.low == pytest.approx(max(referee[0], min(values)), rel=2e-2)
    with pytest.raises(ValueError, match="two"):
        mean_of([1.0])
    assert Interval(2, 4, 8).over(16) == Interval(2, 4, 8)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        ((468_398, 390_332, 720_610), "5.4 days (4.5 to 8.3)"),
        ((1_903_354_698, 1.46e9, 4.76e9), "60 years (46 to 151)"),
        ((88, 68, 141), "1.5 min (1.1 to 2.4)"),
        ((42, 33.4, 70), "42 s (33 to 70)"),
        ((0.0042, 0.0035, 0.0421), "4.2 ms (3.5 to 42)"),
        ((59.8, 11, 60), "1.0 min (0.18 to 1.0)"),
        ((0, 0, 0), "0 s (0 to 0)"),
    ],
)
def test_a_time_has_one_unit_that_suits_it(seconds: tuple[float, float, float], told: str) -> None:
    mid, low, high = seconds
    assert Interval(low, mid, high).time() == told
    assert human_time(mid) == told.partition(" (")[0]


def test_micro_batches_that_were_not_computed_count_like_the_second() -> None:
    found = extrapolated(Interval(1.0, 1.0, 1.0), Interval(1.4, 1.5, 1.6), 5)
    assert (found.low, found.mid, found.high) == pytest.approx((2.6, 3.0, 3.4))


# ---- places, prices -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on", "count", "topology"), [("t4", 1, None), ("H100:8", 8, None), ("v6e:4x4", 16, "4x4"), ("cpu:16", 16, None)]
)
def test_places_have_names(on: str, count: int, topology: str | None) -> None:
    found = place(on)
    assert (found.count, found.topology) == (count, topology)


@pytest.mark.parametrize(
    ("on", "says"),
    [
        ("h1000:8", "did you mean h100:8"),
        ("v6e", "write KIND:TOPOLOGY, as v6e:4x4"),
        ("v6e:4", "is not a slice"),
        ("v5p", "write KIND:TOPOLOGY, as v5p:4x4x4"),
        ("v6e:3x7", "--on: 'v6e:3x7' is not a slice that Google rents. Fix: v6e:4x4 is the nearest of 1x1, 2x2, 2x4,"),
        ("v5e:8x4", "v5e:4x8 is the nearest of 1x1, .* 16x16$"),
        ("v3:2x4", "v3:2x2 is the nearest"),
        (
            "v4:4x4",
            "v4:2x2x4 is the nearest of 2x2x1, 2x2x2, 2x2x4, 2x4x4, and three multiples of 4 .* of up to 4,096 chips",
        ),
        ("v5p:4x6x8", "v5p:4x4x12 is the nearest"),
        ("v5p:24x16x16", "v5p:16x16x24 is the nearest"),
        ("tpu7x:99999x99999x99999", "is the nearest"),
        ("h100:x", "write a number"),
        ("h100:16", "more than one machine"),
        ("", "name a device"),
    ],
)
def test_what_is_no_place_is_refused(on: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        place(on)


def test_slices_that_google_rents_are_places() -> None:
    """Each size of the older set-up, and the largest and the smallest of each kind."""
    for kind in TPUS:
        for count, topology in topologies_by_chips(kind).items():
            if (kind, count) not in {("v2", 512), ("v2", 1024)}:
                assert place(f"{kind}:{topology}").count == count
    largest = {"v2": "16x16", "v4": "16x16x16", "v5p": "16x16x24", "tpu7x": "16x24x24", "v6e": "16x16"}
    smallest = {"v3": "2x2", "v5e": "1x1", "v5p": "1x1x1", "tpu7x": "1x1x1", "v4": "2x2x1"}
    for kind, topology in [*largest.items(), *smallest.items(), ("v5p", "4x4x12")]:
        assert place(f"{kind}:{topology}").topology == topology


def test_costs_are_those_of_the_table() -> None:
    assert gpu_machine("nvidia-h100-80gb", 8) == "a3-highgpu-8g" and gpu_machine("nvidia-h100-80gb", 3) is None
    assert set(ACCELERATORS.values()) <= set(DEVICES)
    found = {one.model: one for one in hourly_offers("v6e", "us-central1", 16)}
    (chip,) = [one.usd for one in hourly_offers("v6e", "us-central1") if one.model == "SPOT"]
    assert found["SPOT"].usd == 16 * chip and found["SPOT"].machine == "16 chips of v6e"
    attached = {one.model: one for one in hourly_offers("nvidia-tesla-t4", "us-central1", 2)}
    assert (
        attached["STANDARD"].usd == pytest.approx(0.38 + 2 * 0.35) and attached["SPOT"].usd < attached["STANDARD"].usd
    )
    assert attached["SPOT"].machine == "n1-standard-8 with 2 x nvidia-tesla-t4"
    assert hourly_offers("nvidia-tesla-t4", "us-central1", 3) == hourly_offers("nvidia-tesla-v100", "us-east4") == []
    assert hourly_offers("a3-highgpu-8g", "nowhere") == []


# ---- data -----------------------------------------------------------------------------------------------------------


def test_what_the_data_is_enough_for() -> None:
    one = replace(work("base", 8, 512), text_tokens=20_000_000, epochs=2.0)
    lines = enough(one)
    assert "0.16 tokens of text" in lines[0] and "e+" not in enough(replace(one, text_tokens=10**12))[0]
    assert "lasts 19.5k steps until it was read 4 times" in lines[1]  # 80 M tokens in steps of 4,096
    assert "4.0M parameters for this text" in lines[2]  # 80 M / 20
    assert "with 3.1 billion words (PubMedBERT" in str(continuing(one))
    assert "about 15 million. Where a public encoder knows the language, continue it" in str(continuing(one))
    assert "about 1,500. Where" in str(continuing(replace(one, text_tokens=2_000)))
    assert "with this much text" in str(continuing(replace(one, text_tokens=5_000_000_000)))
    continued = one.config.model_copy(update={"model": one.config.model.model_copy(update={"init_from": "a"})})
    assert continuing(replace(one, config=continued)) is None
    assert enough(work("base", 8, 512)) == [] and continuing(work("base", 8, 512)) is None


def test_without_a_store_rows_count_as_full(config: Callable[..., RunConfig]) -> None:
    real = config()
    away = real.model_copy(update={"data": real.data.model_copy(update={"store": "nowhere"})})
    for size, here in ((None, False), (400, True)):
        with pytest.raises(InputError, match="nowhere: .*--vocab-size"):
            prepared(away, size, here=here)
    size = prepare_run(real).store.vocabulary.size
    found, ready = prepared(away, size, here=False)
    assert ready is None and found.tokens == real.rows_per_step * real.data.seq_len
    exact = prepared(real, None, here=True)[0]
    assert found.parameters == exact.parameters and 0.5 * found.tokens < exact.tokens <= found.tokens


def test_the_work_of_a_short_phase_at_the_end_counts(config: Callable[..., RunConfig]) -> None:
    """The rows are nearly full, so the work is that of full ones but for what they lack."""
    last = {"until_step": 200, "rows_per_step": 800, "masking_rate": 0.5}
    phases = [{"until_step": 1, "seq_len": 16}, {"until_step": 190}, last]
    ready = prepare_run(config(**{"schedule.steps": 200, "phases": phases}))
    exact, found = work_without_store(ready.config, ready.model), work_of(ready)
    plain = work_of(prepare_run(config(**{"schedule.steps": 200})))
    assert found.text_tokens == plain.text_tokens == ready.store.manifest["splits"]["train"]["tokens"]
    (_, run), (_, plain_run) = estimate.head(found), estimate.head(plain)
    assert plain_run.startswith("run: 200 steps of 8 rows of 32 tokens, 9") and "% full: " in plain_run
    assert run.startswith("run: 200 steps in 3 phases, 9") and "% full: " in run
    for number in (found.tokens / exact.tokens, found.predicted / exact.predicted):
        assert number == pytest.approx(plain.tokens / (8 * 32), rel=0.05)


# ---- here -----------------------------------------------------------------------------------------------------------


MUON = {"optimizer.kind": "muon", "model.architecture": "modernbert"}


@pytest.mark.parametrize("keys", [{}, MUON], ids=["adamw", "muon"])
def test_a_probe_takes_real_steps_and_leaves_nothing(
    config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ready = prepare_run(config(**{"batch.virtual_workers": 2}, **keys))
    found, counted = probe(ready, 0.05), work_of(ready)
    assert found.steps >= 4 and found.step_seconds.low > 0 and found.cpu_seconds > 0
    headers = found.checkpoint_bytes - counted.checkpoint_bytes
    assert 0 < headers < 16_000 and f"each checkpoint: {human_bytes(counted.checkpoint_bytes)}" in ready.describe()
    assert list(tmp_path.iterdir()) == []
    here = estimate.here(counted, found, 1 << 40)
    least = found.step_seconds.mid * counted.steps
    assert here.kind == "measured" and least < here.seconds.mid < least + 60 + 10 * found.starting_seconds


def test_measured_and_projected_are_told_apart(config: Callable[..., RunConfig], capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("maskwright.config.pretraining.read_config", lambda name, overrides: config())
    monkeypatch.setattr("maskwright.core.extras.installed", lambda name: name != "libtpu")
    arguments = ["plan", "any", "--probe-seconds", "0.1", "--on", "here", "--on", "h100:8", "--on", "v6e:2x2"]
    arguments += ["--on", "h200"]
    assert run([*arguments, "--json"]) == 1, "two virtual workers cannot be shared out over eight devices"
    value = json.loads(capsys.readouterr().out)
    assert (value["version"], value["work"]["steps"]) == (1, config().steps)
    here, gpu, tpu, single = value["places"]
    assert single["costs"] == [] and single["unpriced"].endswith("us-central1, not counted; Google has machines with 8")
    assert (here["kind"], gpu["kind"], tpu["kind"]) == ("measured", "projected", "projected")
    for one in value["places"]:
        assert one["hours"]["low"] <= one["hours"]["mid"] <= one["hours"]["high"]
        assert one["memory"]["kind"] == "projected" and one["memory"]["needed_bytes"] > 0
    assert here["peak_bytes"] and not here["costs"]
    assert {cost["model"] for cost in gpu["costs"]} == {"STANDARD", "SPOT"} and gpu["energy_kwh"]["kind"] == "projected"
    assert "not compiled" in tpu["notes"][-1] and tpu["compiled"] is None and tpu["energy_kwh"] is None


def test_a_dry_run_says_a_time_and_a_page_has_that_of_each_recipe(
    config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = time_before(prepare_run(config()))
    assert told and not re.match("time here: about 0 s", told)
    assert told and told.startswith("time here: about ") and f"for {config().steps} steps, projected" in told
    phases = [{"until_step": 2, "seq_len": 16}, {"until_share": 1.0}]
    monkeypatch.setattr(trial, "seconds_here", lambda *_: Interval(1.0, 1000.0, 2000.0))
    *_, first, second = str(time_before(prepare_run(config(phases=phases)))).splitlines()
    parts = [float(line.split()[-1].replace(",", "")) for line in (first, second)]
    assert sum(parts) == pytest.approx(1000.0, rel=0.02) and parts[0] < parts[1] * 2 / (config().steps - 2)
    page = Path(__file__).resolve().parents[2] / "docs" / "planning.md"
    assert table() in page.read_text(encoding="utf-8")


def test_a_dry_run_says_the_memory_of_each_process(
    config: Callable[..., RunConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    with_four = config(**{"batch.virtual_workers": 4})
    monkeypatch.setattr("maskwright.config.pretraining.read_config", lambda name, overrides: with_four)
    shares = [sum(state(with_four, prepare_run(with_four).model, processes).values()) for processes in (1, 2)]
    for options, share, each in ([], shares[0], ""), (["--processes", "2"], shares[1], " in each of 2 processes"):
        assert run(["pretrain", "any", "--run", str(tmp_path / "run"), "--dry-run", *options]) == 0
        assert f"memory for weights and optimizer: {human_bytes(share)}{each}; each" in capsys.readouterr().out
    assert human_bytes(shares[0]) != human_bytes(shares[1])


def test_a_dry_run_of_jax_measures_steps_and_says_compiling_apart(
    config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trial, "SECONDS", 0.05)
    ready = prepare_run(config(**{"engine.kind": "jax", "batch.virtual_workers": 2}))
    steps = f"{ready.config.steps} steps and their evaluations"
    told = time_before(ready)
    assert told and re.fullmatch(
        rf"time here: about .+ \(.+\) for {steps}, measured on a few real steps; compiling takes .+ more", told
    )
    assert list(tmp_path.iterdir()) == []
    first = time_here(ready, 1e12, "cpu", ready.config.steps - 2)
    assert first and first.endswith(" for 2 steps, projected")
    assert time_here(ready, 1e12, "cpu", ready.config.steps) is None
    assert "not known, since no run was measured on tpu" in str(time_here(ready, 1e12, "tpu"))


@pytest.mark.parametrize(
    ("engine", "given", "says"),
    [
        ({"engine.device": "cuda"}, {}, "not known: engine.device: cuda was asked for"),
        ({"engine.device": "tpu"}, {}, "not measured: engine.device: .*no TPU chip"),
        ({}, {"world": "2"}, "not measured: 2 processes train together"),
        ({}, {"bytes": 1000}, "not measured: weights and optimizer alone take .* of 1.0 kB of memory"),
        ({}, {"longest": 0.0}, "about .* projected from matrix multiplication, since one step takes too long"),
    ],
)
def test_a_dry_run_says_what_it_cannot_time(
    engine: dict[str, Any],
    given: dict[str, Any],
    says: str,
    config: Callable[..., RunConfig],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "world" in given:
        for name, value in (("WORLD_SIZE", "2"), ("MASTER_ADDR", "::1"), ("MASTER_PORT", "1"), ("RANK", "0")):
            monkeypatch.setenv(name, value)
    monkeypatch.setattr(trial, "usable_memory_bytes", lambda: given.get("bytes", 1 << 50))
    monkeypatch.setattr(trial, "LONGEST_SECONDS", given.get("longest", 1e9))
    kind = "torch" if engine.get("engine.device") == "cuda" else "jax"
    told = time_before(prepare_run(config(**{"engine.kind": kind, **engine})))
    assert re.match(f"time here: {says}", str(told)), told


def test_an_environments_yaml_names_its_parts(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(
        "name: lab\nproject: my-project\nzone: us-central1-a\n"
        "slice: {accelerator: v6e, topology: 4x4}\ngroup: {machine_type: g2-standard-24, size: 2}\n"
    )
    slice_, group = command._places(str(path), "elsewhere")
    assert (slice_[0].count, slice_[0].topology, slice_[1:]) == (16, "4x4", ("v6e", 16, "us-central1"))
    assert (group[0].device.name, group[0].count, group[1:]) == ("l4", 4, ("g2-standard-24", 2, "us-central1"))


def test_a_place_that_refuses_the_run_or_is_too_small_is_the_commands_answer() -> None:
    def refused(size: str, on: str, **keys: Any) -> bool:
        one = work(size, 16, 512, **keys)
        return PlanReport(one, [estimate.elsewhere(one, place(on), [], None, None)]).refused

    assert not refused("base", "h100") and not refused("base", "h100:8", batch={"virtual_workers": 8})
    assert refused("large", "t4", batch={"virtual_workers": 64}), "it does not fit"
    assert refused("base", "h100:8", batch={"virtual_workers": 3})
    assert refused("nano", "v6e:1x1") and not refused("nano", "v6e:1x1", engine={"kind": "jax"})


def test_the_report_says_what_each_number_is(config: Callable[..., RunConfig]) -> None:
    one = work("base", 128, 512)
    quotes = [estimate.Quote("SPOT", "us-central1", "a machine", 36.0, "2026-08-20")]
    text = PlanReport(one, [estimate.elsewhere(one, place("h100"), quotes, None, None)]).report()
    assert "h100: projected, 1 x 989 TFLOP/s" in text and "measured" not in text
    seconds = 1000 * one.tokens / projection.rate(one, place("h100"))[0].mid
    assert f"cost        {seconds / 100:.2f}"[:-2] in text
    assert re.search(r"[\d.]+ USD \([\d.]+ to [\d.]+\), SPOT: a machine", text)
    assert re.search(r"energy      [\d.]+ Wh \([\d.]+ to [\d.]+\), at the devices' limit", text) and "fits" in text
    long = work("base", 128, 512, schedule={"steps": 40_000_000, "warmup_steps": 1})
    text = PlanReport(long, [estimate.elsewhere(long, place("h100"), [], None, None)]).report()
    assert re.search(r"energy      [\d,]+ kWh \([\d,]+ to \d,\d{3}\), at the devices' limit", text), text
    assert re.search(r" [\d,]+ PFLOP\b", text), text
