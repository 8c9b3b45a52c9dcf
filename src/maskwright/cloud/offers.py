"""What so many GPUs or a TPU slice cost in an hour on Google Cloud, by provisioning model, from the table of prices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from maskwright.cloud.environment import read_environment, region_of
from maskwright.cloud.machines import ATTACHED, GPUS, TPUS
from maskwright.cloud.prices import KEYS, Prices

N1 = "n1-standard-8"
"""The machine that attached GPUs are counted with. It has 8 CPUs, and takes each number of them."""


class Hourly(NamedTuple):
    model: str
    region: str
    machine: str
    usd: float
    date: str


@dataclass(frozen=True)
class _TrainingHosts:
    """Those of an environment that train."""

    part: str
    accelerator: str
    """A kind of TPU, or Google's name of a GPU."""
    count: int
    topology: str | None
    machines: int
    machine: str
    region: str


def gpu_machine(accelerator: str, count: int) -> str | None:
    """The machine type with the fewest CPUs that has so many of it, none of a special kind where there is a plain
    one."""
    found = [name for name, (kind, number) in GPUS.items() if kind == accelerator and number == count]
    return min(found, key=lambda name: ("edge" in name, len(name), name), default=None)


def sold_by(accelerator: str) -> set[int]:
    """How many of it the machine types have."""
    return {number for kind, number in GPUS.values() if kind == accelerator} | set(ATTACHED.get(accelerator, ()))


def hourly(prices: Prices, what: str, region: str, count: int = 1) -> list[Hourly]:
    """`what`: a kind of TPU, of which there are `count` chips, a GPU that is attached to an N1 machine, or a machine
    type."""
    if what in ATTACHED:
        return _attached(prices, what, region, count)
    found = []
    for model in KEYS:
        if (price := prices.find(what, region, model)) is not None:
            row, usd = price
            name = f"{count} chips of {what}" if what in TPUS else what if count == 1 else f"{count} x {what}"
            found.append(Hourly(model, region, name, usd * count, prices.sources[row.source].date.isoformat()))
    return found


def _attached(prices: Prices, gpu: str, region: str, count: int) -> list[Hourly]:
    """An N1 machine with so many of a GPU, where both have a price."""
    found = []
    for host in hourly(prices, N1, region):
        if count in ATTACHED[gpu] and (price := prices.find(gpu, region, host.model)) is not None:
            row, usd = price
            date = min(host.date, prices.sources[row.source].date.isoformat())
            found.append(Hourly(host.model, region, f"{N1} with {count} x {gpu}", host.usd + usd * count, date))
    return found


def hosts_of(location: str) -> list[_TrainingHosts]:
    """Of an environment's YAML. Raises `ConfigError`."""
    environment = read_environment(location)
    found = []
    if (one := environment.slice) is not None:
        place = one.place(environment.zone, 0)
        machine = one.accelerator  # priced by the chip
        found.append(
            _TrainingHosts("slice", machine, one.chips, one.topology, one.chips, machine, region_of(place.zone))
        )
    if (group := environment.group) is not None and group.gpus:
        accelerator, _ = GPUS[group.machine_type]
        place = group.place(environment.zone, 0)
        count, region = group.gpus * group.size, region_of(place.zone)
        found.append(_TrainingHosts("group", accelerator, count, None, group.size, group.machine_type, region))
    return found
