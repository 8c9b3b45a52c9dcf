"""Token stores in a bucket: pushed, pulled, and copied whole into the cache of a machine that trains from one.

    $MASKWRIGHT_CACHE/stores/FINGERPRINT-ORIGINS/   a store, each file compared with its digest; the manifest is last
    ….lock                                          held by the one process that downloads it, while the others wait

See `core.storage.cache_folder`.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from typing import Any, Self

from maskwright.core import storage
from maskwright.core.console import human_bytes, progress
from maskwright.core.errors import FULL, CloudError, InputError, MaskwrightError, StoreError
from maskwright.core.folder import TRIES, Folder
from maskwright.data.manifest import SOURCES, checked, files_of, read_manifest

MANIFEST, TOKENIZER = "manifest.json", "tokenizer"
MOST_SMALL_FILES, SMALL_BYTES = 10_000, 4096
"""Limits of an archive, since a small file needs a block and an inode, but nearly no room in the archive."""
NAMES = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
LONGEST_NAME_BYTES = 1 << 20
"""Limit of a header's other values too."""
PUSH = "push the store again"
AT_ONCE = 4
"""Files that one process transfers at the same time. A file waits for the answers of a bucket, and one connection
rarely fills a link. A file that is cut short starts again from its beginning."""
SHARE_OF_DISK = 0.9
"""Share of the disk's free room that an archive may fill."""
IN_CACHE = "set MASKWRIGHT_CACHE to a folder on a larger disk, or mount the bucket and train from that folder"
Files = dict[str, dict[str, Any]]
"""The manifest's records by file name; empty for the tokenizer's files."""
LOCK = "pull.lock"
"""Lies in a folder until the whole store has been pulled, and so marks a stopped pull."""


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
        if target.size(name) != size or not record:
            target.upload(source, name)
            if (arrived := target.size(name)) != size:
                what = f"arrived with {arrived or 0:,} of {size:,} bytes"
                raise MaskwrightError(what, where=f"{target.location}/{name}", fix="run the same command again")

    def check(name: str, record: dict[str, Any]) -> None:
        if target.sha256(name) == record["sha256"]:
            return
        target.upload(os.path.join(store, name), name)  # the file there has this size, but is from another push
        if target.sha256(name) != record["sha256"]:
            target.remove(name)
            fix = "run the same command again"
            raise MaskwrightError("did not arrive as it was sent", where=f"{target.location}/{name}", fix=fix)

    of_the_origins = _of_the_origins(files)
    of_the_ids = {name: record for name, record in files.items() if name not in of_the_origins}
    # Files that differ between stores of one fingerprint go last, so that an old manifest is wrong only for a moment.
    for part, more in ((of_the_ids, {}), (of_the_origins, tokenizer)):
        _each(f"push {target.location}", {**part, **more}, send)
        _each(f"read back {target.location}", part, check)
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
        raise InputError("is not empty, but no pull was begun there", where=to, fix="choose another folder")
    lock = os.path.join(to, LOCK)
    with storage.new_folder(to), storage.locked(lock, remove=False):
        _download_store(origin, _files(manifest), to, "pull it to a larger disk")
        os.unlink(lock)


def remote_manifest(location: str) -> dict[str, Any]:
    """The manifest of the store at the URL `location`, checked. Nothing else is read. Raises `StoreError` without
    one."""
    return _manifest(Folder(location, reach=True, tries=TRIES))


def cached(location: str) -> str:
    """The folder of the store at the URL `location` in this machine's cache. One process of the machine downloads the
    missing files. Raises `StoreError` if there is no store, for a damaged or missing file, and if the disk has no
    room."""
    origin = Folder(location, reach=True, tries=TRIES)
    manifest = _manifest(origin)
    folder = storage.cache_folder("stores", _cache_name(manifest))

    def find() -> str | None:
        # The tokenizer's roles may differ between stores of one fingerprint.
        return folder if storage.read_json_or(None, folder, MANIFEST) == manifest else None

    def make() -> str:
        _download_store(origin, _files(manifest), folder, IN_CACHE)
        return folder

    return storage.made_once(folder, find, make)


# ---- downloading a store ---------------------------------------------------------------------------------------------


def _manifest(origin: Folder) -> dict[str, Any]:
    """The store's manifest, checked. Raises `StoreError` without one."""
    content = origin.get(MANIFEST)
    if content is None:
        fix = "correct the address, or push one there: `maskwright data push STORE --to URL`"
        raise StoreError("is not a token store: it has no manifest.json", where=origin.location, fix=fix)
    try:
        manifest = json.loads(content)
    except (ValueError, RecursionError):
        manifest = None
    return checked(manifest, f"{origin.location}/{MANIFEST}")


def _download_store(origin: Folder, files: Files, to: str, larger: str) -> None:
    """Downloads these files, the tokenizer and the manifest, except files that are here already and match the manifest.
    The caller holds a lock. `larger`: the fix for a disk without room."""
    storage.make_folder(os.path.join(to, TOKENIZER))
    for root, _, names in os.walk(to):  # of a process that was killed
        for name in filter(storage.is_temporary, names):
            os.unlink(os.path.join(root, name))
    sizes = origin.sizes()
    for name, record in files.items():
        where = f"{origin.location}/{name}"
        if name not in sizes:
            raise StoreError("is missing", where=where, fix=PUSH)
        if sizes[name] != record["bytes"]:
            what = f"has {sizes[name]:,} bytes, but {record['bytes']:,} by the manifest"
            raise StoreError(what, where=where, fix=PUSH)
    tokenizer: Files = {f"{TOKENIZER}/{name}": {} for name in origin.names(TOKENIZER)}
    if not tokenizer:
        raise StoreError("has no tokenizer/", where=origin.location, fix=PUSH)
    missing = {name: record for name, record in files.items() if not _is_here(os.path.join(to, name), record)}
    if _bytes(missing) > (free := shutil.disk_usage(to).free):
        what = f"has {human_bytes(free)} free, but {origin.location} needs {human_bytes(_bytes(missing))}"
        raise StoreError(what, where=to, fix=larger)

    def fetch(name: str, record: dict[str, Any]) -> None:
        path = os.path.join(to, *name.split("/"))
        partial = storage.temporary_name(path)
        try:
            _download(origin, name, partial, record.get("sha256"))
            os.replace(partial, path)
        except CloudError as error:
            # A quota, or a disk that was filled meanwhile. `Folder` blames the bucket for any failure.
            if not isinstance(cause := error.__context__, OSError) or cause.errno not in FULL:
                raise
            raise MaskwrightError(f"cannot be written: {cause.strerror}", where=path, fix=larger) from None

    _each(f"pull {origin.location}", {**missing, **tokenizer}, fetch)
    with storage.atomic_writer(os.path.join(to, MANIFEST)) as file:
        file.write(origin.get(MANIFEST) or b"")


def _is_here(path: str, record: dict[str, Any]) -> bool:
    return os.path.exists(path) and storage.sha256_of_file(path) == record["sha256"]


def _download(origin: Folder, name: str, path: str, sha256: str | None) -> None:
    """Downloads a file, and deletes it if its digest differs."""
    try:
        for _ in range(2):  # twice, since damage by the network is not always an error
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
    """Calls `act` on several files at once; after the first failure, no other begins."""
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
    return {record["name"]: record for record in files_of(manifest)}


def _of_the_origins(files: Files) -> Files:
    """The files with the text's locations, which a store's fingerprint leaves out."""
    return {name: record for name, record in files.items() if name == SOURCES or ".origins." in name}


def _cache_name(manifest: dict[str, Any]) -> str:
    """Stores of one fingerprint, but of text from different places, have separate folders."""
    files = _files(manifest)
    name: str = manifest["fingerprint"][:32]
    if SOURCES not in files:  # an older store, whose sources are in the manifest
        return name
    return f"{name}-{storage.sha256_of([record['sha256'] for record in _of_the_origins(files).values()])[:8]}"


def _bytes(files: Files) -> int:
    return sum(record.get("bytes", 0) for record in files.values())


# ---- archives --------------------------------------------------------------------------------------------------------


def _unpack(location: str, to: str) -> None:
    """Raises `InputError` for an archive that is cut or damaged, that leaves its folder, or that holds anything but
    files and folders; its files are then deleted."""
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
    """Limits names, which are read into memory: a gigabyte of zeros is a megabyte in the archive."""

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
            what = f"unpacks to more than the free {human_bytes(room)}"
        if what:
            raise InputError(what, where=location, fix="make an archive of plain files that fits")
        yield member
