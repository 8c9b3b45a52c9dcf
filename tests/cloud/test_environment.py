"""The YAML of an environment: what it may say, what Terraform is told of it, what of it is remembered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from maskwright.cli.pages import environment_page
from maskwright.cloud import machines
from maskwright.cloud.environment import Environment, build_environment, read_environment
from maskwright.cloud.provision import variables
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


def lab(**changes: Any) -> Environment:
    """`slice__topology="8x8"` changes one key."""
    values = yaml.safe_load(yaml.safe_dump(LAB))
    for dotted, value in changes.items():
        section, _, key = dotted.rpartition("__")
        (values[section] if section else values)[key] = value
    return build_environment(values, "lab.yaml")


def test_page_of_the_documentation_is_the_model() -> None:
    """`maskwright env schema --markdown > docs/google-cloud-environment.md` renews it."""
    assert (ROOT / "docs" / "google-cloud-environment.md").read_text() == environment_page()


def test_number_of_keys_is_pinned() -> None:
    """Each key is a promise. Adding one is a decision: change this number and the documentation with it."""
    assert len(keys_of(Environment)) == 40


def test_what_is_derived() -> None:
    env = lab()
    assert (env.region, env.state, env.prefix) == ("us-east5", "lab-proj-maskwright-state", "env/lab1")
    assert env.built_image == "us-east5-docker.pkg.dev/lab-proj/lab1/maskwright"
    assert env.slice and (env.slice.hosts, env.slice.machine(), env.slice.queued) == (4, "ct6e-standard-4t", False)
    assert env.group and (env.group.hosts, env.group.gpus) == (2, 1)


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
        ("v5e", "4x4", 4, "v5litepod-16"),
        ("v4", "2x2x4", 4, "v4-32"),
        ("v3", "4x4", 4, "v3-32"),
        ("v3", "2x2", 1, "v3-8"),
        ("v2", "2x2", 1, "v2-8"),
    ],
)
def test_hosts_of_a_slice(accelerator: str, topology: str, hosts: int, machine: str) -> None:
    fitting = machines.family_of(machines.machine_of(accelerator)).data_disks[0]
    disk = {"size_gb": 100, "source": "gs://corpus/text", "type": fitting}
    env = lab(slice={"accelerator": accelerator, "topology": topology}, disk=disk, group=None)
    assert env.slice and (env.slice.hosts, env.slice.machine()) == (hosts, machine)


def test_a_slice_of_eight_chips_on_two_hosts() -> None:
    env = lab(slice__topology="2x4", slice__machine_type="ct6e-standard-4t")
    assert env.slice and env.slice.hosts == 2


REFUSED = [
    ({"name": "Lab"}, "name"),
    ({"zone": "us-east5"}, "zone"),
    ({"slices": None}, "unknown key slices. Fix: did you mean slice"),
    ({"slice__topolgy": "4x4"}, "unknown key slice.topolgy. Fix: did you mean slice.topology"),
    ({"slice__topology": "4x4x4"}, "is not a slice that Google rents. Fix: v6e:8x8 is the nearest"),
    ({"slice__topology": "four"}, "is not a slice of a TPU. Fix: write KIND:TOPOLOGY, as v6e:4x4"),
    ({"slice": {"accelerator": "v5e", "topology": "4x4", "machine_type": "ct5lp-hightpu-4t"}}, "leave it out"),
    ({"slice__machine_type": "ct6e-standard-3t"}, "cannot form v6e 4x4"),
    ({"slice__runtime_version": "tpu-ubuntu2204-base"}, "runtime_version is for v2, v3, v4 and v5e"),
    ({"slice__provisioning_model": "FLEX_START"}, "FLEX_START requires max_run_hours, up to 168"),
    ({"slice__provisioning_model": "RESERVATION_BOUND"}, "go together"),
    ({"slice__reservation": "ours"}, "go together"),
    ({"slice__provisioning_model": "PREEMPTIBLE"}, "slice.provisioning_model"),
    ({"slice__fallbacks": [{"zone": "us-east5-a"}]}, "hosts in us-east5-a cannot attach the disk"),
    ({"slice__fallbacks": [{"zone": "us-west1-c"}], "disk": None}, "another region than NFS"),
    ({"disk__type": "pd-ssd"}, "hosts of v6e cannot attach pd-ssd"),
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
def test_refusals_name_the_key(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        lab(**change)
    assert says in str(caught.value)
    assert str(caught.value).startswith("lab.yaml: ")


def test_a_file_is_read_and_its_errors_have_a_line(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(yaml.safe_dump(LAB))
    assert read_environment(str(path)) == lab()
    path.write_text("name: lab1\nname: lab2\n")
    with pytest.raises(ConfigError, match=r"lab\.yaml:2:1: is not YAML: key 'name' is given twice"):
        read_environment(str(path))


def test_variables_attach_the_disk_once_it_is_seeded() -> None:
    env = lab()
    before = variables.variables(env, EnvironmentRecord().for_disk(env), None)
    assert before["disk"] == {"name": "lab1-data-1", "type": "hyperdisk-ml", "size_gb": 2055, "seeded": False}
    assert [before[kind]["attach_disk"] for kind in ("slice", "group")] == [False, False]
    seeded = EnvironmentRecord(seeded={"files": 1}, disk_gb=2055, disk_type="hyperdisk-ml").for_disk(env)
    after = variables.variables(env, seeded, None)
    assert after["disk"]["seeded"] and after["slice"]["attach_disk"] and after["group"]["attach_disk"]


def test_another_size_is_another_disk() -> None:
    seeded = EnvironmentRecord(seeded={"files": 1}, disk_gb=2055, disk_type="hyperdisk-ml")
    larger = seeded.for_disk(lab(disk__size_gb=4000))
    assert (larger.generation, larger.seeded, larger.disk_gb) == (2, None, 4000)
    assert seeded.for_disk(lab()) == seeded
    assert seeded.for_disk(lab(disk=None)) == seeded, "taken out of the YAML it is not forgotten"


def test_placements_begin_with_the_own_one_and_go_round() -> None:
    env = lab(disk=None, nfs=None, slice__fallbacks=[{"zone": "us-east5-a"}, {"provisioning_model": "STANDARD"}])
    found = [variables.variables(env, EnvironmentRecord().moved("slice", n), None)["slice"] for n in range(4)]
    assert [(f["zone"], f["provisioning_model"]) for f in found] == [
        ("us-east5-b", "SPOT"),
        ("us-east5-a", "SPOT"),
        ("us-east5-b", "STANDARD"),
        ("us-east5-b", "SPOT"),
    ]


def test_a_queued_slice_is_not_terraforms() -> None:
    assert (
        variables.variables(lab(slice={"accelerator": "v5e", "topology": "4x4"}), EnvironmentRecord(), None)["slice"]
        is None
    )


def test_only_keeps_the_other_parts_as_they_were() -> None:
    wished = variables.variables(lab(), EnvironmentRecord(), None)
    none = variables.only(None, wished, ["disk"])
    assert none["disk"] and [none[part] for part in ("slice", "group", "nfs")] == [None, None, None]
    old = {**wished, "slice": {**wished["slice"], "topology": "2x2"}, "group": None}
    new = variables.only(old, wished, ["group"])
    assert new["slice"]["topology"] == "2x2" and new["group"] == wished["group"]
    assert variables.without(new, ["slice"])["slice"] is None


def test_a_host_that_stays_keeps_its_subnetwork() -> None:
    theirs = {"name": "vpc", "project": "host-proj", "subnetworks": {"us-east5": "a", "us-west1": "b"}}
    west = {"zone": "us-west1-c", "machine_type": "g2-standard-12"}
    old = variables.variables(lab(network=theirs, group=west, nfs=None, disk=None), EnvironmentRecord(), None)
    wished = variables.variables(
        lab(network=theirs | {"subnetworks": {"us-east5": "c"}}, group=None), EnvironmentRecord(), None
    )
    kept = variables.only(old, wished, ["slice"])
    host = "projects/host-proj"
    assert kept["network"] == {
        "id": f"{host}/global/networks/vpc",
        "shared": True,
        "subnetworks": {
            "us-east5": f"{host}/regions/us-east5/subnetworks/c",
            "us-west1": f"{host}/regions/us-west1/subnetworks/b",
        },
    }
    assert set(kept["regions"]) == set(kept["network"]["subnetworks"]) and wished["regions"] == ["us-east5"]
