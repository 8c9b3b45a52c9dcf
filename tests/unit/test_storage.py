"""Local files and folders: whole or absent, locked or not, whatever is killed and whatever the file system lacks."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from maskwright.core import storage
from maskwright.core.errors import InputError

WRITER = """
import os, sys, time
from maskwright.core import storage
os.getpid = lambda: 7  # as at each start of a container
with storage.replaced_folder(sys.argv[1]) as folder:
    open(os.path.join(folder, "of-the-first"), "w").close()
    print("ready", flush=True)
    time.sleep(60)
"""


def begun(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("is_there", [False, True])
def test_a_folder_holds_nothing_of_a_writer_that_was_killed(tmp_path: Path, is_there: bool) -> None:
    path = tmp_path / "ou[t"
    if is_there:
        path.mkdir()
    killed, living = begun(path), begun(path)
    try:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        with storage.replaced_folder(str(path)) as folder:
            for name in ("manifest.json", "a", "sub/b"):
                (Path(folder) / name).parent.mkdir(exist_ok=True)
                (Path(folder) / name).write_text("second")
            unfinished = [found for found in tmp_path.rglob("*") if storage.is_temporary(found.name)]
            assert len(unfinished) == 2, "the living one's and this one's"
    finally:
        living.kill()
        living.communicate()
        killed.communicate()
    left = {found.name for found in path.iterdir() if not storage.is_temporary(found.name)}
    assert left == {"manifest.json", "a", "sub"}
    with pytest.raises(InputError, match="is not empty"), storage.replaced_folder(str(path)):
        raise AssertionError("never begins")


def test_a_folder_that_fails_or_is_filled_meanwhile_is_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with pytest.raises(ZeroDivisionError), storage.replaced_folder(str(path)) as folder:
        (Path(folder) / "half").touch()
        _ = 1 // 0
    assert not [*tmp_path.iterdir()]
    with pytest.raises(InputError, match="is not empty"), storage.replaced_folder(str(path)):
        path.mkdir()
        (path / "theirs").touch()
    assert [found.name for found in tmp_path.rglob("*")] == ["out", "theirs"]
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(InputError, match="already exists"):
        storage.require_empty(str(path))


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_said_once_and_nothing_is_deleted_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], number: int
) -> None:
    def flock(descriptor: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    storage._warn_without_locks.cache_clear()
    living = tmp_path / "out.tmp-12"
    living.mkdir()
    with storage.replaced_folder(str(tmp_path / "out")), storage.locked(str(tmp_path / "lock"), remove=True) as held:
        assert not held
    assert living.exists() and (tmp_path / "out").exists()
    assert capfd.readouterr().err.count("has no locks") == 1
    monkeypatch.undo()
    with storage.replaced_folder(str(tmp_path / "other")), storage.locked(str(tmp_path / "lock"), remove=True) as held:
        assert held
