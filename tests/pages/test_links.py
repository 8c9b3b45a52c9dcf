"""Each link of a page leads to a file and a heading that are there, each test that it names exists, and each page can
be reached from the index."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INDEX = ROOT / "docs" / "index.md"
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
LINK = re.compile(r"\[[^][]*\]\(([^()\s]+)\)")


def pages() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False)
    found = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in found or [ROOT / "README.md", *(ROOT / "docs").glob("*.md")] if path.exists()]


def prose(path: Path) -> str:
    """Without blocks of code, whose brackets are no links and whose `#` are no headings."""
    return re.sub(r"^ *```.*?^ *```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def links(path: Path) -> list[tuple[Path, str]]:
    """(file, anchor) of the links to files of the repository."""
    found = []
    for target in LINK.findall(re.sub(r"`[^`\n]*`", "", prose(path))):
        if "://" not in target and not target.startswith("mailto:"):
            file, _, anchor = target.partition("#")
            found.append(((path.parent / file).resolve() if file else path, anchor))
    return found


def anchors(path: Path) -> set[str]:
    """As forges make them of headings: lower case, hyphens for spaces, a number for each repetition."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *$", prose(path), re.MULTILINE):
        text = re.sub(r"\[([^][]*)\]\([^()]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number = 0
        while (name := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(name)
    return found


def test_the_list_for_programs_is_that_of_the_index() -> None:
    """`scripts/llms` renews it."""
    made = subprocess.run(
        [sys.executable, ROOT / "scripts" / "llms", "--print"], capture_output=True, text=True, check=True
    )
    assert (ROOT / "llms.txt").read_text(encoding="utf-8") == made.stdout
    entries = [line for line in made.stdout.splitlines() if line.startswith("- ")]
    assert len(entries) > 50
    assert [entry for entry in entries if re.fullmatch(r"- \[[^][]+\]\(\S+\): .*[\w`)]", entry) is None] == []


def test_a_page_of_which_the_index_says_nothing_is_not_listed(tmp_path: Path) -> None:
    """Its first sentence may be out of context ("Run this on a login node:")."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "scripts" / "llms", tmp_path / "scripts")
    (tmp_path / "README.md").write_text("# It\n\nIt trains.\n")
    (tmp_path / "docs" / "one.md").write_text("# One\n\nRun this on a login node:\n")
    for said, told in ((": for notebooks; ", "- [One](docs/one.md): for notebooks\n"), (" ▸, and more.", "")):
        (tmp_path / "docs" / "index.md").write_text(f"**Look.** [One](one.md){said}\n")
        made = subprocess.run(
            [sys.executable, tmp_path / "scripts" / "llms", "--print"], capture_output=True, text=True, check=False
        )
        assert made.stdout.endswith(told) and bool(made.stderr) == bool(made.returncode) == (not told), made
    assert made.stderr.startswith("docs/index.md: nothing is said of docs/one.md. Fix: ")


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    for file, anchor in links(path):
        assert file.exists(), f"{path.name}: no {file}"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{path.name}: {file.name} has no heading #{anchor}"


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_tests_that_are_named_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.search(r"^(<{7} |>{7} |={7}$)", text, re.MULTILINE) is None, f"{path.name} has the markers of a merge"
    for file, name in TEST.findall(text):
        assert (ROOT / file).is_file(), f"{path.name}: no {file}"
        found = re.search(rf"^def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
        assert not name or found, f"{path.name}: {file} has no {name}"


def test_every_page_can_be_reached_from_the_index() -> None:
    """From the index itself by one link, and from README by the index."""
    listed = {file for file, _ in links(INDEX)}
    assert [path.name for path in pages() if path.parent == INDEX.parent and path != INDEX and path not in listed] == []
    assert INDEX in {file for file, _ in links(ROOT / "README.md")}
