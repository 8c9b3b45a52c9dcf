"""Copies of checkpoints on an object store (`checkpoint.copy_to`), for a machine that may be lost with its disk.

    gs://bucket/runs/one/step-00001200/
      the files of the checkpoint
      config.resolved.json, metrics.jsonl,
      history.jsonl, data.json                                of the run directory at that time
      sync/                                                   of the trackers, so that their run continues
      tokenizer/                                              so that the model can be used without the store
      MANIFEST.json                                           uploaded last, and only if there is none yet
    gs://bucket/runs/one/ended.json                           files after the run's last save, once it has ended ended
    gs://bucket/runs/one/starts.json                          its starts and limits (`run/starts.py`), until it ends

A new machine with an empty run directory fetches the newest complete copy and continues from there.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from maskwright.core import storage
from maskwright.core.console import say, warn
from maskwright.core.errors import CheckpointError, InputError
from maskwright.core.folder import TRIES, Folder
from maskwright.run.directory import (
    DATA_CARD,
    ENDED,
    ENDED_FILES,
    HISTORY,
    MANIFEST,
    RunDirectory,
    ended_files,
    step_folder,
    step_of,
    whole_steps,
)
from maskwright.run.heartbeat import read_local
from maskwright.run.record import CONFIG, RunRecord, parse
from maskwright.training import checkpoint
from maskwright.training.checkpoint import outdated

RESTORE = "restore it, or delete the folder"
RUN_FILES = (CONFIG, "metrics.jsonl", HISTORY, DATA_CARD, "sync/wandb.json", "sync/mlflow.json")
"""With the last two, the services' run continues on another machine."""
TOKENIZER = "tokenizer"


class Copies:
    """`location`: any URL that fsspec supports. Raises `InputError` if it cannot be opened, `MaskwrightError` if its
    host cannot be reached at the start, or an access fails each of `folder.TRIES` times later."""

    def __init__(self, location: str, reach: bool = True, *, sleep: Callable[[float], None] = time.sleep) -> None:
        if not location.partition("://")[2].strip("/") or location.startswith("http"):
            fix = "write checkpoint.copy_to as gs://bucket/folder, or file://FOLDER"
            raise InputError("names no folder of a store", where=location, fix=fix)
        self.folder = Folder(location, reach=reach, tries=TRIES, sleep=sleep)
        self.location = self.folder.location

    def lies_in(self, folder: str) -> bool:
        path, root = os.path.realpath(folder), os.path.realpath(self.folder.path or "/")
        return os.path.commonpath([path, root]) == path

    def steps(self) -> list[int]:
        """Steps of the complete copies, ascending. Raises `InputError` if a bucket of Cloud Storage does not exist."""
        return whole_steps(self.folder)

    def newest(self) -> tuple[int, str] | None:
        """(step, a hash of the manifest) of the newest complete copy."""
        if not (steps := self.steps()):
            return None
        return steps[-1], storage.sha256_of(self.folder.get_json(f"{step_folder(steps[-1])}/{MANIFEST}"))

    def put(
        self, directory: RunDirectory, step: int, keep: int, keep_every_steps: int | None, *, best: int | None = None
    ) -> None:
        """Copies a local checkpoint, then deletes copies that are outdated or unfinished. Raises `CheckpointError` if
        that fails."""
        folder, target = os.path.join(directory.checkpoints, step_folder(step)), step_folder(step)
        manifest = storage.read_json(os.path.join(folder, MANIFEST))
        if step in self.steps():
            copied = self.folder.get_json(f"{target}/{MANIFEST}") or {}
            if any(copied["files"][name] != manifest["files"][name] for name in checkpoint.FILES[:2]):
                raise self._taken()
            return
        sources = {name: os.path.join(folder, name) for name in manifest["files"]}
        for name in _run_files(directory):
            content = read_local(directory.path(name))
            if content is not None:
                manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
                self.folder.put(f"{target}/{name}", content)
                self._require_arrived(f"{target}/{name}", manifest["files"][name], io.BytesIO(content))
        for name, source in sources.items():
            self.folder.upload(source, f"{target}/{name}")
            with open(source, "rb") as file:
                self._require_arrived(f"{target}/{name}", manifest["files"][name], file)
        if not self.folder.create(f"{target}/{MANIFEST}", json.dumps(manifest, indent=2).encode()):
            raise self._taken()  # one of two writers loses
        whole = self.steps()
        for old in outdated(whole, keep, keep_every_steps, best=best):
            self._remove(old)
        for found in map(step_of, self.folder.folders()):
            if found is not None and found < step and found not in whole:  # its machine was lost while it was copied
                self._remove(found)

    def put_ended(self, directory: RunDirectory, step: int) -> None:
        """Copies the run's files from after its last save at `step`. Raises `CheckpointError` if that fails."""
        contents = {name: read_local(directory.path(name)) for name in ENDED_FILES}
        files = {name: text.decode(errors="replace") for name, text in contents.items() if text is not None}
        content = json.dumps({"step": step, "files": files}).encode()
        self.folder.put(ENDED, content)
        expected = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        self._require_arrived(ENDED, expected, io.BytesIO(content))

    def fetch_ended(self, directory: RunDirectory) -> None:
        """Brings what `put_ended` has copied, if the run has not gone on since the newest checkpoint in `directory`."""
        for name, text in ended_files(self.folder, directory.newest_step()).items():
            with storage.atomic_writer(directory.path(name)) as file:
                file.write(text.encode())

    def fetch(self, directory: RunDirectory, require_same: Callable[[RunRecord], None]) -> None:
        """Downloads the newest copy if it is newer than the run directory's checkpoints, and the best if it lacks it.
        A copy that is damaged is named in a warning, and the copy before it is used.

        `require_same` gets the copied run's record and raises if it belongs to another run; then nothing changes.
        Raises `CheckpointError` if all copies are damaged.
        """
        newest_local = max(checkpoint.whole_steps(directory.checkpoints), default=-1)
        newer = [step for step in self.steps() if step > newest_local]
        for step in reversed(newer):
            try:
                self._bring(directory, step, require_same)
            except CheckpointError as error:
                warn(str(error))
                continue
            say(f"fetched step {step:,} from {self.location}")
            break
        else:
            if newer and newest_local < 0:
                raise CheckpointError("every copy is damaged", where=self.location, fix="start a new run elsewhere")
        self._bring_best(directory, require_same)

    def _bring_best(self, directory: RunDirectory, require_same: Callable[[RunRecord], None]) -> None:
        """Downloads the best checkpoint if the run directory lacks it, as after a fetch that was cut off, since a run
        without it forgets its best evaluation and then deletes the copy."""
        local = checkpoint.whole_steps(directory.checkpoints)
        if not local:
            return
        try:
            state = storage.read_json(os.path.join(directory.checkpoints, step_folder(local[-1]), "state.json"))
        except InputError:  # loading it names the damage
            return
        best = state.get("best_step") if isinstance(state, dict) else None
        if best is not None and best not in local and best in self.steps():
            self._bring(directory, best, require_same, with_records=False)

    def _bring(
        self,
        directory: RunDirectory,
        step: int,
        require_same: Callable[[RunRecord], None],
        *,
        with_records: bool = True,
    ) -> None:
        source, folder = step_folder(step), os.path.join(directory.checkpoints, step_folder(step))
        shutil.rmtree(folder, ignore_errors=True)  # it is not whole
        try:
            with storage.replaced_folder(folder) as partial:
                manifest = self.folder.get_json(f"{source}/{MANIFEST}") or {}
                of_run = [name for name in manifest["files"] if _is_run_file(name)]
                for name in [*checkpoint.FILES, *of_run]:
                    path, sha256 = os.path.join(partial, name), manifest["files"][name]["sha256"]
                    storage.make_folder(os.path.dirname(path))
                    self.folder.download(f"{source}/{name}", path)
                    if storage.sha256_of_file(path) != sha256:
                        what = "is not what was saved (sha256 differs)"
                        raise CheckpointError(what, where=f"{self._url(step)}/{name}", fix=RESTORE)
                require_same(parse(storage.read_json(os.path.join(partial, CONFIG)), f"{self._url(step)}/{CONFIG}"))
                for name in of_run if with_records else ():
                    storage.make_folder(os.path.dirname(directory.path(name)))
                    os.replace(os.path.join(partial, name), directory.path(name))
                for name in of_run if not with_records else ():
                    os.unlink(os.path.join(partial, name))
                for inner in {os.path.dirname(name) for name in of_run} - {""}:
                    os.rmdir(os.path.join(partial, inner))
                files = {name: manifest["files"][name] for name in checkpoint.FILES}
                storage.write_json(os.path.join(partial, MANIFEST), {"format": manifest["format"], "files": files})
        except (FileNotFoundError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"is damaged: {error}", where=self._url(step), fix=RESTORE) from None

    def _remove(self, step: int) -> None:
        self.folder.remove(f"{step_folder(step)}/{MANIFEST}")
        self.folder.remove(step_folder(step), recursive=True)

    def _taken(self) -> CheckpointError:
        return CheckpointError(
            "another run writes its checkpoints there",
            where=self.location,
            fix="give each run a checkpoint.copy_to of its own",
        )

    def _require_arrived(self, name: str, expected: dict[str, Any], source: BinaryIO) -> None:
        """Checks an upload by the store's own crc32c if it has one, else by reading the object back."""
        info = self.folder.info(name)
        good = info["size"] == expected["bytes"]
        if good and (known := storage.crc32c_of(source)) and "crc32c" in info:
            good = info["crc32c"] == known
        elif good:
            good = self.folder.sha256(name) == expected["sha256"]
        if not good:
            fix = "check the store and the network"
            raise CheckpointError("did not arrive complete", where=f"{self.location}/{name}", fix=fix)

    def _url(self, step: int) -> str:
        return f"{self.location}/{step_folder(step)}"


def _run_files(directory: RunDirectory) -> list[str]:
    tokenizer = directory.path(TOKENIZER)
    names = sorted(os.listdir(tokenizer)) if os.path.isdir(tokenizer) else []
    return [*RUN_FILES, *(f"{TOKENIZER}/{name}" for name in names if not storage.is_temporary(name))]


def _is_run_file(name: str) -> bool:
    folder, _, file = name.rpartition("/")
    return name in RUN_FILES or (folder == TOKENIZER and file not in ("", ".", ".."))
