"""Measurements that need a GPU, in parts of some minutes each.

    python benchmarks/gpu.py sitting --store STORE --ragged STORE     those below except `trainer`, the most important
                                                                      first, within --seconds (840)
    python benchmarks/gpu.py promises --store STORE --ragged STORE    same bits twice and after a resume; gradients;
                                                                      programs compiled in 200 steps
    python benchmarks/gpu.py attention                                kernels of attention on the shapes of base
    python benchmarks/gpu.py products                                 products of base with GELU, biases and split sums
    python benchmarks/gpu.py step base --store STORE                  kernels of a fixed and of any order, with and
                                                                      without a graph; the kernels of a step; memory
    python benchmarks/gpu.py finetune --store STORE                   fine-tuning as it is, in rows of eight lengths,
                                                                      and those from graphs; kernels of each
    python benchmarks/gpu.py trainer base --store STORE               against Hugging Face Trainer: also large,
                                                                      modernbert-1024, mini, nano
    python benchmarks/gpu.py compile base --store STORE               fills the compiler's caches for `trainer`

STORE is made by `maskwright data prepare`; the store of `--ragged` has many short texts in a row. Each part writes
`results/gpu-PART.json` and prints one line of JSON. `--small` tries a part in miniature, on a CPU too. `finetune.py
ag-news-mini` times fine-tuning against Trainer. No GPU has run `products`, `finetune`, sums of gradients in
CUDA graphs or the rows of `promises` with attention dropout and four rows yet.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import common
import gpu_kernels
import numpy as np
import torch
from common import process, write_result
from timing import peak_memory_bytes
from train import MODERNBERT_BASE

from maskwright.config.pretraining import EngineSection, ModelSection, Optimizer, RunConfig, build_config
from maskwright.core.console import say
from maskwright.data.batch import Batch
from maskwright.data.loader import Loader
from maskwright.data.store import TokenStore
from maskwright.engines.base import RunFacts, TrainState
from maskwright.engines.torch.engine import TorchEngine
from maskwright.engines.torch.graphs import Graphs
from maskwright.engines.torch.weights import FlatWeights
from maskwright.labels.encode import EncodedRows
from maskwright.labels.rows import Packer
from maskwright.model.config import model_config, training_flops
from maskwright.model.initial import initial_parameters
from maskwright.training.masked_lm import MaskedLM
from maskwright.training.prefetch import BatchPrefetcher

#        size, keys of the model, tokens in a row, our rows, rows that Trainer may choose from
SIZES: dict[str, tuple[str, dict[str, Any], int, int, tuple[int, ...]]] = {
    "base": ("base", {}, 512, 128, (64, 128)),
    "large": ("large", {}, 512, 64, (32, 64)),
    "modernbert-1024": ("base", MODERNBERT_BASE, 1024, 64, (32, 64)),
    "mini": ("mini", {}, 128, 256, (256,)),
    "nano": ("nano", {}, 128, 256, (256,)),
}
TOGETHER = 10
PARTS = ("sitting", "promises", "attention", "products", "finetune")
MINI_MODERNBERT = {"architecture": "modernbert", "global_attn_every_n_layers": 3, "local_attention": 128}


class Setting:
    """A store, a device and a size of everything."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.cuda, self.small = torch.cuda.is_available(), arguments.small
        self.stores = {name: TokenStore(path) for name in ("store", "ragged") if (path := getattr(arguments, name))}

    def config(self, size: str, model: dict[str, Any], tokens: int, rows: int, **engine: Any) -> RunConfig:
        store = next(iter(self.stores.values())).location
        values: dict[str, Any] = {
            "data": {"store": store, "seq_len": tokens},
            "model": {"size": size, **model},
            "schedule": {"steps": 1_000_000},
            "batch": {"micro_batch_rows": rows},
            "engine": engine,
        }
        return build_config(values, "benchmark")

    def engine(self, run: RunConfig) -> TorchEngine:
        shape = model_config(run.model, next(iter(self.stores.values())).vocabulary.size, run.data.seq_len)
        engine = TorchEngine(shape, run.optimizer, run.engine, 0, RunFacts(flops=1e18))
        engine.write(TrainState(0, initial_parameters(shape, 0)))
        return engine


def free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def bits(state: TrainState) -> str:
    """A hash of weights and moments."""
    digest = hashlib.sha256()
    for named in (state.parameters, *state.moments.values()):
        for name in sorted(named):
            digest.update(named[name].tobytes())
    return digest.hexdigest()[:16]


def use_graphs(engine: TorchEngine, *, whether: bool) -> None:
    engine.fit.graphs = Graphs() if whether else None


# ---- promises -----------------------------------------------------------------------------------------------------


def promises(setting: Setting) -> None:
    """Of `exact`: the same bits twice, after a resume, and with a CUDA graph; the same losses and norms, though they
    are read while the device computes the next step; then gradients compared with a CPU's in fp32, and how many
    programs ragged texts compile."""
    rows, tokens, size = (4, 32, "nano") if setting.small else (32, 512, "mini")
    modern = {**MINI_MODERNBERT, **({"local_attention": 8} if setting.small else {})}
    compiles = ("off", "on") if setting.cuda else ("off",)
    found: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    drops = {"hidden_dropout": 0.1, "attention_dropout": 0.1}
    cases: list[tuple[str, dict[str, Any], int]] = [
        ("roberta", {}, rows),
        *([] if setting.small else [("roberta, four rows", {}, 4)]),  # whose predictions are no multiple of 8
        ("roberta, dropout", drops, rows),
        ("modernbert", modern, rows),
    ]
    for name, model, of in cases:
        plain = _reference(setting, size, model, tokens, of) if "dropout" not in name else None
        for compile in compiles:
            run = setting.config(size, model, tokens, of, compile=compile, reproducibility="exact")
            began = time.perf_counter()
            result = _same_bits(setting, run)
            if plain is not None:
                result["gradients off"] = _gradients_off(setting, run, plain)
            result["seconds"] = round(time.perf_counter() - began, 1)
            found[f"{name}, compile {compile}"] = result
            say(f"{name}, compile {compile}: {json.dumps(result)}")
    if "ragged" in setting.stores and setting.cuda:
        found["programs"] = _programs(setting, size, tokens, rows)
        say(f"programs: {json.dumps(found['programs'])}")
    same = [value for result in found.values() for key, value in result.items() if key.startswith("same")]
    ratios["different_ends"] = float(sum(not value for value in same))
    write_result("gpu-promises", ratios, found=found)


def _start(setting: Setting, run: RunConfig, folder: str, *, graphs: bool = False) -> TorchEngine:
    """Without anything that was compiled or measured before."""
    torch.compiler.reset()
    free()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(dir=folder)
    engine = setting.engine(run)
    use_graphs(engine, whether=graphs)
    return engine


def _same_bits(setting: Setting, run: RunConfig, steps: int = 6) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return _ends(setting, run, folder, steps)


def _ends(setting: Setting, run: RunConfig, folder: str, steps: int) -> dict[str, Any]:
    loader = Loader(run, setting.stores["store"])

    def trained(engine: TorchEngine, first: int, *, late: bool = True) -> tuple[str, list[tuple[float, float]]]:
        """The bits at the end, and (loss sum, gradient norm) of each step; of `late` ones, which are read once the next
        step has begun, without the last."""
        numbers, before = [], None
        for step in range(first, steps):
            stats = engine.step(loader.batches(step), 1e-3)
            if not late:
                engine.check()
            if read := before if late else stats:
                numbers.append((float(read.loss_sum), float(read.grad_norm)))
            before = stats
        engine.check()
        return bits(engine.read()), numbers

    engine, half = _start(setting, run, folder), steps // 2
    once, numbers = trained(engine, 0, late=False)
    del engine
    engine = _start(setting, run, folder)
    for step in range(half):
        engine.step(loader.batches(step), 1e-3)
    state = engine.read()
    end, late = trained(engine, half)
    result: dict[str, Any] = {"same twice": end == once, "same numbers late": late == numbers[half:-1]}
    engine.write(state)
    result["same after a resume"] = trained(engine, half)[0] == once
    if setting.cuda:
        use_graphs(engine, whether=True)
        engine.write(TrainState(0, initial_parameters(engine.config, 0)))
        end, late = trained(engine, 0)
        result |= {"same with a graph": end == once, "same numbers late with a graph": late == numbers[:-1]}
    del engine
    free()
    return result


def _gradient(engine: TorchEngine, batch: Batch) -> dict[str, torch.Tensor]:
    engine.weights.begin(1)
    engine._accumulate(batch, 0, final=True)
    assert isinstance(engine.weights, FlatWeights)
    flat, order = engine.weights.gradients.flat, engine.weights._order
    return {name: view.cpu().double() for name, view in order.parameters(flat).items()}


def _reference(setting: Setting, size: str, model: dict[str, Any], tokens: int, rows: int) -> dict[str, torch.Tensor]:
    run = setting.config(size, model, tokens, rows, device="cpu", dtype="fp32")
    return _gradient(setting.engine(run), Loader(run, setting.stores["store"]).batch(0, 0))


def _gradients_off(setting: Setting, run: RunConfig, plain: dict[str, torch.Tensor]) -> dict[str, float]:
    """The largest three shares by which a parameter's gradient differs from a CPU's in fp32."""
    batch, engine = Loader(run, setting.stores["store"]).batch(0, 0), setting.engine(run)
    shares = {
        name: float((g - plain[name]).norm() / plain[name].norm()) for name, g in _gradient(engine, batch).items()
    }
    free()
    return dict(sorted(((name, round(share, 5)) for name, share in shares.items()), key=lambda pair: -pair[1])[:3])


def _programs(setting: Setting, size: str, tokens: int, rows: int) -> dict[str, Any]:
    from torch._dynamo.utils import counters

    run = setting.config(size, MINI_MODERNBERT, tokens, rows, compile="on")
    loader, engine = Loader(run, setting.stores["ragged"]), setting.engine(run)
    torch.compiler.reset()
    counters.clear()
    after = {}
    for step in range(200):
        engine.step(loader.batches(step % 40), 1e-3)
        if step in (0, 9, 199):
            after[f"after {step + 1}"] = counters["stats"]["unique_graphs"]
    engine.check()
    assert engine.fit.graphs is not None
    return {**after, "graphs": len(engine.fit.graphs._graphs)}


# ---- a step -------------------------------------------------------------------------------------------------------


def step(setting: Setting, row: str, orders: list[str]) -> None:
    """Seconds of an update, first as the engine is, then with batches that a thread makes, then from a CUDA graph."""
    size, model, tokens, rows, _ = _scaled(setting, row)
    found: dict[str, Any] = {}
    for order in orders:
        run = setting.config(size, model, tokens, rows, reproducibility=order)
        began = time.perf_counter()
        engine, loader = setting.engine(run), Loader(run, setting.stores["store"])
        engine.dry_run(loader.batches(0), [])
        engine.check()
        found[f"{order}, compile_seconds"] = round(time.perf_counter() - began, 1)
        for how, threads in (("", False), (", thread", True), *([(", graph", True)] if setting.cuda else [])):
            if setting.cuda:
                use_graphs(engine, whether=how == ", graph")
            found[f"{order}{how}"] = _timed(setting, engine, loader, threads=threads)
            say(f"{row}, {order}{how}: {json.dumps(found[f'{order}{how}'])}")
        if setting.cuda:
            found[f"kernels, {order}"] = _kernels(engine, loader.batches)
        found["engine"] = engine.description
        del engine
        free()
        torch.compiler.reset()
    speed = {name: value["tokens_per_second"] for name, value in found.items() if name in (*orders, "exact, graph")}
    ratios = {"matmul_share": found[orders[-1]]["matmul_share"]}
    if {"exact", "fast"} <= set(speed):
        ratios["exact_over_fast"] = speed["exact"] / speed["fast"]
    if {"exact", "exact, graph"} <= set(speed):
        ratios["graph_over_kernels"] = speed["exact, graph"] / speed["exact"]
    write_result(f"gpu-step-{row}", ratios, found=found)


def _scaled(setting: Setting, row: str) -> tuple[str, dict[str, Any], int, int, tuple[int, ...]]:
    size, model, tokens, rows, choices = SIZES[row]
    if not setting.small:
        return size, model, tokens, rows, choices
    few = {"num_hidden_layers": 2, "intermediate_size": 64, "local_attention": 8} if model else {}
    return "nano", model | few, 64, 2, (2,)


def _timed(setting: Setting, engine: TorchEngine, loader: Loader, *, threads: bool) -> dict[str, Any]:
    """Groups of ten steps; the device is waited for at the end of each."""
    if setting.cuda:
        torch.cuda.reset_peak_memory_stats()
    ahead = BatchPrefetcher(MaskedLM(loader, {}, engine.config.vocab_size), [0])
    seconds, tokens, flops, host, number = [], [], [], 0.0, 0
    for _ in range(2 if setting.small else 6):
        engine.check()
        begin = time.perf_counter()
        for _ in range(TOGETHER):
            batches, work = ahead.take(number, ahead=bool(threads))
            engine.step(batches, 1e-4)
            tokens.append(batches[0].text_tokens)
            flops.append(training_flops(engine.config, work.tokens, work.pairs, batches[0].predicted))
            number += 1
        host = (time.perf_counter() - begin) / TOGETHER
        engine.check()
        seconds.append((time.perf_counter() - begin) / TOGETHER)
    ahead.close()
    ceiling, best = engine.ceiling(), statistics.median(seconds[1:])
    return {
        "step_milliseconds": round(best * 1e3, 3),
        "host_milliseconds": round(host * 1e3, 3),
        "groups": [round(value * 1e3, 3) for value in seconds],
        "tokens_per_second": round(statistics.mean(tokens) / best, 1),
        "tflops": round(statistics.mean(flops) / best / 1e12, 2),
        "ceiling_tflops": round(ceiling / 1e12, 2),
        "matmul_share": round(statistics.mean(flops) / best / ceiling, 4),
        "peak_memory_bytes": peak_memory_bytes(),
    }


def _kernels(engine: TorchEngine, batches: Callable[[int], list[Batch]], steps: int = 3) -> dict[str, Any]:
    """Milliseconds of a step by kernel, the longest first, and all together."""
    kinds = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profiler:
        for number in range(steps):
            engine.step(batches(number), 1e-4)
        engine.check()
    by_name: dict[str, list[float]] = {}
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            by_name.setdefault(event.name[:110], []).append(event.time_range.elapsed_us())
    milliseconds = {name: (sum(times) / steps / 1e3, len(times) // steps) for name, times in by_name.items()}
    longest = sorted(milliseconds.items(), key=lambda item: -item[1][0])[:45]
    return {
        "all": round(sum(value for value, _ in milliseconds.values()), 3),
        "launches": sum(count for _, count in milliseconds.values()),
        "by_kernel": {name: [round(value, 4), count] for name, (value, count) in longest},
    }


# ---- fine-tuning --------------------------------------------------------------------------------------------------


def finetune(setting: Setting) -> None:
    """Seconds of an update of 32 made-up examples, most of them short: in rows as they are, in rows of eight lengths
    and few shapes, and these from CUDA graphs. The losses show whether they compute the same."""
    size: Literal["nano", "base"] = "nano" if setting.small else "base"
    steps = 4 if setting.small else 60
    shape = model_config(ModelSection(size=size), 1024, 512)
    model = replace(shape, task="single_label_classification", num_labels=4)
    drawn = np.random.default_rng(0)
    lengths = np.clip(drawn.lognormal(4.0, 0.7, 4_000), 8, 64 if setting.small else 512).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = drawn.integers(5, 1024, offsets[-1]).astype(np.int32)
    targets = drawn.integers(0, 4, len(lengths)).astype(np.int32)
    encoded = EncodedRows(ids, offsets, np.arange(len(lengths), dtype=np.int32), targets, None, 0)
    packer = Packer.of(encoded, "single_label_classification", 1)
    rows = [drawn.integers(0, len(lengths), 32) for _ in range(steps)]
    eight = [replace(packer, T=T, few_shapes=True) for T in range(64, 513, 64)]

    def as_it_is(number: int) -> list[Batch]:
        return [packer.pack(rows[number % steps]).batch]

    def few(number: int) -> list[Batch]:
        picked = rows[number % steps]
        return [next(of for of in eight if lengths[picked].max() <= of.T).pack(picked).batch]

    found: dict[str, Any] = {}
    ways = {"as it is": (as_it_is, False), "eight lengths": (few, False), "eight lengths, graphs": (few, True)}
    for name, (batches, graphs) in ways.items():
        if graphs and not setting.cuda:
            continue
        engine = TorchEngine(model, Optimizer(), EngineSection(compile="off"), 0)
        engine.write(TrainState(0, initial_parameters(model, 0)))
        use_graphs(engine, whether=graphs)
        losses = [float(stats.loss_sum) for n in range(steps) if (stats := engine.step(batches(n), 1e-5))]
        began = time.perf_counter()
        for number in range(steps):
            engine.step(batches(number), 0.0)
        engine.check()
        each = (time.perf_counter() - began) / steps
        found[name] = {"step_milliseconds": round(each * 1e3, 3), "first": losses[0], "last": losses[-1]}
        if setting.cuda:
            found[name] |= {"kernels": _kernels(engine, batches), "peak_memory_bytes": peak_memory_bytes()}
        say(f"finetune, {name}: {found[name]['step_milliseconds']} ms")
        del engine
        free()
    write_result("gpu-finetune", {name: value["step_milliseconds"] for name, value in found.items()}, found=found)


# ---- one after the other -------------------------------------------------------------------------------------------

SITTING = (
    (("promises",), 240),
    (("products",), 110),
    (("attention",), 60),
    (("step", "base"), 140),
    (("finetune",), 90),
    (("step", "modernbert-1024", "--orders", "exact"), 120),
    (("step", "mini", "--orders", "exact"), 80),
)
"""Parts, and the seconds that each may take."""


def sitting(arguments: argparse.Namespace) -> None:
    """Each part in a process of its own, so that a failing or slow one does not affect the others."""
    end, found = time.monotonic() + arguments.seconds, dict[str, dict[str, Any]]()
    given = [
        word
        for name in ("store", "ragged", "results")
        if (to := getattr(arguments, name))
        for word in ("--" + name, to)
    ]
    for words, most in SITTING:
        began = time.monotonic()
        if (limit := min(most, end - began)) < 20:
            found[" ".join(words)] = {"seconds": 0.0, "end": "no time left"}
            continue
        command = [sys.executable, __file__, *words, *given, *["--small"] * arguments.small]
        try:
            ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=limit)
            how = "done" if ended.returncode == 0 else ended.stderr[-1500:]
        except subprocess.TimeoutExpired:
            how = f"not done after {limit:.0f} s"
        found[" ".join(words)] = {"seconds": round(time.monotonic() - began, 1), "end": how}
        say(f"{' '.join(words)}: {found[' '.join(words)]}")
    write_result("gpu-sitting", {name: part["seconds"] for name, part in found.items()}, found=found)


# ---- against Hugging Face Trainer ---------------------------------------------------------------------------------


def against_trainer(setting: Setting, row: str, store: str, arguments: argparse.Namespace) -> None:
    size, model, tokens, rows, choices = _scaled(setting, row)
    choices, rounds = tuple(arguments.trainer_rows or choices), arguments.rounds
    steps, together = (4, 1) if setting.small else (arguments.steps, TOGETHER)
    sizes = ("--size", size, "--seq-len", tokens, "--model", json.dumps(model))
    if arguments.part == "compile":
        for script, number in (("peers/hf_trainer.py", choices[-1]), ("ours.py", rows)):
            began = time.perf_counter()
            process(script, store, *sizes, "--rows", number, "--steps", 4)
            say(f"{row}, {script}: compiled and ran in {time.perf_counter() - began:.0f} s")
        return

    def ours() -> dict[str, Any]:
        return process("ours.py", store, *sizes, "--rows", rows, "--steps", steps, "--together", together)

    def trainer(choice: int) -> dict[str, Any]:
        return process("peers/hf_trainer.py", store, *sizes, "--rows", choice, "--steps", steps, "--together", together)

    tried: dict[int, float] = {}
    results: dict[str, list[dict[str, Any]]] = {"maskwright": [], "hf_best": []}
    for name, run in _turns(ours, trainer, choices, rounds, tried):
        results[name].append(run)
        say(f"{row}, {name}: {json.dumps(run)}")
    ours_rate, best = (statistics.median(run["tokens_per_second"] for run in results[name]) for name in results)
    ratios = {"over_hf_best": ours_rate / best, "matmul_share": results["maskwright"][-1]["matmul_share"]}
    write_result(f"gpu-{row}", ratios, hf_rows_tried=tried, rounds=results)


def _turns(
    ours: Callable[[], dict[str, Any]],
    trainer: Callable[[int], dict[str, Any]],
    choices: tuple[int, ...],
    rounds: int,
    tried: dict[int, float],
) -> Iterator[tuple[str, dict[str, Any]]]:
    """A B A B. Trainer's first turn is the fastest of its choices."""
    for number in range(rounds):
        yield "maskwright", ours()
        if number:
            yield "hf_best", trainer(max(tried, key=lambda choice: tried[choice]))
            continue
        runs = {choice: run for choice in choices if (run := _or_none(trainer, choice))}
        tried |= {choice: run["tokens_per_second"] for choice, run in runs.items()}
        yield "hf_best", runs[max(tried, key=lambda choice: tried[choice])]


def _or_none(trainer: Callable[[int], dict[str, Any]], choice: int) -> dict[str, Any] | None:
    """None where it does not fit."""
    try:
        return trainer(choice)
    except SystemExit as error:
        if "OutOfMemory" not in str(error):
            raise
        say(f"Trainer with {choice} rows: out of memory")
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=(*PARTS, "step", "trainer", "compile"))
    parser.add_argument("row", nargs="?", choices=SIZES, default="base")
    parser.add_argument("--store")
    parser.add_argument("--ragged")
    parser.add_argument("--seconds", type=float, default=840.0, help="of a sitting")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--trainer-rows", type=int, nargs="+", help="rows that Trainer may choose from")
    parser.add_argument("--orders", nargs="+", default=["exact", "fast"], choices=("exact", "fast"), help="of kernels")
    parser.add_argument("--results", help="folder of the results")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    if arguments.results:
        common.RESULTS = Path(arguments.results)
    setting = Setting(arguments)
    if arguments.part == "sitting":
        sitting(arguments)
    elif arguments.part in ("attention", "products"):
        part = gpu_kernels.attention if arguments.part == "attention" else gpu_kernels.products
        part(cuda=setting.cuda, small=setting.small)
    elif arguments.part in ("promises", "finetune"):
        (promises if arguments.part == "promises" else finetune)(setting)
    elif arguments.part == "step":
        step(setting, arguments.row, arguments.orders)
    else:
        against_trainer(setting, arguments.row, arguments.store, arguments)


if __name__ == "__main__":
    main()
