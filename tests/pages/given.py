"""What a test puts into the empty directory before it executes a page: in place of the reader's own files, and of what
the page downloads.

The first sentence of each docstring has to stand on the page, so that a reader knows what the outputs were made with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from pages import made_up
from pages.shell import Shell

Given = Callable[[Shell], Iterator[None]]


def nothing(shell: Shell) -> Iterator[None]:
    """"""
    yield


def notes(shell: Shell) -> Iterator[None]:
    """In place of your text, the test has 1,200 made-up notes about six subjects in `corpus/`."""
    folder = shell.folder / "corpus"
    folder.mkdir()
    for number in range(4):
        Path(folder, f"notes-{number}.txt").write_text("\n\n".join(made_up.notes(300, number)) + "\n", encoding="utf-8")
    yield


GIVEN: dict[str, Given] = {function.__name__: function for function in (nothing, notes)}
