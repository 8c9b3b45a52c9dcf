"""Queued resources of the TPU API, against the fake: asked for once, waited for, lost and taken away."""

from __future__ import annotations

from dataclasses import replace

import pytest
from google_cloud.fake import Cloud

from maskwright.cloud.google import queued_resource
from maskwright.cloud.google.queued_resource import QueuedResource, Wanted, create_if_missing, delete, describe
from maskwright.cloud.google.rest import Google
from maskwright.core.errors import CloudError

ZONE, NAME = "us-east5-b", "lab1-slice"
PLACE = f"projects/lab-proj/locations/{ZONE}"
QUEUED, NODE = f"tpu/{PLACE}/queuedResources/{NAME}", f"tpu/{PLACE}/nodes/{NAME}"
DISK = f"projects/lab-proj/zones/{ZONE}/disks/lab1-data-1"
WANTED = Wanted(
    name=NAME,
    zone=ZONE,
    accelerator_type="v5litepod-16",
    runtime_version="v2-alpha-tpuv5-lite",
    model="SPOT",
    network="projects/lab-proj/global/networks/lab1-net",
    subnetwork="projects/lab-proj/regions/us-east5/subnetworks/lab1-us-east5",
    service_account="lab1-train@lab-proj.iam.gserviceaccount.com",
    metadata={"startup-script": "#!/bin/sh\ntrue\n", "maskwright-environment": "lab1"},
    labels={"maskwright-environment": "lab1"},
)


@pytest.fixture
def google(cloud: Cloud) -> Google:
    return Google("lab-proj")


def settled(google: Google) -> QueuedResource:
    """What Google's queue has come to."""
    for _ in range(20):
        found = describe(google, ZONE, NAME)
        assert found is not None
        if found.phase != "waiting":
            break
    return found


def test_a_slice_is_asked_for_and_comes(cloud: Cloud, google: Google) -> None:
    made = create_if_missing(google, WANTED)
    assert made.phase == "waiting"
    ready = settled(google)
    assert ready.state == "ACTIVE" and [host.state for host in ready.hosts] == ["READY"] * 4
    sent = cloud.calls("tpu.projects.locations.queuedResources.create")[0]["body"]
    node = sent["tpu"]["nodeSpec"][0]["node"]
    assert sent["spot"] == {} and "guaranteed" not in sent and "queueingPolicy" not in sent
    assert node["networkConfig"]["enableExternalIps"] is False
    assert node["serviceAccount"] == {"email": WANTED.service_account, "scope": [queued_resource.SCOPE]}
    assert node["labels"] == {"maskwright-environment": "lab1"} and node["metadata"] == WANTED.metadata
    assert not [end for end in cloud.resources[NODE]["networkEndpoints"] if "accessConfig" in end]


def test_asking_again_changes_nothing(cloud: Cloud, google: Google) -> None:
    create_if_missing(google, WANTED)
    settled(google)
    assert create_if_missing(google, WANTED).phase == "ready"
    assert len(cloud.calls(r"tpu\..*\.create")) == 1


def test_all_that_can_be_wished_for(cloud: Cloud, google: Google) -> None:
    body = {"name": "lab1-data-1", "sizeGb": "10", "type": f"zones/{ZONE}/diskTypes/hyperdisk-ml"}
    google.call("compute", "POST", f"projects/lab-proj/zones/{ZONE}/disks", body)
    wished = replace(WANTED, model="RESERVATION_BOUND", reservation="res-1", data_disk=DISK)
    create_if_missing(google, wished)
    sent = cloud.calls("tpu.projects.locations.queuedResources.create")[0]["body"]
    assert sent["reservationName"] == f"{PLACE}/reservations/res-1" and "spot" not in sent
    assert sent["tpu"]["nodeSpec"][0]["node"]["dataDisks"] == [{"sourceDisk": DISK, "mode": "READ_ONLY"}]
    assert create_if_missing(google, wished).phase == "ready"  # as it was asked for, and meanwhile granted


def test_what_differs_is_said(cloud: Cloud, google: Google) -> None:
    create_if_missing(google, WANTED)
    other = replace(WANTED, accelerator_type="v5litepod-32", model="STANDARD", metadata={"startup-script": "x" * 99})
    with pytest.raises(CloudError) as caught:
        create_if_missing(google, other)
    assert caught.value.reason == "exists"
    assert "accelerator type is v5litepod-16, wanted v5litepod-32" in str(caught.value)
    assert "provisioning model is SPOT, wanted STANDARD" in str(caught.value)
    assert f"{'x' * 30}… (99 characters)" in str(caught.value) and "env down --only slice" in str(caught.value)
    assert QUEUED in cloud.resources


def test_a_project_named_by_number_is_no_difference(cloud: Cloud, google: Google) -> None:
    create_if_missing(google, WANTED)
    node = cloud.resources[QUEUED]["tpu"]["nodeSpec"][0]["node"]
    node["networkConfig"]["subnetwork"] = "projects/123456789012/regions/us-east5/subnetworks/lab1-us-east5"
    node["metadata"]["tpu-env"] = "set by Google"
    assert create_if_missing(google, WANTED).phase == "ready"


def test_someone_quicker_is_no_error(cloud: Cloud, google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between looking and asking, another process made it."""
    create_if_missing(google, WANTED)
    first = [None]
    monkeypatch.setattr(queued_resource, "describe", lambda *a: first.pop() if first else describe(*a))
    assert create_if_missing(google, WANTED).phase == "ready"
    assert [one["code"] for one in cloud.calls(r"tpu\..*queuedResources\.create")] == [200, 409]


@pytest.mark.parametrize("after", [True, False])
def test_an_answer_that_was_lost_asks_for_nothing_twice(after: bool, cloud: Cloud, google: Google) -> None:
    cloud.fault(r"tpu\..*queuedResources\.create", 0, lost=after)
    create_if_missing(google, WANTED)
    assert [key for key in cloud.resources if "/queuedResources/" in key] == [QUEUED]
    assert len(cloud.calls(r"tpu\..*queuedResources\.create")) == 2


def test_a_lost_answer_to_taking_it_away_is_no_other_answer(cloud: Cloud, google: Google) -> None:
    create_if_missing(google, WANTED)
    cloud.polls = 0  # it is gone when it is asked for again
    cloud.fault(r"tpu\..*queuedResources\.delete", 0, lost=True)
    assert delete(google, ZONE, NAME)
    assert not [key for key in cloud.resources if key.startswith("tpu/")]


def test_without_machines_it_waits_and_says_so(cloud: Cloud, google: Google) -> None:
    cloud.stockout(ZONE)
    create_if_missing(google, WANTED)
    assert settled(google).state == "WAITING_FOR_RESOURCES"
    cloud.stockout(ZONE, False)
    assert settled(google).phase == "ready"


def test_a_request_that_failed_says_why_and_is_made_again(cloud: Cloud, google: Google) -> None:
    error = {"code": 8, "message": 'There is no more capacity in the zone "us-east5-b"'}
    cloud.script("queuedResources", [{"state": "PROVISIONING"}, {"state": "FAILED", "failedData": {"error": error}}])
    create_if_missing(google, WANTED)
    found = settled(google)
    assert found.phase == "lost" and "There is no more capacity" in found.trouble
    cloud.scripts.clear()
    assert create_if_missing(google, WANTED).phase == "waiting"
    assert settled(google).phase == "ready"
    assert len(cloud.calls(r"tpu\..*queuedResources\.delete")) == 1


def test_preempted_machines_are_lost_and_asked_for_again(cloud: Cloud, google: Google) -> None:
    create_if_missing(google, WANTED)
    settled(google)
    cloud.preempt(NAME)
    found = describe(google, ZONE, NAME)
    assert found and found.phase == "lost" and "by Google" in found.trouble
    create_if_missing(google, WANTED)
    assert settled(google).phase == "ready"
    assert [key for key in cloud.resources if key.startswith("tpu/")] == [QUEUED, NODE]


def test_a_node_that_was_taken_counts_before_its_request_says_so(cloud: Cloud, google: Google) -> None:
    create_if_missing(google, WANTED)
    settled(google)
    cloud.resources[NODE]["state"] = "PREEMPTED"
    found = describe(google, ZONE, NAME)
    assert found and found.state == "ACTIVE" and found.phase == "lost" and found.trouble == "its node is PREEMPTED"


@pytest.mark.parametrize(
    ("code", "message", "reason"),
    [
        (403, "Permission 'tpu.queuedResources.create' denied on resource", "permission"),
        (429, "Quota limit 'TPUV5sPreemptibleLitepodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0", "quota"),
    ],
)
def test_refusals_keep_their_reason(code: int, message: str, reason: str, cloud: Cloud, google: Google) -> None:
    cloud.fault(r"tpu\..*queuedResources\.create", code, "", message)
    with pytest.raises(CloudError) as caught:
        create_if_missing(google, WANTED)
    assert caught.value.reason == reason and not cloud.resources


def test_taking_it_away_takes_its_machines_and_can_be_repeated(cloud: Cloud, google: Google) -> None:
    create_if_missing(google, WANTED)
    settled(google)
    cloud.slow(r"tpu\..*delete", 5)
    cloud.fault(r"tpu\..*queuedResources\.delete", 0, lost=True)
    cloud.fault(r"tpu\..*operations\.get", 503, "UNAVAILABLE", "try again", times=2)
    assert delete(google, ZONE, NAME) is True
    assert not [key for key in cloud.resources if key.startswith("tpu/")]
    assert delete(google, ZONE, NAME) is False
    assert describe(google, ZONE, NAME) is None


def test_a_node_that_outlived_its_request_is_taken_away_too(cloud: Cloud, google: Google) -> None:
    create_if_missing(google, WANTED)
    settled(google)
    del cloud.resources[QUEUED]
    assert delete(google, ZONE, NAME) is True and NODE not in cloud.resources


def test_the_fake_wants_force_as_google_does(cloud: Cloud, google: Google) -> None:
    create_if_missing(google, WANTED)
    settled(google)
    with pytest.raises(CloudError, match="use force"):
        google.call("tpu", "DELETE", QUEUED.removeprefix("tpu/"))
    assert NODE in cloud.resources
