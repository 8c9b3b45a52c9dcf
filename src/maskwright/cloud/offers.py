"""Hourly prices of GPUs and TPU slices on Google Cloud by provisioning model, from the price table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from maskwright.cloud.environment import read_environment, region_of
from maskwright.cloud.machines import ATTACHED, GPUS
from maskwright.cloud.prices import KEYS, Prices
from maskwright.machine.tpus import TPUS

N1 = "n1-standard-8"
"""The machine that attached GPUs are priced with. It has 8 CPUs, and takes any number of them."""


class HourlyOffer(NamedTuple):
    model: str
    region: str
    machine: str
    usd: float
    date: str


@dataclass(frozen=True)
class TrainingHosts:
    """Hosts of an environment that have accelerators."""

    part: str
    accelerator: str
    """A kind of TPU, or Google's name of a GPU."""
    count: int
    topology: str | None
    machines: int
    machine: str
    region: str


def gpu_machine(accelerator: str, count: int) -> str | None:
    """The machine type with `count` of the accelerator and the fewest CPUs, preferably not a special one."""
    names = [name for name, (kind, number) in GPUS.items() if kind == accelerator and number == count]
    return min(names, key=lambda name: ("edge" in name, len(name), name), default=None)


def counts_sold(accelerator: str) -> set[int]:
    """Numbers of the accelerator that machine types have."""
    return {number for kind, number in GPUS.values() if kind == accelerator} | set(ATTACHED.get(accelerator, ()))


def hourly_offers(prices: Prices, what: str, region: str, count: int = 1) -> list[HourlyOffer]:
    """Offers of `count` times `what`: chips of a kind of TPU, GPUs attached to an N1 machine, or machines of a type."""
    if what in ATTACHED:
        return _attached(prices, what, region, count)
    offers = []
    for model in KEYS:
        if (price := prices.find(what, region, model)) is not None:
            row, usd = price
            name = f"{count} chips of {what}" if what in TPUS else what if count == 1 else f"{count} x {what}"
            offers.append(HourlyOffer(model, region, name, usd * count, prices.sources[row.source].date.isoformat()))
    return offers


def _attached(prices: Prices, gpu: str, region: str, count: int) -> list[HourlyOffer]:
    """Offers of an N1 machine with `count` GPUs, if both have a price."""
    offers = []
    for host in hourly_offers(prices, N1, region):
        if count in ATTACHED[gpu] and (price := prices.find(gpu, region, host.model)) is not None:
            row, usd = price
            date = min(host.date, prices.sources[row.source].date.isoformat())
            offers.append(HourlyOffer(host.model, region, f"{N1} with {count} x {gpu}", host.usd + usd * count, date))
    return offers


def training_hosts(location: str) -> list[TrainingHosts]:
    """The training hosts of an environment's YAML. Raises `ConfigError`."""
    environment = read_environment(location)
    hosts = []
    if (tpus := environment.slice) is not None:
        place = tpus.place(environment.zone, 0)
        machine = tpus.accelerator  # priced by the chip
        hosts.append(
            TrainingHosts("slice", machine, tpus.chips, tpus.topology, tpus.chips, machine, region_of(place.zone))
        )
    if (group := environment.group) is not None and group.gpus:
        accelerator, _ = GPUS[group.machine_type]
        place = group.place(environment.zone, 0)
        count, region = group.gpus * group.size, region_of(place.zone)
        hosts.append(TrainingHosts("group", accelerator, count, None, group.size, group.machine_type, region))
    return hosts
