"""Terraform for tests: the real binary, with the stand-in provider where the registry's would be.

    world = TerraformWorld(folder)                      # what is made is in a file of `folder`
    world = TerraformWorld(folder, cloud=cloud.url)     # … or in the fake cloud of google_cloud.fake
    run([...], env={**os.environ, **cloud.environment(), **world.environment()})

`environment()` is all that Terraform, or a program of ours that starts it, needs: `terraform init` then finds the
provider 8.7.0 in a mirror in `folder`, and what else it may look for on the internet meets a proxy that is not there.
`world.changes()` is what was created, updated and deleted, in order, as ("create", "google_compute_disk", "data-1");
`world.journal()` the same with states and failures. `world.fail(...)` is for the file's world: the fake cloud has its
own `fault("terraform.google_compute_disk.create", …)`.

`with world.served():` around it all spares half the time: one stand-in for all commands.

`why_not()` is the reason to skip where there is no Terraform, or None.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VERSION = "8.7.0"
ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "deploy" / "terraform"
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
NEEDED = ("grpc", "google.protobuf", "msgpack")
"""Of the stand-in; all of them are among the development dependencies."""


def why_not() -> str | None:
    return None if shutil.which("terraform") else "`terraform` is not on the path"


class TerraformWorld:
    def __init__(self, folder: Path, *, cloud: str | None = None) -> None:
        self.folder, self._cloud = folder, cloud
        self._world, self._journal = folder / "world.json", folder / "journal.jsonl"
        self._config, self._served = folder / "cli.tfrc", ""
        place = folder / "mirror" / "registry.terraform.io" / "hashicorp" / "google" / VERSION
        place = place / f"linux_{MACHINES[platform.machine()]}"
        place.mkdir(parents=True, exist_ok=True)
        binary = place / f"terraform-provider-google_v{VERSION}"
        binary.write_text(
            f'#!/bin/sh\nPYTHONPATH="{ROOT / "tests"}" exec "{sys.executable}" -P -m google_cloud.standin\n'
        )
        binary.chmod(0o755)
        self._config.write_text(
            "disable_checkpoint = true\n"
            "provider_installation {\n"
            "  filesystem_mirror {\n"
            f'    path = "{folder / "mirror"}"\n'
            "  }\n"
            "}\n"
        )

    def environment(self) -> dict[str, str]:
        world = {"STANDIN_CLOUD": self._cloud} if self._cloud else {"STANDIN_WORLD": str(self._world)}
        if self._served:
            world["TF_REATTACH_PROVIDERS"] = self._served
        return {
            "TF_CLI_CONFIG_FILE": str(self._config),
            "TF_DISABLE_PLUGIN_TLS": "1",  # the stand-in's unix socket has no certificate
            "TF_IN_AUTOMATION": "1",
            "TF_INPUT": "0",
            "CHECKPOINT_DISABLE": "1",
            "STANDIN_JOURNAL": str(self._journal),
            "GOOGLE_OAUTH_ACCESS_TOKEN": "fake-token-0123456789",
            "HTTPS_PROXY": "http://127.0.0.1:9",
            "HTTP_PROXY": "http://127.0.0.1:9",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
            **world,
        }

    @contextmanager
    def served(self) -> Iterator[TerraformWorld]:
        """One stand-in for all commands that start in here with its `environment()`. Terraform starts four for each
        command otherwise, which is half of the command's time."""
        environment = {**os.environ, **self.environment(), "PYTHONPATH": str(ROOT / "tests")}
        command = [sys.executable, "-P", "-m", "google_cloud.standin"]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            _, version, network, address, protocol = process.stdout.readline().strip().split("|")
            where = {"Network": network, "String": address}
            about = {
                "Protocol": protocol,
                "ProtocolVersion": int(version),
                "Pid": process.pid,
                "Test": True,
                "Addr": where,
            }
            self._served = json.dumps({"registry.terraform.io/hashicorp/google": about})
            try:
                yield self
            finally:
                self._served = ""
                process.terminate()

    def journal(self) -> list[dict[str, Any]]:
        """{"op", "type", "id", "state"}, or {"op", "type", "id", "error"} of what was refused."""
        text = self._journal.read_text() if self._journal.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def changes(self) -> list[tuple[str, str, str]]:
        """(op, type, name) of what was done; the name is the last part of the ID."""
        return [(e["op"], e["type"], e["id"].rpartition("/")[2]) for e in self.journal() if "error" not in e]

    def forget(self) -> None:
        """Empties the journal."""
        self._journal.unlink(missing_ok=True)

    @property
    def resources(self) -> dict[str, dict[str, Any]]:
        """ "TYPE|ID" -> state, of the file's world."""
        return dict(self._read()["resources"])

    def remove(self, key: str) -> None:
        """Takes a resource away behind Terraform's back."""
        whole = self._read()
        del whole["resources"][key]
        self._world.write_text(json.dumps(whole))

    def fail(self, method: str, code: int, what: str, *, reason: str = "", times: int = 1) -> None:
        """The next `times` changes whose method ("terraform.google_compute_disk.create") matches are refused."""
        whole = self._read()
        whole["faults"].append({"method": method, "code": code, "message": what, "reason": reason, "times": times})
        self._world.write_text(json.dumps(whole))

    def _read(self) -> dict[str, Any]:
        return json.loads(self._world.read_text()) if self._world.exists() else {"resources": {}, "faults": []}


def copy_of_source(folder: Path) -> Path:
    """deploy/terraform in `folder`, without tests, its state in a file: for what does not need the gcs backend."""
    shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*"))
    (folder / "backend_override.tf").write_text('terraform {\n  backend "local" {}\n}\n')
    return folder


def clean(environment: dict[str, str]) -> dict[str, str]:
    """Without what a user may have set for Terraform and Google, so that tests are the same for all."""
    return {name: value for name, value in environment.items() if not name.startswith(("TF_", "GOOGLE_", "CLOUDSDK_"))}


def process_environment(world: TerraformWorld) -> dict[str, str]:
    return {**clean(dict(os.environ)), **world.environment()}


class Terraform:
    """A work folder with deploy/terraform in it: `apply(variables)`, `plan(variables)`, `run("validate")`."""

    def __init__(self, folder: Path, world: TerraformWorld, environment: dict[str, str] | None = None) -> None:
        self.folder, self.world = folder, world
        self.environment = environment or process_environment(world)

    def run(self, *words: str, code: int = 0) -> str:
        """What it printed, stdout and stderr. `code`: what it must end with."""
        command = ["terraform", words[0], "-no-color", *words[1:]]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == code, f"{words} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def write(self, variables: dict[str, Any]) -> None:
        (self.folder / "terraform.tfvars.json").write_text(json.dumps(variables))

    def apply(self, variables: dict[str, Any], *, code: int = 0) -> str:
        self.write(variables)
        self.world.forget()
        return self.run("apply", "-auto-approve", code=code)

    def plan(self, variables: dict[str, Any], *, code: int = 0) -> str:
        """`code` 0: nothing to do; 2: something."""
        self.write(variables)
        return self.run("plan", "-detailed-exitcode", code=code)

    def state(self) -> str:
        return (self.folder / "terraform.tfstate").read_text()
