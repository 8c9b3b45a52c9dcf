"""File systems behind URLs: opened in one place, and whatever goes wrong with them said on one line, and soon."""

from __future__ import annotations

import functools
import logging
import os
import socket
import time
from typing import Any
from urllib.parse import urlsplit

from maskwright.core.errors import InputError, MaskwrightError
from maskwright.core.extras import EXTRAS, missing

FIRST_CONTACT_SECONDS = 8.0
"""For the store's host to be found and to take a connection: TCP asks again after 1, 3 and 7. gcsfs alone tries six
times with growing pauses, and again for each question: 5:35 minutes and 16 tracebacks without a network (measured)."""
NOISY = ("gcsfs", "google", "urllib3", "asyncio", "aiohttp")
"""They log tracebacks and warnings of failures that reach us as exceptions too."""


def filesystem(location: str, *, reach: bool = True) -> tuple[Any, str]:
    """fsspec's file system of a URL, and the path on it. Raises `InputError` where there is none, and with `reach`
    `MaskwrightError` where Cloud Storage cannot be reached from here."""
    import fsspec

    for name in NOISY:
        logging.getLogger(name).addHandler(_SILENT)  # the same one twice is there once
    protocol = location.partition("://")[0]
    try:
        if reach and fsspec.get_filesystem_class(protocol.rpartition("::")[2]).__module__.startswith("gcsfs"):
            address = fsspec.config.conf.get(protocol, {}).get("endpoint_url") or os.environ.get(
                "STORAGE_EMULATOR_HOST"
            )
            _require_host(address or "https://storage.googleapis.com")
        files, path = fsspec.core.url_to_fs(location)
    except MaskwrightError as error:
        raise MaskwrightError(error.what, where=location, fix=error.fix) from None
    except Exception as error:  # whatever a file system makes of a strange address
        raise fault(error, "opened", location) from None
    return files, path


_SILENT = logging.NullHandler()


@functools.cache
def _require_host(address: str) -> None:
    """Raises `MaskwrightError` unless it takes a connection; asked once."""
    parts = urlsplit(address if "://" in address else f"http://{address}")
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    deadline = time.monotonic() + FIRST_CONTACT_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        try:
            socket.create_connection((host, port), timeout=left).close()
            return
        except OSError as error:
            reason = error.strerror or str(error)
            time.sleep(min(1.0, max(deadline - time.monotonic(), 0.0)))
    raise MaskwrightError(f"{host} cannot be reached: {reason}", fix="check the network of this machine")


def fault(error: Exception, verb: str, location: str) -> MaskwrightError:
    """What a file system raised when `location` was to be `verb` ("read"), for the user."""
    from fsspec.registry import known_implementations, registry

    protocol = location.partition("://")[0]
    if isinstance(error, FileNotFoundError):
        return InputError("no such file", where=location, fix="check the path")
    if isinstance(error, ImportError):
        known = known_implementations.get(protocol, {})
        package = known.get("class", error.name or protocol).partition(".")[0]
        if package in EXTRAS:
            return missing(package, location)
        return InputError(f"{protocol}:// needs the package {package}", where=location, fix=f"pip install {package}")
    message = " ".join(str(error).split()).rstrip(" .") or type(error).__name__
    if _has_no_connection(error):
        return MaskwrightError(f"cannot be {verb}: {message}", where=location, fix="check the network and the address")
    if getattr(error, "code", None) in (401, 403) or isinstance(error, PermissionError):
        fix = "check the permissions; `gcloud auth application-default login` gives this machine yours on Google Cloud"
        return InputError(f"cannot be {verb}: {message}", where=location, fix=fix)
    if protocol not in known_implementations and protocol not in registry:
        return InputError(
            f"no file system is known by {protocol}://", where=location, fix="give a path, gs:// or s3://"
        )
    return InputError(f"cannot be {verb}: {message}", where=location, fix=ADDRESSES.get(protocol, "check the address"))


ADDRESSES = {
    "hf": "write hf://datasets/OWNER/NAME/FILE, or take a copy: hf download OWNER/NAME --repo-type dataset "
    "--local-dir DIR",
    "gs": "write gs://BUCKET/FOLDER",
    "s3": "write s3://BUCKET/FOLDER",
}


def _has_no_connection(error: BaseException | None) -> bool:
    """Whether it, or what it comes from, is the network's."""
    while error is not None:
        if isinstance(error, socket.gaierror | ConnectionError | TimeoutError):
            return True
        error = error.__cause__ or error.__context__
    return False
