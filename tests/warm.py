"""Python processes that begin with torch imported: forked from one that has, instead of started anew.

Each start of Python with torch takes two CPU-seconds, and tests need hundreds. `Popen` is subprocess's own, but for
commands `[sys.executable, "-m" or "-c", …]`, also with "-P" before, a server, started with the first of them, forks a
process that has run nothing yet. It has its own pid, signals, pipes, exit status and environment, as any other; what it
starts in the same way it forks itself, so that these are its children. What cannot be done so is started anew: with
another thread in the way, or with variables that libraries read when they are loaded.
"""

import array
import atexit
import contextlib
import fcntl
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
from itertools import pairwise
from typing import Any, NoReturn

Started = subprocess.Popen
AT_LOADING = ("LD_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON", "TORCH_", "CUDA_")
MORE = "WARM_LOADED"
"""A variable of a command that names more modules, with commas between them: they have a server of their own."""
LOADED = (
    "fsspec.implementations.local",
    "numpy.random",
    "pydantic.json_schema",
    "rich.progress",
    "safetensors.numpy",
    "tensorboard.summary",
    "torch.distributed",
    "typer",
    "yaml",
)
SMALL = ((64, 64, 64),)
"""The product that the speed of this machine is measured with: half a second each time, and no test is about it."""


# ---- in the process that is begun ------------------------------------------------------------------------------------


def begin(words: list[str], cwd: str, environment: dict[str, str], kept: dict[int, int], session: bool) -> NoReturn:
    """Becomes `python *words` in a process that was just forked. `kept`: its descriptors, and what each is now."""
    code = 1
    try:
        if session:
            os.setsid()
        far = max([2, *kept]) + 1  # none is overwritten before its turn
        for new, now in {new: fcntl.fcntl(old, fcntl.F_DUPFD, far) for new, old in kept.items()}.items():
            os.dup2(now, new, inheritable=True)
        borders = [2, *sorted(new for new in kept if new > 2), 1 << 20]
        for lower, upper in pairwise(borders):
            os.closerange(lower + 1, upper)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)) and number != signal.SIGINT:
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(cwd)
        # Anew, since what a stream can do is found out when it is made.
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        sys.stdout.reconfigure(write_through=bool(environment.get("PYTHONUNBUFFERED")))
        subprocess.Popen = Forked  # type: ignore[misc]
        code = run(words)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def run(words: list[str]) -> int:
    try:
        if words[0] == "-P":
            words = words[1:]
            sys.path[:] = [folder for folder in sys.path if folder]
        sys.argv = [words[0], *words[2:]]
        if words[0] == "-m":
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(words[1], "<string>", "exec"), main.__dict__)
    except SystemExit as exit_:
        if exit_.code is None or isinstance(exit_.code, int):
            return exit_.code or 0
        print(exit_.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def ours(arguments: Any, executable: Any, shell: Any, environment: dict[str, str]) -> bool:
    """Whether this is a command of Python's that can be forked."""
    if sys.platform != "linux" or shell or not isinstance(arguments, (list, tuple)) or len(arguments) < 3:
        return False
    first = arguments[2] if arguments[1] == "-P" else arguments[1]
    if arguments[0] != sys.executable or executable != sys.executable or first not in ("-m", "-c"):
        return False
    now, before = ({k: v for k, v in e.items() if k.startswith(AT_LOADING)} for e in (environment, os.environ))
    return now == before


def native_threads() -> int:
    """Threads of libraries, which a fork would not have, though their locks may be held."""
    return len(os.listdir("/proc/self/task")) - threading.active_count()


class Forked(Started):  # type: ignore[type-arg]
    """What a process that was forked starts itself: its own fork, where no thread but Python's is in the way."""

    def _execute_child(self, *given: Any) -> None:
        args, executable, preexec_fn, _, pass_fds, *rest = given
        cwd, env, _, _, shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *others = rest
        environment = dict(os.environ if env is None else env)
        if not ours(args, executable or args[0], shell, environment) or native_threads():
            super()._execute_child(*given)  # type: ignore[misc]
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            child = os.fork()
            if child == 0:
                if preexec_fn:
                    preexec_fn()
                streams = (p2cread, c2pwrite, errwrite)
                kept = {number: number if fd == -1 else fd for number, fd in enumerate(streams)}
                kept |= {fd: fd for fd in pass_fds}
                begin(list(map(os.fspath, args[1:])), os.fspath(cwd or os.getcwd()), environment, kept, bool(others[5]))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.pid, self._child_created = child, True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]


# ---- the server ------------------------------------------------------------------------------------------------------


def serve(control: socket.socket) -> None:
    """Forks whenever it is asked, and tells each end to who asked, until nobody can ask any more."""
    import maskwright.engines.ceiling
    import maskwright.text.cleaning.language

    for name in (*LOADED, *filter(None, os.environ.get(MORE, "").split(","))):
        with contextlib.suppress(ImportError):  # of extras
            importlib.import_module(name)
    # Nothing else of the product: a script that changes one of its modules does so before others import it.
    maskwright.engines.ceiling.SHAPES = SMALL  # type: ignore[assignment]
    maskwright.engines.ceiling.SHAPE_SECONDS = 0.002
    with contextlib.suppress(ImportError):  # of the extra `clean`: a model of languages, read by each start of a run
        maskwright.text.cleaning.language._model()
    waking, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    telling: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([control, waking], [], [])
        if waking in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(waking, 4096)
        while telling:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                break
            with contextlib.suppress(BrokenPipeError):
                os.write(telling[child], status.to_bytes(4, "little"))
            os.close(telling.pop(child))
        if control in ready:
            asked = receive(control)
            if asked is None:
                return
            request, descriptors = asked
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            child = os.fork()
            if child == 0:
                signal.set_wakeup_fd(-1)
                kept = dict(zip([0, 1, 2, *request["passed"]], descriptors[1:], strict=True))
                begin(request["words"], request["cwd"], request["environment"], kept, request["session"])
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            telling[child] = descriptors[0]
            for descriptor in descriptors[1:]:
                os.close(descriptor)
            control.sendall(child.to_bytes(4, "little"))


def receive(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    found = array.array("i")
    first, ancillary, _, _ = control.recvmsg(4, socket.CMSG_SPACE(32 * found.itemsize))
    if not first:
        return None
    for _, _, data in ancillary:
        found.frombytes(data)
    size, content = int.from_bytes(first, "little"), b""
    while len(content) < size:
        content += control.recv(size - len(content))
    return json.loads(content), list(found)


# ---- who asks --------------------------------------------------------------------------------------------------------

_servers: dict[str, socket.socket] = {}
_lock = threading.Lock()


def server(more: str) -> socket.socket:
    """`more`: the modules that it loads besides the usual ones."""
    if more not in _servers:
        ours, theirs = socket.socketpair()
        code = "import sys, socket, warm; warm.serve(socket.socket(fileno=int(sys.argv[1])))"
        path = os.pathsep.join([os.path.dirname(__file__), *filter(None, [os.environ.get("PYTHONPATH")])])
        process = Started(
            [sys.executable, "-c", code, str(theirs.fileno())],
            # The first is as `find_processes` has it.
            env={"TORCH_CPP_LOG_LEVEL": "ERROR", **os.environ, "PYTHONPATH": path, MORE: more},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        atexit.register(_end, ours, process)
        _servers[more] = ours
    return _servers[more]


def _end(control: socket.socket, process: Any) -> None:
    control.close()
    process.wait()


class Popen(Started):  # type: ignore[type-arg]
    """`subprocess.Popen` by the server."""

    _told = -1

    def _execute_child(self, *given: Any) -> None:
        args, executable, preexec_fn, _, pass_fds, *rest = given
        cwd, env, _, _, shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *others = rest
        environment = dict(os.environ if env is None else env)
        if preexec_fn or not ours(args, executable or args[0], shell, environment):
            super()._execute_child(*given)  # type: ignore[misc]
            return
        told, telling = os.pipe()
        streams = [number if fd == -1 else fd for number, fd in enumerate((p2cread, c2pwrite, errwrite))]
        request = {
            "words": list(map(os.fspath, args[1:])),
            "cwd": os.fspath(cwd or os.getcwd()),
            "environment": environment,
            "passed": list(pass_fds),
            "session": bool(others[5]),
        }
        content = json.dumps(request).encode()
        with _lock:
            control = server(environment.get(MORE, ""))
            sent = array.array("i", [telling, *streams, *pass_fds])
            control.sendmsg(
                [len(content).to_bytes(4, "little")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, sent.tobytes())]
            )
            control.sendall(content)
            answer = control.recv(4, socket.MSG_WAITALL)
        os.close(telling)
        if len(answer) < 4:
            os.close(told)
            raise RuntimeError("the process that others are forked from has ended")
        self.pid, self._child_created, self._told = int.from_bytes(answer, "little"), True, told
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._told < 0:
            return super()._try_wait(wait_flags)  # type: ignore[misc,no-any-return]
        if wait_flags & os.WNOHANG and not select.select([self._told], [], [], 0.0)[0]:
            return 0, 0
        status = os.read(self._told, 4)
        os.close(self._told)
        self._told = -1
        return self.pid, int.from_bytes(status, "little") if status else signal.SIGKILL

    def _internal_poll(self, _deadstate: Any = None, *rest: Any) -> int | None:
        if self._told < 0:
            return super()._internal_poll(_deadstate, *rest)  # type: ignore[misc,no-any-return]
        if self.returncode is None and self._waitpid_lock.acquire(False):  # type: ignore[attr-defined]
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid == self.pid:
                        self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode
