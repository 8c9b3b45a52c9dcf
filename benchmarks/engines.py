"""The JAX engine beside the torch engine, on the same rows of the same store.

    python benchmarks/engines.py cpu-mini --text 'corpus/*.txt'      also cpu-small

Torch multiplies in bf16 where the machine is faster at it, and XLA in fp32, each its own best; a third side is
torch in fp32. The first step of each process compiles and does not count.
"""

from __future__ import annotations

import argparse
import tempfile

from common import alternate, medians, process, store_of, write_result

#        size, seq_len, rows, steps
ROWS = {
    "cpu-mini": ("mini", 128, 32, 24),
    "cpu-small": ("small", 512, 8, 6),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--work", help="folder that keeps the token store between runs")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    size, seq_len, rows, steps = ROWS[arguments.row]
    store = store_of(arguments.text, arguments.work or tempfile.mkdtemp(), 50265)

    def side(*more: str) -> dict[str, float]:
        sizes = ("--size", size, "--seq-len", seq_len, "--rows", rows, "--steps", steps)
        return process("ours.py", store, *sizes, *more)

    sides = {
        "torch": side,
        "jax": lambda: side("--engine", "jax"),
        "torch_fp32": lambda: side("--dtype", "fp32"),
    }
    results = alternate(sides, arguments.rounds)
    rates = medians(results, "tokens_per_second")
    ratios = {f"over_{name}": rates["jax"]["median"] / rate["median"] for name, rate in rates.items() if name != "jax"}
    write_result(f"engines-{arguments.row}", ratios, tokens_per_second=rates, rounds=results)


if __name__ == "__main__":
    main()
