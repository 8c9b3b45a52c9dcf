"""What the launchers that write a file for a scheduler have in common: whether the command can work there."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from maskwright.core import storage
from maskwright.core.config import RunConfig, read_config
from maskwright.core.errors import InputError
from maskwright.core.recipes import find_config
from maskwright.core.secrets import redact
from maskwright.launch.job import JobSpec

PORT = 29400
"""Of node 0, where the processes meet: torchrun's default for c10d."""
LONGEST_NAME = 40
"""Characters: pods of a JobSet add up to 23, and a host name may have 63."""


def words_of(command: Sequence[str], option: str) -> list[str]:
    """The values that an option has in a command."""
    return [value for word, value in zip(command, command[1:], strict=False) if word == option]


def read(spec: JobSpec) -> tuple[RunConfig, str]:
    """The configuration of the job's command as it will be read there, and the text of its file."""
    location = spec.command[2]
    with storage.open_binary(find_config(location)) as file:
        text = file.read().decode("utf-8", errors="replace")
    config = read_config(location, words_of(spec.command, "--set"))
    if redact(text) != text:
        raise InputError("holds a secret", where=location, fix="pass it on by its variable's name: --env NAME")
    return config, text


def sized(spec: JobSpec, config: RunConfig, num_workers: int, gpus: int) -> JobSpec:
    """With the words that say what each machine computes on: what was asked for, or an error there. Raises `InputError`
    where the batch cannot be shared out so."""
    return replace(spec, command=(*spec.command, *sizes(config, num_workers, gpus)))


def sizes(config: RunConfig, num_workers: int, gpus: int) -> list[str]:
    device, total, V = "cuda" if gpus else "cpu", num_workers * max(1, gpus), config.batch.virtual_workers
    if config.engine.device not in ("auto", device):
        what = f"is {config.engine.device}, and --gpus-per-worker {gpus} asks for {device}"
        raise InputError(what, where="engine.device", fix="leave engine.device out, or ask for what it says")
    if V % total:
        raise InputError(
            f"{V} virtual workers cannot be shared out evenly over {total} processes",
            where="batch.virtual_workers",
            fix=f"take a multiple of {total}, with fewer batch.micro_batch_rows for the same batch",
        )
    # One process of JAX drives all devices of its machine.
    processes = 1 if config.engine.kind == "jax" else max(1, gpus)
    return ["--set", f"engine.device={device}", "--processes", str(processes)]


def whole_grace_seconds(spec: JobSpec, config: RunConfig) -> int:
    """From SIGTERM to SIGKILL, as the scheduler is told. The run needs less than that to save."""
    if spec.grace_seconds <= config.checkpoint.grace_seconds:
        needed = f"checkpoint.grace_seconds is {config.checkpoint.grace_seconds:g}"
        fix = f"--grace-seconds {config.checkpoint.grace_seconds + 5:g}, or a smaller checkpoint.grace_seconds"
        raise InputError(f"{spec.grace_seconds:g} s is no time to save: {needed}", where="--grace-seconds", fix=fix)
    return math.ceil(spec.grace_seconds)


def name_for(run: str, given: str | None) -> str:
    """A name that every scheduler takes (a DNS label, RFC 1035): the one given, or from the run's folder."""
    name = given or re.sub(r"[^a-z0-9]+", "-", run.rstrip("/").rpartition("/")[2].lower()).strip("-")
    if not given:
        name = (name if name[:1].isalpha() else f"run-{name}")[:LONGEST_NAME].strip("-")
    if not re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name) or len(name) > LONGEST_NAME:
        fix = f"small letters, digits and -, a letter first, at most {LONGEST_NAME}"
        raise InputError(f"{name[:80]!r} is no name for a job", where="--name", fix=fix)
    return name


def refuse(spec: JobSpec, place: str, options: dict[str, str]) -> None:
    """Options of the command that would do harm there, each with what to do instead."""
    for option, fix in options.items():
        if option in spec.command:
            raise InputError(f"does not go with --on {place}", where=option, fix=fix)
