"""A disk is filled: a machine for an hour or two copies a bucket to it, runs the user's script and counts.

The machine is Terraform's like everything else, there while `seeder` is not null. It is taken away whatever happens
here; should this process die, the same command goes on, and Google deletes the machine after `SEEDER_HOURS`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from maskwright.cloud import variables
from maskwright.cloud.commands import Confirm, Desk, apply
from maskwright.cloud.environment import beside
from maskwright.cloud.terraform_cli import Terraform
from maskwright.core.console import human_bytes, say, warn
from maskwright.core.errors import InputError, MaskwrightError
from maskwright.launch.folder import Folder

POLL_SECONDS = 10.0
GONE_LOOKS = 3
"""So often in a row the machine has to be away, and no result there, before it is given up."""


def seed(
    location: str,
    *,
    again: bool = False,
    confirm: Confirm,
    poll_seconds: float = POLL_SECONDS,
    lock_timeout_seconds: float = 60.0,
) -> Desk:
    """`again`: another disk in place of one that is seeded. Raises `MaskwrightError` with what went wrong on the
    machine, after it was taken away; the disk stays writable, and the same command begins again on it."""
    desk = Desk(location, lock_timeout_seconds=lock_timeout_seconds)
    if desk.environment.disk is None:
        raise InputError("has no disk", where=location, fix="write a section `disk:` with size_gb and source")
    under_way = bool((desk.wanted or {}).get("seeder"))
    if desk.record.seeded is not None and not again:
        said = desk.record.seeded
        say(f"the disk was seeded {said['time']}: {said['files']:,} files. --again seeds a new one")
        return desk
    if desk.record.seeded is not None:
        hosts = [kind for kind in ("slice", "group") if (desk.wanted or {}).get(kind)]
        if hosts:
            fix = "`maskwright env down` first; it leaves the data"
            raise InputError(f"the {hosts[0]} has the disk attached", where=location, fix=fix)
        desk.record = replace(desk.record, generation=desk.record.generation + 1, seeded=None)
    _say_who_reads(desk)
    with desk.terraform.ready() as terraform:
        result = _with_machine(desk, terraform, confirm, under_way, again, poll_seconds)
        _flip(desk, terraform, result)
    return desk


def _say_who_reads(desk: Desk) -> None:
    """The environment's account may read its own buckets; another one is for its owner to open."""
    env = desk.environment
    bucket = env.disk.source.removeprefix("gs://").partition("/")[0] if env.disk else ""
    if bucket not in (env.dataset_bucket, env.runs_bucket):
        member = f"serviceAccount:{env.name}-train@{env.project}.iam.gserviceaccount.com"
        grant = f"gcloud storage buckets add-iam-policy-binding gs://{bucket} --member={member}"
        say(f"gs://{bucket} is not this environment's; its owner lets it in once with `{grant} "
            "--role=roles/storage.objectViewer`")  # fmt: skip


def _base(desk: Desk) -> dict[str, Any]:
    return variables.only(desk.wanted, desk.asked_for(), {"disk", "seeder"})


def _with_machine(
    desk: Desk, terraform: Terraform, confirm: Confirm, under_way: bool, again: bool, poll_seconds: float
) -> dict[str, Any]:
    prepare = beside(desk.location, desk.environment.disk.prepare if desk.environment.disk else None)
    place = Folder(variables.seed_result(desk.environment, desk.record).rpartition("/")[0])
    if prepare is not None and not desk.has_runs_bucket():
        apply(desk, terraform, _base(desk), confirm, delete_data=again)
    address = None
    if prepare is not None:
        place.put(f"{prepare[0]}.sh", prepare[1])
        address = f"{place.location}/{prepare[0]}.sh"
    if not under_way and desk.has_runs_bucket():
        place.put_json("result.json", {})  # of an earlier try
    try:
        machine = variables.seeder(desk.environment, desk.record, address)
        apply(desk, terraform, {**_base(desk), "seeder": machine}, confirm, delete_data=again)
        result = _wait(desk, place, poll_seconds)
    except BaseException:
        _take_away(desk, terraform)
        raise
    if not result.get("ok"):
        _take_away(desk, terraform)
        what = f"seeding failed at {result.get('step', '?')}: {result.get('what', 'it says no more')}"
        fix = "correct what it names; the same command begins again on the disk"
        raise MaskwrightError(what, where=desk.environment.name, fix=fix)
    return result


def _wait(desk: Desk, place: Folder, poll_seconds: float) -> dict[str, Any]:
    """The machine's result, seen to be of the files that the bucket has now."""
    name, told, away = f"{desk.environment.name}-seeder", "", 0
    until = time.monotonic() + variables.SEEDER_HOURS * 3600
    path = f"projects/{desk.environment.project}/zones/{desk.environment.zone}/instances/{name}"
    say(f"{name} copies {desk.environment.disk.source if desk.environment.disk else ''}")
    while time.monotonic() < until:
        result = place.get_json("result.json")
        if result:
            return result
        progress = (place.get_json("progress.json") or {}).get("step", "")
        if progress and progress != told:
            say(f"{name}: {progress}")
            told = str(progress)
        instance = desk.google.find("compute", path)
        away = 0 if instance and instance.get("status") not in ("TERMINATED", "STOPPED", "SUSPENDED") else away + 1
        if away >= GONE_LOOKS:
            return {"ok": False, "step": told or "start", "what": f"{name} is gone and left no result"}
        time.sleep(poll_seconds)
    return {"ok": False, "step": told, "what": f"no result after {variables.SEEDER_HOURS} hours"}


def _take_away(desk: Desk, terraform: Terraform) -> None:
    """Asks nobody: a machine that is left costs money."""
    try:
        apply(desk, terraform, {**_base(desk), "seeder": None}, lambda plan: None, delete_data=False)
    except MaskwrightError as error:
        warn(f"{error}; {desk.environment.name}-seeder may be there still, and costs: `env down` takes it away")


def _flip(desk: Desk, terraform: Terraform, result: dict[str, Any]) -> None:
    """The machine goes first: no host may read what another one can write."""
    _take_away(desk, terraform)
    counts = {key: result[key] for key in ("files", "bytes", "manifest_sha256")}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    desk.record = replace(desk.record, seeded={**counts, "time": now})
    apply(desk, terraform, _base(desk), lambda plan: None, delete_data=False)
    say(f"seeded: {result['files']:,} files, {human_bytes(result['bytes'])}; from now on the disk is read-only")
    if (desk.wanted or {}).get("slice") or (desk.wanted or {}).get("group"):
        say("hosts that are up get it with the next `env up`")
