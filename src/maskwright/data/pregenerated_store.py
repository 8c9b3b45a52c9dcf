"""Pregenerated epochs, opened for training: the folder is converted to a token store once, and training masks anew.

The store lies in the cache. Its name is a digest of the tokenizer and of the names, sizes and times of all files that
are read, so a changed folder gets a new store. All of them may be deleted while nobody trains.
"""

from __future__ import annotations

import os
import shutil
from functools import partial
from typing import Any

from maskwright.config.data import EPOCHS_ELSEWHERE
from maskwright.core import storage
from maskwright.core.console import say
from maskwright.core.errors import InputError, StoreError
from maskwright.data.convert import Conversion, ConvertOptions, convert
from maskwright.data.foreign.pregenerated import RECORD, TOKENIZER, epochs_of
from maskwright.data.store import TokenStore
from maskwright.text.vocabulary import read_vocabulary

FORMAT = 1
"""Version of the store of the same files."""


def open_epochs(location: str, tokenizer: str | None = None) -> TokenStore:
    """`tokenizer`: for a folder without one of its own; the continued model's. Of several processes one creates
    the store, and the others wait. Raises `StoreError` for another folder, and for a broken example with its line."""
    if storage.is_url(location):
        raise InputError(
            "must be a local folder, since it holds pregenerated epochs", where=location, fix=EPOCHS_ELSEWHERE
        )
    epochs_of(location)
    own_tokenizer = os.path.join(location, TOKENIZER)
    tokenizer = own_tokenizer if os.path.isdir(own_tokenizer) else tokenizer
    if tokenizer is None:
        what = f"has no {TOKENIZER}/, and its examples are the strings of a tokenizer"
        raise StoreError(what, where=location, fix=f"copy that tokenizer's folder to {own_tokenizer}")
    vocabulary = read_vocabulary(tokenizer)
    decided = [FORMAT, vocabulary.fingerprint, vocabulary.rules_record]
    name = storage.sha256_of([*decided, _states(location)])[:32]
    folder = storage.cache_folder("pregenerated", name)
    make = partial(_make, location, tokenizer, folder)
    return TokenStore(location, storage.made_once(folder, lambda: _made(folder), make))


def _states(location: str) -> list[list[Any]]:
    """[location, bytes, time of change] of each file that is read."""
    paths = (os.path.join(folder, name) for folder, names in storage.walk(location) for name in names)
    read = sorted(path for path in paths if os.path.relpath(path, location).startswith(("epoch_", RECORD)))
    states = [(path, os.stat(path)) for path in read]
    return [[os.path.abspath(path), state.st_size, state.st_mtime_ns] for path, state in states]


def _made(folder: str) -> str | None:
    return folder if os.path.exists(os.path.join(folder, "manifest.json")) else None


def _make(location: str, tokenizer: str, folder: str) -> str:
    say(f"{location}: a token store of it is created in {os.path.dirname(folder)}")
    options = ConvertOptions(valid_fraction=0.0, special_tokens="remove")
    try:
        convert(Conversion([location], tokenizer, folder, options, kind="pregenerated"))
    except InputError:  # once the files are right, the store has another name
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder
