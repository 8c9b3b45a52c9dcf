from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from google_cloud.loopback_only import PROXIES, loopback_only

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
        yield private
