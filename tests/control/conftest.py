"""The real kubectl, told of a made-up cluster alone."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from fake_kubernetes import FakeCluster


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeCluster], None]:
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
