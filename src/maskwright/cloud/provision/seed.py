"""`env seed` fills a disk: for an hour or two, a machine copies a bucket to it, runs the user's script and counts.

Terraform makes the machine like everything else, while `seeder` is not null. It is taken away whatever happens here.
Should this process die, the same command goes on, and Google deletes the machine after `SEEDER_HOURS`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from maskwright.cloud import source
from maskwright.cloud.environment import Disk, beside
from maskwright.cloud.provision import commands, their_network, variables
from maskwright.cloud.provision.commands import Confirm, Desk, apply
from maskwright.core.console import human_bytes, say, warn
from maskwright.core.errors import InputError, MaskwrightError, StoppedEarly
from maskwright.core.folder import Folder

POLL_SECONDS = 10.0
DEAF_SECONDS = 900.0
"""Bucket and API may be out of reach for so long: a laptop slept, a network changed."""
GONE_LOOKS = 3
"""Looks in a row that find neither the machine nor a result before it is given up."""


def seed(
    location: str,
    *,
    again: bool = False,
    move_hosts: bool = False,
    anyway: bool = False,
    confirm: Confirm,
    poll_seconds: float = POLL_SECONDS,
    lock_timeout_seconds: float = 60.0,
) -> Desk:
    """`again` makes another disk in place of one that is seeded, `move_hosts` in place of one of another size or type.
    Raises `InputError` where no run could read what the bucket holds, unless it is `anyway` wanted. Raises
    `MaskwrightError` with what went wrong on the machine, after it was taken away. The disk stays writable, and the
    same command begins again on it."""
    desk = Desk(location, lock_timeout_seconds=lock_timeout_seconds)
    if desk.environment.disk is None:
        raise InputError("has no disk", where=location, fix="write a section `disk:` with size_gb and source")
    desk.asked_for()  # a disk of another size is another disk
    there, name = (desk.wanted or {}).get("disk"), desk.environment.disk_name(desk.record.generation)
    if desk.record.seeded is not None and not again:
        said = desk.record.seeded
        say(f"the disk was seeded {said['time']}: {said['files']:,} files. --again seeds a new one")
        return desk
    if there and there["name"] != name and not again and not move_hosts:
        what = f"is another disk than {there['name']}, which it would take the place of"
        raise InputError(what, where=name, fix="--again or --move-hosts, once nothing on the old one is needed")
    before = desk.record
    if desk.record.seeded is not None:
        desk.record = replace(desk.record, generation=desk.record.generation + 1, seeded=None)
        name = desk.environment.disk_name(desk.record.generation)
    replaces = bool(there and there["name"] != name)
    if replaces and (hosts := _attached(desk)):
        fix = "--move-hosts makes them again with the new one; or `maskwright env down` first, which leaves the data"
        raise InputError(f"the {hosts[0]} has the disk attached", where=location, fix=fix)
    their_network.refuse(desk.google, desk.environment)
    _say_who_reads(desk)
    _look_at_source(desk, anyway)
    if there and replaces:
        say(f"{there['name']} is deleted, with what is on it; {name} takes its place, filled from {_disk(desk).source}")
    with desk.terraform.ready():
        try:
            result = _with_machine(desk, confirm, again or replaces, poll_seconds)
        except BaseException:
            if before.seeded and (desk.wanted or {}).get("disk") == there:  # no new disk was made, the old one is good
                desk.remember(before)
            raise
        _flip(desk, result)
    return desk


def to_move(location: str, again: bool) -> list[str]:
    """Hosts that have a disk in whose place seeding would put another one."""
    desk = Desk(location)
    before = desk.record.seeded
    desk.asked_for()
    there, name = (desk.wanted or {}).get("disk"), desk.environment.disk_name(desk.record.generation)
    other = there is not None and there["name"] != name
    return _attached(desk) if desk.environment.disk and (other or (again and before)) else []


def _attached(desk: Desk) -> list[str]:
    before = desk.wanted or {}
    hosts = [kind for kind in ("slice", "group") if (before.get(kind) or {}).get("attach_disk")]
    queued = desk.record.queued_zone is not None and (before.get("disk") or {}).get("seeded")
    return [*hosts, *(["slice"] if queued else [])]


def _look_at_source(desk: Desk, anyway: bool) -> None:
    """Before a machine copies what no run can read. A script that prepares the data may make of it what it likes."""
    disk, folder = _disk(desk), f"{desk.environment.mount_point}/shared_pd"
    try:
        found = source.look(desk.google, disk)
    except StoppedEarly:
        raise
    except MaskwrightError as error:
        return warn(f"{error}; the seeding machine may be allowed to, so this goes on")
    for line in found.readable():
        say(f"{disk.source} holds {line}")
    if disk.prepare is None and found.stores:
        say(f"a run reads it with --set data.store={'/'.join(filter(None, (folder, found.stores[0])))}")
    if disk.prepare is None and not anyway:
        source.require_readable(found)


def _say_who_reads(desk: Desk) -> None:
    """The environment's account may read its own buckets. The owner of another bucket has to open it."""
    env, bucket = desk.environment, _disk(desk).source.removeprefix("gs://").partition("/")[0]
    if bucket not in (env.dataset_bucket, env.runs_bucket):
        member = f"serviceAccount:{env.name}-train@{env.project}.iam.gserviceaccount.com"
        grant = f"gcloud storage buckets add-iam-policy-binding gs://{bucket} --member={member}"
        grant += " --role=roles/storage.objectViewer"
        say(f"gs://{bucket} is not this environment's; its owner lets it in once with `{grant}`")


def _disk(desk: Desk) -> Disk:
    assert desk.environment.disk is not None
    return desk.environment.disk


def _base(desk: Desk) -> dict[str, Any]:
    return variables.only(desk.wanted, desk.asked_for(), {"disk", "seeder"})


def _with_machine(desk: Desk, confirm: Confirm, again: bool, poll_seconds: float) -> dict[str, Any]:
    prepare = beside(desk.location, _disk(desk).prepare)
    place = Folder(variables.seed_result(desk.environment, desk.record).rpartition("/")[0])
    address = None
    if prepare is not None:
        if not desk.has_runs_bucket():
            apply(desk, _base(desk), confirm, delete_data=again)
        place.put(f"{prepare[0]}.sh", prepare[1])
        address = f"{place.location}/{prepare[0]}.sh"
    machine = variables.seeder(desk.environment, desk.record, address)
    left = (desk.wanted or {}).get("seeder")
    if left and left != machine:
        say("the seeding machine that is there was told something else, and goes first")
        mine = desk.record
        _take_away(desk)
        desk.record = mine
    if left != machine and desk.has_runs_bucket():
        place.put_json("result.json", {})  # forgets that of an earlier try
    try:
        apply(desk, {**_base(desk), "seeder": machine}, confirm, delete_data=again)
        result = _wait(desk, place, poll_seconds)
    except BaseException:
        _take_away(desk)
        raise
    if result.get("ok") is not True:
        _take_away(desk)
        what = f"seeding failed at {result.get('step', '?')}: {result.get('what', 'it says no more')}"
        fix = "correct what it names; the same command begins again on the disk"
        raise MaskwrightError(what, where=desk.environment.name, fix=fix)
    return result


def _wait(desk: Desk, place: Folder, poll_seconds: float) -> dict[str, Any]:
    """The machine's result. The machine works on without us, so an absent network is waited for."""
    name, told, away, deaf = f"{desk.environment.name}-seeder", "", 0, 0.0
    until = time.monotonic() + variables.SEEDER_HOURS * 3600
    path = f"projects/{desk.environment.project}/zones/{desk.environment.zone}/instances/{name}"
    say(f"{name} copies {_disk(desk).source}")
    while time.monotonic() < until:
        try:
            result, step = place.get_json("result.json"), (place.get_json("progress.json") or {}).get("step", "")
            instance = desk.google.find("compute", path) if not result else None
        except StoppedEarly:
            raise
        except MaskwrightError as error:
            deaf = deaf or time.monotonic()
            if time.monotonic() - deaf > DEAF_SECONDS:
                raise
            warn(f"{error}; looking again")
            time.sleep(poll_seconds)
            continue
        deaf = 0.0
        if result:
            return _checked(result)
        if step and step != told:
            say(f"{name}: {step}")
            told = str(step)
        away = 0 if instance and instance.get("status") not in ("TERMINATED", "STOPPED", "SUSPENDED") else away + 1
        if away >= GONE_LOOKS:
            return {"ok": False, "step": told or "start", "what": f"{name} is gone and left no result"}
        time.sleep(poll_seconds)
    return {"ok": False, "step": told, "what": f"no result after {variables.SEEDER_HOURS} hours"}


def _checked(result: dict[str, Any]) -> dict[str, Any]:
    """The result, unless it cannot be our script's: every host may write there."""
    numbers = [result.get(key) for key in ("files", "bytes")]
    whole = all(type(one) is int for one in numbers) and isinstance(result.get("manifest_sha256"), str)
    if result.get("ok") is True and not whole:
        return {"ok": False, "step": "result", "what": "it is none that our script writes"}
    return result


def _take_away(desk: Desk) -> None:
    """Asks nobody, since a machine that is left costs money. It changes nothing else, and makes nothing."""
    try:
        desk.look()
        if (desk.wanted or {}).get("seeder"):
            target = {**(desk.wanted or {}), "seeder": None}
            commands.take_away(desk, target, lambda plan: None, delete_data=False)
    except MaskwrightError as error:
        warn(f"{error}; {desk.environment.name}-seeder may be there still, and costs: `env down` takes it away")


def _flip(desk: Desk, result: dict[str, Any]) -> None:
    """Makes the disk read-only. The machine goes first: no host may read what another one can write."""
    filled = desk.environment.disk_name(desk.record.generation)
    _take_away(desk)
    if ((desk.wanted or {}).get("disk") or {}).get("name") != filled:
        fix = "`maskwright env seed` begins again"
        raise MaskwrightError("was replaced while it was seeded", where=filled, fix=fix)
    counts = {key: result[key] for key in ("files", "bytes", "manifest_sha256")}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    desk.record = replace(desk.record, seeded={**counts, "time": now})
    apply(desk, _base(desk), lambda plan: None, delete_data=False)
    say(f"seeded: {result['files']:,} files, {human_bytes(result['bytes'])}; from now on the disk is read-only")
    if (desk.wanted or {}).get("slice") or (desk.wanted or {}).get("group"):
        say("hosts that are up get it with the next `env up`")
