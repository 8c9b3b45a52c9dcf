"""The audit finds one of every kind that could be left over, says who keeps it, and never passes over what it could not
see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from google_cloud import judge
from google_cloud.calling import command_line
from google_cloud.fake import Cloud
from in_process import Cli

from maskwright.cloud import record
from maskwright.cloud.environment import Environment, build_environment
from maskwright.cloud.google import inventory, rest
from maskwright.cloud.google.inventory import KINDS
from maskwright.cloud.google.rest import Google
from maskwright.cloud.provision import variables
from maskwright.cloud.record import EnvironmentRecord
from maskwright.cloud.report.audit import ResourceAudit, audit
from maskwright.core.errors import CloudError

LAB = {
    "name": "lab1",
    "project": "lab-proj",
    "zone": "us-east5-b",
    "disk": {"size_gb": 100, "source": "gs://corpus/text"},
    "slice": {"accelerator": "v6e", "topology": "4x4", "provisioning_model": "SPOT"},
}
LABELS = {"maskwright-environment": "lab1"}
P = "projects/lab-proj"
Z, R, G = f"compute/{P}/zones/us-east5-b", f"compute/{P}/regions/us-east5", f"compute/{P}/global"
ONE_OF_EACH: dict[str, tuple[str, dict[str, Any]]] = {
    "instance": (f"{Z}/instances/odd", {"labels": LABELS, "status": "RUNNING", "machineType": "x/ct6e-standard-4t"}),
    "disk": (f"{Z}/disks/odd", {"labels": LABELS, "sizeGb": "100", "type": "x/diskTypes/pd-ssd"}),
    "snapshot": (f"{G}/snapshots/odd", {"labels": LABELS}),
    "instant snapshot": (f"{Z}/instantSnapshots/odd", {"labels": LABELS}),
    "image": (f"{G}/images/odd", {"labels": LABELS}),
    "machine image": (f"{G}/machineImages/odd", {"labels": LABELS}),
    "storage pool": (f"{Z}/storagePools/odd", {"labels": LABELS}),
    "reservation": (f"{Z}/reservations/lab1-held", {}),
    "future reservation": (f"{Z}/futureReservations/lab1-later", {}),
    "address": (f"{R}/addresses/odd", {"labels": LABELS, "addressType": "EXTERNAL"}),
    "forwarding rule": (f"{R}/forwardingRules/odd", {"labels": LABELS}),
    "instance group": (f"{Z}/instanceGroupManagers/lab1-group", {}),
    "instance template": (f"{G}/instanceTemplates/odd", {"properties": {"labels": LABELS}}),
    "resource policy": (f"{R}/resourcePolicies/lab1-slice-4x4", {}),
    "network": (f"{G}/networks/lab1-net", {}),
    "subnetwork": (f"{R}/subnetworks/lab1-us-east5", {}),
    "firewall": (f"{G}/firewalls/lab1-inside", {}),
    "router": (f"{R}/routers/lab1-us-east5", {"nats": [{"name": "lab1-us-east5"}]}),
    "Filestore instance": (f"file/{P}/locations/us-east5-b/instances/odd", {"labels": LABELS, "tier": "BASIC_HDD"}),
    "Filestore backup": (f"file/{P}/locations/us-east5/backups/odd", {"labels": LABELS}),
    "bucket": ("storage/b/odd", {"labels": LABELS}),
    "deleted bucket": ("storage/b/gone", {"labels": LABELS, "softDeleteTime": "2026-11-20T10:00:00Z"}),
    "TPU node": (f"tpu/{P}/locations/us-east5-b/nodes/odd", {"labels": LABELS, "acceleratorType": "v4-32"}),
    "queued resource": (f"tpu/{P}/locations/us-east5-b/queuedResources/lab1-slice", {"state": {"state": "ACTIVE"}}),
    "repository": (f"artifactregistry/{P}/locations/us-east5/repositories/lab1", {}),
    "Vertex AI job": (f"aiplatform/{P}/locations/us-east5/customJobs/77", {"labels": LABELS, "displayName": "j"}),
    "service account": (f"iam/{P}/serviceAccounts/lab1-train@lab-proj.iam.gserviceaccount.com", {}),
}
"""As if somebody had made them by hand, with any name where the kind has labels."""
FREE = {
    "instance group",
    "instance template",
    "resource policy",
    "network",
    "subnetwork",
    "firewall",
    "service account",
}


@pytest.fixture
def environment() -> Environment:
    return build_environment(LAB, "lab.yaml")


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with command_line(capfd) as call:
        yield call


@pytest.fixture
def yaml_file(tmp_path: Path) -> Path:
    path = tmp_path / "lab.yaml"
    path.write_text(yaml.safe_dump(LAB))
    return path


def plant(cloud: Cloud, kind: str, key: str, body: dict[str, Any]) -> None:
    """Into what exists, without the checks of making it."""
    service, _, name = key.partition("/")
    if service == "storage":
        cloud.put(f"gs://{name.removeprefix('b/')}/x", "x")
        cloud.resources[key] |= body
        return
    last = name.rpartition("/")[2]
    if service == "compute":
        collection = name.split("/")[-2]
        about = {
            "kind": f"compute#{collection[:-1]}",
            "name": last,
            "id": "9",
            "selfLink": f"{cloud.url}/compute/v1/{name}",
        }
    elif service == "iam":
        about = {"name": name, "email": last}
    else:
        about = {"name": name}
    if kind == "instance group":
        about |= {"targetSize": 0, "_members": []}
    cloud.resources[key] = about | body


def look(environment: Environment, wanted: dict[str, Any] | None = None, **options: Any) -> ResourceAudit:
    return audit(Google("lab-proj"), environment, wanted=wanted, **options)


def names(found: ResourceAudit) -> dict[str, list[str]]:
    kinds: dict[str, list[str]] = {}
    for item in found.items:
        kinds.setdefault(item.resource.kind, []).append(item.resource.name)
    return kinds


def test_every_kind_of_the_audit_has_its_example() -> None:
    assert {kind.name for kind in KINDS} == set(ONE_OF_EACH)


def test_every_list_is_one_that_google_has_with_labels_where_we_look_for_them() -> None:
    for kind in KINDS:
        version = "v1" if kind.api != "tpu" else "v2"
        api = judge.api(kind.api, version)
        assert api is not None
        path = kind.path.format(project="p", region="us-east5")
        prefix = {"compute": "/compute/v1/", "storage": "/storage/v1/"}.get(kind.api, f"/{version}/")
        method, _, _ = api.match("GET", prefix + path)
        answer = api.schemas[method["response"]["$ref"]]["properties"]
        assert kind.key in answer, kind.name
        items = answer[kind.key]
        schema = items.get("items") or items["additionalProperties"]
        body = api.schemas[schema["$ref"]]
        if "/aggregated/" in kind.path:
            ours = next(value for key, value in body["properties"].items() if key != "warning")
            body = api.schemas[ours["items"]["$ref"]]
        if kind.labels != "properties.labels":
            assert ("labels" in body["properties"]) == (kind.labels is not None), kind.name


def test_one_of_every_kind_is_found_and_those_that_cost_are_the_exit_code(
    cloud: Cloud, cli: Cli, environment: Environment, yaml_file: Path
) -> None:
    for kind, (key, body) in ONE_OF_EACH.items():
        plant(cloud, kind, key, body)
    found = look(environment)
    assert found.unseen == []
    assert names(found) == {kind: [key.rpartition("/")[2].partition("@")[0]] for kind, (key, _) in ONE_OF_EACH.items()}
    assert {item.resource.kind for item in found.items if not item.resource.bills} == FREE
    assert {item.resource.kind for item in found.unwanted} == set(ONE_OF_EACH) - FREE - {"deleted bucket"}
    assert "deleted bucket gone in us; what it held; no price in the table; Google keeps it" in found.report()
    said = cli("env", "audit", yaml_file)
    assert said.code == 1 and "left over, and costs money:" in said.out
    assert all(key.rpartition("/")[2].partition("@")[0] in said.out for key, _ in ONE_OF_EACH.values())
    told = json.loads(cli("env", "audit", yaml_file, "--json").out)
    assert not told["clean"] and len(told["items"]) == len(ONE_OF_EACH)


def test_nothing_left_is_nothing_said(cloud: Cloud, cli: Cli, yaml_file: Path) -> None:
    plant(cloud, "disk", f"{Z}/disks/somebody-elses", {"labels": {"maskwright-environment": "lab2"}})
    plant(cloud, "disk", f"{Z}/disks/lab10-data-1", {})
    said = cli("env", "audit", yaml_file)
    assert (said.code, said.out) == (0, "lab1: nothing exists\n"), said.err


def test_another_environment_whose_name_begins_alike_keeps_its_own(cloud: Cloud, environment: Environment) -> None:
    cloud.put("gs://lab-proj-maskwright-state/env/lab1-b/record.json", "{}")
    plant(cloud, "network", f"{G}/networks/lab1-b-net", {})
    plant(cloud, "network", f"{G}/networks/lab1-net", {})
    plant(cloud, "disk", f"{Z}/disks/lab1-copy", {})
    assert names(look(environment)) == {
        "network": ["lab1-net"],
        "disk": ["lab1-copy"],
        "bucket": ["lab-proj-maskwright-state"],
    }
    lines = look(environment).report().splitlines()
    assert [line for line in lines if line.endswith("by its name, as it has no label")] == [
        line for line in lines if "disk lab1-copy" in line
    ]


def test_the_network_that_it_was_put_into_is_not_its_own(cloud: Cloud) -> None:
    plant(cloud, "network", f"{G}/networks/lab1-vpc", {})
    plant(cloud, "firewall", f"{G}/firewalls/lab1-inside", {"network": f"x/{G}/networks/lab1-vpc"})
    plant(cloud, "firewall", f"{G}/firewalls/lab1-old", {"network": f"x/{G}/networks/lab1-net"})
    theirs = {"network": {"name": "lab1-vpc", "subnetworks": {"us-east5": "a"}}}
    assert names(look(build_environment(LAB | theirs, "lab.yaml"))) == {"firewall": ["lab1-old"]}


def test_an_environment_may_have_the_name_that_the_state_bucket_begins_with(cloud: Cloud) -> None:
    cloud.put("gs://lab-proj-maskwright-state/env/x", "{}")
    found = look(build_environment(LAB | {"name": "maskwright"}, "lab.yaml"), {})
    assert [item.why for item in found.items] == ["Terraform's state, of all environments of the project"]


def wanted_of(environment: Environment) -> dict[str, Any]:
    return variables.variables(environment, EnvironmentRecord(seeded={"files": 1}), None)


def lab_of(cloud: Cloud, environment: Environment) -> None:
    """What Terraform makes, and a disk of a generation before."""
    machine = {"machineType": "x/ct6e-standard-4t", "scheduling": {"provisioningModel": "SPOT"}, "status": "RUNNING"}
    for name in ("lab1-slice-x1", "lab1-slice-x2"):
        plant(cloud, "instance", f"{Z}/instances/{name}", machine | {"labels": LABELS})
        plant(cloud, "disk", f"{Z}/disks/{name}", {"labels": LABELS, "sizeGb": "200", "type": "x/hyperdisk-balanced"})
    for name in ("lab1-data-1", "lab1-data-2"):
        plant(cloud, "disk", f"{Z}/disks/{name}", {"labels": LABELS, "sizeGb": "100", "type": "x/hyperdisk-ml"})
    for bucket in (environment.dataset_bucket, environment.runs_bucket, environment.state):
        cloud.put(f"gs://{bucket}/some", "x" * 2000)
        labels = LABELS if bucket != environment.state else {"of": "all"}
        cloud.resources[f"storage/b/{bucket}"] |= {"labels": labels, "location": "US-EAST5"}


def test_what_is_wanted_is_kept_and_what_was_before_is_left_over(cloud: Cloud, environment: Environment) -> None:
    lab_of(cloud, environment)
    wanted = wanted_of(environment) | {"disk": {"name": "lab1-data-2"}}
    found = look(environment, wanted)
    assert [item.resource.name for item in found.unwanted] == ["lab1-data-1"]
    report = found.report()
    assert "bucket lab-proj-lab1-runs" in report and "2.0 kB" in report and "Terraform's state" in report
    cloud.resources[f"{Z}/disks/lab1-slice-x3"] = cloud.resources[f"{Z}/disks/lab1-slice-x1"] | {
        "name": "lab1-slice-x3"
    }
    (alone,) = [item for item in look(environment, wanted).unwanted if item.resource.name != "lab1-data-1"]
    assert alone.resource.name == "lab1-slice-x3", "a boot disk whose host is gone"
    del cloud.resources[f"{Z}/disks/lab1-slice-x3"]
    elsewhere = wanted | {"slice": wanted["slice"] | {"zone": "us-east5-a"}}
    before = [f"{item.resource.kind} {item.resource.name}" for item in look(environment, elsewhere).unwanted]
    assert {"instance lab1-slice-x1", "disk lab1-slice-x1"} < set(before), "hosts in a zone that they have left"
    down = look(environment, variables.without(wanted, variables.RUNNING))
    hosts = ["lab1-slice-x1", "lab1-slice-x2"]
    assert [item.resource.name for item in down.unwanted] == ["lab1-data-1", *hosts, *hosts]
    gone = look(environment, {})
    assert {"lab-proj-lab1-dataset", "lab-proj-lab1-runs"} < {item.resource.name for item in gone.unwanted}


def test_prices_are_those_of_the_table_and_what_has_none_is_said(cloud: Cloud, environment: Environment) -> None:
    lab_of(cloud, environment)
    asked: list[tuple[str, str, str]] = []

    def price(what: str, region: str, model: str) -> tuple[None, float] | None:
        asked.append((what, region, model))
        usd = {"v6e": 1.25, "hyperdisk-ml": 0.08}.get(what)
        return (None, usd) if usd else None

    found = look(environment, wanted_of(environment), price=price)
    by_name = {(item.resource.kind, item.resource.name): item.usd_per_hour for item in found.items}
    assert by_name["instance", "lab1-slice-x1"] == 4 * 1.25
    assert by_name["disk", "lab1-data-1"] == pytest.approx(100 * 0.08 / 730)
    assert by_name["disk", "lab1-slice-x1"] is None
    assert ("v6e", "us-east5", "SPOT") in asked and ("bucket", "us-east5", "STANDARD") in asked
    assert "5.00 USD/hour" in found.report() and "without a price in the table" in found.report()


# ---- what cannot be seen -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", sorted({kind.api for kind in KINDS}))
def test_an_api_that_is_off_is_said_for_each_of_its_kinds(cloud: Cloud, environment: Environment, api: str) -> None:
    cloud.disable_api(api)
    found = look(environment)
    kinds = {kind.name for kind in KINDS if kind.api == api}
    assert {one.kind for one in found.unseen} >= kinds
    assert all(one.reason == "disabled" for one in found.unseen if one.kind in kinds)
    assert all(f"not looked at: {kind}" in found.report() for kind in kinds)


LIST = {kind.name: kind for kind in KINDS}


@pytest.mark.parametrize(
    "kind", ["instance", "disk", "Filestore instance", "TPU node", "repository", "service account"]
)
def test_a_missing_permission_is_said_and_is_the_exit_code(cloud: Cloud, cli: Cli, yaml_file: Path, kind: str) -> None:
    collection = LIST[kind].path.rpartition("/")[2]
    cloud.deny(f"{LIST[kind].api}.{collection}.list")
    said = cli("env", "audit", yaml_file)
    assert said.code == 1 and f"not looked at: {kind} (" in said.out
    assert f"{LIST[kind].api}.{collection}.list" in said.out


def test_a_region_that_does_not_answer_google_is_said(cloud: Cloud, environment: Environment, monkeypatch: Any) -> None:
    plant(cloud, "disk", f"{Z}/disks/lab1-data-1", {"labels": LABELS})
    call = Google.call

    def partly(self: Google, api: str, verb: str, path: str, *rest: Any, **query: Any) -> dict[str, Any]:
        answer = call(self, api, verb, path, *rest, **query)
        if path.endswith("/aggregated/disks"):
            answer["items"]["zones/us-east5-a"] = {"warning": {"code": "UNREACHABLE"}}
        if path.endswith("/nodes"):
            answer["unreachable"] = ["projects/lab-proj/locations/us-east5-c"]
        return answer

    monkeypatch.setattr(Google, "call", partly)
    found = look(environment)
    assert {(one.kind, one.why.rpartition(" ")[2]) for one in found.unseen} == {
        ("disk", "zones/us-east5-a"),
        ("TPU node", "us-east5-c"),
    }
    assert not found.clean and names(found)["disk"] == ["lab1-data-1"]


def test_a_bucket_is_priced_by_its_bytes_and_what_was_not_added_up_is_said(
    cloud: Cloud, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab_of(cloud, environment)
    monkeypatch.setattr("maskwright.cloud.report.audit.size_of_bucket", lambda google, name: (3 * 2**29, False))
    found = look(environment, wanted_of(environment), price=lambda *what: (None, 730.0))
    assert {item.usd_per_hour for item in found.items if item.resource.kind == "bucket"} == {1.5}
    assert "in all at least " in found.report()


def test_without_good_credentials_it_is_one_line(
    cloud: Cloud, cli: Cli, environment: Environment, yaml_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "expired-token-0123")
    result = cli("env", "init", yaml_file)
    assert (result.code, result.out) == (1, "") and "gcloud auth application-default login" in result.error
    with pytest.raises(CloudError, match="credentials"):
        look(environment)


def test_an_api_that_cannot_be_reached_is_tried_once(
    cloud: Cloud, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", "http://127.0.0.1:9/compute/v1/")
    tried: list[float] = []
    monkeypatch.setattr("maskwright.cloud.google.rest.time.sleep", tried.append)
    found = look(environment)
    assert len(tried) == rest.TRIES - 1
    assert {one.kind for one in found.unknown} >= {kind.name for kind in KINDS if kind.api == "compute"}


def test_a_region_of_before_is_looked_at_too(cloud: Cloud, environment: Environment) -> None:
    plant(cloud, "repository", f"artifactregistry/{P}/locations/us-west1/repositories/lab1", {})
    assert not look(environment, {}).items
    assert names(look(environment, {"regions": ["us-west1"]}))["repository"] == ["lab1"]


def test_all_pages_are_read(cloud: Cloud, environment: Environment) -> None:
    for number in range(inventory.MOST_OBJECTS + 3):
        cloud.put(f"gs://lab-proj-lab1-runs/{number}", "x")
    for number in range(501):
        plant(cloud, "network", f"{G}/networks/lab1-{number}", {})
    found = look(environment)
    assert len(names(found)["network"]) == 501
    assert "1.0 kB or more" in found.report()


def test_record_tells_no_less_than_before(cloud: Cloud, environment: Environment) -> None:
    """The audit reads the state bucket and never writes there."""
    cloud.put(f"gs://{environment.state}/{environment.prefix}/x", "")
    look(environment)
    assert record.read(environment) == EnvironmentRecord()
    assert not cloud.calls(r"storage\.objects\.(insert|delete).*")
