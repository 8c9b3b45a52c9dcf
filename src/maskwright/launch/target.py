"""Places to train, and the command that they get.

A place to train is a `Place`; a run that trains somewhere is a `RunTarget`. `cli/places.py` chooses both by name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

from maskwright.config.retrieval import kind_of
from maskwright.core.console import Show, answer, one_line, typed, warn
from maskwright.core.errors import InputError
from maskwright.core.secrets import SECRET_VARIABLE, SHORTEST_SECRET, redact
from maskwright.core.storage import is_url

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
VALUE = rf"[^\s'\";&|$]{{{SHORTEST_SECRET},}}(?![^\s'\";&|])"
ASSIGNMENT = re.compile(rf"(?<![\w.-])({VARIABLE.pattern})=['\"]?(?![/~`]){VALUE}")
"""A variable that a shell command sets to a literal value, not to another variable or to a path."""


@dataclass(frozen=True)
class Training:
    """`maskwright pretrain` or `finetune` as a value. It is turned into words when the command starts; words are never
    parsed back. `cli/manual.py` reads the options from here.

    CONFIG: YAML of the run, or the name of a recipe, such as small, or banking77 for fine-tuning.
    Run:
    --run PATH: Run directory on the machine that trains. An existing run is continued.
    overrides --set KEY=VALUE: Override a key of CONFIG, as in --set schedule.steps=100.
    begin_from --from RUN[@STEP]: Begin a new run from another run's newest checkpoint, or from the one of STEP.
    --fresh-optimizer (--from): Take only the weights, and start with a new optimizer state.
    Limits:
    --stop-after-hours 0≤N: Save and stop after this many hours, restarts included (exit code 76).
    --stop-after-steps 1≤N: Save and stop after this many steps, restarts included (exit code 76).
    --profile-steps 0≤N: Profile this many of the first steps into RUN/profile.
    """

    config: str
    run: str
    overrides: tuple[str, ...] = ()
    stop_after_hours: float | None = None
    stop_after_steps: int | None = None
    profile_steps: int = 0
    processes: int | None = None
    """Number of processes on each machine."""
    verb: Literal["pretrain", "finetune"] = "pretrain"
    begin_from: str | None = None
    fresh_optimizer: bool = False

    def words(self) -> list[str]:
        """The words that a user would type after `maskwright`."""
        limits = {
            "--stop-after-hours": self.stop_after_hours,
            "--stop-after-steps": self.stop_after_steps,
            "--profile-steps": self.profile_steps or None,
            "--processes": self.processes,
        }
        limited = [word for name, value in limits.items() if value is not None for word in (name, str(value))]
        keys = [word for text in self.overrides for word in ("--set", text)]
        begin = ["--from", self.begin_from] if self.begin_from else []
        begin += ["--fresh-optimizer"] if self.fresh_optimizer else []
        return [self.verb, self.config, "--run", self.run, *begin, *keys, *limited]

    def setting(self, *overrides: str) -> Training:
        return replace(self, overrides=(*self.overrides, *overrides))

    def __str__(self) -> str:
        return " ".join(["maskwright", *self.words()])


@dataclass(frozen=True)
class LaunchOptions:
    """How many processes and machines train together; None lets the launcher choose.

    Several processes or machines:
    --processes 1≤N: Processes on this machine. Default: one for each GPU.
    --num-nodes 1≤N: Machines that train together. Not needed in a Ray job.
    --node-rank 0≤N: Number of this machine, from 0.
    --rendezvous HOST:PORT: Address on machine 0 where the machines meet.
    --gpus-per-node 0≤N: GPUs to use on each machine of a Ray job; 0 trains on the CPU.
    """

    processes: int | None = None
    num_nodes: int | None = None
    node_rank: int = 0
    rendezvous: str | None = None
    gpus_per_node: int | None = None


def node_words(num_nodes: object, node_rank: object, rendezvous: str) -> list[str]:
    """The words that each machine adds to the command."""
    return ["--num-nodes", str(num_nodes), "--node-rank", str(node_rank), "--rendezvous", rendezvous]


# ---- places --------------------------------------------------------------------------------------------------------


class Option(NamedTuple):
    """A field of a place as an option of the command line."""

    help: str
    metavar: str | None = None
    min: float | None = None
    argument: bool = False


LOST = re.compile(r"(?:^|[;&|\n])\s*(export|module load|conda activate|mamba activate)\b")
"""Shell commands whose only effect is on the shell that runs them."""
Setup = Annotated[
    str | None, Option("Shell command that each host runs before the job, in a separate shell.", "COMMAND")
]
Env = Annotated[tuple[str, ...], Option("Name of an environment variable to pass to the job.", "NAME")]
JobName = Annotated[str | None, Option("Name of the job. Default: the name of the run's folder.", "NAME")]


@dataclass(frozen=True)
class Submission:
    """The outcome of a submission. If nothing was `submitted`, `shown` is what the place would get."""

    submitted: bool
    where: str
    """The receiver of the job: an address, a program, an environment."""
    run: str
    """Run directory there."""
    job: str | None = None
    """Name of the job as `status`, `logs` and `stop` take it, or as the place calls it; None without a name."""
    follow: str | None = None
    """Command that shows the job's lines, if there is one."""
    end: str | None = None
    """Command that ends the job so that it can be continued, if there is one."""
    shown: str = ""
    """Text for stdout: the job's name, or what the place would get."""


OnSubmission = Callable[[Submission], object]
"""Called as soon as the place has accepted a submission, before its job is followed."""


def commands_of(job: str) -> tuple[str, str]:
    """`Submission.follow` and `.end` of a job that `logs` and `stop` accept."""
    return typed(["logs", job, "--follow"]), typed(["stop", job])


def show(submission: Submission) -> None:
    if submission.shown:
        answer(submission.shown.removesuffix("\n"))


class Place(Protocol):
    """Somewhere to train. A place is a dataclass: its fields are the options of `submit`. `leaves_out` names the fields
    of `Training` that are unsupported there."""

    leaves_out: ClassVar[frozenset[str]] = frozenset()
    passing_secrets: ClassVar[str] = "pass it on by its variable's name: --env NAME"
    """How a secret reaches the job, as a fix."""
    shown_by: ClassVar[str] = ""
    """Who shows a job's variables to others; such a place takes no secret by `--env`."""
    setup_is_in_the_jobs_shell: ClassVar[bool] = False
    """Whether variables that its `setup` sets reach the command."""
    config_is_there: ClassVar[bool] = False
    """Whether the hosts read CONFIG, so that a URL is not read here."""

    def submit(self, command: Training, *, dry_run: bool, on_submission: OnSubmission = show) -> None:
        """If the place follows the job, raises the error that gives this process the job's exit code. `dry_run`
        describes what would be done, and starts nothing."""
        ...


def submit(place: Place, command: Training, *, dry_run: bool = False, on_submission: OnSubmission = show) -> None:
    """Submits the command for the kind of its configuration. Raises `InputError` if the command holds a secret: others
    can read it where it runs."""
    require_clean(place, command)
    read_here = "" if place.config_is_there and is_url(command.config) else command.config
    command = replace(command, verb=kind_of(read_here, command.overrides))
    if command.verb == "finetune" and command.begin_from is not None:
        raise InputError("is for pretraining", where="--from", fix="name the run as model.init_from instead")
    lost = None if place.setup_is_in_the_jobs_shell else LOST.search(getattr(place, "setup", None) or "")
    if lost:
        what = f"--setup runs in its own shell, so the effect of `{lost[1]}` is lost"
        warn(f"{what}. Fix: pass a variable to the job with --env NAME")
    place.submit(command, dry_run=dry_run, on_submission=on_submission)


def require_clean(place: Place, command: Training) -> None:
    """Raises `InputError` if the place's setup or the command holds a secret."""
    texts = [("command", word) for word in command.words()] + [("setup", getattr(place, "setup", None) or "")]
    for key, text in texts:
        if "\0" in text:
            raise InputError(f"{key} holds a zero byte", where="job", fix="correct it")
        if found := secret_in(text):
            raise InputError(f"{key} {found}", where="job", fix=place.passing_secrets)


def secret_in(text: str) -> str:
    """`holds a secret` or `sets a secret variable`; empty if the text does neither."""
    if redact(text) != text:
        return "holds a secret"
    return "sets a secret variable" if any(map(SECRET_VARIABLE.search, ASSIGNMENT.findall(text))) else ""


def values_of(place: Place, names: Iterable[str]) -> dict[str, str]:
    """Values of environment variables of this process, for `--env`."""
    values = {}
    for given in names:
        name, equals, _ = given.partition("=")
        if not VARIABLE.fullmatch(given):
            what = f"{name[:80] + '=…' * bool(equals)!r} is not the name of a variable"
            raise InputError(what, where="--env", fix="export NAME=…, and give the name alone: --env NAME")
        if name not in os.environ:
            raise InputError("is not set here", where=f"--env {name}", fix=f"export {name}=…")
        values[name] = os.environ[name]
        if place.shown_by and (SECRET_VARIABLE.search(name) or redact(values[name]) != values[name]):
            what = f"looks like a secret, and {place.shown_by} shows a job's variables"
            raise InputError(what, where=f"--env {name}", fix=place.passing_secrets)
    return values


# ---- runs ----------------------------------------------------------------------------------------------------------


class TargetReport(Protocol):
    """The state of a run. `over`: it will not change any more."""

    @property
    def over(self) -> bool: ...

    def report(self) -> str: ...

    def to_json(self) -> dict[str, Any]: ...


class ListedJob(TargetReport, Protocol):
    def cells(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class JobList:
    titles: tuple[str, ...]
    jobs: Sequence[ListedJob]

    @property
    def over(self) -> bool:
        return all(job.over for job in self.jobs)

    def to_json(self) -> dict[str, Any]:
        return {"jobs": [job.to_json() for job in self.jobs]}

    def report(self) -> str:
        lines = [self.titles, *(tuple(map(one_line, job.cells())) for job in self.jobs)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(redact("  ".join(map(str.ljust, line, widths))).rstrip() for line in lines)


class RunTarget(Protocol):
    """A run that trains, or trained, somewhere. `takes` names the options of `logs` and `stop` that work there: a
    place can do less than a run directory."""

    @property
    def takes(self) -> frozenset[str]: ...

    def status(self) -> TargetReport: ...

    def logs(self, *, follow: bool, lines: int | None, show: Show) -> int:
        """Gives `show` each line. With `follow`, returns the run's exit code or raises the error that carries it."""
        ...

    def stop(self, *, checkpoint: bool, wait_seconds: float) -> str:
        """Waits until the run has saved. Returns its outcome in one line, which may be empty."""
        ...
