"""torch's view of this machine, for `maskwright doctor`, which starts `python -m maskwright.engines.torch.probe`.

It is a process of its own, since a build that does not fit the processor dies by a signal. It prints a JSON line about
the build and the hardware, waits for a line, and prints one with its measurements.
"""

from __future__ import annotations

import json
import sys

import torch

from maskwright.engines.torch.prepare import (
    attention_kernel,
    choose_device,
    choose_dtype,
    cpu_threads,
    has_bf16,
    has_compiler,
    has_fast_fp16,
    plain_products_here,
    what_dtype_costs,
)

HEAD_WIDTH = 64
"""Width of a head in all sizes except nano, whose heads are narrower and use the same kernels."""


def build() -> dict[str, object]:
    """The hardware that this build of torch supports, and what `auto` resolves to on this machine."""
    device = choose_device("auto")
    dtype = choose_dtype("auto", device)
    return {
        "version": torch.__version__,
        "cuda_build": torch.version.cuda,
        "hip_build": torch.version.hip,
        "gpus": [_gpu(number) for number in range(torch.cuda.device_count())],
        "device": device,
        "dtype": _name(dtype),
        "dtype_note": what_dtype_costs(dtype, device).strip(),
        "bf16": has_bf16(device),
        "fast_fp16": has_fast_fp16(device),
        "cpu_kernels": torch.backends.cpu.get_cpu_capability(),
        "amx": torch.cpu._is_amx_tile_supported(),
        "onednn": torch.backends.mkldnn.is_available(),
        "attention": attention_kernel(device, dtype, HEAD_WIDTH, 0.0),
        "compiler": has_compiler(device),
        "threads": cpu_threads() if device == "cpu" else torch.get_num_threads(),
    }


def _gpu(number: int) -> dict[str, object]:
    properties = torch.cuda.get_device_properties(number)
    capability = f"{properties.major}.{properties.minor}"
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "capability": capability,
        "in_build": _in_build(properties.major, properties.minor, torch.cuda.get_arch_list()),
    }


def _in_build(major: int, minor: int, architectures: list[str]) -> bool:
    """Whether the build supports a GPU. Machine code runs on later minor versions; PTX (`compute_`) on any later one:
    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#application-compatibility"""
    for name in architectures:
        kind, _, digits = name.partition("_")
        digits = digits.rstrip("af")
        if not digits.isdigit():
            continue
        built = int(digits[:-1]), int(digits[-1])
        if (kind == "sm" and built[0] == major and built[1] <= minor) or (
            kind == "compute" and built <= (major, minor)
        ):
            return True
    return False


def measured() -> dict[str, float]:
    """FLOP/s of plain products in fp32 and in the precision of `auto`, the fastest of several."""
    device = choose_device("auto")
    kinds = dict.fromkeys(["fp32", _name(choose_dtype("auto", device))])
    return {kind: plain_products_here(kind, device)[0] for kind in kinds}


def _name(dtype: torch.dtype) -> str:
    return {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[dtype]


def main() -> None:
    print(json.dumps(build()), flush=True)
    sys.stdin.readline()
    print(json.dumps({"flops_per_second": measured()}), flush=True)


if __name__ == "__main__":
    main()
