"""Documentation strings of installed Python code: real text on every user's machine, with the package as a label.

They are read with `ast`, so nothing is imported or executed: of the standard library, then of packages by name.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

from maskwright.core import storage
from maskwright.core.console import progress
from maskwright.core.errors import InputError
from maskwright.data.prepare.shards import SPLITS
from maskwright.data.store import TokenStore
from maskwright.text.dedup import text_key

SHORTEST_CHARACTERS = 60
LARGEST_SOURCE_BYTES = 2_000_000
FEWEST_HELD_OUT = 5
"""Held-out strings that make a package a label."""


def source_files() -> Iterator[tuple[str, str]]:
    """(top-level package, Python file) of the standard library, then of installed packages, sorted; no tests."""
    paths = sysconfig.get_paths()
    packages = list(dict.fromkeys([paths["purelib"], paths["platlib"]]))
    for root in [paths["stdlib"], *packages]:
        for folder, folders, names in os.walk(root):
            skipped = {"test", "tests", "testing", "idle_test", "__pycache__", "lib2to3"}
            if root == paths["stdlib"]:
                skipped |= {"site-packages", "dist-packages"}
            folders[:] = sorted(name for name in folders if name not in skipped)
            for path in (os.path.join(folder, name) for name in sorted(names) if name.endswith(".py")):
                yield os.path.relpath(path, root).split(os.sep)[0].removesuffix(".py"), path


def docstrings(path: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each documentation string in a file; none when it does not parse."""
    try:
        if os.path.getsize(path) > LARGEST_SOURCE_BYTES:
            return
        with open(path, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd escapes in other people's code
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text and len(cleaned := inspect.cleandoc(text).strip()) >= SHORTEST_CHARACTERS:
                yield getattr(node, "lineno", 1), cleaned


def gather(path: str, *, max_bytes: int) -> int:
    """Writes JSON lines (`text`, `package`, `source`, `line`) to `path` until there are `max_bytes` of text.
    Returns the number of documents."""
    size = documents = 0
    seen: set[str] = set()
    with storage.atomic_writer(path) as file, progress("gather", max_bytes, "bytes") as bar:
        for package, name in source_files():
            for line, text in docstrings(name):
                if text in seen or "\0" in text:
                    continue
                seen.add(text)
                record = {"text": text, "package": package, "source": name, "line": line}
                file.write(json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
                size += len(text.encode("utf-8", "replace"))
                documents += 1
                bar.advance(size - bar.done)
                if size >= max_bytes:
                    return documents
    return documents


def by_package(
    corpus: str, train: str, test: str, store: TokenStore, *, packages: int, most_train: int, most_test: int
) -> dict[str, tuple[int, int]]:
    """Writes labelled examples from the file that `gather` wrote, for the `packages` with the most strings. `test` gets
    documents that its `store` holds out, `train` gets others, chosen by their text alone.

    Texts that differ only in white space are dropped, since pretraining may have read one of them. Returns (train,
    test) examples by package. Raises `InputError` if fewer than two packages have enough."""
    records: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {}
    with open(corpus, encoding="utf-8") as file:
        all_records = [json.loads(line) for line in file]
    side_of_line = {
        int(store.origin(side, number).rpartition(":")[2]): index
        for index, side in enumerate(SPLITS)
        for number in range(store.split(side).documents)
    }
    text_counts = Counter(" ".join(record["text"].split()) for record in all_records)
    for line, record in enumerate(all_records, 1):
        if text_counts[" ".join(record["text"].split())] == 1 and (side := side_of_line.get(line)) is not None:
            records.setdefault(record["package"], ([], []))[side].append(record)
    counts = Counter({name: sum(map(len, sides)) for name, sides in records.items()})
    chosen = [name for name, _ in counts.most_common(packages) if len(records[name][1]) >= FEWEST_HELD_OUT]
    if len(chosen) < 2:
        fix = "install more packages, or leave --verdict out"
        raise InputError("fewer than two packages have enough documentation strings", where=corpus, fix=fix)
    for path, side, limit in ((train, 0, most_train), (test, 1, most_test)):
        with storage.atomic_writer(path) as file:
            for name in chosen:
                ranked = sorted(records[name][side], key=lambda record: text_key(record["text"].encode()))
                file.writelines(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in ranked[:limit])
    return {name: (min(len(records[name][0]), most_train), min(len(records[name][1]), most_test)) for name in chosen}
