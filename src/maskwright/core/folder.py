"""Files of a folder on this machine, in a bucket, or on any storage that fsspec supports. Each is whole or absent.

A folder of this machine is read without fsspec, since `status` and `logs` of a local run also use this.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import random
import shutil
import stat
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, TypeVar

from maskwright.core import storage
from maskwright.core.errors import CloudError, InputError, MaskwrightError, StoppedEarly
from maskwright.core.secrets import redact

TRIES, FIRST_WAIT_SECONDS = 8, 0.5
"""For callers that need the folder: a store may be out of reach for a minute. Pauses are 0.5, 1, 2, … seconds, half of
each random."""
AT_ONCE = 16
"""Concurrent reads. A store answers in some 40 ms: files of 256 hosts take 0.7 s, and 10 s one after another."""
ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
FINAL = (*ABSENT, FileExistsError, PermissionError, TypeError, ValueError, ImportError)
HOPELESS = ("NoCredentialsError", "PartialCredentialsError", "ParamValidationError")
"""Errors of botocore, which is not always installed."""
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
"""Errors of file systems without links: FAT, and buckets that are mounted as folders."""
OF_THE_FILE = {
    **dict.fromkeys(("read", "listed", "measured"), ABSENT),
    "removed": (FileNotFoundError,),
    "written": (FileExistsError,),
}
"""Errors that concern the file, not the storage, by verb."""

T = TypeVar("T")
A = TypeVar("A")


class Folder:
    """A folder. `reach`: whether the store's host must answer at once. `tries`: tries of each access.

    Raises `InputError` if `location` cannot be opened or holds a secret, `MaskwrightError` if an access fails."""

    def __init__(
        self, location: str, *, reach: bool = False, tries: int = 1, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.location, self._tries, self._sleep = location.rstrip("/") or "/", tries, sleep
        protocol, _, path = self.location.rpartition("://")
        self.path = os.path.abspath(path) if protocol in ("", "file", "local") else None
        """None if it is not on this machine."""
        if self.path is not None:
            self.location = self.location if protocol else self.path
            self._files: Any = _Local()
            self._root = self.path
            return
        if redact(location) != location:
            fix = "leave it out, since file systems find credentials in the environment or their own configuration"
            raise InputError("holds a secret", where=location, fix=fix)
        self._files, self._root = storage.filesystem(self.location, reach=reach)

    # ---- reading -------------------------------------------------------------------------------------------------

    def get(self, name: str, start: int | None = None, end: int | None = None) -> bytes | None:
        """The bytes from `start` to before `end`, which must exist in the file. None if there is no such file."""
        part = {} if start is None and end is None else {"start": start, "end": end}
        try:
            return bytes(self._do("read", name, self._files.cat_file, **part))
        except ABSENT:
            return None

    def head(self, name: str, count: int) -> bytes | None:
        """The first `count` bytes of a file, or all of a shorter one, however large others make it. None if there is no
        such file."""

        def read(path: str) -> bytes:
            try:
                return bytes(self._files.cat_file(path, start=0, end=count))[:count]
            except Exception as error:
                if getattr(error, "code", None) == 416:  # an empty object has no first byte
                    return b""
                raise

        try:
            return bytes(self._do("read", name, read))
        except ABSENT:
            return None

    def size(self, name: str) -> int | None:
        """The file's size in bytes. None if there is no such file."""
        try:
            return int(self._do("measured", name, self._files.info)["size"])
        except ABSENT:
            return None

    def get_json(self, name: str) -> dict[str, Any] | None:
        """The JSON object in a file; None if there is no file or it cannot be parsed."""
        try:
            value = json.loads(self.get(name) or b"null")
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None

    def download(self, name: str, to: str) -> None:
        """Copies a file to the local path `to`. Raises `FileNotFoundError` if there is no such file."""
        self._do("read", name, self._files.get_file, to)

    def names(self, folder: str = "") -> list[str]:
        """Names in the folder, folders included; empty if there is no such folder."""
        try:
            paths = self._do("listed", folder, self._files.ls, detail=False)
        except ABSENT:
            return []
        return sorted(os.path.basename(str(name).rstrip("/")) for name in paths)

    def folders(self, folder: str = "") -> list[str]:
        """Names of the folders in `folder`, also behind links; empty if there is no such folder."""
        try:
            entries = self._do("listed", folder, self._files.ls, detail=True)
        except ABSENT:
            return []
        return sorted(
            os.path.basename(str(entry["name"]).rstrip("/")) for entry in entries if entry["type"] == "directory"
        )

    def sizes(self) -> dict[str, int]:
        """Bytes of the files directly in this folder, by name."""
        try:
            entries = self._do("listed", "", self._files.ls, detail=True)
        except ABSENT:
            return {}
        return {
            os.path.basename(str(entry["name"])): int(entry["size"]) for entry in entries if entry["type"] == "file"
        }

    def glob(self, pattern: str) -> list[str]:
        """Paths of the files that match. Raises `InputError` if a bucket of Cloud Storage does not exist; other stores
        list nothing then."""
        root = glob.escape(self._root)
        try:
            paths = self._do("listed", "", lambda _: self._files.glob(f"{root}/{pattern}"))
        except FileNotFoundError:
            bucket = self._root.partition("/")[0]
            fix = f"correct the name, or create it: gcloud storage buckets create gs://{bucket}"
            raise InputError(f"there is no bucket {bucket}", where=self.location, fix=fix) from None
        return [str(name) for name in paths]

    def info(self, name: str) -> dict[str, Any]:
        """The file's `size` in bytes, and other facts from the store."""
        return dict(self._do("described", name, self._files.info))

    def modified(self, name: str) -> float | None:
        """Unix seconds of the last change; None if unknown."""
        try:
            when = self._files.modified(self._path(name))
            return float(when if self.path is not None else when.timestamp())
        except StoppedEarly:
            raise
        except Exception:  # each file system has its own errors
            return None

    def sha256(self, name: str) -> str:
        def compute(path: str) -> str:
            with self._files.open(path, "rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()

        return str(self._do("read back", name, compute))

    # ---- writing -------------------------------------------------------------------------------------------------

    def put(self, name: str, content: bytes) -> None:
        self._do("written", name, self._files.pipe_file, content)

    def upload(self, source: str, name: str) -> None:
        self._do("written", name, lambda path: self._files.put_file(source, path))

    def create(self, name: str, content: bytes) -> bool:
        """Creates a file. Returns whether it now has this content; False if another writer was first. Of several at
        once the store lets one win."""
        try:
            self._do("written", name, self._files.pipe_file, content, mode="create")
            return True
        except FileExistsError:
            return self.head(name, len(content) + 1) == content  # a retry may find the file of its own first try

    def create_json(self, name: str, value: Any) -> bool:
        return self.create(name, _text(value))

    def remove(self, name: str, *, recursive: bool = False) -> None:
        """Deletes a file, or a folder with `recursive`; a missing one is not an error."""
        try:
            if recursive:
                self._do("removed", name, self._files.rm, recursive=True)
            else:
                self._do("removed", name, self._files.rm_file)
        except FileNotFoundError:
            pass

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")

    def _do(self, verb: str, name: str, action: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Calls `action` with the path. Raises errors of `OF_THE_FILE` unchanged, others as `CloudError`."""
        for number in range(self._tries):
            try:
                self._files.invalidate_cache()
                return action(self._path(name), *arguments, **options)
            except (MaskwrightError, *OF_THE_FILE.get(verb, ())):  # the former for example after a signal
                raise
            except Exception as error:  # each file system has its own errors
                if number == self._tries - 1 or not _may_pass(error):
                    reason = " ".join(str(error).split()) or type(error).__name__
                    fix = storage.KEYS_OF_S3 if storage.lacks_keys(error) else "check the permissions and the network"
                    where = f"{self.location}/{name}".rstrip("/")
                    kind = "unreached" if _may_pass(error) else "other"
                    raise CloudError(f"cannot be {verb}: {reason}", reason=kind, where=where, fix=fix) from None
                self._sleep(FIRST_WAIT_SECONDS * 2.0**number * (0.5 + random.random() / 2.0))
        raise AssertionError


def each(read: Callable[[A], T], items: Iterable[A]) -> list[T]:
    """The results of `read` for each of `items`, in their order, several at a time."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(read, items))


def _may_pass(error: Exception) -> bool:
    """Whether a retry may help: among HTTP errors for too many requests, a timeout or a failure of the server."""
    if type(error).__name__ in HOPELESS or isinstance(error, FINAL):
        return False
    if str(error).startswith("Forbidden"):  # gcsfs's 403 is an OSError without a number
        return False
    code = getattr(error, "code", None) or getattr(error, "status", None)
    return not isinstance(code, int) or code in (408, 429) or code >= 500


def _text(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def open_regular(path: str) -> BinaryIO:
    """Opens a local file for reading. Raises `OSError` for a pipe or a device, which could block a reader for ever."""
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # `open` itself refuses a folder
        raise OSError(errno.EINVAL, "is not a regular file", path)
    return open(path, "rb")


class _Local:
    """Local files, with the methods of fsspec that `Folder` calls."""

    def invalidate_cache(self) -> None: ...

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        with open_regular(path) as file:
            file.seek(start or 0)
            return file.read(-1 if end is None else end - (start or 0))

    def ls(self, path: str, detail: bool) -> list[Any]:
        if not detail:
            return os.listdir(path)
        with os.scandir(path) as entries:
            kinds = [(entry, "directory" if entry.is_dir() else "file") for entry in entries]
            return [{"name": entry.path, "type": kind, "size": entry.stat().st_size} for entry, kind in kinds]

    def info(self, path: str) -> dict[str, Any]:
        return {"size": os.path.getsize(path)}

    def pipe_file(self, path: str, content: bytes, mode: str = "overwrite") -> None:
        storage.make_folder(os.path.dirname(path))
        if mode == "create":
            return _create(path, content)
        with storage.atomic_writer(path) as file:
            file.write(content)

    def put_file(self, source: str, path: str) -> None:
        storage.make_folder(os.path.dirname(path))
        with open(source, "rb") as content, storage.atomic_writer(path) as file:
            shutil.copyfileobj(content, file)

    glob, open, modified = staticmethod(glob.glob), staticmethod(open), staticmethod(os.path.getmtime)
    get_file, rm_file = staticmethod(shutil.copyfile), staticmethod(os.unlink)

    def rm(self, path: str, recursive: bool) -> None:
        shutil.rmtree(path)


def _create(path: str, content: bytes) -> None:
    """Creates a file by a link, which fails if the name exists, even if another host created it."""
    temporary = storage.temporary_name(path)
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            with open(path, "xb") as file:  # exclusive too, but the file is empty for a moment
                file.write(content)
    except OSError as error:
        storage.name_file(error, temporary, path)
        raise
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
