"""What a GPU can show and a CPU cannot, in parts of some minutes each.

    python benchmarks/gpu.py promises --store STORE --ragged STORE    same bits twice and after a resume; gradients;
                                                                      programs compiled in 200 steps
    python benchmarks/gpu.py attention                                kernels of attention on the shapes of base
    python benchmarks/gpu.py step base --store STORE                  exact and fast sums, with and without a graph;
                                                                      the kernels of a step; memory
    python benchmarks/gpu.py beside base --store STORE                beside Hugging Face Trainer: also large,
                                                                      modernbert-1024, mini, nano
    python benchmarks/gpu.py compile base --store STORE               fills the compiler's caches for `beside`

STORE is what `maskwright data prepare` makes; that of `--ragged` has many short texts in a row. Each part writes
`results/gpu-PART.json`. `--small` tries a part in miniature, on a CPU too. `finetune.py ag-news-mini` and
`engines.py gpu-base` time fine-tuning and JAX on a GPU.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import common
import torch
from common import process, write_result
from timing import peak_memory_bytes
from train import MODERNBERT_BASE

from maskwright.config.pretraining import RunConfig, build_config
from maskwright.core.console import say, several
from maskwright.data.batch import Batch
from maskwright.data.loader import Loader
from maskwright.data.store import TokenStore
from maskwright.engines.base import TrainState
from maskwright.engines.torch.engine import TorchEngine
from maskwright.engines.torch.graphs import Graphs
from maskwright.engines.torch.weights import FlatWeights
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
        engine = TorchEngine(shape, run.optimizer, run.engine, 0, run_flops=1e18)
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
    engine.graphs = Graphs(dict(engine.model.named_parameters())) if whether else None


# ---- promises -----------------------------------------------------------------------------------------------------


def promises(setting: Setting) -> None:
    """Of `exact`: the same bits twice, after a resume, and with a CUDA graph; the same losses and norms, though they
    are read while the device computes the next step; then gradients beside a CPU's in fp32, and how many programs
    ragged texts compile."""
    rows, tokens, size = (4, 32, "nano") if setting.small else (32, 512, "mini")
    modern = {**MINI_MODERNBERT, **({"local_attention": 8} if setting.small else {})}
    compiles = ("off", "on") if setting.cuda else ("off",)
    found: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    for name, model in (("roberta", {}), ("modernbert", modern), ("roberta, dropout", {"hidden_dropout": 0.1})):
        plain = _reference(setting, size, model, tokens, rows) if "dropout" not in name else None
        for compile in compiles:
            run = setting.config(size, model, tokens, rows, compile=compile, reproducibility="exact")
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


def _same_bits(setting: Setting, run: RunConfig, steps: int = 6) -> dict[str, Any]:
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
        engine.check(before)
        return bits(engine.read()), numbers

    engine = setting.engine(run)
    use_graphs(engine, whether=False)
    once, numbers = trained(engine, 0, late=False)
    del engine
    torch.compiler.reset()
    free()
    engine, half = setting.engine(run), steps // 2
    use_graphs(engine, whether=False)
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
    """The largest three shares by which a parameter's gradient differs from that of a CPU in fp32."""
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
    assert engine.graphs is not None
    return {**after, "graphs": len(engine.graphs._graphs)}


# ---- attention ----------------------------------------------------------------------------------------------------


def attention(setting: Setting) -> None:
    """Forward and backward pass of one layer of base, 65,536 tokens, by each kernel that torch has."""
    T, H, h = (64, 2, 16) if setting.small else (512, 12, 64)
    M = 2 if setting.small else 128
    dtype, device = torch.bfloat16, "cuda" if setting.cuda else "cpu"
    found: dict[str, Any] = {}
    qkv = torch.randn(M, T, 3, H, h, device=device, dtype=dtype, requires_grad=True)
    gradient = torch.randn(M, T, H, h, device=device, dtype=dtype)

    def timed(name: str, mixed: Callable[[], torch.Tensor]) -> None:
        try:
            found[name] = _milliseconds(setting, mixed, qkv, gradient)
        except Exception as error:  # of a kernel that does not take these shapes
            found[name] = str(error)[:200]
        say(f"attention, {name}: {found[name]}")

    def dense() -> torch.Tensor:
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)

    from torch.nn.attention import SDPBackend, sdpa_kernel

    kinds = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION} if setting.cuda else {}
    for exact in (False, True):
        torch.use_deterministic_algorithms(exact)
        how = "ordered" if exact else "any order"
        for kind, backend in kinds.items():
            with sdpa_kernel(backend):
                timed(f"dense {kind}, {how}", dense)
        for version in _versions(setting):
            for number in (1, 8):
                offsets = torch.arange(0, M * T + 1, T // number, device=device, dtype=torch.int32)

                def packed(offsets: torch.Tensor = offsets) -> torch.Tensor:
                    from torch.nn.attention.varlen import varlen_attn

                    q, k, v = (part.flatten(0, 1) for part in qkv.unbind(2))
                    return varlen_attn(q, k, v, offsets, offsets, T, T).unflatten(0, (M, T))

                timed(f"packed {version}, {how}, {several(number, 'text')} a row", packed)
        if not kinds:
            timed(f"dense, {how}", dense)
    torch.use_deterministic_algorithms(False)
    numbers = {name: value["total"] for name, value in found.items() if isinstance(value, dict)}
    write_result("gpu-attention", numbers, found=found)


def _versions(setting: Setting) -> Iterator[str]:
    """The versions of FlashAttention that this machine has, each active until the next: 2 is torch's own."""
    if not setting.cuda:
        return
    yield "FA2"
    for version in getattr(torch.nn.attention, "list_flash_attention_impls", list)():  # since torch 2.11
        try:
            torch.nn.attention.activate_flash_attention_impl(version)
        except Exception as error:  # somebody else's package, which may lack anything
            say(f"attention, {version}: {error}")
        else:
            try:
                yield version
            finally:
                torch.nn.attention.restore_flash_attention_impl()


def _milliseconds(
    setting: Setting, mixed: Callable[[], torch.Tensor], qkv: torch.Tensor, gradient: torch.Tensor
) -> dict[str, float]:
    """Medians of ten."""
    forward, total = [], []
    for _ in range(13):
        clock = _Clock(setting.cuda)
        clock.mark()
        result = mixed()
        clock.mark()
        torch.autograd.grad(result, qkv, gradient)
        clock.mark()
        first, second = clock.spans()
        forward.append(first)
        total.append(first + second)
    return {"forward": round(statistics.median(forward[3:]), 4), "total": round(statistics.median(total[3:]), 4)}


class _Clock:
    """Milliseconds between marks, by the device's clock."""

    def __init__(self, cuda: bool) -> None:
        self.cuda = cuda
        self.marks: list[Any] = []

    def mark(self) -> None:
        if self.cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)
        else:
            self.marks.append(time.perf_counter() * 1e3)

    def spans(self) -> list[float]:
        if self.cuda:
            torch.cuda.synchronize()
            return [a.elapsed_time(b) for a, b in pairwise(self.marks)]
        return [b - a for a, b in pairwise(self.marks)]


# ---- a step -------------------------------------------------------------------------------------------------------


def step(setting: Setting, row: str, kinds: list[str]) -> None:
    """Seconds of an update, first as the engine is, then with batches that a thread makes, then from a CUDA graph."""
    size, model, tokens, rows, _ = _scaled(setting, row)
    found: dict[str, Any] = {}
    for sums in kinds:
        run = setting.config(size, model, tokens, rows, reproducibility=sums)
        began = time.perf_counter()
        engine, loader = setting.engine(run), Loader(run, setting.stores["store"])
        engine.dry_run(loader.batches(0), [])
        engine.check()
        found[f"{sums}, compile_seconds"] = round(time.perf_counter() - began, 1)
        for how, threads in (("", False), (", thread", True), *([(", graph", True)] if setting.cuda else [])):
            if setting.cuda:
                use_graphs(engine, whether=how == ", graph")
            found[f"{sums}{how}"] = _timed(setting, engine, loader, threads=threads)
            say(f"{row}, {sums}{how}: {json.dumps(found[f'{sums}{how}'])}")
        if setting.cuda:
            found[f"kernels, {sums}"] = _kernels(engine, loader)
        found["engine"] = engine.description
        del engine
        free()
        torch.compiler.reset()
    speed = {name: value["tokens_per_second"] for name, value in found.items() if name in (*kinds, "exact, graph")}
    ratios = {"matmul_share": found[kinds[-1]]["matmul_share"]}
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
    ahead = BatchPrefetcher(MaskedLM(loader, {}, engine.config.vocab_size), [0], threads=threads)
    seconds, tokens, flops, host, number = [], [], [], 0.0, 0
    for _ in range(2 if setting.small else 6):
        engine.check()
        begin = time.perf_counter()
        for _ in range(TOGETHER):
            batches, work = ahead.take(number % 100, (number + 1) % 100)
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


def _kernels(engine: TorchEngine, loader: Loader, steps: int = 3) -> dict[str, Any]:
    """Milliseconds of a step by kernel, the longest first, and all together."""
    kinds = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profiler:
        for number in range(steps):
            engine.step(loader.batches(number), 1e-4)
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


# ---- beside Hugging Face Trainer ----------------------------------------------------------------------------------


def beside(setting: Setting, row: str, store: str, arguments: argparse.Namespace) -> None:
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
    parser.add_argument("part", choices=("promises", "attention", "step", "beside", "compile"))
    parser.add_argument("row", nargs="?", choices=SIZES, default="base")
    parser.add_argument("--store")
    parser.add_argument("--ragged")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--trainer-rows", type=int, nargs="+", help="rows that Trainer may choose from")
    parser.add_argument("--sums", nargs="+", default=["exact", "fast"], choices=("exact", "fast"))
    parser.add_argument("--results", help="folder of the results")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    if arguments.results:
        common.RESULTS = Path(arguments.results)
    setting = Setting(arguments)
    if arguments.part == "promises":
        promises(setting)
    elif arguments.part == "attention":
        attention(setting)
    elif arguments.part == "step":
        step(setting, arguments.row, arguments.sums)
    else:
        beside(setting, arguments.row, arguments.store, arguments)


if __name__ == "__main__":
    main()
