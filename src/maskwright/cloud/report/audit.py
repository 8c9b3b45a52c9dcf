"""An audit of an environment: what is left of it, what costs money, and whether it is kept on purpose or left over.

`env down` ends with it. The exit code is 1 when something unwanted still costs money, or when a kind could not be
looked at because a permission is missing or Google did not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from maskwright.cloud.environment import Environment
from maskwright.cloud.google.inventory import CloudResource, Inventory, Unseen, priced, size_of_bucket, take
from maskwright.cloud.google.rest import Google
from maskwright.cloud.prices import HOURS_A_MONTH
from maskwright.core.console import human_bytes
from maskwright.core.errors import CloudError

MONTHLY = ("disk", "bucket", "Filestore instance")
"""Kinds that are priced by the month."""
FindPrice = Callable[[str, str, str], tuple[Any, float] | None]
"""`Prices.find`: what, region and provisioning model -> the row and its USD."""


@dataclass(frozen=True)
class Item:
    """A resource, judged."""

    found: CloudResource
    why: str
    """Purpose that it is kept for, "" when it is left over."""
    usd_per_hour: float | None
    """None when it is free, or the table has no price."""

    @property
    def unwanted(self) -> bool:
        return bool(self.found.bills) and not self.why

    def to_json(self) -> dict[str, Any]:
        one = self.found
        names = {"kind": one.kind, "name": one.name, "place": one.place, "part": one.part, "bills": one.bills}
        return {**names, "kept": self.why or None, "usd_per_hour": self.usd_per_hour, "labelled": one.labelled}


@dataclass(frozen=True)
class ResourceAudit:
    environment: str
    items: list[Item]
    unseen: list[Unseen]

    @property
    def unwanted(self) -> list[Item]:
        return [item for item in self.items if item.unwanted]

    @property
    def blind(self) -> list[Unseen]:
        """Kinds that may hold something. While an API is off, nothing of it can be made."""
        return [one for one in self.unseen if one.reason != "disabled"]

    @property
    def clean(self) -> bool:
        return not self.unwanted and not self.blind

    def to_json(self) -> dict[str, Any]:
        unseen = [{"kind": one.kind, "reason": one.reason, "why": one.why} for one in self.unseen]
        items = [item.to_json() for item in self.items]
        return {"environment": self.environment, "clean": self.clean, "items": items, "not_looked_at": unseen}

    def report(self) -> str:
        costs = [item for item in self.items if item.found.bills]
        free = [item for item in self.items if not item.found.bills]
        lines = [f"{self.environment}: nothing exists"] if not self.items else []
        for title, items in (
            ("left over, and costs money", self.unwanted),
            ("kept, and costs money", [item for item in costs if item.why]),
            ("costs nothing", free),
        ):
            if items:
                lines += [f"{title}:", *(f"  {_line(item)}" for item in items)]
        known = [item.usd_per_hour for item in costs if item.usd_per_hour is not None]
        if known:
            unknown = len(costs) - len(known)
            more = f", and {unknown} more without a price in the table" if unknown else ""
            least = "at least " if any(_in_part(item) for item in costs) else ""
            lines.append(f"in all {least}{sum(known):,.2f} USD/hour, {sum(known) * HOURS_A_MONTH:,.2f} USD/month{more}")
        lines += [f"not looked at: {one.kind} ({one.why})" for one in self.unseen]
        return "\n".join(lines)


def _in_part(item: Item) -> bool:
    """Whether it is a bucket, and only the sizes on its first page were added up."""
    return "bytes" in item.found.body and not item.found.body.get("all")


def _line(item: Item) -> str:
    one = item.found
    parts = [f"{one.kind} {one.name} in {one.place}"]
    if "bytes" in one.body:
        parts[0] += f", {human_bytes(int(one.body['bytes']))}{' or more' if _in_part(item) else ''}"
    parts += [one.bills] if one.bills else []
    if item.usd_per_hour is not None:
        monthly = one.kind in MONTHLY
        usd = item.usd_per_hour * (HOURS_A_MONTH if monthly else 1)
        parts.append(f"{usd:,.2f} USD/{'month' if monthly else 'hour'}")
    elif one.bills:
        parts.append("no price in the table")
    parts += [item.why] if item.why else []
    parts += ["by its name, as it has no label"] if not one.labelled else []
    return "; ".join(parts)


# ---- judging -------------------------------------------------------------------------------------------------------


def audit(
    google: Google,
    environment: Environment,
    *,
    wanted: Mapping[str, Any] | None,
    queued: bool = False,
    price: FindPrice | None = None,
) -> ResourceAudit:
    """`wanted` is what was asked for last, as Terraform's variables (`wanted.json`); None or {} is nothing. `queued`
    says that the slice's queued resource is wanted, which is not in them."""
    wanted = wanted or {}
    found = take(google, environment, wanted.get("regions") or ())
    reasons = kept(environment, wanted, queued)
    items = [_judged(google, one, {} if _astray(one, wanted, found) else reasons, price) for one in found.found]
    state = google.find("storage", f"b/{environment.state}") if not _blind_to(found, "bucket") else None
    if state is not None:
        place = str(state.get("location", "")).lower()
        bucket = CloudResource("bucket", environment.state, place, "buckets", "what it holds", None, state)
        why = {("bucket", environment.state): "Terraform's state, of all environments of the project"}
        items.append(_judged(google, bucket, why, price))
    order = sorted(items, key=lambda item: (not item.unwanted, not item.found.bills, item.found.kind, item.found.name))
    return ResourceAudit(environment.name, order, found.unseen)


def _astray(one: CloudResource, wanted: Mapping[str, Any], found: Inventory) -> bool:
    """Whether it is named as hosts that are wanted, but lies in a zone where they were before, or is a boot disk
    without its host."""
    order = wanted.get(one.part) if one.part in ("slice", "group") else None
    if not order or one.kind not in ("instance", "disk", "instance group"):
        return False
    if one.place != order.get("zone", one.place):
        return True
    alone = one.kind == "disk" and not one.body.get("users")
    return alone and one.name not in {host.name for host in found.of("instance")} and not _blind_to(found, "instance")


def _blind_to(found: Inventory, kind: str) -> bool:
    return any(one.kind == kind for one in found.unseen)


def _judged(
    google: Google, one: CloudResource, reasons: Mapping[tuple[str, str], str], price: FindPrice | None
) -> Item:
    if one.kind == "bucket":
        with suppress(CloudError):
            size, all_ = size_of_bucket(google, one.name)
            body = {**one.body, "bytes": size, "all": all_}
            one = replace(one, priced=priced(one.kind, body, one.place), body=body)
    why = reasons.get((one.kind, one.name)) or reasons.get(("part", one.part)) or reasons.get(("kind", one.kind)) or ""
    return Item(one, why, _usd_per_hour(one, price))


def _usd_per_hour(one: CloudResource, price: FindPrice | None) -> float | None:
    if price is None or one.priced is None:
        return None
    what, region, model, count = one.priced
    row = price(what, region, model)
    return count * row[1] / (HOURS_A_MONTH if one.kind in MONTHLY else 1) if row is not None else None


def kept(environment: Environment, wanted: Mapping[str, Any], queued: bool) -> dict[tuple[str, str], str]:
    """(kind, name), ("part", part) or ("kind", kind) -> why it is there."""
    # cloud.google.com/storage/docs/soft-delete: seven days unless somebody set another time; nobody can shorten it
    reasons = {
        ("kind", "deleted bucket"): "Google keeps it for some days after its deletion (soft delete), and bills it"
    }
    for part in ("slice", "group"):
        if wanted.get(part) or (part == "slice" and queued):
            reasons["part", part] = f"the {part} that was asked for; `env down` takes it away"
    if wanted.get("seeder"):
        reasons["part", "seeder"] = "fills the disk; `env seed` takes it away"
    data = "kept on purpose: data; `env down --delete-data` takes it away"
    if wanted.get("disk"):
        reasons["disk", str(wanted["disk"]["name"])] = data
    if wanted.get("nfs"):
        reasons["part", "nfs"] = data
    if wanted:
        for bucket in (environment.dataset_bucket, environment.runs_bucket):
            reasons["bucket", bucket] = data
        reasons["repository", environment.name] = "kept on purpose: images; `env down --delete-data` takes it away"
        if wanted.get("nat"):
            reasons["kind", "router"] = "the gateway by which hosts reach the internet"
        reasons["part", "vertex"] = "a job that was submitted; `maskwright stop` ends it"
    return reasons
