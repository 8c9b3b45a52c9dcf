"""`env status`: what exists and bills, how each host is, the disk and the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from maskwright.cloud import record
from maskwright.cloud.environment import Environment, Slice, read_environment
from maskwright.cloud.google.rest import Google
from maskwright.cloud.jobs.status import EnvironmentJobs, JobsReport
from maskwright.cloud.prices import HOURS_A_MONTH
from maskwright.cloud.record import EnvironmentRecord
from maskwright.cloud.report import host_health
from maskwright.cloud.report.audit import FindPrice, ResourceAudit, audit
from maskwright.cloud.report.host_health import HostHealth
from maskwright.core.console import human_bytes, human_count, several
from maskwright.core.errors import CloudError
from maskwright.core.shell import typed


@dataclass(frozen=True)
class _HostsStatus:
    """The hosts of the slice or the group."""

    kind: str
    what: str
    """Machine type, topology, provisioning model and zone."""
    wanted: int
    hosts: list[HostHealth]
    trouble: str = ""
    """Why they cannot be read; empty if they can."""

    def lines(self) -> list[str]:
        if self.trouble:
            return [f"{self.kind}: {self.what}: cannot be read: {self.trouble}"]
        well = sum(host.well for host in self.hosts)
        head = f"{self.kind}: {self.what}: {len(self.hosts)} of {several(self.wanted, 'host')}, {well} well"
        return [head, *(f"  {host.line()}" for host in self.hosts)]

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "hosts": [host.to_json() for host in self.hosts]}


@dataclass(frozen=True)
class EnvironmentStatus:
    environment: str
    location: str
    """Path or address of the YAML."""
    exists: ResourceAudit
    hosts: list[_HostsStatus]
    disk: str
    jobs: JobsReport

    def report(self) -> str:
        lines = [f"{self.environment}: {_count(self.exists)}"]
        for hosts in self.hosts:
            lines += hosts.lines()
        lines += [self.disk] if self.disk else []
        lines += [job.report() for job in self.jobs.jobs if job.job.submission]
        plan = f"`{typed(['env', 'plan', self.location])}` shows what `env up` would change"
        return "\n".join([*lines, plan, self.exists.report()])

    def to_json(self) -> dict[str, Any]:
        return {
            "environment": self.environment,
            "hosts": [hosts.to_json() for hosts in self.hosts],
            "disk": self.disk or None,
            **self.jobs.to_json(),
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
    jobs = EnvironmentJobs(location).status()
    exists = audit(google, environment, wanted=wanted, queued=remembered.queued_zone is not None, price=price)
    hosts = [_hosts(google, environment, kind, wanted or {}, remembered) for kind in environment.hosts]
    wanted_hosts = [status for status in hosts if status is not None]
    return EnvironmentStatus(environment.name, location, exists, wanted_hosts, _disk(environment, remembered), jobs)


def _hosts(
    google: Google, environment: Environment, kind: str, wanted: Mapping[str, Any], remembered: EnvironmentRecord
) -> _HostsStatus | None:
    """None if none are wanted."""
    hosts = environment.hosts[kind]
    zone = remembered.queued_zone if hosts.queued else (wanted.get(kind) or {}).get("zone")
    if zone is None:
        return None
    place = hosts.place(environment.zone, remembered.placement[kind])
    topology = f" {hosts.topology}" if isinstance(hosts, Slice) else ""
    what = f"{hosts.machine()}{topology} {place.model} in {zone}"
    try:
        return _HostsStatus(kind, what, hosts.hosts, host_health.describe(google, environment, kind, zone))
    except CloudError as error:
        return _HostsStatus(kind, what, hosts.hosts, [], str(error))


def _disk(environment: Environment, remembered: EnvironmentRecord) -> str:
    if environment.disk is None:
        return ""
    name = environment.disk_name(remembered.generation)
    if remembered.seeded is None:
        return f"disk {name}: not seeded; `env seed` fills it from {environment.disk.source}"
    files, size = remembered.seeded.get("files", 0), remembered.seeded.get("bytes", 0)
    when = f" on {str(remembered.seeded['time'])[:10]}" if remembered.seeded.get("time") else ""
    return f"disk {name}: seeded{when} with {human_count(files)} files, {human_bytes(size)}"
