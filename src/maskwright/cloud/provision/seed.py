"""`env seed` fills the disk: a Job in the cluster copies a bucket to it, runs the user's script and verifies (fill.py).

The disk is recorded as seeded only after the Job has succeeded. Until then jobs have no claim to it. If this
process or the Job dies, the same command follows the Job, or starts it again on the same disk.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from maskwright.cloud.environment import Disk, read_script
from maskwright.cloud.provision import commands, disk_source, objects
from maskwright.cloud.provision.commands import Confirm, EnvironmentSession
from maskwright.core import storage
from maskwright.core.console import human_bytes, say, warn
from maskwright.core.errors import CloudError, InputError, MaskwrightError, StoppedEarly
from maskwright.launch.follow import until_over
from maskwright.launch.schedulers.kubernetes import pod
from maskwright.launch.schedulers.kubernetes.gke import CLASS_LABEL
from maskwright.launch.schedulers.kubernetes.jobs import condition
from maskwright.launch.schedulers.kubernetes.kubectl import APPLY
from maskwright.launch.schedulers.kubernetes.pod import CONFIG_FOLDER, KubernetesJob, Manifest, Mount, manifest

JOB, CLAIM, DISK, MODE, SCRIPT = "seed", "seed", "/disk", "ReadWriteOnce", "prepare.sh"
POLL_SECONDS = 10.0
HOURS = 12
"""Kubernetes ends the Job after this time."""
RETRIES = 3
"""Restarts of a container that failed, or whose node was lost."""
DIGEST = "maskwright/digest"


def seed(
    location: str, *, again: bool = False, replace_disk: bool = False, anyway: bool = False, confirm: Confirm
) -> EnvironmentSession:
    """`again` fills a new disk although one is seeded; `replace_disk` lets one of another size or type replace it.
    Raises `InputError` if no run can read the content of the bucket, unless `anyway`, and `MaskwrightError` if the Job
    fails. The disk then stays writable, and the same command seeds it again."""
    session = EnvironmentSession(location)
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
        raise InputError(what, where=location, fix=f"{fix}, once you no longer need the data of the old one")
    if wanted.seeded is not None:
        wanted = replace(wanted, generation=wanted.generation + 1, seeded=None)
    script = None if disk.prepare is None else read_script(location, disk.prepare)
    if disk.source is not None:
        _check_source(session, disk, disk.source, anyway)
    with session.terraform.ready():
        commands.apply(session, wanted, confirm, delete_data=again or replace_disk)
        _start(session, _job(session, disk, script))
        counts = _wait(session)
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
        wrong = None if stores or anyway or disk.prepare else disk_source.unreadable(session.google, source)
    except StoppedEarly:
        raise
    except MaskwrightError as error:
        return warn(f"{error}; continuing, since the jobs' account may have the permission")
    for store in [] if disk.prepare else stores[:8]:
        place = "/".join(filter(None, (f"{environment.mount_point}/shared_pd", store)))
        say(f"{source} holds the token store {store or 'itself'}: a run reads it with --set data.store={place}")
    if wrong:
        raise wrong


# ---- the Job ---------------------------------------------------------------------------------------------------------


def _job(session: EnvironmentSession, disk: Disk, script: str | None) -> list[Manifest]:
    """The volume to write, the script, and the Job."""
    environment, made = session.environment, objects.disk_volume(session.environment, session.record, CLAIM, MODE)
    command = ["python", "-m", "maskwright.cloud.provision.fill", DISK]
    command += ["--source", disk.source] if disk.source else []
    command += ["--prepare", f"{CONFIG_FOLDER}/{SCRIPT}"] if script is not None else []
    share = [Mount(objects.NFS_CLAIM, f"{environment.mount_point}/nfs_share", False, False)] if environment.nfs else []
    job = KubernetesJob(
        kind="indexed-job",
        name=JOB,
        image=session.record.container(environment, environment.accelerators[0]),
        mounts=(Mount(CLAIM, DISK, False, False), *share),
        namespace=objects.NAMESPACE,
        service_account=objects.ACCOUNT,
        cpus="4",
        memory="24Gi",
        node_selector=((CLASS_LABEL, objects.SEED_CLASS),),
        grace_seconds=30,
        config_map=JOB,
    )
    made.append(manifest("v1", "ConfigMap", pod.metadata(job), data={SCRIPT: script or ""}))
    template = pod.template(job, command)
    project = {"name": "GOOGLE_CLOUD_PROJECT", "value": environment.project}
    template["spec"]["containers"][0]["env"].append(project)
    spec = {"backoffLimit": RETRIES, "activeDeadlineSeconds": HOURS * 3600, "template": template}
    digest = storage.sha256_of([spec, script, session.environment.disk_name(session.record.generation)])
    return [*made, manifest("batch/v1", "Job", pod.metadata(job) | {"annotations": {DIGEST: digest}}, spec=spec)]


def _start(session: EnvironmentSession, manifests: list[Manifest]) -> None:
    """A running or successful Job of the same disk, source and script is followed; any other is replaced."""
    environment, job = session.environment, _get(session)
    digest = manifests[-1]["metadata"]["annotations"][DIGEST]
    same = job is not None and job["metadata"].get("annotations", {}).get(DIGEST) == digest
    if job is not None and same and not condition(job, "Failed"):
        say("following the Job that fills the disk already")
        return
    _remove(session)
    objects.run(environment, APPLY, text=objects.as_text(manifests))
    say(f"the Job {JOB} fills {environment.disk_name(session.record.generation)}; it continues without this command")


def _remove(session: EnvironmentSession) -> None:
    words = ["delete", f"job/{JOB}", f"configmap/{JOB}", "--ignore-not-found", "--cascade=foreground"]
    objects.run(session.environment, [*words, "--timeout=60s"])
    objects.release(session.environment, CLAIM)


def _get(session: EnvironmentSession) -> dict[str, Any] | None:
    answer = objects.run(session.environment, ["get", "job", JOB, "--ignore-not-found", "-o", "json"])
    return json.loads(answer) if answer.strip() else None


def _wait(session: EnvironmentSession) -> dict[str, Any]:
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

    job = until_over(poll, f"kubernetes:{session.location}/{JOB}", POLL_SECONDS, meanwhile=show)
    if not job:
        raise MaskwrightError("the Job is gone", where=JOB, fix="run the same command again; it continues")
    result = _result(session)
    if condition(job, "Failed"):
        error = result.get("error") or f"no reason given; `kubectl logs job/{JOB}` shows its output"
        fix = "correct that, and run the same command again"
        raise MaskwrightError(f"seeding failed: {error}", where=session.environment.name, fix=fix)
    return result


def _result(session: EnvironmentSession) -> dict[str, Any]:
    """The last pod's termination message, which may be empty."""
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
        fix = "run the same command again; the Job verifies the files"
        raise MaskwrightError("the Job succeeded but left no counts", where=JOB, fix=fix)
    _remove(session)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    kept = {key: counts[key] for key in ("files", "bytes", "manifest_sha256")}
    seeded = replace(session.record, seeded={**kept, "time": now})
    commands.apply(session, seeded, lambda plan: None, delete_data=False)
    say(f"seeded: {counts['files']:,} files, {human_bytes(counts['bytes'])}; the disk is read-only from now on")
