"""The whole life of an environment, as a user drives it: our command line, real Terraform with its real gcs backend,
the stand-in provider, a made-up Google Cloud, and the real kubectl with a made-up cluster."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from google_cloud.fake import Cloud, fake_cloud
from google_cloud.gke import EnvironmentCluster, environment_cluster
from google_cloud.terraform_world import TerraformWorld, why_not

from maskwright.cli.main import run
from maskwright.cloud import record
from maskwright.cloud.environment import read_environment
from maskwright.cloud.provision import seed, terraform_cli
from maskwright.core.errors import Locked

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

LAB = {
    "name": "lab1",
    "project": "lab-proj",
    "zone": "us-east5-b",
    "nfs": {"share": "tpushare"},
    "disk": {"size_gb": 100, "source": "gs://corpus/stores"},
    "slice": {"accelerator": "v6e", "topology": "4x4", "provisioning_model": "SPOT"},
}
SECRET = "fake-token-0123456789"
DISK = "compute/projects/lab-proj/zones/us-east5-b/disks/lab1-data-1"


@dataclass
class Life:
    cloud: Cloud
    world: TerraformWorld
    cluster: EnvironmentCluster
    folder: Path
    capture: pytest.CaptureFixture[str]

    def write(self, **changes):
        path = self.folder / "lab.yaml"
        path.write_text(yaml.safe_dump({**LAB, **changes}))
        return str(path)

    def env(self, command, *words, code=0):
        """`maskwright env COMMAND lab.yaml …`; what it printed, messages and data."""
        got = run(["env", command, str(self.folder / "lab.yaml"), *words])
        said = "".join(self.capture.readouterr())
        assert got == code, f"{command} {words}: {got}\n{said}"
        assert SECRET not in said
        return said

    def document(self, command, *words):
        """What the command tells a program; messages come behind it."""
        found = json.JSONDecoder().raw_decode(self.env(command, *words, "--json"))[0]
        return found

    def exists(self, kind):
        """Names of what is there of a collection, as disks or buckets."""
        found = [key.rsplit("/", 1)[1] for key in sorted(self.cloud.resources) if key.rsplit("/", 2)[-2] == kind]
        return [name for name in found if name != "corpus"]  # somebody else's bucket


@pytest.fixture
def life(tmp_path, monkeypatch, capsys, no_network):
    with fake_cloud(polls=0) as cloud, TerraformWorld(tmp_path / "terraform", cloud).served() as world:
        for name, value in {**cloud.environment(), **world.environment(), "XDG_CACHE_HOME": str(tmp_path)}.items():
            monkeypatch.setenv(name, value)
        import gcsfs  # looks at the variables when it is imported

        gcsfs.GCSFileSystem.clear_instance_cache()
        monkeypatch.setattr(seed, "POLL_SECONDS", 0.1)
        cloud.put("gs://corpus/stores/one/manifest.json", '{"dtype": "uint16"}')
        with environment_cluster(cloud, tmp_path, monkeypatch) as cluster:
            yield Life(cloud, world, cluster, tmp_path, capsys)


@pytest.mark.long
def test_init_up_seed_resize_down(life):
    life.write()
    life.env("init")
    assert life.cloud.resources["storage/b/lab-proj-maskwright-state"]["versioning"]["enabled"]

    shown = life.env("up", "--dry-run")
    assert "google_container_cluster" in shown
    assert "ComputeClass slice: 4 x ct6e-standard-4t (v6e 4x4), SPOT in us-east5-b" in shown
    assert life.document("up", "--dry-run")["differs"]
    assert not life.exists("disks"), "a plan changes nothing"
    assert "cannot ask for confirmation without a terminal" in life.env("up", code=2)
    assert not life.exists("clusters"), "nothing is rented without a yes"

    told = life.document("up", "--yes")
    assert told == life.document("status") and told["cluster"] == "RUNNING in us-east5-b"
    assert life.exists("disks") == ["lab1-data-1"] and life.exists("instances") == ["lab1-nfs"]
    assert life.cluster.names("ComputeClass") == ["seed", "slice"]
    assert life.cluster.names("PersistentVolumeClaim") == ["nfs-share"], "no job has a disk that is not seeded"
    manager = life.cluster.of_kind("Deployment")[0]["spec"]["template"]["spec"]["containers"][0]["image"]
    assert manager == "us-east5-docker.pkg.dev/lab-proj/lab1-k8s/jobset-system/manager:v1"
    assert not life.document("up", "--dry-run")["differs"]
    life.world.forget()
    assert "nothing to change" in life.env("up", "--yes") and not life.world.changes(), "twice changes nothing"

    said = life.env("seed", "--yes", "--json")
    assert json.JSONDecoder().raw_decode(said)[0] == life.document("status")
    assert "a run reads it with --set data.store=/mnt/common/shared_pd/one" in said and "1 files" in said
    assert life.cloud.resources[DISK]["accessMode"] == "READ_ONLY_MANY"
    assert (life.cluster.disk / "one" / "manifest.json").read_text() == '{"dtype": "uint16"}'
    assert life.cluster.names("PersistentVolumeClaim") == ["nfs-share", "shared-pd"]
    assert not life.cluster.of_kind("Job"), "the volume is taken from it before the disk becomes read-only"
    assert "was seeded" in life.env("seed", "--yes")
    assert not life.document("up", "--dry-run")["differs"]

    life.write(
        nfs={**LAB["nfs"], "capacity_gb": 2048},  # a share grows, but the claim of it cannot change
        slice={**LAB["slice"], "topology": "8x8"},
        group={"machine_type": "c3-standard-8", "size": 3},
    )
    life.env("up", "--yes")
    (queue,) = life.cluster.of_kind("ClusterQueue")
    quotas = {
        flavor["name"]: {one["name"]: one["nominalQuota"] for one in flavor["resources"]}
        for flavor in queue["spec"]["resourceGroups"][0]["flavors"]
    }
    assert quotas["slice"]["google.com/tpu"] == 64 and quotas["group"]["pods"] == 3
    life.write()
    life.env("up", "--yes")
    assert life.cluster.names("ComputeClass") == ["seed", "slice"], "what the YAML names no more is taken away"

    said = life.env("down", "--yes")
    assert life.exists("clusters") == [] and life.exists("disks") == ["lab1-data-1"]
    for stays in ("lab1-data-1", "lab1-nfs", "lab-proj-lab1-runs"):
        assert stays in said, "what stays is listed"
    assert life.document("status")["cluster"] == "absent"
    assert "nothing to delete" in life.env("down", "--yes")
    life.env("up", "--yes")
    assert life.cluster.names("PersistentVolumeClaim") == ["nfs-share", "shared-pd"], "the seeded disk is there again"

    assert "holds data" in life.env("down", "--only", "disk", "--yes", code=2)
    life.env("down", "--only", "disk", "--delete-data", "--yes")
    assert life.exists("disks") == [] and life.exists("clusters") == ["lab1"]
    life.write(nfs=None)
    said = life.env("up", "--yes", "--delete-data", code=2)
    assert "google_filestore_instance.nfs[0]" in said and "env down --only nfs --delete-data" in said
    life.env("down", "--only", "nfs", "--delete-data", "--yes")
    assert life.exists("instances") == []

    said = life.env("down", "--delete-data", "--yes")
    assert "gone at once, old versions too: google_storage_bucket.dataset" in said
    assert life.exists("clusters") + life.exists("networks") == []
    assert life.exists("b") == ["lab-proj-maskwright-state"]
    state = life.cloud.text("gs://lab-proj-maskwright-state/env/lab1/default.tfstate")
    assert SECRET not in state and json.loads(state)["resources"] == []


@pytest.mark.long
def test_an_apply_that_fails_half_way_can_be_finished_either_way(life):
    life.write(disk=None)
    life.env("init")
    life.cloud.fault("terraform.google_container_cluster.create", 403, "", "Insufficient regional quota")
    said = life.env("up", "--yes", code=1)
    assert "Insufficient regional quota" in said and "lab-proj-lab1-runs" in life.exists("b")
    life.env("up", "--yes")
    assert life.exists("clusters") == ["lab1"]
    life.cluster.starting = 2
    life.env("up", "--yes")
    assert life.cluster.starting == 0
    life.cloud.fault("terraform.google_container_cluster.delete", 503, "", "backend error")
    life.env("down", "--yes", code=1)
    life.env("down", "--yes")
    life.cloud.fault("terraform.google_container_cluster.create", 403, "", "made to fail")
    life.env("up", "--yes", code=1)
    life.env("down", "--delete-data", "--yes")
    assert (
        life.exists("b") == ["lab-proj-maskwright-state"] and life.exists("networks") + life.exists("instances") == []
    )


@pytest.mark.long
def test_seeding_that_fails_leaves_the_disk_unseeded_and_the_same_command_continues(life):
    path = life.write(nfs=None, slice=None)
    life.env("init")
    shards = life.cloud.objects.pop(("corpus", "stores/one/manifest.json"))
    assert "gs://corpus/stores: has no files. Fix: correct disk.source" in life.env("seed", "--yes", code=2)
    for name in ("dict.txt", "train.bin", "train.idx"):
        life.cloud.put(f"gs://corpus/stores/shard0/{name}", "")
    said = life.env("seed", "--yes", code=2)
    assert "token ids of another tool (shard0/dict.txt)" in said and "`maskwright data convert FOLDER" in said
    assert not life.exists("disks") and not life.exists("networks"), "refused before anything is made"

    life.cloud.objects["corpus", "stores/one/manifest.json"] = shards
    life.cluster.runs = "part-3.bin: 10 bytes, not 12"
    said = life.env("seed", "--yes", code=1)
    assert "seeding failed: part-3.bin: 10 bytes, not 12" in said
    assert "not seeded" in life.env("status") and life.cloud.resources[DISK]["accessMode"] == "READ_WRITE_SINGLE"
    assert life.cluster.names("PersistentVolumeClaim") == ["seed"]
    (job,) = life.cluster.of_kind("Job")
    assert job["spec"]["template"]["spec"]["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"

    (life.folder / "prepare.sh").write_text('echo 7 >"$2/made"; rm -r "$1"\n')
    life.write(nfs=None, slice=None, disk={**LAB["disk"], "prepare": "prepare.sh"})
    life.cluster.runs = "fill"
    life.env("seed", "--yes")
    assert sorted(entry.name for entry in life.cluster.disk.iterdir()) == [".maskwright", "MANIFEST.sha256", "made"]
    assert (life.cluster.disk / "made").read_text() == "7\n"

    life.write(nfs=None, slice=None, disk={**LAB["disk"], "size_gb": 200})
    assert "would replace the disk lab1-data-1" in life.env("seed", "--yes", code=2)
    assert "this would delete data: google_compute_disk.data[0]" in life.env("up", "--yes", code=2)
    life.env("seed", "--replace", "--yes")
    assert life.exists("disks") == ["lab1-data-2"]
    (claim,) = life.cluster.of_kind("PersistentVolumeClaim")
    assert claim["spec"]["volumeName"] == "lab1-data-2", "jobs get the new one"
    del life.cloud.resources[DISK.replace("data-1", "data-2")]  # by hand
    assert "was seeded but no longer exists" in life.env("up", "--yes", code=2)
    assert record.read(read_environment(path)).seeded is not None


def test_down_of_a_class_ends_its_jobs(life):
    life.write(disk=None, nfs=None, group={"machine_type": "c3-standard-8"})
    life.env("init")
    life.env("up", "--yes")
    for name, kind in (("roberta", "slice"), ("bert", "group")):
        pod = {"nodeSelector": {"cloud.google.com/compute-class": kind}, "containers": [{"name": "node"}]}
        path = f"/apis/batch/v1/namespaces/maskwright/jobs/{name}"
        labels = {"app.kubernetes.io/name": "maskwright", "app.kubernetes.io/instance": name}
        metadata = {"name": name, "namespace": "maskwright", "uid": name, "labels": labels}
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata}
        life.cluster.objects[path] = {**job, "spec": {"template": {"spec": pod}}}
    assert life.document("status")["jobs"] == {"roberta": "waiting", "bert": "waiting"}
    assert SECRET not in life.cloud.text("gs://lab-proj-maskwright-state/env/lab1/default.tfstate")
    life.write(disk=None, nfs=None, slice=None, group={"machine_type": "c3-standard-8"})
    assert "jobs end, and save: job/roberta" in life.env("up", code=2), "no job ends without a yes"
    assert life.cluster.names("Job") == ["bert", "roberta"]
    life.write(disk=None, nfs=None, group={"machine_type": "c3-standard-8"})
    life.env("down", "--only", "slice", "--yes")
    assert life.cluster.names("Job") == ["bert"] and life.cluster.names("ComputeClass") == ["group"]
    life.env("up", "--yes")
    assert life.cluster.names("ComputeClass") == ["group", "slice"]
    life.env("down", "--yes")
    assert life.cluster.names("Job") == [], "jobs save before the cluster goes"


def test_a_held_lock_names_its_holder(life, monkeypatch):
    life.write(nfs=None, disk=None, slice=None)
    life.env("init")
    lock = {"ID": "1795165645", "Operation": "OperationTypeApply", "Who": "ada@desk", "Version": "1.11.4"}
    lock |= {"Created": "2026-11-20T09:00:00Z", "Path": "gs://x"}
    life.cloud.put("gs://lab-proj-maskwright-state/env/lab1/default.tflock", json.dumps(lock))
    monkeypatch.setattr(terraform_cli, "LOCK_SECONDS", 0)
    said = life.env("up", "--yes", code=2)
    assert "another run holds the state's lock: ada@desk" in said and "force-unlock" in said
    assert not life.exists("networks")


def test_nothing_is_made_by_taking_away_or_by_a_no(life):
    life.write()
    assert "maskwright env init" in life.env("up", "--dry-run", code=2)
    life.cloud.put("gs://lab-proj-maskwright-state/env/started", "")
    assert "nothing to delete" in life.env("down", "--yes")
    assert "nothing to delete" in life.env("down", "--delete-data", "--yes")
    assert "nothing to delete" in life.env("down", "--only", "slice", "--yes"), "a build may repeat its destroy"
    assert "cannot ask for confirmation without a terminal" in life.env("seed", code=2)
    assert life.exists("b") == ["lab-proj-maskwright-state"] and not life.exists("networks") + life.exists("disks")


def test_of_two_commands_at_once_one_is_told(life):
    environment = read_environment(life.write())
    life.cloud.put("gs://lab-proj-maskwright-state/env/started", "")
    one, other = record.read(environment), record.read(environment)
    kept = record.write(environment, one.for_disk(environment))
    with pytest.raises(Locked, match="another command has changed the environment"):
        record.write(environment, other.without_disk())
    assert record.read(environment) == kept and kept.number == 1
