"""Out of memory and out of disk: found early, or survived with the same numbers."""

import time
import weakref
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from ended_runs import require_same, require_same_ends
from torch import Tensor

from maskwright.config.pretraining import EngineSection, Optimizer
from maskwright.core.errors import MaskwrightError, StoppedEarly
from maskwright.core.library_errors import is_out_of_memory
from maskwright.data.loader import Loader
from maskwright.engines.base import AtOnce, TrainState
from maskwright.engines.torch import fit, weights
from maskwright.engines.torch.engine import TorchEngine
from maskwright.engines.torch.gradients import Gradients
from maskwright.engines.torch.levels import Levels
from maskwright.engines.torch.passes import Passes
from maskwright.engines.torch.processes import Peers, Sums
from maskwright.engines.torch.shares import FlatOrder
from maskwright.machine.cgroups import Cgroups
from maskwright.model.initial import initial_parameters
from maskwright.run.directory import RunDirectory
from maskwright.tasks.pretrain import run as task
from maskwright.tasks.pretrain.prepare import prepare_run
from maskwright.tasks.start.capacity import require_room, state_bytes
from maskwright.training import checkpoint
from maskwright.training.stop import StopRequest


def small_memory(monkeypatch, rows, error):
    """A device on which no more than `rows` rows fit; how many were computed at once, each time."""
    forward, seen = Passes.forward, []

    def limited(self, batch, *targets):
        seen.append(len(batch.input_ids))
        if seen[-1] > rows:
            raise error()
        return forward(self, batch, *targets)

    monkeypatch.setattr(Passes, "forward", limited)
    return seen


class OneOfTwo(Peers):
    """Rank 0 of two; `sent` are the numbers of the other."""

    def __init__(self, sent):
        self.rank, self.world_size, self._sent = 0, 2, torch.tensor(sent, dtype=torch.float64)

    def begin_to_gather(self, numbers):
        return lambda: torch.stack([numbers, self._sent])


def cpu_error():
    return RuntimeError("[enforce fail at alloc_cpu.cpp:119] err == 0. DefaultCPUAllocator: can't allocate memory")


def test_parts_of_a_batch_are_the_batch(config, store):
    batch = Loader(config(**{"batch.micro_batch_rows": 7, "masking.kind": "span"}), store).batch(3, 0)
    M, T = batch.input_ids.shape
    parts = [batch.part(begin, min(begin + 3, M)) for begin in range(0, M, 3)]
    assert [len(part.input_ids) for part in parts] == [3, 3, 1]
    assert np.array_equal(np.concatenate([part.input_ids for part in parts]), batch.input_ids)
    where = np.concatenate([part.predict_index + 3 * n * T for n, part in enumerate(parts)])
    real = batch.weights > 0
    assert np.array_equal(where[real], batch.predict_index[real])
    assert np.array_equal(np.concatenate([part.labels for part in parts]), batch.labels)
    assert all((part.predict_index < part.input_ids.size).all() for part in parts)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("rows", [5, 3, 1])
def test_fewer_rows_at_once_give_the_same_update(config, store, monkeypatch, rows, dtype):
    run = config(**{"batch.micro_batch_rows": 8, "batch.virtual_workers": 2})
    loader, model = Loader(run, store), prepare_run(run).model
    engines = []
    for limit in (None, rows):
        if limit:
            small_memory(monkeypatch, limit, cpu_error)
        engine = TorchEngine(model, Optimizer(kind="adamw"), EngineSection(device="cpu", dtype=dtype), 0)
        engine.write(TrainState(0, initial_parameters(model, 0)))
        stats = [engine.step(loader.batches(step), 1e-3) for step in range(3)]
        engines.append((engine, [float(s.loss_sum) for s in stats if s], engine.evaluate([loader.batch(9, 0)])))
    assert engines[1][0].at_once.rows == {5: 4, 3: 2, 1: 1}[rows]
    tolerance = 1e-5 if dtype == "fp32" else 2e-2
    np.testing.assert_allclose(engines[1][1], engines[0][1], rtol=tolerance)
    np.testing.assert_allclose(engines[1][2].loss_sum, engines[0][2].loss_sum, rtol=tolerance)
    before, after = (engine.read().parameters for engine, _, _ in engines)
    moved = max(float(np.abs(value - initial_parameters(model, 0)[name]).max()) for name, value in before.items())
    for name, value in before.items():
        # Adam divides by the root of the second moment, so where a gradient is tiny its last bits decide the sign.
        assert float(np.abs(value - after[name]).mean()) < (1e-3 if dtype == "fp32" else 0.1) * moved


@pytest.mark.parametrize("error", [cpu_error, MemoryError, lambda: torch.OutOfMemoryError("CUDA out of memory")])
def test_a_run_that_runs_out_of_memory_goes_on_aloud_and_resumes_exactly(config, tmp_path, monkeypatch, capfd, error):
    run = config(**{"schedule.steps": 8, "logging.every_steps": 1})
    seen = small_memory(monkeypatch, 2, error)
    task.pretrain(run, str(tmp_path / "straight"))
    assert "out of memory with 4 rows of 32 tokens at once: computing 2 at a time" in capfd.readouterr().err
    with pytest.raises(StoppedEarly):
        task.pretrain(run, str(tmp_path / "parts"), stop_request=StopRequest(stop_after_steps=3))
    seen.clear()
    task.pretrain(run, str(tmp_path / "parts"))
    assert set(seen) == {2}  # known from the checkpoint
    require_same_ends(tmp_path / "straight", tmp_path / "parts")


@pytest.mark.parametrize(
    ("said", "ran_out"),
    [
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(...)`", False),
        ("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'", True),
        ("NCCL error\nncclUnhandledCudaError: Call failed.\nLast error:\nCuda failure 2 'out of memory'", True),
        ("NCCL error\nncclUnhandledCudaError: Call failed.\nLast error:\nCuda failure 1 'invalid argument'", False),
    ],
    ids=["cublas", "cublas, another", "cuda", "nccl", "nccl, another"],
)
def test_a_full_card_is_known_by_what_its_libraries_say(said, ran_out):
    assert is_out_of_memory(RuntimeError(said)) is ran_out


@pytest.mark.parametrize("backend", [False, True])
def test_an_update_begins_again_until_another_process_may_have_part_of_it(monkeypatch, backend):
    """A backend that fails in its first sum may have given it to others."""
    weight = torch.nn.Parameter(torch.zeros(3))
    order = FlatOrder.of({"w": weight.shape}, ["w"], 2, muon=False)
    summing = Gradients({"w": weight}, order, Levels(0, 2))

    def full(*_, **options):
        raise RuntimeError("Cuda failure 2 'out of memory'")

    monkeypatch.setattr(*((torch.distributed, "all_to_all_single") if backend else (torch, "_foreach_copy_")), full)
    summing.begin(2)
    summing.before_backward(first=True, last=True, final=True)
    with pytest.raises(RuntimeError):
        weight.sum().backward()
    assert summing.sending is backend
    summing.begin(2)
    assert not summing.sending


def test_when_not_even_one_row_fits_it_says_so(config, tmp_path, monkeypatch):
    small_memory(monkeypatch, 0, cpu_error)
    with pytest.raises(MaskwrightError, match="out of memory with one row of 32 tokens"):
        task.pretrain(config(), str(tmp_path / "run"))


def test_a_row_that_fits_only_without_its_activations_is_trained_with_the_same_bits(
    config, tmp_path, monkeypatch, capfd
):
    """On their own, when memory runs out even with one row, and from the start."""
    many = {"model.num_hidden_layers": 3, "model.hidden_dropout": 0.1, "model.attention_dropout": 0.1}
    run = config(**{"schedule.steps": 4, "batch.micro_batch_rows": 1, **many})
    forward, ends, kept = Passes.forward, {}, []

    def small(self, batch, *targets):
        if self.network.training and not self.network.recompute and name == "auto":
            raise cpu_error()
        with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
            return forward(self, batch, *targets)

    monkeypatch.setattr(Passes, "forward", small)
    numbers = {}
    for name in ("off", "auto", "on"):
        kept.clear()
        values = run.model_copy(update={"engine": run.engine.model_copy(update={"activation_checkpointing": name})})
        if name == "auto":
            with pytest.raises(StoppedEarly):
                task.pretrain(values, str(tmp_path / name), stop_request=StopRequest(stop_after_steps=2))
        task.pretrain(values, str(tmp_path / name))
        ends[name] = checkpoint.load_newest(str(tmp_path / name / "checkpoints"), set_aside=False)
        numbers[name] = sum(kept)
    said = "activations are computed again in the backward pass from here on"
    assert capfd.readouterr().err.count(said) == 1  # the second start has it from the checkpoint
    assert [ends[name][1]["at_once"]["recompute"] for name in ends] == [False, True, False]
    for name in ("auto", "on"):
        assert numbers[name] < 0.7 * numbers["off"]
        require_same(ends["off"][0], ends[name][0])


@pytest.mark.parametrize(
    ("here", "there", "both"),
    [
        (AtOnce(), AtOnce(), AtOnce()),
        (AtOnce(), AtOnce(4), AtOnce(4)),
        (AtOnce(1, recompute=True), AtOnce(), AtOnce(1, recompute=True)),
        (AtOnce(2), AtOnce(1, recompute=True), AtOnce(1, recompute=True)),
    ],
)
def test_ranks_agree_on_what_fits_the_fullest(config, here, there, both):
    engine, other = (TorchEngine(prepare_run(run := config()).model, run.optimizer, run.engine, 0) for _ in range(2))
    engine.at_once, other.at_once = here, there
    engine.processes = OneOfTwo([5.0, 2, 0, *other.fit.numbers()])
    assert engine.exchange(3.0, 1, True)() == Sums(8.0, 2, urgent=True)
    assert engine.at_once == both


def test_a_dry_run_of_ranks_agrees_on_rows_and_then_sends(config, store, monkeypatch):
    """So that none waits for another that still compiles, and what is sent takes memory as in a step."""
    run, events = config(), list[object]()
    engine = TorchEngine(prepare_run(run).model, run.optimizer, run.engine, 0)
    engine.write(TrainState(0, initial_parameters(engine.config, 0)))
    engine.processes = OneOfTwo([0.0, 0, 0, 1, 0])
    accumulate, exchange, finish = engine._accumulate, engine.exchange, engine.weights.finish
    noted = {
        (engine, "_accumulate"): lambda *given, final: events.append(final) or accumulate(*given, final=final),
        (engine, "exchange"): lambda *given, **named: events.append("exchange") or exchange(*given, **named),
        (engine.weights, "finish"): lambda: events.append(engine.at_once.rows) or finish(),
    }
    for (there, name), function in noted.items():
        monkeypatch.setattr(there, name, function)
    engine.dry_run(Loader(run, store).batches(0, [0]), [])
    assert events == [False, "exchange", True, 1, "exchange"]


def test_an_update_that_is_begun_again_lacks_nothing(config, monkeypatch):
    """Where memory runs out between two buffers, or two optimizers."""
    run = config(**{"optimizer.kind": "muon"})
    engine = TorchEngine(prepare_run(run).model, run.optimizer, run.engine, 0)
    made, sums = weights.Muon, Gradients._sum
    monkeypatch.setattr(weights, "Muon", Mock(side_effect=[cpu_error(), *[made] * 9]))
    with pytest.raises(RuntimeError, match="allocate"):
        engine.weights.begin(4)
    monkeypatch.setattr(weights, "Muon", made)
    monkeypatch.setattr(Gradients, "_sum", Mock(side_effect=cpu_error()))
    with pytest.raises(RuntimeError, match="allocate"):
        engine.weights.begin(4)
    monkeypatch.setattr(Gradients, "_sum", sums)
    engine.weights.begin(4)
    assert [type(one).__name__ for one in engine.weights._optimizers] == ["AdamW", "Muon"]
    assert len(engine.weights.gradients._sums) == 2


def test_memory_is_freed_once_nothing_holds_what_ran_out(config, store, monkeypatch):
    """The frames of an error hold activations: a cache that is emptied before they go keeps them."""
    batch, activations, freed = Loader(config(), store).batch(0, 0), list[weakref.ref[Tensor]](), list[bool]()
    monkeypatch.setattr(fit, "warn", lambda text: freed.append(activations[-1]() is None))

    def full():
        activation = torch.zeros(3)
        activations.append(weakref.ref(activation))
        if len(activations) < 4:
            raise cpu_error()
        return "computed"

    fitting = fit.Fit("cpu", "auto", None)
    assert fitting.run(batch, full) == "computed" and fitting.at_once == AtOnce(1, recompute=True)
    assert freed == [True, True, True]


def test_other_errors_are_not_taken_for_memory(config, tmp_path, monkeypatch):
    small_memory(monkeypatch, 0, lambda: RuntimeError("shapes do not fit"))
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        task.pretrain(config(), str(tmp_path / "run"))


def test_a_save_that_takes_long_meets_no_second_copy_of_the_state(config, tmp_path, monkeypatch):
    save, read, writing, met = checkpoint.save, TorchEngine.read, list[bool](), list[bool]()

    def slow(*given, **options):
        writing.append(True)
        time.sleep(0.1)
        path = save(*given, **options)
        writing.clear()
        return path

    monkeypatch.setattr(checkpoint, "save", slow)
    monkeypatch.setattr(TorchEngine, "read", lambda engine: met.append(bool(writing)) or read(engine))
    task.pretrain(config(**{"schedule.steps": 4, "checkpoint.save_every_steps": 1}), str(tmp_path / "run"))
    assert met == [False] * 4


def test_a_model_too_large_for_the_machine_is_said_before_the_run(config, tmp_path, monkeypatch):
    """Also where nobody named the device, where a container may have less than the machine, and where several processes
    share it."""
    run, place = config(), tmp_path / "run"
    needed = state_bytes(prepare_run(run))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(Cgroups, "memory_bytes", lambda cgroups: needed - 1)
    with pytest.raises(MaskwrightError, match="parameters take .*, more than there is"):
        task.pretrain(run, str(place))
    assert not place.exists()
    monkeypatch.setattr(Cgroups, "memory_bytes", lambda cgroups: needed)
    require_room(prepare_run(run), RunDirectory(str(place)))
    beside = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in beside.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(MaskwrightError, match="in each of 2 processes, more than there is"):
        require_room(prepare_run(run), RunDirectory(str(place)))


DROPOUT = {"model.hidden_dropout": 0.1, "model.attention_dropout": 0.1}


@pytest.mark.parametrize("keys", [{}, {"optimizer.kind": "muon", "model.architecture": "modernbert", **DROPOUT}])
def test_a_dry_run_changes_no_number(config, store, keys):
    run = config(**keys)
    loader, model, ends = Loader(run, store), prepare_run(run).model, []
    for tried in (False, True):
        engine = TorchEngine(model, run.optimizer, run.engine, run.seed)
        engine.write(TrainState(0, initial_parameters(model, 0)))
        stats = []
        for step in range(3):
            if tried and step in (0, 2):  # at a start, and at one that continues
                before = engine.read()
                engine.dry_run(loader.batches(step), [loader.batch(9, 0)])
                require_same(before, engine.read())
                assert engine.at_once == AtOnce() and before.step == step
            found = engine.step(loader.batches(step), 1e-3)
            stats.append((float(found.loss_sum), float(found.grad_norm)))
        ends.append((engine.read(), stats))
    (plain, losses), (after, same) = ends
    assert losses == same
    require_same(plain, after)


def test_memory_runs_out_before_the_first_step(config, tmp_path, monkeypatch, capfd):
    """Also that of the evaluation, which this run would come to later."""
    events = []
    small_memory(monkeypatch, 2, cpu_error)
    dry_run, step, evaluate = TorchEngine.dry_run, TorchEngine.step, TorchEngine.evaluate

    def noted(name, real):
        def call(self, *arguments):
            events.append(f"{name} {self.at_once.rows}")
            return real(self, *arguments)

        return call

    for name, real in (("dry_run", dry_run), ("step", step), ("evaluate", evaluate)):
        monkeypatch.setattr(TorchEngine, name, noted(name, real))
    task.pretrain(config(**{"schedule.steps": 4, "schedule.warmup_steps": 1}), str(tmp_path / "run"))
    assert events[:3] == ["dry_run None", "evaluate 2", "evaluate 2"] and "step None" not in events
    assert capfd.readouterr().err.count("out of memory with 4 rows") == 1
    assert "largest shapes tried before step 1:" in (tmp_path / "run" / "log.txt").read_text()
