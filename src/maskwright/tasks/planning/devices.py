"""Other devices' speed, memory and power from their makers' tables, and the CPU cores that we measured.

Figures are dense products in the precision that `engine.dtype: auto` chooses, memory, its bandwidth, and the power that
the device may draw. NVIDIA's are those of its data sheets (nvidia.com/en-us/data-center: t4, v100, l4, a100, h100,
h200, and B200 in the DGX B200's). TPUs' are of a chip, from docs.cloud.google.com/tpu/docs/v2 and its neighbours.
Google publishes no power, but a paper does for v4 (Jouppi et al. 2023, arXiv:2304.01433: 170 W on average).
"""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass
from typing import Literal

from maskwright.core.errors import ConfigError

MOST_GPUS = 8
"""GPUs of one machine. docs/scaling.md has a model of several machines."""


@dataclass(frozen=True)
class Device:
    name: str
    family: Literal["cpu", "gpu", "tpu"]
    flops_per_second: float
    """Peak of one device; of a CPU, the speed of a core as measured in plain products."""
    bytes_per_second: float = 0.0
    memory_bytes: float | None = None
    """Memory of one device; None for a CPU, whose memory may be any."""
    watts: float | None = None
    low_precision: bool = True
    parts: int = 1
    """Devices of JAX in one chip, which share its memory."""


# Two Zen 5 cores multiplied bf16 at 933 to 950 GFLOP/s (benchmarks/results/cpu-mini.json, cpu-small.json), 4.2 times as
# fast as fp32 (machine/hardware.py).
CORE_BF16_FLOPS, CORE_FP32_FLOPS = 470e9, 470e9 / 4.2
LAPTOP_CORES = 8
DEVICES = {
    device.name: device
    for device in (
        Device("cpu", "cpu", CORE_BF16_FLOPS),
        Device("laptop", "cpu", CORE_FP32_FLOPS, low_precision=False),
        Device("t4", "gpu", 65e12, 320e9, 16e9, 70),
        Device("v100", "gpu", 125e12, 900e9, 16e9, 300),
        Device("l4", "gpu", 121e12, 300e9, 24e9, 72),
        Device("a100", "gpu", 312e12, 1555e9, 40e9, 400),
        Device("a100-80gb", "gpu", 312e12, 2039e9, 80e9, 400),
        Device("h100", "gpu", 989e12, 3350e9, 80e9, 700),
        Device("h200", "gpu", 989e12, 4800e9, 141e9, 700),
        Device("b200", "gpu", 2250e12, 8000e9, 180e9, 1000),
        Device("v2", "tpu", 45e12, 700e9, 16e9, parts=2),
        Device("v3", "tpu", 123e12, 900e9, 32e9, parts=2),
        Device("v4", "tpu", 275e12, 1228e9, 32e9, 170),
        Device("v5e", "tpu", 197e12, 819e9, 16e9),
        Device("v5p", "tpu", 459e12, 2765e9, 95e9),
        Device("v6e", "tpu", 918e12, 1640e9, 32e9),
        Device("tpu7x", "tpu", 2307e12, 7380e9, 192e9, parts=2),
    )
}
_OLD = ("2x2", "4x4", "4x8", "8x8", "8x16", "16x16")
_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_SMALL = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")
TOPOLOGIES = {
    "v2": _OLD,
    "v3": (*_OLD, "16x32", "32x32"),
    "v4": _SMALL,
    "v5e": _FLAT,
    "v5p": ("1x1x1", "2x1x1", *_SMALL),
    "v6e": _FLAT,
    "tpu7x": ("1x1x1", *_SMALL),
}
"""Topologies that Google rents: docs.cloud.google.com/tpu/docs/v5e and its neighbours. One or two chips of v5p and one
of TPU7x are machine types of their own (docs.cloud.google.com/compute/docs/tpus/tpu-machines)."""
MOST_CUBED = {"v4": 4096, "v5p": 6144, "tpu7x": 9216}
"""Chips of the largest slice. From 4x4x4 on, sides are multiples of 4, in ascending order:
docs.cloud.google.com/tpu/docs/types-topologies"""
ACCELERATORS = {
    "nvidia-tesla-t4": "t4",
    "nvidia-tesla-v100": "v100",
    "nvidia-l4": "l4",
    "nvidia-tesla-a100": "a100",
    "nvidia-a100-80gb": "a100-80gb",
    "nvidia-h100-80gb": "h100",
    "nvidia-h100-mega-80gb": "h100",
    "nvidia-h200-141gb": "h200",
    "nvidia-b200": "b200",
}
"""The devices' names here, by Google's names of them."""


@dataclass(frozen=True)
class DeviceCount:
    """A place for a run: one or more of a device."""

    on: str
    """The place as the user wrote it, such as `h100:8`."""
    device: Device
    count: int
    topology: str | None = None
    """The topology of a slice."""

    @property
    def devices(self) -> int:
        """Devices that compute a micro-batch each."""
        return self.count * self.device.parts

    @property
    def memory_bytes(self) -> float | None:
        """Memory of each of `devices`."""
        return self.device.memory_bytes / self.device.parts if self.device.memory_bytes else None

    @property
    def is_slice(self) -> bool:
        return self.topology is not None


def place(on: str) -> DeviceCount:
    """`t4`, `h100:8`, `cpu:16` (cores) or `v6e:4x4`. Raises `ConfigError` for anything else."""
    name, _, number = on.lower().partition(":")
    device = DEVICES.get(name)
    if device is None:
        near = difflib.get_close_matches(name, DEVICES, n=1)
        fix = "name a device, as h100:8 or v6e:4x4."
        if near:
            fix = f"did you mean {near[0]}:{number}?" if number else f"did you mean {near[0]}?"
        names = ", ".join(DEVICES)
        what = f"'{on}' is not a device that `plan` knows"
        raise ConfigError(what, where="--on", fix=f"{fix} Or here, or an environment's YAML. Devices: {names}")
    if device.family == "tpu":
        return DeviceCount(on, device, _chips_of(on, name, number), number)
    if number and not re.fullmatch(r"[1-9]\d{0,2}", number):
        raise ConfigError(f"'{on}' is not a device count", where="--on", fix=f"write a number, as {name}:8")
    usual = {"laptop": LAPTOP_CORES, "cpu": 2}.get(name, 1)
    count = int(number) if number else usual
    if device.family == "gpu" and count > MOST_GPUS:
        fix = f"{name}:{MOST_GPUS}; benchmarks/scaling_model.py has a model of several machines"
        raise ConfigError(f"'{on}' is more than one machine", where="--on", fix=fix)
    return DeviceCount(on, device, count)


def _chips_of(on: str, kind: str, topology: str) -> int:
    """Chips of a slice. Raises `ConfigError` for one that Google does not rent, and names the nearest."""
    if re.fullmatch(r"[1-9]\d{0,4}(x[1-9]\d{0,4}){1,2}", topology) is None:
        fix = f"write KIND:TOPOLOGY, as {kind}:{'4x4x4' if kind in MOST_CUBED else '4x4'}"
        raise ConfigError(f"'{on}' is not a slice of a TPU", where="--on", fix=fix)
    chips = _product(topology)
    if topology in (rented := _topologies(kind)):
        return chips
    near = min(rented, key=lambda other: (abs(math.log(_product(other) / chips)), max(map(int, other.split("x")))))
    most = MOST_CUBED.get(kind)
    cubes = f", and three multiples of 4 in ascending order, of up to {most:,} chips" if most else ""
    fix = f"{kind}:{near} is the nearest of {', '.join(TOPOLOGIES[kind])}{cubes}"
    raise ConfigError(f"'{on}' is not a slice that Google rents", where="--on", fix=fix)


def _product(topology: str) -> int:
    return math.prod(map(int, topology.split("x")))


def _topologies(kind: str) -> list[str]:
    """All topologies of a kind: in three dimensions also those of whole cubes."""
    most = MOST_CUBED.get(kind, 0)
    cubes = (
        f"{a}x{b}x{c}"
        for a in range(4, math.isqrt(most) + 1, 4)
        for b in range(a, math.isqrt(most // a) + 1, 4)
        for c in range(b, most // (a * b) + 1, 4)
    )
    return [*TOPOLOGIES[kind], *cubes]
