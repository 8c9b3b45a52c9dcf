"""`env plan`, `env up` and `env down` as functions: they make, change and take away an environment.

They write what is asked for into the bucket (`wanted.json`) before Terraform begins. So a run that fails half-way, or
is killed, leaves what the next `up` or `down` needs to finish; and `--only` knows what the other parts were.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from maskwright.cloud import record
from maskwright.cloud.environment import beside, read_environment
from maskwright.cloud.google.rest import Google
from maskwright.cloud.provision import existing_network, queued_slice, variables
from maskwright.cloud.provision.init import is_foreign
from maskwright.cloud.provision.terraform_cli import Change, Terraform, TerraformPlan
from maskwright.cloud.record import EnvironmentRecord
from maskwright.core.console import say, warn
from maskwright.core.errors import InputError, Locked, MaskwrightError, TerraformError
from maskwright.core.folder import Folder

GOING = ("replace", "delete")
Confirm = Callable[[TerraformPlan], None]
"""Raises the error that ends the command when the user does not want the plan."""


class EnvironmentSession:
    """One environment as a command finds it: its YAML, its record, and what was asked for last."""

    def __init__(self, location: str, *, lock_timeout_seconds: float = 60.0) -> None:
        self.location = location
        self.environment = read_environment(location)
        self.google = Google(self.environment.project)
        bucket = self.google.find("storage", f"b/{self.environment.state}")
        if bucket is not None and is_foreign(self.google, bucket):
            fix = "set state_bucket in the YAML to a name of your own; do not use this one"
            raise InputError("is of another project", where=f"gs://{self.environment.state}", fix=fix)
        if bucket is None:
            fix = f"`maskwright env init {location}` makes it"
            raise InputError("there is no such bucket, for the state", where=f"gs://{self.environment.state}", fix=fix)
        self.folder = record.folder(self.environment)
        self.terraform = Terraform(self.environment, lock_timeout_seconds=lock_timeout_seconds)
        self.refresh()

    def refresh(self) -> None:
        """Reads the record and what is wanted, which others may have changed. Raises `MaskwrightError` if it cannot."""
        self._found = self._stored()
        self.record, self.wanted = self._found
        if self.wanted is not None and not self.wanted.get("disk") and self.record.disk_gb is not None:
            self.record = _without_disk(self.record)  # the command that had it go ended before it could say so

    def _stored(self) -> tuple[EnvironmentRecord, dict[str, Any] | None]:
        wanted = self.folder.get_json(record.WANTED)
        if wanted is None and self.folder.get(record.WANTED) is not None:
            fix = "restore the object's last version (gcloud storage ls --all-versions)"
            raise MaskwrightError("cannot be read", where=f"{self.folder.location}/{record.WANTED}", fix=fix)
        return record.read(self.environment), wanted

    def asked_for(self, *, disk: bool = True) -> dict[str, Any]:
        """Everything that the YAML asks for, as Terraform's variables. With `disk` False its disk does not matter now,
        and the record of the one that is there stays."""
        if disk:
            self.record = self.record.for_disk(self.environment)
        setup = variables.setup_address(self.environment, self.location)
        return variables.variables(self.environment, self.record, setup)

    def want(self, values: Mapping[str, Any]) -> None:
        """Raises `Locked` when somebody else wanted something meanwhile, which would be forgotten."""
        if self._stored() != self._found:
            fix = "the same command again, which then sees what that one did"
            what = "another command has changed the environment meanwhile"
            raise Locked(what, where=self.environment.name, fix=fix)
        self.wanted = dict(values)
        self.folder.put_json(record.WANTED, self.wanted)
        record.write(self.environment, self.record)
        self._found = self.record, json.loads(json.dumps(self.wanted))

    def remember(self, changed: EnvironmentRecord) -> None:
        if changed != self.record:
            self.record = changed
            record.write(self.environment, changed)
            self._found = changed, self._found[1]

    def has_runs_bucket(self) -> bool:
        return self.google.find("storage", f"b/{self.environment.runs_bucket}") is not None


def plan(
    location: str, *, parts: Collection[str] = (), lock_timeout_seconds: float = 60.0
) -> tuple[EnvironmentSession, TerraformPlan]:
    """Says what `up` would do, and changes nothing."""
    session = EnvironmentSession(location, lock_timeout_seconds=lock_timeout_seconds)
    target = _target(session, parts)
    with session.terraform.ready():
        drawn = session.terraform.plan(target)
    queued = _plan_queued(session) if "slice" in (parts or variables.PARTS) else None
    if queued is None:
        return session, drawn
    text = f"{drawn.text.rstrip()}\n\n{queued.text}\n"
    return session, TerraformPlan((*drawn.changes, *queued.changes), text, drawn.file, True)


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
    """Makes what the YAML asks for. With `parts`, only those change. `placement` gives hosts other places than before,
    by slice and group. With `same_image` they run the image that they ran before, though another one was built."""
    session = EnvironmentSession(location, lock_timeout_seconds=lock_timeout_seconds)
    for kind, number in (placement or {}).items():
        session.record = session.record.moved(kind, number)
    target = _target(session, parts)
    if same_image and session.record.built(session.environment) is not None:
        target["host"] = variables.with_image_of(session.wanted, target["host"])
    with session.terraform.ready():
        if (setup := beside(session.location, session.environment.host.setup)) is not None:
            if not session.has_runs_bucket():
                say("first the buckets: hosts will read the set-up script from there")
                base = variables.only(session.wanted, target, ("disk", "nfs"))
                base["host"] = (session.wanted or target)["host"]
                apply(session, base, confirm, delete_data=False)
            # Hosts read it when they start, so it is there before they are.
            Folder(f"gs://{session.environment.runs_bucket}/setup").put(f"{setup[0]}.sh", setup[1])
        slice_too = "slice" in (parts or variables.PARTS)
        if slice_too and not session.environment.queued:
            _remove_queued(session, confirm)
        apply(session, target, confirm, delete_data=delete_data, parts=parts)
        if slice_too and session.environment.queued:
            if (drawn := _plan_queued(session)) is not None:
                confirm(drawn)
            outputs = session.terraform.outputs()
            queued_slice.create_if_missing(
                session.google, session.environment, session.record, target, outputs, session.remember
            )
    return session


def _plan_queued(session: EnvironmentSession) -> TerraformPlan | None:
    """The plan for a slice that Terraform does not know."""
    change = queued_slice.change(session.google, session.environment, session.record)
    if change is None:
        return None
    return TerraformPlan((change,), queued_slice.in_words(session.environment, session.record, change), "", True)


def _remove_queued(session: EnvironmentSession, confirm: Confirm) -> None:
    if session.record.queued_zone is not None:
        name = f"queued resource {queued_slice.name(session.environment)}"
        text = f"{name} in {session.record.queued_zone} will be taken away"
        confirm(TerraformPlan((Change(name, "queued_resource", "delete"),), text, "", True))
        session.remember(queued_slice.delete(session.google, session.environment, session.record))


def _target(session: EnvironmentSession, parts: Collection[str]) -> dict[str, Any]:
    existing_network.refuse(session.google, session.environment)
    asked = session.asked_for(disk=not parts or "disk" in parts)
    missing = [part for part in parts if getattr(session.environment, part) is None]
    if missing:
        fix = f"write a section `{missing[0]}:`, or leave --only out to take it away"
        raise InputError(f"has no {missing[0]}", where=session.location, fix=fix)
    if parts:
        return variables.only(session.wanted, asked, parts)
    before = session.wanted or {}
    if before.get("seeder") and before.get("disk") == asked["disk"]:
        say("the seeding machine stays: `env seed` goes on with it, `env down` takes it away")
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
    """Plans, asks, remembers what is wanted, and applies. Without `delete_data` nothing that holds data goes; with
    `parts` no host of another part goes."""
    drawn = session.terraform.plan(target)
    others = [f'module.hosts["{kind}"]' for kind in ("slice", "group") if parts and kind not in parts]
    if moved := [one.address for one in drawn.changes if one.kind in GOING and one.address.startswith(tuple(others))]:
        fix = "leave --only out where that is meant: what hosts have in common (host, nfs, labels) has changed"
        raise InputError(f"{moved[0]} would go or be made anew too", where=f"--only {' --only '.join(parts)}", fix=fix)
    # It is protected until an earlier apply, and its name is taken until it is gone. Neither is true of a disk.
    if stuck := [one for one in drawn.changes if one.loses_data and one.type != variables.DATA["disk"]]:
        nfs = stuck[0].type == variables.DATA["nfs"]
        fix = f"copy what you need, then `env down{' --only nfs' if nfs else ''} --delete-data`; or put the YAML back"
        raise InputError(f"this would delete data: {stuck[0].address}", where=session.environment.name, fix=fix)
    if (target["disk"] or {}).get("seeded") and _entry(drawn, "google_compute_disk", "create", "replace"):
        fix = "`env down --only disk --delete-data`, and --only for hosts that have it, forgets it; then `env seed`"
        what = "was seeded, and is not there: an empty one would take its place"
        raise InputError(what, where=target["disk"]["name"], fix=fix)
    carry_out(session, target, drawn, confirm, delete_data=delete_data)


def carry_out(
    session: EnvironmentSession, target: dict[str, Any], drawn: TerraformPlan, confirm: Confirm, *, delete_data: bool
) -> None:
    lost = [change for change in drawn.changes if change.loses_data]
    if lost and not delete_data:
        raise InputError(
            f"this would delete data: {', '.join(change.address for change in lost)}",
            where=session.environment.name,
            fix="copy what you need, then say --delete-data; or put the YAML back as it was",
        )
    if not drawn.differs:
        session.want(target)
        say("nothing to change")
        return
    confirm(drawn)
    session.want(target)
    session.terraform.apply(drawn)


def _entry(drawn: TerraformPlan, type_: str, *kinds: str) -> Change | None:
    return next((one for one in drawn.changes if one.type == type_ and one.kind in kinds and not one.deposed), None)


def down(
    location: str,
    *,
    parts: Collection[str] = (),
    delete_data: bool = False,
    confirm: Confirm,
    lock_timeout_seconds: float = 60.0,
) -> EnvironmentSession:
    """Takes away what runs, with `parts` only those; with `delete_data` and no `parts`, everything. Only name, project
    and state bucket of the YAML matter: what there is follows from what was asked for last."""
    kept = [part for part in parts if part not in variables.RUNNING]
    if kept and not delete_data:
        fix = "say --delete-data as well, once nothing on it is needed"
        raise InputError("holds data", where=f"--only {kept[0]}", fix=fix)
    session = EnvironmentSession(location, lock_timeout_seconds=lock_timeout_seconds)
    asked = variables.variables(session.environment, session.record, None)
    before = {**variables.without(asked, (*variables.PARTS, "seeder")), **(session.wanted or {})}
    before["network"] = session.wanted.get("network") if session.wanted else asked["network"]
    going = (*parts, "seeder") if parts else variables.RUNNING
    _refuse_used(session, before, parts)
    target = {**variables.without(before, going), "nat": before["nat"] and bool(parts), "delete_data": False}
    with session.terraform.ready():
        if "slice" in going:
            _remove_queued(session, confirm)
        if delete_data and ("nfs" in parts or not parts):
            # The hosts go first, with the protection of data: Terraform cannot delete a protected part in one go.
            unprotected = {**target, "disk": before["disk"], "nfs": before["nfs"], "delete_data": True}
            try:
                destroy_running(session, unprotected, confirm, delete_data=False)
            except TerraformError as error:  # perhaps of a part that could not be made: the rest goes all the same
                warn(f"{error}; going on with what can be taken away")
        if delete_data and not parts:
            _destroy(session, {**target, "delete_data": True}, confirm)
        else:
            destroy_running(session, target, confirm, delete_data=delete_data)
            if "disk" in parts:
                session.remember(_without_disk(session.record))
    return session


def _refuse_used(session: EnvironmentSession, before: Mapping[str, Any], parts: Collection[str]) -> None:
    """Google does not delete a disk that hosts have. Hosts whose NFS goes would be made anew."""
    hosts = {kind: before[kind] for kind in ("slice", "group") if before[kind] and kind not in parts}
    uses = {"disk": [kind for kind, one in hosts.items() if one["attach_disk"]], "nfs": list(hosts)}
    if session.record.queued_zone is not None and "slice" not in parts:
        uses["nfs"].append("slice")
        uses["disk"] += ["slice"] if (before["disk"] or {}).get("seeded") else []
    for part, verb in (("disk", "attached"), ("nfs", "mounted")):
        if part in parts and before[part] and uses[part]:
            fix = f"take it away too: --only {uses[part][0]} --only {part}"
            raise InputError(f"{uses[part][0]} has it {verb}", where=f"--only {part}", fix=fix)


def destroy_running(
    session: EnvironmentSession, target: dict[str, Any], confirm: Confirm, *, delete_data: bool
) -> None:
    """Makes and replaces nothing that holds data, whatever an earlier `up` did not get to: disk and NFS stay as they
    are. Makes nothing at all where nothing is to go."""
    drawn = session.terraform.plan(target)
    kinds = ("create", "replace") if delete_data else ("create", "replace", "delete")
    found = {part: _entry(drawn, type_, *kinds) for part, type_ in variables.DATA.items()}
    if any(found.values()):
        pinned_to_state = {part: variables.pinned_to_state(part, one.before) for part, one in found.items() if one}
        target = {**target, **pinned_to_state}
        drawn = session.terraform.plan(target)
    if drawn.changes and all(change.kind == "create" for change in drawn.changes):
        say("nothing to take away")
        if session.wanted:
            session.want(target)
        return
    carry_out(session, target, drawn, confirm, delete_data=delete_data)


def _destroy(session: EnvironmentSession, target: dict[str, Any], confirm: Confirm) -> None:
    drawn = session.terraform.plan(target, destroy=True)
    if drawn.changes:
        confirm(drawn)
        session.terraform.apply(drawn)
    session.want({})
    session.remember(replace(_without_disk(session.record), image=None))


def _without_disk(before: EnvironmentRecord) -> EnvironmentRecord:
    """The next disk has another name, since Google may still know the old one for a while."""
    return replace(before, generation=before.generation + 1, seeded=None, disk_gb=None, disk_type=None)
