"""Check an existing network for what hosts need, before anything is created.

Terraform neither reads nor changes that network, so nothing else would notice before machines cost money.
"""

from __future__ import annotations

from collections.abc import Iterator

from maskwright.cloud.environment import Environment
from maskwright.cloud.google.rest import Google
from maskwright.cloud.provision.checks import Check
from maskwright.core.console import warn
from maskwright.core.errors import CloudError, InputError

USE = "compute.subnetworks.use"
SERVICES = "servicenetworking-googleapis-com"
"""Name of the peering of private services access."""


def refuse(google: Google, environment: Environment) -> None:
    """Raise `InputError` for the first missing requirement. Warn of unknown ones."""
    for result in check(google, environment):
        if result.state == "missing":
            raise InputError(result.detail, where=result.what, fix=result.fix)
        if result.state == "unknown":
            warn(f"{result.what}: {result.detail}. Fix: {result.fix}")


def check(google: Google, environment: Environment) -> Iterator[Check]:
    """Empty if the environment creates its own network."""
    if environment.network.name is None:
        return
    subnetworks = [_subnetwork(google, environment, region) for region in environment.regions]
    yield from subnetworks
    if any(subnetwork.state != "ok" for subnetwork in subnetworks):
        return
    if environment.needs_docker:
        yield from (_gateway(google, environment, region) for region in environment.regions)
    if environment.nfs is not None and _host(environment) != environment.project:
        yield _services(google, environment)


def _host(environment: Environment) -> str:
    return environment.network.project or environment.project


def _subnetwork(google: Google, environment: Environment, region: str) -> Check:
    path, host, network = environment.subnetwork_path(region), _host(environment), environment.network.name
    name = path.rpartition("/")[2]
    what, options = f"subnetwork {name} in {region} of {host}", f"{name} --region={region} --project={host}"
    grant = f"gcloud compute networks subnets add-iam-policy-binding {options} --member=user:YOU"
    grant = f"its owner runs: {grant} --role=roles/compute.networkUser"

    def missing(detail: str, fix: str) -> Check:
        return Check("network", what, "missing", detail, fix)

    try:
        body = google.find("compute", path)
        held = google.call("compute", "POST", f"{path}/testIamPermissions", {"permissions": [USE]}) if body else {}
    except CloudError as error:
        if error.reason == "credentials":
            raise
        if error.reason == "permission":
            return missing("may not be read", grant)
        return Check("network", what, "unknown", error.what, error.fix or "run this again")
    if body is None:
        command = f"gcloud compute networks subnets list --network={network} --project={host}"
        return missing("does not exist", f"correct network.subnetworks; `{command}` lists what exists")
    if (other := str(body.get("network", "")).rpartition("/")[2]) != network:
        return missing(f"is in the network {other}, not {network}", "correct network.name or network.subnetworks")
    if USE not in (held.get("permissions") or ()):
        return missing(f"may not be used: {USE} is missing", grant)
    if not body.get("privateIpGoogleAccess"):
        fix = f"its owner runs: gcloud compute networks subnets update {options} --enable-private-ip-google-access"
        return missing("has no Private Google Access, so hosts cannot reach the buckets", fix)
    return Check("network", what, "ok", f"in {network}, {body['ipCidrRange']}")


def _gateway(google: Google, environment: Environment, region: str) -> Check:
    """ok or unknown, never missing: Cloud NAT is not the only way to the internet."""
    host, network = _host(environment), environment.network.name
    what = f"internet from {network} in {region}"
    fix = f"set slice.image to one that has docker, or create a Cloud NAT for {network} in {region} of {host}"
    try:
        for router in google.pages("compute", f"projects/{host}/regions/{region}/routers", "items"):
            if router.get("nats") and str(router.get("network", "")).rpartition("/")[2] == network:
                return Check("network", what, "ok", f"by {router['name']}")
    except CloudError as error:
        return Check("network", what, "unknown", f"hosts install docker from the internet: {error.what}", fix)
    return Check("network", what, "unknown", "hosts install docker from the internet, and no Cloud NAT was found", fix)


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
    states = [str(peering.get("state")) for peering in body.get("peerings") or () if peering.get("name") == SERVICES]
    if "ACTIVE" not in states:
        return Check("network", what, "missing", "NFS needs it, and it does not exist", fix)
    return Check("network", what, "ok", "exists, for NFS")
