"""The program of the Job of `env seed`: `python -m maskwright.cloud.provision.fill DISK --source gs://… …`.

It copies the folder of the bucket to the disk, verifies every file by the bucket's checksums, runs the preparation
script, and writes MANIFEST.sha256. Started again, it continues, and correct files stay. With a script, the copy is in
DISK/source, where the script may delete it; a script that was interrupted runs again from its beginning.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from maskwright.cloud.google.rest import Google, bucket_folder
from maskwright.cloud.provision.disk_source import BucketFile, files
from maskwright.core import storage
from maskwright.core.console import human_bytes, say
from maskwright.core.errors import InputError, MaskwrightError
from maskwright.core.folder import each

RESULT = "/dev/termination-log"
"""Kubernetes shows the content of this file as the end of the container."""
NOTES, MANIFEST = ".maskwright", "MANIFEST.sha256"
OURS = (NOTES, MANIFEST, "lost+found")
TRIES = 8
"""Of each file, and of files that differ: 2 rounds."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("disk")
    parser.add_argument("--source", default="")
    parser.add_argument("--prepare", default="")
    parser.add_argument("--result", default=RESULT)
    given = parser.parse_args()
    code, result = 0, dict[str, Any]()
    try:
        result = fill(given.disk, given.source, given.prepare)
    except MaskwrightError as error:
        say(str(error))
        code, result = error.exit_code, {"error": str(error)[:3000]}
    with open(given.result, "w", encoding="utf-8") as file:
        json.dump(result, file)
    sys.exit(code)


def fill(disk: str, source: str, prepare: str) -> dict[str, int | str]:
    """Files, bytes and the digest of the manifest. Raises `MaskwrightError` for a wrong disk."""
    listing = list_source(source) if source else []
    script = storage.sha256_of_file(prepare) if prepare else ""
    wanted = storage.sha256_of([source, script, [vars(file) for file in listing]])
    notes = os.path.join(disk, NOTES, "done.json")
    if storage.read_json_or({}, notes).get("for") != wanted:
        for name in (notes, os.path.join(disk, MANIFEST)):
            if os.path.exists(name):
                os.unlink(name)
        target = os.path.join(disk, "source") if prepare else disk
        if source:
            copy(source, listing, target)
        if prepare:
            _run(prepare, target, disk)
        os.sync()
        storage.make_folder(os.path.dirname(notes))
        storage.write_json(notes, {"for": wanted})
    return write_manifest(disk)


def list_source(source: str) -> list[BucketFile]:
    google = Google(os.environ.get("GOOGLE_CLOUD_PROJECT", ""))
    listing = [file for file in files(google, source) if file.name.split("/")[0] not in OURS]
    if wrong := next((file.name for file in listing if {"", ".", ".."} & set(file.name.split("/"))), None):
        raise InputError(f"{wrong!r} is no name of a file", where=source, fix="rename the object")
    if not listing:
        raise InputError("has no files", where=source, fix="check disk.source")
    return listing


def copy(source: str, listing: list[BucketFile], target: str) -> None:
    """Make `target` the same as the listing. Raises `MaskwrightError` for files that still differ after two rounds."""
    names = {file.name for file in listing}
    for name, path in list(_below(target)):
        if name not in names:
            os.unlink(path)
    free = shutil.disk_usage(os.path.dirname(target) or target).free
    missing = [file for file in listing if _size(os.path.join(target, file.name)) != file.size]
    if (bytes_ := sum(file.size for file in missing)) > free:
        what = f"{human_bytes(bytes_)} do not fit into {human_bytes(free)}"
        raise InputError(what, where=target, fix="raise disk.size_gb")
    folder, bad = bucket_folder(source, tries=TRIES), listing
    for _ in range(2):
        say(f"copy and verify: {len(bad):,} files")

        def bring(file: BucketFile) -> BucketFile | None:
            path = os.path.join(target, file.name)
            if _is_same(path, file):
                return None
            storage.make_folder(os.path.dirname(path))
            folder.download(file.name, path)
            return None if _is_same(path, file) else file

        bad = [file for file in each(bring, bad) if file is not None]
        if not bad:
            return
    what = f"{len(bad):,} files differ from the bucket's, such as {bad[0].name}"
    raise MaskwrightError(what, where=source, fix="stop programs that write there, then run `maskwright env seed`")


def _size(path: str) -> int | None:
    try:
        return os.path.getsize(path)
    except OSError:
        return None


def _is_same(path: str, file: BucketFile) -> bool:
    if _size(path) != file.size:
        return False
    with open(path, "rb") as content:
        return storage.crc32c_of(content) == file.crc32c


def _run(prepare: str, target: str, disk: str) -> None:
    say("prepare")
    code = subprocess.run(["bash", prepare, target, disk], stdin=subprocess.DEVNULL, check=False).returncode
    if code:
        raise MaskwrightError(f"the preparation script ended with {code}", where="disk.prepare", fix="read its output")


def write_manifest(disk: str) -> dict[str, int | str]:
    """A line of `sha256sum` for each file."""
    say("manifest")
    found = sorted(_below(disk))
    digests = each(lambda file: storage.sha256_of_file(file[1]), found)
    text = "".join(f"{digest}  {name}\n" for digest, (name, _) in zip(digests, found, strict=True)).encode()
    with storage.atomic_writer(os.path.join(disk, MANIFEST)) as out:
        out.write(text)
    size = sum(os.path.getsize(path) for _, path in found)
    return {"files": len(found), "bytes": size, "manifest_sha256": hashlib.sha256(text).hexdigest()}


def _below(folder: str) -> Iterator[tuple[str, str]]:
    """(name relative to the folder, path) of each file, except our own."""
    for where, folders, names in os.walk(folder):
        if where == folder:
            folders[:] = [name for name in folders if name not in OURS]
        for name in names:
            path = os.path.join(where, name)
            relative = os.path.relpath(path, folder)
            if relative not in OURS and not os.path.islink(path):
                yield relative, path


if __name__ == "__main__":
    main()
