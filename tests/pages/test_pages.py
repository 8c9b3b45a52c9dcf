"""Pages, executed as they are printed. `pytest tests/pages --write` renews the outputs that they show."""

import os
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import warm
from pages.given import GIVEN
from pages.markdown import read_page, with_outputs
from pages.shell import Shell, commands
from pages.test_links import pages
from pages.walk import alone, walk

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
FIRST = ("own-text.md", "finetuning.md")
"""Pages that others go on from."""
PAGES = [read_page(ROOT / "docs" / name) for name in FIRST]
PAGES += [read_page(path) for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in FIRST]
PAGES.append(read_page(README))
LOADED = {"search.md": "datasets,sentence_transformers.sentence_transformer.losses"}
"""Modules that a page's commands load again and again: sentence-transformers takes 7 CPU-seconds."""
EXECUTED = [
    pytest.param(page, id=page.path.name, marks=[pytest.mark.long] if page.long else [])
    for page in PAGES
    if page.given is not None
]


@pytest.mark.parametrize("page", EXECUTED)
def test_a_page_ends_as_it_says(page, tmp_path, monkeypatch, request, tmp_path_factory):
    base = tmp_path_factory.getbasetemp()
    walks = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "walks"
    walks.mkdir(exist_ok=True)
    # `warm` compares these with what a process asks for.
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    monkeypatch.setenv(warm.MORE, LOADED.get(page.path.name, ""))
    made = {}
    with ExitStack() as stack:
        paths = [stack.enter_context(commands()), os.path.dirname(sys.executable), os.environ["PATH"]]
        shell = Shell(tmp_path, os.environ | {"PATH": os.pathsep.join(paths)}, walks)
        stack.callback(shell.close)
        command = [sys.executable, "-m", "maskwright"]
        assert warm.ours(command, sys.executable, False, shell.environment), "each command would load torch anew"
        for name in page.given or []:
            stack.enter_context(contextmanager(GIVEN[name])(shell))
        with alone(page.path.name, shell):
            wrong = walk(page, shell, made)
    if request.config.getoption("--write"):
        page.path.write_text(with_outputs(page, made), encoding="utf-8")
    elif wrong:
        pytest.fail("\n\n".join([f"{page.path.name} is not what happens", *wrong]), pytrace=False)


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_is_not_executed_has_its_reason(path):
    page = read_page(path)
    silent = [block.line for block in page.shell_blocks if block.executed and page.given is None]
    assert silent == [], "neither executed nor with a reason above"
