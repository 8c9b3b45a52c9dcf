"""Pages, executed as they are printed. `pytest tests/pages --write` renews the outputs that they show."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pages.given import GIVEN
from pages.markdown import Block, Page, agree, clean, read_page, visible, with_outputs
from pages.shell import Shell, commands

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    page.path.relative_to(ROOT).as_posix(): page
    for page in map(read_page, [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
}
EXECUTED = {name: page for name, page in PAGES.items() if page.given is not None}


def parameters() -> list[object]:
    return [
        pytest.param(page, id=name, marks=[pytest.mark.long] if page.long else []) for name, page in EXECUTED.items()
    ]


@pytest.mark.parametrize("page", parameters())
def test_a_page_ends_as_it_says(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    write = bool(request.config.getoption("--write"))
    # `warm` compares these with what a process asks for.
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    made: dict[tuple[int, int], list[str]] = {}
    wrong: list[str] = []
    with ExitStack() as stack:
        own = stack.enter_context(commands())
        paths = [own, os.path.dirname(sys.executable), os.environ["PATH"]]
        shell = Shell(tmp_path, os.environ | {"PATH": os.pathsep.join(paths), "COLUMNS": "100", "TERM": "dumb"})
        stack.callback(shell.close)
        for name in page.given or []:
            sentence = (GIVEN[name].__doc__ or "").partition("\n")[0]
            assert sentence in visible(page.text), f"the page has to say: {sentence}"
            stack.enter_context(contextmanager(GIVEN[name])(shell))
        for block in page.shell_blocks:
            wrong += execute(block, shell, made)
    if write:
        page.path.write_text(with_outputs(page, made), encoding="utf-8")
    elif wrong:
        pytest.fail("\n\n".join([f"{page.path.relative_to(ROOT)} is not what happens", *wrong]), pytrace=False)


def execute(block: Block, shell: Shell, made: dict[tuple[int, int], list[str]]) -> list[str]:
    """What the page says otherwise than it is. Its outputs are put into `made`."""
    if not block.executed:
        return []
    if block.file:
        path = shell.folder / block.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(block.body) + "\n", encoding="utf-8")
        return []
    code = int(block.settings.get("exit", 0))
    if block.language != "console":
        text = "\n".join(block.body)
        script = text if block.language == "bash" else f"python - <<'END OF BLOCK'\n{text}\nEND OF BLOCK"
        ended, output = shell.run(script, block.seconds, strict=True)
        assert ended == code, f"line {block.line}: ended with {ended}\n{text}\n{output}"
        return []
    wrong, found = [], block.commands()
    for number, (command, shown) in enumerate(found):
        ended, output = shell.run(command, block.seconds)
        expected = code if number == len(found) - 1 else 0
        assert ended == expected, f"line {block.line}: ended with {ended}\n$ {command}\n{output}"
        lines = block.selected(clean(output, str(shell.root)))
        made[block.line, number] = lines
        if not agree(shown, lines):
            wrong.append("\n".join([f"line {block.line}: $ {command}", "--- shown", *shown, "--- made", *lines]))
    return wrong
