"""Checkpoints: a new folder each, of safetensors and JSON only. A checkpoint counts once its manifest is there.

    checkpoints/step-00001200/
      model.safetensors       fp32 parameters under Hugging Face names
      optimizer.safetensors   moments as `exp_avg/<name>`, `exp_avg_sq/<name>`
      state.json              step, counters, fingerprints, configuration
      MANIFEST.json           size and sha256 of each; written last, synced, renamed: no manifest, no checkpoint

Loading checks every byte. If the newest checkpoint is damaged, it is renamed, and the one before it is used with a
warning.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from maskwright.core import storage
from maskwright.core.console import human_bytes, warn
from maskwright.core.errors import CheckpointError, InputError, MaskwrightError
from maskwright.engines.base import TrainState
from maskwright.machine import hardware
from maskwright.run.directory import MANIFEST, step_folder, step_of, whole_steps
from maskwright.training.tensor_file import write_tensors

FORMAT = 1
SMALL_FILES_BYTES = 1 << 20
"""Allowance for headers, state.json and the manifest."""
FILES = ("model.safetensors", "optimizer.safetensors", "state.json")


def save(
    folder: str,
    state: TrainState,
    record: dict[str, Any],
    *,
    keep: int,
    keep_every_steps: int | None = None,
    best: int | None = None,
) -> str:
    """Writes `folder/step-…` and returns it. Then deletes older checkpoints, except the `keep` newest, step `best` and
    those at multiples of `keep_every_steps`.

    `record` goes into state.json. Raises `CheckpointError` before writing if the disk is too full; the older
    checkpoints then stay as they are.
    """
    target = os.path.join(folder, step_folder(state.step))
    if not os.path.exists(os.path.join(target, MANIFEST)):
        storage.make_folder(folder)
        require_space(folder, size_bytes(state))
        if os.path.exists(target):
            shutil.rmtree(target)  # without a manifest, it was left by a kill during this save
        try:
            _write(target, state, record)
        except OSError as error:
            shutil.rmtree(target, ignore_errors=True)
            raise _not_written(target, size_bytes(state), error) from None
    try:
        for step in outdated(whole_steps(folder), keep, keep_every_steps, best):
            # The manifest goes first, so that a kill in between leaves no half checkpoint that looks complete.
            old = os.path.join(folder, step_folder(step))
            os.unlink(os.path.join(old, MANIFEST))
            shutil.rmtree(old)
        _sweep(folder)
    except OSError as error:
        warn(f"{folder}: an old checkpoint cannot be removed: {error}")
    return target


def _sweep(folder: str) -> None:
    """Deletes the remains of a save, a deletion or a fetch that was killed midway."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        is_whole = not storage.is_temporary(name) and os.path.exists(os.path.join(path, MANIFEST))
        if re.fullmatch(r"step-\d{8,}", storage.final_name(name)) and not is_whole:
            shutil.rmtree(path, ignore_errors=True)


def outdated(steps: list[int], keep: int, keep_every_steps: int | None, best: int | None = None) -> list[int]:
    """The ascending `steps` without those that `save` keeps."""
    kept = {step for step in steps if step == best or (keep_every_steps and step % keep_every_steps == 0)}
    return [step for step in steps[:-keep] if step not in kept]


def _not_written(target: str, needed: int, error: OSError) -> CheckpointError:
    free = hardware.free_disk_bytes(os.path.dirname(target))
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    missing = f"; {human_bytes(needed - free)} are missing" if full and free < needed else ""
    return CheckpointError(
        f"cannot be written: {error.strerror or error}{missing}; the checkpoints before it are untouched",
        where=target,
        fix="free disk space, raise the quota or allow writing, and start the same command again",
    )


def _write(target: str, state: TrainState, record: dict[str, Any]) -> None:
    os.makedirs(target)
    model, optimizer, rest = (os.path.join(target, name) for name in FILES)
    moments = {f"{kind}/{name}": array for kind, moment in state.moments.items() for name, array in moment.items()}
    sha256 = {
        FILES[0]: write_tensors(model, state.parameters, {"format": "pt"}),
        FILES[1]: write_tensors(optimizer, moments),
    }
    earlier = {"earlier_updates": state.earlier_updates} if state.earlier_updates else {}
    scale = {"loss_scale": state.loss_scale} if state.loss_scale else {}
    # The last of the files: its folder is synced with it.
    storage.write_json(rest, {**record, "format": FORMAT, "step": state.step, **earlier, **scale})
    sha256[FILES[2]] = storage.sha256_of_file(rest)
    storage.sync_folder(os.path.dirname(target))
    files = {
        name: {"bytes": os.path.getsize(os.path.join(target, name)), "sha256": digest}
        for name, digest in sha256.items()
    }
    storage.write_json(os.path.join(target, MANIFEST), {"format": FORMAT, "files": files})


def size_bytes(state: TrainState) -> int:
    arrays = [*state.parameters.values(), *(array for moment in state.moments.values() for array in moment.values())]
    return sum(array.nbytes for array in arrays) + SMALL_FILES_BYTES


def require_space(folder: str, needed: int) -> None:
    """Raises `CheckpointError` if the disk has fewer than `needed` bytes free."""
    free = hardware.free_disk_bytes(folder)
    if free < needed:
        raise CheckpointError(
            f"the disk has {human_bytes(free)} free, but checkpoints need {human_bytes(needed)}",
            where=folder,
            fix=f"free {human_bytes(needed - free)} and start the same command again",
        )


def load_newest(folder: str, *, set_aside: bool) -> tuple[TrainState, dict[str, Any]] | None:
    """The newest undamaged checkpoint, and its state.json; None if there never was a checkpoint.

    A warning names each damaged checkpoint. With `set_aside`, and once a good one is found, they are renamed to
    `damaged-step-…`. Raises `CheckpointError`, and renames nothing, if every checkpoint is damaged.
    """
    steps = whole_steps(folder)
    damaged = []
    for step in reversed(steps):
        path = os.path.join(folder, step_folder(step))
        try:
            loaded = load(path)
        except CheckpointError as error:
            warn(str(error))
            damaged.append(path)
            continue
        if damaged:
            warn(f"using the checkpoint before: {path}")
        for old in damaged if set_aside else []:
            aside = os.path.join(folder, f"damaged-{os.path.basename(old)}")
            shutil.rmtree(aside, ignore_errors=True)  # from an earlier attempt that ended in the same way
            os.replace(old, aside)
        return loaded
    if steps:
        raise CheckpointError("every checkpoint is damaged", where=folder, fix="start a new run, or restore a copy")
    return None


def load(path: str) -> tuple[TrainState, dict[str, Any]]:
    """Loads a checkpoint. Raises `CheckpointError` naming a bad or missing file, `InputError` for a newer format."""
    try:
        manifest = storage.read_json(os.path.join(path, MANIFEST))
        version = manifest["format"]
        if version == FORMAT:
            return _load(path, manifest)
    except CheckpointError:
        raise
    except (OSError, KeyError, TypeError, ValueError, SafetensorError, MaskwrightError) as error:
        what = error.what if isinstance(error, MaskwrightError) else f"{type(error).__name__}: {error}"
        raise CheckpointError(f"is damaged: {what}", where=path, fix="restore a copy") from None
    # It seems undamaged to this version, so no older one is used instead.
    raise InputError(
        f"has format {str(version)[:20]}, but this version reads {FORMAT}",
        where=path,
        fix="use the maskwright that wrote it",
    )


def _load(path: str, manifest: dict[str, Any]) -> tuple[TrainState, dict[str, Any]]:
    for name in FILES:
        file, expected = os.path.join(path, name), manifest["files"][name]
        if os.path.getsize(file) != expected["bytes"] or storage.sha256_of_file(file) != expected["sha256"]:
            raise CheckpointError("is not what was saved (size or sha256 differs)", where=file, fix="restore a copy")
    record = storage.read_json(os.path.join(path, FILES[2]))
    if record["step"] != step_of(os.path.basename(path)):
        raise CheckpointError(f"holds step {record['step']}", where=path, fix="restore the folder's name")
    moments: dict[str, dict[str, NDArray[np.float32]]] = {}
    for key, array in load_file(os.path.join(path, FILES[1])).items():
        kind, name = key.split("/", 1)
        moments.setdefault(kind, {})[name] = array
    parameters, earlier = load_file(os.path.join(path, FILES[0])), record.get("earlier_updates", 0)
    return TrainState(record["step"], parameters, moments, earlier, record.get("loss_scale")), record
