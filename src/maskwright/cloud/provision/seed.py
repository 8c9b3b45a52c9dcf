"""`env seed` fills the disk: a Job in the cluster copies a bucket to it, runs the user's script and verifies (fill.py).

The disk is recorded as seeded only after the Job has succeeded. Until then jobs have no claim of it. If this
process or the Job dies, the same command follows the Job, or starts it again on what is there.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from maskwright.cloud import cluster
from maskwright.cloud.environment import Disk, read_script
from maskwright.cloud.provision import commands, disk_source, objects
from maskwright.cloud.provision.commands import Confirm, EnvironmentSession
from maskwright.core import storage
from maskwright.core.console import human_bytes, say, warn
from maskwright.core.errors import CloudError, InputError, MaskwrightError, StoppedEarly
from maskwright.launch.follow import until_over
from maskwright.launch.schedulers.kubernetes.gke import CLASS_LABEL
from maskwright.launch.schedulers.kubernetes.jobs import condition
from maskwright.launch.schedulers.kubernetes.pod import Manifest, labels, manifest

JOB, CLAIM, DISK, SHARE = "seed", "seed", "/disk", "nfs_share"
POLL_SECONDS = 10.0
HOURS = 12
"""Kubernetes ends the Job after this time."""
RETRIES = 3
"""Of a container that failed, or whose node was lost."""
DIGEST = "maskwright/digest"
USER = 1000


def seed(
    location: str,
    *,
    again: bool = False,
    replace_disk: bool = False,
    anyway: bool = False,
    confirm: Confirm,
    poll_seconds: float = POLL_SECONDS,
    lock_timeout_seconds: float = 60.0,
) -> EnvironmentSession:
    """`again` fills a new disk although one is seeded; `replace_disk` lets one of another size or type replace it.
    Raises `InputError` if no run can read the content of the bucket, unless `anyway`, and `MaskwrightError` if the Job
    fails. The disk then stays writable, and the same command seeds it again."""
    session = EnvironmentSession(location, lock_timeout_seconds=lock_timeout_seconds)
    disk = session.environment.disk
    if disk is None:
        raise InputError("has no disk", where=location, fix="add a section `disk:` with size_gb and source")
    before, wanted = session.record, session.record.for_disk(session.environment)
    if wanted.seeded is not None and not again:
        counts = wanted.seeded
        say(f"the disk was seeded {counts['time']}: {counts['files']:,} files. --again seeds a new one")
        return session
    if wanted.generation != before.generation and not (again or replace_disk):
        what, fix = f"would replace the disk {session.environment.disk_name(before.generation)}", "--replace"
        raise InputError(what, where=location, fix=f"{fix}, once you need nothing on the old one")
    if wanted.seeded is not None:
        wanted = replace(wanted, generation=wanted.generation + 1, seeded=None)
    script = None if disk.prepare is None else read_script(location, disk.prepare)
    if disk.source is not None:
        _check_source(session, disk, disk.source, anyway)
    with session.terraform.ready():
        commands.apply(session, wanted, confirm, delete_data=again or replace_disk)
        _start(session, _job(session, disk, script))
        counts = _wait(session, poll_seconds)
        _finish(session, counts)
    return session


def _check_source(session: EnvironmentSession, disk: Disk, source: str, anyway: bool) -> None:
    """Refuse a bucket that no run can read, unless a script prepares the data on the disk. Print the command that lets
    the jobs' account read a bucket other than its own."""
    environment, bucket = session.environment, source.removeprefix("gs://").partition("/")[0]
    if bucket not in (environment.dataset_bucket, environment.runs_bucket):
        grant = f"gcloud storage buckets add-iam-policy-binding gs://{bucket}"
        grant += f" --member=serviceAccount:{environment.account('train')} --role=roles/storage.objectViewer"
        say(f"gs://{bucket} is not this environment's; its owner grants access once: `{grant}`")
    try:
        stores = disk_source.stores(session.google, source)
        names = disk_source.first_names(session.google, source)
    except StoppedEarly:
        raise
    except MaskwrightError as error:
        return warn(f"{error}; continuing, since the jobs' account may have the permission")
    readable = disk_source.readable(names, stores)
    for line in readable:
        say(f"{source} holds {line}")
    if disk.prepare is None and stores:
        store = "/".join(filter(None, (f"{environment.mount_point}/shared_pd", stores[0])))
        say(f"a run reads it with --set data.store={store}")
    if disk.prepare is None and not anyway and not readable:
        raise disk_source.unreadable(source, names)


# ---- the Job ---------------------------------------------------------------------------------------------------------


def _job(session: EnvironmentSession, disk: Disk, script: str | None) -> list[Manifest]:
    """The volume to write, the script, and the Job."""
    environment = session.environment
    command = ["python", "-m", "maskwright.cloud.provision.fill", DISK]
    command += ["--source", disk.source] if disk.source else []
    mounts, volumes = [{"name": "disk", "mountPath": DISK}], []
    volumes.append({"name": "disk", "persistentVolumeClaim": {"claimName": CLAIM}})
    if environment.nfs is not None:
        mounts.append({"name": "nfs", "mountPath": f"{environment.mount_point}/{SHARE}"})
        volumes.append({"name": "nfs", "persistentVolumeClaim": {"claimName": objects.NFS_CLAIM}})
    made = objects.disk_volume(environment, session.record, CLAIM, "ReadWriteOnce")
    common = {"namespace": objects.NAMESPACE, "name": JOB}
    if script is not None:
        command += ["--prepare", "/etc/maskwright/prepare.sh"]
        mounts.append({"name": "script", "mountPath": "/etc/maskwright"})
        volumes.append({"name": "script", "configMap": {"name": JOB}})
        made.append(manifest("v1", "ConfigMap", common, data={"prepare.sh": script}))
    container = {
        "name": JOB,
        "image": session.record.container(environment, environment.accelerators[0]),
        "command": command,
        "env": [{"name": "GOOGLE_CLOUD_PROJECT", "value": environment.project}, {"name": "HOME", "value": "/tmp"}],
        "resources": {"requests": {"cpu": "4", "memory": "16Gi"}, "limits": {"memory": "24Gi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": mounts,
    }
    user: dict[str, Any] = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    user["fsGroupChangePolicy"] = "OnRootMismatch"  # else the kubelet walks through the whole share first
    pod = {
        "restartPolicy": "Never",
        "serviceAccountName": objects.ACCOUNT,
        "nodeSelector": {CLASS_LABEL: objects.SEED_CLASS},
        "securityContext": user,
        "containers": [container],
        "volumes": volumes,
    }
    template = {"metadata": {"labels": labels(JOB)}, "spec": pod}
    spec = {"backoffLimit": RETRIES, "activeDeadlineSeconds": HOURS * 3600, "template": template}
    digest = storage.sha256_of([spec, script, session.environment.disk_name(session.record.generation)])
    metadata = {**common, "labels": labels(JOB), "annotations": {DIGEST: digest}}
    return [*made, manifest("batch/v1", "Job", metadata, spec=spec)]


def _start(session: EnvironmentSession, manifests: list[Manifest]) -> None:
    """A Job of the same disk, source and script that runs or has succeeded is followed; any other gives way."""
    environment, job = session.environment, _get(session)
    digest = manifests[-1]["metadata"]["annotations"][DIGEST]
    same = job is not None and job["metadata"].get("annotations", {}).get(DIGEST) == digest
    if job is not None and same and not condition(job, "Failed"):
        say("following the Job that fills the disk already")
        return
    _remove(session)
    objects.run(environment, cluster.APPLY, text=objects.as_text(manifests))
    say(f"the Job {JOB} fills {environment.disk_name(session.record.generation)}; it goes on without this command")


def _remove(session: EnvironmentSession) -> None:
    words = ["delete", f"job/{JOB}", f"configmap/{JOB}", "--ignore-not-found", "--cascade=foreground"]
    objects.run(session.environment, [*words, "--timeout=60s"])
    objects.release(session.environment, CLAIM)


def _get(session: EnvironmentSession) -> dict[str, Any] | None:
    answer = objects.run(session.environment, ["get", "job", JOB, "--ignore-not-found", "-o", "json"])
    return json.loads(answer) if answer.strip() else None


def _wait(session: EnvironmentSession, poll_seconds: float) -> dict[str, Any]:
    """Files, bytes and the manifest's digest, as the Job counted them. Shows its last line whenever that is new."""
    shown = ""

    def poll() -> dict[str, Any] | None:
        job = _get(session)
        return {} if job is None else job if condition(job, "Complete") or condition(job, "Failed") else None

    def show() -> None:
        nonlocal shown
        with suppress(CloudError):  # its container has not started
            lines = objects.run(session.environment, ["logs", f"--selector=job-name={JOB}", "--tail=1"]).split("\n")
            if (line := next(filter(None, reversed(lines)), shown)) != shown:
                say(f"{JOB}: {line}")
                shown = line

    job = until_over(poll, f"kubernetes:{session.location}/{JOB}", poll_seconds, meanwhile=show)
    if not job:
        raise MaskwrightError("the Job is gone", where=JOB, fix="run the same command again; it continues")
    result = _result(session)
    if condition(job, "Failed"):
        error = result.get("error") or f"no reason given; `kubectl logs job/{JOB}` shows its output"
        fix = "correct that; the same command seeds the disk again"
        raise MaskwrightError(f"seeding failed: {error}", where=session.environment.name, fix=fix)
    return result


def _result(session: EnvironmentSession) -> dict[str, Any]:
    """What the last pod left as its termination message; empty if it left nothing."""
    last = "{.items[-1:].status.containerStatuses[0].state.terminated.message}"
    words = [f"--selector=job-name={JOB}", "--sort-by=.metadata.creationTimestamp", "-o", f"jsonpath={last}"]
    try:
        found = json.loads(objects.run(session.environment, ["get", "pods", *words]))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _finish(session: EnvironmentSession, counts: dict[str, Any]) -> None:
    """The volume is taken from the Job before the disk becomes read-only, which a disk in use cannot become."""
    if type(counts.get("files")) is not int or type(counts.get("bytes")) is not int:
        fix = "run the same command again; the Job verifies what is there"
        raise MaskwrightError("the Job succeeded but left no counts", where=JOB, fix=fix)
    _remove(session)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    kept = {key: counts[key] for key in ("files", "bytes", "manifest_sha256")}
    seeded = replace(session.record, seeded={**kept, "time": now})
    commands.apply(session, seeded, lambda plan: None, delete_data=False)
    say(f"seeded: {counts['files']:,} files, {human_bytes(counts['bytes'])}; the disk is read-only from now on")
