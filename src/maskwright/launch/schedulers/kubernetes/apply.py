"""`submit --on kubernetes`: the objects as YAML, or given to kubectl."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import replace
from typing import Any

import yaml

from maskwright.core.console import say, warn
from maskwright.core.errors import InputError, MaskwrightError
from maskwright.core.secrets import redact
from maskwright.launch import cluster
from maskwright.launch.job import JobSpec
from maskwright.launch.schedulers.kubernetes.kinds import manifests
from maskwright.launch.schedulers.kubernetes.place import Place, check_paths

LARGEST_CONFIG = 200_000
"""Bytes. kubectl notes the whole object in an annotation, and annotations end at 262,144."""
KUBECTL_SECONDS = 120.0


def build(place: Place, spec: JobSpec) -> list[dict[str, Any]]:
    """The objects. Raises `InputError` for what could not work in a cluster."""
    again = "every end with 75 begins the pods again. Set schedule.steps, or delete or suspend the job"
    cluster.refuse(spec, "kubernetes", {"--stop-after-steps": again})
    if spec.environment and not place.secret:
        fix = f"--secret NAME of one with the keys {', '.join(spec.environment)}"
        raise InputError("takes values from a Secret of the cluster", where="--env", fix=fix)
    config, text = cluster.read(spec)
    if len(text.encode()) > LARGEST_CONFIG:
        raise InputError(f"is larger than {LARGEST_CONFIG:,} bytes", where=spec.command[2], fix="shorten its comments")
    check_paths(place, config, cluster.words_of(spec.command, "--run")[0])
    # By its content, so that another submission under the name leaves that of a job that runs as it is.
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    place = replace(place, config_map=f"{place.name}-{digest}")
    sizes = cluster.sizes(config, place.num_workers, place.gpus)
    if place.kind != "rayjob":  # whose driver says them to its gang
        spec = replace(spec, command=(*spec.command, *sizes))
    return manifests(place, spec, text, cluster.whole_grace_seconds(spec, config))


def to_yaml(objects: list[dict[str, Any]]) -> str:
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True  # &id001 is hard to read, and to edit

    def text(self, value: str) -> yaml.Node:
        style = "|" if "\n" in value else None
        return self.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _Dumper.text)


def submit(place: Place, spec: JobSpec, *, dry_run: bool) -> None:
    text = to_yaml(build(place, spec))
    if dry_run:
        print(text, end="")
        return
    words = ["kubectl", "apply", "--filename=-"]
    try:
        done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=KUBECTL_SECONDS, check=False)
    except OSError as error:
        fix = "install it, or --dry-run and apply the objects from elsewhere"
        raise InputError(f"cannot be started: {error.strerror}", where="kubectl", fix=fix) from None
    except subprocess.TimeoutExpired:
        what = f"no answer in {KUBECTL_SECONDS:.0f} s"
        raise MaskwrightError(what, where="kubectl", fix="check `kubectl cluster-info`") from None
    for line in done.stdout.splitlines():
        say(redact(line))
    if done.returncode:
        complaint = " ".join(done.stderr.split())[:600] or f"exit {done.returncode}"
        raise MaskwrightError(complaint, where="kubectl apply", fix="as kubectl says; what was applied stays")
    last = done.stdout.strip().rpartition("\n")[2]
    inside = f" --namespace={place.namespace}" if place.namespace else ""
    what = last.split(" ")[0]
    if last.endswith(("unchanged", "configured")):
        warn(f"{what} was there before: if it is over, `kubectl delete{inside} {what}` and submit again")
    say(f"follow it: kubectl logs{inside} --follow --selector=app.kubernetes.io/instance={place.name} --prefix")
    say(f"end it, to be continued: kubectl delete{inside} {what}")
