"""`env init` on the fake cloud: it makes what is missing, names what it cannot make, and runs twice without harm."""

import json

import pytest
import yaml

from maskwright.cloud.provision import init as init_module

LAB = {
    "name": "lab1",
    "project": "lab-proj",
    "zone": "us-east5-b",
    "group": {"machine_type": "g2-standard-12", "size": 2},
}
SLICE = {"accelerator": "v6e", "topology": "4x4", "provisioning_model": "SPOT"}
STATE = "storage/b/lab-proj-maskwright-state"


@pytest.fixture
def init(cloud, cli, tmp_path):
    def call(*words, **changes):
        path = tmp_path / "lab.yaml"
        path.write_text(yaml.safe_dump({key: value for key, value in (LAB | changes).items() if value}))
        return cli("env", "init", path, *words)

    return call


def lines(result, area, state):
    start = f"{area:<12} {state:<8} "
    return [line.removeprefix(start) for line in result.out.splitlines() if line.startswith(start)]


def missing(result):
    return [line for line in result.out.splitlines() if line[13:20] == "missing"]


# ---- APIs and bucket -----------------------------------------------------------------------------------------------


def test_a_new_project_gets_its_apis_and_its_bucket_and_a_second_time_changes_nothing(cloud, init, monkeypatch):
    monkeypatch.setattr(init_module, "SETTLE_POLL_SECONDS", 0.01)
    late = "Compute Engine API has not been used in project 1 before or it is disabled."
    cloud.fault("compute.projects.get", 403, "PERMISSION_DENIED", late, times=3)  # as Google does for a while
    cloud.disable_api("compute")
    cloud.disable_api("file")
    cloud.slow("serviceusage.services.batchEnable", 3)
    result = init(nfs={"tier": "BASIC_HDD"})
    assert result.code == 0, result.out + result.err
    (said,) = lines(result, "apis", "ok")
    assert "compute.googleapis.com" in said and "file.googleapis.com" in said and not cloud.disabled
    made = cloud.resources[STATE]
    assert made["versioning"] == {"enabled": True} and made["location"] == "US-EAST5"
    assert made["iamConfiguration"]["publicAccessPrevention"] == "enforced"
    assert made["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"] is True
    assert made["labels"] == {"maskwright": "state"}
    before = len(cloud.journal)
    again = init(nfs={"tier": "BASIC_HDD"})
    assert again.code == 0 and lines(again, "bucket", "ok") == [
        "gs://lab-proj-maskwright-state: exists: versioned, private"
    ]
    changes = [one["method"] for one in cloud.journal[before:] if one["verb"] not in ("GET", "HEAD")]
    assert not changes


def test_only_apis_that_the_environment_needs_are_switched_on(cloud, init):
    for name in ("file", "container"):
        cloud.disable_api(name)
    assert init().code == 0
    assert cloud.disabled == {"file"}
    assert init(nfs={"tier": "BASIC_HDD"}).code == 0
    assert not cloud.disabled


def test_apis_that_may_not_be_switched_on_are_said_and_the_rest_is_checked_all_the_same(cloud, init):
    cloud.disable_api("file")
    refusal = "Permission denied to enable service [file.googleapis.com]"
    cloud.fault(r"serviceusage\.services\.batchEnable", 403, "PERMISSION_DENIED", refusal)
    result = init(nfs={"tier": "BASIC_HDD"})
    assert result.code == 1
    (said,) = lines(result, "apis", "missing")
    assert "gcloud services enable compute.googleapis.com" in said and "--project=lab-proj" in said
    assert lines(result, "machines", "ok") and lines(result, "bucket", "ok")


@pytest.mark.parametrize(
    ("spoilt", "said", "fix"),
    [
        ({"versioning": {"enabled": False}}, "is not versioned", "--versioning"),
        (
            {"iamConfiguration": {"publicAccessPrevention": "inherited"}},
            "can be made public, has access lists",
            "--public-access-prevention --uniform-bucket-level-access",
        ),
        ({"projectNumber": "777"}, "belongs to another project (number 777)", "state_bucket in the YAML"),
    ],
)
def test_a_bucket_that_is_not_fit_is_refused_and_not_changed(cloud, init, spoilt, said, fix):
    init()
    cloud.resources[STATE] |= spoilt
    before = json.dumps(cloud.resources[STATE], sort_keys=True)
    result = init()
    assert result.code == 1
    (line,) = lines(result, "bucket", "missing")
    assert said in line and fix in line
    assert json.dumps(cloud.resources[STATE], sort_keys=True) == before


def test_a_bucket_of_somebody_else_says_what_to_do(cloud, init):
    refusal = "x@example.com does not have storage.buckets.get access to the bucket."
    cloud.fault(r"storage\.buckets\.get", 403, message=refusal)
    (line,) = lines(init(), "bucket", "missing")
    assert "storage.buckets.get" in line and "state_bucket" in line and STATE not in cloud.resources


def test_a_lost_answer_and_another_run_make_one_bucket(cloud, init):
    cloud.fault(r"storage\.buckets\.insert", 0, lost=True)
    result = init()
    assert result.code == 0 and lines(result, "bucket", "ok"), result.out


# ---- machines ------------------------------------------------------------------------------------------------------


def test_a_type_that_a_zone_does_not_have_is_missing_there(cloud, init):
    """Pods for it would wait for ever: neither Terraform nor the cluster says so."""
    zone = "projects/lab-proj/zones/us-east5"
    cloud.absent |= {f"{zone}-a/machineTypes/ct6e-standard-4t", f"{zone}-b/diskTypes/hyperdisk-ml"}
    result = init(group=None, slice=SLICE | {"fallbacks": [{"zone": "us-east5-a"}]})
    (line,) = lines(result, "machines", "missing")
    assert line.startswith("ct6e-standard-4t in us-east5-a: Google does not offer it there. Fix: use another zone")
    assert lines(result, "machines", "ok") == ["ct6e-standard-4t in us-east5-b: offered there"] and result.code == 1
    (line,) = lines(init(disk={"size_gb": 100, "source": "gs://corpus/text"}), "machines", "missing")
    assert line.startswith("hyperdisk-ml in us-east5-b")
    told = json.loads(init("--json", disk={"size_gb": 100, "source": "gs://corpus/text"}).out)
    assert not told["ok"] and [check["fix"] != "" for check in told["checks"] if check["state"] == "missing"] == [True]
    cloud.fault(r"compute\.machineTypes\.get", 503, times=9)
    assert lines(init(), "machines", "unknown")


def test_an_api_that_stays_off_makes_everything_unknown_and_nothing_fine(cloud, init):
    cloud.disable_api("compute")
    cloud.fault(r"serviceusage\.services\.batchEnable", 403, "PERMISSION_DENIED", "Permission denied", times=9)
    result = init()
    assert result.code == 1 and not lines(result, "machines", "ok")
    assert any("compute.googleapis.com is not enabled" in line for line in lines(result, "machines", "unknown"))
