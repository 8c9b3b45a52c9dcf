"""What a wheel carries: Terraform's configuration and the prices, but no tests of them."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = "src/maskwright/cloud/terraform"
HERE = "maskwright/cloud/terraform"


def test_wheel_carries_the_configuration_behind_the_link(tmp_path):
    assert (ROOT / LINK).is_symlink() and (ROOT / LINK).readlink() == Path("../../../deploy/terraform")
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    for name in ("src", "deploy"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", ".terraform")
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
    for name in ("one.tf", "tests/four.tftest.hcl", "tests/five.tf"):
        path = copy / "deploy" / "terraform" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("# there\n")
    build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=copy, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        assert archive.read("maskwright/cloud/prices.yaml") == (ROOT / "src/maskwright/cloud/prices.yaml").read_bytes()
    page = {path.name for path in (ROOT / "src/maskwright/monitor/watch/page").iterdir()}
    assert "index.html" in page and {f"maskwright/monitor/watch/page/{name}" for name in page} <= names
    carried = {name.removeprefix(f"{HERE}/") for name in names if name.startswith(f"{HERE}/")}
    assert "one.tf" in carried
    terraform = copy / "deploy" / "terraform"
    assert carried == {file.name for file in terraform.glob("*.tf")}
    assert not [name for name in names if "test" in name.lower()]
