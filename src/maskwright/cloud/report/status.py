"""`env status`: what exists and bills, and the disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from maskwright.cloud import record
from maskwright.cloud.environment import Environment, read_environment
from maskwright.cloud.google.rest import Google
from maskwright.cloud.prices import HOURS_A_MONTH
from maskwright.cloud.record import EnvironmentRecord
from maskwright.cloud.report.audit import FindPrice, ResourceAudit, audit
from maskwright.core.console import human_bytes, human_count
from maskwright.core.shell import typed


@dataclass(frozen=True)
class EnvironmentStatus:
    environment: str
    location: str
    """Path or address of the YAML."""
    exists: ResourceAudit
    disk: str

    def report(self) -> str:
        lines = [f"{self.environment}: {_count(self.exists)}"]
        lines += [self.disk] if self.disk else []
        plan = f"`{typed(['env', 'plan', self.location])}` shows what `env up` would change"
        return "\n".join([*lines, plan, self.exists.report()])

    def to_json(self) -> dict[str, Any]:
        return {
            "environment": self.environment,
            "disk": self.disk or None,
            "exists": self.exists.to_json(),
        }


def _count(exists: ResourceAudit) -> str:
    bills = [item for item in exists.items if item.resource.bills]
    usd = sum(item.usd_per_hour or 0.0 for item in bills)
    cost = f", {usd:,.2f} USD/hour and {usd * HOURS_A_MONTH:,.2f} USD/month as far as prices are known" if usd else ""
    return f"{len(exists.items)} things exist, {len(bills)} cost money{cost}"


def read(location: str, price: FindPrice | None = None) -> EnvironmentStatus:
    """Status of the environment whose YAML is at `location`. Needs neither Terraform nor its lock."""
    environment = read_environment(location)
    google, wanted = Google(environment.project), record.wanted(environment)
    remembered = record.read(environment).for_disk(environment)
    exists = audit(google, environment, wanted=wanted, queued=remembered.queued_zone is not None, price=price)
    return EnvironmentStatus(environment.name, location, exists, _disk(environment, remembered))


def _disk(environment: Environment, remembered: EnvironmentRecord) -> str:
    if environment.disk is None:
        return ""
    name = environment.disk_name(remembered.generation)
    if remembered.seeded is None:
        return f"disk {name}: not seeded; `env seed` fills it from {environment.disk.source}"
    files, size = remembered.seeded.get("files", 0), remembered.seeded.get("bytes", 0)
    when = f" on {str(remembered.seeded['time'])[:10]}" if remembered.seeded.get("time") else ""
    return f"disk {name}: seeded{when} with {human_count(files)} files, {human_bytes(size)}"
