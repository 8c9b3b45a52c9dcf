"""A Google Cloud for a page: the made-up one of the cloud tests, the real Terraform with the stand-in provider, and
hosts that are processes of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from google_cloud.boots import booting
from google_cloud.fake import fake_cloud
from google_cloud.terraform_world import TerraformWorld
from pages.shell import Shell

PROJECT, GROUP, HOSTS = "my-project", "lab1-group", 2


@contextmanager
def google(shell: Shell) -> Iterator[None]:
    """The shell's variables point to it. Two hosts compute as soon as the group of `lab.yaml` is there."""
    with ExitStack() as stack:
        cloud = stack.enter_context(fake_cloud(polls=0, project=PROJECT))
        world = stack.enter_context(TerraformWorld(shell.root / "terraform", cloud=cloud.url).served())
        variables = {**cloud.environment(), **world.environment(), "XDG_CACHE_HOME": str(shell.root / "cache")}
        shell.environment |= variables
        stack.enter_context(patch.dict(os.environ, variables))
        cloud.put("gs://my-corpus/made", "")
        spec = f"gs://{PROJECT}-lab1-runs/jobs/group/job.json"
        stack.enter_context(booting(cloud, shell.root / "hosts", GROUP, spec, HOSTS))
        yield
