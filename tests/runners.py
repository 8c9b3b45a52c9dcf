"""A runner that makes the least of its work: the last part first, each as if another machine computed it."""

import pickle
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

from maskwright.core.console import Progress
from maskwright.processes.runner import Runner


def sent(value: Any) -> Any:
    """As another process gets it."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - its own bytes


class Backwards(Runner):
    """Computes the last part first, each as if it were on another machine. `most`: then it is killed."""

    def __init__(self, most: int = 1_000) -> None:
        super().__init__()
        self.most, self.computed = most, 0

    def run(
        self,
        work: Callable[[Any], Any],
        parts: Iterable[tuple[int, Any] | None],
        sizes: Mapping[int, int],
        bar: Progress,
    ) -> Generator[tuple[int, Any]]:
        for number, part in reversed([item for item in parts if item]):
            if self.computed == self.most:
                raise KeyboardInterrupt
            there, part = sent((work, part))
            self.computed += 1
            yield number, sent(there(part))


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
