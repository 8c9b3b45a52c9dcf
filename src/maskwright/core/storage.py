"""Locations are `str`: a local path or any URL that fsspec supports (`gs://`, `s3://`, `hf://`, `memory://`).

`pathlib.Path("gs://bucket")` collapses the double slash, so no `Path` ever holds a location that a user gave.
Local writes are atomic: a temporary name next to the target, fsync, rename, fsync of the folder.
"""

from __future__ import annotations

import base64
import difflib
import errno
import fcntl
import functools
import glob
import hashlib
import importlib
import json
import logging
import os
import platform
import re
import secrets
import shutil
import socket
import ssl
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar, cast
from urllib.parse import urlsplit

from maskwright.core.console import say, warn
from maskwright.core.errors import FULL, InputError, Locked, MaskwrightError
from maskwright.core.extras import EXTRAS, missing
from maskwright.core.hub import DATA_OWNERS

READ_BYTES = 1 << 20
WAIT_SECONDS = 0.5
SILENT_WAITS = 6
"""Waits for another process before there is a message."""
T = TypeVar("T")
DEEPEST = 100
"""The deepest nesting of folders that `walk` accepts."""

# At the first access to a bucket, gcsfs asks over gRPC whether it is hierarchical. That needs another permission and
# endpoint, and a minute if it cannot be reached. We do not need it, since we rename no folders. gcsfs reads this when
# it is imported.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")


def is_url(location: str) -> bool:
    return "://" in location


def require_local(location: str) -> str:
    """Raises `InputError` for a URL, even if it lacks a slash: gs:/b would be a local folder `gs:`."""
    if re.match(r"[\w+.-]+:/", location):
        fix = "give a folder; copy a store with `data push`, checkpoints by checkpoint.copy_to"
        raise InputError("must be a local folder", where=location, fix=fix)
    return location


def require_utf8(path: str) -> str:
    """Raises `InputError` for a name whose bytes are not UTF-8, which no record could hold."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InputError("has a name that is not UTF-8", where=path, fix="rename it") from None
    return path


def without_query(location: str) -> str:
    """The location without a web address's query, since a signature follows a ? that is not a wildcard."""
    return location.partition("?")[0] if location.lower().startswith(("http://", "https://")) else location


def near(folder: str, file: str) -> str | None:
    """The folder in or next to `folder` that contains `file` and has the most similar name; None if there is none."""
    folder = folder.rstrip("/")
    for parent, cutoff in ((folder, 0.0), (os.path.dirname(folder), 0.6)):
        names = [path.split(os.sep)[-2] for path in glob.glob(os.path.join(glob.escape(parent), "*", file))]
        if similar := difflib.get_close_matches(os.path.basename(folder), names, 1, cutoff):
            return os.path.join(parent, similar[0])
    return None


def open_binary(location: str) -> BinaryIO:
    """Opens a location for reading. Raises `InputError` naming it if it is absent or unreadable."""
    if is_url(location):
        files, path = filesystem(location)
        try:
            return cast(BinaryIO, files.open(path, "rb"))
        except Exception as error:  # each file system has its own errors
            raise fault(error, "read", location) from error
    try:
        return open(location, "rb")
    except FileNotFoundError:
        raise InputError("no such file", where=location, fix="check the path") from None
    except IsADirectoryError:
        raise InputError("is a folder, not a file", where=location, fix=f"name its files: {location}/*") from None
    except PermissionError:
        fix = "check the file's permissions"
        raise InputError("cannot be read: permission denied", where=location, fix=fix) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", where=location, fix="check the path and the disk") from error


def expand(patterns: list[str]) -> list[str]:
    """Files behind paths, folders, globs and URLs, sorted. A file in several spellings counts once.

    Raises `InputError` when a pattern matches nothing, so that a mistyped glob is never an empty corpus.
    """
    return [*expand_named(patterns)]


def expand_named(patterns: list[str]) -> dict[str, str]:
    """Like `expand`: for each file, its name or the glob that matches it; empty for a file in a named folder."""
    real_folders: dict[str, str] = {}
    spellings: dict[str, list[str]] = {}
    named: dict[str, str] = {}
    for pattern in patterns:
        is_folder = False
        if is_url(pattern):
            matches, is_folder = _expand_url(pattern)
        elif is_folder := os.path.isdir(pattern):
            matches = _files_below(pattern)
        elif glob.has_magic(pattern) and not os.path.exists(pattern):
            matches = [name for name in _glob(pattern) if os.path.isfile(name)]
        else:
            matches = [pattern] if os.path.exists(pattern) else []
        if not matches:
            what = "is an empty folder" if os.path.isdir(pattern) else "matches no file"
            raise InputError(what, where=pattern, fix=_how_to_get(pattern))
        if matches == [pattern] and not (is_url(pattern) or os.path.isfile(pattern)):
            what = "is a pipe or a device, whose content cannot be read twice"
            raise InputError(what, where=pattern, fix="write it to a file first")
        for name in matches:
            path = identity(name, real_folders)
            spellings.setdefault(path, []).append(name)
            if not is_folder and (path not in named or name == pattern):
                named[path] = pattern
    # In a cache of the Hugging Face Hub, the link has the ending that the file itself lacks.
    chosen = {
        min(names, key=lambda name: (not os.path.splitext(name)[1], name)): path for path, names in spellings.items()
    }
    return {name: named.get(chosen[name], "") for name in sorted(chosen)}


def identity(name: str, real_folders: dict[str, str] | None = None) -> str:
    """The one spelling of a file; for a local file its path without links. `real_folders` caches paths of folders."""
    path = name.removeprefix("file://")
    if is_url(path):
        return name
    if os.path.islink(path):
        return os.path.realpath(path)
    folder, base = os.path.split(path)
    real_folders = {} if real_folders is None else real_folders
    if folder not in real_folders:
        real_folders[folder] = os.path.realpath(folder)
    return os.path.join(real_folders[folder], base)


def _how_to_get(pattern: str) -> str:
    """The advice for a pattern that matches nothing, which may be a data set's name on the Hugging Face Hub."""
    if pattern == "-":
        return "name files, since the standard input is not read"
    fix = "check the path; quote globs in the shell"
    if re.fullmatch(r"\w[\w-]*(/\w[\w-]*)?", pattern) is None:
        return fix
    name = pattern if "/" in pattern else f"{DATA_OWNERS.get(pattern, 'OWNER')}/{pattern}"
    get = f"hf download {name} --repo-type dataset --local-dir {pattern}"
    return f"{fix}. For a data set of the Hugging Face Hub: {get}, or name hf://datasets/{name}"


def _glob(pattern: str) -> list[str]:
    """Like `glob.glob`, but `**` follows no links, since two links to a parent could be followed in 2^40 orders."""
    parts = pattern.split(os.sep)
    if "**" not in parts:
        return glob.glob(pattern)
    depth = parts.index("**")
    rest = parts[depth + 1 :] or ["*"]
    paths = []
    for root in glob.glob(os.sep.join([*parts[:depth], ""])) if depth else [""]:
        for folder, _ in walk(root or os.curdir):
            inside = os.path.relpath(folder, root or os.curdir)
            base = os.path.join(root, inside) if inside != os.curdir else root
            paths += _glob(os.path.join(glob.escape(base), *rest))
    return paths


def walk(root: str) -> Iterator[tuple[str, list[str]]]:
    """Yields each folder from `root` on that is not hidden, and the names of its files. Raises `InputError` for folders
    nested more than `DEEPEST` deep, as in an attack."""
    for folder, folders, names in os.walk(root):
        if folder[len(root) :].count(os.sep) > DEEPEST:
            what = f"holds folders that are nested more than {DEEPEST} deep"
            raise InputError(what, where=root, fix="name the folder with the files")
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield folder, names


def _files_below(root: str) -> list[str]:
    """Files of a folder and its subfolders; hidden ones, and links that lead nowhere or back, are skipped."""
    paths_below = []
    for folder, names in walk(root):
        paths = (os.path.join(folder, name) for name in names if not name.startswith("."))
        paths_below += [path for path in paths if os.path.isfile(path)]
    return paths_below


def _expand_url(pattern: str) -> tuple[list[str], bool]:
    """(files, whether the URL is a folder). Hidden files are skipped as locally: a glob's wildcards match none."""
    files, path = filesystem(pattern)
    is_folder = False
    try:
        if glob.has_magic(without_query(path)) and not files.exists(path):  # since a file's own name may have brackets
            root = re.split(r"[*?\[]", path, maxsplit=1)[0]
            root = root[: root.rfind("/") + 1]
            found = files.glob(path, detail=True).items()
            names = [name for name, info in found if info["type"] != "directory"]
            names = names if "/." in path[len(root.rstrip("/")) :] else _visible(names, root)
        elif is_folder := files.isdir(path):
            names = _visible(files.find(path), path)
        else:
            names = [path] if files.exists(path) else []
            if not names:
                _require_answer(files, path)
    except Exception as error:  # each file system has its own errors
        raise fault(error, "listed", pattern) from error
    return [files.unstrip_protocol(name) for name in names], is_folder


def _visible(names: list[str], root: str) -> list[str]:
    """The names without hidden parts below `root`."""
    return [name for name in names if "/." not in f"/{name.removeprefix(root.rstrip('/')).lstrip('/')}"]


def _require_answer(files: Any, path: str) -> None:
    """Raises the network's error if it is the reason for a missing file, since fsspec's `exists` is then false too."""
    try:
        files.info(path)
    except FileNotFoundError as error:
        if _of_the_network(error.__cause__):
            raise


@dataclass(frozen=True)
class Digest:
    """Size in bytes and checksums of one file."""

    bytes: int
    sha256: str
    crc32: int


def digest(location: str) -> Digest:
    sha, crc, size = hashlib.sha256(), 0, 0
    with open_binary(location) as file:
        while block := file.read(READ_BYTES):
            sha.update(block)
            crc = zlib.crc32(block, crc)
            size += len(block)
    return Digest(size, sha.hexdigest(), crc)


def sha256_of_file(location: str) -> str:
    """The sha256 of a file; `digest` computes a crc32 as well."""
    with open_binary(location) as file:
        return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()


def crc32c_of(file: BinaryIO) -> str | None:
    """The checksum of the rest of a file, in base64, as Cloud Storage writes it. None without the package
    google-crc32c, which gcsfs installs."""
    try:
        crc32c: Any = importlib.import_module("google_crc32c")  # without types
    except ImportError:
        return None
    checksum = crc32c.Checksum()
    while block := file.read(READ_BYTES):
        checksum.update(block)
    return base64.b64encode(checksum.digest()).decode()


def sync_folder(folder: str) -> None:
    """Makes renames inside a local folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def temporary_name(path: str) -> str:
    """A name next to `path` that no other process uses: machines that share a folder may have a pid twice, and in
    containers each start has the same one."""
    return f"{path}.tmp-{secrets.randbits(62)}"


def final_name(name: str) -> str:
    """The name without what `temporary_name` appends."""
    return re.sub(r"\.tmp-\d+$", "", name)


def is_temporary(name: str) -> bool:
    """Whether a file or folder with this name is unfinished, forever if its process was killed."""
    return final_name(name) != name


@contextmanager
def atomic_writer(path: str, *, sync: bool = True) -> Iterator[BinaryIO]:
    """A local file that appears whole or not at all. Without `sync`, a power cut may leave it empty."""
    temporary = temporary_name(path)
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if sync:
            sync_folder(os.path.dirname(path) or ".")
    except BaseException as error:
        if os.path.exists(temporary):
            os.unlink(temporary)
        name_file(error, temporary, path)
        raise


def name_file(error: BaseException, temporary: str, path: str) -> None:
    """Completes the system's error for the user, since errors of writes name no file, and others the temporary one."""
    if isinstance(error, OSError) and (error.filename == temporary or (error.filename is None and error.errno in FULL)):
        error.filename = path


def write_json(path: str, value: Any) -> None:
    with atomic_writer(path) as file:
        file.write(json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n")


def read_json(location: str, fix: str = "repair or restore the file") -> Any:
    """Raises `InputError` with line and column, and `fix`, if the file is not JSON."""
    with open_binary(location) as file:
        content = file.read()
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        what = f"is not JSON: {error.msg}"
        raise InputError(what, where=f"{location}:{error.lineno}:{error.colno}", fix=fix) from None
    except UnicodeDecodeError:
        raise InputError("is not JSON: not UTF-8", where=location, fix=fix) from None
    except (ValueError, RecursionError):  # ValueError: a number of more than 4,300 digits
        what = "is unreadable JSON: nested too deeply, or a number too long"
        raise InputError(what, where=location, fix=fix) from None


def read_json_or(default: Any, *path: str) -> Any:
    """The JSON of the file at the joined path; `default` without a file. Raises as `read_json`."""
    location = os.path.join(*path)
    return read_json(location) if os.path.isfile(location) else default


def sha256_of(value: Any) -> str:
    """Digest of a JSON-like value, independent of key order and spacing."""
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    ).hexdigest()


@contextmanager
def new_folder(path: str) -> Iterator[None]:
    """Creates a local folder with its parents; after an exception, deletes those that it created and that are empty."""
    created = []
    current = os.path.abspath(path)
    while not os.path.exists(current):
        created.append(current)
        current = os.path.dirname(current)
    make_folder(path)
    try:
        yield
    except BaseException:
        for folder in created:
            try:
                os.rmdir(folder)
            except OSError:
                break  # it holds files for the next try
        raise


NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""Of `flock` on a file system that has no locks: Lustre mounted without `flock`, NFS without its lock service."""


def _take(path: str) -> tuple[int, bool]:
    """Opens a file, locks it and returns (its descriptor, whether its file system has locks). Raises `Locked` naming
    the holder."""
    folder = os.path.dirname(path)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)  # the umask decides
    except OSError as error:
        fix = "check the permissions, or choose another folder"
        raise InputError(f"cannot be written: {error.strerror}", where=folder, fix=fix) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"
        os.close(descriptor)
        raise Locked(f"is in use by {holder}", where=folder, fix="wait for it, or stop it") from None
    except OSError as error:
        if error.errno in NO_LOCKS:
            return descriptor, False
        os.close(descriptor)
        raise
    return descriptor, True


def _is_still(path: str, descriptor: int) -> bool:
    """Whether `path` is still the open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@functools.cache
def _warn_without_locks() -> None:
    warn("this file system has no locks: do not start a second command that writes the same folder")


@contextmanager
def locked(path: str, *, remove: bool, is_needed: bool = True) -> Iterator[bool]:
    """Holds the local file `path` for as long as this process lives; `remove` deletes it at the end. Yields whether its
    file system has locks. Without locks, warns once, unless two holders would be harmless (`is_needed` False).

    It uses `flock`, not the file's existence, since the kernel releases it after any death. It locks a file
    instead of its folder, since network file systems lock only files open for writing. Raises `Locked` naming the
    holder.
    """
    descriptor, is_held = _take(path)
    while not _is_still(path, descriptor):  # its last holder deleted it before it was locked
        os.close(descriptor)
        descriptor, is_held = _take(path)
    if is_needed and not is_held:
        _warn_without_locks()
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {platform.node()}\n".encode(), 0)
        try:
            yield is_held
        finally:
            if remove:
                with suppress(OSError):
                    os.unlink(path)
    finally:
        os.close(descriptor)


FOLDER_LOCK = ".lock"
"""In an unfinished folder, the file that its process holds."""


def require_empty(folder: str) -> None:
    """Raises `InputError` unless `folder` is absent or empty. Unfinished files of killed processes do not count, nor
    does the folder `lost+found` of a new disk."""
    if not os.path.isdir(folder):
        what = "already exists" if os.path.lexists(folder) else ""
    else:
        is_empty = all(is_temporary(name) or name == "lost+found" for name in os.listdir(folder))
        what = "" if is_empty else "is not empty"
    if what:
        raise InputError(what, where=folder, fix="choose another folder")


@contextmanager
def replaced_folder(path: str) -> Iterator[str]:
    """Yields a temporary folder that becomes the local folder `path` at the end, whole or, after an exception, not at
    all. Raises `InputError` unless `path` is absent or empty.

    Deletes the remains of killed processes for the same folder. An existing empty folder may be a mount point or the
    working directory, which cannot be replaced, so files are made and then moved inside it, with
    manifest.json last.
    """
    path = os.path.realpath(path)
    require_empty(path)
    is_there = os.path.isdir(path)
    stem = os.path.join(path, "unfinished") if is_there else path
    for left in filter(is_temporary, glob.glob(f"{glob.escape(stem)}.tmp-*")):
        _remove_dead(left)
    temporary = temporary_name(stem)
    make_folder(temporary)
    try:
        with locked(os.path.join(temporary, FOLDER_LOCK), remove=False, is_needed=False):
            yield temporary
            if is_there:
                names = sorted({*os.listdir(temporary)} - {FOLDER_LOCK}, key=lambda name: name == "manifest.json")
                for name in names:
                    os.rename(os.path.join(temporary, name), os.path.join(path, name))
            else:
                require_empty(path)
                os.rename(temporary, path)
        if not is_there:  # unlocked first, since NFS keeps a deleted file that is open
            os.unlink(os.path.join(path, FOLDER_LOCK))
    except OSError as error:
        name_file(error, temporary, path)
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _remove_dead(folder: str) -> None:
    """Deletes an unfinished folder unless its process lives. Names are never used again."""
    with suppress(Locked, InputError):
        with locked(os.path.join(folder, FOLDER_LOCK), remove=False, is_needed=False) as is_held:
            pass
        if is_held:
            shutil.rmtree(folder, ignore_errors=True)


def made_once(path: str, find: Callable[[], T | None], make: Callable[[], T]) -> T:
    """The result of `find`, or if that is None of `make`, called under a lock next to `path` in the cache. While
    another process makes it, waits for that process and names it."""
    asked = 0
    with ExitStack() as stack:
        while (value := find()) is None:
            make_cache_folder(os.path.dirname(path))
            try:
                stack.enter_context(locked(f"{path}.lock", remove=True, is_needed=False))
            except Locked as error:
                asked += 1
                if asked == SILENT_WAITS:
                    say(f"{error.where}: {error.what}; waiting for it")
                time.sleep(WAIT_SECONDS)
                continue
            return make() if (value := find()) is None else value
        return value


def users_cache() -> str:
    """$XDG_CACHE_HOME, usually ~/.cache. The home of a user without HOME and entry in /etc/passwd is /, as for `login`;
    `expanduser` would keep the ~."""
    home = os.path.expanduser("~")
    return os.environ.get("XDG_CACHE_HOME") or os.path.join("/" if home == "~" else home, ".cache")


def cache_folder(*names: str) -> str:
    """The cache directory; everything in it can be rebuilt. It is `names` below $MASKWRIGHT_CACHE, or below
    `maskwright` in `users_cache`."""
    return os.path.join(os.environ.get("MASKWRIGHT_CACHE") or os.path.join(users_cache(), "maskwright"), *names)


ANOTHER_DISK = "set MASKWRIGHT_CACHE to a folder with room"


def make_cache_folder(*names: str) -> str:
    """Returns `cache_folder`, created if need be. Raises `InputError` if it cannot be written."""
    folder = cache_folder(*names)
    try:
        make_folder(folder)
    except InputError as error:
        raise InputError(error.what, where=folder, fix=ANOTHER_DISK) from None
    if not os.access(folder, os.W_OK):
        raise InputError("cannot be written", where=folder, fix=ANOTHER_DISK)
    return folder


def make_folder(path: str) -> None:
    """Creates a local folder and its parents. Raises `InputError` if that is not possible."""
    try:
        os.makedirs(path, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InputError("is a file, but a folder is needed", where=path, fix="choose another folder") from None
    except OSError as error:
        fix = "check the permissions, or choose another folder"
        raise InputError(f"cannot be created: {error.strerror}", where=path, fix=fix) from None


# ---- file systems behind URLs: their errors become one line ----------------------------------------------------------

FIRST_CONTACT_SECONDS = 8.0
"""Time in which the store's host must accept a connection. TCP retries after 1, 3 and 7 seconds. gcsfs alone tries six
times with growing pauses, again for each request: 5:35 minutes and 16 tracebacks without a network (measured)."""
NOISY = ("gcsfs", "google", "urllib3", "asyncio", "aiohttp")
"""Loggers of tracebacks and warnings about failures that also raise exceptions."""


def filesystem(location: str, *, reach: bool = True) -> tuple[Any, str]:
    """fsspec's file system of a URL, and the path on it. Raises `InputError` if there is none, and with `reach`
    `MaskwrightError` if Cloud Storage cannot be reached."""
    import fsspec

    for name in NOISY:
        logging.getLogger(name).addHandler(_SILENT)  # adding it again has no effect
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
    except Exception as error:  # a file system may raise any error for a strange address
        raise fault(error, "opened", location) from None
    return files, path


_SILENT = logging.NullHandler()


@functools.cache
def _require_host(address: str) -> None:
    """Raises `MaskwrightError` unless the host accepts a connection; checked once."""
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


def fault(error: BaseException, verb: str, location: str) -> MaskwrightError:
    """The user's error for an error of a file system, after which `location` cannot be `verb` ("read")."""
    from fsspec.registry import known_implementations, registry

    protocol = location.partition("://")[0]
    # For an unreachable server, fsspec also raises FileNotFoundError, from the network's error.
    missing_file = isinstance(error, FileNotFoundError)
    unreachable = _of_the_network(error.__cause__ if missing_file else error)
    if missing_file and unreachable is None:
        return InputError("no such file", where=location, fix="check the path")
    if isinstance(error, ImportError):
        known = known_implementations.get(protocol, {})
        package = known.get("class", error.name or protocol).partition(".")[0]
        if package in EXTRAS:
            return missing(package, location)
        return InputError(f"{protocol}:// needs the package {package}", where=location, fix=f"pip install {package}")
    error = unreachable or error
    message = " ".join(str(error).split()).rstrip(" .") or type(error).__name__
    if user := urlsplit(location).netloc.rpartition("@")[0]:  # botocore quotes the address without its s3://
        message = message.replace(user, "***")
    if unreachable is not None:
        fix = "check the network and the address"
        if isinstance(unreachable, ssl.SSLError):
            fix += ", and set SSL_CERT_FILE if the network has its own certificates"
        return MaskwrightError(f"cannot be {verb}: {message}", where=location, fix=fix)
    if lacks_keys(error):
        return InputError(f"cannot be {verb}: {message}", where=location, fix=KEYS_OF_S3)
    if getattr(error, "code", None) in (401, 403) or isinstance(error, PermissionError):
        fix = "check the permissions; for yours on Google Cloud, run `gcloud auth application-default login`"
        return InputError(f"cannot be {verb}: {message}", where=location, fix=fix)
    if protocol not in known_implementations and protocol not in registry:
        return InputError(
            f"no file system has the name {protocol}://", where=location, fix="give a path, gs:// or s3://"
        )
    return InputError(f"cannot be {verb}: {message}", where=location, fix=ADDRESSES.get(protocol, "check the address"))


KEYS_OF_S3 = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_ENDPOINT_URL for S3 of another provider); public files "
    "have an address with https, such as https://BUCKET.s3.amazonaws.com/FILE"
)


def lacks_keys(error: BaseException) -> bool:
    """Whether it is botocore's error without keys for S3."""
    return type(error).__name__ == "NoCredentialsError"


ADDRESSES = {
    "hf": "write hf://datasets/OWNER/NAME/FILE, or hf://datasets/OWNER/NAME for all its files, or download a copy: "
    "hf download OWNER/NAME --repo-type dataset --local-dir DIR",
    "gs": "write gs://BUCKET/FOLDER",
    "s3": "write s3://BUCKET/FOLDER",
}


def _of_the_network(error: BaseException | None) -> BaseException | None:
    """The error or its cause, if it is the network's; else None."""
    while error is not None and not isinstance(error, socket.gaierror | ConnectionError | TimeoutError | ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error
