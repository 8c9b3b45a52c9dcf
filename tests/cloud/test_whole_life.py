"""The whole life of an environment, as a user drives it: our command line, real Terraform with its real gcs backend,
the stand-in provider, and a made-up Google Cloud in which both see the same things."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from google_cloud import compute
from google_cloud.fake import Cloud, fake_cloud
from google_cloud.seeding import SEEDED, seeder
from google_cloud.terraform_world import TerraformWorld, why_not

from maskwright.cli.main import run
from maskwright.cloud.google import groups
from maskwright.cloud.google.rest import Google
from maskwright.cloud.provision.commands import EnvironmentSession
from maskwright.cloud.provision.seed import _checked
from maskwright.core.errors import MaskwrightError

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

LAB: dict[str, Any] = {
    "name": "lab1",
    "project": "lab-proj",
    "zone": "us-east5-b",
    "nfs": {"share": "tpushare"},
    "disk": {"size_gb": 100, "source": "gs://corpus/stores"},
    "slice": {"accelerator": "v6e", "topology": "4x4", "provisioning_model": "SPOT"},
}
SECRET = "fake-token-0123456789"
ZONE = "compute/projects/lab-proj/zones/us-east5-b"


@dataclass
class Life:
    cloud: Cloud
    world: TerraformWorld
    folder: Path
    capture: pytest.CaptureFixture[str]

    def write(self, **changes: Any) -> str:
        path = self.folder / "lab.yaml"
        path.write_text(yaml.safe_dump({**LAB, **changes}))
        return str(path)

    def env(self, command: str, *words: str, code: int = 0) -> str:
        """`maskwright env COMMAND lab.yaml …`; what it printed, messages and data."""
        got = run(["env", command, str(self.folder / "lab.yaml"), *words])
        said = "".join(self.capture.readouterr())
        assert got == code, said
        assert SECRET not in said
        return said

    def document(self, command: str, *words: str) -> dict[str, Any]:
        """What the command tells a program; messages come behind it."""
        found: dict[str, Any] = json.JSONDecoder().raw_decode(self.env(command, *words, "--json"))[0]
        assert found["version"] == 1
        return found

    def exists(self, kind: str) -> list[str]:
        """Names of what is there of a collection, as instances or buckets."""
        found = [key.rsplit("/", 1)[1] for key in sorted(self.cloud.resources) if key.rsplit("/", 2)[-2] == kind]
        return [name for name in found if name != "corpus"]  # somebody else's bucket


@pytest.fixture
def life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], no_network: bool
) -> Iterator[Life]:
    with fake_cloud(polls=0) as cloud, TerraformWorld(tmp_path / "terraform", cloud=cloud.url).served() as world:
        for name, value in {**cloud.environment(), **world.environment(), "XDG_CACHE_HOME": str(tmp_path)}.items():
            monkeypatch.setenv(name, value)
        import gcsfs  # looks at the variables when it is imported

        gcsfs.GCSFileSystem.clear_instance_cache()
        cloud.put("gs://corpus/stores/one/manifest.json", '{"dtype": "uint16"}')
        yield Life(cloud, world, tmp_path, capsys)


@pytest.mark.long
def test_init_up_resize_seed_down(life: Life) -> None:
    life.write(slice=None)
    life.env("init")
    bucket = life.cloud.resources["storage/b/lab-proj-maskwright-state"]
    assert bucket["versioning"]["enabled"] and bucket["iamConfiguration"]["publicAccessPrevention"] == "enforced"

    shown = life.env("plan")
    assert "google_compute_disk" in shown and "no price for hyperdisk-ml in us-east5 (disk), not counted" in shown
    life.env("plan", "--detailed-exitcode", code=2)
    assert not life.exists("disks"), "a plan changes nothing"
    assert "cannot ask for confirmation without a terminal" in life.env("up", code=2)

    told = life.document("up", "--yes")
    assert told == life.document("status")
    assert life.exists("disks") == ["lab1-data-1"] and life.exists("instances") == ["lab1-nfs"]
    assert {"lab-proj-lab1-dataset", "lab-proj-lab1-runs"} <= set(life.exists("b"))
    life.env("plan", "--detailed-exitcode", code=0)

    with seeder(life.cloud, SEEDED):
        said = life.env("seed", "--yes", "--poll-seconds", "0.1", "--json")
    assert json.JSONDecoder().raw_decode(said)[0] == life.document("status")
    assert "gs://corpus/stores holds token stores: one" in said
    assert "a run reads it with --set data.store=/mnt/common/shared_pd/one" in said
    assert "3 files" in said and life.exists("instances") == ["lab1-nfs"], "the machine is gone"
    assert life.cloud.resources[f"{ZONE}/disks/lab1-data-1"]["accessMode"] == "READ_ONLY_MANY"
    assert "was seeded" in life.env("seed", "--yes")

    life.write()
    life.env("up", "--yes")
    group = groups.describe(Google("lab-proj"), "us-east5-b", "lab1-slice")
    assert group and group.target == len(group.members) == 4
    disks = life.cloud.resources[f"{ZONE}/instances/{group.members[0].name}"]["disks"]
    assert [disk["mode"] for disk in disks if disk.get("deviceName") == "shared-pd"] == ["READ_ONLY"]
    life.env("plan", "--detailed-exitcode", code=0)

    life.write(host={"idle_minutes": 45})
    life.env("plan", "--only", "disk", "--detailed-exitcode", code=0)  # hosts keep what they began with
    life.write(labels={"team": "other"})
    assert "would be deleted or replaced along with the disk" in life.env("up", "--only", "disk", "--yes", code=2)

    life.write(disk={**LAB["disk"], "size_gb": 200})
    life.env("plan", "--only", "slice", "--detailed-exitcode", code=0)  # hosts keep the disk that there is
    life.env("up", "--only", "slice", "--yes")
    assert "would replace the disk lab1-data-1" in life.env("seed", "--yes", code=2)

    life.world.forget()
    life.write(slice={**LAB["slice"], "topology": "8x8"})
    shown = life.env("plan")
    assert "replaced: " in shown and "instance_group_manager" in shown
    life.env("up", "--yes")
    order = [(op, kind.removeprefix("google_compute_")) for op, kind, _ in life.world.changes()]
    moved = [entry for entry in order if entry[1] in ("resource_policy", "instance_group_manager")]
    # A policy with machines cannot go, and machines cannot change their policy.
    assert moved.index(("delete", "instance_group_manager")) < moved.index(("create", "instance_group_manager"))
    assert moved.index(("create", "resource_policy")) < moved.index(("create", "instance_group_manager"))
    assert moved[-1] == ("delete", "resource_policy")
    assert life.cloud.resources[f"{ZONE}/instanceGroupManagers/lab1-slice"]["targetSize"] == 16

    EnvironmentSession(str(life.folder / "lab.yaml")).folder.remove("wanted.json")  # by hand
    said = json.dumps(life.document("down", "--yes"))
    assert life.exists("instanceGroupManagers") == [] and life.exists("disks") == ["lab1-data-1"]
    for stays in ("lab1-data-1", "lab1-nfs", "lab-proj-lab1-runs"):
        assert stays in said, "what stays is listed"
    assert "holds data" in life.env("down", "--only", "disk", "--yes", code=2)

    del life.cloud.resources[f"{ZONE}/disks/lab1-data-1"]  # by hand, as it costs money
    assert "lab1-data-1: this disk was seeded but no longer exists" in life.env("up", "--yes", code=2)
    life.env("down", "--yes")
    assert life.exists("disks") == [], "nothing is made by taking away"
    life.env("plan", "--only", "disk", "--detailed-exitcode", code=2)  # another one, not seeded

    said = life.env("down", "--delete-data", "--yes")
    assert "gone at once, old versions too: google_filestore_instance.nfs[0], google_storage_bucket.dataset" in said
    assert (
        life.exists("disks") == []
        and life.exists("instances") == []
        and life.exists("b") == ["lab-proj-maskwright-state"]
    )
    state = life.cloud.text("gs://lab-proj-maskwright-state/env/lab1/default.tfstate")
    assert SECRET not in state and json.loads(state)["resources"] == []


@pytest.mark.long
def test_an_apply_that_fails_half_way_can_be_finished_either_way(life: Life) -> None:
    life.write(nfs=None, disk=None)
    life.env("init")
    life.cloud.fault(
        "terraform.google_compute_instance_group_manager.create", 403, "", "ZONE_RESOURCE_POOL_EXHAUSTED", times=2
    )
    said = life.env("up", "--yes", code=1)
    assert "ZONE_RESOURCE_POOL_EXHAUSTED" in said and "lab1-slice" not in life.exists("instanceGroupManagers")
    assert "lab-proj-lab1-runs" in life.exists("b"), "what was made before it stays, and is in the state"
    life.env("up", "--yes", code=1)
    life.env("up", "--yes")
    assert life.exists("instanceGroupManagers") == ["lab1-slice"]

    life.cloud.fault("terraform.google_compute_instance_group_manager.delete", 503, "", "backend error")
    life.env("down", "--yes", code=1)
    life.env("down", "--yes")
    assert life.exists("instanceGroupManagers") == []
    life.cloud.fault("terraform.google_compute_instance_group_manager.create", 403, "", "made to fail")
    life.env("up", "--yes", code=1)
    life.env("down", "--delete-data", "--yes")
    assert life.exists("b") == ["lab-proj-maskwright-state"] and life.exists("networks") == []
    life.write(disk=None, slice=None)
    life.cloud.fault("terraform.google_storage_bucket.create", 409, "", "the name is somebody else's", times=9)
    life.env("up", "--yes", code=1)
    assert life.exists("instances") == ["lab1-nfs"]
    assert "nothing to delete" in life.env("down", "--yes")
    life.write(disk=None, slice=None, nfs={"tier": "BASIC_SSD", "capacity_gb": 2560})
    said = life.env("up", "--yes", "--delete-data", code=2)
    assert "google_filestore_instance.nfs[0]" in said and "env down --only nfs --delete-data" in said
    life.env("down", "--delete-data", "--yes")
    assert life.exists("instances") == [] and life.exists("networks") == []


@pytest.mark.long
def test_seeding_that_fails_leaves_no_machine(life: Life) -> None:
    life.write(nfs=None, slice=None)
    life.env("init")
    shards = life.cloud.objects.pop(("corpus", "stores/one/manifest.json"))
    assert "gs://corpus/stores: has no files. Fix: correct disk.source" in life.env("seed", "--yes", code=2)
    for name in ("dict.txt", "train.bin", "train.idx"):
        life.cloud.put(f"gs://corpus/stores/shard0/{name}", "")
    said = life.env("seed", "--yes", code=2)
    assert "token ids of another tool (fairseq: shard0/dict.txt)" in said and "`maskwright data convert FOLDER" in said
    assert not life.exists("disks") and not life.exists("networks"), "refused before anything is made"
    with seeder(life.cloud, {"ok": False, "step": "copy", "what": "as it is"}):
        assert "copy: as it is" in life.env("seed", "--anyway", "--yes", "--poll-seconds", "0.1", code=1)
    life.cloud.objects["corpus", "stores/one/manifest.json"] = shards
    failed = {"ok": False, "step": "verify", "what": "part-3.bin: 10 bytes, not 12"}
    with seeder(life.cloud, failed) as seen:
        said = life.env("seed", "--yes", "--poll-seconds", "0.1", code=1)
    assert "seeding failed at verify: part-3.bin: 10 bytes, not 12" in said and seen
    assert life.exists("instances") == [] and "lab1-data-1" in life.exists("disks")
    with seeder(life.cloud, None):
        said = life.env("seed", "--yes", "--poll-seconds", "0.1", code=1)
    assert "lab1-seeder is gone and left no result" in said
    assert life.exists("instances") == []
    with seeder(life.cloud, SEEDED):
        life.env("seed", "--yes", "--poll-seconds", "0.1")
    life.cloud.fault("terraform.google_compute_disk.create", 403, "", "Quota exceeded")
    assert "Quota exceeded" in life.env("seed", "--again", "--yes", code=1)
    assert "was seeded" in life.env("seed", "--yes"), "the old disk is as good as before"
    with seeder(life.cloud, SEEDED):
        life.env("seed", "--again", "--yes", "--poll-seconds", "0.1")
    assert life.exists("disks") == ["lab1-data-2"]


def test_a_held_lock_names_its_holder(life: Life) -> None:
    life.write(nfs=None, disk=None, slice=None)
    life.env("init")
    lock = {"ID": "1795165645", "Operation": "OperationTypeApply", "Who": "ada@desk", "Version": "1.11.4"}
    lock |= {"Created": "2026-11-20T09:00:00Z", "Path": "gs://x"}
    life.cloud.put("gs://lab-proj-maskwright-state/env/lab1/default.tflock", json.dumps(lock))
    said = life.env("up", "--yes", "--lock-timeout-seconds", "0", code=2)
    assert "another run holds the state's lock: ada@desk" in said and "force-unlock" in said
    assert not life.exists("networks")


def test_environments_stand_side_by_side(life: Life) -> None:
    life.write(nfs=None, disk=None, slice=None)
    life.env("init")
    life.env("up", "--yes")
    theirs = {"name": "vpc", "project": "host-proj", "subnetworks": {"us-east5": "train"}}
    life.write(name="lab2", nfs=None, disk=None, slice={"accelerator": "v6e", "topology": "1x1"}, network=theirs)
    for command in (("plan",), ("up", "--yes")):
        said = life.env(*command, code=2)
        assert "subnetwork train in us-east5 of host-proj: does not exist. Fix: correct network.subnetworks" in said
    assert "no price for hyperdisk-balanced in us-east5 (slice's boot), not counted" in said, "before anything is made"
    assert not [name for name in life.exists("b") if "lab2" in name]
    subnetwork = {"name": "train", "network": "x/vpc", "ipCidrRange": "10.8.0.0/20", "privateIpGoogleAccess": True}
    compute.make(life.cloud, "projects/host-proj/regions/us-east5/subnetworks", subnetwork)
    assert "hosts install docker from the internet, and no Cloud NAT was found" in life.env("up", "--yes")
    (template,) = life.exists("instanceTemplates")
    properties = life.cloud.resources[f"compute/projects/lab-proj/global/instanceTemplates/{template}"]["properties"]
    assert properties["networkInterfaces"][0]["subnetwork"] == "projects/host-proj/regions/us-east5/subnetworks/train"
    assert life.exists("networks") == ["lab1-net"] and life.exists("subnetworks") == ["train", "lab1-us-east5"]
    assert {"lab-proj-lab1-runs", "lab-proj-lab2-runs"} <= set(life.exists("b"))
    life.env("down", "--delete-data", "--yes")
    assert "lab-proj-lab1-runs" in life.exists("b") and "lab-proj-lab2-runs" not in life.exists("b")
    assert life.exists("instanceTemplates") == [] and life.exists("subnetworks") == ["train", "lab1-us-east5"]


def test_without_init_the_fix_is_named(life: Life) -> None:
    life.write()
    assert "maskwright env init" in life.env("plan", code=2)


def test_nothing_is_made_by_taking_away_or_by_a_no(life: Life) -> None:
    life.write()
    life.cloud.put("gs://lab-proj-maskwright-state/env/started", "")
    assert "nothing to delete" in life.env("down", "--yes")
    assert "nothing to delete" in life.env("down", "--delete-data", "--yes")
    assert "cannot ask for confirmation without a terminal" in life.env("seed", code=2)
    assert life.exists("b") == ["lab-proj-maskwright-state"] and not life.exists("networks") + life.exists("disks")


@pytest.mark.long
def test_a_queued_slice_is_asked_for_after_a_yes_and_never_forgotten(life: Life) -> None:
    v5e = {"accelerator": "v5e", "topology": "4x4", "provisioning_model": "SPOT"}
    life.write(nfs=None, disk=None, slice=None)
    life.env("init")
    life.env("up", "--yes")
    life.write(nfs=None, disk=None, slice=v5e)
    assert "queued resource lab1-slice (v5litepod-16, SPOT, in us-east5-b) will be requested" in life.env("plan")
    assert "cannot ask for confirmation without a terminal" in life.env("up", code=2)
    assert not life.exists("queuedResources")
    life.cloud.fault("tpu.projects.locations.queuedResources.create", 403, "PERMISSION_DENIED", "no", times=9)
    life.env("up", "--yes", code=1)
    record = json.loads(life.cloud.text("gs://lab-proj-maskwright-state/env/lab1/record.json"))
    assert record["queued_zone"] == "us-east5-b", "should it be there after all, down looks for it"
    life.cloud.faults.clear()
    life.env("up", "--only", "slice", "--yes")
    assert life.exists("queuedResources") == ["lab1-slice"]
    life.env("plan", "--detailed-exitcode", code=0)
    life.write(nfs=None, disk=None)
    life.env("up", "--only", "slice", "--yes")
    assert life.exists("queuedResources") == [] and life.exists("instanceGroupManagers") == ["lab1-slice"]


def test_of_two_commands_at_once_neither_forgets_what_the_other_did(life: Life) -> None:
    path = life.write()
    life.cloud.put("gs://lab-proj-maskwright-state/env/started", "")
    one, other = EnvironmentSession(path), EnvironmentSession(path)
    one.store_wanted(one.requested())
    with pytest.raises(MaskwrightError, match="another command has changed the environment"):
        other.store_wanted({})
    one.store_wanted({**one.requested(), "nfs": None})
    EnvironmentSession(path).store_wanted({})
    life.cloud.put("gs://lab-proj-maskwright-state/env/lab1/wanted.json", "{")
    with pytest.raises(MaskwrightError, match="cannot be read"):
        EnvironmentSession(path)


def test_only_a_result_that_is_one_counts() -> None:
    assert _checked(SEEDED) == SEEDED
    for wrong in ({"ok": True}, {**SEEDED, "files": "3"}, {**SEEDED, "ok": "yes"}):
        assert _checked(wrong)["ok"] is not True
