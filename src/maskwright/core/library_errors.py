"""Recognizes errors of libraries by their names or words, without loading the libraries."""

from __future__ import annotations

OUT_OF_MEMORY = (
    "can't allocate memory",  # torch's allocator on a CPU
    "RESOURCE_EXHAUSTED",  # XLA
    "CUDA error: out of memory",  # CUDA's own memory outside torch's allocator
    "CUBLAS_STATUS_ALLOC_FAILED",
    "Cuda failure 2 'out of memory'",  # NCCL, as `ncclUnhandledCudaError`
    "Cuda failure 'out of memory'",  # older NCCL
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out. Only the error of torch's CUDA allocator has its own type; others have a text."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or any(sign in str(error) for sign in OUT_OF_MEMORY)


def is_panic(error: BaseException) -> bool:
    """Whether a library in Rust panicked, such as `tokenizers` in the middle of a text. It is not an `Exception`."""
    return type(error).__name__ == "PanicException"
