"""A job on every host of a Cloud TPU VM slice, over `gcloud compute tpus tpu-vm ssh`, with one connection per host.

With `--worker=all`, gcloud would mix the hosts' output, return one exit code for all of them, and need the key in an
ssh-agent. The exit code comes from the script on the host, not from gcloud, whose own failures are also 1, or 255 from
ssh. Written for gcloud 528 and tested with it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from maskwright.config.recipes import find_config
from maskwright.core.console import say, several
from maskwright.core.errors import InputError, MaskwrightError, StoppedEarly
from maskwright.launch import checks
from maskwright.launch.attempts import Stop, run
from maskwright.launch.hosts.script import first_command, script_for
from maskwright.launch.hosts.supervisor import ShellAttempt
from maskwright.launch.target import Env, OnSubmission, Option, Place, Setup, Submission, Training, show, values_of
from maskwright.machine import tpus

UNKNOWN = "unknown: no answer from Google"
TRANSITIONAL_STATES = {"CREATING", "STARTING", "RESTARTING", "REIMAGING", "REPAIRING", UNKNOWN}
"""States of a slice (TPU API v2, `Node.State`) that lead to READY by themselves."""
DESCRIBE_SECONDS = 120.0
POLL_SECONDS, READY_SECONDS, RESTART_WAIT_SECONDS = 5.0, 1800.0, 5.0
SSH_FLAGS = tuple(
    f"--ssh-flag=-o{flag}" for flag in ("ConnectTimeout=20", "ServerAliveInterval=15", "ServerAliveCountMax=4")
)
"""With these, ssh notices a lost host after a minute, and not after hours."""
FIXES = {
    "NOT_FOUND": "check `gcloud compute tpus tpu-vm list`, and give --zone and --project",
    "[zone]": "give --zone, or run `gcloud config set compute/zone ZONE`",
    "[project]": "give --project, or run `gcloud config set project PROJECT`",
    "gcloud auth login": "run `gcloud auth login`",
    "PERMISSION_DENIED": "ask for the role roles/tpu.viewer, or check --project",
}
"""Fixes for the user, by a sign in gcloud's complaint. Other complaints may pass."""


@dataclass(frozen=True)
class TpuSlice(Place):
    """A Cloud TPU VM slice. Only `gcloud alpha` has the tunnel of `via` iap."""

    name: Annotated[str, Option("Name of the Cloud TPU VM slice.", "NAME", argument=True)]
    zone: Annotated[str | None, Option("Zone of the slice. Default: gcloud's.", "NAME")] = None
    project: Annotated[str | None, Option("Project of the slice. Default: gcloud's.", "NAME")] = None
    via: Annotated[
        Literal["external", "internal", "iap"], Option("Addresses of the hosts for ssh. iap uses gcloud's tunnel.")
    ] = "external"
    env: Env = ()
    workdir: Annotated[str, Option("Folder on the hosts to run in, with its .venv.", "PATH")] = "maskwright"
    setup: Setup = None
    grace_seconds: Annotated[
        float, Option("Time for a run to save, between SIGTERM and SIGKILL. A longer one in CONFIG wins.", "N", min=1)
    ] = 30.0
    replace: Annotated[bool, Option("End any other job on the hosts of the slice.")] = False
    config_is_there: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", self.name):
            fix = "use small letters, digits and -, as gcloud shows it"
            raise InputError(f"{self.name[:80]!r} is not the name of a slice", where="submit slice", fix=fix)

    def submit(self, command: Training, *, dry_run: bool, on_submission: OnSubmission = show) -> None:
        """Runs the job to its end. CONFIG, RUN and the folder are paths on the hosts. Raises `StoppedEarly` (75) or
        `EndedAsAsked` (76) if the run can be continued, `JobError` with the exit code of the host that failed first."""
        values = values_of(self, self.env)
        grace = max(self.grace_seconds, self._check(command))
        if not any(text.startswith("engine.device=") for text in command.overrides):
            command = command.setting("engine.device=tpu")  # a host without libtpu must not compute on its CPU
        where, job = f"slice {self.name}", secrets.token_hex(8)

        def script(mark: str, job: str, values: Mapping[str, str]) -> str:
            again = {"job": job, "replace": "yes" if self.replace else ""}
            there = {"folder": self.workdir, "setup": self.setup or "", "grace": f"{grace:g}"}
            return script_for(command, values, {"mark": mark, **again, **there})

        if dry_run:
            state, kind, num_hosts = self.describe()
            lines = [f"# {where}: {kind}, {state}, {several(num_hosts, 'host')}"]
            lines += [shlex.join(self.ssh_words(host, first_command("maskwright-MARK"))) for host in range(num_hosts)]
            lines += [
                "",
                "# on the input of each:",
                script("maskwright-MARK", "JOB", dict.fromkeys(values, "***")).rstrip(),
            ]
            on_submission(Submission(False, where, command.run, shown="\n".join(lines)))
            return

        def begin(number: int) -> ShellAttempt:
            num_hosts = self._wait_until_ready(stop, restart=number > 1)
            say(f"{where}: attempt {number} on {several(num_hosts, 'host')}: {command}")
            if number == 1:
                on_submission(Submission(True, where, command.run))
            return ShellAttempt(num_hosts, self.ssh_words, lambda mark: script(mark, job, values), grace)

        with Stop().on_signals() as stop:
            run(begin, stop, where, wait_seconds=RESTART_WAIT_SECONDS)

    def _check(self, command: Training) -> float:
        """Checks CONFIG, which is on the hosts, if it is a recipe or also a file on this machine. Returns the grace
        period that it asks for, or 0."""
        if not os.path.isfile(find_config(command.config, command.verb)):
            return 0.0
        config, _ = checks.read(command)
        if known := tpus.kind_and_chips(self.describe()[1]):
            kind, chips = known
            checks.for_tpu(command, config, chips * tpus.TPUS[kind].devices_per_chip)
        for key, path in checks.locations(command, config).items():
            if key.startswith("data.") and not path.startswith("/"):
                option = checks.setting(key, "gs://BUCKET/STORE")
                say(f"{key}: each host reads {path} in its folder {self.workdir}; {option} brings a store to all hosts")
        return checks.grace_seconds(config)

    def _gcloud(self, verb: str, *words: str, track: tuple[str, ...] = ()) -> list[str]:
        location = {"--zone": self.zone, "--project": self.project}
        located = [f"{option}={value}" for option, value in location.items() if value is not None]
        return ["gcloud", *track, "compute", "tpus", "tpu-vm", verb, self.name, *located, *words]

    def ssh_words(self, index: int, command: str) -> list[str]:
        address = {"external": [], "internal": ["--internal-ip"], "iap": ["--tunnel-through-iap"]}[self.via]
        words = [f"--worker={index}", *address, *SSH_FLAGS, "--quiet", f"--command={command}"]
        return self._gcloud("ssh", *words, track=("alpha",) if self.via == "iap" else ())

    def describe(self) -> tuple[str, str, int]:
        """State, accelerator type and number of hosts. Raises `InputError` if the user must fix something, and another
        `MaskwrightError` if asking again may help."""
        where, words = f"slice {self.name}", self._gcloud("describe", "--format=json")
        absent = "install the Google Cloud CLI: https://cloud.google.com/sdk/docs/install"
        done = checks.ask(words, "", DESCRIBE_SECONDS, absent=absent, silent="check the network, and submit again")
        if done.returncode:
            line = " ".join(done.stderr.split("ERROR: ")[-1].split())[:300]
            for sign, fix in FIXES.items():
                if sign in line:
                    raise InputError(line, where=where, fix=fix)
            raise MaskwrightError(f"gcloud refuses: {line}", where=where, fix="follow gcloud's message")
        try:
            node = json.loads(done.stdout)
            networks = len(node.get("networkConfigs") or [0])  # a host has an endpoint in each network
            return str(node["state"]), str(node["acceleratorType"]), len(node["networkEndpoints"]) // networks
        except (ValueError, KeyError, TypeError, AttributeError):
            what = "gcloud describes it in an unknown format"
            raise InputError(what, where=where, fix="check `gcloud compute tpus tpu-vm describe`") from None

    def _wait_until_ready(self, stop: Stop, restart: bool) -> int:
        """The number of hosts. Waits for a slice that is being created or repaired; before a `restart` also for
        Google's answer, and then every other end of the wait is a `StoppedEarly`."""
        where, until, before = f"slice {self.name}", time.monotonic() + READY_SECONDS, ""
        while not stop.asked:
            try:
                state, _, num_hosts = self.describe()
            except MaskwrightError as error:
                if not restart:
                    raise
                if isinstance(error, InputError):
                    raise StoppedEarly(error.what, where=where, fix=error.fix) from None
                state, num_hosts = UNKNOWN, 0
            if state == "READY" and num_hosts:
                return num_hosts
            if state not in TRANSITIONAL_STATES:
                ends = StoppedEarly if restart else InputError
                fix = "start it, or create one with the same name, and submit again: the run continues"
                raise ends(f"is {state}, not READY", where=where, fix=fix)
            if time.monotonic() > until:
                raise StoppedEarly(f"is still {state}; submit again when it is READY", where=where)
            if state != before:
                say(f"{where} is {state}: waiting up to {READY_SECONDS / 60:.0f} minutes for READY")
            before = state
            stop.pause(POLL_SECONDS)
        raise StoppedEarly("the same command continues the run", where=where)
