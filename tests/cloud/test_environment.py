"""The YAML of an environment: what it may say, what Terraform is told of it, what of it is remembered."""

from pathlib import Path

import pytest
import yaml
from reference.kubernetes.check import faults, published

from maskwright.cli.pages import environment_page
from maskwright.cloud.environment import Environment, build_environment, read_environment
from maskwright.cloud.provision import objects
from maskwright.cloud.record import EnvironmentRecord
from maskwright.config.settings import keys_of
from maskwright.core.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
LAB = {
    "name": "lab1",
    "project": "lab-proj",
    "zone": "us-east5-b",
    "nfs": {"share": "tpushare"},
    "disk": {"size_gb": 2055, "source": "gs://corpus/text"},
    "slice": {"accelerator": "v6e", "topology": "4x4", "provisioning_model": "SPOT"},
    "group": {"machine_type": "g2-standard-12", "size": 2},
}


def lab(**changes):
    """`slice__topology="8x8"` changes one key."""
    values = yaml.safe_load(yaml.safe_dump(LAB))
    for dotted, value in changes.items():
        section, _, key = dotted.rpartition("__")
        (values[section] if section else values)[key] = value
    return build_environment(values, "lab.yaml")


def test_page_of_the_documentation_is_the_model():
    """`maskwright schema environment > docs/google-cloud-environment.md` renews it."""
    assert (ROOT / "docs" / "google-cloud-environment.md").read_text() == environment_page()


def test_number_of_keys_is_pinned():
    """Each key is a promise. Adding one is a decision: change this number and the documentation with it."""
    assert len(keys_of(Environment)) == 40


@pytest.mark.parametrize(
    ("accelerator", "topology", "hosts", "machine"),
    [
        ("v6e", "1x1", 1, "ct6e-standard-1t"),
        ("v6e", "2x2", 1, "ct6e-standard-4t"),
        ("v6e", "2x4", 1, "ct6e-standard-8t"),
        ("v6e", "16x16", 64, "ct6e-standard-4t"),
        ("v5p", "2x2x1", 1, "ct5p-hightpu-4t"),
        ("v5p", "2x2x4", 4, "ct5p-hightpu-4t"),
        ("tpu7x", "4x4x4", 16, "tpu7x-standard-4t"),
        ("v5e", "4x4", 4, "ct5lp-hightpu-4t"),
        ("v4", "2x2x4", 4, "ct4p-hightpu-4t"),
    ],
)
def test_hosts_of_a_slice(accelerator, topology, hosts, machine):
    policy = {"workload_policy": "p"} if accelerator == "tpu7x" else {}
    env = lab(slice={"accelerator": accelerator, "topology": topology, **policy}, disk=None)
    assert env.slice and (env.slice.hosts, env.slice.machine()) == (hosts, machine)


REFUSED = [
    ({"name": "Lab"}, "name"),
    ({"zone": "us-east5"}, "zone"),
    ({"slices": None}, "unknown key slices. Fix: did you mean slice"),
    ({"slice__topolgy": "4x4"}, "unknown key slice.topolgy. Fix: did you mean slice.topology"),
    ({"slice__topology": "4x4x4"}, "is not a slice that Google rents. Fix: v6e:8x8 is the nearest"),
    ({"slice__topology": "four"}, "is not a slice of a TPU. Fix: write KIND:TOPOLOGY, as v6e:4x4"),
    ({"slice": {"accelerator": "v5e", "topology": "4x4", "machine_type": "ct5lp-hightpu-1t"}}, "cannot form v5e 4x4"),
    ({"slice": {"accelerator": "v3", "topology": "4x4"}}, "GKE has no v3. Fix: accelerator: v5e, the nearest kind"),
    ({"slice": {"accelerator": "tpu7x", "topology": "2x2x2"}}, "--accelerator-topology=2x2x2 --region=REGION`, then"),
    ({"slice__machine_type": "ct6e-standard-3t"}, "cannot form v6e 4x4"),
    ({"slice__provisioning_model": "FLEX_START"}, "FLEX_START requires max_run_hours, up to 168"),
    ({"slice__provisioning_model": "RESERVATION_BOUND"}, "go together"),
    ({"slice__reservation": "ours"}, "go together"),
    ({"slice__provisioning_model": "PREEMPTIBLE"}, "slice.provisioning_model"),
    ({"slice__fallbacks": [{"zone": "us-east5-a"}]}, "nodes in us-east5-a cannot attach the disk"),
    ({"slice__fallbacks": [{"zone": "us-west1-c"}], "disk": None}, "another region than their cluster"),
    ({"disk__type": "pd-ssd"}, "nodes of v6e cannot attach pd-ssd"),
    *(
        ({"slice": None, "group": {"machine_type": machine}, "disk__type": disk}, f"{machine} cannot attach {disk}")
        for machine, disk in (
            ("c4-standard-8", "pd-balanced"),
            ("n4-standard-8", "pd-ssd"),
            ("a3-ultragpu-8g", "pd-balanced"),
            ("e2-standard-4", "hyperdisk-ml"),
            ("a4-highgpu-8g", "pd-balanced"),
        )
    ),
    ({"disk__source": "s3://bucket/text"}, "disk.source"),
    ({"disk__source": None}, "nothing would fill the disk"),
    ({"cluster": {"location": "us-east1"}}, "is in another region than us-east5-b"),
    (
        {"network": {"name": "vpc", "project": "host-proj", "subnetworks": {"us-east5": "a"}}},
        "Shared VPC requires them",
    ),
    ({"nfs__capacity_gb": 512}, "nfs.capacity_gb"),
    ({"nfs__tier": "BASIC_SSD"}, "below BASIC_SSD's 2560"),
    ({"group__machine_type": "a3-highgpu-3g"}, "is not a known machine type"),
    ({"network": {"project": "host-proj"}}, "need an existing network"),
    ({"network": {"name": "vpc", "nat": True}}, "network.nat cannot be set"),
    ({"network": {"name": "vpc", "subnetworks": {"us-east1": "a"}}}, "network.subnetworks has none for us-east5"),
    ({"network": {"name": "vpc", "subnetworks": {"east": "a"}}}, "network.subnetworks"),
    ({"labels": {"maskwright-environment": "other"}}, "is not a valid label name"),
    ({"labels": {"token": "https://me:hunter22@host/"}}, "holds a secret"),
]


@pytest.mark.parametrize(("change", "says"), REFUSED, ids=lambda value: str(value)[:50])
def test_refusals_name_the_key(change, says):
    with pytest.raises(ConfigError) as caught:
        lab(**change)
    assert says in str(caught.value)
    assert str(caught.value).startswith("lab.yaml: ")


def test_a_file_is_read_and_its_errors_have_a_line(tmp_path):
    path = tmp_path / "lab.yaml"
    path.write_text(yaml.safe_dump(LAB))
    assert read_environment(str(path)) == lab()
    existing = lab(network={"name": "vpc", "subnetworks": {"us-east5": "a"}})
    assert existing.subnetwork_path.endswith("/regions/us-east5/subnetworks/a")
    path.write_text("name: lab1\nname: lab2\n")
    with pytest.raises(ConfigError, match=r"lab\.yaml:2:1: is not YAML: key 'name' is given twice"):
        read_environment(str(path))


def test_another_size_is_another_disk():
    seeded = EnvironmentRecord(seeded={"files": 1}, disk_gb=2055, disk_type="hyperdisk-ml")
    larger = seeded.for_disk(lab(disk__size_gb=4000))
    assert (larger.generation, larger.seeded, larger.disk_gb) == (2, None, 4000)
    assert seeded.for_disk(lab()) == seeded
    assert seeded.for_disk(lab(disk=None)) == seeded, "taken out of the YAML it is not forgotten"


SEEDED = EnvironmentRecord(1, {"files": 1}, 2055, "hyperdisk-ml")
OUTPUTS = {"nfs": {"address": "10.0.0.2", "handle": "modeInstance/us-east5-b/lab1-nfs/tpushare"}}
MORE = {"provisioning_model": "SPOT", "max_run_hours": 24, "fallbacks": [{"provisioning_model": "FLEX_START"}]}
MORE["fallbacks"] += [{"provisioning_model": "STANDARD"}]
RESERVED = {"provisioning_model": "RESERVATION_BOUND", "reservation": "ours", "fallbacks": [{}]}


@pytest.mark.parametrize("more", [MORE, RESERVED])
@pytest.mark.parametrize(
    ("accelerator", "topology", "machine"),
    [
        ("v4", "2x2x4", "a2-highgpu-1g"),
        ("v5e", "2x4", "a3-highgpu-8g"),
        ("v5p", "2x2x2", "c4-standard-8"),
        ("v6e", "4x4", "g2-standard-12"),
        ("tpu7x", "2x2x2", "n2-standard-8"),
    ],
)
def test_objects_are_those_of_the_published_schemas(accelerator, topology, machine, more):
    policy = {"workload_policy": "p"} if accelerator == "tpu7x" else {}
    env = lab(slice={"accelerator": accelerator, "topology": topology, **more, **policy}, group=None, disk=None)
    env = env.model_copy(update={"group": lab(disk=None, group={"machine_type": machine, **more}).group})
    made = [*objects.basics(env), *objects.volumes(env, SEEDED, OUTPUTS), *objects.queue(env), *objects.classes(env)]
    schemas = published()
    assert not [fault for one in made for fault in faults(one, schemas[one["kind"]], schemas)]
    assert {one["kind"] for one in made} >= {"Namespace", "ServiceAccount", "PersistentVolume", "LocalQueue"}
    for one in made:
        if one["kind"] == "ComputeClass":
            rules = one["spec"]["priorities"]
            assert [_model(rule) for rule in rules] == [model for _, model in env.slice.placements("us-east5-b")]
            placed = bool(policy) and one["metadata"]["name"] == "slice"
            assert all(rule.get("placement") == ({"policyName": "p"} if placed else None) for rule in rules)


def _model(rule):
    """The CRD's own rules: a reservation names its zones itself, and Flex-start is no Spot."""
    if "reservations" in rule:
        assert "location" not in rule and rule["reservations"]["specific"] == [
            {"name": "ours", "zones": ["us-east5-b"]}
        ]
        return "RESERVATION_BOUND"
    assert rule["location"] == {"zones": ["us-east5-b"]}
    if "flexStart" in rule:
        assert "spot" not in rule and rule["maxRunDurationSeconds"] == 86400
        return "FLEX_START"
    return "SPOT" if rule["spot"] else "STANDARD"


def test_jobs_read_the_disk_and_only_the_seeding_writes_it():
    env = lab()
    volume, claim = objects.disk_volume(env, SEEDED, "shared-pd", "ReadOnlyMany")
    assert volume["metadata"]["name"] == claim["spec"]["volumeName"] == "lab1-data-1"
    assert volume["spec"]["csi"]["readOnly"] and claim["spec"]["accessModes"] == ["ReadOnlyMany"]
    assert volume["spec"]["csi"]["volumeHandle"] == "projects/lab-proj/zones/us-east5-b/disks/lab1-data-1"
    writing, _ = objects.disk_volume(env, SEEDED, "seed", "ReadWriteOnce")
    assert "readOnly" not in writing["spec"]["csi"] and writing["metadata"]["name"] == "lab1-data-1-seed"
