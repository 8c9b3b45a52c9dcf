"""A job on every host of a Cloud TPU VM slice, over `gcloud compute tpus tpu-vm ssh`, with one connection per host.

With `--worker=all`, gcloud would mix the hosts' output, give one exit code for all of them, and need the key in an
ssh-agent. The exit code comes from the script on the host and not from gcloud, whose own failures are also 1, and ssh's
255. gcloud itself must not reconnect: that would start the job a second time on that host. Written for gcloud 528 and
tested with it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from maskwright.config.recipes import find_config
from maskwright.core.console import say, several
from maskwright.core.errors import InputError, MaskwrightError, StoppedEarly
from maskwright.core.storage import is_url
from maskwright.launch import checks
from maskwright.launch.attempts import Stop, run
from maskwright.launch.hosts.script import first_command, script_for
from maskwright.launch.hosts.supervisor import ShellAttempt
from maskwright.launch.target import (
    Env,
    GraceSeconds,
    JobSpec,
    OnSubmission,
    Option,
    Place,
    Restarts,
    Setup,
    Submission,
    Training,
    Workdir,
    show,
    values_of,
)
from maskwright.machine import tpus

TPU_VM = ("compute", "tpus", "tpu-vm")
TRANSITIONAL_STATES = {"CREATING", "STARTING", "RESTARTING", "REIMAGING", "REPAIRING"}
"""States of a slice (TPU API v2, `Node.State`) that lead to READY by themselves."""
DESCRIBE_SECONDS = 120.0
POLL_SECONDS, READY_SECONDS = 5.0, 1800.0
SSH_FLAGS = ("-oConnectTimeout=20", "-oServerAliveInterval=15", "-oServerAliveCountMax=4")
"""With these, ssh notices a lost host after a minute, and not after hours."""


@dataclass(frozen=True)
class TpuSlice(Place):
    """A Cloud TPU VM slice. Only `gcloud alpha` has the tunnel of `via` iap."""

    name: Annotated[str, Option("Name of the Cloud TPU VM slice.", "NAME", argument=True)]
    zone: Annotated[str | None, Option("Zone of the slice. Default: gcloud's.", "NAME")] = None
    project: Annotated[str | None, Option("Project of the slice. Default: gcloud's.", "NAME")] = None
    via: Annotated[
        Literal["external", "internal", "iap"], Option("Which addresses of the hosts ssh uses; iap is gcloud's tunnel.")
    ] = "external"
    env: Env = ()
    workdir: Workdir = "maskwright"
    setup: Setup = None
    restarts: Restarts = 3
    grace_seconds: GraceSeconds = 30.0
    connect_seconds: Annotated[float, Option("How long a host may take to answer.", "N", min=1.0)] = 300.0
    restart_wait_seconds: Annotated[
        float, Option("Pause before a restart of the job. It doubles with each restart, up to 30 s.", "N", min=0.0)
    ] = 10.0
    replace: Annotated[bool, Option("End another job that holds a host of the slice.")] = False

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", self.name):
            fix = "small letters, digits and -, as gcloud shows it"
            raise InputError(f"{self.name[:80]!r} is not the name of a slice", where="submit slice", fix=fix)

    def submit(self, command: Training, *, dry_run: bool, on_submission: OnSubmission = show) -> None:
        """Runs the job to its end. CONFIG, RUN and the folder are paths on the hosts."""
        spec = JobSpec(command, self.env, self.workdir, self.setup, self.restarts, self.grace_seconds)
        values = values_of(self.env)
        self._check(command)
        where = f"slice {self.name}"
        if dry_run:
            on_submission(Submission(False, where, command.run, shown=dry_run_text(self, spec)))
            return
        attempts(self, spec, values, lambda: on_submission(Submission(True, where, command.run)))

    def _check(self, command: Training) -> None:
        """Checks CONFIG, which is on the hosts, if it is a recipe or also a file on this machine."""
        if not os.path.isfile(find_config(command.config, command.verb)):
            return
        config, _ = checks.read(command)
        if known := tpus.kind_and_chips(self.describe()[1]):
            kind, chips = known
            checks.for_tpu(command, config, chips * tpus.TPUS[kind].devices_per_chip)
        for key, path in checks.locations(command, config).items():
            if path and key.startswith("data.") and not is_url(path) and not path.startswith("/"):
                option = checks.setting(key, "gs://BUCKET/STORE")
                say(f"{key}: each host reads {path} in its folder {self.workdir}; {option} brings a store to all hosts")

    def _location(self) -> list[str]:
        options = {"--zone": self.zone, "--project": self.project}
        return [f"{option}={value}" for option, value in options.items() if value is not None]

    def ssh_words(self, index: int, command: str) -> list[str]:
        address = {"external": [], "internal": ["--internal-ip"], "iap": ["--tunnel-through-iap"]}[self.via]
        track = ["alpha"] if self.via == "iap" else []
        flags = [f"--ssh-flag={flag}" for flag in SSH_FLAGS]
        words = ["gcloud", *track, *TPU_VM, "ssh", self.name, *self._location(), f"--worker={index}", *address, *flags]
        return [*words, "--quiet", f"--command={command}"]

    def describe(self) -> tuple[str, str, int]:
        """State, accelerator type and number of hosts. Raises `InputError` if this account sees no such slice."""
        words = ["gcloud", *TPU_VM, "describe", self.name, *self._location(), "--format=json"]
        absent = (
            "install the Google Cloud CLI, or let the hosts fetch the job: maskwright submit bucket gs://…/job.json"
        )
        silent = "check the network, and submit again"
        done = checks.ask(words, "", DESCRIBE_SECONDS, absent=absent, silent=silent)
        if done.returncode:
            raise self._refused(done.stderr)
        try:
            node = json.loads(done.stdout)
            networks = len(node.get("networkConfigs") or [0])  # a host has an endpoint in each network
            return str(node["state"]), str(node["acceleratorType"]), len(node["networkEndpoints"]) // networks
        except (ValueError, KeyError, TypeError, AttributeError):
            what = "gcloud describes it in an unknown format"
            raise MaskwrightError(what, where=self.name, fix="see `gcloud compute tpus tpu-vm describe`") from None

    def _refused(self, complaint: str) -> MaskwrightError:
        line = " ".join(complaint.split("ERROR: ")[-1].split())
        known = {
            "NOT_FOUND": ("no such TPU VM slice", "see `gcloud compute tpus tpu-vm list --zone=ZONE`, and --project"),
            "[zone]": ("no zone is given", "give --zone, or `gcloud config set compute/zone ZONE`"),
            "[project]": ("no project is given", "give --project, or `gcloud config set project PROJECT`"),
            "gcloud auth login": ("gcloud is not logged in", "`gcloud auth login`"),
            "PERMISSION_DENIED": (
                "this account must not see it",
                "ask for the role roles/tpu.viewer, or check --project",
            ),
        }
        for sign, (what, fix) in known.items():
            if sign in line:
                return InputError(what, where=f"slice {self.name}", fix=fix)
        return MaskwrightError(f"gcloud refuses: {line[:300]}", where=f"slice {self.name}", fix="as gcloud says")


def dry_run_text(place: TpuSlice, spec: JobSpec) -> str:
    """The command for each host and the script for its input, without the values of variables."""
    state, kind, num_hosts = place.describe()
    mark = "maskwright-MARK"
    values = dict.fromkeys(spec.environment, "***")
    lines = [f"# slice {place.name}: {kind}, {state}, {several(num_hosts, 'host')}"]
    lines += [shlex.join(place.ssh_words(index, first_command(mark))) for index in range(num_hosts)]
    script = script_for(spec, values, mark=mark, job="JOB", setup=True)
    return "\n".join([*lines, "", "# on the input of each:", script.rstrip()])


def attempts(
    place: TpuSlice, spec: JobSpec, values: Mapping[str, str], first: Callable[[], object] = lambda: None
) -> None:
    """Runs the job to its end; calls `first` once its hosts are ready. Raises `StoppedEarly` (75) if the run can be
    continued, `JobError` with the exit code of the host that failed first."""
    job = secrets.token_hex(8)
    where = f"slice {place.name}"
    with Stop().on_signals() as stop:

        def begin(number: int) -> ShellAttempt:
            num_hosts = _wait_until_ready(place, stop, restart=number > 1)
            say(f"{where}: attempt {number} on {several(num_hosts, 'host')}: {spec.command}")
            if number == 1:
                first()
            return ShellAttempt(
                spec,
                range(num_hosts),
                place.ssh_words,
                values=values,
                job=job,
                setup=number == 1,
                replace=place.replace,
                connect_seconds=place.connect_seconds,
            )

        run(begin, stop, where, wait_seconds=place.restart_wait_seconds)


def _wait_until_ready(place: TpuSlice, stop: Stop, restart: bool) -> int:
    """The number of hosts. Waits for a slice that is being created or repaired, and not for another."""
    began, announced = time.monotonic(), False
    while True:
        state, kind, num_hosts = place.describe()
        if state == "READY" and num_hosts and not stop.asked:
            return num_hosts
        where = f"slice {place.name} ({kind})"
        if stop.asked:
            raise StoppedEarly("the same command continues the run", where=where)
        if state not in TRANSITIONAL_STATES:
            error = StoppedEarly if restart else InputError
            fix = "start it, or create one with the same name, and submit again: the run continues"
            raise error(f"is {state}, not READY", where=where, fix=fix)
        if time.monotonic() - began > READY_SECONDS:
            raise StoppedEarly(f"is still {state}; submit again when it is READY", where=where)
        if not announced:
            say(f"{where} is {state}: waiting up to {READY_SECONDS / 60:.0f} minutes for READY")
            announced = True
        stop.pause(POLL_SECONDS)
