import os
import urllib.request
from collections.abc import Iterator

import pytest
from google_cloud.fake import Cloud, fake_cloud

from maskwright.cloud.google import rest

CLOUD = ("GOOGLE_", "CLOUDSDK_", "GCE_METADATA", "STORAGE_EMULATOR_HOST", "TF_", "STANDIN_")


NOWHERE = "http://127.0.0.1:9"
"""Port 9 discards: whatever forgets its endpoint override meets nobody."""
PROXIES = {"HTTP_PROXY": NOWHERE, "HTTPS_PROXY": NOWHERE, "NO_PROXY": "127.0.0.1,localhost"}


@pytest.fixture(scope="module", autouse=True)
def no_network() -> Iterator[None]:
    """A dead proxy for clients, and nothing of this machine's own cloud accounts."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(CLOUD)]:
            patch.delenv(name)
        for name, value in PROXIES.items():
            patch.setenv(name, value)
            patch.setenv(name.lower(), value)
        # `urlopen` keeps the proxies that were set when it was first called, here for all later tests of this process.
        patch.setattr(urllib.request, "_opener", None)
        yield


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
