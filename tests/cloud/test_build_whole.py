"""The older set-up's `create` and `destroy`, whole: commands in processes of their own, as cloudbuild.yaml runs them,
with the real terraform, the stand-in provider and the made-up Google Cloud."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from google_cloud.fake import Cloud, fake_cloud
from google_cloud.terraform_world import TerraformWorld, why_not

from maskwright.cli.main import run

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
ROOT = Path(__file__).resolve().parents[2]
LAB = {
    "name": "lab1",
    "project": "lab-proj",
    "zone": "us-east5-b",
    "nfs": {"share": "tpushare"},
    "slice": {"accelerator": "v6e", "topology": "4x4", "provisioning_model": "SPOT"},
}


def exists(cloud: Cloud, kind: str) -> list[str]:
    return [key.rsplit("/", 1)[1] for key in sorted(cloud.resources) if key.rsplit("/", 2)[-2] == kind]


@pytest.mark.long
def test_create_and_destroy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: bool) -> None:
    path = tmp_path / "environment.yaml"
    path.write_text(yaml.safe_dump(LAB))
    with fake_cloud(polls=0) as cloud:
        world = TerraformWorld(tmp_path / "terraform", cloud=cloud.url)
        for name, value in {**cloud.environment(), **world.environment(), "XDG_CACHE_HOME": str(tmp_path)}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
        monkeypatch.chdir(ROOT)
        cloud.put("gs://lab-proj-maskwright-state/started", "")

        cloud.script("builds", [{"status": "FAILURE"}])
        assert run(["env", "build", str(path), "--action", "create"]) == 1
        assert exists(cloud, "repositories") == ["lab1"]  # made first, so that there is a place for the image
        assert exists(cloud, "instanceGroupManagers") == []  # and no host, as there is no image

        cloud.script("builds", [{"status": "SUCCESS"}])
        assert run(["env", "build", str(path), "--action", "create"]) == 0
        assert exists(cloud, "instanceGroupManagers") == ["lab1-slice"]
        (group,) = [made for key, made in cloud.resources.items() if "/instanceGroupManagers/" in key]
        assert group["targetSize"] == 4 and exists(cloud, "instances") == ["lab1-nfs"]  # Filestore's word for a share

        assert run(["env", "build", str(path), "--action", "destroy"]) == 0
        assert exists(cloud, "instanceGroupManagers") == exists(cloud, "instances") == []
        assert "lab-proj-lab1-runs" in exists(cloud, "b")
