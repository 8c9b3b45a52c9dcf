"""bf16 against fp32 on the CPU, and a CUDA device against the CPU where there is one."""

import shutil
from functools import partialmethod
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from made_record import made_record

from maskwright.core.errors import ConfigError, MaskwrightError
from maskwright.data.loader import Loader
from maskwright.engines.base import Engine, TrainState
from maskwright.engines.choose import make_engine
from maskwright.engines.torch.engine import TorchEngine
from maskwright.engines.torch.passes import Passes
from maskwright.engines.torch.prepare import attention_kernel, choose_compile, set_determinism
from maskwright.machine import hardware
from maskwright.model.config import model_config
from maskwright.model.initial import initial_parameters
from maskwright.model.torch.linear import mkl_product
from maskwright.tasks.start import capacity


def losses(store, run, steps=12):
    shape = model_config(run.model, store.vocabulary.size, 32)
    engine, loader = TorchEngine(shape, run.optimizer, run.engine, seed=0), Loader(run, store)
    engine.write(TrainState(0, initial_parameters(shape, 0)))
    stats = [engine.step(loader.batches(step), 2e-3) for step in range(steps)]
    return [s.loss_sum / s.weight for s in stats]


def test_bf16_follows_fp32(store, config):
    exact, rounded = (losses(store, config(**{"engine.dtype": dtype})) for dtype in ("fp32", "bf16"))
    assert exact[-1] < exact[0] - 0.3
    assert np.abs(np.array(exact) - np.array(rounded)).max() < 0.03


def gradients(store, run):
    """Of the first update, by Hugging Face names."""
    shape = model_config(run.model, store.vocabulary.size, 32)
    engine = make_engine(shape, run.optimizer, run.engine, 0)
    engine.write(TrainState(0, initial_parameters(shape, 0)))
    engine.step(Loader(run, store).batches(0), 0.0, lambda: False)
    return engine.read().moments["exp_avg"]


def shares_off(found, exact):
    """How far each parameter's gradient is from the exact one, as a share of that."""
    whole = np.sqrt(sum(np.square(gradient).sum() for gradient in exact.values()))
    assert found.keys() == exact.keys() and len(exact) > 10 and np.isfinite(whole)
    # That of the keys' bias is 0 but for rounding: a softmax does not change with what is added to all of its scores.
    return {
        name: float(np.linalg.norm(found[name] - gradient) / (np.linalg.norm(gradient) + 1e-3 * whole))
        for name, gradient in exact.items()
    }


@pytest.mark.skipif(mkl_product() is None, reason="this libtorch does not export MKL's product of bf16 matrices")
@pytest.mark.parametrize("architecture", ["roberta", "modernbert"])
def test_gradients_by_mkl_are_nearer_to_fp32(store, config, monkeypatch, architecture):
    """As a CPU with AMX computes them."""
    keys = {"model.architecture": architecture, "optimizer.max_grad_norm": None}
    found = [gradients(store, config(**keys, **{"engine.dtype": dtype})) for dtype in ("fp32", "bf16")]
    monkeypatch.setattr(hardware, "cpu_has_amx", lambda: True)
    found.append(gradients(store, config(**keys, **{"engine.dtype": "bf16"})))
    plain, by_mkl = (shares_off(other, found[0]) for other in found[1:])
    matrices = [name for name in plain if found[0][name].ndim == 2 and "layer" in name]
    assert len(matrices) >= 4
    assert sum(by_mkl[name] for name in matrices) < sum(plain[name] for name in matrices)
    assert max(by_mkl.values()) < 0.02


ONE_BATCH = {"batch.virtual_workers": 1, "optimizer.max_grad_norm": None}


@pytest.mark.long  # a compiler's quarter of a minute
@pytest.mark.filterwarnings("ignore")  # of the compiler itself
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs g++ on a CPU; there is none")
@pytest.mark.parametrize(
    ("architecture", "layers", "dtype", "backend", "tolerance"),
    [("roberta", 2, "fp32", "aot_eager", 1e-4), ("modernbert", 1, "bf16", "inductor", 0.02)],
)
def test_compiled_layers_follow_plain_ones(store, config, monkeypatch, architecture, layers, dtype, backend, tolerance):
    """Every parameter's gradient: in the last layer, which computes predicted positions alone, and in one before. Each
    program takes g++ some seconds, so it compiles one layer; of two, the programs and their gradients are run as torch
    has traced them."""
    monkeypatch.setattr(torch.nn.Module, "compile", partialmethod(torch.nn.Module.compile, backend=backend))
    keys = ONE_BATCH | {"model.architecture": architecture, "model.num_hidden_layers": layers}
    plain, compiled = (
        gradients(store, config(**keys, **{"engine.compile": compile, "engine.dtype": precision}))
        for compile, precision in (("off", "fp32"), ("on", dtype))
    )
    off = shares_off(compiled, plain)
    assert {name: share for name, share in off.items() if share > tolerance} == {}


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # of the compiler itself
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; torch sees none")
@pytest.mark.parametrize("architecture", ["roberta", "modernbert"])
def test_an_exact_compiled_run_on_cuda_has_the_same_bits_twice(store, config, architecture):
    """Three updates, from programs that are compiled anew; and its gradients are those of a CPU in fp32."""
    keys = ONE_BATCH | {"model.architecture": architecture, "model.num_hidden_layers": 3}
    cuda = keys | {"engine.device": "cuda", "engine.dtype": "bf16", "engine.compile": "on"}
    cuda |= {"engine.reproducibility": "exact"}
    plain, ends = gradients(store, config(**keys, **{"engine.device": "cpu", "engine.dtype": "fp32"})), []
    try:
        off = shares_off(gradients(store, config(**cuda)), plain)
        assert {name: share for name, share in off.items() if share > 0.02} == {}
        for _ in range(2):
            torch.compiler.reset()
            run = config(**cuda)
            shape = model_config(run.model, store.vocabulary.size, 32)
            engine, loader = TorchEngine(shape, run.optimizer, run.engine, seed=0), Loader(run, store)
            engine.write(TrainState(0, initial_parameters(shape, 0)))
            for step in range(3):
                engine.step(loader.batches(step), 2e-3)
            ends.append(engine.read())
    finally:
        set_determinism(False)
    for first, second in zip(*([end.parameters, *end.moments.values()] for end in ends), strict=True):
        for name, array in first.items():
            assert array.tobytes() == second[name].tobytes(), name


def test_compiling_is_for_long_runs_on_a_gpu(monkeypatch, tmp_path):
    """A GPU's layers take a C compiler: without one a long run ends at its start, not at its first step."""
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    for device, wanted, program in (("cuda", "auto", "gcc"), ("cuda", "on", "gcc"), ("cpu", "on", "g\\+\\+")):
        with pytest.raises(ConfigError, match=rf"^engine.compile: {wanted} compiles .* Fix: install {program}, or set"):
            choose_compile(wanted, device, 1e18)
    (tmp_path / "gcc").touch(0o755)
    assert not choose_compile("auto", "cpu", 1e20)
    assert not choose_compile("auto", "cuda", 1e15)
    assert choose_compile("auto", "cuda", 1e18)
    assert not choose_compile("off", "cuda", 1e18)


@pytest.mark.parametrize("flops", [1e15, 1e18])
def test_a_run_on_a_gpu_keeps_whether_it_compiles_when_it_gets_longer(monkeypatch, config, flops):
    """That is recorded with the first start on such a device; a record of a CPU, or of before, has none."""
    monkeypatch.setattr(capacity, "choose_device", lambda engine: engine.device if engine.device != "auto" else "cuda")
    monkeypatch.setattr("maskwright.engines.torch.prepare.has_compiler", lambda device: True)

    def decided(before, flops, **keys):
        run = config(**{"engine.device": "cuda", **{f"engine.{key}": value for key, value in keys.items()}})
        kept = capacity.engine_config(run, before, None)
        engine = SimpleNamespace(compiled=choose_compile(kept.compile, kept.device, flops))
        return engine.compiled, capacity.compiled_layers(cast(Engine, engine), run.engine, before)

    begun = made_record(dtype="bfloat16", compiled=decided(made_record(dtype="bfloat16"), flops)[1])
    assert begun.compiled is (flops > 1e17)
    assert decided(begun, 1e15) == decided(begun, 1e18) == (begun.compiled,) * 2
    assert decided(begun, flops, compile="on") == (True, True) and decided(begun, flops, compile="off")[1] is False
    assert decided(begun, 1e18, device="cpu") == (False, begun.compiled)  # and a CPU compiles nothing by itself
    assert decided(made_record(), flops, device="cpu") == (False, None)


@pytest.fixture
def exact_kernels():
    """As an exact run on CUDA has them. The flag is torch's own, for the whole process."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_kernels_of_a_gpu(monkeypatch):
    """No attention whose backward pass adds in any order: that of cuDNN does, and torch lets it. No sums in 16 bits."""
    set_determinism(True)
    try:
        assert torch.are_deterministic_algorithms_enabled() and not torch.backends.cuda.cudnn_sdp_enabled()
        for get in (
            torch._C._get_cublas_allow_bf16_reduced_precision_reduction,
            torch._C._get_cublas_allow_fp16_reduced_precision_reduction,
        ):
            assert get() == (False, True)
    finally:
        set_determinism(False)
    assert torch.backends.cuda.cudnn_sdp_enabled() and not torch.are_deterministic_algorithms_enabled()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    assert attention_kernel("cuda", torch.float16, 64, 0.0) == "torch's fused kernel (SDPA) with a mask of segments"
    assert attention_kernel("cuda", torch.bfloat16, 64, 0.1) == "FlashAttention 2 over packed segments, with dropout"
    assert attention_kernel("cuda", torch.bfloat16, 64, 0.0) == "FlashAttention 2 over packed segments"


@pytest.mark.filterwarnings("ignore")  # of the compiler itself
@pytest.mark.parametrize("reproducibility", ["exact", "fast"])
def test_no_measurement_chooses_the_kernels_of_an_exact_run(store, config, reproducibility):
    run = config(**ONE_BATCH, **{"engine.compile": "on", "engine.reproducibility": reproducibility})
    TorchEngine(model_config(run.model, store.vocabulary.size, 32), run.optimizer, run.engine, seed=0)
    assert torch._inductor.config.deterministic is (reproducibility == "exact")


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_filler_of_the_products_of_a_gpu_changes_no_gradient(store, config, dtype, monkeypatch):
    run, made = config(**ONE_BATCH, **{"engine.dtype": dtype}), list[int]()
    plain = gradients(store, run)

    class Filled(Passes):
        def __init__(self, *given, **options):
            super().__init__(*given, **options | {"fills_up": True})

        def targets(self, batch, smoothing=0.0):
            made.append(len(batch.predict_index))
            return super().targets(batch, smoothing)

    monkeypatch.setattr("maskwright.engines.torch.engine.Passes", Filled)
    assert max(shares_off(gradients(store, run), plain).values()) == 0
    assert made and all(number % 64 == 0 for number in made)
    assert Loader(run, store).batch(0, 0).predict_index.size % 64


@pytest.mark.usefixtures("exact_kernels")
@pytest.mark.parametrize("has_exact_form", [False, True])
def test_an_operation_without_an_exact_form_is_named_at_the_start(store, config, has_exact_form):
    run = config()
    shape = model_config(run.model, store.vocabulary.size, 32)
    engine, loader = TorchEngine(shape, run.optimizer, run.engine, seed=0), Loader(run, store)

    def predict(*_):
        if has_exact_form:
            raise RuntimeError("of another kind")
        torch.zeros(2).put_(torch.tensor([0]), torch.ones(1))  # has none, on any device

    engine.model.register_forward_hook(predict)
    with pytest.raises(RuntimeError if has_exact_form else MaskwrightError) as raised:
        engine.dry_run(loader.batches(0), [])
    if has_exact_form:
        assert str(raised.value) == "of another kind"
    else:
        assert "put_ does not have a deterministic implementation" in str(raised.value)
        assert str(raised.value).endswith("Fix: --set engine.reproducibility=fast")
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()


@pytest.mark.gpu
@pytest.mark.usefixtures("exact_kernels")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; torch sees none")
def test_cuda_follows_cpu(store, config):
    cpu, cuda = (losses(store, config(**{"engine.device": device})) for device in ("cpu", "cuda"))
    assert np.abs(np.array([float(loss) for loss in cpu]) - np.array([float(loss) for loss in cuda])).max() < 1e-3


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        ("torch", "roberta"),
        ("torch", "modernbert"),
        pytest.param("jax", "roberta", marks=pytest.mark.long),
        pytest.param("jax", "modernbert", marks=pytest.mark.long),
    ],
)
def test_every_parameter_gets_its_whole_gradient_in_bf16(store, config, kind, architecture):
    """Gains, biases, and the rows of `<mask>` and of positions are sums over 4,096 tokens, which bf16 cannot add up one
    by one (nor torch's CPU kernels by themselves: 5 % and more off here, with one thread)."""
    if kind == "jax":
        pytest.importorskip("jax", reason="needs the extra jax")
        from reference import parity

        parity.use_virtual_devices()
    keys = (
        ONE_BATCH
        | {"batch.micro_batch_rows": 128, "masking.mask_share": 1.0, "masking.random_share": 0.0, "masking.rate": 0.3}
        | {"engine.threads": 1, "model.architecture": architecture, "engine.kind": kind}
    )
    exact, rounded = (gradients(store, config(**keys, **{"engine.dtype": dtype})) for dtype in ("fp32", "bf16"))
    words = [name for name in exact if "word_embeddings" in name or "tok_embeddings" in name]
    assert words
    for found in (exact, rounded):
        found |= {f"{name}, <mask>": found[name][store.vocabulary.mask] for name in words}
    off = shares_off(rounded, exact)
    assert {name: share for name, share in off.items() if share > 0.02} == {}
