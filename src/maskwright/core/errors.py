"""Every error that maskwright raises on purpose, and its exit code.

    MaskwrightError              1   failed
    ├── InputError               2   bad usage, configuration or input
    │   ├── ConfigError          2     a key, its value, or a change that a resumed run may not make
    │   ├── SourceError          2     raw text: encoding, missing column, truncated archive
    │   ├── StoreError           2     a token store: truncated, altered, made with another tokenizer
    │   ├── TokenizerError       2     a tokenizer file: missing mask token, other layout
    │   ├── ModelError           2     a model folder: missing file, unknown shape, pickled weights
    │   └── Locked               2     a folder or environment that somebody else holds: later, it may be free
    ├── CheckpointError          1   no usable checkpoint where one was needed
    ├── VerificationError        1   an exported model does not give the same numbers
    ├── CloudError               1   Google Cloud refused or failed; `reason` says which way
    ├── JobError                 —   a job on other machines: what its host that failed first ended with
    ├── TerraformError           —   Terraform's own exit code
    ├── HealthError              3   training stopped before a bad update (non-finite loss or gradient)
    └── StoppedEarly            75   running the same command again continues; `reason` says why it stopped

A message is one line: where (file, line, byte or key), what, and how to fix it. Several mistakes in one YAML are a line
each. It carries no secret.
"""

from __future__ import annotations

import copyreg
from collections.abc import Sequence
from typing import Any, Literal

from maskwright.core.secrets import redact

INTERRUPTED = 130
"""Exit code of a command that only watches, after Ctrl-C: 128 + SIGINT, as shells have it."""
StopReason = Literal["", "asked", "limit", "signal", "grace", "agreed", "lost"]
"""Why a run stopped before its last step; docs/run-directory.md says what each means. Empty for what is no run."""


class MaskwrightError(Exception):
    """`what` went wrong, `where` (file:line:column or a dotted key) and the `fix`; printed as one line."""

    exit_code = 1

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        self.what, self.where, self.fix = what, where, fix
        super().__init__(what)

    def __str__(self) -> str:
        where, what, fix = (redact(part or "") for part in (self.where, self.what, self.fix))
        line = (f"{where}: " if where else "") + what + (f". Fix: {fix}" if fix else "")
        return " ".join(line.split())

    def __reduce__(self) -> Any:
        """Pickled as it is: an exception's own way calls `__init__` with `args` alone, and some kinds need more."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class InputError(MaskwrightError):
    exit_code = 2


class ConfigError(InputError):
    """`lines`: where one file has several mistakes, each with its own fix; they are printed below the first line."""

    def __init__(self, what: str, *, fix: str | None, where: str | None = None, lines: Sequence[str] = ()) -> None:
        self.lines = tuple(lines)
        super().__init__(what, where=where, fix=fix)

    def __str__(self) -> str:
        return "\n  ".join([super().__str__(), *self.lines])


class SourceError(InputError):
    pass


class StoreError(InputError):
    pass


class TokenizerError(InputError):
    pass


class ModelError(InputError):
    pass


class Locked(InputError):
    pass


class CheckpointError(MaskwrightError):
    pass


class VerificationError(MaskwrightError):
    pass


class CloudError(MaskwrightError):
    """`reason`: credentials (none, or not accepted) | permission | quota | capacity | missing | exists | disabled (the
    API, or billing) | unreached (no answer) | failed (Google's service did) | other."""

    def __init__(self, what: str, *, reason: str, where: str | None = None, fix: str | None = None) -> None:
        self.reason = reason
        super().__init__(what, where=where, fix=fix)


class JobError(MaskwrightError):
    def __init__(self, what: str, exit_code: int, *, where: str | None = None, fix: str | None = None) -> None:
        self.exit_code = exit_code
        super().__init__(what, where=where, fix=fix)


class TerraformError(JobError):
    pass


class HealthError(MaskwrightError):
    """`step`: the update that was not made, where it is one step's batch that cannot be computed."""

    exit_code = 3

    def __init__(self, what: str, *, step: int | None = None, where: str | None = None, fix: str | None = None) -> None:
        self.step = step
        super().__init__(what, where=where, fix=fix)


class StoppedEarly(MaskwrightError):
    exit_code = 75

    def __init__(self, what: str, *, reason: StopReason = "", where: str | None = None, fix: str | None = None) -> None:
        self.reason = reason
        super().__init__(what, where=where, fix=fix)
