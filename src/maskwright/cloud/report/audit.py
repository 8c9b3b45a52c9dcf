"""An audit of an environment: what exists, what costs money, and whether it is kept on purpose or left over.

`env down` ends with it. The exit code is 1 if something unwanted still costs money, or if a kind could not be listed
because a permission is missing or Google did not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from maskwright.cloud.environment import Environment
from maskwright.cloud.google.inventory import CloudResource, Inventory, Unseen, priced, size_of_bucket, take_inventory
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
    """A resource and its verdict."""

    resource: CloudResource
    why: str
    """Why it is kept; empty if it is left over."""
    usd_per_hour: float | None
    """None if it is free, or the table has no price."""

    @property
    def unwanted(self) -> bool:
        return bool(self.resource.bills) and not self.why

    def to_json(self) -> dict[str, Any]:
        values = {key: getattr(self.resource, key) for key in ("kind", "name", "place", "part", "bills")}
        verdict = {"kept": self.why or None, "usd_per_hour": self.usd_per_hour}
        return {**values, **verdict, "labelled": self.resource.labelled}


@dataclass(frozen=True)
class ResourceAudit:
    environment: str
    items: list[Item]
    unseen: list[Unseen]

    @property
    def unwanted(self) -> list[Item]:
        return [item for item in self.items if item.unwanted]

    @property
    def unknown(self) -> list[Unseen]:
        """Kinds of which something may exist. While an API is disabled, nothing of its kinds can be created."""
        return [kind for kind in self.unseen if kind.reason != "disabled"]

    @property
    def clean(self) -> bool:
        return not self.unwanted and not self.unknown

    def to_json(self) -> dict[str, Any]:
        unseen = [asdict(kind) for kind in self.unseen]
        items = [item.to_json() for item in self.items]
        return {"environment": self.environment, "clean": self.clean, "items": items, "not_looked_at": unseen}

    def report(self) -> str:
        costly = [item for item in self.items if item.resource.bills]
        free = [item for item in self.items if not item.resource.bills]
        lines = [f"{self.environment}: nothing exists"] if not self.items else []
        for title, items in (
            ("left over, and costs money", self.unwanted),
            ("kept, and costs money", [item for item in costly if item.why]),
            ("costs nothing", free),
        ):
            if items:
                lines += [f"{title}:", *(f"  {_line(item)}" for item in items)]
        prices = [item.usd_per_hour for item in costly if item.usd_per_hour is not None]
        if prices:
            unknown = len(costly) - len(prices)
            more = f", and {unknown} more without a price in the table" if unknown else ""
            least = "at least " if any(_is_partial(item) for item in costly) else ""
            usd = sum(prices)
            lines.append(f"in all {least}{usd:,.2f} USD/hour, {usd * HOURS_A_MONTH:,.2f} USD/month{more}")
        lines += [f"not looked at: {kind.kind} ({kind.why})" for kind in self.unseen]
        return "\n".join(lines)


def _is_partial(item: Item) -> bool:
    """Whether it is a bucket of which only the first objects were counted."""
    return "bytes" in item.resource.body and not item.resource.body.get("all")


def _line(item: Item) -> str:
    resource = item.resource
    parts = [f"{resource.kind} {resource.name} in {resource.place}"]
    if "bytes" in resource.body:
        parts[0] += f", {human_bytes(int(resource.body['bytes']))}{' or more' if _is_partial(item) else ''}"
    parts += [resource.bills] if resource.bills else []
    if item.usd_per_hour is not None:
        monthly = resource.kind in MONTHLY
        usd = item.usd_per_hour * (HOURS_A_MONTH if monthly else 1)
        parts.append(f"{usd:,.2f} USD/{'month' if monthly else 'hour'}")
    elif resource.bills:
        parts.append("no price in the table")
    parts += [item.why] if item.why else []
    parts += ["by its name, as it has no label"] if not resource.labelled else []
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
    """`wanted`: Terraform's variables of the last command (`wanted.json`); None or {} if nothing is wanted. `queued`:
    whether the slice's queued resource is wanted, which they lack."""
    wanted = wanted or {}
    inventory = take_inventory(google, environment, wanted.get("regions") or ())
    reasons = reasons_to_keep(environment, wanted, queued)
    items = [
        _judge(google, resource, {} if _is_leftover(resource, wanted, inventory) else reasons, price)
        for resource in inventory.resources
    ]
    state = google.find("storage", f"b/{environment.state}") if not _is_unseen(inventory, "bucket") else None
    if state is not None:
        place = str(state.get("location", "")).lower()
        bucket = CloudResource("bucket", environment.state, place, "buckets", "what it holds", None, state)
        why = {("bucket", environment.state): "Terraform's state, of all environments of the project"}
        items.append(_judge(google, bucket, why, price))

    def order(item: Item) -> tuple[bool, bool, str, str]:
        return not item.unwanted, not item.resource.bills, item.resource.kind, item.resource.name

    return ResourceAudit(environment.name, sorted(items, key=order), inventory.unseen)


def _is_leftover(resource: CloudResource, wanted: Mapping[str, Any], inventory: Inventory) -> bool:
    """True for leftovers of wanted hosts: in a zone that they have left, or a boot disk whose host is gone."""
    hosts = wanted.get(resource.part) if resource.part in ("slice", "group") else None
    if not hosts or resource.kind not in ("instance", "disk", "instance group"):
        return False
    if resource.place != hosts.get("zone", resource.place):
        return True
    if resource.kind != "disk" or resource.body.get("users") or _is_unseen(inventory, "instance"):
        return False
    return resource.name not in {instance.name for instance in inventory.of("instance")}


def _is_unseen(inventory: Inventory, kind: str) -> bool:
    return any(unseen.kind == kind for unseen in inventory.unseen)


def _judge(
    google: Google, resource: CloudResource, reasons: Mapping[tuple[str, str], str], price: FindPrice | None
) -> Item:
    kind, name = resource.kind, resource.name
    if kind == "bucket":
        with suppress(CloudError):
            size, complete = size_of_bucket(google, name)
            body = {**resource.body, "bytes": size, "all": complete}
            resource = replace(resource, priced=priced(kind, body, resource.place), body=body)
    keys = ((kind, name), ("part", resource.part), ("kind", kind))
    why = next((reasons[key] for key in keys if reasons.get(key)), "")
    return Item(resource, why, _usd_per_hour(resource, price))


def _usd_per_hour(resource: CloudResource, price: FindPrice | None) -> float | None:
    if price is None or resource.priced is None:
        return None
    what, region, model, count = resource.priced
    row = price(what, region, model)
    return count * row[1] / (HOURS_A_MONTH if resource.kind in MONTHLY else 1) if row is not None else None


def reasons_to_keep(environment: Environment, wanted: Mapping[str, Any], queued: bool) -> dict[tuple[str, str], str]:
    """(kind, name), ("part", part) or ("kind", kind) -> why it exists."""
    # cloud.google.com/storage/docs/soft-delete: seven days by default, and nobody can delete it earlier
    reasons = {
        ("kind", "deleted bucket"): "Google keeps it for some days after its deletion (soft delete), and bills it"
    }
    for part in ("slice", "group"):
        if wanted.get(part) or (part == "slice" and queued):
            reasons["part", part] = f"the {part} that `env up` created; `env down` deletes it"
    if wanted.get("seeder"):
        reasons["part", "seeder"] = "fills the disk; `env seed` deletes it"
    data = "kept on purpose: data; `env down --delete-data` deletes it"
    if wanted.get("disk"):
        reasons["disk", str(wanted["disk"]["name"])] = data
    if wanted.get("nfs"):
        reasons["part", "nfs"] = data
    if wanted:
        for bucket in (environment.dataset_bucket, environment.runs_bucket, environment.jobs_bucket):
            reasons["bucket", bucket] = data
        reasons["repository", environment.name] = "kept on purpose: images; `env down --delete-data` deletes it"
        if wanted.get("nat"):
            reasons["kind", "router"] = "the gateway through which hosts reach the internet"
        reasons["part", "vertex"] = "a job that was submitted; `maskwright stop` ends it"
    return reasons
