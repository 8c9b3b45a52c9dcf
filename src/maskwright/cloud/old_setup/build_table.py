"""The older Cloud Build set-up's interface: _BUILD_ACTION, _TPU, _MIG and _DISK, each row as commands.

Rows and their order are as in that set-up. For other combinations, its build did nothing and succeeded; here they
are refused.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from maskwright.core.console import say
from maskwright.core.errors import InputError, MaskwrightError
from maskwright.processes.child import CommandSequence, require

FLAGS = {"true": True, "false": False, "default": False, "": False}
DISK_HAS_NO_PART = "_DISK=true has no effect in this row, as before; give it alone"


@dataclass(frozen=True)
class _Row:
    """A row of the table. A flag that is None matches any value."""

    action: str
    tpu: bool | None
    mig: bool | None
    disk: bool | None
    commands: tuple[str, ...]
    """Arguments of `maskwright`, with ENV for the YAML."""

    def matches(self, action: str, flags: Sequence[bool]) -> bool:
        pairs = zip((self.tpu, self.mig, self.disk), flags, strict=True)
        return action == self.action and all(expected in (None, flag) for expected, flag in pairs)

    def name(self) -> str:
        words = {True: "true", False: "-", None: "any"}
        return f"{self.action:<10} {words[self.tpu]:<5} {words[self.mig]:<5} {words[self.disk]:<5}"


IMAGE, UP = "image ENV --yes", "env up ENV --yes"
"""IMAGE builds only if there is no image of the same source."""
RESEED = "env seed ENV --replace --yes"
"""Also creates a disk of another size."""
SLICE, GROUP = "env down ENV --only slice --yes", "env down ENV --only group --yes"
ROWS = (
    _Row("initialize", False, False, False, ("env init ENV",)),
    _Row("initialize", False, False, True, ("env init ENV", IMAGE, "env seed ENV --yes")),
    _Row("update", False, False, True, (IMAGE, RESEED)),
    _Row("update", False, True, True, (IMAGE, RESEED, UP)),
    _Row("destroy", False, False, True, ("env down ENV --only disk --delete-data --yes",)),
    _Row("create", False, False, False, (IMAGE, UP)),
    _Row("update", True, True, None, (IMAGE, UP)),
    _Row("update", True, False, None, (IMAGE, UP)),
    _Row("update", False, True, False, (IMAGE, UP)),
    _Row("destroy", True, True, None, (SLICE, GROUP)),
    _Row("destroy", True, False, None, (SLICE,)),
    _Row("destroy", False, True, None, (GROUP,)),
    _Row("destroy", False, False, False, ("env down ENV --yes", "env down ENV --only nfs --delete-data --yes")),
)
"""`initialize` with _DISK=true does what that set-up's README promised, but its build did not do."""


def table() -> str:
    head = f"{'_BUILD_ACTION':<13}  {'_TPU':<5} {'_MIG':<5} {'_DISK':<5} runs"
    return "\n".join([head, *(f"{row.name():<30} {'; '.join(row.commands)}" for row in ROWS)])


def flag(name: str, text: str) -> bool:
    if text not in FLAGS:
        raise InputError(f"{text[:20]!r} is not true", where=name, fix="write true, or leave it out")
    return FLAGS[text]


def row_of(action: str, tpu: str, mig: str, disk: str) -> _Row:
    """The matching row. If none matches, shows the table and raises `InputError` (exit 2)."""
    flags = [flag(name, text) for name, text in {"_TPU": tpu, "_MIG": mig, "_DISK": disk}.items()]
    for row in ROWS:
        if row.matches(action, flags):
            return row
    say(table())
    if action == "default":
        what = "is missing: this cloudbuild.yaml creates and changes an environment"
        fix = "use one of the rows above. For an image alone: `maskwright image` (docs/containers.md)"
        raise InputError(what, where="_BUILD_ACTION", fix=fix)
    flags_text = " ".join(f"{name}={text}" for name, text in zip(("_TPU", "_MIG", "_DISK"), flags, strict=True) if text)
    what = f"_BUILD_ACTION={action[:20]} {flags_text}".rstrip() + " is in no row of the table"
    raise InputError(what, where="build", fix="use one of the rows above")


def commands(
    row: _Row, environment: str, parts: Collection[str], service_account: str | None = None, *, refill: bool = False
) -> tuple[list[list[str]], list[str]]:
    """Arguments of `maskwright`, and remarks for users of that set-up. `parts`: slice and group, if the YAML has
    them. `service_account` builds the image. Raises `InputError` if the YAML has nothing to `create`."""
    if row.action == "create" and not parts:
        fix = "add `slice:` or `group:` to the YAML"
        raise InputError("has neither slice nor group, so there is nothing to create", where=environment, fix=fix)
    listed, remarks = [], []
    if row.mig and "group" not in parts:
        remarks.append("there is no group, as jobs run on the slice's own hosts, so _MIG=true has no part of its own")
    if row.tpu and "slice" not in parts:
        remarks.append("there is no slice, so _TPU=true has no part of its own")
    for command in row.commands:
        if (command == SLICE and "slice" not in parts) or (command == GROUP and "group" not in parts):
            continue
        words = [environment if word == "ENV" else word for word in command.split()]
        if command == IMAGE and service_account is not None:
            words += ["--service-account", service_account]
        if command == RESEED:
            words += ["--again"] if refill else []
            remarks += [] if refill else ["a seeded disk stays as it is; _REFILL=true fills a new one"]
        listed.append(words)
    return listed, remarks


def run(listed: Sequence[Sequence[str]], steps: CommandSequence) -> None:
    """Run one `maskwright` command after another. The first failure raises `StoppedEarly`, or `JobError` with its
    exit code."""
    for number, words in enumerate(listed):
        try:
            require(steps.run, words)
        except MaskwrightError:
            if number + 1 < len(listed):
                say("the commands after it are not run")
            raise
