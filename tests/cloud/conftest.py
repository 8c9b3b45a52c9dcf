from __future__ import annotations

import os
import urllib.request
from collections.abc import Iterator

import pytest
from google_cloud.fake import Cloud, fake_cloud
from google_cloud.loopback_only import PROXIES, loopback_only

from maskwright.cloud.google import rest

# Without it gcsfs asks each bucket's kind by gRPC, which needs TLS; it looks when it is imported.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
CLOUD = ("GOOGLE_", "CLOUDSDK_", "GCE_METADATA", "STORAGE_EMULATOR_HOST", "TF_", "STANDIN_")


@pytest.fixture(scope="module", autouse=True)
def no_network() -> Iterator[bool]:
    """Loopback only, and nothing of this machine's own cloud accounts."""
    with pytest.MonkeyPatch.context() as patch, loopback_only() as private:
        for name in [name for name in os.environ if name.startswith(CLOUD)]:
            patch.delenv(name)
        for name, value in PROXIES.items():
            patch.setenv(name, value)
            patch.setenv(name.lower(), value)
        # `urlopen` keeps the proxies that were set when it was first called, here for all later tests of this process.
        patch.setattr(urllib.request, "_opener", None)
        new_thread_for_files()
        try:
            yield private
        finally:
            new_thread_for_files()


def new_thread_for_files() -> None:
    """fsspec does its input and output in one thread, which stays in the network that it was started in."""
    import fsspec
    import fsspec.asyn

    for protocol in ("gs", "gcs"):
        fsspec.get_filesystem_class(protocol).clear_instance_cache()
    fsspec.asyn.reset_lock()


@pytest.fixture
def empty_cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """A Google Cloud of its own, to which the environment's variables point."""
    import fsspec
    from google.oauth2.credentials import Credentials

    for protocol in ("gs", "gcs"):  # of an earlier test; the cloud refuses it, so nobody reads a bucket with it unseen
        monkeypatch.setitem(fsspec.config.conf, protocol, {"token": Credentials(token="stale")})
    with fake_cloud() as made:
        for name, value in made.environment().items():
            monkeypatch.setenv(name, value)
        fsspec.get_filesystem_class("gs").clear_instance_cache()
        yield made


@pytest.fixture
def cloud(empty_cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """Whose clients wait a hundredth of their time."""
    monkeypatch.setattr(rest, "FIRST_POLL_SECONDS", 0.005)
    monkeypatch.setattr(rest, "FIRST_PAUSE_SECONDS", 0.01)
    return empty_cloud
