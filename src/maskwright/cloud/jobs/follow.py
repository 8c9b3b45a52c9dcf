"""Submit a job to an environment and follow it: logs, hosts, cost, exit code."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from maskwright.cloud.environment import Slice
from maskwright.cloud.jobs import spec as jobs
from maskwright.cloud.jobs.google_hosts import GoogleHosts
from maskwright.cloud.jobs.policy import Action, OnEvent
from maskwright.cloud.jobs.spec import JobHosts, PreparedJob
from maskwright.cloud.jobs.watcher import HostPool, JobLimits, Watcher, read_limits
from maskwright.core.console import say
from maskwright.core.errors import InputError, JobError, MaskwrightError, StoppedEarly
from maskwright.core.folder import Folder
from maskwright.core.shell import typed
from maskwright.launch import target
from maskwright.launch.bucket import job_folder
from maskwright.launch.target import (
    Env,
    JobSpec,
    OnSubmission,
    Option,
    Restarts,
    Setup,
    Submission,
    Training,
    commands_of,
    show,
)

POLL_SECONDS = 10.0
"""Between two polls of the hosts. A budget may be exceeded by their cost in that time."""
LOG_POLL_SECONDS = 2.0


MaxCost = Annotated[
    float | None, Option("Cost in USD at which the run saves and the hosts are deleted (exit 75).", "N", min=0.0)
]
DownWhenDone = Annotated[bool, Option("Delete the hosts when the job is over.")]
Prices = Annotated[str | None, Option("YAML with your prices, for --max-cost; `env prices` prints ours.", "PATH")]
Kind = Annotated[
    Literal["slice", "group"] | None, Option("Which hosts, where the environment has a slice and a group.")
]


@dataclass(frozen=True)
class OnEnvironment(target.Place):
    location: Annotated[str, Option("YAML of the environment.", "ENV", argument=True)]
    target: Kind = None
    up: Annotated[bool, Option("Create hosts if there are none.")] = False
    detach: Annotated[bool, Option("Submit only; do not follow the job or watch its hosts.")] = False
    max_cost: MaxCost = None
    down_when_done: DownWhenDone = False
    prices: Prices = None
    env: Env = ()
    setup: Setup = None
    restarts: Restarts = 10
    """More than elsewhere: hosts may be preempted several times before a run saves anything new."""

    def submit(self, command: Training, *, dry_run: bool, on_submission: OnSubmission = show) -> None:
        """Follow the job to its end, unless `detach`."""
        place = jobs.find(self.location, self.target)
        prepared = jobs.prepare(place, command)
        spec = JobSpec(prepared.command, self.env, ".", self.setup, self.restarts, prepared.grace_seconds)
        if dry_run:
            on_submission(Submission(False, place.location, prepared.command.run, shown=spec.to_json()))
            return
        limits = make_limits(self.max_cost, command.stop_after_hours, self.down_when_done)
        pool = GoogleHosts(place.location, place.kind, self.prices)
        submit(place, prepared, spec, pool, limits, up=self.up, detach=self.detach, on_submission=on_submission)


def make_limits(max_cost: float | None, stop_after_hours: float | None, down_when_done: bool) -> JobLimits:
    for option, value in (("--max-cost", max_cost), ("--stop-after-hours", stop_after_hours)):
        if value is not None and not math.isfinite(value):
            raise InputError(f"{value} is not a limit", where=option, fix="give a number, or leave it out")
    return JobLimits(max_usd=max_cost, stop_after_hours=stop_after_hours, down_when_done=down_when_done)


def submit(
    place: JobHosts,
    prepared: PreparedJob,
    spec: JobSpec,
    pool: HostPool,
    limits: JobLimits,
    *,
    up: bool = False,
    detach: bool = False,
    on_submission: OnSubmission = show,
    poll_seconds: float | None = None,
) -> None:
    """Raises the error with the job's exit code. `up`: create the hosts if there are none. `detach`: do not follow."""
    limits = with_rates(pool, limits)
    machines = pool.describe()
    if not machines.exists and not up:
        fix = f"{typed(['env', 'up', place.location, '--only', place.kind])}, or submit with --up"
        raise InputError(f"there is no {place.kind}", where=place.location, fix=fix)
    if not machines.exists and not pool.has_bucket():
        pool.up(machines.placement)
    jobs.upload(place, prepared)
    folder = place.folder

    def store_limits(submission: int) -> None:
        """Keep the stored limits of a job that is submitted again without limits."""
        nonlocal limits
        limits = replace(limits, submission=submission).with_defaults(read_limits(folder, submission))
        limits.store(folder)

    submission = job_folder.put_spec(folder, spec, store_limits)
    follow_command, stop_command = commands_of(place.location)
    on_submission(Submission(True, place.jobs, prepared.command.run, place.location, follow_command, stop_command))
    watcher = Watcher(folder, pool, known=limits)
    if detach:
        watcher.poll()  # hosts that powered off, or do not exist yet, would never see the job
        watcher.leave()
        if (result := job_folder.read_result(folder, submission)) is not None:  # such as a refusal by Google
            raise_result(place, Action("end", result.cause, code=result.code))
        limited = limits.max_usd is not None or limits.stop_after_hours is not None or limits.down_when_done
        watch_hosts = f"`{typed(['env', 'watch', place.location])}` watches its hosts"
        say(f"submitted; `{follow_command}` shows it; {watch_hosts if limited else 'nothing watches its hosts'}")
        return
    follow(place, folder, submission, watcher, poll_seconds or POLL_SECONDS)


def with_rates(pool: HostPool, limits: JobLimits) -> JobLimits:
    """The limits, with prices if they include a budget. Raises `InputError` naming what has no price."""
    if limits.max_usd is None:
        return limits
    return replace(limits, rates=tuple(pool.usd_per_hour(number) for number in range(pool.rules().placements)))


def follow(place: JobHosts, folder: Folder, submission: int, watcher: Watcher, poll_seconds: float) -> None:
    due = 0.0
    ended: MaskwrightError | None = None

    def poll_watcher() -> None:
        nonlocal due
        if time.monotonic() >= due:
            watcher.poll()
            due = time.monotonic() + poll_seconds

    try:
        try:
            job_folder.follow(folder, submission, min(LOG_POLL_SECONDS, poll_seconds), poll_watcher)
        except (StoppedEarly, JobError) as error:
            ended = error
        result = job_folder.read_result(folder, submission)
        if result is None:
            say(f"its hosts are no longer watched; `{typed(['env', 'watch', place.location])}` continues that")
            raise ended or StoppedEarly("no longer followed", where=place.location)
        try:
            end = poll_to_end(watcher, poll_seconds)
        except StoppedEarly:
            if watcher.hosts_exist:
                say(f"its hosts still exist; see `{typed(['env', 'status', place.location])}`")
            raise
    finally:
        watcher.leave()
    if watcher.hosts_exist and not result.hosts_taken:
        minutes = place.environment.host.idle_minutes
        queued = isinstance(place.hosts, Slice) and place.hosts.queued  # bills until it is deleted, off or on
        until = f"until they have been idle for {minutes} minutes" if minutes else "and never power off"
        until = "and bill until they are deleted" if queued else until
        say(f"its hosts stay, {until}; `{typed(['env', 'down', place.location, '--only', place.kind])}` deletes them")
    raise_result(place, end, ended)


def poll_to_end(watcher: Watcher, poll_seconds: float, *, stay: bool = False) -> Action:
    """Raises `StoppedEarly` after a signal; with `stay`, only a signal ends it."""
    while (action := watcher.poll()).kind != "end" or stay:
        time.sleep(0.0 if action.kind == "down" else poll_seconds)
    return action


def raise_result(place: JobHosts, end: Action, ended: MaskwrightError | None = None) -> None:
    if end.code == StoppedEarly.exit_code:
        more = "the same command continues the run from its last checkpoint"
        raise StoppedEarly(f"{end.why}; {more}" if end.why else more, where=place.location)
    if ended is not None:
        raise ended
    if end.code:
        raise JobError(f"the job failed: {end.why or f'exit {end.code}'}", end.code, where=place.location)


def watch(
    place: JobHosts,
    pool: HostPool,
    limits: JobLimits,
    *,
    stay: bool = False,
    poll_seconds: float = POLL_SECONDS,
    on_event: OnEvent = lambda event: None,
) -> None:
    """`env watch`: watch until the job is over, then raise the error with its exit code. `stay`: watch the next jobs
    too."""
    watcher = Watcher(place.folder, pool, with_rates(pool, limits), on_event=on_event)
    try:
        raise_result(place, poll_to_end(watcher, poll_seconds, stay=stay))
    finally:
        watcher.leave()
