"""The JAX engine beside its numbers (tests/parity): what stopping, devices, dropout, memory and faults do to them."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from ended_runs import metrics, require_same, state

pytest.importorskip("jax", reason="needs the extra jax")

import jax
from reference import parity

from maskwright.core.errors import HealthError, MaskwrightError, StoppedEarly
from maskwright.data.loader import Loader
from maskwright.engines.base import TrainState
from maskwright.engines.jax.engine import JaxEngine
from maskwright.engines.jax.layout import ShardingLayout
from maskwright.engines.jax.step import choose_dtype
from maskwright.engines.torch.engine import TorchEngine
from maskwright.model.config import model_config
from maskwright.model.initial import initial_parameters
from maskwright.tasks.pretrain import run as task
from maskwright.training.stop import StopRequest

parity.use_virtual_devices()

JAX = {"engine.kind": "jax"}
RATE = 1e-3


def make(kind, config, store, **keys):
    """An engine at step 0, and what feeds it."""
    run = config(**keys)
    shape = model_config(run.model, store.vocabulary.size, run.data.seq_len)
    engine = kind(shape, run.optimizer, run.engine, run.seed)
    engine.write(TrainState(0, initial_parameters(shape, run.seed)))
    return engine, Loader(run, store)


def loss_of(engine, batches):
    stats = engine.step(batches, RATE)
    return float(stats.loss_sum) / float(stats.weight)


def train(folder, *starts, each):
    """The run at its end, and its losses: all `starts` but the last are stopped after `each` steps."""
    for number, config in enumerate(starts, 1):
        if number < len(starts):
            with pytest.raises(StoppedEarly):
                task.pretrain(config, str(folder), stop_request=StopRequest(stop_after_steps=each))
        else:
            task.pretrain(config, str(folder))
    end = state(folder)
    assert end.step == starts[-1].schedule.steps
    return end, [line["loss"] for line in metrics(folder) if "loss" in line]


def furthest(one, other):
    """Largest difference of any weight as a share of the largest in its array. Of a key's bias, whose true gradient is
    0, of the query's instead: what moved it is rounding alone."""
    shares = []
    for name, value in one.parameters.items():
        scale = np.abs(one.parameters[name.replace("key.bias", "query.bias")]).max()
        shares.append(float(np.abs(value - other.parameters[name]).max() / scale))
    return max(shares)


# ---- on the way from engine to engine, start to start, device to device ---------------------------------------------


def test_a_run_changes_its_engine_on_the_way(config, tmp_path):
    """Muon's too has AdamW's moments, of its embeddings."""
    keys = {"optimizer.kind": "muon", "optimizer.learning_rate": RATE}
    torch_run, jax_run = config(**keys), config(**keys, **JAX)
    alone = [train(tmp_path / run.engine.kind, run, each=12) for run in (torch_run, jax_run)]
    mixed = train(tmp_path / "mixed", torch_run, jax_run, torch_run, each=4)
    for end, losses in alone:
        assert mixed[1] == pytest.approx(losses, rel=1e-5)
        assert furthest(end, mixed[0]) < 1e-4
    assert "changed: engine.kind: torch -> jax" in (tmp_path / "mixed/log.txt").read_text()


@pytest.mark.long
def test_stopped_and_continued_on_any_number_of_devices(config, tmp_path):
    """With dropout, which is drawn for each virtual worker."""
    keys = {
        "model.hidden_dropout": 0.1,
        "model.attention_dropout": 0.1,
        "batch.virtual_workers": 4,
        "batch.micro_batch_rows": 2,
        "optimizer.learning_rate": RATE,
        "schedule.steps": 9,
        **JAX,
    }

    def on(devices, sharding):
        return config(**keys, **{"engine.devices": devices, "engine.sharding": sharding})

    one, two, cut = on(1, "data"), on(2, "data"), on(4, "fsdp")
    straight = train(tmp_path / "one", one, each=9)
    straight_cut = train(tmp_path / "cut", cut, each=9)
    found = train(tmp_path / "stopped", cut, cut, each=4)
    require_same(straight_cut[0], found[0])
    assert straight_cut[1] == found[1]

    moved = train(tmp_path / "moved", one, cut, two, each=3)
    for _, losses in (straight_cut, moved):
        assert losses == pytest.approx(straight[1], rel=1e-5)
    assert furthest(straight[0], moved[0]) < 1e-4


def test_dropout_is_drawn_by_seed_step_and_virtual_worker(config, store, monkeypatch):
    keys = {"model.hidden_dropout": 0.5, "model.attention_dropout": 0.5, "batch.virtual_workers": 4, **JAX}
    one, loader = make(JaxEngine, config, store, **keys)
    batches, start = loader.batches(0), one.read()
    plain, _ = make(TorchEngine, config, store)
    drawn = loss_of(one, batches)
    assert abs(drawn - plain.evaluate(batches).loss) > 1e-3

    def at(step, given):
        one.write(TrainState(step, start.parameters, one_moments))
        return loss_of(one, given)

    one_moments = {kind: {n: np.zeros_like(a) for n, a in named.items()} for kind, named in one.read().moments.items()}
    assert at(0, batches) == drawn
    assert abs(at(1, batches) - drawn) > 1e-4
    assert abs(at(0, [batches[1], batches[0], *batches[2:]]) - drawn) > 1e-4  # each by another worker

    four, _ = make(JaxEngine, config, store, **keys, **{"engine.devices": 4})
    assert loss_of(four, batches) == pytest.approx(drawn, rel=1e-6)
    with monkeypatch.context() as patch:  # as on a large slice of v5e
        patch.setattr(ShardingLayout, "sends_beside", False)
        limited, _ = make(JaxEngine, config, store, **keys, **{"engine.devices": 4})
        loss_of(limited, batches)
    require_same(four.read(), limited.read())
    other, _ = make(JaxEngine, config, store, **keys, seed=1)
    other.write(TrainState(0, start.parameters))
    assert abs(loss_of(other, batches) - drawn) > 1e-4


def test_auto_is_bf16_but_on_a_cpu():
    assert [choose_dtype("auto", device) for device in ("tpu", "cpu")] == ["bfloat16", "float32"]
    assert choose_dtype("fp32", "tpu") == "float32"


# ---- what the host does while the device works ----------------------------------------------------------------------


def test_a_step_waits_for_nothing_and_compiles_nothing_twice(config, store, monkeypatch, caplog):
    engine, loader = make(JaxEngine, config, store, **JAX)
    plain, _ = make(TorchEngine, config, store)
    held_out = loader.batches(100)
    first = loss_of(engine, loader.batches(0))
    # Without dropout, what is trained on is what is scored.
    assert first == pytest.approx(plain.evaluate(loader.batches(0)).loss, rel=1e-5)
    engine.evaluate(held_out)
    engine.read()

    array = type(engine._state["first_bad"])
    before = engine._vote  # of the step before: the host is one step ahead, and no more
    read = array.__int__

    def asked(self, *_):
        raise AssertionError("the host waits for the device")

    def asked_for_number(self):
        return read(self) if self is before else asked(self)

    with monkeypatch.context() as patch:
        for name in ("__float__", "__int__", "__bool__", "__index__", "__array__", "block_until_ready", "item"):
            patch.setattr(array, name, asked)
        patch.setattr(array, "__int__", asked_for_number)
        value = array._value
        patch.setattr(array, "_value", property(lambda self: value.fget(self) if self is before else asked(self)))
        stats = engine.step(loader.batches(1), RATE)
        with pytest.raises(AssertionError, match="waits"):  # so it is seen where somebody does ask
            float(stats.loss_sum)

    with jax.log_compiles():
        for step in range(2, 22):
            engine.step(loader.batches(step), RATE)
            if step % 5 == 0:
                engine.evaluate(held_out)
                engine.read()
        engine.check()
        assert "Compiling" not in caplog.text
        assert [made["what"] for made in engine.compiles] == ["update", "score"]
        engine.step([batch.part(0, 2) for batch in loader.batches(22)], RATE)
    assert "Compiling" in caplog.text
    last = engine.compiles[-1]
    assert (last["what"], last["step"], last["shapes"]["input_ids"]) == ("update", 22, (2, 1, 2, 32))
    assert json.loads(json.dumps(engine.report))["compiles"][-1]["what"] == "update"


@pytest.mark.long
def test_a_device_has_its_part_of_everything_and_activations_stay(config, store):
    keys = {"batch.virtual_workers": 8, "engine.devices": 4, "engine.sharding": "fsdp", "optimizer.kind": "muon"}
    engine, _ = make(JaxEngine, config, store, **keys, **JAX)
    layout = engine.program.layout
    for named in (engine._state["parameters"], *engine._state["moments"].values()):
        for name, array in named.items():
            assert layout.dims[name] is not None or array.size < 1000, name
            parts = 1 if layout.dims[name] is None else 4
            assert {part.data.size * parts for part in array.addressable_shards} == {array.size}, name

    deep = {"model.hidden_size": 256, "model.num_attention_heads": 4, "model.num_hidden_layers": 8}

    def compiled(devices, sharding, micro_batches=2):
        """Bytes of the arguments and of what is made on the way, on one device, and the program."""
        given = {**deep, **JAX, "engine.devices": devices, "engine.sharding": sharding}
        run = config(**given)
        shape = model_config(run.model, store.vocabulary.size, 32)
        program = JaxEngine(shape, run.optimizer, run.engine, 0).program
        sizes = {"micro_batches": micro_batches, "rows": 4, "tokens": 32, "slots": 20}
        executable = program.jitted("update").lower(*program.update_shapes(**sizes)).compile()
        memory = executable.memory_analysis()
        return memory.argument_size_in_bytes, memory.temp_size_in_bytes, executable.as_text()

    whole, few, many = compiled(8, "data"), compiled(2, "fsdp"), compiled(8, "fsdp")
    assert "all-to-all" in many[2] and "all-to-all" not in whole[2]
    assert compiled(8, "data", 1)[:2] == compiled(8, "fsdp", 1)[:2]
    assert many[0] == whole[0] < few[0] / 3
    assert many[1] < whole[1] / 2 and many[1] <= few[1]


@pytest.mark.parametrize("kind", [TorchEngine, JaxEngine])
def test_only_the_ratio_of_weights_counts(kind, config, store):
    """As those of classes, whose sum over a batch may be below 1."""
    keys = {} if kind is TorchEngine else JAX
    states, losses = [], []
    for share in (1.0, 2.0**-12):
        engine, loader = make(kind, config, store, **keys)
        batches = [replace(one, weights=one.weights * np.float32(share)) for one in loader.batches(0)]
        assert sum(one.weights.sum() for one in batches) < 1.0 or share == 1.0
        losses.append(loss_of(engine, batches))
        states.append(engine.read())
    assert losses[0] == losses[1]
    require_same(*states)


# ---- faults -------------------------------------------------------------------------------------------------------


def test_after_a_step_that_is_not_finite_nothing_changes(config, tmp_path, monkeypatch):
    """The device runs ahead: what is bad is found at the next log line, named by its step, and has changed nothing."""
    batch = Loader.batch

    def poisoned(self, step, virtual_worker):
        found = batch(self, step, virtual_worker)
        return replace(found, weights=found.weights * np.float32(np.nan)) if (step, virtual_worker) == (5, 1) else found

    monkeypatch.setattr(Loader, "batch", poisoned)
    run = config(**{"logging.every_steps": 4, "checkpoint.save_every_steps": 4}, **JAX)
    parameters, step = [], JaxEngine.step

    def watched(self, *arguments):
        stats = step(self, *arguments)
        parameters.append(self.read().parameters)
        return stats

    monkeypatch.setattr(JaxEngine, "step", watched)
    with pytest.raises(HealthError, match="step 5: the loss or its gradient is not finite") as failure:
        task.pretrain(run, str(tmp_path / "run"))
    assert (failure.value.exit_code, failure.value.step, len(parameters)) == (3, 5, 8)
    moved = [any((one[name] != other[name]).any() for name in one) for one, other in itertools.pairwise(parameters)]
    assert moved == [True] * 4 + [False] * 3
    assert (tmp_path / "run/not-finite/step-00000005/step.json").exists()


def small_memory(monkeypatch, rows, *, compiler_knows=False):
    """A device on which programs of more than `rows` rows at once end without memory; rows of each that ran."""
    compiled, seen = JaxEngine._compiled, []

    def limited(self, what, arguments, batch, **options):
        at_once = len(batch.input_ids) // self.program_like(batch).parts

        def exhausted(*_):
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.")

        if at_once > rows and compiler_knows:
            exhausted()
        if at_once > rows:
            return exhausted
        seen.append(at_once)
        return compiled(self, what, arguments, batch, **options)

    monkeypatch.setattr(JaxEngine, "_compiled", limited)
    return seen


def test_a_dry_run_compiles_both_programs_and_changes_nothing(config, store, monkeypatch):
    """And meets the memory that the compiler finds too small."""
    engine, loader = make(JaxEngine, config, store, **JAX)
    small_memory(monkeypatch, 2, compiler_knows=True)
    held_out, before = [loader.batch(100, 0)], engine.read()
    engine.dry_run(loader.batches(0), held_out)
    assert engine.at_once.rows == 2
    assert [(made["what"], made["step"]) for made in engine.compiles] == [("update", 0), ("score", 0)]
    require_same(before, engine.read())
    plain, _ = make(TorchEngine, config, store)
    assert loss_of(engine, loader.batches(0)) == pytest.approx(plain.evaluate(loader.batches(0)).loss, rel=1e-5)
    engine.evaluate(held_out)
    assert len(engine.compiles) == 2


@pytest.mark.parametrize(("rows", "fit", "left"), [(6, 5, 3), (7, 5, 1)])
def test_fewer_rows_at_once_give_the_same_loss(config, store, monkeypatch, capfd, rows, fit, left):
    keys = {"batch.micro_batch_rows": rows, "masking.kind": "span"}
    plain, loader = make(TorchEngine, config, store, **keys)
    engine, _ = make(JaxEngine, config, store, **keys, **JAX)
    small_memory(monkeypatch, fit)
    for step in range(2):
        assert loss_of(engine, loader.batches(step)) == pytest.approx(loss_of(plain, loader.batches(step)), rel=1e-5)
    assert engine.at_once.rows == left
    warnings = capfd.readouterr().err.splitlines()
    assert len(warnings) == 1 and f"with {rows} rows of 32 tokens at once: computing {left} at a time" in warnings[0]


def test_fewer_rows_at_once_go_through_a_checkpoint(config, tmp_path, monkeypatch):
    run = config(**{"schedule.steps": 4}, **JAX)
    with monkeypatch.context() as patch:
        small_memory(patch, 2)
        straight = train(tmp_path / "straight", run, each=4)
        with pytest.raises(StoppedEarly):
            task.pretrain(run, str(tmp_path / "parts"), stop_request=StopRequest(stop_after_steps=2))
    seen = small_memory(monkeypatch, 4)  # more would fit now, with other low bits
    parts = train(tmp_path / "parts", run, each=4)
    assert set(seen) == {2}
    require_same(straight[0], parts[0])


def test_one_row_too_many_is_an_error_of_one_line(config, tmp_path, monkeypatch):
    small_memory(monkeypatch, 0)
    with pytest.raises(MaskwrightError, match="out of memory with one row of 32 tokens"):
        task.pretrain(config(**JAX), str(tmp_path / "run"))
