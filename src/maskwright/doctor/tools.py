"""Checks of programs that some commands start: whether they are installed, and their versions, without a network."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version

from maskwright.core.extras import OLDEST_TERRAFORM, missing
from maskwright.core.secrets import redact
from maskwright.doctor.finding import DoctorFinding
from maskwright.doctor.frameworks import present

SECONDS = 4.0
"""Time limit for each program; all run at once. gcloud, which is Python, needs a second."""


@dataclass(frozen=True)
class Tool:
    name: str
    programs: tuple[str, ...]
    arguments: tuple[str, ...]
    read: Callable[[str], str]
    """Parses its version from its output. Raises `LookupError` or `ValueError` for any other output."""
    wanted_by: str
    """The parts of maskwright that start it."""
    fix: str
    oldest: tuple[int, ...] = ()
    asks_a_server: bool = False
    """Whether it prints its own version but fails if its server does not answer: a machine may have only the client."""


def _first_number(text: str) -> str:
    match = re.search(r"(?<!\d)\d+(\.\d+)+", text)
    if match is None:
        raise ValueError(text)
    return match.group()


def _field(*names: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        value = json.loads(text)
        for name in names:
            value = value[name]
        return str(value)

    return read


TOOLS = (
    Tool(
        *("SLURM", ("sbatch",), ("--version",), _first_number, "`submit slurm`"),
        fix="use a login node of the cluster",
    ),
    Tool(
        *("kubectl", ("kubectl",), ("version", "--client", "-o", "json"), _field("clientVersion", "gitVersion")),
        wanted_by="`submit kubernetes`",
        fix="kubernetes.io/docs/tasks/tools",
    ),
    Tool(
        *("terraform", ("terraform", "tofu"), ("version", "-json"), _field("terraform_version"), "`env`"),
        fix="developer.hashicorp.com/terraform/install, or OpenTofu",
        oldest=OLDEST_TERRAFORM,
    ),
    Tool(
        *("gcloud", ("gcloud",), ("version", "--format=json"), _field("Google Cloud SDK")),
        wanted_by="`submit slice` and `env up`",
        fix="cloud.google.com/sdk/docs/install",
    ),
    Tool(
        *(
            "docker",
            ("docker",),
            ("version", "--format", "{{.Client.Version}}"),
            _first_number,
            "a container of your own",
        ),
        fix="docs.docker.com/engine/install",
        asks_a_server=True,
    ),
)


def tools() -> Iterator[DoctorFinding]:
    yield ray()
    with ThreadPoolExecutor(len(TOOLS)) as pool:
        yield from pool.map(look, TOOLS)


def look(tool: Tool) -> DoctorFinding:
    program = next(filter(None, map(shutil.which, tool.programs)), None)
    if program is None:
        job = os.environ.get("SLURM_JOB_ID") if tool.name == "SLURM" else None
        where = f"not on the path, though this is job {job}" if job else "not on the path"
        return DoctorFinding(
            "tools", tool.name, "ok", f"{where}; only {tool.wanted_by} starts it", None, {"version": None}
        )
    values: dict[str, str | None] = {"version": None, "path": program}
    try:
        process = subprocess.run(
            [program, *tool.arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            env={**os.environ, "CHECKPOINT_DISABLE": "1", "CLOUDSDK_CORE_DISABLE_PROMPTS": "1"},
        )
        version_text = tool.read(process.stdout)
    except subprocess.TimeoutExpired:
        detail = f"{program} did not tell its version within {SECONDS:g} seconds"
        return DoctorFinding(
            "tools", tool.name, "warn", detail, f"`{tool.programs[0]} {tool.arguments[0]}` shows why", values
        )
    except OSError as error:
        return DoctorFinding(
            "tools", tool.name, "warn", f"{program} cannot be started: {error.strerror}", tool.fix, values
        )
    except (ValueError, LookupError, TypeError):
        said = process.stderr.strip() or process.stdout.strip()
        detail = f"{program} does not tell its version" + (f": {redact(said.splitlines()[0][:120])}" if said else "")
        return DoctorFinding("tools", tool.name, "warn", detail, tool.fix, values)
    values["version"] = version_text
    if tool.oldest and tuple(map(int, re.findall(r"\d+", version_text)[: len(tool.oldest)])) < tool.oldest:
        oldest = ".".join(map(str, tool.oldest))
        fix = f"install {oldest} or newer: {tool.fix}"
        return DoctorFinding("tools", tool.name, "warn", f"{version_text}, which {tool.wanted_by} refuses", fix, values)
    if process.returncode:
        message = (
            redact(process.stderr.strip().splitlines()[-1][:160])
            if process.stderr.strip()
            else f"it ends with {process.returncode}"
        )
        if tool.asks_a_server:
            detail = f"{version_text} ({program}), but: {message}; only {tool.wanted_by} needs that"
            return DoctorFinding("tools", tool.name, "ok", detail, None, values)
        return DoctorFinding("tools", tool.name, "warn", f"{version_text}, but: {message}", tool.fix, values)
    return DoctorFinding("tools", tool.name, "ok", f"{version_text} ({program})", None, values)


def ray() -> DoctorFinding:
    address = os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS")
    values = {"version": version("ray") if present("ray") else None, "address": redact(address) if address else None}
    if values["version"] is None:
        if address:
            detail = f"not installed, though the environment names a cluster at {address}"
            return DoctorFinding("tools", "Ray", "warn", detail, missing("ray").fix, values)
        return DoctorFinding(
            "tools", "Ray", "ok", "not installed; only `submit ray` and `--on ray` need it", None, values
        )
    note = f", the environment names a cluster at {address}" if address else ", no cluster is named in the environment"
    return DoctorFinding("tools", "Ray", "ok", f"{values['version']}{note}", None, values)
