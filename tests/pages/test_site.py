"""The documentation site without its builder: every page is in the navigation once, made pages are what makes them, and
the headings of troubleshooting are words that maskwright says. `scripts/docs` builds the site strictly."""

import ast
import errno
import os
import re
import runpy
from pathlib import Path

import pytest
import reference_pages
import yaml
from pages.test_links import LINK, ROOT, anchors

STAGE = runpy.run_path(str(ROOT / "docs" / "site" / "stage.py"))
SOURCES = STAGE["sources"]


class Settings(yaml.SafeLoader):
    """mkdocs.yml names a function of Python, which is not needed here."""


Settings.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def settings():
    found = yaml.load((ROOT / "mkdocs.yml").read_text(), Settings)  # noqa: S506 - a SafeLoader
    return found


def leaves(nav):
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for below in nav.values():
            yield from leaves(below)
    elif isinstance(nav, list):
        for below in nav:
            yield from leaves(below)


def test_every_page_is_in_the_navigation_once():
    site = settings()
    assert sorted(leaves(site["nav"])) == sorted(SOURCES().values())


def test_pages_of_the_site_have_the_notebook_to_download(tmp_path, monkeypatch):
    """Also where no repository is known, to which other files' links lead."""
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    STAGE["stage"](tmp_path / "site")
    name = "notebooks/from-text-to-model.ipynb"
    assert (tmp_path / "site" / name).read_bytes() == (ROOT / "docs" / name).read_bytes()
    for page in ("python.md", "index.md"):
        assert f"]({name}){{ download }}" in (tmp_path / "site" / page).read_text(encoding="utf-8")


def test_the_list_for_programs_has_every_page_of_the_site_once(tmp_path):
    STAGE["stage"](tmp_path / "docs")
    links = LINK.findall((tmp_path / "docs" / "llms.txt").read_text(encoding="utf-8"))
    assert settings()["use_directory_urls"] is False
    assert sorted(links) == sorted(name.removesuffix(".md") + ".html" for name in SOURCES().values())


def test_old_addresses_lead_to_pages_and_headings(tmp_path):
    moved = STAGE["moved"]()
    assert moved and list(moved) == sorted(moved), "the lines of docs/site/moved.toml are sorted"
    sources = {name: path for path, name in SOURCES().items()}
    STAGE["stage"](tmp_path / "docs")
    for old, new in moved.items():
        name, _, heading = new.partition("#")
        assert old not in sources and name in sources, f"{old}: {new} is no page, or the old page is still there"
        assert not heading or heading in anchors(sources[name]), f"{old}: no heading {new}"
        page = (tmp_path / "docs" / old).with_suffix(".html").read_text(encoding="utf-8")
        address = new.replace(".md", ".html")
        assert f'content="0; url={address}"' in page and f'<a href="{address}">' in page


def test_a_page_of_an_untried_place_begins_with_a_warning():
    """The places that the support matrix has as never run for real."""
    matrix = (ROOT / "docs" / "where-to-run.md").read_text(encoding="utf-8").partition("## Support matrix")[2]
    untried = re.findall(r"^\| \[.*?\]\(([\w-]+\.md).*\| \*\*no\*\* \|$", matrix, re.MULTILINE)
    assert len(untried) > 5
    heads = {name: (ROOT / "docs" / name).read_text(encoding="utf-8").partition("\n## ")[0] for name in untried}
    assert [name for name, head in heads.items() if "\n**Not yet run on " not in head] == []


def test_the_site_loads_nothing_from_elsewhere():
    site = settings()
    assert site["theme"]["font"] is False and site["plugins"] == ["search", "offline"]
    assert not {"extra_javascript", "hooks"} & set(site)
    (script,) = site["extra"]["polyfills"]  # `offline` adds none of its own beside one of this name
    assert Path(script).name == "iframe-worker.js" and (ROOT / "docs" / script).is_file()


@pytest.mark.parametrize("name", reference_pages.MADE)
def test_reference_pages_are_what_the_source_says(name):
    """`python tests/reference_pages.py` renews them, with tests/ on the path."""
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == reference_pages.MADE[name]()


def said():
    """Every text of the source, with … where a value is put in."""
    found = []
    for path in sorted((ROOT / "src" / "maskwright").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def test_troubleshooting_has_the_words_that_are_said():
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = [
        line for heading in re.findall(r"^### (.*`.*)$", page, re.MULTILINE) for line in re.findall("`(.+?)`", heading)
    ]
    words = "\n".join([said(), *map(os.strerror, errno.errorcode)])  # the system says some of them
    pieces = {piece.strip() for line in quoted for piece in line.split("…") if len(piece.strip()) > 3}
    assert len(quoted) > 20
    assert sorted(piece for piece in pieces if piece not in words) == []
