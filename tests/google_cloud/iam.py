"""What a service account may do with objects of the fake cloud, by roles and conditions of its buckets' policies.

Whoever comes by `cloud.url` owns the project; `with acting_as(cloud, account) as url` gives an address at which callers
are that account. Permissions of the roles: docs.cloud.google.com/storage/docs/access-control/iam-roles. Conditions are
`resource.name.startsWith('…')`, joined by ||. Listing is asked for on the bucket, and replacing needs the right to
delete: Google is not known to look at a precondition before that, so the fake refuses first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from google_cloud import storage
from google_cloud.judge import Refused, Request

if TYPE_CHECKING:
    from google_cloud.fake import Cloud

ACCESS = Path(__file__).resolve().parents[2] / "deploy" / "terraform" / "access.tf"
ROLES = {
    "roles/storage.objectViewer": {"get", "list"},
    "roles/storage.objectCreator": {"create"},
    "roles/storage.objectUser": {"get", "list", "create", "delete", "update"},
}
STARTS = r"resource\.name\.startsWith\('([^']+)'\)"


@contextmanager
def acting_as(cloud: Cloud, account: str) -> Iterator[str]:
    from google_cloud.server import serve

    server = serve(cloud, account)
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def grant_hosts(cloud: Cloud, account: str, **buckets: str) -> None:
    """As access.tf does: its members of buckets, read without Terraform. `buckets`: names of dataset, runs and jobs;
    those that do not exist are made."""
    text = ACCESS.read_text().replace("${local.objects}", f"projects/_/buckets/{buckets['jobs']}/objects")
    members = re.findall(r'(?ms)^resource "google_storage_bucket_iam_member" "\w+" \{\n(.*?)^\}', text)
    assert len(members) >= 4
    for member in members:
        (bucket,), (role,) = (
            re.findall(r"google_storage_bucket\.(\w+)\.name", member),
            re.findall(r'"(roles/.*)"', member),
        )
        name = buckets[bucket]
        if f"storage/b/{name}" not in cloud.resources:
            storage.make_bucket(cloud, {"name": name})
        condition = re.findall(r'expression = "(.*)"', member)
        bind(cloud, name, role, account, condition[0] if condition else "")


def bind(cloud: Cloud, bucket: str, role: str, account: str, expression: str = "") -> None:
    binding = {"role": role, "members": [f"serviceAccount:{account}"]}
    bindings = storage.policy(cloud, bucket)["bindings"]
    made = binding | ({"condition": {"title": "by name", "expression": expression}} if expression else {})
    if made not in bindings:
        bindings.append(made)


def permit(cloud: Cloud, account: str, request: Request) -> None:
    """Raises `Refused` where the account lacks a permission that the method needs."""
    service, kind, verb = f"{request.api.name}.{request.id.split('.', 1)[1]}".rsplit(".", 2)
    if (service, kind) != ("storage", "objects"):
        raise refused(account, f"{service}.{kind}.{verb}", request.name)
    bucket, name = request.path["bucket"], request.path.get("object", "")
    if verb in ("copy", "rewrite", "move"):
        raise NotImplementedError(f"{verb} as {account}")
    if verb == "insert":
        name = request.query.get("name") or str(request.body.get("name", ""))
        require(cloud, account, bucket, name, "create")
        if storage.live(cloud, bucket, name):
            require(cloud, account, bucket, name, "delete")
        return
    require(cloud, account, bucket, name, {"patch": "update"}.get(verb, verb))


def require(cloud: Cloud, account: str, bucket: str, name: str, verb: str) -> None:
    resource = f"projects/_/buckets/{bucket}" + (f"/objects/{name}" if verb != "list" else "")
    for binding in storage.policy(cloud, bucket)["bindings"]:
        if f"serviceAccount:{account}" in binding["members"] and verb in ROLES[binding["role"]]:
            expression = (binding.get("condition") or {}).get("expression")
            if not expression or resource.startswith(prefixes(expression)):
                return
    raise refused(account, f"storage.objects.{verb}", resource)


def prefixes(expression: str) -> tuple[str, ...]:
    assert re.fullmatch(rf"{STARTS}( \|\| {STARTS})*", expression), expression
    return tuple(re.findall(STARTS, expression))


def refused(account: str, permission: str, resource: str) -> Refused:
    what = f"{account} does not have {permission} access to the Google Cloud Storage object. Permission '{permission}' "
    return Refused(f"{what}denied on resource '{resource}' (or it may not exist).", 403)
