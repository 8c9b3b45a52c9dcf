"""Jobs on an environment: what `submit --on lab.yaml` takes besides, `env watch`, and `status`, `logs` and `stop`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from maskwright.cli.env import env
from maskwright.cli.options import StopAfterHours, pretrain_words, print_result

if TYPE_CHECKING:
    from maskwright.cloud.jobs.spec import Place
    from maskwright.cloud.jobs.watcher import Ground, Limits

Target = Annotated[
    Literal["slice", "group"] | None, typer.Option("--target", help="lab.yaml: where it has a slice and a group.")
]
Up = Annotated[bool, typer.Option("--up", help="lab.yaml: make the hosts when there are none.")]
Detach = Annotated[bool, typer.Option("--detach", help="lab.yaml: submit only; follow nothing, look after nothing.")]
MaxCost = Annotated[
    float | None,
    typer.Option("--max-cost", help="lab.yaml: USD; then the run saves and the hosts go (exit 75).", min=0.0),
]
DownWhenDone = Annotated[bool, typer.Option("--down-when-done", help="lab.yaml: the hosts go when the job is over.")]
Prices = Annotated[str | None, typer.Option("--prices", help="lab.yaml: your table of prices, for --max-cost.")]
EnvironmentFile = Annotated[str, typer.Argument(metavar="ENV", help="YAML of the environment.")]


def start(location: str, set_: list[str], context: typer.Context) -> None:
    """`submit --on lab.yaml`; `context` is that of `submit`."""
    from maskwright.cli import schedulers
    from maskwright.cloud.jobs import follow as following
    from maskwright.cloud.jobs import spec as jobs
    from maskwright.launch.job import JobSpec

    schedulers.refuse_others("environment", context)
    options, given = context.params, schedulers.given(context)
    place = jobs.find(location, options["target"])
    run = jobs.prepare(place, options["config"], options["run"], set_)
    # Hours are counted by the watcher, over all attempts.
    words = pretrain_words(
        run.config, run.directory, list(run.overrides), None, options["stop_after_steps"], options["profile_steps"]
    )
    job = JobSpec(
        ("maskwright", *words),
        tuple(options["env"] or ()),
        ".",
        options["setup"],
        options["restarts"] if "restarts" in given else jobs.RESTARTS,
        options["grace_seconds"],
    )
    spec = jobs.spec(place, run, words=job.command, job=job)
    if options["dry_run"]:
        return print(spec.to_json(), end="")
    limits = _limits(options["max_cost"], options["stop_after_hours"], options["down_when_done"])
    ground = _ground(place, options["prices"])
    following.submit(place, run, spec, ground, limits, up=options["up"], detach=options["detach"])


def _limits(max_cost: float | None, stop_after_hours: float | None, down_when_done: bool) -> Limits:
    from maskwright.cloud.jobs.watcher import Limits
    from maskwright.core.errors import InputError

    for option, given in (("--max-cost", max_cost), ("--stop-after-hours", stop_after_hours)):
        if given is not None and not math.isfinite(given):
            raise InputError(f"{given} is no limit", where=option, fix="a number, or leave it out")
    return Limits(max_usd=max_cost, stop_after_hours=stop_after_hours, down_when_done=down_when_done)


def _ground(place: Place, prices: str | None) -> Ground:
    from maskwright.cloud.jobs.hosts import EnvironmentGround

    return EnvironmentGround(place.location, place.kind, prices)


@env.command("watch")
def watch(
    location: EnvironmentFile,
    target: Target = None,
    max_cost: MaxCost = None,
    stop_after_hours: StopAfterHours = None,
    down_when_done: DownWhenDone = False,
    prices: Prices = None,
    stay: Annotated[bool, typer.Option("--stay", help="For the next jobs too, until you end it.")] = False,
    poll_seconds: Annotated[float, typer.Option(help="Between two looks at the hosts.", min=0.1)] = 10.0,
) -> None:
    """Look after the hosts of the job: made again when they are preempted, taken away when a limit is reached."""
    from maskwright.cloud.jobs import follow as following
    from maskwright.cloud.jobs import spec as jobs

    place = jobs.find(location, target)
    limits = _limits(max_cost, stop_after_hours, down_when_done)
    following.watch(place, _ground(place, prices), limits, stay=stay, poll_seconds=poll_seconds)


# ---- `status`, `logs` and `stop` -----------------------------------------------------------------------------------


def is_environment(run: str) -> bool:
    from maskwright.launch.job import ENVIRONMENTS

    return run.endswith(ENVIRONMENTS)


def status(location: str, as_json: bool) -> None:
    from maskwright.cloud.jobs import status as job_status

    found = list(job_status.look_all(location))
    print_result("\n".join(one.report() for one in found), [one.to_json() for one in found], as_json)


def logs(location: str, follow: bool, lines: int | None) -> None:
    from maskwright.cloud.jobs import status as job_status

    job_status.logs(location, follow, lines)


def stop(location: str) -> None:
    from maskwright.cloud.jobs import status as job_status

    job_status.stop(location)
