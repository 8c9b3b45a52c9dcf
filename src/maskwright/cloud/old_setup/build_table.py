"""The older Cloud Build set-up's interface: _BUILD_ACTION, _TPU, _MIG and _DISK, each row as `env` commands.

The rows and their order are its own. What it answered with nothing at all, and a build that succeeded, is refused here.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from maskwright.core.console import say
from maskwright.core.errors import InputError

PARTS = ("nfs", "slice", "group")
"""Of an environment, that `create` makes where its YAML has them. Disks are seeded on their own."""
FLAGS = {"true": True, "false": False, "default": False, "": False}
LEAVE_SECONDS = 1200.0
"""Twice what terraform is given: a seeding that is stopped has it run once more."""
DISK_HAS_NO_PART = "_DISK=true has no part in this row, as before; give it alone"


@dataclass(frozen=True)
class Row:
    """`tpu`, `mig`, `disk`: the flag's value, None for any. `commands`: words after `maskwright env`, ENV for the YAML;
    `--only` words of parts that the YAML does not have are left out."""

    action: str
    tpu: bool | None
    mig: bool | None
    disk: bool | None
    commands: tuple[str, ...]

    def fits(self, action: str, flags: Sequence[bool]) -> bool:
        asked = zip((self.tpu, self.mig, self.disk), flags, strict=True)
        return action == self.action and all(wished is None or wished == given for wished, given in asked)

    def name(self) -> str:
        words = {True: "true", False: "-", None: "any"}
        return f"{self.action:<10} {words[self.tpu]:<5} {words[self.mig]:<5} {words[self.disk]:<5}"


SEED = "seed ENV --yes"
ROWS = (
    Row("initialize", False, False, False, ("init ENV",)),
    Row("initialize", False, False, True, ("init ENV", SEED)),
    Row("update", False, False, True, (SEED,)),
    Row("update", False, True, True, (SEED, "up ENV --only group --yes")),
    Row("destroy", False, False, True, ("down ENV --only disk --delete-data --yes",)),
    Row(
        *("create", False, False, False),
        ("image ENV --if-missing --yes", "up ENV --only nfs --only slice --only group --yes"),
    ),
    Row("update", True, True, None, ("up ENV --only slice --only group --yes",)),
    Row("update", True, False, None, ("up ENV --only slice --yes",)),
    Row("update", False, True, False, ("up ENV --only group --yes",)),
    Row("destroy", True, True, None, ("down ENV --only slice --only group --yes",)),
    Row("destroy", True, False, None, ("down ENV --only slice --yes",)),
    Row("destroy", False, True, None, ("down ENV --only group --yes",)),
    Row("destroy", False, False, False, ("down ENV --only slice --only group --only nfs --delete-data --yes",)),
)
"""`initialize` with _DISK=true is what its README promised and its build did not do."""


def table() -> str:
    head = f"{'_BUILD_ACTION':<13}  {'_TPU':<5} {'_MIG':<5} {'_DISK':<5} runs"
    return "\n".join([head, *(f"{row.name():<30} {'; '.join(row.commands)}" for row in ROWS)])


def row_of(action: str, tpu: str, mig: str, disk: str) -> Row:
    """Raises `InputError` (exit 2) with the table for what is in no row."""
    flags = []
    for name, text in {"_TPU": tpu, "_MIG": mig, "_DISK": disk}.items():
        if text not in FLAGS:
            raise InputError(f"{text[:20]!r} is not true", where=name, fix="true, or leave it out")
        flags.append(FLAGS[text])
    for row in ROWS:
        if row.fits(action, flags):
            return row
    asked = " ".join(f"{name}={text}" for name, text in zip(("_TPU", "_MIG", "_DISK"), flags, strict=True) if text)
    say(table())
    what = f"_BUILD_ACTION={action[:20]} {asked}".rstrip() + " is in no row of the table"
    raise InputError(what, where="build", fix="take one of the rows above")


def commands(row: Row, environment: str, parts: Collection[str], service_account: str | None = None) -> list[list[str]]:
    """Words after `maskwright env`; `service_account` builds the image. Raises `InputError` when the YAML has none of
    what `create` makes."""
    listed = []
    for command in row.commands:
        words = [environment if word == "ENV" else word for word in command.split()]
        if row.action == "create":
            words = _without_absent(words, parts)
        if words[0] == "image" and service_account is not None:
            words += ["--service-account", service_account]
        listed.append(words)
    if row.action == "create" and not {"slice", "group"} & set(parts):
        fix = "write a section `slice:` or `group:`; `maskwright env import` leaves offers as comments"
        raise InputError("has neither slice nor group, so there is nothing to create", where=environment, fix=fix)
    return listed


def _without_absent(words: list[str], parts: Collection[str]) -> list[str]:
    kept, skip = [], False
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if skip:
            skip = False
        elif word == "--only" and following not in parts:
            skip = True
        else:
            kept.append(word)
    return kept


def run(listed: Sequence[Sequence[str]], call: Callable[[list[str]], int] | None = None) -> int:
    """One after another; ends with the first that fails, and its exit code."""
    for words in listed:
        say(f"$ maskwright env {' '.join(words)}")
        code = (call or _call)([*words])
        if code:
            say(f"maskwright env {words[0]} ended with {code}; nothing after it is run")
            return code
    return 0


def _call(words: list[str]) -> int:
    """Whoever stops this one stops it too, and waits: it takes its machines away, and Terraform saves the state."""
    with subprocess.Popen([sys.executable, "-m", "maskwright", "env", *words]) as process:
        try:
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait(LEAVE_SECONDS)
            raise
    return code if code >= 0 else 128 - code
