"""Linear layers, whose matrices' gradients a CPU with AMX may leave to MKL, which sums them in fp32.

Through oneDNN, torch packs both factors of such a gradient again. On AMX its product runs at half of the forward
product's rate, and its sum is rounded to bf16. libtorch also has MKL's product of bf16 matrices, with a result in fp32:
1.0 to 1.7 times that rate with one thread, 1.1 to 1.6 with two (a Xeon of the Emerald Rapids generation), and 2e-7 of
the gradient off instead of 2e-3. Without AMX, MKL multiplies in fp32: 104 instead of 454 GFLOP/s on a Zen 5 core.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROW_MAJOR, AS_IT_IS, TRANSPOSED = 101, 111, 112
"""Of the C interface of BLAS (https://www.netlib.org/blas/cblas.h)."""


@cache
def mkl_product() -> Callable[..., None] | None:
    """MKL's `cblas_gemm_bf16bf16f32`; None in a libtorch that does not export it."""
    try:
        found = ctypes.CDLL(os.path.join(torch.__path__[0], "lib", "libtorch_cpu.so")).cblas_gemm_bf16bf16f32
    except (OSError, AttributeError):
        return None
    whole, real, address = ctypes.c_int, ctypes.c_float, ctypes.c_void_p
    found.argtypes = [*[whole] * 6, real, address, whole, address, whole, real, address, whole]
    found.restype = None
    return found


class Linear(nn.Linear):
    by_mkl = False
    """Whether MKL computes the gradient of a bf16 matrix, in fp32."""

    def use_mkl(self) -> None:
        self.by_mkl, self.weight.grad_dtype = True, torch.float32

    def forward(self, x: Tensor) -> Tensor:
        if self.by_mkl and torch.is_grad_enabled():
            return _Linear.apply(x, self.weight, self.bias)
        return super().forward(x)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, weight_FD: Tensor, bias_F: Tensor | None) -> Tensor:
        context.save_for_backward(x, weight_FD)
        return F.linear(x, weight_FD, bias_F)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
        (gradient,), (x, weight_FD) = gradients, context.saved_tensors
        gradient_NF, x_ND = (tensor.flatten(0, -2).contiguous() for tensor in (gradient, x))
        of_x = (gradient_NF @ weight_FD).view(x.shape) if context.needs_input_grad[0] else None
        of_bias = gradient_NF.sum(0) if context.needs_input_grad[2] else None
        return of_x, transposed_product(gradient_NF, x_ND), of_bias


def transposed_product(a_NF: Tensor, b_ND: Tensor) -> Tensor:
    """a.T @ b of contiguous bf16 matrices, as fp32 [F, D]."""
    product = mkl_product()
    assert product is not None and a_NF.dtype is b_ND.dtype is torch.bfloat16  # other numbers would be read as bf16
    (N, width), D = a_NF.shape, b_ND.shape[1]
    result = a_NF.new_empty(width, D, dtype=torch.float32)
    a, b = (a_NF.data_ptr(), width), (b_ND.data_ptr(), D)
    product(ROW_MAJOR, TRANSPOSED, AS_IT_IS, width, D, N, 1.0, *a, *b, 0.0, result.data_ptr(), D)
    return result
