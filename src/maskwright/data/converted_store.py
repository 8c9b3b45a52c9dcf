"""Files of other tools, opened for training: a folder of Arrow files or of pregenerated epochs is converted to a token
store once, by the code of `maskwright data convert`, and the rows come from that store.

    $MASKWRIGHT_CACHE/converted/NAME/     the store; see `core.storage.cache_folder`

NAME is a digest of the tokenizer, of how the files are read, and of the names, sizes and times of all files that are
read, so a changed folder gets a new store. You may delete all of them while no run trains.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from maskwright.config.data import EPOCHS_ELSEWHERE, Arrow
from maskwright.core import storage
from maskwright.core.console import say
from maskwright.core.errors import ConfigError, InputError, Locked, MaskwrightError, StoreError
from maskwright.data.convert import Conversion, ConvertOptions, convert
from maskwright.data.foreign.columns import arrow_files, counts_files, dataset_files, require_counts
from maskwright.data.foreign.detect import Format, detect
from maskwright.data.foreign.pregenerated import TOKENIZER, epochs_of
from maskwright.data.store import TokenStore
from maskwright.text.compression import stamp_of
from maskwright.text.vocabulary import Vocabulary, read_vocabulary

FORMAT = 2
"""Version of the store of the same files."""


def open_epochs(location: str, tokenizer: str | None = None) -> TokenStore:
    """Opens pregenerated epochs. `tokenizer`: for a folder without one of its own; the continued model's. Raises
    `StoreError` for another folder, and for a broken example with its line."""
    if storage.is_url(location):
        raise InputError(
            "must be a local folder, since it holds pregenerated epochs", where=location, fix=EPOCHS_ELSEWHERE
        )
    epochs_of(location)
    own_tokenizer = os.path.join(location, TOKENIZER)
    tokenizer = own_tokenizer if os.path.isdir(own_tokenizer) else tokenizer
    if tokenizer is None:
        what = f"has no {TOKENIZER}/, but its examples are strings of a tokenizer"
        raise StoreError(what, where=location, fix=f"copy that tokenizer's folder to {own_tokenizer}")
    paths = (os.path.join(folder, name) for folder, names in storage.walk(location) for name in names)
    read = sorted(path for path in paths if os.path.relpath(path, location).startswith("epoch_"))
    options = ConvertOptions(valid_fraction=0.0, special_tokens="remove")
    return _open(location, [location], read, tokenizer, options, "pregenerated")


def open_arrow(location: str, arrow: Arrow, *, all_held_out: bool = False) -> TokenStore:
    """Opens a folder of Arrow files. `all_held_out`: for a folder of held-out text. Raises `StoreError` for a folder
    without such files, a cut file, other counts next to the files, an id beyond the vocabulary, and special tokens that
    are refused; `ConfigError` for keys of `arrow` that do not fit."""
    folders = [os.path.join(storage.require_local(location), *parts, "tokenizer") for parts in ((), ("train",))]
    tokenizer = arrow.tokenizer or next(filter(os.path.isdir, folders), None)
    if tokenizer is None:
        fix = "set data.arrow.tokenizer to the folder of the tokenizer that made the ids"
        raise ConfigError("has no tokenizer/", where=location, fix=fix)
    _require_special_ids(arrow.special_ids or {}, read_vocabulary(tokenizer))
    files, counts = _arrow_files(location), counts_files(location)
    fraction = 1.0 if all_held_out else arrow.valid_fraction
    options = ConvertOptions(fraction, arrow.special_tokens, arrow.token_offset)
    # Counts are among the files that decide the name, so that files are compared again with other counts.
    check = (lambda: require_counts(location, files, arrow.column)) if counts else lambda: None
    return _open(location, files, [*files, *counts], tokenizer, options, "arrow", arrow.column, check)


def is_arrow(folder: str) -> bool:
    """Whether the folder, or one below it, has `.arrow` files."""
    return any(name.endswith(".arrow") for _, names in storage.walk(folder) for name in names)


def _arrow_files(location: str) -> list[str]:
    if not os.path.isdir(location):
        raise StoreError("there is no such folder", where=location, fix="correct the path")
    if os.path.isfile(os.path.join(location, "manifest.json")):
        raise StoreError("is a token store, not Arrow files", where=location, fix="set its format to store")
    if any(os.path.isfile(os.path.join(location, name)) for name in ("state.json", "dataset_dict.json")):
        return dataset_files(location)
    files = arrow_files(location)
    if not files:
        fix = "convert it with `maskwright data convert`"
        raise StoreError(f"holds no .arrow files, but {detect([location])}", where=location, fix=fix)
    return files


def _require_special_ids(special_ids: dict[Any, int], vocabulary: Vocabulary) -> None:
    for name, special_id in special_ids.items():
        if getattr(vocabulary, name) != special_id:
            what = f"{name} is {special_id}, but {getattr(vocabulary, name)} in the tokenizer"
            fix = "name the tokenizer that made the ids as data.arrow.tokenizer, or correct the id"
            raise ConfigError(what, where="data.arrow.special_ids", fix=fix)


# ---- the store in the cache ------------------------------------------------------------------------------------------


def _open(
    location: str,
    places: Iterable[str],
    read: Iterable[str],
    tokenizer: str,
    options: ConvertOptions,
    kind: Format,
    column: str | None = None,
    check: Callable[[], None] = lambda: None,
) -> TokenStore:
    """The store of `places`. `read`: the files that decide it, by name, bytes and time of change. `check`: raises an
    error for files that must not be converted. One process of a machine converts while the others wait."""
    vocabulary = read_vocabulary(tokenizer)
    decided = [FORMAT, vocabulary.fingerprint, vocabulary.rules_record]
    places, states = (
        [*map(os.path.abspath, places)],
        [[os.path.abspath(path), *(stamp_of(path) or ())] for path in read],
    )
    name = storage.sha256_of([*decided, kind, column, asdict(options), places, states])[:32]
    folder = storage.cache_folder("converted", name)

    def find() -> str | None:
        return folder if os.path.exists(os.path.join(folder, "manifest.json")) else None

    def make() -> str:
        check()
        say(f"{location}: creating its token store in {os.path.dirname(folder)}")
        try:
            convert(Conversion(places, tokenizer, folder, options, kind=kind, column=column))
        except Locked:
            raise
        except InputError:  # once the files are right, the store has another name
            shutil.rmtree(folder, ignore_errors=True)
            raise
        except OSError as error:
            where, fix = (
                error.filename or folder,
                f"{storage.ANOTHER_DISK}; or convert it with `maskwright data convert`",
            )
            raise MaskwrightError(f"cannot be written: {error.strerror}", where=where, fix=fix) from None
        return folder

    return TokenStore(location, storage.made_once(folder, find, make))
