"""Saves of a made-up checkpoint, with a fault at each of their file operations: what must then be on the disk."""

import builtins
import errno
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, Self

import numpy as np

from maskwright.core.errors import CheckpointError
from maskwright.engines.base import TrainState
from maskwright.run.directory import step_folder
from maskwright.training import checkpoint

OLD, NEW = 10, 20
FILE_LIMITS = 16


def faults(folder: str) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yields (fault, what meets it and returns what was seen)."""
    yield "kill -9 at each write point of a save", partial(_kills, folder)
    for name, number in (("disk full", errno.ENOSPC), ("input/output error", errno.EIO), ("read-only", errno.EROFS)):
        yield f"{name} at each write point of a save", partial(_errors, folder, number)
    yield "file-size limit at each byte range of a save", partial(_size_limits, folder)
    yield "newest checkpoint damaged, each file in three ways", partial(_damages, folder)


def state(step: int) -> TrainState:
    generator = np.random.default_rng(step)
    arrays = {name: generator.standard_normal((300, 100)).astype(np.float32) for name in ("a", "b.c")}
    return TrainState(step, arrays, {"exp_avg": dict(arrays)})


def _save_new(folder: str) -> None:
    checkpoint.save(folder, state(NEW), {}, keep=1)


def _with_old(folder: str) -> str:
    """A fresh folder that holds the old checkpoint."""
    place = os.path.join(folder, "checkpoints")
    shutil.rmtree(place, ignore_errors=True)
    checkpoint.save(place, state(OLD), {}, keep=1)
    return place


def _require_good(folder: str, *steps: int) -> int:
    """Checks that a run would continue from one of these steps, with every bit as it was saved."""
    loaded = checkpoint.load_newest(folder, set_aside=False)
    assert loaded is not None, "no checkpoint is left"
    found, wanted = loaded[0], state(loaded[0].step)
    assert found.step in steps, f"step {found.step} is newest"
    for name, array in wanted.parameters.items():
        assert found.parameters[name].tobytes() == array.tobytes(), f"{name} of step {found.step} is changed"
    return found.step


def _kills(folder: str) -> str:
    ends = {OLD: 0, NEW: 0}
    for number in count(1):
        place = _with_old(folder)
        if not killed_at(number, partial(_save_new, place)):
            break
        ends[_require_good(place, OLD, NEW)] += 1
        _save_new(place)  # the restart: what the kill has left does not stop it
        _require_good(place, NEW)
        assert os.listdir(place) == [step_folder(NEW)], f"kill {number} left {os.listdir(place)}"
    assert ends[OLD] > 5 and ends[NEW] > 2, f"the kills did not meet a save: {ends}"
    return f"{sum(ends.values())} kills: {ends[OLD]} times the old checkpoint was there, {ends[NEW]} times the new one"


class _FailAt:
    """Raises an error at one file operation. `met` counts the operations."""

    def __init__(self, number: int, at: int) -> None:
        self._number, self._at, self.met = number, at, 0

    def __call__(self, count: int, operation: str, path: str) -> None:
        self.met = count
        if count == self._at and operation in ("open", "write", "mkdir", "fsync", "replace"):
            raise OSError(self._number, os.strerror(self._number), path)


def _errors(folder: str, number: int) -> str:
    failed = 0
    for at in count(1):
        place, fault = _with_old(folder), _FailAt(number, at)
        try:
            with file_faults(fault):
                _save_new(place)
        except CheckpointError as error:
            failed += 1
            assert os.strerror(number) in str(error), str(error)
            _require_good(place, OLD)
            assert os.listdir(place) == [step_folder(OLD)], f"fault {at} left {os.listdir(place)}"
        _save_new(place)
        _require_good(place, NEW)
        if fault.met < at:
            break
    assert failed > 8, f"only {failed} faults were met"
    return f"{failed} faults: each reported, the checkpoint before it intact, nothing half left, the next save good"


def _size_limits(folder: str) -> str:
    before, failed = resource.getrlimit(resource.RLIMIT_FSIZE), 0
    largest = max(array.nbytes for array in state(NEW).parameters.values()) * 2 + 4096
    for part in range(FILE_LIMITS):
        place = _with_old(folder)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest * part // FILE_LIMITS, before[1]))
        try:
            _save_new(place)
        except CheckpointError:
            failed += 1
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        _require_good(place, OLD if failed > part else NEW)
        _save_new(place)
        _require_good(place, NEW)
    assert failed == FILE_LIMITS, f"only {failed} of {FILE_LIMITS} limits were met"
    return f"{failed} limits: each time the old checkpoint was intact, and the next save good"


def _damages(folder: str) -> str:
    met = 0
    for name in (*checkpoint.FILES, checkpoint.MANIFEST):
        for damage in (lambda c: c[: len(c) // 2], lambda c: c[:9] + bytes([c[9] ^ 1]) + c[10:], lambda c: b""):
            place = _with_old(folder)
            checkpoint.save(place, state(NEW), {}, keep=2)
            file = os.path.join(place, step_folder(NEW), name)
            with open(file, "rb") as stream:
                content = stream.read()
            with open(file, "wb") as stream:
                stream.write(damage(content))
            _require_good(place, OLD)
            met += 1
    return f"{met} damages: each named, the checkpoint before used"


# ---- the faults ------------------------------------------------------------------------------------------------------

Hook = Callable[[int, str, str], None]
OPERATIONS = ("mkdir", "replace", "rename", "unlink", "rmdir", "fsync")


@contextmanager
def file_faults(hook: Hook) -> Iterator[None]:
    """Inside, `hook(number, operation, path)` is called before each operation that changes files: opening for writing
    and those of `OPERATIONS`; and in the middle of each write. The operation raises what the hook raises."""
    count = 0

    def note(operation: str, path: object) -> None:
        nonlocal count
        count += 1
        hook(count, operation, str(path))

    def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if not set(mode) & set("wax+"):
            return real_open(file, mode, *arguments, **options)
        note("open", file)
        return _Writing(real_open(file, mode, *arguments, **options), note)

    def noted(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            note(name, arguments[0])
            return real(*arguments, **options)

        return call

    real_open, before = builtins.open, {name: getattr(os, name) for name in OPERATIONS}
    calls = {name: noted(name) for name in OPERATIONS}
    builtins.open = opened
    for name, call in calls.items():
        setattr(os, name, call)
    try:
        yield
    finally:
        builtins.open = real_open
        for name, real in before.items():
            setattr(os, name, real)


class _Writing:
    """A file opened for writing. The hook is called when half of a write is done."""

    def __init__(self, file: Any, note: Callable[[str, object], None]) -> None:
        self._file, self._note = file, note

    def write(self, content: Any) -> int:
        half = len(content) // 2
        self._file.write(content[:half])
        self._file.flush()
        self._note("write", self._file.name)
        self._file.write(content[half:])
        return len(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def killed_at(number: int, action: Callable[[], None]) -> bool:
    """Runs `action` in a child that is killed with SIGKILL before its file operation `number`, or in the middle of it
    if it is a write. Returns whether it was killed; otherwise it was done before."""
    child = os.fork()
    if child == 0:
        with file_faults(lambda count, operation, path: _die() if count == number else None):
            action()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    if os.WEXITSTATUS(status):
        raise RuntimeError(f"the child ended with {os.WEXITSTATUS(status)}")
    return False


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
