"""Hourly prices of Google's machines, GPUs and TPU chips, from the dated table `prices.yaml`.

A price that the table lacks is never guessed: it is None.
"""

from __future__ import annotations

import difflib
import os
from functools import cache
from typing import Any, NamedTuple

import yaml

from maskwright.cloud.machines import ATTACHED, GPUS
from maskwright.core.errors import InputError
from maskwright.machine.tpus import TPUS

TABLE = os.path.join(os.path.dirname(__file__), "prices.yaml")
N1 = "n1-standard-8"
"""The machine with which attached GPUs are priced. It has 8 CPUs, and accepts any number of GPUs."""


class HourlyOffer(NamedTuple):
    """The price of a number of machines or chips under one provisioning model."""

    model: str
    """STANDARD or SPOT"""
    region: str
    machine: str
    usd: float
    date: str


class _Row(NamedTuple):
    on_demand: float
    spot: float
    date: str

    def usd(self, model: str) -> float:
        return self.spot if model == "SPOT" else self.on_demand


@cache
def _table() -> dict[str, dict[str, _Row]]:
    """By machine or kind, and by region."""
    with open(TABLE, encoding="utf-8") as file:
        sources: list[dict[str, Any]] = yaml.safe_load(file)
    return {
        what: {region: _Row(usd[0], usd[1], source["date"].isoformat()) for region, usd in regions.items()}
        for source in sources
        for what, regions in source["usd_per_hour"].items()
    }


def hourly_offers(what: str, region: str, count: int = 1) -> list[HourlyOffer]:
    """Offers of `count` times `what`: chips of a kind of TPU, GPUs attached to an N1 machine, or machines of a type.
    Empty if the table has no price. Flex-start and reservations do not exceed STANDARD."""
    attached = what in ATTACHED
    counted = [
        (number, _table().get(name, {}).get(region)) for name, number in ((what, count), (N1, 1))[: 1 + attached]
    ]
    rows = [(number, row) for number, row in counted if row is not None]
    if len(rows) < len(counted) or count not in ATTACHED.get(what, (count,)):
        return []
    name = f"{count} chips of {what}" if what in TPUS else what if count == 1 else f"{count} x {what}"
    name = f"{N1} with {count} x {what}" if attached else name
    dated = min(row.date for _, row in rows)
    return [
        HourlyOffer(model, region, name, sum(number * row.usd(model) for number, row in rows), dated)
        for model in ("STANDARD", "SPOT")
    ]


def require_region(region: str) -> None:
    """Raises `InputError` for a region without prices."""
    known = sorted({region for regions in _table().values() for region in regions})
    if region not in known:
        near = difflib.get_close_matches(region, known, n=1)
        fix = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(known)}"
        raise InputError(f"the price table has no region {region[:40]!r}", where="--region", fix=fix)


def gpu_machine(accelerator: str, count: int) -> str | None:
    """The machine type with `count` of the accelerator and the fewest CPUs, preferably not a special one."""
    names = [name for name, (kind, number) in GPUS.items() if kind == accelerator and number == count]
    return min(names, key=lambda name: ("edge" in name, len(name), name), default=None)


def counts_sold(accelerator: str) -> set[int]:
    """Numbers of the accelerator that machine types have."""
    return {number for kind, number in GPUS.values() if kind == accelerator} | set(ATTACHED.get(accelerator, ()))
