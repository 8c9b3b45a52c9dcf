"""`env init` prepares a project for its first environment, and checks whether this one can be created there.

It enables the APIs, creates the bucket for Terraform's state, and checks the zones' machines.
It names everything that is missing at once. Another run does not change existing parts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from maskwright.cloud.environment import Environment
from maskwright.cloud.google.errors import unsure
from maskwright.cloud.google.rest import Google
from maskwright.core.errors import CloudError

APIS = ["compute", "iam", "cloudresourcemanager", "storage", "artifactregistry", "cloudbuild", "container", "logging"]
STATE_LABELS = {"maskwright": "state"}
API_SECONDS = 600.0
SETTLE_SECONDS, SETTLE_POLL_SECONDS = 180.0, 5.0
"""For some minutes, Google may still refuse an API that was just enabled."""


@dataclass(frozen=True)
class Check:
    area: str
    """apis, bucket or machines"""
    what: str
    state: Literal["ok", "missing", "unknown"]
    detail: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Outcome:
    environment: str
    checks: list[Check]

    @property
    def ok(self) -> bool:
        return all(check.state != "missing" for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}

    def report(self) -> str:
        lines = []
        for check in self.checks:
            fix = f". Fix: {check.fix}" if check.fix and check.state != "ok" else ""
            lines.append(f"{check.area:<12} {check.state:<8} {check.what}: {check.detail}{fix}")
        count = {state: sum(check.state == state for check in self.checks) for state in ("missing", "unknown")}
        if count["missing"]:
            lines.append(f"{self.environment}: {count['missing']} missing, {count['unknown']} unknown")
        else:
            lines.append(f"{self.environment}: ready for `maskwright env up`; {count['unknown']} unknown until then")
        return "\n".join(lines)


def init(google: Google, environment: Environment) -> Outcome:
    checks = [*enable_apis(google, environment), state_bucket(google, environment), *offered(google, environment)]
    return Outcome(environment.name, checks)


# ---- APIs ----------------------------------------------------------------------------------------------------------


def enable_apis(google: Google, environment: Environment) -> Iterator[Check]:
    """Enable those that are off. Only serviceusage must already be enabled."""
    wanted = [f"{name}.googleapis.com" for name in (*APIS, *(["file"] if environment.nfs else []))]
    try:
        off = _off(google, wanted)
        if off:
            path = f"projects/{google.project}/services:batchEnable"
            enabling = google.call("serviceusage", "POST", path, {"serviceIds": off})
            google.wait("serviceusage", enabling, seconds=API_SECONDS)
    except CloudError as error:
        if error.reason == "credentials":
            raise
        fix = f"gcloud services enable {' '.join(wanted)} --project={google.project}"
        fix = fix if error.reason == "permission" else error.fix or fix
        yield Check("apis", "services", "missing", error.what, fix)
        return
    _wait_for_apis(google, off)
    enabled = f"; enabled now: {', '.join(off)}" if off else ""
    yield Check("apis", "services", "ok", f"{len(wanted)} are enabled{enabled}")


def _wait_for_apis(google: Google, enabled: list[str]) -> None:
    until = time.monotonic() + SETTLE_SECONDS
    for api in ("cloudresourcemanager", "compute"):
        while f"{api}.googleapis.com" in enabled:
            try:
                google.call(api, "GET", f"projects/{google.project}")
            except CloudError as error:
                if error.reason == "disabled" and time.monotonic() < until:
                    time.sleep(SETTLE_POLL_SECONDS)
                    continue
            break


def _off(google: Google, names: list[str]) -> list[str]:
    path = f"projects/{google.project}/services"
    answer = google.call("serviceusage", "GET", f"{path}:batchGet", names=[f"{path}/{name}" for name in names])
    services = [service for service in answer.get("services") or () if service.get("state") == "ENABLED"]
    enabled = {str(service["name"]).rpartition("/")[2] for service in services}
    return [name for name in names if name not in enabled]


# ---- the state bucket ----------------------------------------------------------------------------------------------


def state_bucket(google: Google, environment: Environment) -> Check:
    """Create it: versioned, private, without access lists. A bucket that exists is only checked."""
    name = environment.state
    try:
        bucket = google.find("storage", f"b/{name}")
        return _create(google, environment) if bucket is None else _check_bucket(google, environment, bucket)
    except CloudError as error:
        fix = error.fix or ""
        if error.reason == "permission":
            fix = f"{fix}; or another project has that name: set state_bucket in the YAML"
        return Check("bucket", f"gs://{name}", "missing", error.what, fix)


def _create(google: Google, environment: Environment) -> Check:
    location = environment.bucket_location or environment.region
    body = {
        "name": environment.state,
        "location": location,
        "labels": STATE_LABELS,
        "versioning": {"enabled": True},
        "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "enforced"},
    }
    try:
        google.call("storage", "POST", "b", body, project=google.project)
    except CloudError as error:
        if error.reason != "exists" and not unsure(error):
            raise
        bucket = google.find("storage", f"b/{environment.state}")
        if bucket is None:
            raise
        return _check_bucket(google, environment, bucket)  # by another run, or by the request whose answer was lost
    detail = f"created in {location}: versioned, private, for all environments of {google.project}"
    return Check("bucket", f"gs://{environment.state}", "ok", detail)


def is_foreign(google: Google, bucket: dict[str, Any]) -> bool:
    """Whether it belongs to another project. Bucket names are shared by all of Google's users."""
    number = str(google.call("cloudresourcemanager", "GET", f"projects/{google.project}")["name"]).rpartition("/")[2]
    return str(bucket.get("projectNumber", number)) != number


def _check_bucket(google: Google, environment: Environment, bucket: dict[str, Any]) -> Check:
    what, access = f"gs://{environment.state}", bucket.get("iamConfiguration") or {}
    if is_foreign(google, bucket):
        detail = f"belongs to another project (number {bucket['projectNumber']})"
        return Check("bucket", what, "missing", detail, "set state_bucket in the YAML to a name of your own")
    faults = {
        "--versioning": "" if (bucket.get("versioning") or {}).get("enabled") else "is not versioned",
        "--public-access-prevention": (
            "" if access.get("publicAccessPrevention") == "enforced" else "can be made public"
        ),
        "--uniform-bucket-level-access": (
            "" if (access.get("uniformBucketLevelAccess") or {}).get("enabled") else "has access lists"
        ),
    }
    if faults := {option: words for option, words in faults.items() if words}:
        fix = f"gcloud storage buckets update {what} {' '.join(faults)}"
        return Check("bucket", what, "missing", ", ".join(faults.values()), fix)
    return Check("bucket", what, "ok", "exists: versioned, private")


# ---- machines -----------------------------------------------------------------------------------------------------


def offered(google: Google, environment: Environment) -> Iterator[Check]:
    """A result for each zone and type of machine or disk. Pods for a machine that a zone lacks would wait for ever,
    which neither Terraform nor the cluster reports. Quotas are not checked, since Google publishes none for TPUs."""
    wanted: dict[tuple[str, str, str], None] = {}
    for nodes in environment.hosts.values():
        zones = [zone for zone, _ in nodes.placements(environment.zone)]
        wanted |= dict.fromkeys((zone, "machineTypes", nodes.machine()) for zone in zones)
    if environment.disk is not None:
        wanted[environment.zone, "diskTypes", environment.disk.type] = None
    for zone, kind, name in wanted:
        what = f"{name} in {zone}"
        try:
            found = google.find("compute", f"projects/{google.project}/zones/{zone}/{kind}/{name}")
        except CloudError as error:
            yield Check("machines", what, "unknown", error.what, error.fix or "")
            continue
        if found is not None:
            yield Check("machines", what, "ok", "offered there")
            continue
        page = "disks" if kind == "diskTypes" else "regions-zones"
        fix = f"use another zone: https://docs.cloud.google.com/compute/docs/{page}"
        yield Check("machines", what, "missing", "Google does not offer it there", fix)
