"""Vertex AI on the command line: options of `submit --on vertex`, and what `status`, `logs` and `stop` hand over."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from maskwright.cli.options import print_result

if TYPE_CHECKING:
    from maskwright.cloud.vertex.request import Nfs
    from maskwright.launch.job import JobSpec

Region = Annotated[
    str | None, typer.Option(help="vertex: where the job runs, as us-central1; or --zone, of which it is.")
]
MachineType = Annotated[str | None, typer.Option(help="vertex: of each worker; follows from a slice's --topology.")]
Topology = Annotated[str | None, typer.Option(help="vertex: of a TPU slice, with --accelerator v5e or v6e.")]
Strategy = Annotated[
    Literal["STANDARD", "SPOT", "FLEX_START"] | None, typer.Option(help="vertex: --spot says SPOT; STANDARD else.")
]
WaitHours = Annotated[
    float | None, typer.Option(help="vertex, FLEX_START: to wait for machines; 0: for ever.", min=0.0)
]
NfsMounts = Annotated[
    list[str] | None, typer.Option("--nfs", help="vertex: SERVER:/path:/mnt/nfs/NAME, mounted on each worker.")
]
PeeredNetwork = Annotated[
    str | None, typer.Option("--network", help="vertex: projects/NUMBER/global/networks/NAME, of --nfs.")
]
Staging = Annotated[str | None, typer.Option(help="vertex: gs://bucket/folder that CONFIG is copied to.")]
Labels = Annotated[list[str] | None, typer.Option("--label", help="vertex: KEY=VALUE, of the job.")]

TAKES = {"region", "machine_type", "topology", "strategy", "wait_hours", "nfs", "network", "staging", "label"}
TAKES |= {"project", "zone", "image", "service_account", "name", "accelerator", "spot", "setup"}


def submit(spec: JobSpec, common: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Follows the job; its exit code is this command's."""
    from maskwright.cloud.vertex import jobs
    from maskwright.cloud.vertex import request as vertex
    from maskwright.core.errors import InputError

    if options["spot"] and options["strategy"] not in (None, "SPOT"):
        raise InputError("says SPOT", where="--spot", fix=f"leave it out for --strategy {options['strategy']}")
    region = options["region"] or (options["zone"] or "").rpartition("-")[0]
    place = vertex.Place(
        project=_project(options["project"]),
        region=region,
        name=common["name"],
        image=options["image"],
        num_workers=common["num_workers"],
        gpus=common["gpus"],
        strategy=options["strategy"] or ("SPOT" if options["spot"] else "STANDARD"),
        nfs=tuple(parse_nfs(text) for text in options["nfs"] or ()),
        labels=dict(_label(text) for text in options["label"] or ()),
        **{
            key: options[key]
            for key in (
                "machine_type",
                "accelerator",
                "topology",
                "wait_hours",
                "network",
                "service_account",
                "staging",
            )
        },
    )
    if missing := [name for name in spec.environment if name not in os.environ]:
        raise InputError("is not set here", where=f"--env {missing[0]}", fix=f"export {missing[0]}=…")
    request, config = jobs.build(place, spec, os.environ)
    if options["dry_run"]:
        return print(json.dumps(request, indent=2, ensure_ascii=False))
    jobs.follow(jobs.submit(place, request, config))


def _project(given: str | None) -> str:
    from maskwright.core.errors import InputError

    names = ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT")
    found = given or next((os.environ[name] for name in names if os.environ.get(name)), None)
    if not found:
        raise InputError("is not given", where="--project", fix=f"--project NAME, or export {names[0]}=NAME")
    return found


def parse_nfs(text: str) -> Nfs:
    from maskwright.cloud.vertex.request import NFS, Nfs
    from maskwright.core.errors import InputError

    found = re.fullmatch(r"([\w.-]+):(/[^:\s]*):(/mnt/nfs/[A-Za-z0-9._-]+)", text)
    if not found:
        fix = f"--nfs 10.1.2.3:/share:{NFS}/share"
        raise InputError(f"{text[:120]!r} is not SERVER:/path:{NFS}/NAME", where="--nfs", fix=fix)
    return Nfs(*found.groups())


def _label(text: str) -> tuple[str, str]:
    from maskwright.core.errors import InputError

    key, _, value = text.partition("=")
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key) or not re.fullmatch(r"[a-z0-9_-]{0,63}", value):
        fix = "--label team=nlp: small letters, digits, _ and -"
        raise InputError(f"{text[:120]!r} is not KEY=VALUE", where="--label", fix=fix)
    return key, value


def status(target: str, as_json: bool, watch: bool) -> None:
    from maskwright.cloud.vertex import jobs
    from maskwright.core.errors import InputError

    if watch:
        fix = f"`maskwright logs {target} --follow`, or --watch with the run's folder"
        raise InputError("is for a run directory", where="--watch", fix=fix)
    found = jobs.status(target)
    print_result(found.report(), found.to_json(), as_json)


def logs(target: str, follow: bool, lines: int | None) -> None:
    from maskwright.cloud.vertex import jobs
    from maskwright.core.errors import InputError

    if lines is not None:
        raise InputError("is for a run directory", where="--lines", fix="leave it out, or give RUN")
    jobs.logs(target, follow)


def stop(target: str, checkpoint: bool, wait_seconds: float) -> None:
    from maskwright.cloud.vertex import jobs
    from maskwright.core.errors import InputError

    if checkpoint:
        raise InputError("is for a run directory", where="--checkpoint", fix="give RUN, from a machine that sees it")
    print(f"{target}: {jobs.stop(target, wait_seconds).state.lower()}")
