"""The REST client against the fake: what Google refuses is said in the user's words, what passes is waited out, and
nothing is done twice."""

import re
import socket
import threading
import time

import pytest
from google_cloud.fake import TOKEN

from maskwright.cloud.google import errors, rest
from maskwright.cloud.google.rest import Google
from maskwright.core.errors import CloudError, InputError

P = "projects/lab-proj"
DISKS = f"{P}/zones/us-east5-b/disks"
VERTEX_JOBS = f"{P}/locations/us-central1/customJobs"
SHARES = f"{P}/locations/us-east5-b/instances"


@pytest.fixture
def google(cloud):
    return Google("lab-proj")


def refused(google, *call, **query):
    with pytest.raises(CloudError) as caught:
        google.call(*call, **query)
    assert caught.value.fix and "\n" not in str(caught.value)
    assert TOKEN not in str(caught.value)
    return caught.value


def make_bucket(google, name="bucket-1"):
    return google.call("storage", "POST", "b", {"name": name}, project="lab-proj")


# ---- what works ----------------------------------------------------------------------------------------------------


def test_all_pages_are_read_and_what_is_not_there_is_none(cloud, google):
    for number in range(7):
        cloud.resources[f"compute/{DISKS}/d{number}"] = {"name": f"d{number}", "kind": "compute#disk"}
    found = list(google.pages("compute", DISKS, "items", maxResults=3))
    assert [one["name"] for one in found] == [f"d{number}" for number in range(7)]
    assert len(cloud.calls("compute.disks.list")) == 3
    assert google.find("compute", f"{DISKS}/d7") is None


def test_slow_operations_are_waited_for_and_waiting_ends(cloud, google):
    def enable():
        cloud.disable_api("file")
        call = ("serviceusage", "POST", f"{P}/services:batchEnable", {"serviceIds": ["file.googleapis.com"]})
        return google.call(*call)

    cloud.slow("serviceusage.*", 4)
    assert google.wait("serviceusage", enable(), seconds=10)["services"] and not cloud.disabled
    cloud.slow("serviceusage.*", 10_000)
    begun = time.monotonic()
    with pytest.raises(CloudError, match=r"operations/.*: is still running after 0 s") as caught:
        google.wait("serviceusage", enable(), seconds=0.2)
    assert caught.value.reason == "other" and time.monotonic() - begun < 60


def test_addresses(monkeypatch, google):
    for name in ("COMPUTE", "FILE", "AIPLATFORM"):
        monkeypatch.delenv(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}")
    assert google.address("compute") == "https://compute.googleapis.com/compute/v1"
    assert google.address("file") == "https://file.googleapis.com/v1"
    assert google.address("aiplatform", VERTEX_JOBS) == "https://us-central1-aiplatform.googleapis.com/v1"
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_FILE", "https://file.example.com/")
    assert google.address("file") == "https://file.example.com/v1"


@pytest.mark.parametrize(
    "address",
    ["http://example.com/", "http://127.0.0.1.example.com/", "ftp://127.0.0.1/", "http://127.0.0.1@example.com/"],
)
def test_the_token_goes_nowhere_in_the_clear(address, monkeypatch, google):
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_FILE", address)
    with pytest.raises(InputError, match="in the clear"):
        google.call("file", "GET", SHARES)


# ---- what Google refuses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "verb", "path", "permission", "role"),
    [
        ("compute", "POST", DISKS, "compute.disks.create", "roles/compute.storageAdmin"),
        ("storage", "POST", "b", "storage.buckets.create", "roles/storage.admin"),
        ("aiplatform", "GET", VERTEX_JOBS, "aiplatform.customJobs.list", "roles/aiplatform.user"),
        ("file", "GET", SHARES, "file.instances.list", "roles/file.editor"),
    ],
)
def test_a_missing_permission_is_named_with_its_role(api, verb, path, permission, role, cloud, google):
    cloud.deny(permission)
    query = {"project": "lab-proj"} if api == "storage" else {}
    error = refused(google, api, verb, path, {} if verb == "POST" else None, **query)
    assert error.reason == "permission" and error.exit_code == 1
    assert f"permission {permission} is missing in project lab-proj" in str(error)
    assert f"add-iam-policy-binding lab-proj --member=user:YOU --role={role}" in str(error)
    assert len(cloud.journal) == 1, "a refusal is not tried again"


def test_a_used_up_quota_is_not_waited_for(cloud, google):
    cloud.fault(r"compute\.disks\.list", 403, "", "Quota 'NVIDIA_L4_GPUS' exceeded.  Limit: 0.0 in region r.", times=9)
    error = refused(google, "compute", "GET", DISKS)
    assert error.reason == "quota" and "filter for NVIDIA_L4_GPUS" in str(error)
    assert "https://console.cloud.google.com/iam-admin/quotas?project=lab-proj" in str(error)
    assert len(cloud.journal) == 1


def test_missing_existing_and_wrong(cloud, google):
    assert refused(google, "compute", "GET", f"{DISKS}/d9").reason == "missing"
    make_bucket(google)
    call = ("storage", "POST", "b")
    assert refused(google, *call, {"name": "bucket-1"}, project="lab-proj").reason == "exists"
    assert refused(google, *call, {"name": "bucket-2", "nam": "1"}, project="lab-proj").reason == "other"


def test_a_token_that_google_does_not_take(monkeypatch, cloud):
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "another-token-that-is-old")
    with pytest.raises(CloudError) as caught:
        Google("lab-proj").call("compute", "GET", DISKS)
    assert caught.value.reason == "credentials" and "gcloud auth application-default login" in str(caught.value)
    assert "another-token" not in str(caught.value)


def test_no_credentials_at_all(monkeypatch, cloud, tmp_path):
    monkeypatch.delenv("GOOGLE_OAUTH_ACCESS_TOKEN")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(CloudError, match="no usable Google credentials") as caught:
        Google("lab-proj").call("compute", "GET", DISKS)
    assert caught.value.reason == "credentials" and not cloud.journal


def test_a_token_in_an_error_of_google_is_hidden(cloud, google, monkeypatch):
    """Also where the environment no longer tells what it is."""
    google.call("compute", "GET", DISKS)
    monkeypatch.delenv("GOOGLE_OAUTH_ACCESS_TOKEN")
    monkeypatch.delenv("CLOUDSDK_AUTH_ACCESS_TOKEN")
    cloud.fault(r"compute\.disks\.list", 400, "", f"I do not like {TOKEN}")
    assert "I do not like ***" in str(refused(google, "compute", "GET", DISKS))


# ---- what passes ---------------------------------------------------------------------------------------------------


def test_a_service_that_stumbles_is_asked_again_and_one_that_stays_down_is_said(cloud, google):
    for code in (500, 502, 503):
        cloud.fault(r"compute\.disks\.list", code, "", "Backend error")
    assert google.call("compute", "GET", DISKS)["items"] == []
    assert len(cloud.journal) == 4
    cloud.journal.clear()
    cloud.fault(r"compute\.disks\.list", 503, "UNAVAILABLE", "The service is currently unavailable.", times=99)
    assert "Google's service fails (status 503)" in str(refused(google, "compute", "GET", DISKS))
    assert len(cloud.journal) == rest.TRIES


@pytest.mark.parametrize(
    ("code", "message", "reason"),
    [
        (429, "Quota exceeded for quota metric 'Read requests' and limit 'Read requests per minute' of service", ""),
        (403, "Rate Limit Exceeded", "rateLimitExceeded"),
    ],
)
def test_too_many_requests_are_waited_out_even_for_what_may_not_be_repeated(code, message, reason, cloud, google):
    """A refused one did nothing."""
    cloud.fault(r"storage\.buckets\.insert", code, "", message, times=2, reason=reason)
    make_bucket(google)
    assert len(cloud.calls("storage.buckets.insert")) == 3


def test_back_off_doubles_and_is_bounded(monkeypatch, cloud, google):
    pauses = []
    monkeypatch.setattr(rest, "FIRST_PAUSE_SECONDS", 1.0)
    monkeypatch.setattr(rest.time, "sleep", pauses.append)
    cloud.fault(r"compute\.disks\.list", 0, times=99)
    assert "cannot be reached after 6 tries" in str(refused(google, "compute", "GET", DISKS))
    assert [2**n <= pause <= 1.5 * 2**n for n, pause in enumerate(pauses)] == [True] * (rest.TRIES - 1)
    assert (
        rest._pause(30, None) <= 1.5 * rest.LONGEST_PAUSE_SECONDS
        and rest._pause(0, "9999") == rest.LONGEST_PAUSE_SECONDS
    )


def test_what_may_have_been_done_is_not_repeated(cloud, google):
    cloud.fault(r"storage\.buckets\.insert", 503, "UNAVAILABLE", "try again")
    call = ("storage", "POST", "b", {"name": "bucket-1"})
    assert "status 503" in str(refused(google, *call, project="lab-proj"))
    assert len(cloud.journal) == 1
    cloud.fault(r"storage\.buckets\.insert", 0, lost=True)
    error = refused(google, *call, project="lab-proj")
    assert "may or may not be done" in str(error) and "storage/b/bucket-1" in cloud.resources


def test_a_post_that_only_reads_is_repeated(cloud, google):
    cloud.fault(r"logging\.entries\.list", 503, "UNAVAILABLE", "try again", times=2)
    body = {"resourceNames": [P], "filter": 'resource.type="ml_job"'}
    assert google.call("logging", "POST", "entries:list", body) == {"entries": []}


def test_an_answer_that_is_not_googles(monkeypatch, google):
    """A proxy's page, and one that sends elsewhere: the token does not follow."""
    answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\n<p/>"]
    answers += [b"HTTP/1.1 302 Found\r\nLocation: http://192.0.2.1/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"]
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            for answer in answers:
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_FILE", f"http://127.0.0.1:{server.getsockname()[1]}/")
        assert "not JSON" in str(refused(google, "file", "GET", SHARES))
        assert "status 302" in str(refused(google, "file", "GET", SHARES))
        thread.join()


# ---- the words -----------------------------------------------------------------------------------------------------

USE = "Caller does not have required permission to use project lab, with the serviceusage.services.use permission, …"
VERTEX = "aiplatform.googleapis.com/custom_model_training_preemptible_v5e"
TPU = "TPUV5sLitepodServingPerProjectPerZoneForTPUAPI"


@pytest.mark.parametrize(
    ("code", "message", "mark", "reason", "fix"),
    [
        (400, "Billing account for project '1' is not found. Billing must be enabled …", "", "disabled", "link one"),
        (403, "The billing account for the owning project is disabled in state absent", "", "disabled", "link one"),
        (403, "The project to be billed is associated with an absent billing account.", "", "disabled", "link one"),
        (403, "Permission denied on resource project lab.", "CONSUMER_INVALID", "permission", "check `project:`"),
        (403, "Project 'lab' not found or deleted.", "", "permission", "check `project:`"),
        (403, "Request had insufficient authentication scopes.", "", "permission", "scope cloud-platform"),
        (403, USE, "USER_PROJECT_DENIED", "permission", "--role=roles/serviceusage.serviceUsageConsumer"),
        (403, "Required 'compute.disks.create' permission for 'x'", "", "permission", "roles/compute.storageAdmin"),
        (403, "me@x.com does not have storage.buckets.get access to the bucket.", "", "permission", "storage.admin"),
        (403, "The tpu.googleapis.com API requires a quota project, not set.", "", "permission", "quota-project"),
        (403, "Compute Engine API has not been used in project 1 before or it is disabled.", "", "disabled", "enable"),
        (403, "Quota 'CPUS' exceeded. Limit: 24.0 in region us-east5.", "", "quota", "filter for CPUS"),
        (429, "Quota limit 'X' has been exceeded. Limit: 0 in zone z.", "RATE_LIMIT_EXCEEDED", "quota", "filter for X"),
        (429, "Quota exceeded for … and limit 'Builds per day'", "RATE_LIMIT_EXCEEDED", "quota", "request more"),
        (429, f"Quota limit '{TPU}' has been exceeded. Limit: 16 in zone z.", "", "quota", f"filter for {TPU}"),
        (429, f"The following quota metrics exceed quota limits: {VERTEX}", "", "quota", f"filter for {VERTEX}"),
        (400, "Specified reservation 'r' does not have available resources for it.", "", "capacity", "try again later"),
        (429, "Resources are insufficient in region: us-central1. Please try another.", "", "capacity", "another zone"),
        (503, "A g2-standard-12 VM instance is currently unavailable in the us-east5-b zone.", "", "capacity", "zone"),
        (429, "Insufficient reserved capacity. Contact customer support to increase it.", "", "capacity", ""),
        (429, "Too many", "", "quota", "in a few minutes"),
        (409, "The bucket you tried to delete is not empty.", "", "other", "correct what the message names"),
        (503, "The service is unavailable.", "", "failed", "in a few minutes"),
        (412, "At least one of the pre-conditions you specified did not hold.", "", "other", ""),
    ],
)  # fmt: skip
def test_what_google_says_in_its_own_words(code, message, mark, reason, fix):
    body = {"error": {"code": code, "message": message, "details": [{"reason": mark}]}}
    error = errors.cloud_error(errors.of_answer(code, body, ""), project="lab-proj", api="compute", where="here")
    assert (error.reason, fix in str(error)) == (reason, True), str(error)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ({"code": 8, "message": 'There is no more capacity in the zone "us-east5-b"'}, "capacity"),
        ({"code": 8, "message": "Quota limit 'X' has been exceeded."}, "quota"),
        ({"code": 7, "message": "Permission 'tpu.nodes.create' denied"}, "permission"),
        ({"code": 5, "message": "nothing"}, "missing"),
    ],
)
def test_reasons_of_operations(error, reason):
    found = errors.of_operation({"error": error})
    assert found is not None and found.reason == reason


def test_each_api_of_the_client_is_one_of_googles():
    from google_cloud.judge import api

    for name, version in rest.VERSIONS.items():
        document = api(name, version.split("/")[-1])
        assert document is not None, name
        assert document.prefix.rstrip("/") in ("", version) and re.fullmatch(r"[a-z]+", name)
