"""`env up` and `env down` as functions. Terraform's state is the only list of what exists; the objects in
the cluster follow it (objects.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from maskwright.cloud import record
from maskwright.cloud.environment import read_environment
from maskwright.cloud.google.rest import Google
from maskwright.cloud.provision import objects
from maskwright.cloud.provision.init import is_foreign
from maskwright.cloud.provision.terraform_cli import Change, Terraform, TerraformPlan
from maskwright.cloud.provision.variables import variables
from maskwright.cloud.record import EnvironmentRecord
from maskwright.core.console import say, typed
from maskwright.core.errors import CloudError, InputError

Part = Literal["slice", "group", "disk", "nfs"]
RUNNING = ("google_container_cluster.environment", "google_compute_router.nat")
"""Parts that `down` deletes without --delete-data: everything with an hourly price, except storage."""
DISK, NFS, BUCKET = "google_compute_disk.data", "google_filestore_instance.nfs", "google_storage_bucket."
REPOSITORY = "google_artifact_registry_repository.images"
Confirm = Callable[[TerraformPlan], None]
"""Raises the error that ends the command if the user rejects the plan."""


class EnvironmentSession:
    """An environment during a command: its YAML, its record and its Terraform."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.environment = read_environment(location)
        self.google = Google(self.environment.project)
        bucket = self.google.find("storage", f"b/{self.environment.state}")
        if bucket is not None and is_foreign(self.google, bucket):
            fix = "set state_bucket in the YAML to a name of your own; do not use this one"
            raise InputError("belongs to another project", where=f"gs://{self.environment.state}", fix=fix)
        if bucket is None:
            fix = f"create it: `{typed(['env', 'init', location])}`"
            raise InputError("the bucket for the state does not exist", where=f"gs://{self.environment.state}", fix=fix)
        self.terraform = Terraform(self.environment)
        self.record = record.read(self.environment)

    def store(self, changed: EnvironmentRecord) -> None:
        """Raises `Locked` if another command has changed the record since it was read."""
        if changed != self.record:
            self.record = record.write(self.environment, changed)


def plan(location: str) -> tuple[EnvironmentSession, TerraformPlan]:
    """The plan of `up`, without changes."""
    session = EnvironmentSession(location)
    with session.terraform.ready():
        planned = session.terraform.plan(variables(session.environment, session.record.for_disk(session.environment)))
    return session, _with_objects(session, planned)


def up(location: str, *, confirm: Confirm, delete_data: bool = False) -> EnvironmentSession:
    """Create the parts in the YAML, or change existing ones accordingly."""
    session = EnvironmentSession(location)
    with session.terraform.ready():
        apply(session, session.record.for_disk(session.environment), confirm, delete_data=delete_data)
    return session


def apply(session: EnvironmentSession, wanted: EnvironmentRecord, confirm: Confirm, *, delete_data: bool) -> None:
    """Plan, confirm, apply, and then apply the objects of the cluster. Without `delete_data`, no data is deleted."""
    environment = session.environment
    planned = session.terraform.plan(variables(environment, wanted))
    _refuse_losses(session, planned, delete_data)
    disk = [change for change in planned.changes if change.type == "google_compute_disk" and not change.deposed]
    if wanted.seeded is not None and any(change.kind in ("create", "replace") for change in disk):
        fix = "run `env down --only disk --delete-data`, then `env seed`"
        what = "this disk was seeded but no longer exists; applying would create an empty one"
        raise InputError(what, where=environment.disk_name(wanted.generation), fix=fix)
    ended = _ended(session)
    if planned.differs or ended:
        what = f"{planned.text.rstrip()}\n\njobs end, and save: {', '.join(ended)}" if ended else planned.text
        confirm(_with_objects(session, replace(planned, text=what)))
    else:
        say("Google Cloud: nothing to change")
    session.store(wanted)
    if planned.differs:
        if any(change.loses_data for change in disk):
            objects.release(environment, objects.DISK_CLAIM)
        session.terraform.apply(planned)
    objects.apply(environment, session.record, session.terraform.outputs())


def _ended(session: EnvironmentSession) -> list[str]:
    """Jobs on nodes of the kinds that the YAML no longer has."""
    if RUNNING[0] not in session.terraform.resources():
        return []
    return [
        name
        for kind in sorted(objects.KINDS - set(session.environment.hosts))
        for name in objects.jobs_on(session.environment, kind)
    ]


def _with_objects(session: EnvironmentSession, planned: TerraformPlan) -> TerraformPlan:
    lines = objects.summary(session.environment)
    return replace(planned, text="\n".join([planned.text.rstrip(), "", "In the cluster:", *lines, ""]))


def _refuse_losses(session: EnvironmentSession, planned: TerraformPlan, delete_data: bool) -> None:
    lost = [change for change in planned.changes if change.loses_data]
    # NFS and buckets are protected until an earlier apply, so this one could not delete them.
    protected = [change for change in lost if change.type != "google_compute_disk"]
    if protected:
        only = " --only nfs" if protected[0].address.startswith(NFS) else ""
        fix = f"copy what you need, then run `env down{only} --delete-data`; or restore the YAML"
    elif lost and not delete_data:
        fix = "copy what you need, then add --delete-data; or restore the YAML"
    else:
        return
    what = f"this would delete data: {', '.join(change.address for change in protected or lost)}"
    raise InputError(what, where=session.environment.name, fix=fix)


def create_repository(session: EnvironmentSession, confirm: Confirm) -> None:
    """The repository of images, before there is anything else."""
    with session.terraform.ready():
        planned = session.terraform.plan(variables(session.environment, session.record), targets=[REPOSITORY])
        if planned.differs:
            confirm(planned)
            session.terraform.apply(planned)


# ---- down ------------------------------------------------------------------------------------------------------------


def down(location: str, *, only: Part | None = None, delete_data: bool = False, confirm: Confirm) -> EnvironmentSession:
    """Delete running parts; with `delete_data`, everything; with `only`, that part. Jobs save before their cluster, or
    the class of their nodes, is deleted. The existing parts are read from Terraform's state, not from the YAML."""
    if only in ("disk", "nfs") and not delete_data:
        raise InputError("holds data", where=f"--only {only}", fix="add --delete-data once you no longer need its data")
    session = EnvironmentSession(location)
    if only in ("slice", "group"):
        change = Change(f"ComputeClass {only}", "ComputeClass", "delete")
        confirm(TerraformPlan((change,), f"jobs on nodes of the {only} save and end; its nodes are deleted", "", True))
        try:
            objects.delete_class(session.environment, only)
        except CloudError as error:
            if error.reason != "missing":
                raise
            say("nothing to delete: there is no cluster")
        return session
    targets = {"disk": [DISK], "nfs": [NFS], None: [] if delete_data else [*RUNNING]}[only]
    with session.terraform.ready():
        existing = session.terraform.resources()
        values = variables(session.environment, session.record, delete_data=delete_data) | _nfs_of(existing)
        planned = session.terraform.plan(values, destroy=True, targets=targets)
        if not planned.changes:
            say("nothing to delete")
            return session
        confirm(planned)
        has_cluster = RUNNING[0] in existing
        if has_cluster and only is None:
            objects.end_jobs(session.environment)
        elif has_cluster and only is not None:
            objects.release(session.environment, {"disk": objects.DISK_CLAIM, "nfs": objects.NFS_CLAIM}[only])
        if delete_data:
            protected = [address for address in existing if address.startswith((NFS, BUCKET)[: 1 + (only is None)])]
            _unprotect(session, values, [] if only == "disk" else protected)
            planned = session.terraform.plan(values, destroy=True, targets=targets)
        session.terraform.apply(planned)
        if delete_data and only != "nfs":
            gone = session.record.without_disk()
            session.store(gone if only else replace(gone, images={}))
    return session


def _nfs_of(existing: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The variable `nfs` from the state, since the YAML may name another one, or none."""
    state = next((values for address, values in existing.items() if address.startswith(NFS)), None)
    if state is None:
        return {"nfs": None}
    share = state["file_shares"][0]
    return {"nfs": {"tier": state["tier"], "capacity_gb": share["capacity_gb"], "share": share["name"]}}


def _unprotect(session: EnvironmentSession, values: dict[str, Any], addresses: Sequence[str]) -> None:
    """Terraform reads protection from its state, so an earlier apply lifts it from parts to delete."""
    if not addresses:
        return
    planned = session.terraform.plan(values, targets=addresses)
    if lost := [change.address for change in planned.changes if change.kind != "update"]:
        fix = "run `maskwright env up` first, or restore the YAML"
        raise InputError(f"{lost[0]} differs from the YAML", where=session.environment.name, fix=fix)
    if planned.differs:
        session.terraform.apply(planned)
