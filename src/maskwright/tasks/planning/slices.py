"""`maskwright plan`: whether a run fits a TPU slice, compiled for it ahead of time."""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import asdict, dataclass

from maskwright.config.pretraining import RunConfig, configs
from maskwright.core import storage
from maskwright.core.console import say, several
from maskwright.core.errors import ConfigError, MaskwrightError
from maskwright.core.extras import require
from maskwright.data.masking import slots_per_row
from maskwright.engines.jax.aot import SETTINGS, Collective, CompileRequest, CompileResult
from maskwright.model.config import ModelConfig
from maskwright.processes.child import python_module

GIB = 2**30


@dataclass(frozen=True)
class SliceFit:
    """Whether a run fits a slice. Numbers are for the update's program at the compiler's own limit. They leave out
    waiting batches, the program that evaluates, and the programs themselves."""

    slice: str
    programs: list[CompiledStage]
    """One for each shape of a micro-batch. A run with phases may have several."""

    @property
    def fits(self) -> bool:
        return all(program.result.fits for program in self.programs)

    def lines(self) -> list[str]:
        result = self.programs[0].result
        chips = f"{several(result.devices, 'device')} ({result.device_kind})"
        versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
        head = f"{self.slice}: {chips}; compiled by {versions}, nothing was run"
        return [head, *(line for program in self.programs for line in program.lines())]


@dataclass(frozen=True)
class CompiledStage:
    """An update for micro-batches of one shape."""

    rows: int
    """Rows of a micro-batch."""
    tokens: int
    """Tokens of a row."""
    result: CompileResult

    def lines(self) -> list[str]:
        result, needed, limit = self.result, self.result.needed_bytes / GIB, self.result.limit_bytes / GIB
        update = several(result.micro_batches, "micro-batch", "micro-batches")
        what = f"{update} a device of {several(self.rows, 'row')} of {self.tokens} tokens"
        seconds = f"compiled in {result.compile_seconds:.0f} s"
        if not result.fits:
            fix = "halve batch.micro_batch_rows, double batch.virtual_workers, and set engine.sharding: fsdp"
            over = f"{needed:.2f} of {limit:.2f} GiB a device, {needed / limit:.2f} times the limit"
            return [f"{what}: does not fit: {over} ({seconds}). Fix: {fix}"]
        arguments = result.arguments_bytes / GIB
        parts = f"arguments {arguments:.2f}, temporaries {needed - arguments:.2f}"
        lines = [f"{what}: fits: {needed:.2f} of {limit:.2f} GiB a device ({parts}; {seconds})"]
        if result.collectives:
            lines.append(f"collectives in the program: {', '.join(map(_collective, result.collectives))}")
        return lines


def _collective(one: Collective) -> str:
    return f"{one.count} {one.kind} of {one.bytes / 2**20:.1f} MiB{' during products' if one.beside else ''}"


def plan(config: RunConfig, model: ModelConfig, on: str) -> SliceFit:
    """Compiles the configured step for the slice `on`, as `v6e:4x4`, which `devices.place` has checked, once for each
    shape of a micro-batch.

    Raises `ConfigError` for a configuration that the slice cannot compute, `MaskwrightError` if the compiler fails."""
    require("libtpu", "--on")
    of_shape: dict[tuple[int, int, int], RunConfig] = {}
    for stage in configs(config):
        # Of stages of one shape, keep the one that mixes causal rows with others, whose attention needs the most
        # memory.
        if (before := of_shape.get(_shape(stage))) is None or before.masking.causal is not None:
            of_shape[_shape(stage)] = stage
    return SliceFit(on, [_program(stage, model, on) for stage in of_shape.values()])


def _shape(config: RunConfig) -> tuple[int, int, int]:
    """The shape of a micro-batch: rows, tokens, predictions in a row."""
    tokens = config.data.seq_len
    slots = slots_per_row(config.masking.kind, config.masking.rate, tokens)
    return config.batch.micro_batch_rows, tokens, slots


def _program(config: RunConfig, model: ModelConfig, on: str) -> CompiledStage:
    """The update of a run without phases, or of one phase. The estimate refuses virtual workers that the slice does not
    divide."""
    rows, tokens, slots = _shape(config)
    request = CompileRequest(
        slice=on,
        model=asdict(model),
        optimizer=config.optimizer.model_dump(),
        engine=config.engine.model_dump(),
        rows=rows,
        tokens=tokens,
        slots=rows * slots,
        virtual_workers=config.batch.virtual_workers,
        causal=config.masking.causal,
    )
    return CompiledStage(rows, tokens, compiled(request))


def compiled(request: CompileRequest) -> CompileResult:
    """The compiler's result, from a process of its own."""
    say(f"compiling for {request.slice}: {request.rows} rows of {request.tokens} tokens …")
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
            fix = "leave out engine.devices, since it does not compile for every part of a slice"
            raise MaskwrightError(what, where=request.slice, fix=fix)
        answer = storage.read_json(result_file)
    if "refused" in answer:
        refused = answer["refused"]
        raise ConfigError(refused["what"], where=refused["where"], fix=refused["fix"])
    if "error" in answer:
        fix = "read the compiler's message, and try another configuration with --set"
        raise MaskwrightError(f"the TPU compiler refuses it: {answer['error']}", where=request.slice, fix=fix)
    return CompileResult(**answer | {"collectives": [Collective(**one) for one in answer["collectives"]]})
