"""Permissions that commands ask for, beside the resources of deploy/terraform and the page of roles."""

from __future__ import annotations

import re
from typing import Any

from google_cloud import watcher_role
from google_cloud.terraform_world import ROOT, SOURCE

from maskwright.cloud.environment import Environment, build_environment
from maskwright.cloud.google import permissions
from maskwright.cloud.google.errors import role_of

PAGE = (ROOT / "docs" / "google-cloud-roles.md").read_text()
ALL: dict[str, Any] = {
    "name": "lab1",
    "project": "lab-proj",
    "zone": "us-east5-b",
    "nfs": {},
    "network": {"nat": True},
    "disk": {"size_gb": 9999, "source": "gs://corpus/x"},
    "group": {"machine_type": "g2-standard-12"},
}
SLICES = ({"accelerator": "v6e", "topology": "4x4"}, {"accelerator": "v5e", "topology": "4x4"})
CHANGES = {
    "google_artifact_registry_repository": "artifactregistry.repositories create update delete",
    "google_artifact_registry_repository_iam_member": "artifactregistry.repositories setIamPolicy",
    "google_compute_disk": "compute.disks create update delete",
    "google_compute_firewall": "compute.firewalls create update delete",
    "google_compute_instance": "compute.instances create delete",
    "google_compute_instance_group_manager": "compute.instanceGroupManagers create update delete",
    "google_compute_instance_template": "compute.instanceTemplates create delete",
    "google_compute_network": "compute.networks create delete",
    "google_compute_resource_policy": "compute.resourcePolicies create delete",
    "google_compute_router": "compute.routers create update delete",
    "google_compute_router_nat": "compute.routers update",
    "google_compute_subnetwork": "compute.subnetworks create delete",
    "google_filestore_instance": "file.instances create update delete",
    "google_service_account": "iam.serviceAccounts create delete",
    "google_storage_bucket": "storage.buckets create update delete",
    "google_storage_bucket_iam_member": "storage.buckets setIamPolicy",
}
"""What the provider asks for when it changes a resource of the type."""
BY_REST = {f"tpu.nodes.{verb}" for verb in ("create", "delete")} | {
    f"storage.objects.{verb}"
    for verb in ("create", "delete")  # state, records and jobs
}
CHANGING = ("create", "update", "delete", "setIamPolicy")
ON_THE_PROJECT = ("roles/owner", "roles/iam.securityAdmin", "roles/resourcemanager.projectIamAdmin")
"""Roles with resourcemanager.projects.setIamPolicy that are granted on projects."""


def environments() -> list[Environment]:
    return [build_environment({**ALL, "slice": hosts}, "x") for hosts in SLICES]


def types(*files: str) -> set[str]:
    texts = [path.read_text() for pattern in files for path in SOURCE.glob(pattern)]
    return {name for text in texts for name in re.findall(r'(?m)^resource "(\w+)"', text)}


def expand(names: set[str]) -> set[str]:
    pairs = (CHANGES[name].split(" ", 1) for name in names)
    return {f"{kind}.{verb}" for kind, verbs in pairs for verb in verbs.split()}


def changing(names: set[str]) -> set[str]:
    return {name for name in names if name.rpartition(".")[2] in CHANGING}


def test_up_and_down_may_change_what_terraform_has_and_nothing_else() -> None:
    assert types("*.tf", "modules/*/*.tf") == set(CHANGES)
    asked = [permissions.needed(environment).items() for environment in environments()]
    held = {name for items in asked for name, commands in items if {"up", "down", "seed"} & set(commands)}
    assert changing(held) == expand(set(CHANGES)) | BY_REST


def test_a_watcher_may_change_hosts_and_nothing_else() -> None:
    """The role of the page has what `env up` needs for hosts; of everything else what Terraform reads. Rights on
    objects are granted on two buckets."""
    own = {*permissions.HOSTS, *permissions.SLICE, *permissions.QUEUED, "compute.subnetworks.use"}
    asked = [permissions.needed(environment).items() for environment in environments()]
    up = {name for items in asked for name, commands in items if "up" in commands}
    read = {name for name in up if name.rpartition(".")[2] in ("get", "getIamPolicy", "useReadOnly")}
    assert watcher_role.permissions() == own | {name for name in read if not name.startswith("storage.objects.")}
    hosts = expand(types("modules/hosts/*.tf")) | {"compute.instances.create", "compute.instances.delete"}
    boot_disks, nodes = {"compute.disks.create"}, {"tpu.nodes.create", "tpu.nodes.delete"}
    assert changing(watcher_role.permissions()) == hosts | boot_disks | nodes


def test_nobody_grants_roles_on_the_project() -> None:
    for environment in environments():
        assert "resourcemanager.projects.setIamPolicy" not in permissions.needed(environment)
        asked = {role_of(name) for name in permissions.needed(environment)}
        assert not asked & {*ON_THE_PROJECT, "roles/iam.serviceAccountAdmin"}
    build = PAGE.partition("## Cloud Build")[2]
    granted = {f"roles/{name}" for name in re.findall(r"for role in ([\w.\\\s]+);", build)[0].replace("\\", "").split()}
    table = [line for line in PAGE.splitlines() if line.startswith("|")]
    for role in (*ON_THE_PROJECT, "roles/iam.serviceAccountAdmin"):
        assert role not in granted and not [line for line in table if role in line]
    asked = {role_of(name) for environment in environments() for name in permissions.needed(environment)}
    in_others = {"roles/artifactregistry.reader", "roles/storage.objectUser"}  # parts of the admins' roles
    assert asked - in_others - {"roles/tpu.admin"} <= granted
