"""`env seed` fills a disk: a temporary machine copies a bucket to it, runs the user's script and counts the files.

Terraform creates the machine while the variable `seeder` is not null. It is deleted whatever happens here. If this
process dies, the same command continues, and Google deletes the machine after `SEEDER_HOURS`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from maskwright.cloud.environment import Disk, read_script
from maskwright.cloud.provision import commands, disk_source, existing_network, variables
from maskwright.cloud.provision.commands import Confirm, EnvironmentSession, apply
from maskwright.core.console import human_bytes, say, warn
from maskwright.core.errors import InputError, MaskwrightError, StoppedEarly
from maskwright.core.folder import Folder

POLL_SECONDS = 10.0
UNREACHABLE_SECONDS = 900.0
"""How long bucket and API may be out of reach: a laptop slept, a network changed."""
MISSING_POLLS = 3
"""Polls in a row that find neither the machine nor a result before the seeding has failed."""


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
    """`again` replaces a disk that is seeded, `move_hosts` one of another size or type. Raises `InputError` if no run
    can read the content of the bucket, unless `anyway`. Raises `MaskwrightError` with the failure on the machine, after
    deleting it. The disk then stays writable, and the same command seeds it again."""
    session = EnvironmentSession(location, lock_timeout_seconds=lock_timeout_seconds)
    if session.environment.disk is None:
        raise InputError("has no disk", where=location, fix="add a section `disk:` with size_gb and source")
    session.requested()  # a disk of another size is another disk
    current, name = (session.wanted or {}).get("disk"), session.environment.disk_name(session.record.generation)
    if session.record.seeded is not None and not again:
        counts = session.record.seeded
        say(f"the disk was seeded {counts['time']}: {counts['files']:,} files. --again seeds a new one")
        return session
    if current and current["name"] != name and not again and not move_hosts:
        what = f"would replace the disk {current['name']}"
        raise InputError(what, where=name, fix="--again or --move-hosts, once you need nothing on the old one")
    before = session.record
    if session.record.seeded is not None:
        session.record = replace(session.record, generation=session.record.generation + 1, seeded=None)
        name = session.environment.disk_name(session.record.generation)
    replaces = bool(current and current["name"] != name)
    if replaces and (hosts := _hosts_with_disk(session)):
        fix = "--move-hosts recreates them with the new one; or `maskwright env down` first, which keeps the data"
        raise InputError(f"the {hosts[0]} has the disk attached", where=location, fix=fix)
    existing_network.refuse(session.google, session.environment)
    _say_grant(session)
    _check_source(session, anyway)
    if current and replaces:
        source = _disk(session).source
        say(f"{current['name']} is deleted with its data; {name} replaces it, filled from {source}")
    with session.terraform.ready():
        try:
            result = _fill(session, confirm, again or replaces, poll_seconds)
        except BaseException:
            unchanged = (session.wanted or {}).get("disk") == current
            if before.seeded and unchanged:  # no new disk was created, and the old one is still good
                session.store_record(before)
            raise
        _make_read_only(session, result)
    return session


def hosts_to_move(location: str, again: bool) -> list[str]:
    """Hosts with a disk that seeding would replace."""
    session = EnvironmentSession(location)
    was_seeded = session.record.seeded
    session.requested()
    current, name = (session.wanted or {}).get("disk"), session.environment.disk_name(session.record.generation)
    replaces = (current is not None and current["name"] != name) or (again and was_seeded)
    return _hosts_with_disk(session) if session.environment.disk and replaces else []


def _hosts_with_disk(session: EnvironmentSession) -> list[str]:
    wanted = session.wanted or {}
    hosts = [kind for kind in ("slice", "group") if (wanted.get(kind) or {}).get("attach_disk")]
    queued = session.record.queued_zone is not None and (wanted.get("disk") or {}).get("seeded")
    return [*hosts, *(["slice"] if queued else [])]


def _check_source(session: EnvironmentSession, anyway: bool) -> None:
    """Refuse a bucket that no run can read, unless a script prepares the data on the disk."""
    disk, folder = _disk(session), f"{session.environment.mount_point}/shared_pd"
    try:
        content = disk_source.read(session.google, disk)
    except StoppedEarly:
        raise
    except MaskwrightError as error:
        return warn(f"{error}; continuing, since the seeding machine may have the permission")
    for line in content.readable():
        say(f"{disk.source} holds {line}")
    if disk.prepare is None and content.stores:
        say(f"a run reads it with --set data.store={'/'.join(filter(None, (folder, content.stores[0])))}")
    if disk.prepare is None and not anyway:
        disk_source.require_readable(content)


def _say_grant(session: EnvironmentSession) -> None:
    """Print the command that lets the environment's account read a bucket other than its own."""
    env, bucket = session.environment, _disk(session).source.removeprefix("gs://").partition("/")[0]
    if bucket not in (env.dataset_bucket, env.runs_bucket):
        member = f"serviceAccount:{env.name}-train@{env.project}.iam.gserviceaccount.com"
        grant = f"gcloud storage buckets add-iam-policy-binding gs://{bucket} --member={member}"
        grant += " --role=roles/storage.objectViewer"
        say(f"gs://{bucket} is not this environment's; its owner grants access once: `{grant}`")


def _disk(session: EnvironmentSession) -> Disk:
    assert session.environment.disk is not None
    return session.environment.disk


def _base(session: EnvironmentSession) -> dict[str, Any]:
    return variables.only(session.wanted, session.requested(), {"disk", "seeder"})


def _apply(session: EnvironmentSession, target: dict[str, Any], confirm: Confirm, *, delete_data: bool) -> None:
    """Raises `InputError` if hosts would be deleted or replaced, whose jobs would die."""
    apply(session, target, confirm, delete_data=delete_data, parts=("disk",))


def _fill(session: EnvironmentSession, confirm: Confirm, again: bool, poll_seconds: float) -> dict[str, Any]:
    prepare = read_script(session.location, _disk(session).prepare)
    folder = Folder(variables.seed_result(session.environment, session.record).rpartition("/")[0])
    address = None
    if prepare is not None:
        if not session.has_buckets():
            _apply(session, _base(session), confirm, delete_data=again)
        setup = Folder(f"gs://{session.environment.jobs_bucket}/setup")
        setup.put(f"{prepare[0]}.sh", prepare[1])
        address = f"{setup.location}/{prepare[0]}.sh"
    machine = variables.seeder(session.environment, session.record, address)
    existing = (session.wanted or {}).get("seeder")
    if existing and existing != machine:
        say("deleting the existing seeding machine first: it has other orders")
        record = session.record
        _delete_machine(session)
        session.record = record
    if existing != machine and session.has_buckets():
        folder.put_json("result.json", {})  # discards the result of an earlier try
    try:
        _apply(session, {**_base(session), "seeder": machine}, confirm, delete_data=again)
        result = _wait(session, folder, poll_seconds)
    except BaseException:
        _delete_machine(session)
        raise
    if result.get("ok") is not True:
        _delete_machine(session)
        what = f"seeding failed at {result.get('step', '?')}: {result.get('what', 'no reason given')}"
        fix = "correct that; the same command seeds the disk again"
        raise MaskwrightError(what, where=session.environment.name, fix=fix)
    return result


def _wait(session: EnvironmentSession, folder: Folder, poll_seconds: float) -> dict[str, Any]:
    """The machine's result. The machine works without this process, so network failures are waited out."""
    name, last_step, missing, unreachable_since = f"{session.environment.name}-seeder", "", 0, 0.0
    until = time.monotonic() + variables.SEEDER_HOURS * 3600
    path = f"projects/{session.environment.project}/zones/{session.environment.zone}/instances/{name}"
    say(f"{name} copies {_disk(session).source}")
    while time.monotonic() < until:
        try:
            result, step = folder.get_json("result.json"), (folder.get_json("progress.json") or {}).get("step", "")
            instance = session.google.find("compute", path) if not result else None
        except StoppedEarly:
            raise
        except MaskwrightError as error:
            unreachable_since = unreachable_since or time.monotonic()
            if time.monotonic() - unreachable_since > UNREACHABLE_SECONDS:
                raise
            warn(f"{error}; trying again")
            time.sleep(poll_seconds)
            continue
        unreachable_since = 0.0
        if result:
            return _checked(result)
        if step and step != last_step:
            say(f"{name}: {step}")
            last_step = str(step)
        runs = instance and instance.get("status") not in ("TERMINATED", "STOPPED", "SUSPENDED")
        missing = 0 if runs else missing + 1
        if missing >= MISSING_POLLS:
            return {"ok": False, "step": last_step or "start", "what": f"{name} is gone and left no result"}
        time.sleep(poll_seconds)
    return {"ok": False, "step": last_step, "what": f"no result after {variables.SEEDER_HOURS} hours"}


def _checked(result: dict[str, Any]) -> dict[str, Any]:
    """The result, or a failure if our script cannot have written it: every host may write there."""
    counts = [result.get(key) for key in ("files", "bytes")]
    valid = all(type(count) is int for count in counts) and isinstance(result.get("manifest_sha256"), str)
    if result.get("ok") is True and not valid:
        return {"ok": False, "step": "result", "what": "our script did not write this result"}
    return result


def _delete_machine(session: EnvironmentSession) -> None:
    """Delete the machine, and change nothing else. Asks for no confirmation, since the machine costs money."""
    try:
        session.refresh()
        if (session.wanted or {}).get("seeder"):
            target = {**(session.wanted or {}), "seeder": None}
            commands.destroy_running(session, target, lambda plan: None, delete_data=False)
    except MaskwrightError as error:
        warn(f"{error}; {session.environment.name}-seeder may still exist and cost money: `env down` deletes it")


def _make_read_only(session: EnvironmentSession, result: dict[str, Any]) -> None:
    """Make the disk read-only. The machine is deleted first: no host may read what another one can write."""
    name = session.environment.disk_name(session.record.generation)
    _delete_machine(session)
    if ((session.wanted or {}).get("disk") or {}).get("name") != name:
        fix = "run `maskwright env seed` again"
        raise MaskwrightError("was replaced while it was seeded", where=name, fix=fix)
    counts = {key: result[key] for key in ("files", "bytes", "manifest_sha256")}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    session.record = replace(session.record, seeded={**counts, "time": now})
    _apply(session, _base(session), lambda plan: None, delete_data=False)
    say(f"seeded: {result['files']:,} files, {human_bytes(result['bytes'])}; the disk is read-only from now on")
    if (session.wanted or {}).get("slice") or (session.wanted or {}).get("group"):
        say("running hosts get it with the next `env up`")
