"""Errors of libraries that say what they are only by a name or in words. It loads none of these libraries."""

from __future__ import annotations

OUT_OF_MEMORY = (
    "can't allocate memory",  # torch's allocator on a CPU
    "MPS backend out of memory",
    "RESOURCE_EXHAUSTED",  # XLA
    "CUDA error: out of memory",  # what CUDA takes beside torch's allocator
    "CUBLAS_STATUS_ALLOC_FAILED",
    "Cuda failure 2 'out of memory'",  # NCCL, as `ncclUnhandledCudaError`
    "Cuda failure 'out of memory'",  # older NCCL
)


def is_out_of_memory(error: BaseException) -> bool:
    """In torch, the error of CUDA's allocator has a type of its own; all others give only a text."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or any(sign in str(error) for sign in OUT_OF_MEMORY)


def is_panic(error: BaseException) -> bool:
    """Whether a library in Rust broke off, such as `tokenizers` in the middle of a text. That is no `Exception`."""
    return type(error).__name__ == "PanicException"
