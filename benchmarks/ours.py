"""Our side of the training benchmarks, in a process of its own: loader and engine as `pretrain` uses them.

    python ours.py STORE --size base --seq-len 512 --rows 8 --steps 8

Prints one JSON line. A step's time holds its batch and its update; tokens are those of text and frame, not padding.
On a CUDA device, which runs ahead of the host, ten steps are timed together.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time

from maskwright.core.config import build_config
from maskwright.data.loader import Loader
from maskwright.data.store import TokenStore
from maskwright.engines.base import TrainState
from maskwright.engines.choose import make_engine
from maskwright.model.config import model_config, training_flops
from maskwright.model.initial import initial_parameters


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("--size", default="base")
    parser.add_argument("--model", default="{}", help="JSON: other keys of the model section")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--engine", choices=("torch", "jax"), default="torch")
    parser.add_argument("--dtype", choices=("auto", "bf16", "fp32"), default="auto")
    arguments = parser.parse_args()
    run = build_config(
        {
            "data": {"store": arguments.store, "seq_len": arguments.seq_len},
            "model": {"size": arguments.size} | json.loads(arguments.model),
            "schedule": {"steps": 1_000_000},
            "batch": {"micro_batch_rows": arguments.rows},
            "engine": {"kind": arguments.engine, "dtype": arguments.dtype},
        },
        "benchmark",
    )
    store = TokenStore(arguments.store)
    shape = model_config(run.model, store.vocabulary.size, arguments.seq_len)
    loader = Loader(run, store)
    engine = make_engine(shape, run.optimizer, run.engine, 0, run_flops=1e18)  # that of a long run
    engine.write(TrainState(0, initial_parameters(shape, 0)))
    ceiling = engine.ceiling()
    seconds, loading, tokens, flops = [], [], [], []
    together = 10 if engine.device != "cpu" else 1
    for first in range(0, arguments.steps, together):
        begin, load, taken = time.perf_counter(), 0.0, []
        for step in range(first, first + together):
            start = time.perf_counter()
            taken += loader.batches(step)
            load += time.perf_counter() - start
            engine.step(taken[-1:], 1e-4, lambda: False)
        engine.check()
        seconds.append((time.perf_counter() - begin) / together)
        loading.append(load / together)
        tokens.append(sum(batch.text_tokens for batch in taken) / together)
        work = [loader.work(step) for step in range(first, first + together)]
        computed = [training_flops(shape, *found, batch.predicted) for found, batch in zip(work, taken, strict=True)]
        flops.append(sum(computed) / together)
    warm = max(1, len(seconds) // 4)
    step_seconds = statistics.median(seconds[warm:])
    share = statistics.median(f / s for f, s in zip(flops[warm:], seconds[warm:], strict=True)) / ceiling
    result = {
        "step_seconds": step_seconds,
        "tokens_per_second": statistics.median(tokens[warm:]) / step_seconds,
        "matmul_share": share,
        "ceiling_gflops": ceiling / 1e9,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "loader_share": sum(loading[warm:]) / sum(seconds[warm:]),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
