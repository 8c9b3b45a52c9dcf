"""Opens the model and the texts that a run's record names, and compares each text with the record."""

from __future__ import annotations

import os
from typing import Literal

from maskwright.core import storage
from maskwright.core.errors import InputError
from maskwright.data.mixture import Mixture, open_source
from maskwright.data.opening import open_held_out
from maskwright.data.store import TokenStore
from maskwright.model.config import ModelConfig, config_at, recorded_config
from maskwright.run.directory import MANIFEST, RunDirectory, step_folder
from maskwright.run.record import FromRun, RunRecord, Via


def weights_sha256(checkpoint: str) -> str:
    return str(storage.read_json(os.path.join(checkpoint, MANIFEST))["files"]["model.safetensors"]["sha256"])


def from_run(
    directory: RunDirectory, record: RunRecord, step: int, via: Via, optimizer: Literal["kept", "fresh"]
) -> FromRun:
    """The record of a run that begins from that step of another."""
    folder = os.path.join(directory.checkpoints, step_folder(step))
    return FromRun(
        run=directory.location,
        step=step,
        optimizer=optimizer,
        via=via,
        weights_sha256=weights_sha256(folder),
        digest=record.digest,
        text=record.train.fingerprint,
        tokens=storage.read_json(os.path.join(folder, "state.json"))["counters"]["tokens"],
        seed=record.config.seed,
        seq_len=record.pretraining.data.seq_len if record.kind == "pretrain" else None,
        began_from=record.began_from,
    )


def without_checkpoint(where: str) -> InputError:
    fix = "wait until its training saves one, or start its command again if it was interrupted"
    return InputError("has no checkpoint yet", where=where, fix=fix)


def model_at(record: RunRecord, step: int, where: str) -> ModelConfig:
    """The shape after `step` updates. Raises `InputError` for a record without one."""
    model = recorded_config(record.model, where)
    return config_at(model, record.pretraining, step) if record.kind == "pretrain" else model


def held_out_stores(record: RunRecord) -> dict[str, TokenStore]:
    """The stores that judge a pretraining run, by name. Raises `InputError` without stores, and for a store that has
    changed."""
    data = record.pretraining.data
    if not record.held_out or (data.format == "pregenerated" and not data.held_out):  # each epoch has the same text
        fix = "name a store of held-out text: `maskwright evaluate --store`"
        raise InputError("none of the run's text was held out", where=record.train.location, fix=fix)
    if data.held_out:
        stores = open_held_out(data)
    elif data.mixture is not None:
        stores = Mixture(data.mixture, data.mixture_alpha).held_out
    else:
        stores = {"": open_source(record.train.location, data.format, data.arrow)}
    for name, store in stores.items():
        record.held_out[name].require(store.fingerprint)
    return stores
