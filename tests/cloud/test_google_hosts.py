"""A watcher's looks at the made-up cloud, and its acts there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google_cloud import watcher_role
from google_cloud.fake import Cloud
from google_cloud.judge import api
from google_cloud.small_terraform import SmallTerraform
from google_cloud.terraform_world import TerraformWorld, why_not

from maskwright import __version__
from maskwright.cloud import record
from maskwright.cloud.environment import read_environment
from maskwright.cloud.google import queued_resource
from maskwright.cloud.google.queued_resource import Wanted
from maskwright.cloud.google.rest import Google
from maskwright.cloud.jobs import google_hosts as google_hosts_module
from maskwright.cloud.jobs.google_hosts import GoogleHosts
from maskwright.cloud.jobs.watcher import PermanentRefusal
from maskwright.cloud.report import host_health
from maskwright.core.errors import InputError, Locked, MaskwrightError, TerraformError

LAB = """
name: lab1
project: lab-proj
zone: us-east5-b
slice: {accelerator: v6e, topology: 4x4, provisioning_model: SPOT, fallbacks: [{zone: us-east5-a}]}
group: {machine_type: g2-standard-12, size: 2}
"""


@pytest.fixture
def cloud(empty_cloud: Cloud, tmp_path: Path) -> Cloud:
    empty_cloud.put("gs://lab-proj-maskwright-state/made", "")
    empty_cloud.put("gs://lab-proj-lab1-jobs/made", "")
    (tmp_path / "lab.yaml").write_text(LAB)
    return empty_cloud


@pytest.fixture
def terraform(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> SmallTerraform:
    from maskwright.cloud.provision import commands

    small = SmallTerraform(cloud)
    monkeypatch.setattr(commands, "up", small.up)
    monkeypatch.setattr(commands, "down", small.down)
    return small


def google_hosts(tmp_path: Path, kind: str = "slice") -> GoogleHosts:
    return GoogleHosts(f"{tmp_path}/lab.yaml", kind)


def test_life_of_a_slice_as_a_watcher_sees_it(cloud: Cloud, terraform: SmallTerraform, tmp_path: Path) -> None:
    place = google_hosts(tmp_path)
    assert place.has_bucket() and not place.describe().exists
    place.up(0)
    for _ in range(5):
        found = place.describe()
    assert (found.wanted, found.running, len(found.names), found.creating) == (4, 4, 4, False)
    cloud.preempt("lab1-slice", [1, 2])
    found = place.describe()
    assert (found.exists, found.running, len(found.names), len(found.stopped)) == (True, 2, 2, 2)
    assert not found.trouble and not found.refused
    place.down()
    assert not place.describe().exists
    place.up(1)
    assert place.describe().placement == 1
    assert record.read(read_environment(f"{tmp_path}/lab.yaml")).placement["slice"] == 1
    assert [key for key in cloud.resources if key.endswith("/us-east5-a/instanceGroupManagers/lab1-slice")]
    place.force_delete()
    assert not place.describe().exists


def test_hosts_are_found_and_removed_whatever_becomes_of_the_yaml(
    cloud: Cloud, terraform: SmallTerraform, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, yaml = google_hosts(tmp_path), tmp_path / "lab.yaml"
    place.up(0)
    wanted = {"slice": {"zone": "us-east5-b"}}
    cloud.put("gs://lab-proj-maskwright-state/env/lab1/wanted.json", json.dumps(wanted))
    yaml.write_text(LAB.replace("zone: us-east5-b", "zone: us-east5-c"))  # for the next time
    assert place.describe().exists
    for broken in (LAB.replace("slice:", "slices:"), LAB.replace("slice: {", "# {")):
        yaml.write_text(broken)
        assert place.describe().exists and place.describe().exists
    said = capsys.readouterr().err
    assert said.count("until then, its last valid slice counts") == 2 and "has no slice any more" in said
    cloud.fault(r"storage\.objects\.get", 403, "PERMISSION_DENIED", "no", times=9)
    place.force_delete()
    assert not [key for key in cloud.resources if "/instances/" in key or "/instanceGroupManagers/" in key]


def test_no_machines_to_be_had_are_googles_words(cloud: Cloud, terraform: SmallTerraform, tmp_path: Path) -> None:
    cloud.stockout("us-east5-b")
    place = google_hosts(tmp_path, "group")
    place.up(0)
    found = [place.describe() for _ in range(3)][-1]
    assert found.exists and found.creating and not found.running and "EXHAUSTED" in found.trouble and not found.refused


def test_group_is_repaired_host_by_host_and_a_slice_is_not(
    cloud: Cloud, terraform: SmallTerraform, tmp_path: Path
) -> None:
    place = google_hosts(tmp_path, "group")
    place.up(0)
    before = [place.describe() for _ in range(4)][-1].names
    assert not place.repair()
    cloud.preempt("lab1-group", [1])
    cloud.slow(r"compute\.instances\.start", 2)
    assert place.describe().stopped == before[1:] and place.repair()
    assert place.describe().creating
    found = [place.describe() for _ in range(4)][-1]
    assert found.running == 2 and found.names == before
    assert not google_hosts(tmp_path).repair()


def test_each_state_of_a_machine_means_the_same_to_watcher_and_status(
    cloud: Cloud, terraform: SmallTerraform, tmp_path: Path
) -> None:
    """Of an on-demand group, in which Google starts hosts again; its own documents name the states."""
    place = google_hosts(tmp_path, "group")
    place.up(0)
    name = [place.describe() for _ in range(4)][-1].names[1]
    (machine,) = [body for key, body in cloud.resources.items() if key.endswith(f"/instances/{name}")]
    environment = read_environment(f"{tmp_path}/lab.yaml")
    compute = api("compute", "v1")
    assert compute is not None
    found = {}
    for state in compute.schemas["ManagedInstance"]["properties"]["instanceStatus"]["enum"]:
        machine["status"] = state
        seen, health = place.describe(), host_health.describe(Google("lab-proj"), environment, "group", "us-east5-b")[1]
        assert (seen.creating, seen.running) == (health.verdict == "coming", 1 + (health.verdict == "starting"))
        found.setdefault((health.verdict, name in seen.stopped), set()).add(state)
    assert found == {
        ("starting", False): {"RUNNING"},
        ("coming", False): {"PENDING", "PROVISIONING", "STAGING", "REPAIRING"},
        ("gone", False): {"DEPROVISIONING"},
        ("gone", True): {"PENDING_STOP", "STOPPED", "STOPPING", "SUSPENDED", "SUSPENDING", "TERMINATED"},
    }
    assert (place.rules().repair_seconds, google_hosts(tmp_path).rules().repair_seconds) == ((900.0,), (0.0, 0.0))


def test_queued_slice_as_a_watcher_sees_it(cloud: Cloud, tmp_path: Path) -> None:
    (tmp_path / "lab.yaml").write_text(LAB.replace("v6e, topology: 4x4", "v5e, topology: 4x4"))
    place, google = google_hosts(tmp_path), Google("lab-proj")
    assert not place.describe().exists
    wanted = Wanted("lab1-slice", "us-east5-b", "v5litepod-16", "v2-alpha-tpuv5-lite", "SPOT", "n", "s", "a@b")
    cloud.stockout("us-east5-b")
    queued_resource.create_if_missing(google, wanted)
    found = [place.describe() for _ in range(3)][-1]
    assert found.exists and found.creating and not found.running and not found.names
    cloud.stockout("us-east5-b", dry=False)
    found = [place.describe() for _ in range(6)][-1]
    assert (found.running, len(found.names), found.trouble) == (4, 4, "")
    cloud.preempt("lab1-slice")
    found = [place.describe() for _ in range(3)][-1]
    assert found.exists and not found.running and not found.creating and found.trouble
    assert not place.repair()
    place.force_delete()
    assert not place.describe().exists


def test_errors_are_told_apart(cloud: Cloud, terraform: SmallTerraform, tmp_path: Path) -> None:
    place = google_hosts(tmp_path)
    cloud.deny("compute.instanceGroupManagers.get")
    with pytest.raises(PermanentRefusal, match=r"compute\.instanceGroupManagers\.get"):
        place.describe()
    cloud.denied.clear()
    cases: list[tuple[MaskwrightError, type[MaskwrightError]]] = [
        (Locked("is in use by process 7 on there", fix="wait"), Locked),
        (
            TerraformError("googleapi: Error 403: Required 'compute.disks.create' permission for 'x'", 1),
            PermanentRefusal,
        ),
        (TerraformError("googleapi: Error 429: Quota exceeded for quota metric 'x'", 1), TerraformError),
        (TerraformError("ZONE_RESOURCE_POOL_EXHAUSTED: The zone does not have enough resources", 1), TerraformError),
    ]
    for raised, seen in cases:
        terraform.fails = [raised]
        with pytest.raises(seen) as caught:
            place.up(0)
        assert type(caught.value) is seen


@pytest.mark.long
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_slice_moves_to_another_zone_with_the_real_terraform(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the slice: the group in the same YAML is not made. What was deleted past Terraform is no trouble. An image
    that was built meanwhile is for who says `env up`."""
    del cloud.objects["lab-proj-lab1-jobs", "made"], cloud.resources["storage/b/lab-proj-lab1-jobs"]
    world = TerraformWorld(tmp_path / "terraform", cloud=cloud.url)
    for name, value in {**world.environment(), "XDG_CACHE_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    environment = read_environment(f"{tmp_path}/lab.yaml")

    def build(number: int) -> None:
        image = f"{environment.built_image}:{__version__}-{number:012}@sha256:{number:064}"
        record.write(environment, replace(record.read(environment), image=image))

    build(1)
    place = google_hosts(tmp_path)
    place.up(0)
    assert [place.describe() for _ in range(4)][-1].running == 4
    build(2)
    # From here on with what a watcher has: the role of the page, and two grants on single resources.
    objects = {f"storage.objects.{verb}" for verb in ("create", "get", "list", "delete", "update")}
    cloud.granted = {*watcher_role.permissions(), *objects}
    place.force_delete()
    assert not place.describe().exists
    place.down()
    place.up(1)
    wanted = record.wanted(environment)
    assert wanted and wanted["host"]["container"] == f"{environment.built_image}@sha256:{1:064}"
    found = [place.describe() for _ in range(4)][-1]
    assert (found.running, found.placement) == (4, 1)
    groups = [key for key in cloud.resources if "/instanceGroupManagers/" in key]
    assert groups == ["compute/projects/lab-proj/zones/us-east5-a/instanceGroupManagers/lab1-slice"]
    machines = [body for key, body in cloud.resources.items() if "/instances/" in key]
    assert {body["scheduling"]["provisioningModel"] for body in machines} == {"SPOT"}


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_lock_that_another_run_holds_is_told_apart_with_the_real_terraform(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TerraformWorld(tmp_path / "terraform", cloud=cloud.url)
    for name, value in {**world.environment(), "XDG_CACHE_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(google_hosts_module, "LOCK_TIMEOUT_SECONDS", 0.0)
    held = {"ID": "1234", "Operation": "OperationTypeApply", "Who": "me@there", "Created": "2026-01-02T03:04:05Z"}
    cloud.put("gs://lab-proj-maskwright-state/env/lab1/default.tflock", json.dumps(held))
    with pytest.raises(Locked, match=r"another run holds the state's lock: me@there"):
        google_hosts(tmp_path, "group").up(0)
    assert not [key for key in cloud.resources if "instance" in key]


def test_price_of_a_host_and_of_one_without_a_price(cloud: Cloud, tmp_path: Path) -> None:
    place = google_hosts(tmp_path)
    table: dict[str, Any] = {
        "currency": "USD",
        "sources": {"us": {"address": "https://example.com", "date": "2026-01-02"}},
        "prices": [{"what": "v6e", "region": "us-east5", "unit": "chip-hour", "spot": 1.5, "source": "us"}],
    }
    import yaml

    (tmp_path / "prices.yaml").write_text(yaml.safe_dump(table))
    place = GoogleHosts(f"{tmp_path}/lab.yaml", "slice", f"{tmp_path}/prices.yaml")
    assert place.usd_per_hour(0) == pytest.approx(4 * 1.5)
    with pytest.raises(InputError, match=r"--max-cost: no price for g2-standard-12 .*group.* Fix: "):
        GoogleHosts(f"{tmp_path}/lab.yaml", "group", f"{tmp_path}/prices.yaml").usd_per_hour(0)
