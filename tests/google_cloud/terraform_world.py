"""Terraform for tests: the real binary, with the stand-in provider where the registry's would be.

    world = TerraformWorld(folder, cloud)
    run([...], env={**os.environ, **cloud.environment(), **world.environment()})

`environment()` is all that Terraform, or a program of ours that starts it, needs: `terraform init` then finds the
provider 8.7.0 in a mirror in `folder`. What Terraform makes is in the fake cloud, whose
`fault("terraform.google_compute_disk.create", …)` refuses it. `world.changes()` is what was created, updated and
deleted, in order, as ("create", "google_compute_disk", "data-1").

`with world.served():` around it all spares half the time: one stand-in for all commands.

`why_not()` is the reason to skip where there is no Terraform, or None.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from google_cloud.fake import Cloud

VERSION = "8.7.0"
ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "deploy" / "terraform"
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
OF_THE_USER = ("TF_", "GOOGLE_", "CLOUDSDK_")
"""Beginnings of variables that a user may have set, without which the tests are the same for all."""


def why_not() -> str | None:
    return None if shutil.which("terraform") else "`terraform` is not on the path"


class TerraformWorld:
    def __init__(self, folder: Path, cloud: Cloud) -> None:
        self.folder, self.cloud, self._seen = folder, cloud, 0
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
        return {
            "STANDIN_CLOUD": self.cloud.url,
            "TF_CLI_CONFIG_FILE": str(self._config),
            "TF_DISABLE_PLUGIN_TLS": "1",  # the stand-in's unix socket has no certificate
            "TF_IN_AUTOMATION": "1",
            "TF_INPUT": "0",
            "CHECKPOINT_DISABLE": "1",
            **({"TF_REATTACH_PROVIDERS": self._served} if self._served else {}),
        }

    @contextmanager
    def served(self) -> Iterator[Self]:
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

    def changes(self) -> list[tuple[str, str, str]]:
        """(op, type, name) of what was done since `forget`; the name is the last part of the ID."""
        told = [one for one in self.cloud.calls(r"terraform\..*")[self._seen :] if one["code"] == 200]
        return [(one["body"]["op"], one["body"]["type"], one["body"]["id"].rpartition("/")[2]) for one in told]

    def forget(self) -> None:
        self._seen = len(self.cloud.calls(r"terraform\..*"))

    @property
    def resources(self) -> dict[str, dict[str, Any]]:
        """ "TYPE|ID" -> state."""
        return {"|".join(key): state for key, state in self.cloud.terraform.items()}


def copy_of_source(folder: Path) -> Path:
    """deploy/terraform in `folder`, without tests, its state in a file: for what does not need the gcs backend."""
    shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*"))
    (folder / "backend_override.tf").write_text('terraform {\n  backend "local" {}\n}\n')
    return folder


class Terraform:
    """A work folder with deploy/terraform in it: `apply(variables)`, `plan(variables)`, `run("validate")`."""

    def __init__(self, folder: Path, world: TerraformWorld) -> None:
        self.folder, self.world = folder, world
        environment = {name: value for name, value in os.environ.items() if not name.startswith(OF_THE_USER)}
        self.environment = {**environment, **world.cloud.environment(), **world.environment()}

    def run(self, *words: str) -> str:
        """What it printed, stdout and stderr, when it ended with 0."""
        command = ["terraform", words[0], "-no-color", *words[1:]]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, f"{words} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def write(self, variables: dict[str, Any]) -> None:
        (self.folder / "terraform.tfvars.json").write_text(json.dumps(variables))

    def apply(self, variables: dict[str, Any]) -> str:
        self.write(variables)
        self.world.forget()
        return self.run("apply", "-auto-approve")

    def plan(self, variables: dict[str, Any]) -> str:
        """That there is nothing to do."""
        self.write(variables)
        return self.run("plan", "-detailed-exitcode")
