"""A Ray cluster of one machine with two CPUs, in a network of its own, with token authentication."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from command_line import COMMAND
from private_network import PrivateNetwork, wait_until

TOKEN = "0123456789abcdef0123456789abcdef"


@contextmanager
def ray_cluster(folder: Path, home: Path) -> Iterator[tuple[PrivateNetwork, dict[str, str]]]:
    """The network, and the environment of commands that use the cluster. `folder`: for its logs and `maskwright`."""
    command = folder / "bin" / "maskwright"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m maskwright "$@"\n')
    command.chmod(0o755)
    session = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # its sockets' names have to be short
    environment = {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
        "HOME": str(home),
        "TMPDIR": str(folder),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN,
        "RAY_worker_niceness": "0",  # Ray's 15 lets other tests take all of the two cores
        "RAY_health_check_period_ms": "1000",  # of five; Ray's default notices a killed machine after 15 s
        # On a busy machine, a client's process takes longer to start than the 30 s that Ray gives it.
        "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "200",
    }
    network = PrivateNetwork()
    try:
        address = ("--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", f"--temp-dir={session}")
        small = ("--num-cpus=2", "--num-gpus=0", "--object-store-memory=100000000", "--disable-usage-stats")
        with open(folder / "head.log", "w") as log:
            words = network.words("ray", "start", "--head", "--block", *address, *small)
            head = subprocess.Popen(words, env=environment, stdout=log, stderr=log)
        listed = network.words(*COMMAND, "status", "ray:")
        wait_until(lambda: subprocess.run(listed, env=environment, capture_output=True, check=False).returncode == 0)
        yield network, environment
    finally:
        network.close()
        head.wait()
        shutil.rmtree(session, ignore_errors=True)
