"""A Google Cloud for a page: the made-up one of the cloud tests."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from google_cloud.fake import fake_cloud
from pages.shell import Shell

from maskwright.cloud import record
from maskwright.cloud.environment import read_environment

PROJECT = "my-project"


@contextmanager
def made(shell: Shell, location: str) -> Iterator[None]:
    """After `env down`: the environment's disk is seeded and stays, and there is no cluster."""
    environment = read_environment(location)
    known = record.EnvironmentRecord().for_disk(environment)
    seeded = {"files": 1204, "bytes": 412_000_000_000, "manifest_sha256": "0" * 64, "time": "2026-11-20T10:00:00Z"}
    values = {key: value for key, value in vars(known).items() if key != "number"} | {"seeded": seeded}
    with fake_cloud(polls=0, project=PROJECT) as cloud:
        shell.environment |= cloud.environment()
        content = json.dumps({"format": record.FORMAT, **values})
        cloud.put(f"gs://{environment.state}/{environment.prefix}/record-1.json", content)
        cloud.put("gs://my-corpus/stores/one/manifest.json", '{"dtype": "uint16"}')
        yield
