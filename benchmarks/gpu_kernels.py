"""Parts of `gpu.py` that need no store: kernels of attention, and products with their neighbouring operations, on the
shapes of base: one layer, 65,536 tokens."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from common import write_result
from torch import Tensor

from maskwright.core.console import say, several
from maskwright.model.torch.attention import CuSeqlens
from maskwright.model.torch.gelu import gelu

Found = dict[str, Any]
Pass = Callable[[], Sequence[Tensor]]
"""Computes something, and returns results with a gradient."""


def attention(*, cuda: bool, small: bool) -> None:
    """Forward and backward pass by each kernel that torch has."""
    T, H, h = (64, 2, 16) if small else (512, 12, 64)
    M = 2 if small else 128
    dtype, device = torch.bfloat16, "cuda" if cuda else "cpu"
    found: Found = {}
    qkv = torch.randn(M, T, 3, H, h, device=device, dtype=dtype, requires_grad=True)
    gradient = torch.randn(M, T, H, h, device=device, dtype=dtype)

    def mixed(mix: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Sequence[Tensor]:
        return (mix(*qkv.permute(2, 0, 3, 1, 4)).transpose(1, 2),)

    def timed(name: str, mix: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        _time(found, f"attention, {name}", partial(mixed, mix), [qkv], [gradient], cuda=cuda)

    from torch.nn.attention import SDPBackend, sdpa_kernel

    kinds = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION} if cuda else {}
    for exact in (False, True):
        torch.use_deterministic_algorithms(exact)
        how = "ordered" if exact else "any order"
        for kind, backend in kinds.items():
            with sdpa_kernel(backend):
                timed(f"dense {kind}, {how}", F.scaled_dot_product_attention)
        for version in _versions() if cuda else ():
            for number in (1, 8):
                offsets = torch.arange(0, M * T + 1, T // number, device=device, dtype=torch.int32)
                name, packed = f"packed {version}, {how}, {several(number, 'text')} a row", CuSeqlens(offsets, T)
                timed(name, packed.mix)
                if version == "FA2":
                    timed(f"{name}, dropout", partial(packed.mix, rate=0.1))
        if not kinds:
            timed(f"dense, {how}", F.scaled_dot_product_attention)
    torch.use_deterministic_algorithms(False)
    _write("gpu-attention", found)


def _versions() -> Iterator[str]:
    """The versions of FlashAttention that this machine has, each active until the next: 2 is torch's own."""
    yield "FA2"
    for version in torch.nn.attention.list_flash_attention_impls():
        try:
            torch.nn.attention.activate_flash_attention_impl(version)
        except Exception as error:  # somebody else's package, which may lack anything
            say(f"attention, {version}: {error}")
        else:
            try:
                yield version
            finally:
                torch.nn.attention.restore_flash_attention_impl()


# ---- products -----------------------------------------------------------------------------------------------------


def products(*, cuda: bool, small: bool) -> None:
    """GELU behind its product, in ways that torch offers; sums of weight gradients whose blocks meet in 16 bits and in
    fp32; the sum of a bias; gradients of q, k and v brought together; and the head with its sizes filled up or not."""
    N, D, inner, V = (256, 64, 128, 512) if small else (65_536, 768, 3_072, 50_304)
    device, found = "cuda" if cuda else "cpu", Found()
    make = partial(torch.randn, device=device, dtype=torch.bfloat16)
    x, w, b = (make(*shape, requires_grad=True) for shape in ((N, D), (inner, D), (inner,)))
    _gelu(found, x, w, b, make(N, inner), cuda=cuda)
    _weight_gradient(found, make(N, inner), x.detach(), cuda=cuda)
    g = make(N, 3, D)
    _time(found, "bias gradient alone", lambda: (g.flatten(1).sum(0),), cuda=cuda)
    parts = [part.contiguous() for part in g.unbind(1)]
    _time(found, "q, k, v gradients brought together", lambda: (torch.stack(parts, 1),), cuda=cuda)
    few = 20 if small else 308  # predictions of 4 rows: 77 slots each
    table = make(V, D, requires_grad=True)
    for number in (few, -(-few // 64) * 64):
        hidden = make(number, D, requires_grad=True)
        grads = [make(number, V)]
        _time(found, f"head, {number} predictions", partial(_product, hidden, table), [hidden, table], grads, cuda=cuda)
    _write("gpu-products", found)


def _product(hidden: Tensor, table: Tensor) -> Sequence[Tensor]:
    return (hidden @ table.T,)


def _gelu(found: Found, x: Tensor, w: Tensor, b: Tensor, gradient: Tensor, *, cuda: bool) -> None:
    def plain(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return gelu(F.linear(x, w, b))

    def tanh(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.gelu(F.linear(x, w, b), approximate="tanh")

    def epilogue(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch._addmm_activation(b, x, w.T, use_gelu=True)  # cuBLASLt's, with tanh

    ways: dict[str, Callable[..., Tensor]] = {"plain": plain, "tanh": tanh}
    if cuda:
        ways |= {"compiled": torch.compile(plain, dynamic=False), "tanh, compiled": torch.compile(tanh, dynamic=False)}
        searched = torch.compile(plain, dynamic=False, mode="max-autotune-no-cudagraphs")
        ways |= {"compiled, kernels searched": searched}
    with torch.no_grad():
        _time(found, "product alone", lambda: (F.linear(x, w, b),), cuda=cuda)
        _time(found, "gelu, tanh in the product's epilogue, forward", lambda: (epilogue(x, w, b),), cuda=cuda)
    for name, way in ways.items():
        _time(found, f"gelu, {name}", lambda way=way: (way(x, w, b),), [x, w, b], [gradient], cuda=cuda)  # type: ignore[misc]


def _weight_gradient(found: Found, g: Tensor, x: Tensor, *, cuda: bool) -> None:
    exact = sum(a.double().T @ b.double() for a, b in zip(g.split(4096), x.split(4096), strict=True))
    assert isinstance(exact, Tensor)
    for name, pair in {"16 bits": (True, True), "fp32": (False, True), "fp32, not split": (False, False)}.items():
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = pair
        _time(found, f"weight gradient, sums in {name}", lambda: (g.T @ x,), cuda=cuda)
        off = (g.T @ x).double() - exact
        found[f"weight gradient, sums in {name}"]["off"] = float(off.norm() / exact.norm())


# ---- time ---------------------------------------------------------------------------------------------------------


def _time(
    found: Found, name: str, compute: Pass, of: Sequence[Tensor] = (), gradients: Sequence[Tensor] = (), *, cuda: bool
) -> None:
    """Medians of ten, in milliseconds: `forward`, and `total` with the gradients of `of`."""
    forward, total = [], []
    try:
        for _ in range(13):
            clock = _Clock(cuda)
            clock.mark()
            result = compute()
            clock.mark()
            if of:
                torch.autograd.grad(result, of, gradients)
            clock.mark()
            first, second = clock.spans()
            forward.append(first)
            total.append(first + second)
        found[name] = {
            "forward": round(statistics.median(forward[3:]), 4),
            "total": round(statistics.median(total[3:]), 4),
        }
    except Exception as error:  # of a kernel that does not take these shapes
        found[name] = {"error": str(error)[:200]}
    say(f"{name}: {found[name]}")


class _Clock:
    """Milliseconds between marks, by the device's clock."""

    def __init__(self, cuda: bool) -> None:
        self.cuda = cuda
        self.marks: list[Any] = []

    def mark(self) -> None:
        if self.cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)
        else:
            self.marks.append(time.perf_counter() * 1e3)

    def spans(self) -> list[float]:
        if self.cuda:
            torch.cuda.synchronize()
            return [a.elapsed_time(b) for a, b in pairwise(self.marks)]
        return [b - a for a, b in pairwise(self.marks)]


def _write(row: str, found: Found) -> None:
    write_result(row, {name: value["total"] for name, value in found.items() if "total" in value}, found=found)
