"""The processes that train one run together: one on each host, or one alone. Process 0 writes the run directory."""

from __future__ import annotations

import ipaddress
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from maskwright.core.errors import ConfigError, JobError, MaskwrightError, StoppedEarly

LONGEST_MESSAGE = 1000
"""Bytes of what a process says when it fails."""
CONNECT_SECONDS = 300.0
"""How long a process waits for the others of its run at the start."""


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

    def gather(self, data: bytes) -> list[bytes]:
        """What each process gave, at most `LONGEST_MESSAGE` bytes, for all; every process calls it, at the same
        point."""
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

    def gather(self, data: bytes) -> list[bytes]:
        return [data]

    def lost(self, error: Exception) -> bool:
        return False

    def close(self) -> None: ...


@dataclass(frozen=True)
class Launch:
    """What `env://` says: where process 0 listens, how many there are and which one this is; `local_…`: on this
    machine."""

    address: str
    port: int
    count: int
    number: int
    local_count: int
    local_number: int


def launch_variables() -> Launch | None:
    """torch's `env://`, as every launcher sets it. None where WORLD_SIZE is not set. Raises `ConfigError` for what is
    no launch."""
    if "WORLD_SIZE" not in os.environ:
        return None
    fix = "set MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK in each process, or none of them"
    names = {"WORLD_SIZE": "1", "RANK": "0", "MASTER_PORT": "0", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    try:
        found = {name: int(os.environ.get(name, usual)) for name, usual in names.items()}
    except ValueError as error:
        raise ConfigError(str(error), where=", ".join(names), fix=fix) from None
    count, number = found["WORLD_SIZE"], found["RANK"]
    local = found["LOCAL_WORLD_SIZE"], found["LOCAL_RANK"]
    lacks = [name for name in ("MASTER_ADDR", "MASTER_PORT", "RANK") if name not in os.environ]
    if count > 1 and lacks:
        raise ConfigError(f"WORLD_SIZE is {count}, but {lacks[0]} is not set", where=lacks[0], fix=fix)
    if not 0 <= number < count:
        raise ConfigError(f"RANK {number} is not one of {count} processes", where="RANK", fix=fix)
    if not 0 <= local[1] < local[0] <= count:
        what = f"LOCAL_RANK {local[1]} is not one of {local[0]} of {count} processes"
        raise ConfigError(what, where="LOCAL_RANK", fix="leave LOCAL_RANK and LOCAL_WORLD_SIZE to the launcher")
    return Launch(os.environ.get("MASTER_ADDR", "localhost"), found["MASTER_PORT"], count, number, *local)


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def find(initialize: Callable[[], object], seconds: float) -> None:
    """Calls `initialize`, which waits for the other processes outside of Python. It runs in a thread of its own, so
    that signals reach the main one meanwhile.

    Raises `StoppedEarly` when it fails, or has not returned within `seconds`. The deadline is kept here because XLA
    ends the process (SIGABRT) at its own, before Python sees an error.
    """
    failed: list[Exception] = []

    def call() -> None:
        try:
            initialize()
        except (RuntimeError, ValueError, OSError) as error:
            failed.append(error)

    thread, end = threading.Thread(target=call, name="find processes", daemon=True), time.monotonic() + seconds
    thread.start()
    while thread.is_alive() and time.monotonic() < end:
        thread.join(0.05)
    if failed or thread.is_alive():
        why = str(failed[0]).partition("\n")[0] if failed else f"not all were there after {seconds:g} seconds"
        raise StoppedEarly(
            f"the processes of this run did not find each other: {why}",
            reason="lost",
            where=":".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT")).strip(":") or None,
            fix="start the same command on every host. Each must reach MASTER_ADDR:MASTER_PORT (--rendezvous) and have "
            "its own RANK of WORLD_SIZE. A TPU host that is to train alone needs WORLD_SIZE=1",
        )


class Agree(Protocol):
    def __call__(self, *, last: bool = False) -> None: ...


@contextmanager
def starting(processes: Processes) -> Iterator[Agree]:
    """Gives `agree`, which waits until all processes have come to the same call of it. What fails in one before the
    last call ends the others there, in its words: without it they would wait for one that is gone."""
    waited_for = True

    def meet(said: bytes, last: bool) -> None:
        nonlocal waited_for
        found = processes.gather(said)
        waited_for = not last and not any(found)
        if not any(found):
            return
        processes.close()
        number, first = next((number, failure) for number, failure in enumerate(found) if failure)
        code, message = first[0], f"process {number}: {first[1:].decode(errors='replace')}"
        raise StoppedEarly(message, reason="agreed") if code == StoppedEarly.exit_code else JobError(message, code)

    try:
        meet(b"", False)  # at once: a connection waits 30 seconds for the other side, what goes over it longer
        yield lambda *, last=False: meet(b"", last)
    except Exception as error:
        if processes.lost(error):
            raise _gone(error) from None
        if waited_for:
            code = error.exit_code if isinstance(error, MaskwrightError) else 1
            text = str(error) if isinstance(error, MaskwrightError) else f"{type(error).__name__}: {error}"
            with suppress(Exception):  # of what the others say to it; this one has its own error
                meet((bytes([code]) + text.encode())[:LONGEST_MESSAGE], True)
        raise


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
        raise _gone(error) from None
    processes.close()


def _gone(error: Exception) -> StoppedEarly:
    return StoppedEarly(
        f"another process of this run is gone ({str(error).splitlines()[0][:200]}); start the same command on all "
        "hosts again, it continues from the last checkpoint",
        reason="lost",
    )
