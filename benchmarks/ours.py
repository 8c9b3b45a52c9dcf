"""Our side of the training benchmarks, in a process of its own: loader and engine as `pretrain` uses them.

    python ours.py STORE --size base --seq-len 512 --rows 8 --steps 8

Prints one JSON line. A step's time holds its batch and its update; tokens are text and frame, not padding.
On a CUDA device, which runs ahead of the host, several steps are timed `--together`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from timing import Steps, peak_memory_bytes

from maskwright.config.pretraining import build_config
from maskwright.data.loader import Loader
from maskwright.data.store import TokenStore
from maskwright.engines.base import RunFacts, TrainState
from maskwright.engines.ceiling import Ceiling
from maskwright.engines.choose import make_engine
from maskwright.engines.muon import products_flops
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
    parser.add_argument("--together", type=int, default=1)
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw")
    parser.add_argument("--dtype", choices=("auto", "bf16", "fp32"), default="auto")
    arguments = parser.parse_args()
    run = build_config(
        {
            "data": {"store": arguments.store, "seq_len": arguments.seq_len},
            "model": {"size": arguments.size} | json.loads(arguments.model),
            "schedule": {"steps": 1_000_000},
            "optimizer": {"kind": arguments.optimizer},
            "batch": {"micro_batch_rows": arguments.rows},
            "engine": {"dtype": arguments.dtype},
        },
        "benchmark",
    )
    store = TokenStore(arguments.store)
    shape = model_config(run.model, store.vocabulary.size, arguments.seq_len)
    loader = Loader(run, store)
    engine = make_engine(shape, run.optimizer, run.engine, 0, RunFacts(flops=1e18))  # as in a long run
    engine.write(TrainState(0, initial_parameters(shape, 0)))
    ceiling = Ceiling(engine.ceiling())
    engine.dry_run(loader.batches(0)[-1:], [])  # compiles
    clock, loading, batches = Steps(arguments.together, engine.check), [], []
    for step in range(arguments.steps):
        start = time.perf_counter()
        batches += loader.batches(step)
        loading.append(time.perf_counter() - start)
        engine.step(batches[-1:], 1e-4, lambda: False)
        clock.end_step()
    ceiling.share(engine.ceiling())  # when the device is warm, and a busy neighbour of the start may have gone
    tokens = [float(batch.text_tokens) for batch in batches]
    flops = [training_flops(shape, *loader.work(step), batch.predicted) for step, batch in enumerate(batches)]
    tokens, flops, loading = (by_group(numbers, arguments.together)[clock.warm] for numbers in (tokens, flops, loading))
    seconds = clock.seconds[clock.warm]
    share = ceiling.share(statistics.median(f / s for f, s in zip(flops, seconds, strict=True)))
    muons = products_flops(shape) if arguments.optimizer == "muon" else 0.0
    with_muon = ceiling.share(statistics.median((f + muons) / s for f, s in zip(flops, seconds, strict=True)))
    result = {
        "step_seconds": clock.median,
        "tokens_per_second": statistics.median(tokens) / clock.median,
        "matmul_share": share,
        **({"matmul_share_with_muon": with_muon} if muons else {}),
        "ceiling_gflops": ceiling.flops_per_second / 1e9,
        "peak_memory_bytes": peak_memory_bytes(),
        "loader_share": sum(loading) / sum(seconds),
    }
    print(json.dumps(result))


def by_group(numbers: list[float], together: int) -> list[float]:
    """The mean of each group of steps."""
    return [statistics.mean(numbers[first : first + together]) for first in range(0, len(numbers), together)]


if __name__ == "__main__":
    main()
