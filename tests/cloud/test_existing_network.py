"""A network that exists, looked at before an environment is put into it; against the fake cloud."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from google_cloud import compute
from google_cloud.fake import Cloud

from maskwright.cloud.environment import Environment, build_environment
from maskwright.cloud.google import permissions
from maskwright.cloud.google.rest import Google
from maskwright.cloud.provision import existing_network, queued_slice
from maskwright.cloud.provision.init import init
from maskwright.cloud.provision.variables import variables
from maskwright.cloud.record import EnvironmentRecord
from maskwright.core.errors import InputError

HOST = "projects/host-proj"
VPC = f"{HOST}/global/networks/vpc"
SUBNETWORK = f"compute/{HOST}/regions/us-east5/subnetworks/train"
LAB = """
name: lab1
project: lab-proj
zone: us-east5-b
nfs: {}
network: {name: vpc, project: host-proj, subnetworks: {us-east5: train}}
slice: {accelerator: v6e, topology: 4x4}
"""
PEERING = [{"name": "servicenetworking-googleapis-com", "state": "ACTIVE"}]


def lab(**changes: Any) -> Environment:
    return build_environment(yaml.safe_load(LAB) | changes, "lab.yaml")


@pytest.fixture
def host(cloud: Cloud) -> Cloud:
    """A host project whose network has all that hosts rely on."""
    subnetwork = {"name": "train", "network": f"x/{VPC}", "ipCidrRange": "10.8.4.0/22", "privateIpGoogleAccess": True}
    compute.make(cloud, f"{HOST}/global/networks", {"name": "vpc", "peerings": PEERING})
    compute.make(cloud, f"{HOST}/regions/us-east5/subnetworks", subnetwork)
    router = {"name": "out", "network": f"x/{VPC}", "nats": [{"name": "nat"}]}
    compute.make(cloud, f"{HOST}/regions/us-east5/routers", router)
    return cloud


def states(environment: Environment) -> list[str]:
    return [found.state for found in existing_network.check(Google("lab-proj"), environment)]


def test_a_network_that_has_everything(host: Cloud) -> None:
    assert states(lab()) == ["ok"] * 3
    assert states(lab(network={})) == []
    told = init(Google("lab-proj"), lab()).checks
    assert [one.state for one in told if one.area == "network"] == ["ok"] * 3


@pytest.mark.parametrize(
    ("key", "spoilt", "said"),
    [
        (SUBNETWORK, None, "does not exist. Fix: correct network.subnetworks; `gcloud compute networks subnets list"),
        (SUBNETWORK, {"network": "x/other"}, "is in the network other, not vpc. Fix: correct network.name"),
        (SUBNETWORK, {"privateIpGoogleAccess": False}, "update train --region=us-east5 --project=host-proj --enable-"),
        (
            f"compute/{VPC}",
            {"peerings": []},
            "NFS needs it, and it does not exist. Fix: leave nfs out, or its own",
        ),
    ],
)
def test_what_is_missing_is_refused_with_its_fix(host: Cloud, key: str, spoilt: Any, said: str) -> None:
    if spoilt is None:
        del host.resources[key]
    else:
        host.resources[key] |= spoilt
    with pytest.raises(InputError) as caught:
        existing_network.refuse(Google("lab-proj"), lab())
    assert said in str(caught.value) and caught.value.exit_code == 2


@pytest.mark.parametrize("permission", ["compute.subnetworks.get", "compute.subnetworks.use"])
def test_a_subnetwork_that_is_not_shared_with_the_user_says_the_line_that_shares_it(
    host: Cloud, permission: str
) -> None:
    host.deny(permission)
    with pytest.raises(InputError) as caught:
        existing_network.refuse(Google("lab-proj"), lab())
    grant = "gcloud compute networks subnets add-iam-policy-binding train --region=us-east5 --project=host-proj"
    assert str(caught.value).endswith(f"{grant} --member=user:YOU --role=roles/compute.networkUser")


def test_what_cannot_be_known_is_said_and_stops_nobody(host: Cloud, capfd: pytest.CaptureFixture[str]) -> None:
    host.deny("compute.routers.list", "compute.networks.get")
    existing_network.refuse(Google("lab-proj"), lab())
    said = capfd.readouterr().err
    assert "set slice.image to one that has docker" in said and "private services access" in said
    host.fault(r"compute\.subnetworks\.get", 503, times=9)
    assert states(lab()) == ["unknown"]


def test_only_what_a_host_project_has_to_have_is_looked_at(host: Cloud) -> None:
    one = {"machine_type": "g2-standard-12"}
    assert states(lab(slice=None, nfs=None, group=one)) == ["ok"]


def test_who_makes_no_network_needs_no_permission_to(cloud: Cloud) -> None:
    ours, theirs = (
        {name: used for name, used in permissions.needed(one).items() if "etworks" in name or "firewalls" in name}
        for one in (lab(network={}), lab())
    )
    assert ours["compute.networks.create"] == ["plan", "up", "down"] and len(ours) == 16
    assert theirs == {f"compute.{kind}.list": ["status", "audit"] for kind in ("networks", "subnetworks", "firewalls")}


def test_a_queued_slice_is_put_there_too(cloud: Cloud) -> None:
    environment = lab(slice={"accelerator": "v5e", "topology": "4x4"})
    values = variables(environment, EnvironmentRecord(), None)
    wanted = queued_slice.describe(environment, EnvironmentRecord(), values, {"service_account": "a"})
    assert (wanted.network, f"compute/{wanted.subnetwork}") == (VPC, SUBNETWORK)
