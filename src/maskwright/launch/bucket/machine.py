"""What a host knows of itself: Google's metadata server, and the address that others reach it by."""

from __future__ import annotations

import os
import platform
import socket
import urllib.error
import urllib.request

from maskwright.core.errors import InputError

METADATA = "http://{host}/computeMetadata/v1/instance/{path}"
NOWHERE = "192.0.2.1"
"""RFC 5737: an address of documentation, to which nothing is ever sent."""


def metadata(path: str) -> str:
    """Of this machine, from the server that Google's hosts ask. GCE_METADATA_HOST is Google's own variable."""
    try:
        return _read(path)
    except (OSError, ValueError) as error:
        raise _untold(path, error) from None


def _read(path: str) -> str:
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    request = urllib.request.Request(METADATA.format(host=host, path=path), headers={"Metadata-Flavor": "Google"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=10) as answer:
        return str(answer.read().decode())


def _untold(path: str, error: Exception) -> InputError:
    fix = "run it on a TPU VM, or say --host-index and --num-hosts"
    return InputError(f"does not tell {path.rpartition('/')[2]} ({error})", where="the metadata server", fix=fix)


def attribute(name: str) -> str:
    return metadata(f"attributes/{name}")


def assigned_index() -> int | None:
    """Which host of its slice this is, where the machine says it: `agent-worker-number` on TPU VMs, `worker-id` seen on
    TPU7x hosts of managed instance groups. None on any other. Raises `InputError` when a server is there and does not
    answer: to take a free number then would give two hosts the same."""
    for name in ("agent-worker-number", "worker-id"):
        try:
            return int(_read(f"attributes/{name}"))
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise _untold(name, error) from None
        except (OSError, ValueError) as error:
            if not isinstance(getattr(error, "reason", None), socket.gaierror):  # there is no such server
                raise _untold(name, error) from None
    return None


def address() -> str:
    """The one by which this host reaches others, and so they it."""
    try:
        return metadata("network-interfaces/0/ip").strip()
    except InputError:
        pass
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((NOWHERE, 9))  # chooses the way, and sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def instance() -> str:
    return platform.node().partition(".")[0] or "host"
