"""Ahead-of-time compilation of an update for a TPU slice that this machine does not have, by the compiler in libtpu.

Runs as a process of its own (`python -m maskwright.engines.jax.aot REQUEST RESULT`), because libtpu reads its
settings when it is loaded, writes to the terminal, and keeps its memory.

The compiler reports the memory that the slice would report. It does not estimate speed, and nothing is run.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import re
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from maskwright.config.pretraining import EngineSection, Optimizer
from maskwright.core import storage
from maskwright.core.errors import ConfigError
from maskwright.core.library_errors import is_out_of_memory
from maskwright.machine.tpus import host_sizes
from maskwright.model.config import ModelConfig

SETTINGS = {
    "TPU_SKIP_MDS_QUERY": "1",  # otherwise it looks for a metadata server for minutes
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # otherwise two compilations at once die on a lock file
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",  # not this machine either; keeps libtpu from asking for the type
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_LOG_DIR": "disabled",
    "TPU_MIN_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "JAX_PLATFORMS": "cpu",
}
GIB = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
KINDS = "all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all"
COLLECTIVE = re.compile(rf" (?P<kind>{KINDS})(?P<start>-start)?\(")
ARRAY = re.compile(r"\b(?:pred|[a-z]+?(\d+))\[([\d,]+)\]")
CHAIN = re.compile(r'chain_id="\d+"')
"""The compiler cuts a collective into parts that it fuses with products: one chain of them."""


@dataclass(frozen=True)
class CompileRequest:
    slice: str
    """Kind and topology, such as `v6e:4x4`."""
    model: dict[str, Any]
    optimizer: dict[str, Any]
    engine: dict[str, Any]
    rows: int
    """Rows of a micro-batch; `tokens` and `slots` are of a micro-batch too."""
    tokens: int
    slots: int
    virtual_workers: int
    """Those that the devices do not divide are rounded down."""
    causal: bool | None = False
    """`Batch.causal` of the micro-batches."""


@dataclass(frozen=True)
class Collective:
    """All collectives of one kind in a program that do, or do not, leave a device free to compute meanwhile."""

    kind: str
    beside: bool
    count: int
    bytes: int
    """Of their results on one device, each once."""


@dataclass(frozen=True)
class CompileResult:
    """Bytes are per device, at the moment when most are in use."""

    device_kind: str
    devices: int
    micro_batches: int
    """Micro-batches that a device computes in an update."""
    fits: bool
    limit_bytes: int
    needed_bytes: int
    """If the program does not fit, the bytes that the compiler needs."""
    arguments_bytes: int
    """Of the needed ones; 0 if the program does not fit."""
    collectives: list[Collective]
    """Collectives in the program's text. One in the loop over layers runs once a layer."""
    compile_seconds: float
    versions: dict[str, str]


def topology(name: str) -> Any:
    """The compiler's description of a slice. Raises `ConfigError` with the compiler's own words."""
    from jax.experimental import topologies

    kind, _, shape = name.partition(":")
    sides = tuple(map(int, shape.split("x")))
    # Both cores of a v4 chip are one device, as in its runtime.
    options: dict[str, Any] = {"chip_config_name": "megacore"} if kind == "v4" else {}
    if host_sizes(kind, shape)[0] == math.prod(sides):  # the compiler would put any four chips on a host
        options["chips_per_host_bounds"] = (*sides, 1, 1)[:3]
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
    except Exception as error:
        what = f"the TPU compiler refuses it: {' '.join(str(error).split())[:300]}"
        fix = "choose a topology that Google rents, such as v5e:2x4 or v5p:2x2x4"
        raise ConfigError(what, where=name, fix=fix) from None


def program_for(request: CompileRequest) -> tuple[Any, list[Any]]:
    """(`step.Program`, the devices of the slice). Raises `ConfigError` if the hosts do not divide `devices`, as the run
    would."""
    from maskwright.engines.jax.processes import first_devices
    from maskwright.engines.jax.step import Program

    engine = EngineSection(**request.engine)
    devices = first_devices(topology(request.slice).devices, engine.devices)
    model, optimizer = ModelConfig(**request.model), Optimizer(**request.optimizer)
    return Program.of(model, optimizer, engine, devices, causal=request.causal), devices


def compile_ahead(request: CompileRequest) -> CompileResult:
    import jax

    program, devices = program_for(request)
    sizes = {"rows": request.rows, "tokens": request.tokens, "slots": request.slots}
    micro_batches = max(1, request.virtual_workers // len(devices))
    began, refusal = time.perf_counter(), ""
    lowered = program.jitted("update").lower(*program.update_shapes(micro_batches=micro_batches, **sizes))
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        refusal = str(error)
    seconds = round(time.perf_counter() - began, 1)
    memory = None if refusal else compiled.memory_analysis()
    return CompileResult(
        device_kind=program.layout.chip,
        devices=len(devices),
        micro_batches=micro_batches,
        fits=memory is not None,
        limit_bytes=memory_limit(devices[0]),
        # Not the sum of all temporaries, which also counts those that never live at the same time. The first line of a
        # refusal has the needed memory and the limit.
        needed_bytes=memory.peak_memory_in_bytes if memory else max(_sizes(refusal.splitlines()[0]) or _sizes(refusal)),
        arguments_bytes=memory.argument_size_in_bytes if memory else 0,
        collectives=collectives(compiled.as_text()) if memory else [],
        compile_seconds=seconds,
        versions={"jax": jax.__version__, "libtpu": importlib.metadata.version("libtpu")},
    )


def collectives(text: str) -> list[Collective]:
    """The collectives in the text of a compiled program."""
    found: dict[str, tuple[str, bool, int]] = {}
    for line in text.splitlines():
        _, _, value = line.partition("= ")
        if one := COLLECTIVE.search(value):
            chain, arrays = CHAIN.search(line), ARRAY.findall(value[: one.start()])
            if one["start"]:  # the operands come first
                arrays = arrays[len(arrays) // 2 :]
            size = sum(math.prod(map(int, shape.split(","))) * int(bits or 8) // 8 for bits, shape in arrays)
            found[chain[0] if chain else line] = (one["kind"], bool(chain or one["start"]), size)
    sizes: dict[tuple[str, bool], list[int]] = {}
    for kind, beside, size in found.values():
        sizes.setdefault((kind, beside), []).append(size)
    return [Collective(*kind, len(of), sum(of)) for kind, of in sorted(sizes.items())]


def memory_limit(device: Any) -> int:
    """Bytes that a program may use on a device, from the compiler's refusal of one that needs half a terabyte."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding

    huge = jax.ShapeDtypeStruct((2**18, 2**18), jnp.float32, sharding=SingleDeviceSharding(device))
    try:
        jax.jit(lambda x: x + 1).lower(huge).compile()
    except jax.errors.JaxRuntimeError as error:
        return min(_sizes(str(error)))
    raise ValueError("this compiler reports no limit of memory")


def _sizes(message: str) -> list[int]:
    return [round(float(number) * GIB[unit]) for number, unit in re.findall(r"\b(\d+(?:\.\d+)?)([KMGT])\b", message)]


def main() -> None:
    """Reads a request; writes a result, or `{"error": …}`, or `{"refused": …}` with the parts of a `ConfigError`."""
    os.environ.update(SETTINGS)
    request, result = sys.argv[1:]
    try:
        answer = asdict(compile_ahead(CompileRequest(**storage.read_json(request))))
    except ConfigError as error:
        answer = {"refused": {"what": error.what, "where": error.where, "fix": error.fix}}
    except (ValueError, RuntimeError) as error:
        answer = {"error": " ".join(str(error).split())[:500]}
    with open(result, "w", encoding="utf-8") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    main()
