"""Device, precision and threads of a torch run, and its network prepared for them: layout, compiler."""

from __future__ import annotations

import os
import shutil
import time
from functools import cache, partial

import torch

from maskwright.config import pretraining as run
from maskwright.core.console import note, warn
from maskwright.core.errors import ConfigError
from maskwright.engines.base import RunFacts
from maskwright.engines.ceiling import Products, gemm_ceiling
from maskwright.engines.processes import Processes, launch_variables
from maskwright.engines.torch.processes import Peers, has_mkl
from maskwright.engines.torch.sparse_rows import SparseRows, Weights
from maskwright.engines.torch.weights import FlatWeights
from maskwright.machine import hardware
from maskwright.model.config import ModelConfig
from maskwright.model.torch.attention import PLAIN_UP_TO_TOKENS, takes_cu_seqlens, uses_math_attention
from maskwright.model.torch.encoder import EncoderNetwork
from maskwright.model.torch.networks import make_network

COMPILE_PAYS_FLOPS = 1e17
"""FLOPs of a run of some five minutes on a CUDA device. In longer runs, fused layers save more than the minute of
compiling. On a CPU they save nothing (records/experiments.md)."""


def choose_device(wanted: str, where: str = "engine.device") -> str:
    """Resolves `auto`: a CUDA device if there is one, else the CPU. Raises `ConfigError` rather than falling
    back. `where`: the option in which the user names a device."""
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "cuda was requested, but torch sees no CUDA device",
            where=where,
            fix="check the driver and that torch is a CUDA build, or set it to cpu",
        )
    return wanted


def choose_dtype(wanted: str, device: str) -> torch.dtype:
    """Resolves `auto`: bf16 if the hardware multiplies it faster, else fp16 on a GPU that does, else fp32. Feature
    flags of the hardware decide, so the choice never varies."""
    if wanted == "auto":
        wanted = "bf16" if has_bf16(device) else "fp16" if has_fast_fp16(device) else "fp32"
    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[wanted]


def has_bf16(device: str) -> bool:
    """Whether bf16 is fast: on CUDA from compute capability 8.0 on."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return hardware.cpu_multiplies_bf16_faster()


def has_fast_fp16(device: str) -> bool:
    """Whether fp16 is fast. GPUs from compute capability 7.0 on (V100) have units for it; most older ones multiply it
    slower than fp32, and so do nearly all CPUs, which never count."""
    return device == "cuda" and torch.cuda.get_device_capability() >= (7, 0)


def what_dtype_costs(dtype: torch.dtype, device: str, *, asked: str = "auto") -> str:
    """A note on the precision, shown after its name. A precision that was `asked` for needs no reason."""
    reasoned = asked == "auto" and not has_bf16(device)
    if dtype is torch.float16:
        return " with loss scaling" + " (no bf16 here)" * reasoned
    if dtype is torch.float32 and reasoned:
        return " (this CPU has no fast bf16 products)" if device == "cpu" else " (no bf16 and no fast fp16 here)"
    return ""


def attention_kernel(device: str, dtype: torch.dtype, head_width: int, dropout: float) -> str:
    """Name of the kernel for attention over packed rows in training (see `model/torch/attention.py`)."""
    place = torch.device(device)
    if takes_cu_seqlens(place, dtype, head_width):
        return "FlashAttention 2 over packed segments" + ", with dropout" * bool(dropout)
    if uses_math_attention(place, dtype, PLAIN_UP_TO_TOKENS):
        return f"plain products up to {PLAIN_UP_TO_TOKENS:,} tokens, torch's fused kernel (SDPA) beyond"
    return "torch's fused kernel (SDPA) with a mask of segments"


def has_compiler(device: str) -> bool:
    """Whether `torch.compile` finds its compiler: for C++ on a CPU, and on a GPU Triton's for C
    (https://github.com/triton-lang/triton, `runtime/build.py`)."""
    variable, programs = ("CXX", ("g++",)) if device == "cpu" else ("CC", ("clang", "gcc", "cc"))
    return bool(os.environ.get(variable)) or any(map(shutil.which, programs))


def choose_compile(wanted: str, device: str, run_flops: float) -> bool:
    """Whether to compile layers. The FLOPs of the whole run decide, not the rest's: a continued run computes as before.

    Raises `ConfigError` if a compiler is needed and absent.
    """
    compiled = wanted == "on" or (wanted == "auto" and device == "cuda" and run_flops >= COMPILE_PAYS_FLOPS)
    if compiled and not has_compiler(device):
        language, program = ("C++", "g++") if device == "cpu" else ("C", "gcc")
        what = f"{wanted} compiles the layers of this run, which needs a {language} compiler"
        raise ConfigError(what, where="engine.compile", fix=f"install {program}, or set engine.compile: off")
    return compiled


def mkl_takes_gradients(
    device: str, dtype: torch.dtype, processes: Processes, *, compiled: bool, begun: bool | None = None
) -> bool:
    """Whether MKL computes the gradients of layers' matrices (`model/torch/linear.py`), if all processes of the run
    can. A compiler cannot look into MKL. `begun`: whether MKL did when the run began, if it has begun."""
    if device != "cpu" or dtype is not torch.bfloat16 or compiled:
        return False
    here = processes.has_mkl if isinstance(processes, Peers) else has_mkl()
    if begun and not here:
        note("this run began with gradients of matrices by MKL, but this CPU has no AMX, so the last bits change")
    return here and begun is not False


def use_threads(engine: run.EngineSection, device: str) -> int:
    """Sets how many threads this process computes with, and returns it. Ranks of one machine share out its cores."""
    launch = launch_variables()
    # Each rank binds to its own share of the cores in any case; engine.threads holds the decision of `exact_threads`.
    share = cpu_threads() if device == "cpu" and (not engine.threads or (launch and launch.local_world_size > 1)) else 0
    threads = engine.threads or share or hardware.usable_cores()
    torch.set_num_threads(threads)
    if device == "cpu":
        hardware.keep_freed_memory()
    return threads


@cache
def cpu_threads() -> int:
    """Binds this process to its share of the cores, once: afterwards it sees no other cores."""
    launch = launch_variables()
    local_rank, local_world_size = (launch.local_rank, launch.local_world_size) if launch else (0, 1)
    return hardware.spread_over_cores(number=local_rank, count=local_world_size)


def set_determinism(exact: bool) -> None:
    """Allows or forbids kernels that add in the order in which their threads finish, as flash attention's backward pass
    does on CUDA. If forbidden, torch uses others, and raises `RuntimeError` where there are none (its page
    "Reproducibility"). With `warn_only`, flash and memory-efficient attention would keep theirs. Either way, products
    in 16 bits add up in fp32 where several blocks share a sum, as all sums over the tokens of a micro-batch should."""
    for name in ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction"):
        setattr(torch.backends.cuda.matmul, name, (False, True))  # no such sums in 16 bits; splits are allowed
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(exact)
    # cuDNN's backward pass of attention adds in any order, and torch only warns of it (pytorch#182551). From 2.14 on,
    # varlen_attn uses it on Hopper where possible.
    torch.backends.cuda.enable_cudnn_sdp(not exact)
    # Otherwise torch first fills each new tensor.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def products(device: str, dtype: torch.dtype, m: int, k: int, n: int) -> Products:
    """See `ceiling.gemm_ceiling`."""
    a, b = (torch.randn(shape, device=device).to(dtype) for shape in ((m, k), (k, n)))

    def by_host(count: int) -> float:
        begin = time.perf_counter()
        for _ in range(count):
            a @ b
        return time.perf_counter() - begin

    def between_events(count: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            a @ b
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3

    return between_events if device == "cuda" else by_host


def plain_products_here(wanted: str, device: str) -> tuple[float, bool, int]:
    """See `engines.choose.products_here`. `wanted`: `engine.dtype`."""
    threads, dtype = cpu_threads() if device == "cpu" else 1, choose_dtype(wanted, device)
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = False
    return gemm_ceiling(partial(products, device, dtype)), dtype is not torch.float32, threads


def prepare(
    model: ModelConfig,
    optimizer: run.Optimizer,
    engine: run.EngineSection,
    *,
    device: str,
    dtype: torch.dtype,
    processes: Processes,
    compiled: bool,
    facts: RunFacts,
) -> tuple[EncoderNetwork, Weights]:
    """The network, and the weights that an update changes."""
    if device == "cpu" and dtype is torch.float16:
        warn("fp16 on a CPU takes many times as long as fp32, so use it only for tests and for runs begun on a GPU")
    # 1. The layout of the weights in flat buffers.
    weights: Weights
    if facts.looked_up is not None:
        weights = SparseRows(facts.looked_up, model, optimizer, dtype, device, processes=processes)
        network = weights.network
    else:
        network = make_network(model, device)
        weights = FlatWeights(network, model, optimizer, dtype, processes=processes)
    # 2. The compiler: the norm of the embeddings, layer by layer, the head with its loss.
    if compiled:
        # A layer has a variant for each of mask or none, training or not, first or later. Past the limit torch silently
        # falls back to eager, and a resumed run might do so at another step.
        torch._dynamo.config.recompile_limit = 64
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        # Each shape has a program of its own: if torch makes one for all shapes, its bits depend on which shape came
        # first, and a run that is continued in its second phase would differ. Examples have too many shapes.
        # No measurement may choose a kernel, since a product that is padded for speed has other bits.
        torch._inductor.config.deterministic = engine.reproducibility == "exact"
        for part in (network.norm, *network.layers, network.head):
            part.compile(dynamic=False if model.task == "masked_lm" else None)
        network.compiled = True
    # 3. The library for the gradients of matrices.
    if mkl_takes_gradients(device, dtype, processes, compiled=compiled, begun=facts.by_mkl):
        network.use_mkl()
    return network, weights
