"""The cost of an environment by the hour and by the month, from a dated price table that the user may edit.

A price that the table lacks is never guessed: its part is named, and not counted. Traffic, requests and the content of
buckets depend on use and are not counted either.
"""

from __future__ import annotations

import datetime
import difflib
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from maskwright.cloud.environment import Environment, Slice, region_of
from maskwright.cloud.machines import ATTACHED, family_of
from maskwright.config.settings import Guide, Refused, Section, read_yaml
from maskwright.core.errors import InputError
from maskwright.machine.tpus import TPUS

HOURS_A_MONTH = 730
TABLE = os.path.join(os.path.dirname(__file__), "prices.yaml")
KEYS = {"STANDARD": "on_demand", "SPOT": "spot", "FLEX_START": "flex_start", "RESERVATION_BOUND": "reserved"}
BOOT_DISK_GIB = 200
"""Size as in deploy/terraform/modules/hosts. Boot disks of the TPU API's machines cost nothing."""
MOST_NAT_MACHINES = 32
"""Google charges a gateway by the machine, up to this number: cloud.google.com/nat/pricing"""
UNIT_WORDS = {"chip-hour": "chip", "GPU-hour": "GPU", "machine-hour": "machine", "GiB-month": "GiB"}

STORAGE = re.compile(r"(pd|hyperdisk)-.+|BASIC_HDD|BASIC_SSD|ZONAL|REGIONAL|bucket")

Usd = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class PriceSource(Section):
    address: str
    date: Annotated[datetime.date, Field(strict=False)]
    note: str = ""


class Price(Section):
    what: str
    """A kind of TPU, a machine type, an attached GPU, a type of disk, a tier of Filestore, bucket or nat."""
    region: str
    unit: Literal["chip-hour", "GPU-hour", "machine-hour", "GiB-month"]
    on_demand: Usd | None = None
    spot: Usd | None = None
    flex_start: Usd | None = None
    reserved: Usd | None = None
    source: str

    @model_validator(mode="after")
    def _is_of_its_unit(self) -> Price:
        """A price is multiplied by a count, so another unit would change it by a factor."""
        kind, region = self.what, self.region
        wanted = "GiB-month" if STORAGE.fullmatch(kind) else "machine-hour"
        wanted = "chip-hour" if kind in TPUS else "GPU-hour" if kind in ATTACHED else wanted
        if self.unit != wanted:
            what = f"{kind} in {region} has the unit {self.unit}, and needs {wanted}"
            raise Refused(what, fix=f"give its price by the {wanted}")
        return self


class Prices(Section):
    currency: Literal["USD"]
    sources: dict[str, PriceSource]
    prices: list[Price]

    @model_validator(mode="after")
    def _each_once_with_its_source(self) -> Prices:
        seen = set()
        for price in self.prices:
            if price.source not in self.sources:
                what = f"{price.what} in {price.region} is from {price.source!r}, which sources does not have"
                raise Refused(what, fix=f"add {price.source} to sources, with its address and date")
            if (price.what, price.region) in seen:
                raise Refused(f"{price.what} in {price.region} is given twice", fix="remove one of the two")
            seen.add((price.what, price.region))
        return self

    def find(self, what: str, region: str, model: str = "STANDARD") -> tuple[Price, float] | None:
        """The row, and its USD for the provisioning model; None if there is no such price."""
        rows = {price.region: price for price in self.prices if price.what == what}
        row = rows.get(region) or rows.get("*")
        usd = getattr(row, KEYS[model], None)
        return (row, usd) if row is not None and usd is not None else None


@dataclass(frozen=True)
class PricedPart:
    """A part with its price."""

    part: str
    what: str
    count: int
    unit: str
    price: float
    """USD for one unit and hour or month."""
    hourly: float
    """USD for all of them in an hour."""
    source: str
    """Key of the table's `sources`."""
    date: str

    @property
    def monthly(self) -> float:
        return self.hourly * HOURS_A_MONTH


@dataclass(frozen=True)
class CostEstimate:
    lines: list[PricedPart]
    unpriced: dict[str, str]
    """Parts without a price, each with a sentence about it."""

    @property
    def hourly(self) -> float:
        return sum(line.hourly for line in self.lines)

    @property
    def monthly(self) -> float:
        return self.hourly * HOURS_A_MONTH

    def as_json(self) -> dict[str, Any]:
        lines = [{**asdict(line), "monthly": line.monthly} for line in self.lines]
        totals = {"currency": "USD", "hourly": self.hourly, "monthly": self.monthly}
        return {**totals, "hours_a_month": HOURS_A_MONTH, "lines": lines, "unpriced": [*self.unpriced.values()]}


def read_prices(location: str | None = None) -> Prices:
    """The package's own table, or a user's copy. Raises `ConfigError` (exit 2)."""
    where = location or TABLE
    values = read_yaml(where, "start from a copy: maskwright env prices > prices.yaml")
    try:
        return Prices.model_validate(values)
    except ValidationError as error:
        raise Guide(Prices, "the table", "compare it with `maskwright env prices`").explain(error, where) from None


def require_region(region: str, prices: Prices) -> None:
    """Raises `InputError` for a region that is neither in `prices` nor in the package's own table."""
    known = {price.region for table in (prices, read_prices()) for price in table.prices} - {"*"}
    if region not in known:
        near = difflib.get_close_matches(region, sorted(known), n=1)
        fix = f"one of {', '.join(sorted(known))}; your own table, for --prices, may have others"
        fix = f"did you mean {near[0]}?" if near else fix
        raise InputError(f"the price table has no region {region[:40]!r}", where="--region", fix=fix)


def estimate(environment: Environment, prices: Prices, placement: dict[str, int] | None = None) -> CostEstimate:
    """Cost of all that the YAML asks for, while it runs. `placement`: the number in use, by slice and group."""
    costs = CostEstimate([], {})
    for part, what, region, model, count in _priced_parts(environment, placement or {}):
        offer = prices.find(what, region, model)
        if offer is None:
            how = "" if model == "STANDARD" else f" {model}"
            costs.unpriced[part] = f"no price for {what}{how} in {region} ({part}), not counted"
            continue
        price, usd = offer
        hourly = count * usd / (HOURS_A_MONTH if price.unit == "GiB-month" else 1)
        date = prices.sources[price.source].date.isoformat()
        costs.lines.append(PricedPart(part, what, count, UNIT_WORDS[price.unit], usd, hourly, price.source, date))
    return costs


def _priced_parts(environment: Environment, placement: dict[str, int]) -> Iterator[tuple[str, str, str, str, int]]:
    """(part, what, region, provisioning model, quantity)"""
    for part, hosts in environment.hosts.items():
        place = hosts.place(environment.zone, placement.get(part, 0))
        home = region_of(place.zone)
        what, count = (hosts.accelerator, hosts.chips) if isinstance(hosts, Slice) else (hosts.machine(), hosts.size)
        yield part, what, home, place.model, count
        if not hosts.queued:
            boot = family_of(hosts.machine()).boot_disk
            yield f"{part}'s boot", boot, home, "STANDARD", hosts.hosts * BOOT_DISK_GIB
    region, machines = environment.region, sum(hosts.hosts for hosts in environment.hosts.values())
    if environment.disk is not None:
        yield "disk", environment.disk.type, region, "STANDARD", environment.disk.size_gb
    if environment.nfs is not None:
        yield "nfs", environment.nfs.tier, region, "STANDARD", environment.nfs.capacity_gb
    if environment.nat and machines:
        yield "nat", "nat", region, "STANDARD", min(machines, MOST_NAT_MACHINES)


def table(costs: CostEstimate) -> str:
    """The estimate as a table: a line for each part, the total, and what is not counted."""
    lines = [f"{'part':<12} {'what':<16} {'how many':<15} {'USD each':>10} {'USD/hour':>10} {'USD/month':>11}  as of"]
    for line in costs.lines:
        count = f"{line.count:,} {line.unit}"
        each = f"{line.price:,.4f}" if line.price < 10 else f"{line.price:,.2f}"
        sums = f"{each:>10} {line.hourly:>10,.2f} {line.monthly:>11,.2f}"
        lines.append(f"{line.part:<12} {line.what:<16} {count:<15} {sums}  {line.date}")
    lines.append(f"{'total':<12} {'':<16} {'':<15} {'':>10} {costs.hourly:>10,.2f} {costs.monthly:>11,.2f}")
    lines += costs.unpriced.values()
    others = "the machine that seeds, what buckets and the registry hold, the gateway's addresses, traffic, logs, taxes"
    return "\n".join([*lines, f"Not counted: {others}."])
