"""What the Job of `env seed` does to the disk, in a folder, from a bucket of the fake cloud."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from maskwright.cloud.provision import fill
from maskwright.core.errors import InputError, MaskwrightError
from maskwright.core.folder import Folder

SOURCE = "gs://corpus/text"
FILES = {"a.bin": b"a" * 1000, "sub/b.bin": b"b" * 70_000, "sub/empty": b""}


@pytest.fixture
def bucket(cloud):
    for name, content in FILES.items():
        cloud.put(f"{SOURCE}/{name}", content)
    cloud.put("gs://corpus/other", "of another folder")
    return cloud


def holds(disk):
    return {str(path.relative_to(disk)): path.read_bytes() for path in disk.rglob("*") if path.is_file()}


def test_every_file_is_there_and_its_manifest_agrees(bucket, tmp_path):
    found = fill.fill(str(tmp_path), SOURCE, "")
    on_disk = holds(tmp_path)
    manifest, _ = on_disk.pop("MANIFEST.sha256"), on_disk.pop(".maskwright/done.json")
    assert on_disk == FILES
    assert found == {"files": 3, "bytes": 71_000, "manifest_sha256": hashlib.sha256(manifest).hexdigest()}
    subprocess.run(["sha256sum", "--check", "--quiet", "MANIFEST.sha256"], cwd=tmp_path, check=True)
    before = len(bucket.calls(r"storage\.objects\.get"))
    assert fill.fill(str(tmp_path), SOURCE, "") == found
    assert len(bucket.calls(r"storage\.objects\.get")) == before, "a second time nothing is copied"


def test_what_differs_is_copied_again_and_what_is_too_much_goes(bucket, tmp_path):
    """As a killed copy leaves it: a file of its size with other content, half a file, one of another source."""
    (tmp_path / "a.bin").write_bytes(b"x" * 1000)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.bin").write_bytes(b"b" * 10)
    (tmp_path / "older").write_bytes(b"")
    fill.fill(str(tmp_path), SOURCE, "")
    assert {name: content for name, content in holds(tmp_path).items() if name in (*FILES, "older")} == FILES


def test_a_file_that_stays_wrong_ends_the_filling(bucket, tmp_path, monkeypatch):
    download = Folder.download

    def cut(self, name, to):
        download(self, name, to)
        if name == "a.bin":
            Path(to).write_bytes(b"a" * 999 + b"x")

    monkeypatch.setattr(Folder, "download", cut)
    with pytest.raises(MaskwrightError, match=r"1 files differ from the bucket's, such as a\.bin"):
        fill.fill(str(tmp_path), SOURCE, "")
    assert "MANIFEST.sha256" not in holds(tmp_path) and ".maskwright/done.json" not in holds(tmp_path)


def test_the_script_runs_on_the_copy_and_again_after_a_failure(bucket, tmp_path):
    disk, script = tmp_path / "disk", tmp_path / "prepare.sh"
    disk.mkdir()
    script.write_text(
        '[ -e "$2/tried" ] || { touch "$2/tried"; exit 3; }\ncat "$1"/a.bin "$1"/sub/b.bin >"$2/all"; rm -r "$1"\n'
    )
    with pytest.raises(MaskwrightError, match="the preparation script ended with 3"):
        fill.fill(str(disk), SOURCE, str(script))
    assert fill.fill(str(disk), SOURCE, str(script))["bytes"] == 71_000
    assert set(holds(disk)) == {"all", "tried", "MANIFEST.sha256", ".maskwright/done.json"}
    script.write_text('echo 1 >"$2/all"\n')
    assert fill.fill(str(disk), "", str(script))["bytes"] == 2, "raw data may come from elsewhere"


@pytest.mark.parametrize(("name", "says"), [("text/../../etc/passwd", "is no name of a file"), ("", "has no files")])
def test_refused(cloud, tmp_path, name, says):
    cloud.put(f"gs://corpus/{name or 'x'}", "x")
    with pytest.raises(InputError, match=says):
        fill.fill(str(tmp_path), SOURCE, "")
    assert holds(tmp_path) == {}


def test_the_program_leaves_its_result_for_kubernetes(bucket, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()

    def run(source):
        words = ["maskwright.cloud.provision.fill", str(disk), "--source", source, "--result", str(tmp_path / "log")]
        code = subprocess.run([sys.executable, "-m", *words], check=False, capture_output=True).returncode
        return code, json.loads((tmp_path / "log").read_text())

    assert run(SOURCE)[1]["files"] == 3
    code, result = run("gs://corpus/nothing")
    assert code == 2 and result == {"error": "gs://corpus/nothing: has no files. Fix: check disk.source"}
