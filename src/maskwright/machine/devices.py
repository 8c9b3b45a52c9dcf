"""Other devices' speed, memory and power from their makers' tables, and the CPU cores that we measured.

Figures are dense products in 16 bits and in fp32 (without TF32), memory, its bandwidth, and the power that the device
may draw. NVIDIA's are from its data sheets (nvidia.com/en-us/data-center: t4, v100, l4, a100, h100, h200, and B200
in the DGX B200's). TPUs' are of a chip, from docs.cloud.google.com/tpu/docs/v2 and its neighbours; they have no units
for fp32, which takes six products in bf16 (jax.lax.Precision.HIGHEST). Google publishes no power, but a paper does for
v4 (Jouppi et al. 2023, arXiv:2304.01433: 170 W on average).
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal

from maskwright.core.errors import ConfigError
from maskwright.machine import tpus
from maskwright.machine.hardware import usable_memory_bytes
from maskwright.machine.tpus import TPUS

MOST_GPUS = 8
"""GPUs of one machine. docs/many-processes.md projects several machines."""


@dataclass(frozen=True)
class Device:
    name: str
    family: Literal["cpu", "gpu", "tpu"]
    flops_per_second: float
    """Peak of one device in 16 bits; of a CPU, the speed of a core as measured in plain products."""
    fp32_flops_per_second: float
    bytes_per_second: float = 0.0
    memory_bytes: float | None = None
    """Memory of one device; None for a CPU that is not here, whose memory may be any."""
    watts: float | None = None
    low_precision: bool = True
    """Whether products in 16 bits are faster."""

    @property
    def parts(self) -> int:
        """Devices of JAX in one chip, which share its memory."""
        return TPUS[self.name].devices_per_chip if self.family == "tpu" else 1


# Two Zen 5 cores multiplied bf16 at 933 to 950 GFLOP/s (benchmarks/results/cpu-mini.json, cpu-small.json), 4.2 times as
# fast as fp32 (machine/hardware.py).
CORE_BF16_FLOPS, CORE_FP32_FLOPS = 470e9, 470e9 / 4.2
LAPTOP_CORES = 8
DEVICES = {
    device.name: device
    for device in (
        Device("cpu", "cpu", CORE_BF16_FLOPS, CORE_FP32_FLOPS),
        Device("laptop", "cpu", CORE_FP32_FLOPS, CORE_FP32_FLOPS, low_precision=False),
        Device("t4", "gpu", 65e12, 8.1e12, 320e9, 16e9, 70),
        Device("v100", "gpu", 125e12, 15.7e12, 900e9, 16e9, 300),
        Device("l4", "gpu", 121e12, 30.3e12, 300e9, 24e9, 72),
        Device("a100", "gpu", 312e12, 19.5e12, 1555e9, 40e9, 400),
        Device("a100-80gb", "gpu", 312e12, 19.5e12, 2039e9, 80e9, 400),
        Device("h100", "gpu", 989e12, 67e12, 3350e9, 80e9, 700),
        Device("h200", "gpu", 989e12, 67e12, 4800e9, 141e9, 700),
        Device("b200", "gpu", 2250e12, 75e12, 8000e9, 180e9, 1000),
        Device("v2", "tpu", 45e12, 45e12 / 6, 700e9, 16e9),
        Device("v3", "tpu", 123e12, 123e12 / 6, 900e9, 32e9),
        Device("v4", "tpu", 275e12, 275e12 / 6, 1228e9, 32e9, 170),
        Device("v5e", "tpu", 197e12, 197e12 / 6, 819e9, 16e9),
        Device("v5p", "tpu", 459e12, 459e12 / 6, 2765e9, 95e9),
        Device("v6e", "tpu", 918e12, 918e12 / 6, 1640e9, 32e9),
        Device("tpu7x", "tpu", 2307e12, 2307e12 / 6, 7380e9, 192e9),
    )
}
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
    processes: int = 1
    """Processes that share out the cores of CPUs."""

    @property
    def devices(self) -> int:
        """Devices that compute a micro-batch each: processes, on CPUs."""
        return self.processes if self.device.family == "cpu" else self.count * self.device.parts

    @property
    def memory_bytes(self) -> float | None:
        """Memory of each of `devices`."""
        return self.device.memory_bytes / self.device.parts if self.device.memory_bytes else None

    @property
    def is_slice(self) -> bool:
        return self.topology is not None


MEASURED_SHARE = 0.8
"""Share of the H200's peak that plain products reach, in bf16: 790 TFLOP/s of 989."""


def here(
    kind: str, flops_per_second: float, *, low_precision: bool, processes: int = 1, threads: int = 1
) -> DeviceCount | None:
    """This machine as a place, from the measured products of all its devices: the cores of a CPU, or GPUs, which are
    treated as H200s of another size. None for a `kind` of device that no run was measured on. `threads`: of each
    process."""
    if kind == "cpu":
        cores = processes * threads
        # With AMX products are twice as fast, but a step takes as long (records/experiments.md, 2026-11-27).
        rate = min(flops_per_second / cores, CORE_BF16_FLOPS)
        memory = float(usable_memory_bytes())
        device = Device("here", "cpu", rate, rate, memory_bytes=memory, low_precision=low_precision)
        return DeviceCount("here", device, cores, processes=processes)
    if kind == "cuda":
        peak, like = flops_per_second / MEASURED_SHARE / processes, DEVICES["h200"]
        size = peak / (like.flops_per_second if low_precision else like.fp32_flops_per_second)
        bandwidth = like.bytes_per_second * size
        return DeviceCount("here", Device("here", "gpu", peak, peak, bandwidth, low_precision=low_precision), processes)
    return None


def place(on: str) -> DeviceCount:
    """`t4`, `h100:8`, `cpu:16` (cores), `v6e:4x4` or, as the TPU API names it, `v6e-16`. Raises `ConfigError` for
    anything else."""
    kind, chips = tpus.kind_and_chips(on.lower()) or ("", 0)
    if kind and (topology := tpus.topologies_by_chips(kind).get(chips)):
        on = f"{kind}:{topology}"
    name, _, number = on.lower().partition(":")
    device = DEVICES.get(name)
    if device is None:
        near = difflib.get_close_matches(name, DEVICES, n=1)
        fix = "name a device, such as h100:8 or v6e:4x4."
        if near:
            fix = f"did you mean {near[0]}:{number}?" if number else f"did you mean {near[0]}?"
        names = ", ".join(DEVICES)
        what = f"'{on}' is not a device that `plan` supports"
        raise ConfigError(what, where="--on", fix=f"{fix} Or here, or an environment's YAML. Devices: {names}")
    if device.family == "tpu":
        if wrong := tpus.refusal(f"{name}:{number}" if number else name):
            raise ConfigError(wrong[0], where="--on", fix=wrong[1])
        return DeviceCount(on, device, tpus.chips(number), number)
    if number and not re.fullmatch(r"[1-9]\d{0,2}", number):
        raise ConfigError(f"'{on}' is not a device count", where="--on", fix=f"write a number, as {name}:8")
    usual = {"laptop": LAPTOP_CORES, "cpu": 2}.get(name, 1)
    count = int(number) if number else usual
    if device.family == "gpu" and count > MOST_GPUS:
        fix = f"give {name}:{MOST_GPUS}; benchmarks/scaling_model.py models several machines"
        raise ConfigError(f"'{on}' is more than one machine", where="--on", fix=fix)
    return DeviceCount(on, device, count)
