"""An environment is made, changed and taken away: `plan`, `up` and `down` as functions.

What is asked for is written to the bucket (`wanted.json`) before Terraform begins. So a run that fails half-way, or is
killed, leaves what the next `up` or `down` needs to finish; and `--only` knows what the other parts were.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from maskwright.cloud import queued_slice, record, variables
from maskwright.cloud.environment import beside, read_environment
from maskwright.cloud.record import Record
from maskwright.cloud.rest import Google
from maskwright.cloud.terraform_cli import Change, Plan, Terraform
from maskwright.core.console import say
from maskwright.core.errors import InputError
from maskwright.launch.folder import Folder

WANTED = "wanted.json"
Confirm = Callable[[Plan], None]
"""Raises what ends the command when the user does not want the plan."""


class Desk:
    """One environment as a command finds it: its YAML, what is remembered, what was asked for last."""

    def __init__(self, location: str, *, lock_timeout_seconds: float = 60.0) -> None:
        self.location = location
        self.environment = read_environment(location)
        self.google = Google(self.environment.project)
        if self.google.find("storage", f"b/{self.environment.state}") is None:
            fix = f"`maskwright env init {location}` makes it"
            raise InputError("there is no such bucket, for the state", where=f"gs://{self.environment.state}", fix=fix)
        self.folder = record.folder(self.environment)
        self.record = record.read(self.environment).for_disk(self.environment)
        self.wanted = self.folder.get_json(WANTED)
        self.terraform = Terraform(self.environment, lock_timeout_seconds=lock_timeout_seconds)

    def asked_for(self) -> dict[str, Any]:
        """All that the YAML asks for, as Terraform's variables."""
        setup = beside(self.location, self.environment.host.setup)
        address = f"gs://{self.environment.runs_bucket}/setup/{setup[0]}.sh" if setup else None
        return variables.variables(self.environment, self.record, address)

    def want(self, values: Mapping[str, Any]) -> None:
        self.wanted = dict(values)
        self.folder.put_json(WANTED, self.wanted)
        record.write(self.environment, self.record)

    def upload_setup(self) -> None:
        """Hosts read it when they start, so it is there before they are."""
        if (setup := beside(self.location, self.environment.host.setup)) is not None:
            Folder(f"gs://{self.environment.runs_bucket}/setup").put(f"{setup[0]}.sh", setup[1])

    def has_runs_bucket(self) -> bool:
        return self.google.find("storage", f"b/{self.environment.runs_bucket}") is not None


def plan(location: str, *, parts: Collection[str] = (), lock_timeout_seconds: float = 60.0) -> tuple[Desk, Plan]:
    """What `up` would do; nothing is changed."""
    desk = Desk(location, lock_timeout_seconds=lock_timeout_seconds)
    with desk.terraform.ready() as terraform:
        return desk, terraform.plan(_target(desk, parts))


def up(
    location: str,
    *,
    parts: Collection[str] = (),
    confirm: Confirm,
    delete_data: bool = False,
    placement: Mapping[str, int] | None = None,
    lock_timeout_seconds: float = 60.0,
) -> Desk:
    """Makes what the YAML asks for; `parts`: only those, the others stay as they are. `placement`: other places for
    hosts than before, by slice and group."""
    desk = Desk(location, lock_timeout_seconds=lock_timeout_seconds)
    for kind, number in (placement or {}).items():
        desk.record = desk.record.moved(kind, number)
    target = _target(desk, parts)
    with desk.terraform.ready() as terraform:
        if desk.environment.host.setup is not None and not desk.has_runs_bucket():
            say("first the buckets: hosts will read the set-up script from there")
            base = variables.without(target, variables.RUNNING)
            apply(desk, terraform, base, confirm, delete_data=False)
        if desk.environment.host.setup is not None:
            desk.upload_setup()
        if not parts and not _queued(desk):
            _remove_queued(desk, confirm)
        apply(desk, terraform, target, confirm, delete_data=delete_data)
        if _queued(desk) and "slice" in (parts or variables.PARTS):
            made = queued_slice.ensure(desk.google, desk.environment, desk.record, target, terraform.outputs())
            remember(desk, made)
    return desk


def _queued(desk: Desk) -> bool:
    return desk.environment.slice is not None and desk.environment.slice.queued


def _remove_queued(desk: Desk, confirm: Confirm) -> None:
    if desk.record.queued_zone is not None:
        name = f"queued resource {queued_slice.name(desk.environment)}"
        text = f"{name} in {desk.record.queued_zone} will be taken away"
        confirm(Plan((Change(name, "queued_resource", "delete"),), text, "", True))
        remember(desk, queued_slice.absent(desk.google, desk.environment, desk.record))


def remember(desk: Desk, changed: Record) -> None:
    if changed != desk.record:
        desk.record = changed
        record.write(desk.environment, changed)


def _target(desk: Desk, parts: Collection[str]) -> dict[str, Any]:
    asked = desk.asked_for()
    missing = [part for part in parts if getattr(desk.environment, part) is None]
    if missing:
        fix = f"write a section `{missing[0]}:`, or leave --only out to take it away"
        raise InputError(f"has no {missing[0]}", where=desk.location, fix=fix)
    return variables.only(desk.wanted, asked, parts) if parts else asked


def apply(desk: Desk, terraform: Terraform, target: dict[str, Any], confirm: Confirm, *, delete_data: bool) -> None:
    """Plans, asks, remembers what is wanted, applies. Without `delete_data` nothing goes that holds data."""
    drawn = terraform.plan(target)
    lost = [change for change in drawn.changes if change.loses_data]
    if lost and not delete_data:
        raise InputError(
            f"this would delete data: {', '.join(change.address for change in lost)}",
            where=desk.environment.name,
            fix="copy what you need, then say --delete-data; or put the YAML back as it was",
        )
    if not drawn.differs:
        desk.want(target)
        say("nothing to change")
        return
    confirm(drawn)
    desk.want(target)
    terraform.apply(drawn)


def down(
    location: str,
    *,
    parts: Collection[str] = (),
    delete_data: bool = False,
    confirm: Confirm,
    lock_timeout_seconds: float = 60.0,
) -> Desk:
    """Takes away what runs; `parts`: only those; with `delete_data` and no `parts`, everything."""
    kept = [part for part in parts if part not in variables.RUNNING]
    if kept and not delete_data:
        fix = "say --delete-data as well, once nothing on it is needed"
        raise InputError("holds data", where=f"--only {kept[0]}", fix=fix)
    desk = Desk(location, lock_timeout_seconds=lock_timeout_seconds)
    nothing = variables.without(desk.asked_for(), (*variables.PARTS, "seeder"))
    before = {**nothing, **(desk.wanted or {})}
    going = (*parts, "seeder") if parts else variables.RUNNING
    attached = [kind for kind in ("slice", "group") if before[kind] and before[kind]["attach_disk"]]
    if "disk" in parts and (missing := [kind for kind in attached if kind not in parts]):
        fix = f"take it away too: --only {missing[0]} --only disk"
        raise InputError(f"{missing[0]} has it attached", where="--only disk", fix=fix)
    target = {**variables.without(before, going), "nat": before["nat"] and bool(parts), "delete_data": False}
    with desk.terraform.ready() as terraform:
        if "slice" in going:
            _remove_queued(desk, confirm)
        if delete_data:  # hosts go, and the protection of data: what is protected cannot be deleted in one go
            unprotected = {**target, "disk": before["disk"], "nfs": before["nfs"], "delete_data": True}
            apply(desk, terraform, unprotected, confirm, delete_data=False)
        if delete_data and not parts:
            _destroy(desk, terraform, {**target, "delete_data": True}, confirm)
        else:
            apply(desk, terraform, target, confirm, delete_data=delete_data)
            if "disk" in parts:
                _forget_disk(desk)
    return desk


def _destroy(desk: Desk, terraform: Terraform, target: dict[str, Any], confirm: Confirm) -> None:
    drawn = terraform.plan(target, destroy=True)
    if drawn.changes:
        confirm(drawn)
        terraform.apply(drawn)
    desk.want({})
    _forget_disk(desk)


def _forget_disk(desk: Desk) -> None:
    """The next one has another name: Google may still know the old one for a while."""
    fresh = Record(generation=desk.record.generation + 1, placement=desk.record.placement)
    remember(desk, replace(fresh, queued_zone=desk.record.queued_zone))
