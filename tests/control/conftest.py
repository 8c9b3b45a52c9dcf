"""The command line in this process, as in the tests of faults."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from fake_kubernetes import FakeCluster
from in_process import Cli, command_line


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with command_line(capfd) as call:
        yield call


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeCluster], None]:
    """The real one, told of no cluster but this."""
    if not shutil.which("kubectl"):
        pytest.skip("needs kubectl on the path")

    def point_at(cluster: FakeCluster) -> None:
        names = {"cluster": "made-up", "user": "", "namespace": "ml"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "made-up", "cluster": {"server": cluster.url}}],
            "contexts": [{"name": "made-up", "context": names}],
            "current-context": "made-up",
        }
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    return point_at
