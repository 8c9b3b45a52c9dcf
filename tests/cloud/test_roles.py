"""The roles on the page of access are those of Terraform's resources and of the calls of the package, and no more."""

import re
from pathlib import Path

from maskwright.cloud.google.errors import ROLES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "google-cloud-access.md").read_text()
CHANGES = {
    "google_artifact_registry_repository": "roles/artifactregistry.admin",
    "google_artifact_registry_repository_iam_member": "roles/artifactregistry.admin",
    "google_compute_disk": "roles/compute.storageAdmin",
    "google_compute_network": "roles/compute.networkAdmin",
    "google_compute_router": "roles/compute.networkAdmin",
    "google_compute_router_nat": "roles/compute.networkAdmin",
    "google_compute_subnetwork": "roles/compute.networkAdmin",
    "google_container_cluster": "roles/container.admin",
    "google_container_node_pool": "roles/container.admin",
    "google_filestore_instance": "roles/file.editor",
    "google_project_iam_member": "roles/resourcemanager.projectIamAdmin",
    "google_service_account": "roles/iam.serviceAccountAdmin",
    "google_service_account_iam_member": "roles/iam.serviceAccountAdmin",
    "google_storage_bucket": "roles/storage.admin",
    "google_storage_bucket_iam_member": "roles/storage.admin",
}
"""The role with what the provider asks for when it changes a resource of the type."""
POLICY = "roles/resourcemanager.projectIamAdmin"


def test_up_has_the_roles_that_terraform_needs_and_a_build_too():
    files = (ROOT / "deploy" / "terraform").rglob("*.tf")
    assert set(CHANGES) == {name for path in files for name in re.findall(r'(?m)^resource "(\w+)"', path.read_text())}
    needed = set(CHANGES.values())
    (row,) = re.findall(r"(?m)^\| `env up`.*$", PAGE)
    assert needed | {"roles/iam.serviceAccountUser"} == set(re.findall(r"`(roles/[\w.]+)`", row))
    loop = re.findall(r"for role in ([\w.\\\s]+);", PAGE.partition("## Cloud Build")[2])[0].replace("\\", "")
    granted = {f"roles/{name}" for name in loop.split()}
    assert needed - {POLICY} <= granted and POLICY not in granted


def test_each_role_that_an_error_names_is_on_the_page_and_none_is_the_owners():
    named = {role for _, role in ROLES}
    assert [role for role in named if role not in PAGE] == []
    assert not named & {"roles/owner", "roles/editor", "roles/iam.securityAdmin"}


def test_who_may_change_the_projects_policy_may_grant_the_role_of_nodes_alone():
    (role,) = re.findall(r'role += "(roles/[\w.]+)"', (ROOT / "deploy/terraform/access.tf").read_text().split(
        'resource "google_project_iam_member"'
    )[1])[:1]  # fmt: skip
    limit = f".hasOnly(['{role}'])"
    assert limit in PAGE
