"""Token stores in a bucket: pushed, pulled, and trained from through a cache on this machine.

Opening such a store downloads its manifest and tokenizer. Each other file is downloaded when it is first read: it is
checked against the manifest before it gets its name. Files that nobody maps make room for it, the oldest first.

    $MASKWRIGHT_CACHE, or $XDG_CACHE_HOME/maskwright     MASKWRIGHT_CACHE_GB limits what lies in stores/
      stores/FINGERPRINT/                                the files of a store that were read
      stores/FINGERPRINT/NAME.BYTES.tmp-0                a file that is being downloaded, locked by its process
      stores/lock                                        held by the one process that changes the folder
"""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import re
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, BinaryIO, Self, TypeVar

from maskwright.core import storage
from maskwright.core.console import human_bytes, progress
from maskwright.core.errors import InputError, MaskwrightError, StoreError
from maskwright.core.folder import TRIES, Folder
from maskwright.data.manifest import checked, is_shard_name, read_manifest

MANIFEST, TOKENIZER = "manifest.json", "tokenizer"
MOST_SMALL_FILES, SMALL_BYTES = 10_000, 4096
"""Limits of an archive: a small file takes a block and an inode of the disk, and nearly no room in the archive."""
NAMES = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
LONGEST_NAME_BYTES = 1 << 20
"""Limit of a header's other values as well."""
PUSH = "push the store again"
AT_ONCE = 4
"""Files that one process transfers at the same time. A file waits for the answers of a bucket, and one connection
rarely fills a link. A file that is cut short starts again from its beginning."""
CLAIM = re.compile(r"\.(\d+)\.tmp-0$")
"""Ends the name of a file that is being downloaded into the cache, with the bytes that it will have."""
SHARE_OF_DISK = 0.9
"""Share of the disk that the cache may fill without MASKWRIGHT_CACHE_GB."""
LARGER = "raise MASKWRIGHT_CACHE_GB, or name a larger disk as MASKWRIGHT_CACHE"
T = TypeVar("T")
Files = dict[str, dict[str, Any]]
"""The manifest's records by file name; empty for the tokenizer's files."""
LOCK = "pull.lock"
"""Lies in a folder that a store is pulled into until all of it is there. It tells a stopped pull from other files."""


class NoRoom(StoreError):
    """The cache is full of mapped files."""


def push(store: str, to: str) -> None:
    """Copies a finished store of this machine to `to`, without files that are there already with the same size. Raises
    `StoreError` for a damaged or missing store, `InputError` if another store lies there."""
    manifest, target = read_manifest(store), Folder(to, reach=True, tries=TRIES)
    other_manifest = target.get_json(MANIFEST)
    if other_manifest is not None and other_manifest.get("fingerprint") != manifest["fingerprint"]:
        raise InputError("another store lies there", where=target.location, fix="choose another folder")
    files = _files(manifest)
    tokenizer: Files = {f"{TOKENIZER}/{name}": {} for name in sorted(os.listdir(os.path.join(store, TOKENIZER)))}

    def send(name: str, record: dict[str, Any]) -> None:
        source = os.path.join(store, name)
        if record and storage.sha256_of_file(source) != record["sha256"]:
            raise StoreError("is not what was written (its sha256 differs)", where=source, fix="prepare again")
        size = os.path.getsize(source)
        if _size(target, name) != size or not record:
            target.upload(source, name)
            if (arrived := _size(target, name)) != size:
                what = f"arrived with {arrived or 0:,} of {size:,} bytes"
                raise MaskwrightError(what, where=f"{target.location}/{name}", fix="run the same command again")

    def check(name: str, record: dict[str, Any]) -> None:
        if target.sha256(name) != record["sha256"]:
            target.remove(name)
            fix = "run the same command again"
            raise MaskwrightError("did not arrive as it was sent", where=f"{target.location}/{name}", fix=fix)

    _each(f"push {target.location}", {**files, **tokenizer}, send)
    _each(f"read back {target.location}", files, check)
    with storage.open_binary(os.path.join(store, MANIFEST)) as file:
        target.put(MANIFEST, file.read())


def pull(location: str, to: str) -> None:
    """Copies a store from `location` to the local folder `to`, or unpacks a `.tar`, `.tar.gz` or `.tgz` there. A
    stopped pull continues. Raises `InputError` if `to` holds something else, `StoreError` for damage."""
    storage.require_local(to)
    if storage.without_query(location).lower().endswith((".tar", ".tar.gz", ".tgz")):
        return _unpack(location, to)
    origin = Folder(location, reach=True, tries=TRIES)
    manifest = _manifest(origin)
    if os.path.exists(os.path.join(to, MANIFEST)) and read_manifest(to)["fingerprint"] != manifest["fingerprint"]:
        raise InputError("another store lies there", where=to, fix="choose another folder")
    begun_here = {MANIFEST, LOCK}
    if os.path.isdir(to) and (names := os.listdir(to)) and not begun_here & {*names}:
        raise InputError("is not empty, and no pull was begun there", where=to, fix="choose another folder")
    lock = os.path.join(to, LOCK)
    with storage.new_folder(to), storage.locked(lock, remove=False):
        _download_store(origin, _files(manifest), to)
        os.unlink(lock)


def remote_manifest(location: str) -> dict[str, Any]:
    """The manifest of the store at the URL `location`, checked. Nothing else is read. Raises `StoreError` where there
    is none."""
    return _manifest(Folder(location, reach=True, tries=TRIES))


class Cache:
    """The files of the store at a URL, on this machine."""

    def __init__(self, location: str) -> None:
        """Raises `StoreError` where there is no store, or a file of it is missing or has another size."""
        self._origin = Folder(location, reach=True, tries=TRIES)
        manifest = _manifest(self._origin)
        self._files, sizes = _files(manifest), self._origin.sizes()
        for name, record in self._files.items():
            where = f"{self._origin.location}/{name}"
            if name not in sizes:
                raise StoreError("is missing", where=where, fix=PUSH)
            if sizes[name] != record["bytes"]:
                what = f"has {sizes[name]:,} bytes, the manifest says {record['bytes']:,}"
                raise StoreError(what, where=where, fix=PUSH)
        self._base = storage.cache_folder("stores")
        self.folder = os.path.join(self._base, manifest["fingerprint"][:32])
        with _locked(self._base):
            cached = os.path.join(self.folder, MANIFEST)
            if not os.path.exists(cached) or storage.read_json(cached) != manifest:  # its tokenizer's roles may differ
                _download_store(self._origin, {}, self.folder)

    def read(self, name: str, read: Callable[[BinaryIO], T]) -> T:
        """Returns `read` of a file, which is downloaded first if it is not here. The file stays in the cache for as
        long as it is open or mapped. Raises `NoRoom`, and `StoreError` for a damaged or missing file."""
        path = os.path.join(self.folder, name)
        while True:
            try:
                with open(path, "rb") as file:
                    # A mapping keeps a duplicate of the descriptor, and with it this lock.
                    fcntl.flock(file, fcntl.LOCK_SH)
                    if os.fstat(file.fileno()).st_nlink:  # else removed before it was locked
                        os.utime(path)
                        return read(file)
            except FileNotFoundError:
                self._fetch(name, path)

    def _fetch(self, name: str, path: str) -> None:
        """Downloads a file, or waits until another process or thread has downloaded it or failed."""
        size, sha256 = self._files[name]["bytes"], self._files[name]["sha256"]
        partial = f"{path}.{size}.tmp-0"
        with ExitStack() as opened:
            with _locked(self._base):
                if os.path.exists(path):
                    return
                if is_ours := _remove_unheld(partial):
                    _make_room(self._base, size)
                    storage.make_folder(self.folder)  # a cache may be deleted while a run reads it
                try:
                    file = opened.enter_context(open(partial, "wb" if is_ours else "rb"))
                except FileNotFoundError:  # it has just failed
                    return
                if is_ours:
                    fcntl.flock(file, fcntl.LOCK_EX)
            if not is_ours:
                return fcntl.flock(file, fcntl.LOCK_SH)
            _download(self._origin, name, partial, sha256)
            # Under the lock, so that a process that counts files sees it under one name. Where the cache was deleted,
            # the file is downloaded again.
            with _locked(self._base), suppress(FileNotFoundError):
                os.replace(partial, path)


def require_room(needed: int, least: int, window_shards: int | None) -> None:
    """Raises `StoreError` if the cache can never hold `needed` bytes. `least`: the need of `data.window_shards: 1`."""
    base = storage.cache_folder("stores")
    if not needed:
        return
    with _locked(base):
        room = _room(base) + sum(map(_bytes_of, [*_shard_files(base), *_claims(base)]))
    if needed > room:
        what = f"a run needs {human_bytes(needed)} of it at once, and it has room for {human_bytes(max(room, 0))}"
        windows = f"{'lower' if window_shards else 'set'} data.window_shards, " if least <= room else ""
        fix = f"{windows}{LARGER}"
        raise StoreError(what, where=base, fix=fix)


# ---- downloading a store ---------------------------------------------------------------------------------------------


def _manifest(origin: Folder) -> dict[str, Any]:
    """The store's manifest, checked. Raises `StoreError` where there is none."""
    content = origin.get(MANIFEST)
    if content is None:
        fix = "correct the address, or push one there: `maskwright data push STORE --to URL`"
        raise StoreError("is not a token store: it has no manifest.json", where=origin.location, fix=fix)
    try:
        manifest = json.loads(content)
    except (ValueError, RecursionError):
        manifest = None
    return checked(manifest, f"{origin.location}/{MANIFEST}")


def _download_store(origin: Folder, files: Files, to: str) -> None:
    """Downloads these files, the tokenizer and the manifest, without files that are here already as the manifest has
    them. The caller holds a lock."""
    storage.make_folder(os.path.join(to, TOKENIZER))
    _remove_temporary(to)
    tokenizer: Files = {f"{TOKENIZER}/{name}": {} for name in origin.names(TOKENIZER)}
    if not tokenizer:
        raise StoreError("has no tokenizer/", where=origin.location, fix="push it again")

    def fetch(name: str, record: dict[str, Any]) -> None:
        path = os.path.join(to, *name.split("/"))
        if not (record and os.path.exists(path) and storage.sha256_of_file(path) == record["sha256"]):
            partial = storage.temporary_name(path)
            _download(origin, name, partial, record.get("sha256"))
            os.replace(partial, path)

    _each(f"pull {origin.location}", {**files, **tokenizer}, fetch)
    with storage.atomic_writer(os.path.join(to, MANIFEST)) as file:
        file.write(origin.get(MANIFEST) or b"")


def _remove_temporary(folder: str) -> None:
    """Removes what a killed process has left."""
    for path in filter(storage.is_temporary, _all_files(folder)):
        _remove_unheld(path)


def _download(origin: Folder, name: str, path: str, sha256: str | None) -> None:
    """Downloads a file. Of one with another digest nothing is left."""
    try:
        for _ in range(2):  # a second time, since what the network spoils is not always an error
            origin.download(name, path)
            if sha256 is None or storage.sha256_of_file(path) == sha256:
                return
        what = "is not what was written (its sha256 differs)"
        raise StoreError(what, where=f"{origin.location}/{name}", fix=PUSH)
    except BaseException as error:
        with suppress(FileNotFoundError):
            os.unlink(path)
        if isinstance(error, FileNotFoundError):
            raise StoreError("is missing", where=f"{origin.location}/{name}", fix=PUSH) from None
        raise


def _each(title: str, files: Files, act: Callable[[str, dict[str, Any]], None]) -> None:
    """Calls `act` on several files at once; after the first failure no other is begun."""
    with progress(title, _bytes(files), "bytes") as bar, ThreadPoolExecutor(AT_ONCE) as pool:
        size = {pool.submit(act, name, record): record.get("bytes", 0) for name, record in files.items()}
        try:
            for done in as_completed(size):
                done.result()
                bar.advance(size[done])
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _files(manifest: dict[str, Any]) -> Files:
    """The records of a store's files by name."""
    return {record["name"]: record for shard in manifest["shards"] for record in shard["files"].values()}


def _bytes(files: Files) -> int:
    return sum(record.get("bytes", 0) for record in files.values())


def _size(folder: Folder, name: str) -> int | None:
    try:
        return int(folder.info(name)["size"])
    except (MaskwrightError, FileNotFoundError):
        return None


# ---- the cache -------------------------------------------------------------------------------------------------------


@contextmanager
def _locked(base: str) -> Iterator[None]:
    """Lets one process and thread at a time count, claim and remove, so that the cache never exceeds its size. Creates
    `base` if need be."""
    storage.make_folder(base)
    with open(os.path.join(base, "lock"), "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make_room(base: str, needed: int) -> None:
    """Removes files that nobody maps, the least recently opened first. Raises `NoRoom` if that is not enough."""
    _remove_temporary(base)
    room, oldest = _room(base), iter(sorted(_shard_files(base), key=os.path.getmtime))
    read_bytes = sum(map(_bytes_of, _claims(base)))
    while room < needed:
        if (path := next(oldest, None)) is None:
            what, fix = f"has room for {human_bytes(max(room, 0))}, and the next file has {human_bytes(needed)}", LARGER
            if read_bytes:
                what += f"; another {human_bytes(read_bytes)} are being read"
                fix = f"wait for the other commands that read them, {LARGER}"
            raise NoRoom(what, where=base, fix=fix)
        if _remove_unheld(path):
            room = _room(base)
        else:
            read_bytes += os.path.getsize(path)


def _room(base: str) -> int:
    """Bytes that are free beside the files and the downloads of the cache."""
    disk, limit = shutil.disk_usage(base), os.environ.get("MASKWRIGHT_CACHE_GB")
    missing_bytes = sum(_bytes_of(path) - _arrived(path) for path in _claims(base))
    free = disk.free - int((1.0 - SHARE_OF_DISK) * disk.total) - missing_bytes
    if limit is None:
        return free
    try:
        limit_bytes = round(float(limit) * 1e9)  # int() takes 0.000009936 for 9,935 bytes
    except (ValueError, OverflowError):
        limit_bytes = -1
    if limit_bytes < 0:
        raise InputError(f"{limit!r} is not a size", where="MASKWRIGHT_CACHE_GB", fix="give gigabytes, such as 200")
    return min(free, limit_bytes - sum(map(_bytes_of, _all_files(base))))


def _claims(base: str) -> list[str]:
    """Files that are being downloaded."""
    return [path for path in _all_files(base) if CLAIM.search(path)]


def _bytes_of(path: str) -> int:
    """The size of a file; of one that is being downloaded, the size that it will have."""
    claim = CLAIM.search(path)
    return int(claim[1]) if claim else os.path.getsize(path)


def _arrived(path: str) -> int:
    try:
        return os.path.getsize(path)
    except FileNotFoundError:  # it has just failed
        return 0


def _remove_unheld(path: str) -> bool:
    """Removes a file that nobody reads or downloads. Returns False if somebody does."""
    try:
        with open(path, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)  # under the lock, so that a process that has just opened it sees that it is gone
    except BlockingIOError:
        return False
    except FileNotFoundError:  # it has just failed
        pass
    return True


def _all_files(base: str) -> list[str]:
    return [os.path.join(root, name) for root, _, names in os.walk(base) for name in names]


def _shard_files(base: str) -> list[str]:
    return [path for path in _all_files(base) if is_shard_name(os.path.basename(path))]


# ---- archives --------------------------------------------------------------------------------------------------------


def _unpack(location: str, to: str) -> None:
    """Raises `InputError` for an archive that is cut or damaged, that leaves its folder, or that holds anything but
    files and folders; nothing of it is left then."""
    try:
        with storage.replaced_folder(to) as partial, storage.open_binary(location) as file:
            room = int(shutil.disk_usage(partial).free * SHARE_OF_DISK)
            is_plain = storage.without_query(location).lower().endswith(".tar")
            stream = file if is_plain else gzip.GzipFile(fileobj=file)
            with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header) as archive:
                for member in _safe(archive, location, room):
                    archive.extract(member, partial, filter="data")
            while stream.read(storage.READ_BYTES):  # tarfile stops before gzip's checksum, which shows a cut
                pass
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        what = f"is not a whole archive: {' '.join(str(error).split())}"
        raise InputError(what, where=location, fix="copy it again from its origin") from None
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        fix = "make an archive of plain files in folders"
        raise InputError("has a file and a folder of one name", where=location, fix=fix) from None
    except OSError as error:
        what = f"cannot be unpacked: {error.strerror or error}"
        raise MaskwrightError(what, where=to, fix="check the disk, the permissions and the network") from None


class _Header(tarfile.TarInfo):
    """Names are read into memory, whatever size they claim; a gigabyte of zeros is a megabyte in the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type in NAMES and header.size > LONGEST_NAME_BYTES:
            raise tarfile.TarError(f"a name claims {header.size:,} bytes")
        return header


def _safe(archive: Iterable[tarfile.TarInfo], location: str, room: int) -> Iterable[tarfile.TarInfo]:
    total = 0
    for number, member in enumerate(archive, 1):
        total += member.size
        what = ""
        if member.name.startswith("/") or ".." in member.name.split("/"):
            what = f"{member.name!r} would leave the folder"
        elif not (member.isfile() or member.isdir()):
            what = f"{member.name!r} is a link or a device"
        elif member.name.count("/") > storage.DEEPEST:
            what = f"its folders are nested more than {storage.DEEPEST} deep"
        elif number > MOST_SMALL_FILES + total / SMALL_BYTES:
            what = f"holds more than {MOST_SMALL_FILES:,} files of less than {human_bytes(SMALL_BYTES)}"
        elif total > room:
            what = f"unpacks to more than the {human_bytes(room)} that are free"
        if what:
            raise InputError(what, where=location, fix="make an archive of plain files that fits")
        yield member
