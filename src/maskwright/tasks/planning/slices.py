"""`maskwright plan`: whether a run fits a TPU slice, compiled for it ahead of time, and what would fit."""

from __future__ import annotations

import functools
import importlib.metadata
import math
import os
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import maskwright
from maskwright.config.pretraining import RunConfig, configs, shared_out
from maskwright.core import storage
from maskwright.core.console import say, several
from maskwright.core.errors import ConfigError, InputError, MaskwrightError
from maskwright.core.extras import require
from maskwright.data.masking import slots_per_row
from maskwright.data.opening import open_store
from maskwright.engines.jax.aot import SETTINGS, CompileRequest, CompileResult
from maskwright.model.config import ModelConfig, model_config
from maskwright.processes.child import python_module
from maskwright.tasks.models.load import special_ids
from maskwright.tasks.planning.devices import DEVICES
from maskwright.tasks.pretrain.model import Base
from maskwright.tasks.pretrain.prepare import step_flops

GIB = 2**30
OPTIONS = ("LIBTPU_INIT_ARGS", "XLA_FLAGS")
"""Variables that may change what the compiler makes."""
MOST_TRIES = 8
"""The most compilations in the search for the largest micro-batch; each lasts tens of seconds."""
MOST_ADVISED = 3
"""The most compilations in the search for advice."""


@dataclass(frozen=True)
class SliceFit:
    """Whether a run fits a slice. Numbers are those of the update's program at the compiler's own limit. They leave out
    batches that wait, the program that evaluates, and the programs themselves."""

    slice: str
    rows_per_step: int
    """As configured."""
    micro_batches: int
    """Micro-batches that each device computes in a step."""
    model_flops_per_step: float
    asked_rows: int
    """Rows of a micro-batch, as configured."""
    asked: CompileResult
    """The compiler's result for `asked_rows`."""
    largest_rows: int | None
    """The most rows of a micro-batch that fit; None if not one fits, or the search was left out."""
    largest: CompileResult | None
    advice: list[str]
    """Keys to set, or why there are none."""
    phases: list[str] = field(default_factory=list)
    """The compiler's results for each phase of a run with phases. The numbers above are those of the phase that needs
    most."""

    def report(self) -> str:
        asked = self.asked
        chips = f"{several(asked.devices, 'device')} ({asked.device_kind})"
        versions = ", ".join(f"{name} {version}" for name, version in asked.versions.items())
        micro_batches = several(self.micro_batches, "micro-batch", "micro-batches")
        lines = [
            f"{self.slice}: {chips}; compiled by {versions}, nothing was run",
            f"step: {self.rows_per_step:,} rows, {micro_batches} a device; "
            f"{self.model_flops_per_step / 1e12:,.1f} TFLOP of the model, "
            f"{self.model_flops_per_step / asked.devices / 1e12:,.2f} a device",
            _line(self.asked_rows, asked, self.micro_batches),
        ]
        if self.largest and self.largest_rows != self.asked_rows:
            lines.append(_line(self.largest_rows or 0, self.largest, self.micro_batches) + "; the largest that does")
        elif self.largest:
            lines.append(f"{self.asked_rows} rows is also the largest micro-batch that fits")
        shown = self.largest if self.largest and not asked.fits else asked
        if shown.collectives:
            listed = ", ".join(f"{count} {name}" for name, count in shown.collectives.items())
            lines.append(f"collectives in the program: {listed}")
        lines += self.phases
        return "\n".join([*lines, *self.advice])


def _line(rows: int, result: CompileResult, micro_batches: int = 1) -> str:
    several = f"{micro_batches} micro-batches" if micro_batches > 1 else "micro-batch"
    limit = f"of {result.limit_bytes / GIB:.2f} GiB a device"
    seconds = f"compiled in {result.compile_seconds:.0f} s"
    if not result.fits:
        return f"{several} of {rows} rows: does not fit: {result.needed_bytes / GIB:.2f} {limit} ({seconds})"
    return (
        f"{several} of {rows} rows: fits: {result.needed_bytes / GIB:.2f} {limit} (arguments "
        f"{result.arguments_bytes / GIB:.2f}, temporaries {(result.temporaries_bytes or 0) / GIB:.2f}; {seconds})"
    )


def plan(config: RunConfig, on: str, *, vocab_size: int | None = None, search: bool = True) -> SliceFit:
    """Compiles the configured step for the slice `on`, as `v6e:4x4`, then others until the largest is found.
    `devices.place` has judged `on`.

    Raises `ConfigError` for a configuration that the slice cannot compute, `MaskwrightError` where the compiler fails.
    """
    require("libtpu", "--on")
    model = model_of(config, vocab_size)
    of_shape: dict[tuple[int, int, int], RunConfig] = {}
    for stage in configs(config):
        # Of one shape, the stage that mixes causal rows with others stays: its attention needs the most memory.
        if (before := of_shape.get(_shape(stage))) is None or before.masking.causal is not None:
            of_shape[_shape(stage)] = stage
    kinds = list(of_shape.values())
    if len(kinds) == 1:
        return _plan(kinds[0], model, on, search=search)
    fits = [_plan(kind, model, on, search=False) for kind in kinds]
    most = max(range(len(kinds)), key=lambda number: fits[number].asked.needed_bytes)
    lines = [
        f"phase with rows of {kind.data.seq_len} tokens: {_line(fit.asked_rows, fit.asked, fit.micro_batches)}"
        for kind, fit in zip(kinds, fits, strict=True)
    ]
    heaviest = _plan(kinds[most], model, on, search=search)
    head = f"of the phase with rows of {kinds[most].data.seq_len} tokens, whose rows_per_step is their product:"
    advice = [head, *heaviest.advice] if heaviest.advice else []
    return replace(heaviest, phases=lines, advice=advice)


def _shape(config: RunConfig) -> tuple[int, int, int]:
    """The shape of a micro-batch: rows, tokens, predictions in a row."""
    tokens = config.data.seq_len
    slots = slots_per_row(config.masking.kind, config.masking.rate, tokens)
    return config.batch.micro_batch_rows, tokens, slots


def _plan(config: RunConfig, model: ModelConfig, on: str, *, search: bool) -> SliceFit:
    """The fit of a run without phases, or of one phase."""
    rows, tokens, slots = _shape(config)
    request = CompileRequest(
        slice=on,
        model=asdict(model),
        optimizer=config.optimizer.model_dump(),
        sharding=config.engine.sharding,
        dtype="fp32" if config.engine.dtype == "fp32" else "bf16",
        devices=config.engine.devices,
        rows=rows,
        tokens=tokens,
        slots=rows * slots,
        micro_batches=1,
        causal=config.masking.causal,
    )
    devices = _devices(request)
    request = replace(request, micro_batches=max(1, config.batch.virtual_workers // devices))

    def attempt(rows: int, micro_batches: int = request.micro_batches) -> CompileResult:
        return compiled(replace(request, rows=rows, slots=rows * slots, micro_batches=micro_batches))

    asked = attempt(rows)
    largest_rows = largest_that_fits(rows, asked, attempt) if search else None
    return SliceFit(
        slice=on,
        rows_per_step=config.rows_per_step,
        micro_batches=request.micro_batches,
        model_flops_per_step=step_flops(config, model),
        asked_rows=rows,
        asked=asked,
        largest_rows=largest_rows,
        largest=attempt(largest_rows) if largest_rows else None,
        advice=advice(config, asked, largest_rows, attempt if search else None),
    )


def advice(
    config: RunConfig,
    asked: CompileResult,
    largest_rows: int | None,
    attempt: Callable[[int, int], CompileResult] | None,
) -> list[str]:
    """The changes with which the run fits, proven by compiling them. The global batch size stays if it can.
    `attempt(rows, micro_batches)` compiles; None: nothing more may be compiled."""
    V, N, total = config.batch.virtual_workers, asked.devices, config.rows_per_step
    if asked.fits and V % N == 0:
        return []
    why = [] if asked.fits else ["as configured it does not fit"]
    try:
        shared_out(V, N, "devices")
    except ConfigError as error:
        why.append(error.what)
    head = " and ".join(why)
    if attempt is None:
        return [f"{head}. Leave --no-search out to search for what fits"]
    if largest_rows is None:
        if config.engine.sharding == "data":
            return [f"{head}. Not one row fits: try engine.sharding: fsdp, or a larger slice"]
        return [f"{head}. Not one row fits: take a larger slice, a smaller model or a shorter data.seq_len"]
    same = [rows for rows in range(largest_rows, 0, -1) if total % (rows * N) == 0]
    near = min(largest_rows, max(1, round(total / N)))
    for rows in same[:MOST_ADVISED] or sorted({near, near * 3 // 4, near // 2} - {0}, reverse=True):
        virtual_workers = max(N, round(total / (rows * N)) * N)
        result = attempt(rows, virtual_workers // N)
        if result.fits:
            kept = "the same" if same else f"{rows * virtual_workers:,} instead of {total:,}"
            return [
                f"{head}. Set batch.micro_batch_rows: {rows} and batch.virtual_workers: {virtual_workers} "
                f"({kept} rows a step)",
                _line(rows, result, virtual_workers // N),
            ]
    return [f"{head}. With several micro-batches in an update less fits than with one: lower batch.micro_batch_rows"]


def largest_that_fits(rows: int, first: CompileResult, attempt: Callable[[int], CompileResult]) -> int | None:
    """The most rows that fit. A straight line through the memory of two compilations gives the next size to compile."""
    results = {rows: first}

    def fits(candidate: int) -> bool:
        if candidate not in results:
            results[candidate] = attempt(candidate)
        return results[candidate].fits

    low = high = None
    candidate = rows * 2 if first.fits else _next(results, None, rows)
    for _ in range(MOST_TRIES):
        fits(candidate)
        low = max((r for r, result in results.items() if result.fits), default=None)
        high = min((r for r, result in results.items() if not result.fits), default=None)
        if (low is None and high == 1) or (low is not None and high is not None and high - low <= _closely(low)):
            break
        candidate = _next(results, low, high)
    return low


def _closely(rows: int) -> int:
    """The step of the search: from 16 rows on, multiples of 8 are exact enough."""
    return 8 if rows >= 16 else 1


def _next(results: dict[int, CompileResult], low: int | None, high: int | None) -> int:
    """The next size between `low`, which fits, and `high`, which does not: where the line through the two largest known
    sizes meets the limit."""
    if low is None:  # as if all of its memory grew with the rows, though a part does not
        least = results[high or 1]
        return max(1, min((high or 2) // 2, int((high or 2) * least.limit_bytes / least.needed_bytes)))
    known = sorted(results.items())[-2:]
    (r1, f1), (r2, f2) = known if len(known) == 2 else (known[0], known[0])
    slope = (f2.needed_bytes - f1.needed_bytes) / max(r2 - r1, 1)
    guess = int(r1 + (f1.limit_bytes - f1.needed_bytes) / slope) if slope > 0 else low * 2
    guess = guess // _closely(guess) * _closely(guess)
    top = high - 1 if high is not None else guess
    return max(low + 1, min(guess, top)) if low < guess else (low + (high or 4 * low)) // 2


# ---- the compiler, in a process of its own -----------------------------------------------------------------------


def model_of(config: RunConfig, vocab_size: int | None) -> ModelConfig:
    if config.model.init_from is not None:
        return Base(config.model.init_from).model(config)
    ids = dict[str, int]()
    if vocab_size is None:
        stores = [config.data.store or "", *(source.store for source in (config.data.mixture or {}).values())]
        if not any(map(os.path.isdir, stores)):
            fix = "give --vocab-size"
            raise InputError("is not here, so the vocabulary is not known", where=max(stores), fix=fix)
        vocabulary = open_store(config.data).vocabulary
        vocab_size, ids = vocabulary.size, special_ids(vocabulary)
    return model_config(config.model, vocab_size, config.data.seq_len, **ids)


def _devices(request: CompileRequest) -> int:
    """Devices of the slice that the run uses. Raises `ConfigError` if the slice has fewer."""
    kind, _, topology = request.slice.partition(":")
    available = math.prod(map(int, topology.split("x"))) * DEVICES[kind].parts
    if request.devices is not None and request.devices > available:
        what = f"{request.devices} devices were asked for, {request.slice} has {available}"
        raise ConfigError(what, where="engine.devices", fix="leave it out for all")
    return request.devices or available


def compiled(request: CompileRequest) -> CompileResult:
    """The compiler's result, from the cache if it has this very request from the same code."""
    key = storage.sha256_of([asdict(request), _code(), *(os.environ.get(name, "") for name in OPTIONS)])
    file = storage.cache_folder("plan", f"{key}.json")
    if os.path.exists(file):
        with suppress(MaskwrightError, TypeError):  # damaged, or not a result: it is compiled again
            return CompileResult(**storage.read_json(file))
    say(f"compiling for {request.slice}: {request.rows} rows of {request.tokens} tokens …")
    result = _compile(request)
    storage.make_folder(storage.cache_folder("plan"))
    storage.write_json(file, asdict(result))
    return result


@functools.cache
def _code() -> str:
    """Digest of everything that the program depends on: our own code, and the compilers."""
    package = Path(maskwright.__file__).parent
    files = sorted([*package.glob("model/**/*.py"), *package.glob("engines/**/*.py")])
    versions = [importlib.metadata.version(name) for name in ("jax", "jaxlib", "libtpu")]
    return storage.sha256_of([*versions, *(file.read_text(encoding="utf-8") for file in files)])


def _compile(request: CompileRequest) -> CompileResult:
    with tempfile.TemporaryDirectory() as folder:
        request_file, result_file = (os.path.join(folder, name) for name in ("request.json", "result.json"))
        storage.write_json(request_file, asdict(request))
        ended = subprocess.run(
            python_module("maskwright.engines.jax.aot", request_file, result_file),
            env={**os.environ, **SETTINGS},
            capture_output=True,
            text=True,
            check=False,
        )
        if not os.path.exists(result_file):
            last = ended.stderr.strip().splitlines()[-1:] or ["no message"]
            what = f"the TPU compiler ended with {ended.returncode}: {last[0][:300]}"
            fix = "part of a slice is not always one that it compiles for: leave out engine.devices"
            raise MaskwrightError(what, where=request.slice, fix=fix)
        answer = storage.read_json(result_file)
    if "refused" in answer:
        refused = answer["refused"]
        raise ConfigError(refused["what"], where=refused["where"], fix=refused["fix"])
    if "error" in answer:
        fix = "see the message; --set tries another configuration"
        raise MaskwrightError(f"the TPU compiler refuses it: {answer['error']}", where=request.slice, fix=fix)
    return CompileResult(**answer)
