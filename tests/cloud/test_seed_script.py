"""The script of the temporary machine that fills the shared disk, run for real in a folder: gcloud is the real one,
against the fake cloud; what handles devices is a stub."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("googleapiclient", reason="the fake cloud is judged by Google's discovery documents")
if shutil.which("gcloud") is None:
    pytest.skip("needs gcloud", allow_module_level=True)

from fake_metadata import TOKEN, fake_metadata
from google_cloud.fake import Cloud, fake_cloud
from google_cloud.iam import acting_as, grant_hosts
from google_cloud.sandbox import Host

RESULT = "gs://lab-runs/seed/lab1-data-1/result.json"
ACCOUNT = "lab1-train@lab-proj.iam.gserviceaccount.com"
SOURCE = {
    "a.txt": b"a" * 1000,
    "deep/er/b c.txt": b"b" * 70_000,
    "deep/empty": b"",
    "deep/[odd]*name": b"odd",
    "ünï.txt": "ü".encode(),
    ".hidden": b"h",
}


class Seeder:
    def __init__(self, folder: Path, cloud: Cloud, stack: ExitStack, **attributes: str) -> None:
        values = {
            "maskwright-environment": "lab1",
            "maskwright-seed-source": "gs://lab-data/corpus/*",  # as in values.env
            "maskwright-seed-result": RESULT,
            "maskwright-disk": "shared-pd",
        }
        values |= {f"maskwright-seed-{key}": value for key, value in attributes.items()}
        metadata = stack.enter_context(fake_metadata("lab1-seeder", values))
        grant_hosts(cloud, ACCOUNT, dataset="lab-data", runs="lab-runs", jobs="lab-jobs")
        url = stack.enter_context(acting_as(cloud, ACCOUNT))
        self.cloud, self.host = cloud, Host(folder / "seeder", metadata, url, {})
        self.files = self.host.disk("shared-pd", label=None)
        self.files.rmdir()  # there is nothing before it is formatted
        for name, content in SOURCE.items():
            cloud.put(f"gs://lab-data/corpus/{name}", content)
        cloud.put("gs://lab-data/corpus/folder/", b"")  # a console's mark
        cloud.put("gs://lab-data/other.txt", b"not asked for")
        cloud.put("gs://lab-runs/seed/x", b"")
        environment = cloud.environment() | {"HOME": str(folder)}
        self.variables = {key: value.replace(cloud.url, url) for key, value in environment.items() if value}

    def run(self, **more: str) -> int:
        return self.host.run("seed.sh", seconds=240, **self.variables, **more)

    @property
    def result(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.cloud.text(RESULT))
        return value

    def lines(self) -> dict[str, str]:
        lines = (self.files / "MANIFEST.sha256").read_text().splitlines()
        return {name: sha for sha, _, name in (line.partition("  ") for line in lines)}

    def check(self, expected: dict[str, bytes]) -> None:
        """Disk, manifest and result say the same, and nothing is half there."""
        found = {
            str(path.relative_to(self.files)): path.read_bytes()
            for path in self.files.rglob("*")
            if path.is_file() and ".maskwright" not in path.parts and path.name != "MANIFEST.sha256"
        }
        assert found == expected
        assert self.lines() == {name: hashlib.sha256(content).hexdigest() for name, content in expected.items()}
        manifest = (self.files / "MANIFEST.sha256").read_bytes()
        result = self.result
        assert result["ok"] is True and result.pop("seconds") >= 0
        assert result == {
            "ok": True,
            "files": len(expected),
            "bytes": sum(map(len, expected.values())),
            "manifest_sha256": hashlib.sha256(manifest).hexdigest(),
        }
        assert not (self.host.root / "mnt/maskwright-seed").is_symlink()  # unmounted
        assert self.host.journal("shutdown")[-1] == ["shutdown", "-h", "now"]
        assert self.host.files_with_token() == [] and TOKEN not in self.host.output


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def cloud(stack: ExitStack) -> Cloud:
    return stack.enter_context(fake_cloud())


def test_disk_is_filled_and_checked(tmp_path: Path, cloud: Cloud, stack: ExitStack) -> None:
    seeder = Seeder(tmp_path, cloud, stack)
    del cloud.objects["lab-data", "corpus/deep/er/b c.txt"][-1].about["md5Hash"]  # as of a composite object
    assert seeder.run() == 0, seeder.host.output
    assert ["gcloud", "storage", "hash", "--skip-md5"] in [call[:4] for call in seeder.host.journal("gcloud")]
    seeder.check(SOURCE)
    (mkfs,) = seeder.host.journal("mkfs.ext4")
    assert mkfs[2:4] == ["-m", "0"] and "lazy_itable_init=1" in mkfs[5]
    done = subprocess.run(["sha256sum", "--check", "--quiet", "MANIFEST.sha256"], cwd=seeder.files, check=False)
    assert done.returncode == 0
    calls = len(seeder.host.journal())
    assert seeder.run() == 0 and "was already done" in seeder.host.output  # booted again
    assert [call[0] for call in seeder.host.journal()[calls:]] == ["shutdown"]


def test_source_is_prepared_on_the_way(tmp_path: Path, cloud: Cloud, stack: ExitStack) -> None:
    script = 'set -e; cat "$1/a.txt" >"$2/made.txt"; if ! [ -e "$2/first" ]; then : >"$2/first"\n'
    script += 'echo "ERROR: HF_TOKEN=hf_abcdefgh12"; exit 4; fi; rm -r "$1" "$2/first"\n'
    cloud.put("gs://lab-jobs/setup/p.sh", script)
    seeder = Seeder(tmp_path, cloud, stack, prepare="gs://lab-jobs/setup/p.sh")
    assert seeder.run() == 1
    what = "the preparation script ended with 4: ERROR: HF_TOKEN=***. Fix: correct disk.prepare"
    assert seeder.result["step"] == "prepare" and seeder.result["what"].startswith(what)
    assert not (seeder.host.root / "mnt/maskwright-seed").is_symlink()
    assert not (seeder.files / "MANIFEST.sha256").exists()
    assert seeder.run() == 0, seeder.host.output
    seeder.check({"made.txt": SOURCE["a.txt"]})


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"KILL_AT": "3"}, marks=pytest.mark.long),
        pytest.param({"KILL_AT": "8"}, marks=pytest.mark.long),
        {"KILL_IN": "rsync", "KILL_AFTER": "0.8"},
    ],
)
def test_killed_at_any_point_and_begun_again(
    tmp_path: Path, cloud: Cloud, stack: ExitStack, more: dict[str, str]
) -> None:
    """At mkfs, at umount (by then there is a manifest), and in the middle of copying. What comes up again may be
    another machine with the same disk."""
    seeder = Seeder(tmp_path, cloud, stack)
    assert seeder.run(**more) == -9, seeder.host.output
    assert ("lab-runs", "seed/lab1-data-1/result.json") not in cloud.objects
    seeder.host.reboot()
    expected = dict(SOURCE)
    if more.get("KILL_AT") == "8":
        # What a power cut does to what was not written yet: size and time are right, the content is not. Meanwhile the
        # source has changed too.
        before = os.stat(seeder.files / "a.txt")
        (seeder.files / "a.txt").write_bytes(b"\0" * 1000)
        os.utime(seeder.files / "a.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
        cloud.put("gs://lab-data/corpus/new.txt", "new")
        del cloud.objects["lab-data", "corpus/ünï.txt"]
        expected |= {"new.txt": b"new"}
        del expected["ünï.txt"]
    assert seeder.run() == 0, seeder.host.output
    seeder.check(expected)
    assert len(seeder.host.journal("mkfs.ext4")) == (2 if more.get("KILL_AT") == "3" else 1)
    assert ("1 files differ from the bucket's, such as a.txt" in seeder.host.output) == (more.get("KILL_AT") == "8")


@pytest.mark.long
def test_killed_at_random_moments(tmp_path: Path, cloud: Cloud, stack: ExitStack) -> None:
    seeder, generator = Seeder(tmp_path, cloud, stack), random.Random(11)
    for _ in range(8):
        script = seeder.host.start("seed.sh", **seeder.variables)
        time.sleep(generator.uniform(0.05, 3.0))
        ended = script.poll() is not None
        seeder.host.reboot()
        if ended:
            break
    assert seeder.run() == 0, seeder.host.output
    seeder.check(SOURCE)


Failed = Callable[..., Seeder]


@pytest.fixture
def failed(tmp_path: Path, cloud: Cloud, stack: ExitStack) -> Failed:
    def run(name: str, step: str, text: str, **attributes: str) -> Seeder:
        cloud.objects.pop(("lab-runs", "seed/lab1-data-1/result.json"), None)
        seeder = Seeder(tmp_path / name, cloud, stack, **attributes)
        if name == "foreign":
            (seeder.files.parent / "formatted").write_text("somebody's")
        assert seeder.run() == 1
        result = seeder.result
        assert result["ok"] is False and result["step"] == step and text in result["what"], result
        assert seeder.host.journal("shutdown") == [["shutdown", "-h", "now"]]
        return seeder

    return run


def test_failures_are_said_in_the_bucket(failed: Failed) -> None:
    foreign = failed("foreign", "format", "has foreign data, which is not overwritten")
    assert foreign.host.journal("mkfs.ext4") == [] and foreign.host.journal("mount") == []
    failed("nothing", "list", "Fix: check disk.source", source="gs://lab-data/nothing")


@pytest.mark.long
def test_failures_of_the_source_are_said_in_the_bucket(
    failed: Failed, tmp_path: Path, cloud: Cloud, stack: ExitStack
) -> None:
    failed("nowhere", "list", "gs://no-such-bucket", source="gs://no-such-bucket/x")
    lie = Seeder(tmp_path / "lie", cloud, stack)
    cloud.objects["lab-data", "corpus/deep/er/b c.txt"][-1].about.pop("md5Hash")
    cloud.objects["lab-data", "corpus/deep/er/b c.txt"][-1].about["crc32c"] = "AAAAAA=="
    assert lie.run() == 1 and lie.result["step"] in ("copy", "verify") and not lie.result["ok"]
    assert not (lie.files / "MANIFEST.sha256").exists()
    cloud.fault("storage.objects.get", 403, message="lab1-train does not have storage.objects.get access", times=30)
    failed("denied", "copy", "lab1-train may read the source")


@pytest.mark.long
def test_device_with_the_real_tools_for_file_systems(tmp_path: Path, cloud: Cloud, stack: ExitStack) -> None:
    """blkid, wipefs and mkfs.ext4 on a file; only mounting it is played."""
    if not all(shutil.which(name, path="/usr/sbin:/sbin:/usr/bin") for name in ("blkid", "wipefs", "mkfs.ext4")):
        pytest.skip("needs blkid, wipefs and mkfs.ext4")
    seeder = Seeder(tmp_path, cloud, stack)
    seeder.host.use_real("blkid", "wipefs", "mkfs.ext4")
    device = seeder.host.root / "dev/disk/by-id/google-shared-pd"
    with open(device, "wb") as file:
        file.truncate(64 << 20)
    large = seeder.host.folder / "disks" / "large"
    large.mkdir(parents=True)
    (large / "formatted").touch()
    seeder.files = large / "files"
    assert seeder.run() == 0, seeder.host.output
    seeder.check(SOURCE)
    about = subprocess.run(["/sbin/dumpe2fs", "-h", device], capture_output=True, text=True, check=False).stdout
    if about:
        assert "Reserved block count:     0\n" in about and "maskwright-data" in about
    cloud.objects.pop(("lab-runs", "seed/lab1-data-1/result.json"))
    assert seeder.run() == 0  # it is ours: not formatted again
    seeder.check(SOURCE)
    cloud.objects.pop(("lab-runs", "seed/lab1-data-1/result.json"))
    subprocess.run(["/sbin/mkfs.ext4", "-q", "-F", "-L", "other", device], check=True)
    assert seeder.run() == 1 and seeder.result["step"] == "format"
