"""A network that the environment is put into, looked at before anything is made: what a host in it relies on.

Terraform makes nothing in it and does not read it, so nobody else would notice before machines cost money.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any

from maskwright.cloud.environment import Environment
from maskwright.cloud.google.rest import Google
from maskwright.cloud.provision.checks import Check
from maskwright.core.console import warn
from maskwright.core.errors import CloudError, InputError

USE = "compute.subnetworks.use"
SERVICES = "servicenetworking-googleapis-com"
"""Name that Google gives to the peering of private services access."""


def refuse(google: Google, environment: Environment) -> None:
    """Raises `InputError` for the first thing that is missing. Warns of what cannot be known."""
    for found in check(google, environment):
        if found.state == "missing":
            raise InputError(found.detail, where=found.what, fix=found.fix)
        if found.state == "unknown":
            warn(f"{found.what}: {found.detail}. Fix: {found.fix}")


def check(google: Google, environment: Environment) -> Iterator[Check]:
    """Nothing where the environment has a network of its own."""
    if environment.network.name is None:
        return
    ranges = []
    for region in environment.regions:
        found, body = _subnetwork(google, environment, region)
        yield found
        ranges.append(str(body.get("ipCidrRange", "")))
    if not all(ranges):
        return
    if any(hosts.hosts > 1 for hosts in environment.hosts.values()):
        yield _firewall(google, environment, ranges)
    if environment.needs_docker:
        yield from (_gateway(google, environment, region) for region in environment.regions)
    if environment.nfs is not None and _host(environment) != environment.project:
        yield _services(google, environment)


def _host(environment: Environment) -> str:
    return environment.network.project or environment.project


def _subnetwork(google: Google, environment: Environment, region: str) -> tuple[Check, dict[str, Any]]:
    """What was found, and the subnetwork; {} where it cannot be used."""
    path, host, network = environment.subnetwork_path(region), _host(environment), environment.network.name
    name = path.rpartition("/")[2]
    what, of = f"subnetwork {name} in {region} of {host}", f"{name} --region={region} --project={host}"
    grant = f"gcloud compute networks subnets add-iam-policy-binding {of} --member=user:YOU"
    grant = f"its owner runs: {grant} --role=roles/compute.networkUser"

    def missing(detail: str, fix: str) -> tuple[Check, dict[str, Any]]:
        return Check("network", what, "missing", detail, fix), {}

    try:
        body = google.find("compute", path)
        held = google.call("compute", "POST", f"{path}/testIamPermissions", {"permissions": [USE]}) if body else {}
    except CloudError as error:
        if error.reason == "credentials":
            raise
        if error.reason == "permission":
            return missing("may not be read", grant)
        return Check("network", what, "unknown", error.what, error.fix or "run this again"), {}
    if body is None:
        there = f"gcloud compute networks subnets list --network={network} --project={host}"
        return missing("does not exist", f"correct network.subnetworks; `{there}` lists what exists")
    if (other := str(body.get("network", "")).rpartition("/")[2]) != network:
        return missing(f"is of the network {other}, not of {network}", "correct network.name or network.subnetworks")
    if USE not in (held.get("permissions") or ()):
        return missing(f"may not be used: {USE} is missing", grant)
    if not body.get("privateIpGoogleAccess"):
        fix = f"its owner runs: gcloud compute networks subnets update {of} --enable-private-ip-google-access"
        return missing("has no Private Google Access, so hosts would not reach the buckets", fix)
    return Check("network", what, "ok", f"of {network}, {body['ipCidrRange']}"), body


def _firewall(google: Google, environment: Environment, ranges: list[str]) -> Check:
    """Never missing: policies of the organisation and rules by tag or account may open what no rule here does."""
    host, network, among = _host(environment), environment.network.name, ",".join(ranges)
    what = f"firewall of {network} in {host}"
    fix = f"gcloud compute firewall-rules create {environment.name}-inside --network={network} --project={host}"
    fix = f"its owner runs: {fix} --direction=INGRESS --allow=all --source-ranges={among}"
    try:
        rules = [*google.pages("compute", f"projects/{host}/global/firewalls", "items")]
    except CloudError as error:
        return Check("network", what, "unknown", f"hosts have to reach each other: {error.what}", fix)
    entering = [rule for rule in rules if _enters(rule, str(network))]
    if denies := [rule["name"] for rule in entering if rule.get("denied")]:
        said = f"{denies[0]} denies something there, and the priorities of rules are not compared"
        return Check("network", what, "unknown", said, fix)
    names = [rule["name"] for rule in entering if _allows_tcp(rule)]
    sources = [ipaddress.IPv4Network(one) for rule in entering if _allows_tcp(rule) for one in _ranges(rule)]
    if all(any(ipaddress.IPv4Network(own).subnet_of(one) for one in sources) for own in ranges):
        return Check("network", what, "ok", f"{' and '.join(names)} let hosts reach each other")
    return Check("network", what, "unknown", "no rule is seen by which hosts reach each other", fix)


def _enters(rule: dict[str, Any], network: str) -> bool:
    """Whether the rule is about what comes to every machine of the network."""
    if str(rule.get("network", "")).rpartition("/")[2] != network or rule.get("disabled"):
        return False
    targets = rule.get("targetTags") or rule.get("targetServiceAccounts")
    return rule.get("direction", "INGRESS") == "INGRESS" and not targets


def _allows_tcp(rule: dict[str, Any]) -> bool:
    """All of it."""
    allowed = [one for one in rule.get("allowed") or () if one["IPProtocol"] in ("all", "tcp")]
    ports = [one.get("ports") or ["0-65535"] for one in allowed]
    return any("0-65535" in one or "1-65535" in one for one in ports)


def _ranges(rule: dict[str, Any]) -> list[str]:
    return [one for one in rule.get("sourceRanges") or () if ":" not in one]


def _gateway(google: Google, environment: Environment, region: str) -> Check:
    """Never missing: there are other ways to the internet than Cloud NAT."""
    host, network = _host(environment), environment.network.name
    what = f"internet from {network} in {region}"
    fix = f"set slice.image to one that has docker, or have a Cloud NAT made for {network} in {region} of {host}"
    try:
        for one in google.pages("compute", f"projects/{host}/regions/{region}/routers", "items"):
            if one.get("nats") and str(one.get("network", "")).rpartition("/")[2] == network:
                return Check("network", what, "ok", f"by {one['name']}")
    except CloudError as error:
        return Check("network", what, "unknown", f"hosts install docker from there: {error.what}", fix)
    return Check("network", what, "unknown", "hosts install docker from there, and no Cloud NAT is seen", fix)


def _services(google: Google, environment: Environment) -> Check:
    """Filestore in a service project needs private services access: docs.cloud.google.com/filestore/docs/shared-vpc"""
    host, network = _host(environment), environment.network.name
    what = f"private services access of {network} in {host}"
    fix = "gcloud services vpc-peerings connect --service=servicenetworking.googleapis.com --ranges=RANGE"
    fix = f"leave nfs out, or its owner runs: {fix} --network={network} --project={host}"
    try:
        body = google.call("compute", "GET", environment.network_path)
    except CloudError as error:
        return Check("network", what, "unknown", f"NFS needs it: {error.what}", fix)
    states = [str(one.get("state")) for one in body.get("peerings") or () if one.get("name") == SERVICES]
    if "ACTIVE" not in states:
        return Check("network", what, "missing", "NFS needs it, and there is none", fix)
    return Check("network", what, "ok", "there, for NFS")
