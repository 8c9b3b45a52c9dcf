"""Copies of checkpoints on an object store (`checkpoint.copy_to`), for a machine that may vanish with its disk.

    gs://bucket/runs/one/step-00001200/
      the files of the checkpoint
      config.resolved.json, metrics.jsonl, rollbacks.json     of the run directory at that time
      MANIFEST.json                                           uploaded last, and only if there is none yet

A new machine with an empty run directory fetches the newest complete copy and continues from there.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import random
import shutil
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from fsspec.implementations.local import LocalFileSystem

from maskwright.core import remote, storage
from maskwright.core.console import say, warn
from maskwright.core.errors import CheckpointError, InputError, MaskwrightError
from maskwright.core.secrets import redact
from maskwright.run.directory import RunDirectory, step_folder, step_of
from maskwright.training import checkpoint
from maskwright.training.checkpoint import MANIFEST, outdated

TRIES, FIRST_WAIT_SECONDS = 8, 0.5
"""Waits are 0.5, 1, 2, … seconds, half of each random: a store may be out of reach for a minute."""
FINAL = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, TypeError, ValueError, ImportError)
RESTORE = "restore it, or delete the folder"
RUN_FILES = ("config.resolved.json", "metrics.jsonl", "rollbacks.json")


class Copies:
    """`location`: any URL that fsspec knows. Raises `InputError` if it cannot be opened, `MaskwrightError` if its host
    cannot be reached at the start. Later, `TRIES` are made."""

    def __init__(self, location: str, *, sleep: Callable[[float], None] = time.sleep) -> None:
        if redact(location) != location:
            raise InputError(
                "holds a secret",
                where="checkpoint.copy_to",
                fix="leave it out: file systems find credentials in the environment or their own configuration",
            )
        self.location, self._sleep = location.rstrip("/"), sleep
        if not location.partition("://")[2].strip("/"):
            raise InputError("names no folder", where="checkpoint.copy_to", fix="write it as gs://bucket/folder")
        self._files, self._root = remote.filesystem(self.location)
        if isinstance(self._files, LocalFileSystem):
            self._files.auto_mkdir = True

    def lies_in(self, folder: str) -> bool:
        here, root = os.path.realpath(folder), os.path.realpath(self._root)
        return isinstance(self._files, LocalFileSystem) and os.path.commonpath([here, root]) == here

    def steps(self) -> list[int]:
        """Steps of the complete copies, ascending. Raises `InputError` if a bucket of Cloud Storage does not exist."""

        def look() -> list[str]:
            self._files.invalidate_cache()
            return [str(name) for name in self._files.glob(f"{self._root}/step-*/{MANIFEST}")]

        try:
            names = self._again("list", look)
        except FileNotFoundError:  # other stores list nothing then
            bucket = self._root.partition("/")[0]
            fix = f"correct the name, or create it: gcloud storage buckets create gs://{bucket}"
            raise InputError(f"there is no bucket {bucket}", where=self.location, fix=fix) from None
        steps = [step_of(os.path.basename(os.path.dirname(name))) for name in names]
        return sorted(step for step in steps if step is not None)

    def put(self, directory: RunDirectory, step: int, *, keep: int, keep_every_steps: int | None) -> None:
        """Copies a local checkpoint, then removes outdated copies. Raises `CheckpointError` if that fails."""
        folder, target = os.path.join(directory.checkpoints, step_folder(step)), self._path(step)
        manifest = storage.read_json(os.path.join(folder, MANIFEST))
        if step in self.steps():
            there = json.loads(self._again("read", self._files.cat_file, f"{target}/{MANIFEST}"))
            if any(there["files"][name] != manifest["files"][name] for name in checkpoint.FILES[:2]):
                raise self._taken()
            return
        sources = {name: os.path.join(folder, name) for name in manifest["files"]}
        for name in RUN_FILES:
            content = _read(directory.path(name))
            if content is not None:
                manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
                self._again(f"write {name}", self._files.pipe_file, f"{target}/{name}", content)
                self._require_arrived(f"{target}/{name}", manifest["files"][name], io.BytesIO(content))
        for name, source in sources.items():
            self._again(f"write {name}", self._files.put_file, source, f"{target}/{name}")
            with open(source, "rb") as file:
                self._require_arrived(f"{target}/{name}", manifest["files"][name], file)
        self._commit(f"{target}/{MANIFEST}", json.dumps(manifest, indent=2).encode())
        for old in outdated(self.steps(), keep, keep_every_steps):
            self._remove(old)

    def fetch(self, directory: RunDirectory, require_same: Callable[[dict[str, Any]], None]) -> None:
        """Brings the newest copy into the run directory if it is newer than what is there. A copy that is damaged, or
        from before a rollback of the run, is named in a warning, and the copy before it is taken.

        `require_same` gets the copied run's record and raises if it belongs to another run; nothing is changed then.
        Raises `CheckpointError` if all copies are damaged.
        """
        here = max(checkpoint.whole_steps(directory.checkpoints), default=-1)
        newer = [step for step in self.steps() if step > here]
        for step in reversed(newer):
            try:
                self._bring(directory, step, require_same)
            except CheckpointError as error:
                warn(str(error))
                continue
            say(f"fetched step {step:,} from {self.location}")
            return
        if newer and here < 0:
            raise CheckpointError("every copy is damaged", where=self.location, fix="start a new run elsewhere")

    def _bring(self, directory: RunDirectory, step: int, require_same: Callable[[dict[str, Any]], None]) -> None:
        source, folder = self._path(step), os.path.join(directory.checkpoints, step_folder(step))
        partial = f"{folder}.tmp-{os.getpid()}"
        storage.make_folder(partial)
        try:
            manifest = json.loads(self._again("read", self._files.cat_file, f"{source}/{MANIFEST}"))
            for name in [*checkpoint.FILES, *(n for n in RUN_FILES if n in manifest["files"])]:
                to, wanted = os.path.join(partial, name), manifest["files"][name]["sha256"]
                self._again(f"read {name}", self._files.get_file, f"{source}/{name}", to)
                if storage.sha256_of_file(to) != wanted:
                    raise CheckpointError(
                        "is not what was saved (sha256 differs)", where=f"{self._url(step)}/{name}", fix=RESTORE
                    )
            require_same(storage.read_json(os.path.join(partial, RUN_FILES[0])))
            done, known = (_rollbacks(folder) for folder in (directory.location, partial))
            if done != known[: len(done)]:
                raise CheckpointError("is from before a rollback", where=self._url(step), fix="nothing: it is left out")
            for name in RUN_FILES:
                if os.path.exists(os.path.join(partial, name)):
                    os.replace(os.path.join(partial, name), directory.path(name))
            files = {name: manifest["files"][name] for name in checkpoint.FILES}
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(partial, folder)
            storage.write_json(os.path.join(folder, MANIFEST), {"format": manifest["format"], "files": files})
        except (FileNotFoundError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"is damaged: {error}", where=self._url(step), fix=RESTORE) from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def remove_after(self, step: int) -> None:
        """After a rollback: copies of later steps hold what it left behind."""
        for later in (found for found in self.steps() if found > step):
            self._remove(later)

    def _remove(self, step: int) -> None:
        self._again("remove", self._files.rm_file, f"{self._path(step)}/{MANIFEST}")
        self._again("remove", self._files.rm, self._path(step), recursive=True)

    def _commit(self, path: str, content: bytes) -> None:
        """Creates the manifest object. `create` is a precondition at the store, so one of two writers loses. A retry
        that finds the content of its own first try has won."""
        try:
            self._again("write", self._files.pipe_file, path, content, mode="create")
        except FileExistsError:
            if self._again("read", self._files.cat_file, path) != content:
                raise self._taken() from None

    def _taken(self) -> CheckpointError:
        return CheckpointError(
            "another run writes its checkpoints there",
            where=self.location,
            fix="give each run a checkpoint.copy_to of its own",
        )

    def _require_arrived(self, path: str, expected: dict[str, Any], source: BinaryIO) -> None:
        """Checks by the store's own crc32c if it has one, else by reading the object back."""
        info = self._again("look at", self._files.info, path)
        good = info["size"] == expected["bytes"]
        if good and (known := _crc32c(source)) and "crc32c" in info:
            good = info["crc32c"] == known
        elif good:
            good = self._again("read back", self._sha256, path) == expected["sha256"]
        if not good:
            raise CheckpointError("did not arrive complete", where=path, fix="look at the store and the network")

    def _sha256(self, path: str) -> str:
        sha = hashlib.sha256()
        with self._files.open(path, "rb") as file:
            while block := file.read(storage.READ_BYTES):
                sha.update(block)
        return sha.hexdigest()

    def _again(self, what: str, action: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Calls `action` until it works. Raises errors that will not pass at once, and `CheckpointError` after the last
        try."""
        for number in range(TRIES):
            try:
                return action(*arguments, **options)
            except (MaskwrightError, *FINAL):  # for example StoppedEarly, after a signal
                raise
            except Exception as error:  # each file system has errors of its own
                if number == TRIES - 1 or not _may_pass(error):
                    message = " ".join(str(error).split()) or type(error).__name__
                    raise CheckpointError(
                        f"cannot {what}: {message}", where=self.location, fix="look at the store and the permissions"
                    ) from None
                self._sleep(FIRST_WAIT_SECONDS * 2.0**number * (0.5 + random.random() / 2.0))
        raise AssertionError

    def _path(self, step: int) -> str:
        return f"{self._root}/{step_folder(step)}"

    def _url(self, step: int) -> str:
        return f"{self.location}/{step_folder(step)}"


def _rollbacks(folder: str) -> list[Any]:
    path = os.path.join(folder, "rollbacks.json")
    found = storage.read_json(path) if os.path.exists(path) else []
    return found if isinstance(found, list) else []


def _may_pass(error: Exception) -> bool:
    """Whether trying again may help. HTTP: too many requests, a time-out, the server's own failures. Other errors:
    yes."""
    if str(error).startswith("Forbidden"):  # gcsfs's 403, an OSError without a number
        return False
    code = getattr(error, "code", None) or getattr(error, "status", None)
    return not isinstance(code, int) or code in (408, 429) or code >= 500


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _crc32c(source: BinaryIO) -> str | None:
    """The checksum in base64, as stores write it; None without the package, which gcsfs brings."""
    try:
        import google_crc32c
    except ImportError:
        return None
    checksum = google_crc32c.Checksum()
    while block := source.read(storage.READ_BYTES):
        checksum.update(block)
    return base64.b64encode(checksum.digest()).decode()
