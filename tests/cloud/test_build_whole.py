"""The older set-up's rows, whole, on what `env import` makes of its values.env: with the real terraform, the stand-in
provider and the made-up Google Cloud."""

from __future__ import annotations

from pathlib import Path

import pytest
from google_cloud.fake import Cloud, fake_cloud
from google_cloud.seeding import SEEDED, seeder
from google_cloud.terraform_world import TerraformWorld, why_not
from google_cloud.values_env import write

from maskwright.cli.main import run
from maskwright.cloud.google import groups
from maskwright.cloud.google.rest import Google
from maskwright.processes import child

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
ROOT = Path(__file__).resolve().parents[2]
PROJECT = "pytorch-tpu-new"
ZONE = f"compute/projects/{PROJECT}/zones/europe-west4-a"
FLAGS = {"_TPU": "--tpu", "_MIG": "--mig", "_DISK": "--disk", "_REFILL": "--refill"}


class Build:
    """`env build`, whose commands are run in this process: tests/cloud/test_build_table.py has them in their own."""

    def __init__(self, cloud: Cloud, path: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.cloud, self.path, self.capture = cloud, path, capture

    def __call__(self, action: str, *flags: str, code: int = 0) -> str:
        words = [word for name in flags for word in (FLAGS[name], "true")]
        got = run(["env", "build", str(self.path), "--action", action, *words])
        said = "".join(self.capture.readouterr())
        assert got == code, said
        return said

    def change(self, before: str, after: str) -> None:
        text = self.path.read_text()
        assert before in text
        self.path.write_text(text.replace(before, after))

    def exists(self, kind: str) -> list[str]:
        return [key.rsplit("/", 1)[1] for key in sorted(self.cloud.resources) if key.rsplit("/", 2)[-2] == kind]

    def disks_of_hosts(self) -> set[str]:
        group = groups.describe(Google(PROJECT), "europe-west4-a", self.exists("instanceGroupManagers")[0])
        assert group and group.target == len(group.members) == 8
        hosts = [self.cloud.resources[f"{ZONE}/instances/{one.name}"] for one in group.members]
        names = [disk["source"] for one in hosts for disk in one["disks"] if disk.get("deviceName") == "shared-pd"]
        return {str(name).rpartition("/")[2] for name in names}


def in_process(words: list[str]) -> int:
    return run([*words, *(["--poll-seconds", "0.1"] if words[1] in ("seed", "image") else [])])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Sending a large body")  # aiohttp's, of the source of over 1 MiB that gcsfs sends
@pytest.mark.parametrize("version", ["4f52a18", "af6e915"])
def test_rows_on_an_imported_environment(
    version: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    no_network: bool,
) -> None:
    path, name = tmp_path / "environment.yaml", "env-20200428" if version == "af6e915" else "env-20200430"
    with (
        fake_cloud(polls=0, project=PROJECT) as cloud,
        TerraformWorld(tmp_path / "terraform", cloud=cloud.url).served() as world,
    ):
        for variable, value in {**cloud.environment(), **world.environment(), "XDG_CACHE_HOME": str(tmp_path)}.items():
            monkeypatch.setenv(variable, value)
        monkeypatch.setattr(child, "run", in_process)
        monkeypatch.chdir(ROOT)
        assert run(["env", "import", *write(tmp_path, version), "--to", str(path), "--accelerator", "v6e"]) == 0
        build = Build(cloud, path, capsys)
        cloud.put(f"gs://{PROJECT}-maskwright-state/started", "")
        if version == "4f52a18":
            cloud.script("builds", [{"status": "FAILURE"}])
            build("create", code=1)
            assert build.exists("repositories") == [name]  # made first, so that there is a place for the image
            assert build.exists("instanceGroupManagers") == []  # and no host, as there is no image
        cloud.script("builds", [{"status": "SUCCESS"}])
        build("create")
        assert build.exists("instanceGroupManagers") == [f"{name}-slice"]
        if version == "4f52a18":
            update_rows(build, name)
            build("destroy")
            assert build.exists("instanceGroupManagers") == [] and f"{PROJECT}-{name}-runs" in build.exists("b")


def update_rows(build: Build, name: str) -> None:
    build.change("topology: 4x4", "topology: 4x8")
    assert "there is no group: the slice's own hosts run the code" in build("update", "_TPU", "_MIG")
    (group,) = [made for key, made in build.cloud.resources.items() if "/instanceGroupManagers/" in key]
    assert group["targetSize"] == 8

    build.cloud.put("gs://tpu-demo-eu/dataset/shard0/dict.txt", "")
    assert "token ids of another tool (fairseq: shard0/dict.txt)" in build("update", "_DISK", code=2)
    build.cloud.put("gs://tpu-demo-eu/dataset/store/manifest.json", '{"dtype": "uint16"}')
    with seeder(build.cloud, SEEDED):
        build("update", "_DISK")
    assert build.disks_of_hosts() == set(), "hosts that are up get it with the next update"
    build("update", "_MIG")
    assert build.disks_of_hosts() == {f"{name}-data-1"}

    assert "_REFILL=true fills a new one" in build("update", "_DISK"), "it is full, and nothing is done"
    build.change("size_gb: 2055", "size_gb: 3000")
    with seeder(build.cloud, SEEDED):
        said = build("update", "_DISK")
    assert f"{name}-data-1 is deleted with its data; {name}-data-2 replaces it" in said
    assert build.exists("disks") == [f"{name}-data-2"] and build.disks_of_hosts() == {f"{name}-data-2"}
    assert build.cloud.resources[f"{ZONE}/disks/{name}-data-2"]["sizeGb"] == "3000"
