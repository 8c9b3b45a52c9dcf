"""`--job-template FILE`: parts of a Job (batch/v1) that are merged into the Job of a run.

Mappings are merged key by key. `containers` are merged by name; entries of other lists are appended. A value that the
command sets itself is refused, except below a key of `REPLACED`. Only the keys that the command has an opinion on are
checked here: the API server checks all others strictly, before anything is created.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, NoReturn

from maskwright.config.settings import read_yaml
from maskwright.core.errors import InputError
from maskwright.core.secrets import SECRET_VARIABLE
from maskwright.launch.checks import inside
from maskwright.launch.schedulers.kubernetes.pod import CONTAINER, GPU, MOST_SECONDS, QUEUE, TPU, Manifest
from maskwright.launch.target import secret_in
from maskwright.launch.topology import WorkerGroup

METADATA = {"labels", "annotations"}
POD = {
    "affinity", "automountServiceAccountToken", "containers", "dnsConfig", "dnsPolicy", "enableServiceLinks",
    "hostAliases", "hostIPC", "hostNetwork", "hostPID", "hostUsers", "imagePullSecrets", "initContainers", "nodeName",
    "nodeSelector", "os", "overhead", "preemptionPolicy", "priorityClassName", "readinessGates", "resourceClaims",
    "resources", "runtimeClassName", "schedulerName", "schedulingGates", "securityContext", "serviceAccountName",
    "shareProcessNamespace", "tolerations", "topologySpreadConstraints", "volumes",
}  # fmt: skip
OF_CONTAINER = {
    "env", "envFrom", "imagePullPolicy", "lifecycle", "livenessProbe", "name", "ports", "readinessProbe",
    "resizePolicy", "resources", "securityContext", "startupProbe", "terminationMessagePath",
    "terminationMessagePolicy", "volumeDevices", "volumeMounts", "workingDir",
}  # fmt: skip
"""Keys of a container; the command has its image and its words."""
KEYS = {
    "": {"metadata", "spec"},
    "metadata": METADATA,
    "spec": {"ttlSecondsAfterFinished", "template"},
    "spec.template": {"metadata", "spec"},
    "spec.template.metadata": METADATA,
    "spec.template.spec": POD,
    f"spec.template.spec.containers[{CONTAINER}]": OF_CONTAINER,
}
"""The keys of a mapping, by its path, if not all keys of Kubernetes may be given."""
REPLACED = {
    "ttlSecondsAfterFinished",
    "securityContext",  # OpenShift gives each namespace users of its own, and refuses others
    "serviceAccountName",
    "automountServiceAccountToken",
    "enableServiceLinks",
}
"""Keys whose values win over the command's; null removes the command's."""
NAMES = {"containers": "name", "volumes": "name", "env": "name", "volumeMounts": "mountPath"}
"""The key that distinguishes the entries of a list."""
LOST = {"emptyDir", "ephemeral", "configMap", "secret", "downwardAPI", "projected", "image"}
"""Kinds of volumes that keep nothing for the next pod."""
COORDINATION = {"JOB_COMPLETION_INDEX", *WorkerGroup(1).variables(0, 0)}
"""Variables by which the pods of a run find each other."""
INSTEAD = {
    "image": "--image",
    "cpu": "--cpus",
    "memory": "--memory",
    GPU: "--gpus-per-node",
    TPU: "--accelerator",
    "name": "--name",
    "namespace": "--namespace",
    "completions": "--num-nodes",
    "parallelism": "--num-nodes",
    "activeDeadlineSeconds": "--stop-after-hours",
    "terminationGracePeriodSeconds": "--set checkpoint.grace_seconds=N",
    QUEUE: "--queue",
    MOST_SECONDS: "--stop-after-hours",
}
"""The option that sets a key."""


def read_template(location: str) -> Manifest:
    """Raises `InputError` if it is no mapping, or holds the value of a secret, which everyone who may see
    jobs can read."""
    made = read_yaml(location, "begin with spec: {template: {spec: …}}, as in a Job")
    for path, what in _secrets(made, ""):
        fix = "name a Secret of the cluster: valueFrom: {secretKeyRef: {name: …, key: …}}, or --secret NAME:KEY"
        raise InputError(f"{path} {what}", where=location, fix=fix)
    return made


def part(template: Manifest, *keys: str) -> Manifest:
    """The mapping below these keys; an empty one if there is none."""
    for key in keys:
        found = template.get(key)
        template = found if isinstance(found, dict) else {}
    return template


def merged(ours: Manifest, template: Manifest, location: str) -> Manifest:
    """The Job `ours` with the parts of a template. Raises `InputError` for a key that is refused."""
    return _Merge(location).mappings(ours, template, "")


def folders(template: Manifest) -> list[tuple[str, bool]]:
    """Folders that a merged template mounts where the run is, and whether files in them outlive the pod."""
    spec = part(template, "spec", "template", "spec")
    own: Manifest = next((each for each in spec.get("containers") or () if each["name"] == CONTAINER), {})
    sources = {each["name"]: each for each in spec.get("volumes") or ()}
    found = []
    for mount in own.get("volumeMounts") or ():
        source: Manifest = sources.get(mount.get("name"), {"emptyDir": {}})  # else one of submit's own
        only_read = any(isinstance(each, dict) and each.get("readOnly") for each in (mount, *source.values()))
        found.append((mount["mountPath"].rstrip("/"), not only_read and LOST.isdisjoint(source)))
    return found


class _Merge:
    def __init__(self, location: str) -> None:
        self.location = location

    def refuse(self, path: str, what: str, fix: str) -> NoReturn:
        raise InputError(f"{path} {what}", where=self.location, fix=fix)

    def mappings(self, ours: Manifest, theirs: Manifest, path: str) -> Manifest:
        made, known = dict(ours), KEYS.get(path)
        for key, value in theirs.items():
            at = f"{path}.{key}".lstrip(".")
            if known is not None and key not in known and key not in ours and key not in INSTEAD:
                near = get_close_matches(str(key), known, 1)
                fix = f"did you mean {near[0]}?" if near else f"the keys here are {', '.join(sorted(known))}"
                self.refuse(at, "cannot be set here", fix)
            submits_own = key in (QUEUE, MOST_SECONDS) or (key in (GPU, TPU) and ".resources." in at)
            if (known is not None and key not in known) or submits_own:
                self.set_by_us(at, key)
            made[key] = self.values(ours[key], value, at, key) if key in ours else value
        return {key: value for key, value in made.items() if value is not None}

    def values(self, ours: Any, theirs: Any, path: str, key: str) -> Any:
        replaced = key in REPLACED or any(f".{each}." in path for each in REPLACED)
        if replaced and theirs is None:
            return None
        if isinstance(ours, dict):
            if not isinstance(theirs, dict):
                self.refuse(path, "is not a mapping", "write it as in a Job")
            return self.mappings(ours, theirs, path)
        if isinstance(ours, list) and not replaced:
            if not isinstance(theirs, list):
                self.refuse(path, "is not a list", "write it as in a Job")
            return self.lists(ours, theirs, path)
        if not replaced and ours != theirs:
            self.set_by_us(path, key)
        return theirs

    def lists(self, ours: list[Any], theirs: list[Any], path: str) -> list[Any]:
        made, key = list(ours), path.rpartition(".")[2]
        if (by := NAMES.get(key)) is None:
            return made + theirs
        taken = dict.fromkeys(COORDINATION, -1) if key == "env" else {}
        taken |= {each[by]: number for number, each in enumerate(made)}
        for number, entry in enumerate(theirs):
            name = entry.get(by) if isinstance(entry, dict) else None
            if not isinstance(name, str):
                fix = f"name: {CONTAINER} is the container of the run" if key == "containers" else f"give its {by}"
                self.refuse(f"{path}[{number}]", f"has no {by}", fix)
            at = f"{path}[{name}]"
            if key == "containers" and name in taken:
                made[taken[name]] = self.mappings(made[taken[name]], entry, at)
            elif name in taken or (key == "volumeMounts" and any(inside(name, folder) for folder in taken)):
                self.set_by_us(at, key)
            else:
                made.append(entry)
        return made

    def set_by_us(self, path: str, key: str) -> NoReturn:
        instead = INSTEAD.get(key)
        self.refuse(path, "is set by submit", f"leave it out{f'; {instead} sets it' if instead else ''}")


def _secrets(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Path, and what is wrong, of each value of a secret."""
    if isinstance(value, str) and (found := secret_in(value)):
        yield path, found
    if isinstance(value, list):
        for number, each in enumerate(value):
            name = each.get("name", number) if isinstance(each, dict) else number
            yield from _secrets(each, f"{path}[{name}]")
    if isinstance(value, dict):
        given, name = str(value.get("value", "")), str(value.get("name", ""))
        if given and not given.startswith(("/", "$(")) and SECRET_VARIABLE.search(name):  # a path, or another variable
            yield f"{path}.value", "is the value of a secret"
        for key, each in value.items():
            yield from _secrets(each, f"{path}.{key}".lstrip("."))
