"""The objects in an environment's cluster: operators, queue, classes of nodes, volumes and the jobs' account.

Each `env up` applies all of them, so none is recorded anywhere. Their fields: docs.cloud.google.com/kubernetes-engine/
docs/reference/crds/computeclass, kueue.sigs.k8s.io/docs/concepts, kubernetes.io/docs/concepts/storage.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from maskwright.cloud import cluster, machines
from maskwright.cloud.cluster import NAMESPACE
from maskwright.cloud.environment import Environment, Group, Placement, Slice
from maskwright.cloud.google.errors import unsure
from maskwright.cloud.record import EnvironmentRecord
from maskwright.core.console import say, warn
from maskwright.core.errors import CloudError, MaskwrightError
from maskwright.launch.schedulers.kubernetes.gke import CLASS_LABEL
from maskwright.launch.schedulers.kubernetes.kubectl import APPLY, kubectl
from maskwright.launch.schedulers.kubernetes.pod import Manifest, manifest
from maskwright.machine.tpus import TPUS

RELEASES = {
    "jobset-system": "https://github.com/kubernetes-sigs/jobset/releases/download/v0.12.0/manifests.yaml",
    "kueue-system": "https://github.com/kubernetes-sigs/kueue/releases/download/v0.19.2/manifests.yaml",
}
"""By their namespace. JobSet comes first, since Kueue looks for it at its start."""
REGISTRY = "registry.k8s.io/"
ACCOUNT, QUEUE = "train", "jobs"
NFS_CLAIM, DISK_CLAIM, SEED_CLASS = "nfs-share", "shared-pd", "seed"
KINDS = {"slice", "group"}
JOBS = "jobsets.jobset.x-k8s.io,jobs.batch"
IDLE_MINUTES = 10
"""After this time without pods, GKE deletes a node."""
BOOT_DISK_GB = 100
TRIES, PAUSE_SECONDS = 6, 5.0
DOWNLOAD_SECONDS, READY_SECONDS, RELEASE_SECONDS = 60.0, 600, 120
GRACE_SECONDS = 330
"""Time for jobs to save and end, a little more than the pods' own grace period."""
UNLIMITED = {"cpu": "100k", "memory": "1Pi"}
"""Resources that the queue does not limit, since nodes, chips and GPUs are the limit."""
DEVICES = ("google.com/tpu", "nvidia.com/gpu")


def apply(environment: Environment, record: EnvironmentRecord, outputs: dict[str, Any]) -> None:
    """`outputs`: Terraform's. Raises `CloudError` if the cluster refuses."""
    for namespace, address in RELEASES.items():
        say(f"cluster: {address}")
        run(environment, APPLY, text=_release(environment, address))
        words = ["wait", "--for=condition=Available", "deployment", "--all", f"--namespace={namespace}"]
        run(environment, [*words, f"--timeout={READY_SECONDS}s"], seconds=READY_SECONDS + 30)
    if record.seeded is not None and environment.disk is not None:
        bound = run(environment, ["get", "pvc", DISK_CLAIM, "--ignore-not-found", "-o", "jsonpath={.spec.volumeName}"])
        if bound not in ("", environment.disk_name(record.generation)):
            release(environment, DISK_CLAIM)
    wanted = [*basics(environment), *volumes(environment, record, outputs), *queue(environment), *classes(environment)]
    run(environment, APPLY, text=as_text(wanted))
    for kind in KINDS - set(environment.hosts):
        delete_class(environment, kind)
    say("the cluster's queue, node classes and volumes match the YAML")


def run(environment: Environment, words: list[str], *, text: str = "", seconds: float = 120.0) -> str:
    """Repeats apply and get if that may help, since an operator's webhook answers some seconds after its pod."""
    tries = TRIES if words[0] in ("apply", "get") else 1
    access = cluster.access(environment)
    if words[0] == "apply":  # each object names its own
        access = replace(access, namespace=None)
    for number in range(tries):
        try:
            return kubectl(words, text=text, access=access, seconds=seconds).stdout
        except CloudError as error:
            if number == tries - 1 or not unsure(error):
                raise
            time.sleep(PAUSE_SECONDS)
    raise AssertionError("the last try returns or raises")


def as_text(manifests: list[Manifest]) -> str:
    return "\n".join(json.dumps(manifest) for manifest in manifests)


def _release(environment: Environment, address: str) -> str:
    """A release's manifests, with images from the environment's own repository."""
    try:
        with urllib.request.urlopen(address, timeout=DOWNLOAD_SECONDS) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, TimeoutError, UnicodeDecodeError) as error:
        what = f"cannot be downloaded: {getattr(error, 'reason', error)}"
        raise CloudError(what, reason="unreached", where=address, fix="check the network and proxies") from None
    return str(text.replace(REGISTRY, f"{environment.image_mirror}/"))


def summary(environment: Environment) -> list[str]:
    """A line for each class of nodes, and the operators."""
    lines = [" ".join(address.split("/")[4:8:3]) for address in RELEASES.values()]
    for kind, nodes in environment.hosts.items():
        what = f"{nodes.accelerator} {nodes.topology}" if isinstance(nodes, Slice) else nodes.machine_type
        places = " then ".join(f"{model} in {zone}" for zone, model in nodes.placements(environment.zone))
        lines.append(f"ComputeClass {kind}: {nodes.hosts} x {nodes.machine()} ({what}), {places}")
    return lines


# ---- what is applied -------------------------------------------------------------------------------------------------


def _object(kind: str, version: str, name: str, **more: Any) -> Manifest:
    return manifest(version, kind, {"name": name, **more.pop("metadata", {})}, **more)


def basics(environment: Environment) -> list[Manifest]:
    labels = {"pod-security.kubernetes.io/enforce": "baseline"}
    account = {"iam.gke.io/gcp-service-account": environment.account("train")}
    return [
        _object("Namespace", "v1", NAMESPACE, metadata={"labels": labels}),
        _object(
            "ServiceAccount",
            "v1",
            ACCOUNT,
            metadata={"namespace": NAMESPACE, "annotations": account},
            automountServiceAccountToken=False,
        ),
    ]


def volumes(environment: Environment, record: EnvironmentRecord, outputs: dict[str, Any]) -> Iterator[Manifest]:
    """Volumes and claims of the NFS share, and of the disk once it is seeded."""
    if environment.nfs is not None:
        nfs = outputs["nfs"]
        attributes = {"ip": nfs["address"], "volume": environment.nfs.share}
        csi = {"driver": "filestore.csi.storage.gke.io", "volumeHandle": nfs["handle"], "volumeAttributes": attributes}
        name = f"{environment.name}-nfs"
        yield from volume(name, NFS_CLAIM, "ReadWriteMany", csi)
    if environment.disk is not None and record.seeded is not None:
        yield from disk_volume(environment, record, DISK_CLAIM, "ReadOnlyMany")


def disk_volume(environment: Environment, record: EnvironmentRecord, claim: str, mode: str) -> list[Manifest]:
    """docs.cloud.google.com/kubernetes-engine/docs/how-to/persistent-volumes/readonlymany-disks"""
    assert environment.disk is not None
    disk = environment.disk_name(record.generation)
    path = f"projects/{environment.project}/zones/{environment.zone}/disks/{disk}"
    read_only = {"readOnly": True} if mode == "ReadOnlyMany" else {}
    csi = {"driver": "pd.csi.storage.gke.io", "volumeHandle": path, "fsType": "ext4", **read_only}
    zone = {"key": "topology.gke.io/zone", "operator": "In", "values": [environment.zone]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}}
    name = disk if read_only else f"{disk}-{claim}"
    return volume(name, claim, mode, csi, nodeAffinity=affinity)


def volume(name: str, claim: str, mode: str, csi: Manifest, **more: Any) -> list[Manifest]:
    """A volume that Terraform created, and the one claim that may have it. Deleting them deletes no data. The size is
    nominal, since Kubernetes refuses to change such a claim's size, and a share can grow."""
    size = {"storage": "1Gi"}
    common = {"accessModes": [mode], "storageClassName": ""}
    spec = {"capacity": size, **common, "persistentVolumeReclaimPolicy": "Retain", "csi": csi, **more}
    spec["claimRef"] = {"namespace": NAMESPACE, "name": claim}
    asked = {**common, "volumeName": name, "resources": {"requests": size}}
    return [
        _object("PersistentVolume", "v1", name, spec=spec),
        _object("PersistentVolumeClaim", "v1", claim, metadata={"namespace": NAMESPACE}, spec=asked),
    ]


def queue(environment: Environment) -> Iterator[Manifest]:
    """One queue for all jobs. The node selector of a job decides its flavor, and so its quota."""
    version = "kueue.x-k8s.io/v1beta2"
    if not environment.hosts:
        return
    flavors = []
    for kind, nodes in environment.hosts.items():
        yield _object("ResourceFlavor", version, kind, spec={"nodeLabels": {CLASS_LABEL: kind}})
        devices = dict.fromkeys(DEVICES, 0)
        if isinstance(nodes, Slice):
            devices["google.com/tpu"] = nodes.chips
        else:
            devices["nvidia.com/gpu"] = nodes.size * nodes.gpus
        limits: dict[str, str | int] = {**UNLIMITED, "pods": nodes.hosts, **devices}
        resources = [{"name": name, "nominalQuota": quota} for name, quota in limits.items()]
        flavors.append({"name": kind, "resources": resources})
    groups = [{"coveredResources": [*UNLIMITED, "pods", *DEVICES], "flavors": flavors}]
    here = {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}}
    yield _object("ClusterQueue", version, QUEUE, spec={"namespaceSelector": here, "resourceGroups": groups})
    yield _object("LocalQueue", version, QUEUE, metadata={"namespace": NAMESPACE}, spec={"clusterQueue": QUEUE})


def classes(environment: Environment) -> Iterator[Manifest]:
    for kind, nodes in environment.hosts.items():
        yield _class(environment, kind, [_priority(nodes, place) for place in nodes.placements(environment.zone)])
    if environment.disk is not None:
        machine = environment.disk.seeding_machine
        yield _class(
            environment,
            SEED_CLASS,
            [{"machineType": machine, "location": {"zones": [environment.zone]}, "storage": _boot_disk(machine)}],
        )


def _class(environment: Environment, name: str, priorities: list[Manifest]) -> Manifest:
    spec = {
        "nodePoolAutoCreation": {"enabled": True},
        "nodePoolConfig": {"serviceAccount": environment.account("nodes"), "ipType": "private"},
        "autoscalingPolicy": {"consolidationDelayMinutes": IDLE_MINUTES},
        "priorities": priorities,
        "whenUnsatisfiable": "DoNotScaleUp",
    }
    return _object("ComputeClass", "cloud.google.com/v1", name, spec=spec)


def _boot_disk(machine: str) -> Manifest:
    return {"bootDiskType": machines.family_of(machine).boot_disk, "bootDiskSize": BOOT_DISK_GB}


def _priority(nodes: Slice | Group, place: Placement) -> Manifest:
    rule: Manifest = {"machineType": nodes.machine(), "storage": _boot_disk(nodes.machine())}
    if isinstance(nodes, Slice):
        label = TPUS[nodes.accelerator].gke_label
        rule["tpu"] = {"type": label, "count": nodes.chips_per_host, "topology": nodes.topology}
        rule |= {"placement": {"policyName": nodes.workload_policy}} if nodes.workload_policy else {}
    elif nodes.gpus:
        rule["gpu"] = {"type": machines.GPUS[nodes.machine_type][0], "count": nodes.gpus, "driverVersion": "default"}
    if nodes.max_run_hours is not None:
        rule["maxRunDurationSeconds"] = round(nodes.max_run_hours * 3600)
    if place.model == "RESERVATION_BOUND":  # its zones are in the reservation, so `location` may not name any
        specific = {"name": nodes.reservation, "zones": [place.zone]}
        return {**rule, "reservations": {"affinity": "Specific", "specific": [specific]}}
    rule["location"] = {"zones": [place.zone]}
    if place.model == "FLEX_START":
        rule["flexStart"] = {"enabled": True}
    else:
        rule["spot"] = place.model == "SPOT"
    return rule


# ---- what is removed -------------------------------------------------------------------------------------------------


def release(environment: Environment, claim: str) -> None:
    """Delete a claim and its volume, which detaches the disk. Raises `CloudError` while pods use it."""
    name = run(environment, ["get", "pvc", claim, "--ignore-not-found", "-o", "jsonpath={.spec.volumeName}"])
    if not name:
        return
    words = ["delete", "--ignore-not-found", f"--timeout={RELEASE_SECONDS}s"]
    try:
        run(environment, [*words, "pvc", claim], seconds=RELEASE_SECONDS + 30)
        run(environment, [*words, "pv", name], seconds=RELEASE_SECONDS + 30)
    except CloudError as error:
        fix = "stop its jobs (`maskwright status kubernetes:ENV.yaml/` lists them), then run the command again"
        raise CloudError(f"{claim} is in use: {error.what}", reason="other", where=environment.name, fix=fix) from None


def delete_class(environment: Environment, kind: str) -> None:
    """End the jobs on its nodes, and delete it; GKE then deletes the nodes, which are idle."""
    if names := jobs_on(environment, kind):
        _delete(environment, names)
    run(environment, ["delete", "computeclass", kind, "--ignore-not-found"])


def jobs_on(environment: Environment, kind: str) -> list[str]:
    """KIND/NAME of the jobs on nodes of a class."""
    items = json.loads(run(environment, ["get", JOBS, "-o", "json"]))["items"]
    return [f"{item['kind'].lower()}/{item['metadata']['name']}" for item in items if _class_of(item) == kind]


def _class_of(item: Manifest) -> str | None:
    """The class of nodes that the pods of a JobSet or Job select."""
    spec = item["spec"]
    inner = spec["replicatedJobs"][0]["template"]["spec"] if item["kind"] == "JobSet" else spec
    return (inner["template"]["spec"].get("nodeSelector") or {}).get(CLASS_LABEL)


def end_jobs(environment: Environment) -> None:
    """Ends all jobs, which get time to save. A cluster that does not answer can be deleted all the same."""
    try:
        _delete(environment, [JOBS, "--all"])
    except MaskwrightError as error:
        warn(f"{error}; jobs end without a last checkpoint")


def _delete(environment: Environment, what: list[str]) -> None:
    words = ["delete", *what, "--cascade=foreground", f"--timeout={GRACE_SECONDS}s"]
    run(environment, words, seconds=GRACE_SECONDS + 30)
