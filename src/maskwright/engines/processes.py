"""The processes that train one run together: one on each host or device, or one alone. Rank 0 writes the run
directory."""

from __future__ import annotations

import ipaddress
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from maskwright.core.console import say
from maskwright.core.errors import ConfigError, JobError, MaskwrightError, StoppedEarly, stopped

LONGEST_MESSAGE = 1000
"""Bytes of the message that a rank sends when it fails."""
CONNECT_SECONDS = 300.0
"""How long a rank waits at the start for the others of its run."""
QUIET_SECONDS = 10.0
"""How long it waits before it prints a line, since WORLD_SIZE may be a leftover of another launcher."""


class Processes(Protocol):
    @property
    def rank(self) -> int:
        """This process's rank, from 0."""
        ...

    @property
    def world_size(self) -> int: ...

    def broadcast(self, data: bytes) -> bytes:
        """Returns rank 0's `data` on every rank. All ranks call it at the same point."""
        ...

    def gather(self, data: bytes) -> list[bytes]:
        """Returns the `data` of all ranks, by rank, on every rank: at most `LONGEST_MESSAGE` bytes each. All ranks call
        it at the same point."""
        ...

    def lost(self, error: Exception) -> bool:
        """Whether `error` is the sign of another process's death."""
        ...

    def close(self) -> None:
        """Waits until the other processes have ended too. Not called after a failure."""
        ...


@dataclass(frozen=True)
class Alone:
    rank: int = 0
    world_size: int = 1

    def broadcast(self, data: bytes) -> bytes:
        return data

    def gather(self, data: bytes) -> list[bytes]:
        return [data]

    def lost(self, error: Exception) -> bool:
        return False

    def close(self) -> None: ...


@dataclass(frozen=True)
class Launch:
    """The values of torch's `env://` variables."""

    address: str
    """Host on which rank 0 listens."""
    port: int
    world_size: int
    rank: int
    local_world_size: int
    """Processes on this machine."""
    local_rank: int


def launch_variables() -> Launch | None:
    """Reads torch's `env://`, as every launcher sets it. None if WORLD_SIZE is not set. Raises `ConfigError` if the
    variables do not fit together."""
    if "WORLD_SIZE" not in os.environ:
        return None
    fix = "set MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK in each process, or none of them"
    names = {"WORLD_SIZE": "1", "RANK": "0", "MASTER_PORT": "0", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    try:
        numbers = {name: int(os.environ.get(name, usual)) for name, usual in names.items()}
    except ValueError as error:
        raise ConfigError(str(error), where=", ".join(names), fix=fix) from None
    world_size, rank = numbers["WORLD_SIZE"], numbers["RANK"]
    local_world_size, local_rank = numbers["LOCAL_WORLD_SIZE"], numbers["LOCAL_RANK"]
    lacks = [name for name in ("MASTER_ADDR", "MASTER_PORT", "RANK") if name not in os.environ]
    if world_size > 1 and lacks:
        raise ConfigError(f"WORLD_SIZE is {world_size}, but {lacks[0]} is not set", where=lacks[0], fix=fix)
    if not 0 <= rank < world_size:
        raise ConfigError(f"RANK {rank} is not one of {world_size} processes", where="RANK", fix=fix)
    if not 0 <= local_rank < local_world_size <= world_size:
        what = f"LOCAL_RANK {local_rank} is not one of {local_world_size} of {world_size} processes"
        raise ConfigError(what, where="LOCAL_RANK", fix="leave LOCAL_RANK and LOCAL_WORLD_SIZE to the launcher")
    address = os.environ.get("MASTER_ADDR", "localhost").strip("[]")  # as in [fd00::1]:29400
    return Launch(address, numbers["MASTER_PORT"], world_size, rank, local_world_size, local_rank)


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def find(initialize: Callable[[], object], seconds: float) -> None:
    """Calls `initialize`, which waits for the other processes outside of Python. It runs in a thread of its own, so
    that signals reach the main thread meanwhile.

    Raises `StoppedEarly` when it fails, or has not returned within `seconds`. The deadline is kept here because XLA
    ends the process (SIGABRT) at its own, before Python sees an error.
    """
    failed: list[Exception] = []

    def call() -> None:
        try:
            initialize()
        except (RuntimeError, ValueError, OSError) as error:
            failed.append(error)

    thread, begin = threading.Thread(target=call, name="find processes", daemon=True), time.monotonic()
    told = False
    thread.start()
    while thread.is_alive() and (waited := time.monotonic() - begin) < seconds:
        if waited > QUIET_SECONDS and not told:
            launch = [f"{name} {os.environ[name]}" for name in ("WORLD_SIZE", "MASTER_ADDR") if name in os.environ]
            say(f"waiting up to {seconds:g} s for the other processes: {', '.join(launch) or 'of this TPU slice'}")
            told = True
        thread.join(0.05)
    if failed or thread.is_alive():
        why = str(failed[0]).partition("\n")[0] if failed else f"some were absent after {seconds:g} seconds"
        raise StoppedEarly(
            f"the processes of this run did not find each other: {why}",
            reason="lost",
            where=":".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT")).strip(":") or None,
            fix="start the same command on every host. Each must reach MASTER_ADDR:MASTER_PORT (--rendezvous) and have "
            "its own RANK of WORLD_SIZE. To train alone, a TPU host needs WORLD_SIZE=1",
        )


class Agree(Protocol):
    def __call__(self, *, last: bool = False) -> None: ...


@contextmanager
def starting(processes: Processes) -> Iterator[Agree]:
    """Yields `agree`, which waits until all ranks have made the same call of it. When one rank fails before the last
    call, the others end there with its message instead of waiting for a dead process. If several fail at once, most
    often for one cause, all end with the message of the lowest rank."""
    waited_for = True

    def meet(failure_message: bytes, last: bool) -> None:
        nonlocal waited_for
        failures = processes.gather(failure_message)
        waited_for = not last and not any(failures)
        if not any(failures):
            return
        processes.close()
        rank, first = next((rank, failure) for rank, failure in enumerate(failures) if failure)
        if rank == processes.rank:
            return  # its own error propagates
        code, message = first[0], f"rank {rank}: {first[1:].decode(errors='replace')}"
        kind = stopped(code)
        raise kind(message, reason="agreed") if kind else JobError(message, code)

    try:
        meet(b"", False)  # at once: connecting waits 30 seconds for the other side, messages wait longer
        yield lambda *, last=False: meet(b"", last)
    except Exception as error:
        if processes.lost(error):
            raise partner_gone(error) from None
        if waited_for:
            code = error.exit_code if isinstance(error, MaskwrightError) else 1
            text = str(error) if isinstance(error, MaskwrightError) else f"{type(error).__name__}: {error}"
            try:
                meet((bytes([code]) + text.encode())[:LONGEST_MESSAGE], True)
            except MaskwrightError as of_lower_rank:
                raise of_lower_rank from None
            except Exception:
                pass  # this rank has its own error
        raise


@contextmanager
def together(processes: Processes) -> Iterator[None]:
    """Inside, all ranks train. The death of another process becomes `StoppedEarly`: the same command continues."""
    try:
        yield
    except StoppedEarly:
        processes.close()
        raise
    except Exception as error:
        if not processes.lost(error):
            raise
        raise partner_gone(error) from None
    processes.close()


def partner_gone(error: Exception) -> StoppedEarly:
    return StoppedEarly(
        f"lost another process of this run ({str(error).splitlines()[0][:200]})",
        reason="lost",
        fix="start the same command on all hosts; it continues from the last checkpoint",
    )
