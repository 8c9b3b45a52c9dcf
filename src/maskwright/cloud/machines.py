"""Google's machine types: the hosts of TPU slices (`machine/tpus.py`), GPUs, and the disks that each can attach.

Sources, read in 2026: docs.cloud.google.com/compute/docs/tpus/tpu-machines, …/compute/docs/gpus. None of it was tried
on Google Cloud by us.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from maskwright.config.settings import Refused
from maskwright.machine import tpus
from maskwright.machine.tpus import TPUS

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

SHARED_DISKS = ("hyperdisk-ml", "pd-balanced", "pd-ssd", "pd-standard")
"""Types of disk that many hosts can read at once."""


@dataclass(frozen=True)
class MachineFamily:
    """Common facts of the machine types of a family."""

    data_disks: tuple[str, ...] = SHARED_DISKS
    """Types of disk that its machines can attach read-only."""
    boot_disk: str = "pd-balanced"
    accelerator: Literal["tpu", "gpu"] | None = None
    """Device of its machines, apart from their CPUs."""


ONLY_ML, ML_OR_BALANCED = ("hyperdisk-ml",), ("pd-balanced", "hyperdisk-ml")
ML_OR_SSD, NO_HYPERDISK = ("hyperdisk-ml", "pd-balanced", "pd-ssd"), ("pd-balanced", "pd-ssd", "pd-standard")
HYPERDISK_ONLY = MachineFamily(ONLY_ML, "hyperdisk-balanced")
FAMILIES = {
    "ct4p": MachineFamily(("pd-balanced",), accelerator="tpu"),
    "ct5lp": MachineFamily(ML_OR_BALANCED, accelerator="tpu"),
    "ct5p": MachineFamily(ML_OR_BALANCED, accelerator="tpu"),
    "ct6e": MachineFamily(ONLY_ML, "hyperdisk-balanced", "tpu"),
    "tpu7x": MachineFamily(ONLY_ML, "hyperdisk-balanced", "tpu"),
    "g2": MachineFamily(ML_OR_SSD, accelerator="gpu"),
    "g4": MachineFamily(accelerator="gpu"),
    "a2": MachineFamily(accelerator="gpu"),
    "a3": MachineFamily(ML_OR_SSD, accelerator="gpu"),
    "a3-ultragpu": MachineFamily(ONLY_ML, "hyperdisk-balanced", "gpu"),
    "a4": MachineFamily(ONLY_ML, "hyperdisk-balanced", "gpu"),
    **dict.fromkeys(("n1", "n2", "n2d", "e2"), MachineFamily(NO_HYPERDISK)),
    **dict.fromkeys(("c4", "c4a", "c4d", "n4", "n4a", "n4d", "h4d", "x4"), HYPERDISK_ONLY),
}
"""Families by the prefix of a machine type. Others can attach any of `SHARED_DISKS`:
 docs.cloud.google.com/tpu/docs/attach-durable-block-storage, …/compute/docs/disks/hyperdisks and
…/compute/docs/accelerator-optimized-machines. Unverified: Hyperdisk ML on a3-ultragpu and a4, which the documentation
of 2025 does not mention."""


def family_of(machine_type: str) -> MachineFamily:
    first, *rest = machine_type.split("-")
    return FAMILIES.get(f"{first}-{rest[0]}" if rest else first) or FAMILIES.get(first) or MachineFamily()


def chips_per_host(kind: str, topology: str, machine_type: str | None = None) -> int:
    """Raises `Refused` for a machine type that cannot form the topology."""
    sizes = tpus.host_sizes(kind, topology)
    if machine_type is None:
        return sizes[0]
    names = {TPUS[kind].machines[size]: size for size in sizes}
    if machine_type not in names:
        raise Refused(f"{machine_type} cannot form {kind} {topology}", fix=f"set {' or '.join(names)}, or leave it out")
    return names[machine_type]
