from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import pytest

REACH = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=2)"


def test_nothing_but_loopback_can_be_reached(no_network: bool) -> None:
    """From this thread, a new one, and another process; and loopback answers."""
    if not no_network:
        pytest.skip("needs root: a network namespace of its own cannot be made")
    heard: list[str] = []

    def reach() -> None:
        try:
            exec(REACH)
        except OSError as error:
            heard.append(os.strerror(error.errno or 0))

    reach()
    thread = threading.Thread(target=reach)
    thread.start()
    thread.join()
    assert heard == ["Network is unreachable"] * 2
    done = subprocess.run([sys.executable, "-c", REACH], capture_output=True, text=True, check=False)
    assert "Network is unreachable" in done.stderr
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        pass
