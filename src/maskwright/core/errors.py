"""Every error that maskwright raises on purpose, and its exit code.

    MaskwrightError              1   failed
    ├── InputError               2   bad usage, configuration or input
    │   ├── ConfigError          2     a key, its value, or a change that a resumed run may not make
    │   ├── SourceError          2     raw text: encoding, missing column, truncated archive
    │   ├── StoreError           2     a token store: truncated, altered, made with another tokenizer
    │   ├── TokenizerError       2     a tokenizer file: missing mask token, other layout
    │   ├── ModelError           2     a model folder: missing file, unknown shape, pickled weights
    │   └── Locked               2     a folder or environment that another process or person holds for now
    ├── CheckpointError          1   no usable checkpoint where one was needed
    ├── VerificationError        1   an exported model does not give the same numbers
    ├── CloudError               1   a service elsewhere refused or failed; `reason` is the kind of failure
    ├── JobError                 —   a job on other machines failed: the exit code of its host that failed first
    ├── TerraformError           —   Terraform's own exit code
    ├── HealthError              3   training stopped before a bad update (non-finite loss or gradient)
    └── StoppedEarly            75   start again: a signal or a lost machine interrupted it; `reason` names which
        ├── EndedAsAsked        76   ended as asked, or at its own limit: final; the same command continues
        └── NotFollowed        130   a signal ended a command that only follows a job, which continues

A message is one line: where (file, line, byte or key), what, and how to fix it. Each of several mistakes in a YAML has
its own line. A message contains no secret and no control character.
"""

from __future__ import annotations

import copyreg
import errno
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from maskwright.core.console import printable
from maskwright.core.secrets import redact

ONE_LINE = re.compile(r" *[\t\n]\s*")
INTERRUPTED = 130
"""Exit code of a command that only watches, after Ctrl-C: 128 + SIGINT, as in shells."""
StopReason = Literal["", "asked", "limit", "signal", "grace", "agreed", "lost"]
"""Why a run stopped before its last step; docs/run-directory.md explains each. Empty if it is not a run."""


class MaskwrightError(Exception):
    """An error for the user: `what` went wrong, `where` (file:line:column or a dotted key), and the `fix`."""

    exit_code = 1

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        self.what, self.where, self.fix = what, where, fix
        super().__init__(what)

    def __str__(self) -> str:
        where, what, fix = (redact(printable(part or "")) for part in (self.where, self.what, self.fix))
        stop = "" if what.endswith((".", "?", "!")) else "."  # another program's words may end in one
        line = (f"{where}: " if where else "") + what + (f"{stop} Fix: {fix}" if fix else "")
        return ONE_LINE.sub(" ", line).strip()  # spaces stay, since a path may have two

    def __reduce__(self) -> Any:
        """Pickles the whole error, since the default calls `__init__` with `args` alone, and some kinds need more."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class InputError(MaskwrightError):
    """The input is wrong: an option, a configuration, a file."""

    exit_code = 2


class ConfigError(InputError):
    """A configuration is wrong. `lines`: several mistakes of one file, each with its fix, printed below the first."""

    def __init__(self, what: str, *, fix: str | None, where: str | None = None, lines: Sequence[str] = ()) -> None:
        self.lines = tuple(lines)
        super().__init__(what, where=where, fix=fix)

    def __str__(self) -> str:
        return "\n  ".join([super().__str__(), *map(printable, self.lines)])


class SourceError(InputError): ...


class StoreError(InputError): ...


class TokenizerError(InputError): ...


class ModelError(InputError): ...


class Locked(InputError): ...


class CheckpointError(MaskwrightError): ...


class VerificationError(MaskwrightError): ...


class CloudError(MaskwrightError):
    """Google Cloud, a bucket or a cluster refused or failed. `reason`: credentials (none, or not accepted) |
    permission | quota | capacity | missing | exists | disabled (the API, or billing) | unreached (no answer) | failed
    (the service did) | other."""

    def __init__(self, what: str, *, reason: str, where: str | None = None, fix: str | None = None) -> None:
        self.reason = reason
        super().__init__(what, where=where, fix=fix)


class JobError(MaskwrightError):
    def __init__(self, what: str, exit_code: int, *, where: str | None = None, fix: str | None = None) -> None:
        self.exit_code = exit_code
        super().__init__(what, where=where, fix=fix)


class TerraformError(JobError): ...


class HealthError(MaskwrightError):
    """Training stopped before a bad update. `step`: the update that was not made, if the cause is a single step's
    batch."""

    exit_code = 3

    def __init__(self, what: str, *, step: int | None = None, where: str | None = None, fix: str | None = None) -> None:
        self.step = step
        super().__init__(what, where=where, fix=fix)


class StoppedEarly(MaskwrightError):
    """The run was interrupted; the same command, or call, continues it, and an engine starts it again. `reason` says
    why it stopped."""

    exit_code = 75

    def __init__(self, what: str, *, reason: StopReason = "", where: str | None = None, fix: str | None = None) -> None:
        self.reason = reason
        super().__init__(what, where=where, fix=fix)


class EndedAsAsked(StoppedEarly):
    """The run ended because somebody asked, or at its own limit. The same command continues it, and no engine does."""

    exit_code = 76


class NotFollowed(StoppedEarly):
    """A signal ended a command that has submitted a job, or only follows one. The job continues, so an engine that
    mistook this for 75 would submit it again."""

    exit_code = INTERRUPTED


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of writes to a full disk, quota or file of the largest size."""


def of_the_system(error: OSError, verb: str = "", path: str | None = None) -> MaskwrightError:
    """The user's error for an error of the system: `path`, or the error's own file, cannot be `verb` ("written")."""
    fix = None
    if error.errno == errno.EFBIG:
        fix = "raise the largest size of a file (`ulimit -f`), and start the command again"
    elif error.errno in FULL:
        fix = "free room on its disk or in your quota, and start the command again"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        fix = "check the permissions, or choose another folder"
    what = os.strerror(error.errno) if error.errno in FULL else str(error.strerror or error)
    where = str(path or error.filename or "the system")
    return MaskwrightError(f"cannot be {verb}: {what}" if verb else what, where=where, fix=fix)


KEY = re.compile(r"`(\w+)`|\b((?:data|task)\.\w+)(: (?=\w))?")


def as_typed(error: MaskwrightError, names: Mapping[str, str | None], values: Collection[object] = ()) -> None:
    """Replaces keys that an error names by what the user types: an argument in backticks, or as `where`, and keys such
    as data.text of a task that reads texts without a YAML. None: the user cannot set it, so alternatives of the fix
    with it, between `, or `, are left out. `values`: given values, such as a folder with the name of an argument, which
    stay unchanged as `where`."""

    def typed(found: re.Match[str]) -> str:
        name = names.get(found[1] or found[2])
        return name + (" " if found[3] else "") if name else found[0]

    ways = (error.fix or "").split(", or ")
    kept = [way for way in ways if None not in (names.get(found[2], "") for found in KEY.finditer(way))]
    error.fix = KEY.sub(typed, ", or ".join(kept)) or None
    error.what = KEY.sub(typed, error.what)
    if error.where not in values:
        error.where = names.get(error.where or "") or error.where


def of_texts(names: Iterable[str]) -> dict[str, str | None]:
    """For `as_typed`: the argument for each key of a YAML by which labelled texts are read, of a function that has the
    arguments `names`."""
    keys = ("text", "text_pair", "label", "on_bad_input", "max_seq_len", "encoding")
    known = {*names}
    found = {f"data.{key}": next((n for n in (f"{key}_column", key) if n in known), None) for key in keys}
    return found | {"task.doc_stride": None}


def stopped(code: int | None) -> type[StoppedEarly] | None:
    """The kind of stop that an exit code stands for; None for every other code."""
    return next((kind for kind in (StoppedEarly, EndedAsAsked) if kind.exit_code == code), None)


# ---- as JSON ---------------------------------------------------------------------------------------------------------


ATTRIBUTES = ("what", "where", "fix", "lines", "reason", "step")
"""Attributes that an error may have. Libraries add others to an error that passes through them."""


def as_record(error: MaskwrightError) -> dict[str, Any]:
    """The error as a record for another process: `kind` (its class), `message` (the line that is printed),
    `exit_code`, and its attributes, without secrets."""
    attributes = {name: vars(error)[name] for name in ATTRIBUTES if name in vars(error)}
    attributes |= {name: redact(value) for name, value in attributes.items() if isinstance(value, str)}
    if "lines" in attributes:
        attributes["lines"] = [redact(line) for line in attributes["lines"]]
    return {"kind": type(error).__name__, "message": str(error), "exit_code": error.exit_code, **attributes}


def from_record(record: Mapping[str, Any]) -> MaskwrightError:
    """Rebuilds the error of `as_record`. Raises `ValueError` for any other record."""
    kinds = {kind.__name__: kind for kind in _kinds(MaskwrightError)}
    if record.get("kind") not in kinds or not isinstance(record.get("what"), str):
        raise ValueError("not an error of maskwright")
    kind = kinds[record["kind"]]
    error = kind.__new__(kind, record["what"])
    vars(error).update({name: record[name] for name in ATTRIBUTES if name in record})
    if record.get("exit_code") != getattr(kind, "exit_code", None):
        error.exit_code = record["exit_code"]
    return error


def _kinds(kind: type[MaskwrightError]) -> Iterator[type[MaskwrightError]]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _kinds(subclass)
