"""Google's kinds of TPU: the topologies of their slices, and the hosts that a slice has.

Sources, read in 2026: docs.cloud.google.com/tpu/docs/v5e and its neighbours, …/types-topologies (the TPU API),
…/compute/docs/tpus/tpu-machines (v5p, v6e, TPU7x), …/kubernetes-engine/docs/concepts/plan-tpus (labels, and the machine
types of v4 and v5e). None of it was tried on Google Cloud by us.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Tpu:
    """A kind of TPU, its slices, and the hosts that it comes in."""

    topologies: tuple[str, ...]
    """Topologies that Google rents, without whole cubes."""
    machines: dict[int, str]
    """Machine type by the chips of a host, for Compute Engine and GKE."""
    chips_per_host: int
    """Chips of each host in a slice of several hosts."""
    alone: int
    """The most chips of a single host."""
    most_cubed: int = 0
    """Chips of the largest slice of whole cubes: from 4x4x4 on, sides are multiples of 4, in ascending order."""
    gke_label: str = ""
    """Value of `cloud.google.com/gke-tpu-accelerator` of its nodes. Empty if no slice of it is offered here on GKE."""
    type_prefix: str = ""
    """Prefix of the TPU API's accelerator type. Empty if that API lacks it."""
    type_unit: int = 1
    """Units of one chip in the number of that accelerator type."""
    devices_per_chip: int = 1
    """JAX devices of a chip: one for each core of v2 and v3 and each half of TPU7x, as libtpu counts them."""


_OLD = ("2x2", "4x4", "4x8", "8x8", "8x16", "16x16")
_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_SMALL = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")
V5E = {1: "ct5lp-hightpu-1t", 4: "ct5lp-hightpu-4t", 8: "ct5lp-hightpu-8t"}
V5P = {1: "ct5p-hightpu-1t", 2: "ct5p-hightpu-2t", 4: "ct5p-hightpu-4t"}
V6E = {1: "ct6e-standard-1t", 4: "ct6e-standard-4t", 8: "ct6e-standard-8t"}
TPU7X = {1: "tpu7x-standard-1t", 4: "tpu7x-standard-4t"}

TpuKind = Literal["v2", "v3", "v4", "v5e", "v5p", "v6e", "tpu7x"]
TPUS: dict[str, Tpu] = {
    "v2": Tpu(_OLD, {}, 4, 4, 0, "", "v2", 2, 2),
    "v3": Tpu((*_OLD, "16x32", "32x32"), {}, 4, 4, 0, "", "v3", 2, 2),
    "v4": Tpu(_SMALL, {4: "ct4p-hightpu-4t"}, 4, 4, 4096, "tpu-v4-podslice", "v4", 2),
    "v5e": Tpu(_FLAT, V5E, 4, 8, 0, "tpu-v5-lite-podslice", "v5litepod", 1),
    "v5p": Tpu(("1x1x1", "2x1x1", *_SMALL), V5P, 4, 4, 6144, "tpu-v5p-slice", "v5p", 2),
    "v6e": Tpu(_FLAT, V6E, 4, 8, 0, "tpu-v6e-slice", "v6e"),
    "tpu7x": Tpu(("1x1x1", *_SMALL), TPU7X, 4, 4, 9216, "tpu7x", devices_per_chip=2),
}
SOLID = {
    4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8", 512: "8x8x8",
    1024: "8x8x16",
}  # fmt: skip


def chips(topology: str) -> int:
    return math.prod(map(int, topology.split("x")))


def devices(kind: str, topology: str) -> int:
    """Devices of a slice, as JAX counts them."""
    return chips(topology) * TPUS[kind].devices_per_chip


def refusal(name: str) -> tuple[str, str] | None:
    """The error and fix for a slice such as `v6e:4x4`, whose kind is known. None if Google rents it."""
    kind, _, topology = name.partition(":")
    tpu = TPUS[kind]
    if re.fullmatch(r"[1-9]\d{0,4}(x[1-9]\d{0,4}){1,2}", topology) is None:
        return f"'{name[:40]}' is not a slice of a TPU", f"write KIND:TOPOLOGY, as {kind}:{_example(tpu)}"
    if topology in (rented := topologies(kind)):
        return None
    count = chips(topology)
    near = min(rented, key=lambda other: (abs(math.log(chips(other) / count)), max(map(int, other.split("x")))))
    most = tpu.most_cubed
    cubes = f", and three multiples of 4 in ascending order, of up to {most:,} chips" if most else ""
    fix = f"{kind}:{near} is the nearest of {', '.join(tpu.topologies)}{cubes}"
    return f"'{name[:40]}' is not a slice that Google rents", fix


def _example(tpu: Tpu) -> str:
    return "4x4x4" if tpu.most_cubed else "4x4"


def topologies(kind: str) -> list[str]:
    """All topologies of a kind: in three dimensions also whole cubes."""
    most = TPUS[kind].most_cubed
    cubes = (
        f"{a}x{b}x{c}"
        for a in range(4, math.isqrt(most) + 1, 4)
        for b in range(a, math.isqrt(most // a) + 1, 4)
        for c in range(b, most // (a * b) + 1, 4)
    )
    return [*TPUS[kind].topologies, *cubes]


def host_sizes(kind: str, topology: str) -> list[int]:
    """Chips of a host, for each way in which Google builds the slice; the usual first. `topology` is one of the
    kind's."""
    tpu, count = TPUS[kind], chips(topology)
    alone = [count] if count <= tpu.alone else []
    return alone + ([tpu.chips_per_host] if count > tpu.chips_per_host else [])


def accelerator_type(kind: str, topology: str) -> str:
    """The TPU API's name, as v5litepod-16 (chips) or v4-32 (cores, two for each chip)."""
    tpu = TPUS[kind]
    return f"{tpu.type_prefix}-{chips(topology) * tpu.type_unit}"


def topologies_by_chips(kind: str) -> dict[int, str]:
    """A topology of the kind by its number of chips; in three dimensions the one nearest to a cube."""
    tpu = TPUS[kind]
    return SOLID if tpu.most_cubed else {chips(topology): topology for topology in tpu.topologies}


def kind_and_chips(accelerator_type: str) -> tuple[str, int] | None:
    """The kind and the number of chips that the TPU API's name stands for; None for an unknown name."""
    prefix, _, number = accelerator_type.rpartition("-")
    kind = next((kind for kind, tpu in TPUS.items() if tpu.type_prefix == prefix and prefix), None)
    if kind is None or not re.fullmatch(r"[1-9]\d{0,5}", number) or int(number) % TPUS[kind].type_unit:
        return None
    return kind, int(number) // TPUS[kind].type_unit
