"""Training throughput against Hugging Face Trainer, on a CPU; `gpu.py` measures a GPU's.

    python benchmarks/train.py cpu-base --text 'corpus/*.txt'        also cpu-small, cpu-mini, cpu-modernbert-1024,
                                                                     cpu-modernbert-4096

With `--avx2`, both sides are held to fp32 and to the instructions of a CPU that has AVX2 and no more.

The peer runs at its best settings (bf16, or fp32 on a CPU that multiplies it faster; no dropout, SDPA, torch.compile)
with whichever of its batch sizes is the fastest, and, in cpu-base, at its defaults. Real tokens; the peer's rows have
no padding either.
"""

from __future__ import annotations

import argparse
import json
import tempfile

from common import alternate, medians, process, store_of, write_result

#        size, seq_len, our rows, rows that the peer may choose from, steps
ROWS = {
    "cpu-base": ("base", 512, 8, (8, 16), 5),
    "cpu-small": ("small", 512, 8, (8, 16), 10),
    "cpu-mini": ("mini", 128, 32, (16, 32, 64), 40),
    "cpu-modernbert-1024": ("base", 1024, 2, (2, 4), 4),
    "cpu-modernbert-4096": ("base", 4096, 1, (1,), 3),
}

MODERNBERT_BASE = {
    "architecture": "modernbert",
    "num_hidden_layers": 22,
    "intermediate_size": 1152,
    "global_attn_every_n_layers": 3,
    "local_attention": 128,
}
"""The published model's keys of `model:`, in addition to `size: base`."""

AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
"""Of torch's own kernels and its compiler, of oneDNN and of MKL."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--work", help="folder that keeps the token store between runs")
    parser.add_argument("--avx2", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    size, seq_len, rows, choices, steps = ROWS[arguments.row]
    work = arguments.work or tempfile.mkdtemp()
    store = store_of(arguments.text, work, 50265)

    keys = json.dumps(MODERNBERT_BASE if "modernbert" in arguments.row else {})

    def side(script: str, rows: int, *given: str) -> dict[str, float]:
        sizes = ("--size", size, "--seq-len", seq_len, "--rows", rows, "--steps", steps)
        held = ("--dtype", "fp32") if arguments.avx2 else ()
        return process(
            script, store, *sizes, "--model", keys, *held, *given, environment=AVX2 if arguments.avx2 else {}
        )

    speed = {choice: side("peers/hf_trainer.py", choice)["tokens_per_second"] for choice in choices}
    best = max(speed, key=lambda choice: speed[choice])
    sides = {"maskwright": lambda: side("ours.py", rows), "hf_best": lambda: side("peers/hf_trainer.py", best)}
    if arguments.row == "cpu-base" and not arguments.avx2:
        sides["hf_defaults"] = lambda: side("peers/hf_trainer.py", 8, "--defaults")
    results = alternate(sides, arguments.rounds)
    rates = medians(results, "tokens_per_second")
    ours = rates["maskwright"]["median"]
    own = medians({"maskwright": results["maskwright"]}, "matmul_share")["maskwright"]["median"]
    loading = medians({"maskwright": results["maskwright"]}, "loader_share")["maskwright"]["median"]
    memory = medians(results, "peak_memory_bytes")
    ratios = {f"over_{name}": ours / rate["median"] for name, rate in rates.items() if name != "maskwright"}
    write_result(
        arguments.row + "-avx2" * arguments.avx2,
        ratios | {"matmul_share": own, "loader_share": loading},
        tokens_per_second=rates,
        peak_memory_bytes=memory,
        hf_rows_tried=speed,
        rounds=results,
    )


if __name__ == "__main__":
    main()
