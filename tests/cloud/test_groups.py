"""Managed instance groups read and repaired over REST, made in the fake as Terraform makes them."""

from __future__ import annotations

from typing import Any

import pytest
from google_cloud.fake import Cloud

from maskwright.cloud.google import groups
from maskwright.cloud.google.rest import Google, new_request_id
from maskwright.core.errors import CloudError

ZONE, NAME = "us-east5-b", "lab1-slice"
TEMPLATE = {
    "name": "lab1-slice-1",
    "machine_type": "ct6e-standard-4t",
    "labels": {"maskwright-environment": "lab1"},
    "metadata": {"maskwright-kind": "slice"},
    "scheduling": [{"provisioning_model": "SPOT", "instance_termination_action": "DELETE", "preemptible": True}],
    "disk": [{"source_image": "projects/x/global/images/family/y", "boot": True, "auto_delete": True}],
    "network_interface": [{"subnetwork": "projects/lab-proj/regions/us-east5/subnetworks/lab1-us-east5"}],
    "service_account": [{"email": "lab1-train@lab-proj.iam.gserviceaccount.com", "scopes": ["cloud-platform"]}],
}
GROUP = {
    "name": NAME,
    "zone": ZONE,
    "base_instance_name": NAME,
    "target_size": 4,
    "version": [{"instance_template": "projects/lab-proj/global/instanceTemplates/lab1-slice-1"}],
    "instance_lifecycle_policy": [{"default_action_on_failure": "DO_NOTHING"}],
}


@pytest.fixture
def google(cloud: Cloud) -> Google:
    cloud.tell_terraform("create", "google_compute_instance_template", "t", TEMPLATE)
    cloud.tell_terraform("create", "google_compute_instance_group_manager", "g", GROUP)
    return Google("lab-proj")


def group(google: Google) -> groups.InstanceGroup:
    found = groups.describe(google, ZONE, NAME)
    assert found is not None
    return found


def resize(google: Google, size: int) -> None:
    """As Terraform does."""
    path = f"projects/lab-proj/zones/{ZONE}/instanceGroupManagers/{NAME}/resize"
    google.wait("compute", google.call("compute", "POST", path, requestId=new_request_id(), size=size), seconds=5)


def is_whole(found: groups.InstanceGroup) -> bool:
    return found.target == len(found.members) and all(member.running for member in found.members)


def settle(google: Google, tries: int = 6) -> groups.InstanceGroup:
    for _ in range(tries):
        found = group(google)
    return found


def instances(cloud: Cloud) -> dict[str, dict[str, Any]]:
    return {key.rsplit("/", 1)[1]: one for key, one in cloud.resources.items() if "/instances/" in key}


def test_hosts_come_and_the_group_is_whole(cloud: Cloud, google: Google) -> None:
    cloud.slow("compute.instances.start", 3)
    resize(google, 0)
    settle(google)
    resize(google, 4)
    first = group(google)
    assert not is_whole(first) and not first.stable and not first.dead
    assert all(member.action not in groups.KEEPING for member in first.members)
    found = settle(google)
    assert is_whole(found) and found.stable and len(found.members) == 4
    assert {one["labels"]["maskwright-environment"] for one in instances(cloud).values()} == {"lab1"}
    listed = google.pages(
        "compute", "projects/lab-proj/aggregated/instances", "items", filter="labels.maskwright-environment=lab1"
    )
    assert sorted(one["name"] for one in listed) == [member.name for member in found.members]


def test_preempted_hosts_are_dead_though_the_group_is_stable(cloud: Cloud, google: Google) -> None:
    whole = settle(google)
    cloud.preempt(NAME, hosts=[1, 3])
    found = settle(google)
    assert found.stable and not is_whole(found)
    assert [one.name for one in found.dead] == [whole.members[1].name, whole.members[3].name]
    groups.recreate(google, ZONE, NAME, [one.name for one in found.dead], seconds=5)
    assert is_whole(settle(google))
    assert [one.name for one in group(google).members] == [one.name for one in whole.members]


def test_a_group_that_repairs_itself_is_left_to_it(cloud: Cloud, google: Google) -> None:
    settle(google)
    state = {key: value for key, value in GROUP.items() if key != "instance_lifecycle_policy"}
    del cloud.resources[f"compute/projects/lab-proj/zones/{ZONE}/instanceGroupManagers/{NAME}"][
        "instanceLifecyclePolicy"
    ]
    cloud.tell_terraform("update", "google_compute_instance_group_manager", "g", state)
    cloud.slow("compute.instances.start", 5)
    cloud.preempt(NAME)
    found = group(google)
    assert not found.dead and all(member.action == "RECREATING" for member in found.members)
    assert is_whole(settle(google, 8))


def test_a_stockout_is_told_from_everything_else(cloud: Cloud, google: Google) -> None:
    settle(google)
    cloud.preempt(NAME)
    cloud.stockout(ZONE)
    groups.recreate(google, ZONE, NAME, [one.name for one in settle(google).dead], seconds=5)
    found = settle(google)
    assert not is_whole(found)
    assert all("does not have enough resources" in member.errors[0].message for member in found.members)
    assert found.members[0].errors[0].message.startswith("ZONE_RESOURCE_POOL_EXHAUSTED: The zone")
    cloud.stockout(ZONE, False)
    assert is_whole(settle(google))


def test_a_disk_that_is_not_there_is_no_stockout(cloud: Cloud, google: Google) -> None:
    settle(google)
    resize(google, 0)
    settle(google)
    template = cloud.resources["compute/projects/lab-proj/global/instanceTemplates/lab1-slice-1"]
    template["properties"]["disks"].append({"source": "lab1-data-1", "mode": "READ_ONLY", "deviceName": "shared-pd"})
    resize(google, 1)
    found = settle(google)
    assert found.members[0].errors[0].message.startswith("RESOURCE_NOT_FOUND")


def test_hosts_can_all_be_gone(cloud: Cloud, google: Google) -> None:
    settle(google)
    assert groups.delete(google, ZONE, NAME, seconds=5) is True
    assert not instances(cloud) and groups.describe(google, ZONE, NAME) is None
    assert groups.delete(google, ZONE, NAME, seconds=5) is False


def test_what_goes_wrong_on_the_way(cloud: Cloud, google: Google) -> None:
    whole = settle(google)
    cloud.slow(r"compute\.instanceGroupManagers\..*", 4)
    cloud.fault(r"compute\.instanceGroupManagers\.listManagedInstances", 503, "UNAVAILABLE", "try again", times=2)
    cloud.fault(r"compute\.instanceGroupManagers\.recreateInstances", 0, lost=True)
    cloud.fault(r"compute\.zoneOperations\.get", 502, "", "bad gateway")
    groups.recreate(google, ZONE, NAME, [whole.members[0].name], seconds=5)
    assert len(cloud.calls(r"compute\.instanceGroupManagers\.recreateInstances")) == 2
    assert is_whole(settle(google))
    with pytest.raises(CloudError, match="not a member") as caught:
        groups.recreate(google, ZONE, NAME, ["someone-else"], seconds=5)
    assert caught.value.reason == "other"
    cloud.deny("compute.instanceGroupManagers.resize")
    with pytest.raises(CloudError, match=r"compute.instanceGroupManagers.resize is missing") as caught:
        resize(google, 0)
    assert caught.value.reason == "permission"


def test_an_operation_that_ends_in_a_used_up_quota(cloud: Cloud, google: Google) -> None:
    operation = {
        "status": "DONE",
        "targetLink": f"https://www.googleapis.com/compute/v1/projects/lab-proj/zones/{ZONE}/instanceGroupManagers/{NAME}",
        "error": {"errors": [{"code": "QUOTA_EXCEEDED", "message": "Quota 'TPUS_V6E' exceeded. Limit: 0 in zone."}]},
    }
    with pytest.raises(CloudError, match="TPUS_V6E") as caught:
        google.wait("compute", operation, seconds=1)
    assert caught.value.reason == "quota" and f"instanceGroupManagers/{NAME}" in str(caught.value)
