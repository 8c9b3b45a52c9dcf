"""Google's machine types: TPU kinds, topologies and hosts, GPUs, and the disks that each can attach.

Sources, read in 2026: docs.cloud.google.com/compute/docs/tpus/tpu-machines (TPU7x, v6e, v5p), …/tpu/docs/v5e,
…/tpu/docs/v4, …/v3 and …/runtimes (the TPU API), …/compute/docs/gpus. None of it was tried on Google Cloud by us.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from maskwright.config.settings import Refused


@dataclass(frozen=True)
class Tpu:
    """A kind of TPU and the hosts that it comes in."""

    machines: dict[int, str]
    """Machine type by the chips of a host. Empty if its slices are queued resources of the TPU API."""
    chips_per_host: int
    """Chips of each host in a slice of several hosts."""
    alone: int
    """The most chips of a single host."""
    dimensions: int
    """Number of sides of a topology."""
    type_prefix: str = ""
    """Prefix of the TPU API's accelerator type."""
    type_unit: int = 1
    """What one chip counts in the number of that accelerator type."""
    runtime_version: str = ""
    """The TPU API's software version."""
    devices_per_chip: int = 1
    """JAX devices of a chip: one for each core of v2 and v3 and each half of TPU7x, as libtpu counts them."""


TpuKind = Literal["v2", "v3", "v4", "v5e", "v5p", "v6e", "tpu7x"]
TPUS: dict[str, Tpu] = {
    "v2": Tpu({}, 4, 4, 2, "v2", 2, "tpu-ubuntu2204-base", 2),
    "v3": Tpu({}, 4, 4, 2, "v3", 2, "tpu-ubuntu2204-base", 2),
    "v4": Tpu({}, 4, 4, 3, "v4", 2, "tpu-ubuntu2204-base"),
    "v5e": Tpu({}, 4, 8, 2, "v5litepod", 1, "v2-alpha-tpuv5-lite"),
    "v5p": Tpu({1: "ct5p-hightpu-1t", 2: "ct5p-hightpu-2t", 4: "ct5p-hightpu-4t"}, 4, 4, 3),
    "v6e": Tpu({1: "ct6e-standard-1t", 4: "ct6e-standard-4t", 8: "ct6e-standard-8t"}, 4, 8, 2),
    "tpu7x": Tpu({1: "tpu7x-standard-1t", 4: "tpu7x-standard-4t"}, 4, 4, 3, devices_per_chip=2),
}
GPUS = {
    **{f"g2-standard-{cpus}": ("nvidia-l4", 1) for cpus in (4, 8, 12, 16, 32)},
    "g2-standard-24": ("nvidia-l4", 2),
    "g2-standard-48": ("nvidia-l4", 4),
    "g2-standard-96": ("nvidia-l4", 8),
    **{f"a2-highgpu-{n}g": ("nvidia-tesla-a100", n) for n in (1, 2, 4, 8)},
    "a2-megagpu-16g": ("nvidia-tesla-a100", 16),
    **{f"a2-ultragpu-{n}g": ("nvidia-a100-80gb", n) for n in (1, 2, 4, 8)},
    **{f"a3-highgpu-{n}g": ("nvidia-h100-80gb", n) for n in (1, 2, 4, 8)},
    "a3-edgegpu-8g": ("nvidia-h100-80gb", 8),
    "a3-megagpu-8g": ("nvidia-h100-mega-80gb", 8),
    "a3-ultragpu-8g": ("nvidia-h200-141gb", 8),
    "a4-highgpu-8g": ("nvidia-b200", 8),
}
"""Accelerator type and number of GPUs in each machine type: docs.cloud.google.com/compute/docs/gpus"""
ATTACHED = {"nvidia-tesla-t4": (1, 2, 4), "nvidia-tesla-v100": (1, 2, 4, 8)}
"""GPUs that no machine type includes: these numbers can be attached to an N1 machine, and are billed separately.
cloud.google.com/compute/docs/gpus"""
TPU_MACHINES = {machine: (kind, size) for kind, tpu in TPUS.items() for size, machine in tpu.machines.items()}
"""Kind and number of the chips in each TPU machine type."""

SHARED_DISKS = ("hyperdisk-ml", "pd-balanced", "pd-ssd", "pd-standard")
"""Types of disk that many hosts can read at once."""
CONTAINER_IMAGE = "projects/cos-cloud/global/images/family/cos-stable"
TPU_IMAGE = "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
TPU7X_IMAGE = "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accel-2404-amd64-tpu-tpu7x"


@dataclass(frozen=True)
class MachineFamily:
    """What the machine types of a family have in common."""

    data_disks: tuple[str, ...] = SHARED_DISKS
    """Types of disk that its machines can attach read-only."""
    boot_disk: str = "pd-balanced"
    """Type of the disk that its machines boot from."""
    accelerator: Literal["tpu", "gpu"] | None = None
    """Device of its machines besides their CPUs."""
    image: str = CONTAINER_IMAGE
    """Boot image of its hosts, unless the YAML names another."""


ONLY_ML, ML_OR_BALANCED = ("hyperdisk-ml",), ("pd-balanced", "hyperdisk-ml")
ML_OR_SSD, NO_HYPERDISK = ("hyperdisk-ml", "pd-balanced", "pd-ssd"), ("pd-balanced", "pd-ssd", "pd-standard")
HYPERDISK_ONLY = MachineFamily(ONLY_ML, "hyperdisk-balanced")
FAMILIES = {
    **dict.fromkeys(("v2", "v3", "v4"), MachineFamily(("pd-balanced",), accelerator="tpu")),
    "v5litepod": MachineFamily(ML_OR_BALANCED, accelerator="tpu"),
    "ct5p": MachineFamily(ML_OR_BALANCED, accelerator="tpu", image=TPU_IMAGE),
    "ct6e": MachineFamily(ONLY_ML, "hyperdisk-balanced", "tpu", TPU_IMAGE),
    "tpu7x": MachineFamily(ONLY_ML, "hyperdisk-balanced", "tpu", TPU7X_IMAGE),
    "g2": MachineFamily(ML_OR_SSD, accelerator="gpu"),
    "g4": MachineFamily(accelerator="gpu"),
    "a2": MachineFamily(accelerator="gpu"),
    "a3": MachineFamily(ML_OR_SSD, accelerator="gpu"),
    "a3-ultragpu": MachineFamily(ONLY_ML, "hyperdisk-balanced", "gpu"),
    "a4": MachineFamily(ONLY_ML, "hyperdisk-balanced", "gpu"),
    **dict.fromkeys(("n1", "n2", "n2d", "e2"), MachineFamily(NO_HYPERDISK)),
    **dict.fromkeys(("c4", "c4a", "c4d", "n4", "n4a", "n4d", "h4d", "x4"), HYPERDISK_ONLY),
}
"""Families by the prefix of a machine type or accelerator type. Others can attach any of `SHARED_DISKS`:
 docs.cloud.google.com/tpu/docs/attach-durable-block-storage, …/compute/docs/disks/hyperdisks and
…/compute/docs/accelerator-optimized-machines. Unverified: Hyperdisk ML on a3-ultragpu and a4, which the documentation
of 2025 does not mention."""


def family_of(machine_type: str) -> MachineFamily:
    first, *rest = machine_type.split("-")
    return FAMILIES.get(f"{first}-{rest[0]}" if rest else first) or FAMILIES.get(first) or MachineFamily()


def machine_of(kind: str) -> str:
    """A name with which `family_of` finds the family of a TPU kind."""
    tpu = TPUS[kind]
    return next(iter(tpu.machines.values()), tpu.type_prefix)


def chips(topology: str) -> int:
    return math.prod(int(side) for side in topology.split("x"))


def check_topology(kind: str, topology: str) -> None:
    """Raises `Refused`. Not every accepted topology exists: Google refuses the others."""
    tpu = TPUS[kind]
    if not re.fullmatch("x".join([r"[1-9]\d{0,2}"] * tpu.dimensions), topology):
        fix = f"{tpu.dimensions} numbers, as {'x'.join(['4'] * tpu.dimensions)}"
        raise Refused(f"{topology[:20]!r} is not a topology of {kind}", fix=fix)
    count = chips(topology)
    if count > tpu.alone and count % tpu.chips_per_host:
        fix = f"use a multiple of {tpu.chips_per_host} chips, as each host has"
        raise Refused(f"{topology} has {count} chips, not a whole number of hosts", fix=fix)
    if tpu.machines and count <= tpu.alone and count not in tpu.machines:
        fix = f"machines of {kind} have {', '.join(str(size) for size in tpu.machines)} chips"
        raise Refused(f"{topology} has {count} chips, for which there is no machine type", fix=fix)


def chips_per_host(kind: str, topology: str, machine_type: str | None = None) -> int:
    """Raises `Refused` for a machine type that cannot form the topology."""
    tpu, count = TPUS[kind], chips(topology)
    if machine_type is None:
        return count if count <= tpu.alone else tpu.chips_per_host
    sizes = {name: size for size, name in tpu.machines.items()}
    if machine_type not in sizes or count % sizes[machine_type]:
        fix = f"one of {', '.join(sizes)} that divides {count} chips, or leave it out"
        raise Refused(f"{machine_type} cannot form {kind} {topology}", fix=fix)
    return sizes[machine_type]


def accelerator_type(kind: str, topology: str) -> str:
    """The TPU API's name, as v5litepod-16 (chips) or v4-32 (cores, two for each chip)."""
    tpu = TPUS[kind]
    return f"{tpu.type_prefix}-{chips(topology) * tpu.type_unit}"
