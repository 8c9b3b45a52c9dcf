"""Permissions that are asked for are those of Terraform's resources and of the calls of the package, and no more."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from maskwright.cloud.environment import Environment, build_environment
from maskwright.cloud.google import permissions
from maskwright.cloud.google.errors import ROLES, role_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "google-cloud-access.md").read_text()
LAB: dict[str, Any] = {"name": "lab1", "project": "lab-proj", "zone": "us-east5-b"}
ALL = {
    **LAB,
    "nfs": {},
    "network": {"nat": True},
    "disk": {"size_gb": 100, "source": "gs://corpus/text"},
    "slice": {"accelerator": "v6e", "topology": "4x4"},
}
CHANGES = {
    "google_artifact_registry_repository": "artifactregistry.repositories create update delete",
    "google_artifact_registry_repository_iam_member": "artifactregistry.repositories setIamPolicy",
    "google_compute_disk": "compute.disks create update delete",
    "google_compute_network": "compute.networks create delete",
    "google_compute_router": "compute.routers create update delete",
    "google_compute_router_nat": "compute.routers update",
    "google_compute_subnetwork": "compute.subnetworks create update delete",
    "google_container_cluster": "container.clusters create update delete",
    "google_container_node_pool": "container.clusters update",
    "google_filestore_instance": "file.instances create update delete",
    "google_project_iam_member": "resourcemanager.projects setIamPolicy",
    "google_service_account": "iam.serviceAccounts create delete",
    "google_service_account_iam_member": "iam.serviceAccounts setIamPolicy",
    "google_storage_bucket": "storage.buckets create update delete",
    "google_storage_bucket_iam_member": "storage.buckets setIamPolicy",
}
"""What the provider asks for when it changes a resource of the type."""
BY_REST = {"storage.objects.create", "storage.objects.delete"}
"""Terraform's state, and the record."""
CHANGING = ("create", "update", "delete", "setIamPolicy")
IN_THE_CLUSTER = re.compile(r"container\.(?!clusters|operations)")


def needed(**changes: Any) -> dict[str, list[str]]:
    environment: Environment = build_environment({**ALL, **changes}, "lab.yaml")
    return permissions.needed(environment)


def test_up_and_down_may_change_what_terraform_has_and_nothing_else() -> None:
    files = (ROOT / "deploy" / "terraform").rglob("*.tf")
    types = {name for path in files for name in re.findall(r'(?m)^resource "(\w+)"', path.read_text())}
    assert types == set(CHANGES)
    pairs = (CHANGES[name].split(" ", 1) for name in types)
    terraform = {f"{kind}.{verb}" for kind, verbs in pairs for verb in verbs.split()}
    asked = {name for name, users in needed().items() if {"up", "down"} & set(users) and not IN_THE_CLUSTER.match(name)}
    assert {name for name in asked if name.rpartition(".")[2] in CHANGING} == terraform | BY_REST


def test_only_what_the_environment_has_is_asked_for() -> None:
    theirs = {"name": "vpc", "subnetworks": {"us-east5": "train"}}
    plain = needed(nfs=None, disk=None, network=theirs)
    assert not [
        name for name in plain if name.startswith(("file.", "compute.net", "compute.subnet", "compute.routers"))
    ]
    assert not [name for name in plain if name.startswith("compute.disks")] and "seed" not in str(plain.values())


def test_each_role_is_on_the_page_and_none_is_the_owners() -> None:
    asked = {role_of(name) for name in needed()}
    assert [role for role in asked if role not in PAGE] == []
    assert [role for _, role in ROLES if role not in PAGE] == []
    assert not asked & {"roles/owner", "roles/editor", "roles/iam.securityAdmin"}
    build = PAGE.partition("## Cloud Build")[2]
    granted = {f"roles/{name}" for name in re.findall(r"for role in ([\w.\\\s]+);", build)[0].replace("\\", "").split()}
    limited = {"roles/resourcemanager.projectIamAdmin"}
    parts_of_others = {"roles/artifactregistry.reader", "roles/storage.objectUser", "roles/compute.networkUser"}
    assert asked - parts_of_others - limited <= granted and not limited & granted


def test_who_may_change_the_projects_policy_may_grant_the_role_of_nodes_alone() -> None:
    (role,) = re.findall(r'role += "(roles/[\w.]+)"', (ROOT / "deploy/terraform/access.tf").read_text().split(
        'resource "google_project_iam_member"'
    )[1])[:1]  # fmt: skip
    lines = permissions.grants("lab-proj", ["resourcemanager.projects.setIamPolicy", "storage.buckets.get"])
    limit = f".hasOnly(['{role}'])"
    assert limit in lines["roles/resourcemanager.projectIamAdmin"] and limit in PAGE
    assert lines["roles/storage.admin"].endswith("--role=roles/storage.admin --condition=None")
