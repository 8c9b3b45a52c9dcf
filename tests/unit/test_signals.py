"""A signal ends the work once, whoever catches or discards its exception on the way."""

import gc
import os
import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from maskwright.core.signals import AGAIN_SECONDS, leave_closed_terminal, raise_on


class Ended(Exception):
    pass


@pytest.fixture(autouse=True)
def _handlers():
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
    before, hook = {number: signal.getsignal(number) for number in numbers}, sys.unraisablehook
    raise_on((signal.SIGTERM, signal.SIGINT), lambda number: Ended(signal.Signals(number).name))
    yield
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    for number, handler in before.items():
        signal.signal(number, handler)
    sys.unraisablehook = hook


def a_while():
    time.sleep(4 * AGAIN_SECONDS)


def function_of(module, text):
    names = {"__name__": module, "signal": signal, "a_while": a_while, "Ended": Ended}
    exec(text, names)
    function = names["work"]
    return function


ended_by = function_of(
    "maskwright.command",
    """
def work(call):
    try:
        call()
    except Ended as error:
        return str(error)
""",
)
"""Calls what it is given, as `run` does a command, and returns the name of the signal that ended it."""


CAUGHT = """
def work():
    try:
        signal.raise_signal(signal.SIGTERM)
    except Exception:
        pass
    a_while()
    return "went on"
"""


def test_who_catches_everything_is_ended_all_the_same_unless_it_is_ours():
    assert ended_by(function_of("library", CAUGHT)) == "SIGTERM"
    assert function_of("maskwright.some", CAUGHT)() == "went on"


def test_what_the_garbage_collector_discards_is_raised_again(capsys):
    def collected(phase, about):
        if phase == "start":
            gc.callbacks.remove(collected)
            signal.raise_signal(signal.SIGTERM)

    def work():
        gc.collect()  # where this takes long, the exception comes at its end
        a_while()

    gc.callbacks.append(collected)
    assert ended_by(work) == "SIGTERM"
    assert "ignored" not in capsys.readouterr().err


def test_its_clean_up_is_torn_neither_by_itself_nor_by_further_signals():
    steps = []

    def work():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGINT)
            a_while()
            steps.append("cleaned up")

    assert ended_by(work) == "SIGTERM" and steps


def test_an_import_is_over_before(tmp_path, monkeypatch):
    text = "import signal, time\nsignal.raise_signal(signal.SIGTERM)\ntime.sleep(0.3)\nwhole = True\n"
    (tmp_path / "ends_while_it_is_imported.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    def work():
        __import__("ends_while_it_is_imported")
        a_while()

    assert ended_by(work) == "SIGTERM"
    assert sys.modules.pop("ends_while_it_is_imported").whole


def test_a_thread_has_started_before(monkeypatch):
    """In the midst of its start it would be a KeyError of Python's own."""
    name = "_start_joinable_thread" if sys.version_info >= (3, 13) else "_start_new_thread"
    start, thread = getattr(threading, name), threading.Thread(target=a_while)

    def started(*given, **options):
        made = start(*given, **options)
        thread._started.wait()
        signal.raise_signal(signal.SIGTERM)
        return made

    def work():
        thread.start()
        a_while()

    monkeypatch.setattr(threading, name, started)
    try:
        assert ended_by(work) == "SIGTERM"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        thread.join()


def test_a_command_that_runs_within_an_import_is_ended(tmp_path, monkeypatch):
    text = "def work():\n    signal.raise_signal(signal.SIGTERM)\n    a_while()\n    raise AssertionError\n"
    command = SimpleNamespace(run=function_of("maskwright.some", text))
    monkeypatch.setitem(sys.modules, "a_command_of_ours", command)
    (tmp_path / "runs_a_command.py").write_text("import a_command_of_ours\na_command_of_ours.run()\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert ended_by(lambda: __import__("runs_a_command")) == "SIGTERM"


def test_a_hang_up_without_stdout_is_no_other_error():
    kept = os.dup(1)
    os.close(1)
    try:
        leave_closed_terminal(signal.SIGHUP)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
