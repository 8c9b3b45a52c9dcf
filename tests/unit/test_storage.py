"""Local files and folders: whole or absent, locked or not, whatever is killed and whatever the file system lacks."""

import errno
import fcntl
import os
import platform
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from maskwright.core import output, storage
from maskwright.core.errors import InputError, MaskwrightError, of_the_system

WRITER = """
import os, sys, time
from maskwright.core import storage
os.getpid = lambda: 7  # as at each start of a container
with storage.replaced_folder(sys.argv[1]) as folder:
    open(os.path.join(folder, "of-the-first"), "w").close()
    print("ready", flush=True)
    time.sleep(60)
"""


def begun(path):
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("is_there", [False, True])
def test_a_folder_holds_nothing_of_a_writer_that_was_killed(tmp_path, is_there):
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


def test_a_folder_that_fails_or_is_filled_meanwhile_is_left_as_it_was(tmp_path):
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


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_said_once_and_nothing_is_deleted_there(tmp_path, monkeypatch, capfd, number):
    def flock(descriptor, how):
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


@pytest.mark.parametrize("make", [storage.atomic_writer, storage.replaced_folder, output.writer])
def test_a_full_disk_names_the_file_and_what_to_do(tmp_path, make):
    path = str(tmp_path / "two  spaces")
    with pytest.raises((OSError, MaskwrightError)) as raised, make(path):
        raise OSError(errno.ENOSPC, "No space left on device")  # as of `write`, without a name
    error = raised.value
    shown = str(of_the_system(error) if isinstance(error, OSError) else error)
    assert shown.startswith(f"{path}: ") and "No space left on device. Fix: free room on its disk" in shown
    assert not [*tmp_path.iterdir()]
    Path(path).write_text("old")
    with pytest.raises(OSError, match="unreachable") as raised, storage.atomic_writer(path) as file:
        file.write(b"ne")
        raise OSError(errno.EHOSTUNREACH, "unreachable")  # of what is written, not of the file
    assert isinstance(raised.value, OSError) and raised.value.filename is None
    assert Path(path).read_text() == "old" and len([*tmp_path.iterdir()]) == 1
    with pytest.raises(OSError, match="No such file") as raised, storage.atomic_writer(str(tmp_path / "no" / "file")):
        raise AssertionError("never begins")
    assert isinstance(raised.value, OSError) and raised.value.filename == str(tmp_path / "no" / "file")


def test_one_process_makes_it_and_the_others_say_for_whom_they_wait(tmp_path, monkeypatch, capfd):
    path, waits = tmp_path / "made", 0
    with ExitStack() as holder:
        holder.enter_context(storage.locked(f"{path}.lock", remove=True))

        def sleep(seconds):
            nonlocal waits
            waits += 1
            if waits == storage.SILENT_WAITS + 2:
                holder.close()

        monkeypatch.setattr("time.sleep", sleep)
        assert storage.made_once(str(path), lambda: None, lambda: 3) == 3
    said = f"{tmp_path}: is in use by process {os.getpid()} on {platform.node()}; waiting for it\n"
    assert capfd.readouterr().err == said
    assert storage.made_once(str(path), lambda: 4, lambda: 3) == 4


def test_a_user_without_a_home_is_at_home_in_the_root(monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME", "MASKWRIGHT_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert storage.cache_folder("rows") == "/.cache/maskwright/rows"


def test_an_error_of_a_full_disk_is_short_whichever_library_raises_it():
    pyarrow = OSError(errno.EFBIG, "Error writing bytes to file. Detail: [errno 27] File too large", "out")
    assert str(of_the_system(pyarrow)) == (
        "out: File too large. Fix: raise the largest size of a file (`ulimit -f`), and start the command again"
    )
    assert str(of_the_system(OSError("no number"))) == "the system: no number"
