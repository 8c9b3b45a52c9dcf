"""Real text that is already on every user's machine: the documentation strings of installed Python code.

Found with `ast`, so nothing is imported or run. The standard library comes first, then installed packages by name.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import sysconfig
import warnings
from collections.abc import Iterator

from maskwright.core import storage
from maskwright.core.console import progress

SHORTEST_CHARACTERS = 60
LARGEST_SOURCE_BYTES = 2_000_000


def source_files() -> Iterator[str]:
    """Python files of the standard library, then of installed packages, each in sorted order; no tests."""
    paths = sysconfig.get_paths()
    packages = list(dict.fromkeys([paths["purelib"], paths["platlib"]]))
    for root in [paths["stdlib"], *packages]:
        for folder, folders, names in os.walk(root):
            skipped = {"test", "tests", "testing", "idle_test", "__pycache__", "lib2to3"}
            if root == paths["stdlib"]:
                skipped |= {"site-packages", "dist-packages"}
            folders[:] = sorted(name for name in folders if name not in skipped)
            yield from (os.path.join(folder, name) for name in sorted(names) if name.endswith(".py"))


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
    """Writes JSON lines (`text`, `source`, `line`) to `path` until `max_bytes` of text; returns how many documents."""
    size = documents = 0
    seen: set[str] = set()
    with storage.atomic_writer(path) as file, progress("gather", max_bytes, "bytes") as bar:
        for name in source_files():
            for line, text in docstrings(name):
                if text in seen or "\0" in text:
                    continue
                seen.add(text)
                record = json.dumps({"text": text, "source": name, "line": line}, ensure_ascii=False)
                file.write(record.encode("utf-8", "replace") + b"\n")
                size += len(text.encode("utf-8", "replace"))
                documents += 1
                bar.advance(size - bar.done)
                if size >= max_bytes:
                    return documents
    return documents
