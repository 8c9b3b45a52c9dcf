"""What torch computes on and in which precision, by what the hardware says of itself."""

import itertools
import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from maskwright.config.pretraining import EngineSection, ModelSection, Optimizer
from maskwright.core.errors import ConfigError
from maskwright.engines.processes import Alone
from maskwright.engines.torch import arriving, connections, prepare, processes
from maskwright.engines.torch.engine import TorchEngine
from maskwright.engines.torch.prepare import choose_device, choose_dtype, what_dtype_costs
from maskwright.machine import hardware
from maskwright.model.config import model_config

AVX2 = "fpu sse4_2 avx avx2 fma f16c"
SHAPE = model_config(ModelSection(size="nano"), 300, 32)
NO_BF16, SCALED = " (this CPU has no fast bf16 products)", " with loss scaling (no bf16 here)"


def has(patch, *, capability=None, flags="", vendor="GenuineIntel"):
    """What torch and Linux are made to say of a machine."""
    patch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    patch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    patch.setattr(torch.cuda, "is_bf16_supported", lambda **_: (capability or (0, 0)) >= (8, 0))
    patch.setattr(hardware, "_cpuinfo", lambda name, *_: vendor if name == "vendor_id" else flags)


@pytest.mark.parametrize(
    ("machine", "device", "dtype", "costs"),
    [
        ({"capability": (8, 0)}, "cuda", torch.bfloat16, ""),
        ({"capability": (7, 5)}, "cuda", torch.float16, SCALED),  # T4
        ({"capability": (7, 0)}, "cuda", torch.float16, SCALED),  # V100
        ({"capability": (6, 1)}, "cuda", torch.float32, " (no bf16 and no fast fp16 here)"),
        ({"flags": AVX2, "vendor": "AuthenticAMD"}, "cpu", torch.float32, NO_BF16),
        ({"flags": AVX2 + " avx512f avx512_vnni avx512_fp16"}, "cpu", torch.float32, NO_BF16),
        ({"flags": None, "vendor": ""}, "cpu", torch.float32, NO_BF16),  # not Linux
        ({"flags": AVX2 + " avx512f avx512_bf16", "vendor": "AuthenticAMD"}, "cpu", torch.bfloat16, ""),
        ({"flags": AVX2 + " avx512f avx512_bf16"}, "cpu", torch.float32, NO_BF16),
        ({"flags": AVX2 + " avx512f avx512_bf16 amx_bf16"}, "cpu", torch.bfloat16, ""),
        ({"flags": "fp asimd fphp asimdhp bf16 i8mm", "vendor": ""}, "cpu", torch.bfloat16, ""),  # Graviton 3
    ],
)
def test_each_machine_takes_what_it_is_fast_at(machine, device, dtype, costs, monkeypatch):
    """A CPU never takes fp16, and bf16 where it is faster."""
    has(monkeypatch, **machine)
    assert choose_device("auto") == choose_device(device) == device
    assert choose_dtype("auto", device) is dtype and choose_dtype("fp32", device) is torch.float32
    assert what_dtype_costs(dtype, device) == costs
    assert what_dtype_costs(torch.float32, "cpu", asked="fp32") == ""


def test_the_engine_says_what_auto_took(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    has(monkeypatch, flags=AVX2)
    engine = TorchEngine(SHAPE, Optimizer(), EngineSection(threads=1), 0)
    assert f"on cpu, 1 thread, float32{NO_BF16}, layers not compiled" in engine.description
    engine = TorchEngine(SHAPE, Optimizer(), EngineSection(threads=1, dtype="fp32"), 0)
    assert "on cpu, 1 thread, float32, layers not compiled" in engine.description
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    said = TorchEngine(SHAPE, Optimizer(), EngineSection(threads=1), 0).description
    assert "1 thread (OMP_NUM_THREADS=3 has no effect: engine.threads or taskset decides)" in said


@pytest.mark.parametrize(
    ("flags", "dtype", "by_mkl"),
    [("amx_bf16", "bf16", True), ("amx_bf16", "fp32", False), ("avx512_bf16", "bf16", False)],
)
def test_mkl_computes_gradients_with_amx_alone(monkeypatch, flags, dtype, *, by_mkl):
    """Each process of a run does as the others do."""
    has(monkeypatch, flags=flags)
    monkeypatch.setattr(processes, "mkl_product", lambda: print)
    engine = TorchEngine(SHAPE, Optimizer(), EngineSection(threads=1, dtype=dtype), 0)
    assert ("gradients of matrices by MKL in fp32" in engine.description) is by_mkl is engine.by_mkl
    peers = object.__new__(processes.Peers)
    for all_can in (True, False):
        monkeypatch.setattr(processes.Peers, "has_mkl", all_can)
        for begun in (None, True, False):
            chosen = prepare.mkl_takes_gradients("cpu", engine.dtype, peers, compiled=False, begun=begun)
            assert chosen is (dtype == "bf16" and all_can and begun is not False)
    assert not prepare.mkl_takes_gradients("cpu", engine.dtype, Alone(), compiled=True)


def test_what_is_absent_is_never_replaced(monkeypatch):
    has(monkeypatch)
    with pytest.raises(ConfigError, match="torch sees no CUDA device"):
        choose_device("cuda")


def test_a_number_on_its_way_from_a_device_is_waited_for_only_while_all_processes_are_there(monkeypatch):
    """The device computes for ever, as NCCL does for a gradient that does not come."""
    monkeypatch.setattr(arriving, "PEERS_SECONDS", 0.01)
    numbers, asked = torch.tensor([2.5], dtype=torch.float64), itertools.count()
    busy, done = (SimpleNamespace(query=ends) for ends in (lambda: False, lambda: next(asked) > 30))
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()) as ours:
        theirs, _ = listening.accept()
        before = connections.sockets()
        del before[ours.fileno()]
        try:
            connections.probe(before)
            assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert float(arriving.Arriving(numbers, cast(Any, done), 0)) == 2.5
            theirs.close()
            with pytest.raises(connections.Gone) as gone:
                float(arriving.Arriving(numbers, cast(Any, busy), 0))
            assert processes.Peers.lost(cast(Any, None), gone.value)
        finally:
            connections._of_peers.clear()
