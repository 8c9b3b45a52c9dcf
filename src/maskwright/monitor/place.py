"""A run directory to read, wherever it lies: a local folder, or any URL that fsspec knows."""

from __future__ import annotations

import json
import os
from typing import Any

from maskwright.core import remote, storage
from maskwright.core.errors import MaskwrightError
from maskwright.run.heartbeat import read_local

SIGNS = ("config.resolved.json", "status.json", "log.txt", "lock", "checkpoints")
"""Of a run directory, from its first second on."""


class Place:
    """Raises `InputError` when `location` cannot be opened, `MaskwrightError` when an access fails."""

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/") or "/"
        self.local = not storage.is_url(location)
        if self.local:
            self.location = os.path.abspath(location)
            return
        self._files, self._root = remote.filesystem(self.location)

    def read(self, name: str) -> bytes | None:
        """None when there is no such file."""
        if self.local:
            return read_local(os.path.join(self.location, name))
        try:
            return bytes(self._files.cat_file(f"{self._root}/{name}"))
        except (FileNotFoundError, IsADirectoryError):
            return None
        except Exception as error:
            raise self._failed(name, error) from None

    def read_json(self, name: str) -> Any:
        """None when there is none, or none that can be read."""
        try:
            return json.loads(self.read(name) or b"null")
        except (ValueError, RecursionError):
            return None

    def names(self, folder: str = "") -> list[str]:
        """What lies in it; nothing when there is no such folder."""
        if self.local:
            try:
                return sorted(os.listdir(os.path.join(self.location, folder)))
            except OSError:
                return []
        try:
            self._files.invalidate_cache()
            found = self._files.ls(f"{self._root}/{folder}".rstrip("/"), detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except Exception as error:
            raise self._failed(folder, error) from None
        return sorted(os.path.basename(str(name).rstrip("/")) for name in found)

    def modified(self, name: str) -> float | None:
        """Unix seconds, where the file system says."""
        try:
            if self.local:
                return os.path.getmtime(os.path.join(self.location, name))
            return float(self._files.modified(f"{self._root}/{name}").timestamp())
        except Exception:  # of each file system its own; then nobody knows
            return None

    def _failed(self, name: str, error: Exception) -> MaskwrightError:
        reason = " ".join(str(error).split()) or type(error).__name__
        fix = "check the permissions and the network"
        return MaskwrightError(f"cannot be read: {reason}", where=f"{self.location}/{name}".rstrip("/"), fix=fix)
