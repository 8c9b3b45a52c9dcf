"""A runner that makes the least of its work: the last part first, each as if another machine computed it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any


def sent(value: Any) -> Any:
    """As another process gets it."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - its own bytes


class Backwards:
    """Computes the last part first, each as if it were on another machine. `most`: then it is killed."""

    def __init__(self, most: int = 1_000) -> None:
        self.most, self.computed, self.seen = most, 0, list[str]()

    processes = None

    def require_seen(self, folder: str, files: Sequence[str]) -> None:
        self.seen += files

    def run(
        self, work: Callable[[Any], Any], parts: Sequence[Any], title: str, sizes: Sequence[int]
    ) -> Generator[tuple[int, Any]]:
        for number in reversed(range(len(parts))):
            if self.computed == self.most:
                raise KeyboardInterrupt
            there, part = sent((work, parts[number]))
            self.computed += 1
            yield number, sent(there(part))


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
