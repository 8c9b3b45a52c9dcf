"""What torch computes on and in which precision, by what the hardware says of itself."""

from __future__ import annotations

import itertools
import socket
from dataclasses import dataclass
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
NO_BF16 = " (this CPU has no fast bf16 products)"


@dataclass
class Machine:
    """What torch and Linux are made to say of one."""

    patch: pytest.MonkeyPatch

    def has(self, *, capability: tuple[int, int] | None = None) -> None:
        self.patch.setattr(torch.cuda, "is_available", lambda: capability is not None)
        self.patch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
        self.patch.setattr(torch.cuda, "is_bf16_supported", lambda **_: (capability or (0, 0)) >= (8, 0))

    def has_cpu(self, flags: str | None, vendor: str = "GenuineIntel") -> None:
        self.patch.setattr(hardware, "_cpuinfo", lambda name, *_: vendor if name == "vendor_id" else flags)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize(
    ("capability", "dtype", "costs"),
    [
        ((9, 0), torch.bfloat16, ""),
        ((8, 0), torch.bfloat16, ""),
        ((7, 5), torch.float16, " with loss scaling (no bf16 here)"),  # T4
        ((7, 0), torch.float16, " with loss scaling (no bf16 here)"),  # V100
        ((6, 1), torch.float32, " (no bf16 and no fast fp16 here)"),
    ],
)
def test_cuda_takes_what_it_is_fast_at(
    machine: Machine, capability: tuple[int, int], dtype: torch.dtype, costs: str
) -> None:
    machine.has(capability=capability)
    assert choose_device("auto") == "cuda"
    assert choose_dtype("auto", "cuda") is dtype
    assert what_dtype_costs(dtype, "cuda") == costs
    assert choose_dtype("fp32", "cuda") is torch.float32


@pytest.mark.parametrize(
    ("flags", "vendor", "dtype", "costs"),
    [
        (AVX2, "AuthenticAMD", torch.float32, NO_BF16),
        (AVX2 + " avx512f avx512_vnni avx512_fp16", "GenuineIntel", torch.float32, NO_BF16),
        (None, "", torch.float32, NO_BF16),  # not Linux
        (AVX2 + " avx512f avx512_bf16", "AuthenticAMD", torch.bfloat16, ""),
        (AVX2 + " avx512f avx512_bf16", "GenuineIntel", torch.float32, NO_BF16),
        (AVX2 + " avx512f avx512_bf16 amx_bf16", "GenuineIntel", torch.bfloat16, ""),
        ("fp asimd fphp asimdhp bf16 i8mm", "", torch.bfloat16, ""),  # Graviton 3
    ],
)
def test_a_cpu_takes_bf16_where_it_is_faster_and_fp16_never(
    machine: Machine, flags: str | None, vendor: str, dtype: torch.dtype, costs: str
) -> None:
    machine.has()
    machine.has_cpu(flags, vendor)
    assert choose_device("auto") == "cpu"
    assert choose_dtype("auto", "cpu") is dtype
    assert what_dtype_costs(dtype, "cpu") == costs
    assert what_dtype_costs(dtype, "cpu", asked="fp32") == ""


def test_the_engine_says_what_auto_took(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    machine.has()
    machine.has_cpu(AVX2)
    engine = TorchEngine(SHAPE, Optimizer(), EngineSection(threads=1), 0)
    assert f"on cpu, 1 thread, float32{NO_BF16}, layers not compiled" in engine.description
    engine = TorchEngine(SHAPE, Optimizer(), EngineSection(threads=1, dtype="fp32"), 0)
    assert "on cpu, 1 thread, float32, layers not compiled" in engine.description
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    said = TorchEngine(SHAPE, Optimizer(), EngineSection(threads=1), 0).description
    assert "1 thread (OMP_NUM_THREADS=3 has no effect: set engine.threads)" in said


@pytest.mark.parametrize(
    ("flags", "dtype", "by_mkl"),
    [("amx_bf16", "bf16", True), ("amx_bf16", "fp32", False), ("avx512_bf16", "bf16", False)],
)
def test_mkl_computes_gradients_with_amx_alone(machine: Machine, flags: str, dtype: str, *, by_mkl: bool) -> None:
    """Each process of a run does as the others do."""
    machine.has()
    machine.has_cpu(flags)
    machine.patch.setattr(processes, "mkl_product", lambda: print)
    engine = TorchEngine(SHAPE, Optimizer(), EngineSection(threads=1, dtype=dtype), 0)
    assert ("gradients of matrices by MKL in fp32" in engine.description) is by_mkl is engine.by_mkl
    peers = object.__new__(processes.Peers)
    for all_can in (True, False):
        machine.patch.setattr(processes.Peers, "has_mkl", all_can)
        for begun in (None, True, False):
            chosen = prepare.mkl_takes_gradients("cpu", engine.dtype, peers, compiled=False, begun=begun)
            assert chosen is (dtype == "bf16" and all_can and begun is not False)
    assert not prepare.mkl_takes_gradients("cpu", engine.dtype, Alone(), compiled=True)


def test_what_is_absent_is_never_replaced(machine: Machine) -> None:
    machine.has()
    with pytest.raises(ConfigError, match="torch sees no CUDA device"):
        choose_device("cuda")


def test_a_number_on_its_way_from_a_device_is_waited_for_only_while_all_processes_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
