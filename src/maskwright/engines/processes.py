"""The processes that train one run together: one on each host, or one alone. Process 0 writes the run directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from maskwright.core.errors import StoppedEarly


class Processes(Protocol):
    @property
    def number(self) -> int:
        """This one's, from 0."""
        ...

    @property
    def count(self) -> int: ...

    def share(self, data: bytes) -> bytes:
        """What process 0 gave, for all; every process calls it, at the same point."""
        ...

    def lost(self, error: Exception) -> bool:
        """Whether that is what the death of another process looks like here."""
        ...

    def close(self) -> None:
        """Waits for the others to come to their end too; not called after a failure."""
        ...


@dataclass(frozen=True)
class Alone:
    number: int = 0
    count: int = 1

    def share(self, data: bytes) -> bytes:
        return data

    def lost(self, error: Exception) -> bool:
        return False

    def close(self) -> None: ...


@contextmanager
def together(processes: Processes) -> Iterator[None]:
    """While all train: the death of another process becomes `StoppedEarly`, since the same command continues."""
    try:
        yield
    except StoppedEarly:
        processes.close()
        raise
    except Exception as error:
        if not processes.lost(error):
            raise
        raise StoppedEarly(
            f"another process of this run is gone ({str(error).splitlines()[0][:200]}); start the same command on all "
            "hosts again, it continues from the last checkpoint"
        ) from None
    processes.close()
