"""What is to run on every host of a job: `JobSpec`, read and written as JSON (`job.json`, format 1).

It names environment variables and never holds their values: a spec lies in a bucket for others to read.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from dataclasses import asdict, dataclass, fields
from typing import Any

from maskwright.core.errors import InputError
from maskwright.core.secrets import redact

FORMAT = 1
KINDS = {"slice": "a Cloud TPU VM slice by its name, as in slice:my-pod"}
ENVIRONMENTS = (".yaml", ".yml")
"""So ends the file of an environment on Google Cloud, as in --on lab.yaml."""
NAMELESS = {
    "kubernetes": "a cluster by kubectl",
    "slurm": "one by sbatch",
    "ray": "a cluster by its job API",
    "skypilot": "a task for `sky jobs launch`",
    "vertex": "a custom job of Vertex AI",
}
"""These go without a name."""
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class JobSpec:
    """`command` as words, run in `folder` (relative to the home folder) with the host's values of the variables named
    in `environment`. `setup` is a shell command run once in the home folder, before the first attempt. `restarts`: how
    often the job is begun again after a host was lost. `grace_seconds` lie between SIGTERM and SIGKILL. `submission`
    counts what was submitted to the same place, from 1."""

    command: tuple[str, ...]
    environment: tuple[str, ...] = ()
    folder: str = "."
    setup: str | None = None
    restarts: int = 3
    grace_seconds: float = 30.0
    submission: int = 1

    def __post_init__(self) -> None:
        _require(bool(self.command) and all(self.command[:1]), "command", "is empty")
        for name in self.environment:
            _require(VARIABLE.fullmatch(name) is not None, "environment", f"{name!r} is no name of a variable")
        _require(bool(self.folder), "folder", "is empty")
        _require(self.restarts >= 0, "restarts", "is below 0")
        _require(math.isfinite(self.grace_seconds) and self.grace_seconds > 0, "grace_seconds", "is not above 0")
        _require(self.submission >= 1, "submission", "is below 1")
        for key, text in [
            ("folder", self.folder),
            ("setup", self.setup or ""),
            *(("command", w) for w in self.command),
        ]:
            _require("\0" not in text, key, "holds a zero byte")
            _require(redact(text) == text, key, "holds a secret", "pass it on by its variable's name: --env NAME")

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2, ensure_ascii=False) + "\n"


def parse_spec(text: str | bytes, where: str) -> JobSpec:
    """Strict: an unknown, missing or wrongly typed key is an `InputError` that names it and `where`."""
    fix = "submit the job again with this version"
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError("is not JSON", where=where, fix=fix) from None
    if not isinstance(values, dict) or "format" not in values:
        raise InputError("is no job spec (no format number)", where=where, fix=fix)
    if values["format"] != FORMAT or isinstance(values["format"], bool):
        raise InputError(f"has format {str(values['format'])[:20]}, this version reads {FORMAT}", where=where, fix=fix)
    known = {field.name for field in fields(JobSpec)}
    given = {key: value for key, value in values.items() if key != "format"}
    for key in sorted(known ^ set(given)):
        raise InputError(f"{'lacks' if key in known else 'has an unknown'} key {key[:40]!r}", where=where, fix=fix)
    for key, value in given.items():
        if not _fits(key, value):
            raise InputError(f"{key} is of the wrong type: {json.dumps(value)[:40]}", where=where, fix=fix)
    texts = {key: tuple(given[key]) for key in ("command", "environment")}
    try:
        return JobSpec(**{**given, **texts})
    except InputError as error:
        raise InputError(error.what, where=where, fix=error.fix) from None


def _fits(key: str, value: Any) -> bool:
    if key in ("command", "environment"):
        return isinstance(value, list) and all(isinstance(word, str) for word in value)
    if key in ("restarts", "submission"):
        return isinstance(value, int) and not isinstance(value, bool)
    if key == "grace_seconds":
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, str) or (key == "setup" and value is None)


def _require(holds: bool, key: str, what: str, fix: str = "correct it") -> None:
    if not holds:
        raise InputError(f"{key} {what}", where="job", fix=fix)


def parse_target(on: str) -> tuple[str, str]:
    """`slice:NAME` as its kind and its name; `slurm` as its kind alone; `lab.yaml` as an environment."""
    if on.endswith(ENVIRONMENTS):
        return "environment", on
    kind, colon, name = on.partition(":")
    known = "; ".join(
        [f"{kind}:NAME is {text}" for kind, text in KINDS.items()]
        + [f"{k} is {t}" for k, t in NAMELESS.items()]
        + ["lab.yaml is an environment on Google Cloud"]
    )
    if on in NAMELESS:
        return on, ""
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, [*KINDS, *NAMELESS], n=1)
        fix = f"did you mean {near[0]}?" if near else known
        raise InputError(f"{kind[:40]!r} is no place to run on", where="--on", fix=fix)
    if not colon or not re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", name):
        raise InputError(f"{name[:80]!r} is no name of a {kind}", where="--on", fix=f"{known}")
    return kind, name
