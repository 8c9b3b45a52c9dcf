"""One writer of a folder, on one machine and across several."""

import errno
import fcntl
import json
import multiprocessing
import os
import shutil
import signal
from unittest.mock import Mock

import numpy as np
import pytest

from maskwright.config.pretraining import CheckpointSection
from maskwright.core import lease, storage
from maskwright.core.errors import CheckpointError, InputError, Locked
from maskwright.core.folder import Folder
from maskwright.core.lease import leased
from maskwright.core.pids import pid_started, this_machine, this_pid_space
from maskwright.engines.base import TrainState
from maskwright.run.directory import RunDirectory
from maskwright.training.saver import Saver


def elsewhere(folder, beat, space="another", pid=3, started=1):
    """As a process on another machine, or in another container of this one, would have written it."""
    record = {"token": "x", "beat": beat, "pid_space": space, "host": "node-7", "pid": pid, "pid_started": started}
    (folder / "lease.json").write_text(json.dumps(record))


@pytest.mark.parametrize("space", ["another", f"{this_machine()} pid:[7]"])
def test_a_lease_that_beats_elsewhere_is_respected(tmp_path, space):
    """Also in another container of this machine: two mounts of a bucket do not share the lock."""
    beats = iter(range(100))
    elsewhere(tmp_path, next(beats), space)
    with (
        pytest.raises(InputError, match="in use by process 3 on node-7"),
        leased(str(tmp_path), sleep=lambda seconds: elsewhere(tmp_path, next(beats), space)),
    ):
        pass
    assert json.loads((tmp_path / "lease.json").read_text())["pid_space"] == space


@pytest.mark.parametrize(
    ("pid", "started"), [(2**22 + 1, 1), (os.getpid(), pid_started(os.getpid()) - 1)], ids=["gone", "another"]
)
def test_a_holder_of_this_pid_space_is_dead_once_its_process_is_gone(tmp_path, pid, started):
    """Also where another process has got its pid."""
    elsewhere(tmp_path, 5, this_pid_space(), pid, started)
    with leased(str(tmp_path), sleep=lambda seconds: pytest.fail("waits for a dead process")):
        pass


def test_the_release_leaves_the_lease_of_another_alone(tmp_path):
    """It may have been taken over since the last beat."""
    with leased(str(tmp_path)):
        elsewhere(tmp_path, 5)
    assert json.loads((tmp_path / "lease.json").read_text())["token"] == "x"


def test_a_lease_that_stands_still_is_taken_over_aloud(tmp_path, capfd):
    elsewhere(tmp_path, 5)
    waited = []
    with leased(str(tmp_path), sleep=waited.append):
        assert json.loads((tmp_path / "lease.json").read_text())["pid"] == os.getpid()
    assert sum(waited) == lease.WATCH_SECONDS
    assert "node-7 gives no sign of life, so this process takes over" in capfd.readouterr().err
    assert not (tmp_path / "lease.json").exists()


@pytest.mark.parametrize("links", [True, False])
def test_of_two_machines_that_find_no_lease_one_gets_it(tmp_path, monkeypatch, links):
    """The other one comes in the last moment, when this one has seen that there is none."""
    if not links:
        monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError(errno.EPERM, "Operation not permitted")))
    real, beats = Folder.create, iter(range(100))

    def create(folder, name, content):
        elsewhere(tmp_path, next(beats))
        return real(folder, name, content)

    with monkeypatch.context() as patch, pytest.raises(Locked, match="in use by process 3 on node-7"):
        patch.setattr(Folder, "create", create)
        with leased(str(tmp_path), sleep=lambda seconds: elsewhere(tmp_path, next(beats))):
            pass
    assert json.loads((tmp_path / "lease.json").read_text())["pid_space"] == "another"
    (tmp_path / "lease.json").unlink()
    with leased(str(tmp_path)):
        assert json.loads((tmp_path / "lease.json").read_text())["pid"] == os.getpid()
    assert os.listdir(tmp_path) == ["lock"]


@pytest.mark.parametrize("last", [0, 20])
def test_a_holder_that_leaves_is_not_waited_for(tmp_path, last):
    """Also one that an engine has given up, and that still saves (`last` beats) when the run starts elsewhere."""
    beats = iter(range(100))
    elsewhere(tmp_path, next(beats))

    def sleep(seconds):
        if (beat := next(beats)) > last:
            (tmp_path / "lease.json").unlink()
        else:
            elsewhere(tmp_path, beat)

    with leased(str(tmp_path), sleep=sleep):
        pass


def hold(folder, ready):
    with leased(folder):
        ready.send(True)
        signal.pause()


def test_on_one_machine_a_second_is_refused_and_a_killed_one_leaves_nothing_to_wait_for(tmp_path):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=hold, args=(str(tmp_path), theirs))
    process.start()
    assert ours.poll(60.0) and ours.recv()
    with pytest.raises(InputError, match=f"in use by process {process.pid}"), leased(str(tmp_path)):
        pass
    process.kill()
    process.join()
    waited = []
    with leased(str(tmp_path), sleep=waited.append):
        pass
    assert waited == []


def test_who_lost_the_lease_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.01)
    with leased(str(tmp_path)) as held:
        held.require()
        for beat in range(500):  # a single one may fall between the holder's reading and its writing
            elsewhere(tmp_path, beat)
            held._thread.join(timeout=0.02)
            if held.lost:
                break
        with pytest.raises(InputError, match="taken over by another process"):
            held.require()
        saver = Saver(RunDirectory(str(tmp_path)), CheckpointSection(), None, held)
        saver.begin(TrainState(3, {"a": np.ones(4, np.float32)}), {}, None)
        with pytest.raises(InputError, match="taken over by another process"):
            saver.finish()
        assert not saver.saved and not (tmp_path / "checkpoints").exists()
    assert (tmp_path / "lease.json").exists()  # it is not ours to remove


def test_a_run_whose_folder_is_deleted_saves_nothing_there(tmp_path):
    with leased(str(tmp_path / "run")) as held:
        shutil.rmtree(tmp_path / "run")
        saver = Saver(RunDirectory(str(tmp_path / "run")), CheckpointSection(), None, held)
        saver.begin(TrainState(3, {"a": np.ones(4, np.float32)}), {}, None)
        with pytest.raises(CheckpointError, match="was deleted while its run was training"):
            saver.finish()
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_lock_is_of_the_file_that_others_would_lock(tmp_path, monkeypatch):
    """Between the opening and the locking of a file, its last holder may delete it. Others lock a new one."""
    path, real, opened = str(tmp_path / "lock"), fcntl.flock, []

    def flock(descriptor, how):
        opened.append(descriptor)
        if len(opened) == 1:
            os.unlink(path)
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with storage.locked(path, remove=True):
        assert len(opened) == 2
        with pytest.raises(storage.Locked, match="is in use by process"), storage.locked(path, remove=True):
            pass
    assert not os.path.exists(path)


def test_a_lock_is_open_to_those_to_whom_the_umask_opens_files(tmp_path):
    before = os.umask(0o002)
    try:
        with storage.locked(str(tmp_path / "lock"), remove=False):
            assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o664
    finally:
        os.umask(before)
