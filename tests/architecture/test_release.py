"""What a forge, a package index and a reader who cites it are told: one version, files that GitHub reads, and archives
whose bytes follow from the commit."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import maskwright

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = [path for path in sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")) if path.name != "config.yml"]


def test_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## (\S+)(?: \((\d{4}-\d\d-\d\d)\))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None and project["version"] == cited["version"] == maskwright.__version__
    assert newest[1] == "Unreleased" or (newest[1], newest[2]) == (cited["version"], str(cited["date-released"]))
    assert cited["license"] == project["license"]


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", WORKFLOWS),
        ("vendor.github-issue-forms", FORMS),
        ("vendor.github-issue-config", [GITHUB / "ISSUE_TEMPLATE" / "config.yml"]),
        ("vendor.dependabot", [GITHUB / "dependabot.yml"]),
        ("vendor.citation-file-format", [ROOT / "CITATION.cff"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_github_can_read_it(schema, files):
    assert files
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)]
    judged = subprocess.run(command, capture_output=True, text=True, check=False)
    assert judged.returncode == 0, judged.stdout + judged.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_take_fixed_actions_few_rights_and_our_scripts(path):
    text = path.read_text()
    used = re.findall(r"uses: (\S+)(.*)", text)
    for action, comment in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), f"{action}: a tag can be moved, a commit cannot"
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), f"{action}: the version beside it"
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert str(job["runs-on"]).startswith("ubuntu-"), f"{name}: a public runner"
        assert job["timeout-minutes"] <= 120
    for script in re.findall(r"\bscripts/[\w-]+", text):
        assert os.access(ROOT / script, os.X_OK), script


def test_the_text_of_a_release_has_no_dead_links(tmp_path):
    """The links of the changelog's section lead to the files of the tag, and each file of the release is attested."""
    jobs = yaml.safe_load((GITHUB / "workflows" / "release.yml").read_text())["jobs"]
    steps = {step.get("name"): step for job in jobs.values() for step in job["steps"]}
    text = (ROOT / "CHANGELOG.md").read_text()
    (tmp_path / "CHANGELOG.md").write_text(
        re.sub(r"^## .*$", "## 0.2.0 (2026-11-24)", text, count=1, flags=re.MULTILINE)
    )
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "a.whl").touch()
    tag = "v0.2.0"
    given = {"GITHUB_SERVER_URL": "https://forge", "GITHUB_REPOSITORY": "o/n", "GITHUB_REF_NAME": tag}
    command = ["bash", "-eo", "pipefail", "-c", steps["What the changelog says of it"]["run"]]
    subprocess.run(command, cwd=tmp_path, env=os.environ | given, check=True)
    links = re.findall(r"\]\(([^()]*)\)", (tmp_path / "notes.md").read_text())
    files = [link.removeprefix(f"https://forge/o/n/blob/{tag}/").partition("#")[0] for link in links]
    assert len(files) >= 3 and [file for file in files if not (ROOT / file).is_file()] == []
    assert {path.name for path in (tmp_path / "dist").iterdir()} == {"SHA256SUMS", "a.whl"}
    assert steps["Attest where the files come from"]["with"]["subject-path"] == "dist/*"


def test_the_pythons_that_are_tested_are_those_that_are_allowed():
    allowed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    matrix = yaml.safe_load((GITHUB / "workflows" / "check.yml").read_text())["jobs"]["test"]["strategy"]["matrix"]
    assert f">={matrix['python'][0]}" == allowed


@pytest.mark.long
def test_a_commit_is_always_the_same_wheel_and_sdist(tmp_path):
    """In two folders, with other modes and times of the files. Builds what is committed."""
    built = []
    for name, mask in (("one", 0o022), ("two", 0o077)):
        environment = os.environ | {"BUILD_PYTHON": sys.executable, "TZ": f"UTC{len(built)}"}
        command = f"umask {mask:03o} && git clone --quiet '{ROOT}' {name} && {name}/scripts/wheel"
        done = subprocess.run(["bash", "-euc", command], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        built.append({path.name: path.read_bytes() for path in (tmp_path / name / "dist").iterdir()})
    assert sorted(path.partition("-")[2] for path in built[0]) == [
        f"{maskwright.__version__}-py3-none-any.whl",
        f"{maskwright.__version__}.tar.gz",
    ]
    assert built[0] == built[1]
