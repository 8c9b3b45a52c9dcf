"""The gradient of a layer's bf16 matrix on a CPU: MKL's product against torch's, in turns (`model/torch/linear.py`).

    python benchmarks/gradients.py --threads 1

GFLOP/s of either, the best of a round, for the layers of base, small and mini; of one thread by its CPU time, so that
other programs count less, of several by the clock. A run uses MKL's only on CPUs with AMX, with any result here."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from common import alternate, medians, write_result

from maskwright.machine.hardware import keep_freed_memory
from maskwright.model.torch.linear import transposed_product

LAYERS = [
    (2048, 768, 3072),
    (2048, 3072, 768),
    (4096, 512, 2048),
    (4096, 256, 1024),
    (4096, 768, 768),
    (4096, 768, 2304),
]
"""Tokens, width of the input, width of the output."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    clock = time.thread_time if arguments.threads == 1 else time.perf_counter

    def rates(product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> dict[str, float]:
        found = {}
        for tokens, width, out in LAYERS:
            gradient, x = (torch.randn(tokens, columns).bfloat16() for columns in (out, width))
            seconds = []
            for _ in range(4):
                begin = clock()
                product(gradient, x)
                seconds.append(clock() - begin)
            found[f"{tokens} x {width} x {out}"] = 2e-9 * tokens * width * out / min(seconds)
        return found

    sides = {"mkl": lambda: rates(transposed_product), "torch": lambda: rates(lambda gradient, x: gradient.T @ x)}
    results = alternate(sides, arguments.rounds)
    by_layer = {layer: medians(results, layer) for layer in results["mkl"][0]}
    ratios = {layer: rate["mkl"]["median"] / rate["torch"]["median"] for layer, rate in by_layer.items()}
    write_result("gradients", ratios, gflops=by_layer, threads=arguments.threads)


if __name__ == "__main__":
    main()
