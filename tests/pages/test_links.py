"""Each link of a page leads to a file and a heading that are there, and each test that it names exists."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
LINK = re.compile(r"\[[^][]*\]\(([^()\s]+)\)")


def pages():
    listed = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False)
    found = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in found or [ROOT / "README.md", *(ROOT / "docs").glob("*.md")] if path.exists()]


def prose(path):
    """Without blocks of code, whose brackets are no links and whose `#` are no headings."""
    return re.sub(r"^ *```.*?^ *```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def links(path):
    """(file, anchor) of the links to files of the repository."""
    found = []
    for target in LINK.findall(re.sub(r"`[^`\n]*`", "", prose(path))):
        if "://" not in target and not target.startswith("mailto:"):
            file, _, anchor = target.partition("#")
            found.append(((path.parent / file).resolve() if file else path, anchor))
    return found


def anchors(path):
    """As forges make them of headings: lower case, hyphens for spaces, a number for each repetition."""
    found = set()
    for heading in re.findall(r"^#+ +(.+?) *$", prose(path), re.MULTILINE):
        text = re.sub(r"\[([^][]*)\]\([^()]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number = 0
        while (name := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(name)
    return found


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path):
    for file, anchor in links(path):
        assert file.exists(), f"{path.name}: no {file}"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{path.name}: {file.name} has no heading #{anchor}"


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_tests_that_are_named_exist(path):
    text = path.read_text(encoding="utf-8")
    assert re.search(r"^(<{7} |>{7} |={7}$)", text, re.MULTILINE) is None, f"{path.name} has the markers of a merge"
    for file, name in TEST.findall(text):
        assert (ROOT / file).is_file(), f"{path.name}: no {file}"
        found = re.search(rf"^def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
        assert not name or found, f"{path.name}: {file} has no {name}"
