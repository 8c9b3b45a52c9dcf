"""A host's facts about itself: from Google's metadata server, and the address at which others reach it."""

from __future__ import annotations

import os
import platform
import socket
import urllib.error
import urllib.request

from maskwright.core.errors import InputError

METADATA = "http://{host}/computeMetadata/v1/instance/{path}"
NOWHERE = "192.0.2.1"
"""An address for documentation (RFC 5737), to which nothing is ever sent."""


def metadata(path: str) -> str:
    """This machine's metadata. GCE_METADATA_HOST is Google's own variable for the server's name."""
    try:
        return _read(path)
    except (OSError, ValueError) as error:
        raise _missing(path, error) from None


def _read(path: str) -> str:
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    request = urllib.request.Request(METADATA.format(host=host, path=path), headers={"Metadata-Flavor": "Google"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=10) as answer:
        return str(answer.read().decode())


def _missing(path: str, error: Exception) -> InputError:
    fix = "run it on a TPU VM, or give --host-index and --num-hosts"
    return InputError(f"did not give {path.rpartition('/')[2]} ({error})", where="the metadata server", fix=fix)


def attribute(name: str) -> str:
    return metadata(f"attributes/{name}")


def assigned_index() -> int | None:
    """Index of this host in its slice, if its metadata has it: as `agent-worker-number` on TPU VMs, as `worker-id` on
    TPU7x hosts of managed instance groups. Else None. Raises `InputError` if the server does not answer: a host that
    then claimed a free index could take one that metadata gives to another host."""
    for name in ("agent-worker-number", "worker-id"):
        try:
            return int(_read(f"attributes/{name}"))
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise _missing(name, error) from None
        except (OSError, ValueError) as error:
            if not isinstance(getattr(error, "reason", None), socket.gaierror):  # there is no metadata server
                raise _missing(name, error) from None
    return None


def address() -> str:
    """Address at which other hosts reach this one."""
    try:
        return metadata("network-interfaces/0/ip").strip()
    except InputError:
        pass
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((NOWHERE, 9))  # chooses a route and sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def instance() -> str:
    return platform.node().partition(".")[0] or "host"
