"""Run the terraform (or tofu) binary on the configuration that this package brings.

Each environment has a work folder in the user's cache. It can be lost: the state and its lock are in the bucket.
Terraform's output goes to stderr, and its exit codes are passed on.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from maskwright.cloud import record
from maskwright.cloud.environment import Environment
from maskwright.core import storage
from maskwright.core.console import say
from maskwright.core.errors import InputError, Locked, MaskwrightError, TerraformError
from maskwright.core.secrets import redact
from maskwright.processes.child import signals_wait

CONFIGURATION = os.path.join(os.path.dirname(os.path.dirname(__file__)), "terraform")
INTERRUPT_SECONDS = 600.0
"""Time for terraform to finish its current step after an interrupt, and to save the state."""
LOG_POLL_SECONDS = 0.1
LOCK_SECONDS = 60
"""Time to wait for another command's lock on the state."""
HOLDS_DATA = ("google_compute_disk", "google_filestore_instance", "google_storage_bucket")
HASHES = ".terraform.lock.hcl"
DROPPED = re.compile(r"^TF_(CLI_ARGS|VAR|WORKSPACE|DATA_DIR|INPUT|IN_AUTOMATION)")
"""Variables that would change these commands, such as `TF_CLI_ARGS_apply=-lock=false`."""


@dataclass(frozen=True)
class Change:
    address: str
    type: str
    kind: str
    """create, update, replace or delete"""
    deposed: bool = False
    """Whether it was already replaced, as confirmed then, and only its deletion has failed."""

    @property
    def loses_data(self) -> bool:
        return self.kind in ("replace", "delete") and self.type in HOLDS_DATA and not self.deposed


@dataclass(frozen=True)
class TerraformPlan:
    """The changes that `apply` would make."""

    changes: tuple[Change, ...]
    text: str
    """The plan as Terraform shows it."""
    file: str
    """The plan as `apply` reads it."""
    differs: bool
    """Whether there is anything to apply."""


class Terraform:
    """Raises `InputError` if there is no binary, and `TerraformError` with its exit code if it fails."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.folder = os.path.join(storage.users_cache(), "maskwright", "env", environment.project, environment.name)
        self._lock = f"-lock-timeout={LOCK_SECONDS}s"
        if (binary := shutil.which("terraform") or shutil.which("tofu")) is None:  # it refuses to be too old by itself
            fix = "install Terraform 1.7 or newer (developer.hashicorp.com/terraform/install) or OpenTofu"
            raise InputError("neither terraform nor tofu is on the PATH", where="terraform", fix=fix)
        self._binary = binary

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Lock and initialize the work folder."""
        storage.make_folder(self.folder)
        with storage.locked(os.path.join(self.folder, ".in-use"), remove=False):
            self._remove(".tf", ".tfplan")  # left by an older version
            ignore = shutil.ignore_patterns("tests", ".terraform*")
            shutil.copytree(CONFIGURATION, self.folder, dirs_exist_ok=True, ignore=ignore)
            os.chmod(self.folder, 0o700)  # plans and logs are private to the user
            self._init()
            try:
                yield
            finally:
                self._remove(".tfplan")  # it has the same values as the state

    def _init(self) -> None:
        """Keeps the provider's hashes with the state, so that all users of an environment run the same bytes."""
        bucket = record.folder(self.environment)
        versions = storage.sha256_of_file(os.path.join(CONFIGURATION, "versions.tf"))[:12]  # others have other hashes
        path, name = os.path.join(self.folder, HASHES), f"terraform-{versions}.lock.hcl"
        with suppress(FileNotFoundError):
            os.unlink(path)
        if (known := bucket.get(name)) is not None:
            with open(path, "wb") as file:
                file.write(known)
        where = [f"-backend-config=bucket={self.environment.state}"]
        where += [f"-backend-config=prefix={self.environment.prefix}"]
        self._run("init", ["-reconfigure", self._lock, *where], quiet=True)
        if known is None and os.path.exists(path):
            with open(path, "rb") as file:
                bucket.create(name, file.read())

    def plan(
        self, variables: Mapping[str, Any], *, destroy: bool = False, targets: Sequence[str] = ()
    ) -> TerraformPlan:
        """With `targets`, only for these addresses and their dependencies; with `destroy` also for their dependents."""
        storage.write_json(os.path.join(self.folder, "terraform.tfvars.json"), variables)
        file = os.path.join(self.folder, "next.tfplan")
        words = ["-detailed-exitcode", f"-out={file}", self._lock, *(["-destroy"] if destroy else [])]
        words += [f"-target={target}" for target in targets]
        code = self._run("plan", words, allowed=(0, 2), quiet=True)
        text = self._read("show", [file])
        shown = json.loads(self._read("show", ["-json", file]))
        return TerraformPlan(tuple(_changes(shown)), text, file, code == 2)

    def apply(self, plan: TerraformPlan) -> None:
        self._run("apply", [self._lock, plan.file])

    def outputs(self) -> dict[str, Any]:
        return {name: value["value"] for name, value in json.loads(self._read("output", ["-json"])).items()}

    def resources(self) -> dict[str, dict[str, Any]]:
        """The values in the state, by address: developer.hashicorp.com/terraform/internals/json-format"""
        shown = json.loads(self._read("show", ["-json"]))
        found = shown.get("values", {}).get("root_module", {}).get("resources", [])
        return {resource["address"]: resource["values"] for resource in found}

    # ---- running -------------------------------------------------------------------------------------------------

    def _remove(self, *endings: str) -> None:
        for name in os.listdir(self.folder):
            if name.endswith(endings):
                os.unlink(os.path.join(self.folder, name))

    def _words(self, command: str, options: Sequence[str]) -> list[str]:
        input_ = ["-input=false"] if command in ("init", "plan", "apply") else []
        return [self._binary, command, *input_, "-no-color", *options]

    def _read(self, command: str, options: Sequence[str]) -> str:
        words, variables = self._words(command, options), _variables()
        done = subprocess.run(words, cwd=self.folder, env=variables, capture_output=True, text=True, check=False)
        if done.returncode:
            raise self._failed(command, done.returncode, done.stderr)
        return done.stdout

    def _run(self, command: str, options: Sequence[str], *, allowed: Sequence[int] = (0,), quiet: bool = False) -> int:
        """Run one command and show its output, with `quiet` only if it fails.

        It gets its own session, so that Ctrl-C reaches it only once. Its output goes to a file, since with a pipe it
        would die with this process, and resources that it was creating would be missing in the state.
        """
        log = os.path.join(self.folder, "terraform.log")
        with suppress(FileNotFoundError):
            os.unlink(log)
        output_lines: deque[str] = deque(maxlen=400)
        over = threading.Event()
        process, reader = None, threading.Thread(target=_stream_log, args=(log, over, output_lines, quiet), daemon=True)
        try:
            with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as output, signals_wait():
                process = subprocess.Popen(
                    self._words(command, options),
                    cwd=self.folder,
                    env=_variables(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            reader.start()
            code = process.wait()
        except BaseException:
            if process is None:
                raise
            say(f"terraform {command} is interrupted; it finishes its current step and saves the state")
            process.send_signal(signal.SIGINT)
            try:
                process.wait(INTERRUPT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
        finally:
            over.set()
            if reader.ident:
                reader.join(5.0)
            with suppress(FileNotFoundError):
                os.unlink(log)
        if code in allowed:
            return code
        for line in output_lines if quiet else ():
            say(line)
        raise self._failed(command, code, "\n".join(output_lines))

    def _failed(self, command: str, code: int, output: str) -> MaskwrightError:
        where = f"terraform {command} ({self.environment.name})"
        first = next((line for line in output.splitlines() if "Error: " in line), "").partition("Error: ")[2]
        if "Lock Info:" in output:
            held = {key: value.strip() for key, value in re.findall(r"(Who|Created|ID):\s*(.*)", output)}
            who, since = held.get("Who", "unknown"), held.get("Created", "unknown")
            what = f"another run holds the state's lock: {who}, since {since}"
            fix = f"wait for it; if it has died: `{os.path.basename(self._binary)} -chdir={self.folder} force-unlock "
            return Locked(what, where=where, fix=fix + f"{held.get('ID', 'ID')}`")
        what = redact(first) or f"exit code {code}"
        fix = "read its output above, and run the same command again to continue"
        return TerraformError(what, code if code > 0 else 1, where=where, fix=fix)


def _variables() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not DROPPED.match(name)}
    return {**kept, "TF_IN_AUTOMATION": "1", "CHECKPOINT_DISABLE": "1"}


def _stream_log(log: str, over: threading.Event, output_lines: deque[str], quiet: bool) -> None:
    with open(log, encoding="utf-8", errors="replace") as file:
        rest, ended = "", False
        while not ended:
            ended = over.wait(LOG_POLL_SECONDS)
            *lines, rest = (rest + file.read()).split("\n")
            for line in [*lines, rest] if ended and rest else lines:
                output_lines.append(line)
                if not quiet:
                    say(line)


def _changes(shown: dict[str, Any]) -> Iterator[Change]:
    """Changes in the output of `terraform show -json`: developer.hashicorp.com/terraform/internals/json-format"""
    for entry in shown.get("resource_changes", []):
        actions = entry["change"]["actions"]
        if actions in (["no-op"], ["read"]):
            continue
        kind = "replace" if len(actions) == 2 else actions[0]
        yield Change(entry["address"], entry["type"], kind, bool(entry.get("deposed")))
