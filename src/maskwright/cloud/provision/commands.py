"""`env plan`, `env up` and `env down` as functions.

They write the wanted variables to the bucket (`wanted.json`) before Terraform begins. So the next `up` or `down` can
finish what a failed or killed run has begun, and `--only` knows the state of the other parts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from maskwright.cloud import record
from maskwright.cloud.environment import read_environment, read_script
from maskwright.cloud.google.rest import Google
from maskwright.cloud.provision import queued_slice, variables
from maskwright.cloud.provision.init import is_foreign
from maskwright.cloud.provision.terraform_cli import Change, Terraform, TerraformPlan
from maskwright.cloud.record import EnvironmentRecord
from maskwright.core.console import say, warn
from maskwright.core.errors import InputError, Locked, MaskwrightError, TerraformError
from maskwright.core.folder import Folder
from maskwright.core.shell import typed

DESTRUCTIVE = ("replace", "delete")
Confirm = Callable[[TerraformPlan], None]
"""Raises the error that ends the command if the user rejects the plan."""


class EnvironmentSession:
    """An environment during a command: its YAML, its record, and the variables that were wanted last."""

    def __init__(self, location: str, *, lock_timeout_seconds: float = 60.0) -> None:
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
        self.folder = record.folder(self.environment)
        self.terraform = Terraform(self.environment, lock_timeout_seconds=lock_timeout_seconds)
        self.refresh()

    def refresh(self) -> None:
        """Read the record and the wanted variables, which other commands may have changed. Raises `MaskwrightError`."""
        self._last_read = self._read()
        self.record, self.wanted = self._last_read
        if self.wanted is not None and not self.wanted.get("disk") and self.record.disk_gb is not None:
            self.record = _without_disk(self.record)  # the command that deleted it ended before it stored that

    def _read(self) -> tuple[EnvironmentRecord, dict[str, Any] | None]:
        wanted = self.folder.get_json(record.WANTED)
        if wanted is None and self.folder.get(record.WANTED) is not None:
            fix = "restore the object's last version (gcloud storage ls --all-versions)"
            raise MaskwrightError("cannot be read", where=f"{self.folder.location}/{record.WANTED}", fix=fix)
        return record.read(self.environment), wanted

    def requested(self, *, disk: bool = True) -> dict[str, Any]:
        """Everything that the YAML asks for, as Terraform's variables. With `disk` False the record of the existing
        disk stays, even if the YAML describes another one."""
        if disk:
            self.record = self.record.for_disk(self.environment)
        setup = variables.setup_address(self.environment, self.location)
        return variables.variables(self.environment, self.record, setup)

    def store_wanted(self, values: Mapping[str, Any]) -> None:
        """Store the wanted variables and the record. Raises `Locked` if another command has changed them meanwhile."""
        if self._read() != self._last_read:
            fix = "run the same command again; it then sees that change"
            what = "another command has changed the environment meanwhile"
            raise Locked(what, where=self.environment.name, fix=fix)
        self.wanted = dict(values)
        self.folder.put_json(record.WANTED, self.wanted)
        record.write(self.environment, self.record)
        self._last_read = self.record, json.loads(json.dumps(self.wanted))

    def store_record(self, changed: EnvironmentRecord) -> None:
        if changed != self.record:
            self.record = changed
            record.write(self.environment, changed)
            self._last_read = changed, self._last_read[1]

    def has_buckets(self) -> bool:
        names = (self.environment.runs_bucket, self.environment.jobs_bucket)
        return all(self.google.find("storage", f"b/{name}") is not None for name in names)


def plan(
    location: str, *, parts: Collection[str] = (), lock_timeout_seconds: float = 60.0
) -> tuple[EnvironmentSession, TerraformPlan]:
    """What `up` would do. Changes nothing."""
    session = EnvironmentSession(location, lock_timeout_seconds=lock_timeout_seconds)
    target = _target(session, parts)
    with session.terraform.ready():
        planned = session.terraform.plan(target)
    queued = _plan_queued(session) if "slice" in (parts or variables.PARTS) else None
    if queued is None:
        return session, planned
    text = f"{planned.text.rstrip()}\n\n{queued.text}\n"
    return session, TerraformPlan((*planned.changes, *queued.changes), text, planned.file, True)


def up(
    location: str,
    *,
    parts: Collection[str] = (),
    confirm: Confirm,
    delete_data: bool = False,
    placement: Mapping[str, int] | None = None,
    same_image: bool = False,
    lock_timeout_seconds: float = 60.0,
) -> EnvironmentSession:
    """Create what the YAML asks for; with `parts`, change only those. `placement` gives the slice or group another one.
    With `same_image`, hosts keep their image even if another one was built."""
    session = EnvironmentSession(location, lock_timeout_seconds=lock_timeout_seconds)
    for kind, number in (placement or {}).items():
        session.record = session.record.moved(kind, number)
    target = _target(session, parts)
    if same_image and session.record.built(session.environment) is not None:
        target["host"] = variables.with_image_of(session.wanted, target["host"])
    with session.terraform.ready():
        if (setup := read_script(session.location, session.environment.host.setup)) is not None:
            if not session.has_buckets():
                say("creating the buckets first: hosts read the set-up script from there")
                apply(session, variables.only(session.wanted, target, ("disk", "nfs")), confirm, delete_data=False)
            # Uploaded before the hosts are created, which read it when they start.
            Folder(f"gs://{session.environment.jobs_bucket}/setup").put(f"{setup[0]}.sh", setup[1])
        includes_slice = "slice" in (parts or variables.PARTS)
        if includes_slice and not session.environment.queued:
            _remove_queued(session, confirm)
        apply(session, target, confirm, delete_data=delete_data, parts=parts)
        if includes_slice and session.environment.queued:
            if (planned := _plan_queued(session)) is not None:
                confirm(planned)
            outputs = session.terraform.outputs()
            queued_slice.create_if_missing(
                session.google, session.environment, session.record, target, outputs, session.store_record
            )
    return session


def _plan_queued(session: EnvironmentSession) -> TerraformPlan | None:
    """The plan for a queued slice, which Terraform does not manage."""
    change = queued_slice.change(session.google, session.environment, session.record)
    if change is None:
        return None
    return TerraformPlan((change,), queued_slice.sentence_about(session.environment, session.record, change), "", True)


def _remove_queued(session: EnvironmentSession, confirm: Confirm) -> None:
    if session.record.queued_zone is not None:
        name = f"queued resource {queued_slice.name(session.environment)}"
        text = f"{name} in {session.record.queued_zone} will be deleted"
        confirm(TerraformPlan((Change(name, "queued_resource", "delete"),), text, "", True))
        session.store_record(queued_slice.delete(session.google, session.environment, session.record))


def _target(session: EnvironmentSession, parts: Collection[str]) -> dict[str, Any]:
    asked = session.requested(disk=not parts or "disk" in parts)
    missing = [part for part in parts if getattr(session.environment, part) is None]
    if missing:
        fix = f"add a section `{missing[0]}:`, or leave --only out to delete it"
        raise InputError(f"has no {missing[0]}", where=session.location, fix=fix)
    if parts:
        return variables.only(session.wanted, asked, parts)
    before = session.wanted or {}
    if before.get("seeder") and before.get("disk") == asked["disk"]:
        say("the seeding machine stays: `env seed` continues with it, `env down` deletes it")
        return {**asked, "seeder": before["seeder"]}
    return asked


def apply(
    session: EnvironmentSession,
    target: dict[str, Any],
    confirm: Confirm,
    *,
    delete_data: bool,
    parts: Collection[str] = (),
) -> None:
    """Plan, confirm, store the wanted variables and apply. Without `delete_data`, no data is deleted; with `parts`, no
    host of another part."""
    planned = session.terraform.plan(target)
    others = [f'module.hosts["{kind}"]' for kind in ("slice", "group") if parts and kind not in parts]
    if moved := [
        change.address
        for change in planned.changes
        if change.kind in DESTRUCTIVE and change.address.startswith(tuple(others))
    ]:
        fix = "`maskwright env up` first, if you want that: what hosts have in common (host, nfs, labels) has changed"
        what = f"{moved[0]} would be deleted or replaced along with the {' and the '.join(parts)}"
        raise InputError(what, where=session.environment.name, fix=fix)
    # NFS and buckets are protected until an earlier apply, and their names are taken until they are deleted.
    lost = [change for change in planned.changes if change.loses_data and change.type != variables.DATA["disk"]]
    if lost:
        nfs = lost[0].type == variables.DATA["nfs"]
        fix = f"copy what you need, then `env down{' --only nfs' if nfs else ''} --delete-data`; or restore the YAML"
        raise InputError(f"this would delete data: {lost[0].address}", where=session.environment.name, fix=fix)
    if (target["disk"] or {}).get("seeded") and _change_of(planned, "google_compute_disk", "create", "replace"):
        fix = "`env down --only disk --delete-data`, and --only for hosts that have it; then `env seed`"
        what = "this disk was seeded but no longer exists; applying would create an empty one"
        raise InputError(what, where=target["disk"]["name"], fix=fix)
    carry_out(session, target, planned, confirm, delete_data=delete_data)


def carry_out(
    session: EnvironmentSession, target: dict[str, Any], planned: TerraformPlan, confirm: Confirm, *, delete_data: bool
) -> None:
    lost = [change for change in planned.changes if change.loses_data]
    if lost and not delete_data:
        raise InputError(
            f"this would delete data: {', '.join(change.address for change in lost)}",
            where=session.environment.name,
            fix="copy what you need, then add --delete-data; or restore the YAML",
        )
    if not planned.differs:
        session.store_wanted(target)
        say("nothing to change")
        return
    confirm(planned)
    session.store_wanted(target)
    session.terraform.apply(planned)


def _change_of(planned: TerraformPlan, type_: str, *kinds: str) -> Change | None:
    wanted = (change for change in planned.changes if change.type == type_ and change.kind in kinds)
    return next((change for change in wanted if not change.deposed), None)


def down(
    location: str,
    *,
    parts: Collection[str] = (),
    delete_data: bool = False,
    confirm: Confirm,
    lock_timeout_seconds: float = 60.0,
) -> EnvironmentSession:
    """Delete what runs, with `parts` only those; with `delete_data` and no `parts`, everything. Of the YAML, only name,
    project and state bucket matter: `wanted.json` says what exists."""
    with_data = [part for part in parts if part not in variables.RUNNING]
    if with_data and not delete_data:
        fix = "add --delete-data once you need nothing on it"
        raise InputError("holds data", where=f"--only {with_data[0]}", fix=fix)
    session = EnvironmentSession(location, lock_timeout_seconds=lock_timeout_seconds)
    requested = variables.variables(session.environment, session.record, None)
    before = {**variables.without(requested, (*variables.PARTS, "seeder")), **(session.wanted or {})}
    before["network"] = session.wanted.get("network") if session.wanted else requested["network"]
    deleted = (*parts, "seeder") if parts else variables.RUNNING
    _refuse_used(session, before, parts)
    target = {**variables.without(before, deleted), "nat": before["nat"] and bool(parts), "delete_data": False}
    with session.terraform.ready():
        if "slice" in deleted:
            _remove_queued(session, confirm)
        if delete_data and ("nfs" in parts or not parts):
            # First delete hosts and lift the protection: Terraform cannot delete a protected part in one apply.
            unprotected = {**target, "disk": before["disk"], "nfs": before["nfs"], "delete_data": True}
            try:
                destroy_running(session, unprotected, confirm, delete_data=False)
            except TerraformError as error:  # perhaps about a part that was never created: delete the rest all the same
                warn(f"{error}; deleting the rest")
        if delete_data and not parts:
            _destroy(session, {**target, "delete_data": True}, confirm)
        else:
            destroy_running(session, target, confirm, delete_data=delete_data)
            if "disk" in parts:
                session.store_record(_without_disk(session.record))
    return session


def _refuse_used(session: EnvironmentSession, before: Mapping[str, Any], parts: Collection[str]) -> None:
    """Refuse to delete a disk that hosts have attached, as Google would, or their NFS, which would replace them."""
    hosts = {kind: before[kind] for kind in ("slice", "group") if before[kind] and kind not in parts}
    uses = {"disk": [kind for kind, values in hosts.items() if values["attach_disk"]], "nfs": list(hosts)}
    if session.record.queued_zone is not None and "slice" not in parts:
        uses["nfs"].append("slice")
        uses["disk"] += ["slice"] if (before["disk"] or {}).get("seeded") else []
    for part, verb in (("disk", "attached"), ("nfs", "mounted")):
        if part in parts and before[part] and uses[part]:
            fix = f"delete both: --only {uses[part][0]} --only {part}"
            raise InputError(f"{uses[part][0]} has it {verb}", where=f"--only {part}", fix=fix)


def destroy_running(
    session: EnvironmentSession, target: dict[str, Any], confirm: Confirm, *, delete_data: bool
) -> None:
    """Destroy only. Disk and NFS are pinned to their state, so an unfinished `up` is not completed here."""
    planned = session.terraform.plan(target)
    kinds = ("create", "replace") if delete_data else ("create", "replace", "delete")
    changes = {part: _change_of(planned, type_, *kinds) for part, type_ in variables.DATA.items()}
    if any(changes.values()):
        pinned = {part: variables.pinned_to_state(part, change.before) for part, change in changes.items() if change}
        target = {**target, **pinned}
        planned = session.terraform.plan(target)
    if planned.changes and all(change.kind == "create" for change in planned.changes):
        say("nothing to delete")
        if session.wanted:
            session.store_wanted(target)
        return
    carry_out(session, target, planned, confirm, delete_data=delete_data)


def _destroy(session: EnvironmentSession, target: dict[str, Any], confirm: Confirm) -> None:
    planned = session.terraform.plan(target, destroy=True)
    if planned.changes:
        confirm(planned)
        session.terraform.apply(planned)
    session.store_wanted({})
    session.store_record(replace(_without_disk(session.record), image=None))


def _without_disk(before: EnvironmentRecord) -> EnvironmentRecord:
    """The next disk gets another name, since Google may remember the old one for a while."""
    return replace(before, generation=before.generation + 1, seeded=None, disk_gb=None, disk_type=None)
