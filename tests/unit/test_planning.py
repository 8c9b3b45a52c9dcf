"""`maskwright plan`: the model against what was measured, the probe against real steps, the words of both, and what is
made of the compiler's answer; the compiler itself is in tests/tpu."""

import importlib.util
import json
import math
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from recipe_times import table
from scipy import stats

from maskwright.cli.main import run
from maskwright.config.pretraining import build_config
from maskwright.core.console import human_bytes
from maskwright.core.errors import ConfigError, InputError
from maskwright.engines.jax.aot import Collective, CompileRequest, CompileResult
from maskwright.machine.devices import DEVICES, here, place
from maskwright.machine.tpus import TPUS, accelerator_type, topologies_by_chips
from maskwright.model.config import model_config
from maskwright.model.hf.config import to_hf_config
from maskwright.tasks.planning import measure, show
from maskwright.tasks.planning import slices as task
from maskwright.tasks.planning.cost import Interval, memory, pretraining_work, seconds_of, step_seconds, time_here
from maskwright.tasks.planning.show import PlanReport, projected
from maskwright.tasks.pretrain.model import model_without_store
from maskwright.tasks.pretrain.prepare import planned, prepare_run
from maskwright.tasks.start.capacity import checkpoint_bytes, state

VOCABULARY = 50_265


def work(size, rows, tokens, words=VOCABULARY, **keys):
    """Of a run without a store, whose rows are one document each, as in the benchmarks."""
    run_keys = {
        "data": {"store": "nowhere", "seq_len": tokens},
        "model": {"size": size, **keys.pop("model", {})},
        "schedule": {"steps": 1000, "warmup_steps": 1},
        "batch": {"micro_batch_rows": rows, **keys.pop("batch", {})},
        **keys,
    }
    config = build_config(run_keys, "a test")
    return pretraining_work(config, model_without_store(config, words))


def speed(one, on):
    """Tokens a second."""
    return projected(one, place(on)).tokens_per_second


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
def test_the_model_is_near_what_an_h200_did(size, rows, tokens, model, measured, off):
    """On one, compiled, with exact sums (records/experiments.md)."""
    found = speed(work(size, rows, tokens, model=model), "h200")
    assert found.mid == pytest.approx(measured, rel=off) and found.low < measured < found.high


@pytest.mark.parametrize(
    ("size", "rows", "tokens", "peak"), [("small", 8, 512, (2.4, 2.5)), ("mini", 32, 128, (1.0, 1.1))]
)
def test_measured_peaks_are_inside_the_band_of_memory(size, rows, tokens, peak):
    """GB on a CPU in bf16, where freed memory is kept (records/experiments.md)."""
    parts = memory(work(size, rows, tokens), place("cpu:2"))
    low, high = (sum(parts.values()) / 1e9 * factor for factor in show.MEMORY_BAND)
    assert low < peak[0] < peak[1] < high


ZEN_5 = here("cpu", 4.62e11, low_precision=True)
ZEN_5_FP32 = here("cpu", 1.1e11, low_precision=False)
WITH_MUON = {"model": {"architecture": "modernbert"}, "optimizer": {"kind": "muon"}}


@pytest.mark.parametrize(
    ("bf16", "fp32", "size", "rows", "tokens", "keys"),
    [
        (28.8, 64.5, "nano", 16, 64, {}),
        (337.0, 1001.0, "mini", 32, 128, {}),
        (460.0, 1331.0, "mini", 32, 128, WITH_MUON),
        (458.0, 1513.0, "small", 2, 512, {}),
        (1750.0, 5948.0, "base", 2, 512, {}),
        (6092.0, None, "base", 2, 512, WITH_MUON),
    ],
)
def test_steps_on_a_core_of_zen_5_are_inside_their_band(bf16, fp32, size, rows, tokens, keys):
    """Medians of CPU time in milliseconds, with 15,758 words (records/experiments.md, 2026-11-29)."""
    one = work(size, rows, tokens, 15_758, **keys)
    for milliseconds, machine in ((bf16, ZEN_5), (fp32, ZEN_5_FP32)):
        found = step_seconds(replace(one, evaluated=0.0), machine).times(1e3)
        assert milliseconds is None or found.low < milliseconds < found.high


def test_each_key_that_decides_the_speed_changes_the_answer():
    def at(on, keys, **more):
        return speed(work("base", 128, 512, batch={"virtual_workers": 8}, **keys, **more), on).mid

    ways = ("cpu:2", "t4", "a100", "h100", "h200", "h100:8")
    assert sorted(ways, key=lambda on: at(on, {})) == list(ways)
    assert 7 < at("h100:8", {}) / at("h100", {}) < 8
    fp32, muon = {"engine": {"dtype": "fp32"}}, {"optimizer": {"kind": "muon"}}
    assert 3 < at("cpu:8", {}) / at("cpu:8", fp32) < 4.5 and 5 < at("h100", {}) / at("h100", fp32) < 15
    assert at("laptop", {}) == at("laptop", fp32)
    for on in ("cpu:8", "h100"):
        plain, moved = (speed(work("base", 8, 512, **keys), on).mid for keys in ({}, muon))
        assert 0.4 < moved / plain < 0.9
    small = speed(work("nano", 16, 64), "h100:8")
    assert small.high < 1e6, "a small step waits for its launches"
    base = work("base", 128, 512, batch={"virtual_workers": 8})
    parts, whole = memory(base, place("h100:8")), memory(base, place("h100"))
    assert parts["moments"] == whole["moments"] / 8
    of_number = whole["weights"] / 6  # one in bf16 to compute with, and one in fp32
    assert parts["weights"] == of_number * (2 + 4 / 8)
    assert memory(work("base", 128, 512, **fp32), place("h100"))["activations"] == 2 * whole["activations"]


def test_this_machine_is_a_place_like_others():
    """The first line of a run, its dry run and `plan` have one answer."""
    one = work("base", 128, 512)
    gpu = here("cuda", 0.8 * DEVICES["h200"].flops_per_second, low_precision=True)
    assert gpu and seconds_of(one, gpu) == pytest.approx(seconds_of(one, place("h200")))
    two, alone = here("cpu", 9.4e11, low_precision=True, threads=2), place("cpu:2")
    assert two and seconds_of(one, two) == pytest.approx(seconds_of(one, alone))
    assert here("cpu", 4e12, low_precision=True, threads=2) == two, "with AMX a step takes as long"
    shared = here("cpu", 9.4e11, low_precision=True, processes=2)
    assert shared and 1 < seconds_of(one, shared)[0] / seconds_of(one, two)[0] < 1.5
    assert here("tpu", 1e12, low_precision=True) is None
    assert projected(one, two).seconds == step_seconds(one, two).times(1000)
    judged = replace(one, evaluated=0.0)
    assert step_seconds(judged, two).mid < step_seconds(one, two).mid


def test_other_programs_on_this_machine_are_named_with_the_time(monkeypatch):
    one, machine = work("base", 128, 512), here("cpu", 9.4e11, low_precision=True, threads=2)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    others = "projected; other programs compute here too (a load of 8.7 on 2 cores)"
    for load, says in ((2.9, "projected"), (8.66, others)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0))
        found = time_here(one, machine) or ""
        assert "fp16" not in found
        assert says in found and found.endswith("projected") is (load < 3), found
    slow = work("base", 128, 512, engine={"dtype": "fp16"})
    assert "fp16 is for GPUs: engine.dtype: auto takes" in (time_here(slow, machine) or "")
    assert [note[:16] for note in projected(slow, place("laptop")).notes] == ["fp16 is for GPUs"]


def test_compiling_is_no_part_of_a_step():
    class Compiler:
        def __init__(self):
            self.report = {"compiles": [{"seconds": 1.0}]}

    engine = Compiler()
    assert measure.seconds_of(engine, lambda: engine.report["compiles"].append({"seconds": 50.0})) < -40.0


def test_an_interval_of_a_mean_is_students():
    for values in ([1.0, 2.0], [3.0, 3.5, 2.9, 3.3], [1.0, 1.2] * 15):
        found = measure.mean_of(values)
        referee = stats.t.interval(0.95, len(values) - 1, loc=found.mid, scale=stats.sem(values))
        assert found.high == pytest.approx(referee[1], rel=2e-2)
        assert found.low == pytest.approx(max(referee[0], min(values)), rel=2e-2)
    with pytest.raises(ValueError, match="two"):
        measure.mean_of([1.0])
    assert Interval(2, 4, 8).over(16) == Interval(2, 4, 8)


def test_a_time_has_one_unit_that_suits_it():
    for told, (low, mid, high) in {
        "5.4 days (4.5 to 8.3)": (390_332, 468_398, 720_610),
        "60 years (46 to 151)": (1.46e9, 1_903_354_698, 4.76e9),
        "4.2 ms (3.5 to 42)": (0.0035, 0.0042, 0.0421),
        "1.0 min (0.18 to 1.0)": (11, 59.8, 60),
        "0 s (0 to 0)": (0, 0, 0),
    }.items():
        assert Interval(low, mid, high).time() == told


def test_micro_batches_that_were_not_computed_count_like_the_second():
    found = measure.extrapolated(Interval(1.0, 1.0, 1.0), Interval(1.4, 1.5, 1.6), 5)
    assert (found.low, found.mid, found.high) == pytest.approx((2.6, 3.0, 3.4))


# ---- places, prices -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on", "says"),
    [
        ("h1000:8", "did you mean h100:8"),
        ("v6e", "write KIND:TOPOLOGY, as v6e:4x4"),
        ("v6e:4", "is not a slice"),
        ("v6e:3x7", "--on: 'v6e:3x7' is not a slice that Google rents. Fix: v6e:4x4 is the nearest of 1x1, 2x2, 2x4,"),
        ("v5e:8x4", "v5e:4x8 is the nearest of 1x1, .* 16x16$"),
        ("v4:4x4", "v4:2x2x4 is the nearest of 2x2x1, .* 2x4x4, and three multiples of 4 .* of up to 4,096 chips"),
        ("v5p:4x6x8", "v5p:4x4x12 is the nearest"),
        ("v5p:24x16x16", "v5p:16x16x24 is the nearest"),
        ("tpu7x:99999x99999x99999", "is the nearest"),
        ("h100:x", "write a number"),
        ("h100:16", "more than one machine"),
        ("", "name a device"),
    ],
)
def test_what_is_no_place_is_refused(on, says):
    with pytest.raises(ConfigError, match=says):
        place(on)


def test_slices_that_google_rents_are_places():
    """Each size of the older set-up, and the largest and the smallest of each kind."""
    assert (place("H100:8").count, place("cpu:16").count, place("v6e:4x4").topology) == (8, 16, "4x4")
    for kind in TPUS:
        for count, topology in topologies_by_chips(kind).items():
            if (kind, count) not in {("v2", 512), ("v2", 1024)}:
                assert place(f"{kind}:{topology}").count == count
                assert not TPUS[kind].type_prefix or place(accelerator_type(kind, topology)).topology == topology
    largest = {"v2": "16x16", "v4": "16x16x16", "v5p": "16x16x24", "tpu7x": "16x24x24", "v6e": "16x16"}
    smallest = {"v3": "2x2", "v5e": "1x1", "v5p": "1x1x1", "tpu7x": "1x1x1", "v4": "2x2x1"}
    for kind, topology in [*largest.items(), *smallest.items(), ("v5p", "4x4x12")]:
        assert place(f"{kind}:{topology}").topology == topology


def test_without_a_store_rows_count_as_full(config):
    real = config()
    away = real.model_copy(update={"data": real.data.model_copy(update={"store": "nowhere"})})
    with pytest.raises(InputError, match="nowhere: .*give --tokens N"):
        planned(away, None, None)
    size = prepare_run(real).store.vocabulary.size
    found, ready = planned(away, None, size)
    assert ready is None and found.tokens == real.rows_per_step * real.data.seq_len
    four = real.model_copy(update={"schedule": real.schedule.model_copy(update={"steps": None, "epochs": 4})})
    assert planned(four, 1_000_000, None)[0].steps == math.ceil(4 * 1_000_000 / real.data.seq_len / real.rows_per_step)
    for wrong, tokens, fix in ((four, None, "give --tokens N"), (real, 9, "add --set schedule.epochs=4")):
        with pytest.raises(ConfigError, match=fix):
            planned(wrong, tokens, size)
    exact = planned(real, None, None)[0]
    assert found.parameters == exact.parameters and 0.5 * found.tokens < exact.tokens <= found.tokens


def test_the_work_of_a_short_phase_at_the_end_counts(config):
    """The rows are nearly full, so the work is that of full ones but for what they lack."""
    last = {"until_step": 200, "rows_per_step": 800, "masking_rate": 0.5}
    phases = [{"until_step": 1, "seq_len": 16}, {"until_step": 190}, last]
    ready = prepare_run(config(**{"schedule.steps": 200, "phases": phases}))
    exact, found = pretraining_work(ready.config, ready.model), ready.work
    plain = prepare_run(config(**{"schedule.steps": 200})).work
    run, plain_run = (PlanReport(one, []).report().splitlines()[1] for one in (found, plain))
    assert plain_run.startswith("run: 200 steps of 8 rows of 32 tokens, 9") and "% full: " in plain_run
    assert run.startswith("run: 200 steps in 3 phases, 9") and "% full: " in run
    for number in (found.tokens / exact.tokens, found.predicted / exact.predicted):
        assert number == pytest.approx(plain.tokens / (8 * 32), rel=0.05)


# ---- here -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [{"optimizer.kind": "muon"}, {"engine.kind": "jax"}], ids=["torch", "jax"])
def test_measuring_takes_real_steps_and_leaves_nothing(config, tmp_path, monkeypatch, keys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ready = prepare_run(config(**{"batch.virtual_workers": 2}, **keys))
    found = measure.measure(ready, ready.judged_by, 0.05)
    assert found.steps >= 4 and found.step_seconds.low > 0 and found.evaluated_seconds > 0
    headers = found.checkpoint_bytes - checkpoint_bytes(ready.config, ready.model)
    assert 0 < headers < 16_000 and human_bytes(found.checkpoint_bytes - headers) in ready.describe()
    assert list(tmp_path.iterdir()) == []
    told = show.measured(ready.work, found)
    least = found.step_seconds.mid * ready.config.steps
    assert told.kind == "measured" and least < told.seconds.mid < least + 60 + 10 * found.starting_seconds


def test_measured_and_projected_are_told_apart(config, capsys, monkeypatch):
    monkeypatch.setattr("maskwright.config.retrieval.read_any_config", lambda name, overrides: config())
    monkeypatch.setattr("maskwright.core.extras.installed", lambda name: name != "libtpu")
    monkeypatch.setattr("maskwright.cli.plan.PROBE_SECONDS", 0.1)
    places = ("--on", "here", "--on", "h100:8", "--on", "v6e:2x2", "--on", "h200")
    assert run(["plan", "any", *places, "--json"]) == 1, "two virtual workers cannot be shared out over eight devices"
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


def test_the_page_has_the_time_of_each_recipe():
    page = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"
    assert table() in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["torch", "jax"])
def test_a_dry_run_says_memory_and_time_of_all_processes(kind, config, tmp_path, capsys, monkeypatch):
    keys = {"batch.virtual_workers": 4, "engine.kind": kind, "optimizer.kind": "muon", "engine.threads": 0}
    with_four = config(**keys)
    monkeypatch.setattr("maskwright.config.pretraining.read_config", lambda name, overrides: with_four)
    monkeypatch.setattr(measure, "products_here", lambda engine, device: (4e11, False, 4))
    ready = prepare_run(with_four)
    for options, processes, each in ([], 1, ""), (["--processes", "2"], 2, " in each of 2 processes"):
        assert run(["pretrain", "any", "--run", str(tmp_path / "run"), "--dry-run", *options]) == 0
        out = capsys.readouterr().out
        share = sum(state(with_four, ready.model, processes).values())
        assert f"memory for weights and optimizer: {human_bytes(share)}{each}; each" in out
        machine = here("cpu", 4e11, low_precision=False, processes=processes, threads=4 // processes)
        assert str(ready.time_here(machine)) in out and "steps and their evaluations" in out
    assert ready.time_here(machine, with_four.steps - 2) != ready.time_here(machine)
    assert ready.time_here(machine, with_four.steps) is None


@pytest.mark.parametrize(("device", "says"), [("cuda", "unknown: engine.device: cuda was requested"), ("tpu", "tpu")])
def test_a_dry_run_says_which_device_it_cannot_time(device, says, config, tmp_path, capsys, monkeypatch):
    asked = config(**{"engine.device": "cpu" if device == "tpu" else device})
    monkeypatch.setattr("maskwright.config.pretraining.read_config", lambda name, overrides: asked)
    if device == "tpu":
        monkeypatch.setattr(measure, "choose_device", lambda engine: "tpu")
        says = "unknown, since no run was measured on such a device"
    assert run(["pretrain", "any", "--run", str(tmp_path / "run"), "--dry-run"]) == 0
    assert f"time here: {says}" in capsys.readouterr().out


def test_a_fine_tuning_is_planned_with_its_examples_or_before_they_are_here(tmp_path, tokenizer, capsys, monkeypatch):
    monkeypatch.setattr("maskwright.cli.plan.PROBE_SECONDS", 0.1)
    train, file = tmp_path / "train.jsonl", tmp_path / "task.yaml"
    lines = [json.dumps({"text": f"{i} words " + "or two " * (i % 5), "label": str(i % 2)}) for i in range(40)]
    train.write_text("\n".join(lines))
    values = {
        "data": {"train": str(train), "text": "text", "label": "label", "max_seq_len": 64},
        "model": {"tokenizer": tokenizer, "size": "nano"},
        "batch": {"examples": 8},
        "engine": {"device": "cpu", "threads": 1},
    }
    file.write_text(json.dumps(values))
    arguments = ["plan", str(file), "--on", "here", "--on", "t4", "--on", "v5e:2x4", "--json"]
    assert run([*arguments, "--set", "schedule.epochs=2", "--set", "batch.virtual_workers=8"]) == 1
    value = json.loads(capsys.readouterr().out)
    assert (value["work"]["steps"], value["work"]["counted"]) == (9, True)  # 36 of 40 examples, twice
    assert value["work"]["tokens_per_step"] >= 8 * 16
    measured, gpu, tpu = value["places"]
    assert (measured["kind"], gpu["kind"], tpu["kind"]) == ("measured", "projected", "projected")
    assert gpu["costs"] and tpu["costs"] and not gpu["notes"][:-1]
    assert "torch does not compute on TPUs. Fix: set engine.kind: jax" in str(tpu["notes"])
    train.unlink()
    assert run(["plan", str(file), "--on", "t4", "--examples", "120000", "--set", "data.max_seq_len=128"]) == 0
    out = capsys.readouterr().out
    assert "run: 40,500 steps of 8 examples, assumed to be full: 41.5M tokens" in out and "USD" in out


def test_a_place_that_refuses_the_run_or_is_too_small_is_the_commands_answer():
    def refused(size, on, **keys):
        one = work(size, 16, 512, **keys)
        return PlanReport(one, [projected(one, place(on))]).refused

    assert not refused("base", "h100") and not refused("base", "h100:8", batch={"virtual_workers": 8})
    assert refused("large", "t4", batch={"virtual_workers": 64}), "it does not fit"
    assert refused("base", "h100:8", batch={"virtual_workers": 3})
    jax = {"kind": "jax"}
    assert refused("nano", "v6e:1x1") and not refused("nano", "v6e:1x1", engine=jax)
    assert refused("base", "h100", engine=jax) and not refused("nano", "cpu:8", engine=jax)


def test_the_report_says_what_each_number_is():
    one = work("base", 128, 512)
    quotes = [show.Quote("SPOT", "us-central1", "a machine", 36.0, "2026-08-20")]
    text = PlanReport(one, [projected(one, place("h100"), quotes)]).report()
    assert "h100: projected, 1 x 989 TFLOP/s" in text and "measured" not in text
    seconds = 1000 * step_seconds(one, place("h100")).mid
    assert f"cost        {seconds / 100:.2f}"[:-2] in text
    assert re.search(r"[\d.]+ USD \([\d.]+ to [\d.]+\), SPOT: a machine", text) and "fits" in text
    cheap = [replace(quotes[0], usd_per_hour=0.001)]
    assert "cost        <0.01 USD (<0.01 to <0.01)" in PlanReport(one, [projected(one, place("h100"), cheap)]).report()
    long = work("base", 128, 512, schedule={"steps": 40_000_000, "warmup_steps": 1})
    text = PlanReport(long, [projected(long, place("h100"))]).report()
    assert re.search(r"energy      [\d,]+ kWh \([\d,]+ to \d,\d{3}\), at the devices' limit", text), text
    assert re.search(r" [\d,]+ PFLOP\b", text), text


# ---- slices of TPUs --------------------------------------------------------------------------------------------------


GIB = 2**30
MADE_UP_SLICE = """
from types import SimpleNamespace
from maskwright.engines.jax import aot as jax_aot
devices = [SimpleNamespace(process_index=i // 4, id=i) for i in range(16)]
jax_aot.topology = lambda name: SimpleNamespace(devices=devices)
jax_aot.main()
"""


class Compiler:
    """A stand-in whose memory grows in a straight line with the rows; remembers what it was asked."""

    def __init__(self):
        self.requests = list[CompileRequest]()

    def __call__(self, request):
        self.requests.append(request)
        micro_batches = max(1, request.virtual_workers // 8)
        needed = 1.5 + 0.131 * request.rows + (1.2 if micro_batches > 1 else 0.0)  # a second gradient
        sizes = {"limit_bytes": round(15.75 * GIB), "needed_bytes": round(needed * GIB), "arguments_bytes": GIB}
        gathered = [Collective("all-gather", True, 6, 2**21)]
        more = {"collectives": gathered, "compile_seconds": 1.0, "versions": {"jax": "0"}}
        return CompileResult("TPU v5 lite", 8, micro_batches, needed <= 15.75, **more, **sizes)


@pytest.fixture
def compiler(monkeypatch):
    made = Compiler()
    monkeypatch.setattr(task, "compiled", made)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    return made


def fit(config, on="v5e:2x4"):
    return task.plan(config, model_without_store(config, 400), on)


def test_the_command_says_by_how_much_a_run_does_not_fit_and_ends_with_1(config, compiler, capsys, monkeypatch):
    keys = {"batch.micro_batch_rows": 128, "batch.virtual_workers": 8, "data.seq_len": 512, "engine.kind": "jax"}
    monkeypatch.setattr("maskwright.config.retrieval.read_any_config", lambda name, overrides: config(**keys))
    assert run(["plan", "any", "--on", "v5e:2x4", "--vocab-size", "400", "--json"]) == 1
    (place,) = json.loads(capsys.readouterr().out)["places"]
    (program,) = place["compiled"]["programs"]
    assert (place["kind"], program["result"]["micro_batches"], place["notes"]) == ("projected", 1, [])
    assert not program["result"]["fits"]
    assert run(["plan", "any", "--on", "v5e:2x4", "--vocab-size", "400"]) == 1
    told = "1 micro-batch a device of 128 rows of 512 tokens: does not fit: 18.27 of 15.75 GiB a device, 1.16 times"
    assert f"{told} the limit (compiled in 1 s). Fix: halve batch.micro_batch_rows" in capsys.readouterr().out
    keys |= {"batch.micro_batch_rows": 64, "batch.virtual_workers": 16}
    assert run(["plan", "any", "--on", "v5e:2x4", "--vocab-size", "400"]) == 0
    assert "2 micro-batches a device of 64 rows of 512 tokens: fits: 11.08 of" in capsys.readouterr().out
    keys["batch.virtual_workers"] = 1
    assert run(["plan", "any", "--on", "v5e:2x4", "--vocab-size", "400"]) == 1
    assert "virtual worker" in capsys.readouterr().out


def test_each_phase_is_compiled_and_rows_of_both_kinds_stand_for_their_shape(config, compiler):
    """Attention over rows of both kinds needs the most memory."""
    phases = [{"until_step": 4, "seq_len": 16, "rows_per_step": 1024}, {"until_step": 8, "masking_rate": 0.16}]
    keys = {"batch.micro_batch_rows": 4, "batch.virtual_workers": 8}
    found = fit(config(**keys, phases=phases))
    assert [(one.rows, one.tokens) for one in compiler.requests] == [(128, 16), (4, 32)]
    assert [program.result.fits for program in found.programs] == [False, True] and not found.fits
    compiler.requests.clear()
    mixed, causal = {"until_step": 4, "seq_len": 16, "causal_share": 0.5}, {"until_step": 6, "causal_share": 1.0}
    fit(config(phases=[mixed, causal, {"until_step": 8, "causal_share": 0.5}]))
    assert [(request.tokens, request.causal) for request in compiler.requests] == [(16, None), (32, None)]


def test_a_model_that_is_continued_is_compiled_with_the_dropout_of_the_run(config, compiler, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    shape = model_config(config().model, 300, 64)
    (folder / "config.json").write_text(json.dumps(to_hf_config(replace(shape, hidden_dropout_prob=0.1))))
    workers = {"batch.virtual_workers": 8, "model.init_from": str(folder)}
    for rate in (0.0, 0.2):
        run = config(**workers, **{"model.hidden_dropout": rate, "model.attention_dropout": rate})
        fit(run, "v5e:2x4")
        model = compiler.requests[-1].model
        assert (model["hidden_dropout_prob"], model["attention_probs_dropout_prob"]) == (rate, rate)
        assert model["vocab_size"] == 300


def test_what_the_compilers_process_refuses_is_a_mistake_in_the_configuration(config, monkeypatch):
    """A whole process, in which only the slice is made up: four devices on each of four hosts."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    real = subprocess.run

    def instead(command, **more):
        return real([command[0], "-c", MADE_UP_SLICE, *command[4:]], **more)

    monkeypatch.setattr(subprocess, "run", instead)
    with pytest.raises(ConfigError, match=r"engine.devices: 6 devices were requested, but there are 16 on 4 hosts"):
        fit(config(**{"engine.kind": "jax", "engine.devices": 6}), "v6e:4x4")
