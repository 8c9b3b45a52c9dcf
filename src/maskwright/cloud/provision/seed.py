"""`env seed` fills a disk: for an hour or two, a machine copies a bucket to it, runs the user's script and counts.

Terraform makes the machine like everything else, while `seeder` is not null. It is taken away whatever happens here.
Should this process die, the same command goes on, and Google deletes the machine after `SEEDER_HOURS`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from maskwright.cloud.environment import Disk, beside
from maskwright.cloud.provision import commands, disk_source, existing_network, variables
from maskwright.cloud.provision.commands import Confirm, EnvironmentSession, apply
from maskwright.core.console import human_bytes, say, warn
from maskwright.core.errors import InputError, MaskwrightError, StoppedEarly
from maskwright.core.folder import Folder

POLL_SECONDS = 10.0
UNREACHABLE_SECONDS = 900.0
"""Bucket and API may be out of reach for so long: a laptop slept, a network changed."""
MISSING_POLLS = 3
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
) -> EnvironmentSession:
    """`again` makes another disk in place of one that is seeded, `move_hosts` in place of one of another size or type.
    Raises `InputError` where no run could read what the bucket holds, unless it is `anyway` wanted. Raises
    `MaskwrightError` with what went wrong on the machine, after it was taken away. The disk stays writable, and the
    same command begins again on it."""
    session = EnvironmentSession(location, lock_timeout_seconds=lock_timeout_seconds)
    if session.environment.disk is None:
        raise InputError("has no disk", where=location, fix="write a section `disk:` with size_gb and source")
    session.asked_for()  # a disk of another size is another disk
    there, name = (session.wanted or {}).get("disk"), session.environment.disk_name(session.record.generation)
    if session.record.seeded is not None and not again:
        said = session.record.seeded
        say(f"the disk was seeded {said['time']}: {said['files']:,} files. --again seeds a new one")
        return session
    if there and there["name"] != name and not again and not move_hosts:
        what = f"is another disk than {there['name']}, which it would take the place of"
        raise InputError(what, where=name, fix="--again or --move-hosts, once nothing on the old one is needed")
    before = session.record
    if session.record.seeded is not None:
        session.record = replace(session.record, generation=session.record.generation + 1, seeded=None)
        name = session.environment.disk_name(session.record.generation)
    replaces = bool(there and there["name"] != name)
    if replaces and (hosts := _hosts_with_disk(session)):
        fix = "--move-hosts makes them again with the new one; or `maskwright env down` first, which leaves the data"
        raise InputError(f"the {hosts[0]} has the disk attached", where=location, fix=fix)
    existing_network.refuse(session.google, session.environment)
    _say_who_grants(session)
    _check_source(session, anyway)
    if there and replaces:
        source = _disk(session).source
        say(f"{there['name']} is deleted, with what is on it; {name} takes its place, filled from {source}")
    with session.terraform.ready():
        try:
            result = _fill(session, confirm, again or replaces, poll_seconds)
        except BaseException:
            if (
                before.seeded and (session.wanted or {}).get("disk") == there
            ):  # no new disk was made, the old one is good
                session.remember(before)
            raise
        _make_read_only(session, result)
    return session


def hosts_to_move(location: str, again: bool) -> list[str]:
    """Hosts that have a disk in whose place seeding would put another one."""
    session = EnvironmentSession(location)
    before = session.record.seeded
    session.asked_for()
    there, name = (session.wanted or {}).get("disk"), session.environment.disk_name(session.record.generation)
    other = there is not None and there["name"] != name
    return _hosts_with_disk(session) if session.environment.disk and (other or (again and before)) else []


def _hosts_with_disk(session: EnvironmentSession) -> list[str]:
    before = session.wanted or {}
    hosts = [kind for kind in ("slice", "group") if (before.get(kind) or {}).get("attach_disk")]
    queued = session.record.queued_zone is not None and (before.get("disk") or {}).get("seeded")
    return [*hosts, *(["slice"] if queued else [])]


def _check_source(session: EnvironmentSession, anyway: bool) -> None:
    """Before a machine copies what no run can read. A script that prepares the data may make of it what it likes."""
    disk, folder = _disk(session), f"{session.environment.mount_point}/shared_pd"
    try:
        found = disk_source.read(session.google, disk)
    except StoppedEarly:
        raise
    except MaskwrightError as error:
        return warn(f"{error}; the seeding machine may be allowed to, so this goes on")
    for line in found.readable():
        say(f"{disk.source} holds {line}")
    if disk.prepare is None and found.stores:
        say(f"a run reads it with --set data.store={'/'.join(filter(None, (folder, found.stores[0])))}")
    if disk.prepare is None and not anyway:
        disk_source.require_readable(found)


def _say_who_grants(session: EnvironmentSession) -> None:
    """The environment's account may read its own buckets. The owner of another bucket has to open it."""
    env, bucket = session.environment, _disk(session).source.removeprefix("gs://").partition("/")[0]
    if bucket not in (env.dataset_bucket, env.runs_bucket):
        member = f"serviceAccount:{env.name}-train@{env.project}.iam.gserviceaccount.com"
        grant = f"gcloud storage buckets add-iam-policy-binding gs://{bucket} --member={member}"
        grant += " --role=roles/storage.objectViewer"
        say(f"gs://{bucket} is not this environment's; its owner lets it in once with `{grant}`")


def _disk(session: EnvironmentSession) -> Disk:
    assert session.environment.disk is not None
    return session.environment.disk


def _base(session: EnvironmentSession) -> dict[str, Any]:
    return variables.only(session.wanted, session.asked_for(), {"disk", "seeder"})


def _fill(session: EnvironmentSession, confirm: Confirm, again: bool, poll_seconds: float) -> dict[str, Any]:
    prepare = beside(session.location, _disk(session).prepare)
    place = Folder(variables.seed_result(session.environment, session.record).rpartition("/")[0])
    address = None
    if prepare is not None:
        if not session.has_runs_bucket():
            apply(session, _base(session), confirm, delete_data=again)
        place.put(f"{prepare[0]}.sh", prepare[1])
        address = f"{place.location}/{prepare[0]}.sh"
    machine = variables.seeder(session.environment, session.record, address)
    left = (session.wanted or {}).get("seeder")
    if left and left != machine:
        say("the seeding machine that is there was told something else, and goes first")
        mine = session.record
        _delete_machine(session)
        session.record = mine
    if left != machine and session.has_runs_bucket():
        place.put_json("result.json", {})  # forgets that of an earlier try
    try:
        apply(session, {**_base(session), "seeder": machine}, confirm, delete_data=again)
        result = _wait(session, place, poll_seconds)
    except BaseException:
        _delete_machine(session)
        raise
    if result.get("ok") is not True:
        _delete_machine(session)
        what = f"seeding failed at {result.get('step', '?')}: {result.get('what', 'it says no more')}"
        fix = "correct what it names; the same command begins again on the disk"
        raise MaskwrightError(what, where=session.environment.name, fix=fix)
    return result


def _wait(session: EnvironmentSession, place: Folder, poll_seconds: float) -> dict[str, Any]:
    """The machine's result. The machine works on without us, so an absent network is waited for."""
    name, told, away, deaf = f"{session.environment.name}-seeder", "", 0, 0.0
    until = time.monotonic() + variables.SEEDER_HOURS * 3600
    path = f"projects/{session.environment.project}/zones/{session.environment.zone}/instances/{name}"
    say(f"{name} copies {_disk(session).source}")
    while time.monotonic() < until:
        try:
            result, step = place.get_json("result.json"), (place.get_json("progress.json") or {}).get("step", "")
            instance = session.google.find("compute", path) if not result else None
        except StoppedEarly:
            raise
        except MaskwrightError as error:
            deaf = deaf or time.monotonic()
            if time.monotonic() - deaf > UNREACHABLE_SECONDS:
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
        if away >= MISSING_POLLS:
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


def _delete_machine(session: EnvironmentSession) -> None:
    """Asks nobody, since a machine that is left costs money. It changes nothing else, and makes nothing."""
    try:
        session.refresh()
        if (session.wanted or {}).get("seeder"):
            target = {**(session.wanted or {}), "seeder": None}
            commands.destroy_running(session, target, lambda plan: None, delete_data=False)
    except MaskwrightError as error:
        warn(f"{error}; {session.environment.name}-seeder may be there still, and costs: `env down` takes it away")


def _make_read_only(session: EnvironmentSession, result: dict[str, Any]) -> None:
    """Makes the disk read-only. The machine goes first: no host may read what another one can write."""
    filled = session.environment.disk_name(session.record.generation)
    _delete_machine(session)
    if ((session.wanted or {}).get("disk") or {}).get("name") != filled:
        fix = "`maskwright env seed` begins again"
        raise MaskwrightError("was replaced while it was seeded", where=filled, fix=fix)
    counts = {key: result[key] for key in ("files", "bytes", "manifest_sha256")}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    session.record = replace(session.record, seeded={**counts, "time": now})
    apply(session, _base(session), lambda plan: None, delete_data=False)
    say(f"seeded: {result['files']:,} files, {human_bytes(result['bytes'])}; from now on the disk is read-only")
    if (session.wanted or {}).get("slice") or (session.wanted or {}).get("group"):
        say("hosts that are up get it with the next `env up`")
