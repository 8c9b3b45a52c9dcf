"""A training job for a Ray cluster.

Only the configuration is uploaded. The package is in the cluster's image, and data on storage that its machines see.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar

from maskwright.core.console import say, typed
from maskwright.core.errors import InputError
from maskwright.core.secrets import redact
from maskwright.launch import checks
from maskwright.launch.ray.gang import ACCELERATOR_KEY, STOP_WAIT, require_lasting
from maskwright.launch.ray.jobs import ID, Address, RayCluster, find_address, follow_to_its_end
from maskwright.launch.ray.sizes import asked
from maskwright.launch.target import (
    Env,
    OnSubmission,
    Option,
    Place,
    Submission,
    Training,
    commands_of,
    show,
    values_of,
)

LARGEST_FOLDER_BYTES = 100 << 20
"""Ray refuses a larger folder (HTTP 413), but only after packing it."""
LEFT_OUT = {".git", ".venv", "venv", "__pycache__"}
"""Names that Ray itself leaves out of a working directory (2.60)."""
BEYOND_GRACE_SECONDS = 30


@dataclass(frozen=True)
class Ray(Place):
    num_nodes: Annotated[
        int | None, Option("Machines, or parts of one, that train together. Default: all of the cluster.", "N", 1)
    ] = None
    gpus_per_node: Annotated[
        int | None, Option("GPUs to use on each; 0 trains on the CPU. Default: all of the cluster.", "N", 0)
    ] = None
    accelerator: Annotated[str | None, Option("TPU slice, such as v6e:4x4.", "KIND:TOPOLOGY")] = None
    address: Address = None
    job_id: Annotated[str | None, Option("ID of the new job. Default: a new one.", "NAME")] = None
    workdir: Annotated[str | None, Option("Folder to upload with CONFIG, at most 100 MiB.", "PATH")] = None
    follow: Annotated[bool, Option("Show the log until the job is over, and exit with its code.")] = False
    env: Env = ()
    pip: Annotated[tuple[str, ...], Option("Package to pip install for the job.", "PACKAGE")] = ()

    shown_by: ClassVar[str] = "Ray's dashboard"
    passing_secrets: ClassVar[str] = "set it on the cluster's machines (on Kubernetes as a Secret in the pods' env)"

    def __post_init__(self) -> None:
        if self.job_id is not None and not ID.fullmatch(self.job_id):
            fix = "use at most 100 letters, digits, '.', '_' and '-'"
            raise InputError(f"{self.job_id[:120]!r} is not a valid ID", where="--job-id", fix=fix)
        if any(redact(package) != package for package in self.pip):
            fix = "name an index without one, or install the package in the cluster's image"
            raise InputError("holds a secret, and Ray's dashboard shows a job's packages", where="--pip", fix=fix)

    def submit(self, command: Training, *, dry_run: bool, on_submission: OnSubmission = show) -> None:
        """Submits the job, and shows its ID or follows it."""
        if dry_run:
            checks.warn_of_trackers(command, self.pip)
            entrypoint, variables, _ = self._request(command)
            folder, address = f"{self.workdir} and " if self.workdir else "", find_address(self.address)
            lines = [f"address      {address}", f"entrypoint   {entrypoint}"]
            lines.append(f"uploaded     {folder}{os.path.basename(command.config)}")
            shown_variables = variables | dict.fromkeys(self.env, "***")
            lines += [f"environment  {name}={value}" for name, value in shown_variables.items()]
            lines += [f"pip install  {package}" for package in self.pip]
            lines += [f"accelerator  {self.accelerator}"] if self.accelerator else []
            on_submission(Submission(False, address, command.run, shown="\n".join(lines)))
            return
        name = self._send(command)
        job, shown = f"ray:{name}", "" if self.follow else name
        follow, end = commands_of(job)
        say(f"{job}: submitted to {self._head.address}")
        if not self.follow:
            say(f"follow it with `{follow}`, end it with `{end}`")
        on_submission(Submission(True, self._head.address, command.run, job, follow, end, shown))
        if self.follow:
            follow_to_its_end(self._head, name)

    @cached_property
    def _head(self) -> RayCluster:
        return RayCluster(self.address)

    def _request(self, command: Training) -> tuple[str, dict[str, str], str]:
        """(entrypoint, environment, text of the configuration)."""
        config, text = checks.read(command)
        require_lasting(command.run, checks.locations(command, config), self.workdir)
        if gang := asked(config, self.num_nodes, self.gpus_per_node, self.accelerator):
            gang.fit(command, config)
        variables = {STOP_WAIT: str(checks.grace_seconds(config) + BEYOND_GRACE_SECONDS), **values_of(self, self.env)}
        return self.entrypoint(replace(command, config=os.path.basename(command.config))), variables, text

    def _send(self, command: Training) -> str:
        """Submits the job and returns its ID."""
        entrypoint, variables, text = self._request(command)
        with _packed(self.workdir, os.path.basename(command.config), text) as folder:
            name = self.name(command.run)
            _refuse_duplicate(self._head, name, command.run)
            os.environ["RAY_RUNTIME_ENV_IGNORE_GITIGNORE"] = "1"  # Ray then uploads ignored files too
            pip = {"pip": list(self.pip)} if self.pip else {}
            self._head.submit(
                entrypoint=entrypoint,
                submission_id=name,
                runtime_env={"working_dir": folder, "env_vars": variables, **pip},
                metadata={ACCELERATOR_KEY: self.accelerator} if self.accelerator else {},
            )
        return name

    def entrypoint(self, command: Training) -> str:
        """The driver's command, which chooses numbers that are None. `exec` leaves no shell before its exit code. The
        environment that Ray makes for `pip` contains `python`, but not always `maskwright`."""
        options = {"--num-nodes": self.num_nodes, "--gpus-per-node": self.gpus_per_node}
        more = [word for option, number in options.items() if number is not None for word in (option, str(number))]
        words = typed([*command.words(), *more])
        return f"exec python -m {words}" if self.pip else f"exec {words}"

    def name(self, run: str) -> str:
        return self.job_id or f"{checks.name_for(run)}-{secrets.token_hex(3)}"


def _refuse_duplicate(head: RayCluster, name: str, run: str) -> None:
    for job in head.jobs():
        if job.id == name:
            fix = f"follow it with `maskwright logs ray:{name} --follow`; for a new job, give another --job-id or none"
            raise InputError(f"such a job exists already: {job.state}", where=f"--job-id {name}", fix=fix)
        if not job.over and job.run == os.path.normpath(run):
            fix = f"`maskwright logs ray:{job.id} --follow` follows it, `maskwright stop ray:{job.id}` ends it"
            raise InputError(f"is being trained by ray:{job.id}, {job.state}", where=f"--run {run}", fix=fix)


@contextmanager
def _packed(working_dir: str | None, config_name: str, config: str) -> Iterator[str]:
    """The folder to upload."""
    with tempfile.TemporaryDirectory(prefix="maskwright-") as folder:
        if working_dir is not None:
            _require_small(working_dir)
            shutil.copytree(working_dir, folder, dirs_exist_ok=True, ignore=lambda _, names: LEFT_OUT & set(names))
        with open(os.path.join(folder, config_name), "w", encoding="utf-8") as file:
            file.write(config)
        yield folder


def _require_small(folder: str) -> None:
    if not os.path.isdir(folder):
        raise InputError("is not a folder", where=f"--workdir {folder}", fix="give a folder, or leave it out")
    size = 0
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        for name in [*folders, *names]:
            if os.path.islink(link := os.path.join(place, name)):
                fix = "copy its target, or leave it out of the folder"
                raise InputError("is a link, which the upload would follow", where=link, fix=fix)
        size += sum(os.lstat(os.path.join(place, name)).st_size for name in names)
        if size > LARGEST_FOLDER_BYTES:
            fix = "leave data out: put it on storage that the cluster's machines see, and give its absolute path"
            raise InputError("holds more than 100 MiB, Ray's limit", where=f"--workdir {folder}", fix=fix)
