"""A Google Cloud for a page: the made-up one of the cloud tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from google_cloud.fake import fake_cloud
from google_cloud.small_terraform import SmallTerraform
from pages.shell import Shell

from maskwright.cloud import record
from maskwright.cloud.environment import read_environment

PROJECT = "my-project"


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
