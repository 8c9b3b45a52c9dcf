"""Small files in a bucket, or in a folder that hosts share: whole or absent, on any location that fsspec knows."""

from __future__ import annotations

import json
import os
import secrets
from typing import Any

from maskwright.core import remote, storage
from maskwright.core.errors import InputError, MaskwrightError
from maskwright.core.secrets import redact


class Folder:
    """Raises `InputError` when `location` cannot be opened at all, and `MaskwrightError` when an access fails."""

    def __init__(self, location: str) -> None:
        from fsspec.implementations.local import LocalFileSystem

        self.location = location.rstrip("/")
        if redact(location) != location:
            fix = "leave it out: file systems find credentials in the environment or their own configuration"
            raise InputError("holds a secret", where=location, fix=fix)
        self._files, self._root = remote.filesystem(self.location, reach=False)  # an agent waits for the network
        self._local = isinstance(self._files, LocalFileSystem)

    def put(self, name: str, content: bytes) -> None:
        path = f"{self._root}/{name}"
        try:
            if self._local:
                storage.make_folder(os.path.dirname(path))
                with storage.atomic_writer(path) as file:
                    file.write(content)
            else:
                self._files.pipe_file(path, content)
        except MaskwrightError:
            raise
        except Exception as error:  # each file system has errors of its own
            raise self._failed("written", name, error) from None

    def create(self, name: str, content: bytes) -> bool:
        """Whether it is there now with this content; False when another one was first. Of several at once one wins."""
        path = f"{self._root}/{name}"
        try:
            if self._local:
                storage.make_folder(os.path.dirname(path))
                _create_local(path, content)
            else:
                self._files.pipe_file(path, content, mode="create")  # a precondition at the store
            return True
        except FileExistsError:
            return self.get(name) == content  # a retry that finds its own first try has won
        except MaskwrightError:
            raise
        except Exception as error:  # each file system has errors of its own
            raise self._failed("written", name, error) from None

    def remove(self, name: str) -> None:
        """Nothing when there is no such file."""
        try:
            self._files.rm_file(f"{self._root}/{name}")
        except FileNotFoundError:
            pass
        except Exception as error:
            raise self._failed("removed", name, error) from None

    def get(self, name: str) -> bytes | None:
        """None when there is no such file."""
        try:
            self._files.invalidate_cache()
            return bytes(self._files.cat_file(f"{self._root}/{name}"))
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._failed("read", name, error) from None

    def names(self, folder: str) -> list[str]:
        """What lies in it, folders too; nothing when there is no such folder."""
        try:
            self._files.invalidate_cache()
            found = self._files.ls(f"{self._root}/{folder}", detail=False)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise self._failed("listed", folder, error) from None
        return sorted(os.path.basename(str(name).rstrip("/")) for name in found)

    def put_json(self, name: str, value: Any) -> None:
        self.put(name, _text(value))

    def create_json(self, name: str, value: Any) -> bool:
        return self.create(name, _text(value))

    def get_json(self, name: str) -> dict[str, Any] | None:
        """None when there is none, or none that can be read."""
        content = self.get(name)
        try:
            value = json.loads(content) if content is not None else None
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None

    def _failed(self, what: str, name: str, error: Exception) -> MaskwrightError:
        reason = " ".join(str(error).split()) or type(error).__name__
        fix = "check the permissions and the network"
        return MaskwrightError(f"cannot be {what}: {reason}", where=f"{self.location}/{name}", fix=fix)


def _text(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def _create_local(path: str, content: bytes) -> None:
    """A link fails where the name is taken, also between hosts that share the folder."""
    temporary = f"{path}.new-{secrets.token_hex(8)}"
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
