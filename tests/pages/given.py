"""What a test puts into the empty directory before it executes a page: in place of the reader's own files, and of what
the page downloads.

The first sentence of each docstring has to stand on the page, so that a reader knows what the outputs were made with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from fairseq_files import write_fairseq
from pages import made_up
from pages.shell import Shell

from maskwright.text.sources import Sources
from maskwright.text.tokenizer import load_tokenizer, train_tokenizer

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


def shard(shell: Shell) -> Iterator[None]:
    """In place of your disk, the test has a small shard in fairseq's format in `shared_pd/shard0`"""
    tokenizer, text = shell.folder / "models" / "roberta-base", shell.root / "notes.txt"
    text.write_text("\n\n".join(made_up.notes(400, 5)) + "\n", encoding="utf-8")
    sources = Sources([str(text)], layout="sentences")
    train_tokenizer(sources, str(tokenizer), vocab_size=600)
    encoder = load_tokenizer(str(tokenizer), special_tokens_are_text=True)
    documents = [
        [np.array(encoder.encode(line, add_special_tokens=False).ids) for line in document.parts]
        for document in sources
    ]
    write_fairseq(shell.folder / "shared_pd" / "shard0", documents, str(tokenizer))
    yield


GIVEN: dict[str, Given] = {function.__name__: function for function in (nothing, notes, shard)}
