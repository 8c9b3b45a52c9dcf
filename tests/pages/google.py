"""A Google Cloud for a page: the made-up one of the cloud tests, the real Terraform with the stand-in provider, and
hosts that are processes of this machine."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from unittest.mock import patch

from google_cloud import iam
from google_cloud.boots import booting
from google_cloud.fake import Cloud, fake_cloud
from google_cloud.small_terraform import SmallTerraform
from google_cloud.terraform_world import TerraformWorld
from pages.shell import Shell

from maskwright.cloud import record
from maskwright.cloud.environment import read_environment

PROJECT = "my-project"


@contextmanager
def google(shell: Shell, environment: str, kind: str, hosts: int, more: str = "") -> Iterator[Cloud]:
    """The shell's variables point to it. `hosts` compute as soon as the environment's slice or group is there. `more`:
    words that they add to the job's command."""
    with ExitStack() as stack:
        cloud = stack.enter_context(fake_cloud(polls=0, project=PROJECT))
        world = stack.enter_context(TerraformWorld(shell.root / "terraform", cloud=cloud.url).served())
        variables = {**cloud.environment(), **world.environment(), "XDG_CACHE_HOME": str(shell.root / "cache")}
        shell.environment |= variables
        stack.enter_context(patch.dict(os.environ, variables))
        cloud.put("gs://my-corpus/made", "")
        account = f"{environment}-train@{PROJECT}.iam.gserviceaccount.com"
        iam.bind(cloud, "my-corpus", "roles/storage.objectViewer", account)  # as its owner does on the page
        spec = f"gs://{PROJECT}-{environment}-jobs/{kind}/job.json"
        command = f'#!/bin/sh\nexec "{sys.executable}" -m maskwright "$@" {more}\n'
        stack.enter_context(booting(cloud, shell.root / "hosts", f"{environment}-{kind}", spec, hosts, command))
        yield cloud


@contextmanager
def made(shell: Shell, location: str) -> Iterator[None]:
    """Without Terraform: the environment's disk is seeded and its slice is there, and nothing computes."""
    environment = read_environment(location)
    known = replace(record.EnvironmentRecord().for_disk(environment), seeded={"files": 1, "bytes": 19})
    disk = {key: value for key, value in vars(known).items() if key in record.DISK_FIELDS}
    content = {"format": record.FORMAT, "disk": disk, "placement": known.placement}
    with fake_cloud(polls=0, project=PROJECT) as cloud:
        shell.environment |= cloud.environment()
        cloud.put(f"gs://{environment.state}/{environment.prefix}/{record.NAME}", json.dumps(content))
        cloud.put("gs://my-corpus/stores/one/manifest.json", '{"dtype": "uint16"}')
        SmallTerraform(cloud).make(environment, known, "slice")
        yield
