"""A folder of pregenerated epochs, opened for training.

JSON is read once, into arrays that are kept beside it (`FOLDER/.maskwright`, or in `storage.cache_folder` if it cannot
be written) and are mapped from then on. They are made anew when the file or the tokenizer changes. Of
several processes one makes them and the others wait.
"""

from __future__ import annotations

import glob
import itertools
import os
import shutil
import time
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from maskwright.core import storage
from maskwright.core.console import say
from maskwright.core.errors import InputError, Locked, StoreError
from maskwright.data.pregenerated.examples import EPOCH_AGAIN, ArrayFolder, Examples, arrays_sha256, map_arrays
from maskwright.data.pregenerated.findings import Findings
from maskwright.data.pregenerated.generate import RECORD, TOKENIZER
from maskwright.data.pregenerated.read import Reader, array_epoch, epochs_of
from maskwright.data.store import Split, SplitName
from maskwright.text.vocabulary import Vocabulary, read_vocabulary

FORMAT = 1
"""Of the arrays and of what is counted while they are made."""
WAIT_SECONDS = 0.5


@dataclass(frozen=True)
class Epoch:
    """One file of examples."""

    path: str
    examples: Examples
    sha256: str
    arrays: tuple[str, str] | None = None
    """(folder, sha256) of the arrays that were made of a JSON epoch."""


class PregeneratedStore:
    """What `TokenStore` is to a run. Nothing in it is held out: each epoch has the same text."""

    def __init__(self, location: str, tokenizer: str | None = None) -> None:
        """`tokenizer`: of the model that is continued, for a folder without one of its own.

        Raises `StoreError` for a folder that is none, with the line where an example is broken."""
        self.location = storage.require_local(location)
        paths = epochs_of(location)
        own = os.path.join(location, TOKENIZER)
        if not os.path.isdir(own) and tokenizer is None:
            what = f"has no {TOKENIZER}/, and its examples are the strings of a tokenizer"
            fix = f"copy that tokenizer's folder to {own}, or continue a model that has it: model.init_from"
            raise StoreError(what, where=location, fix=fix)
        self.tokenizer_folder: str = own if os.path.isdir(own) or tokenizer is None else tokenizer
        self.vocabulary: Vocabulary = read_vocabulary(self.tokenizer_folder)
        self.record = _record(location, self.vocabulary)
        self.findings = Findings()
        self.epochs = [self._open(number, path) for number, path in paths.items()]
        decided = ["pregenerated", FORMAT, self.vocabulary.fingerprint, [epoch.sha256 for epoch in self.epochs]]
        found = self.findings
        lacking = found.foreign_masks or found.unknown_tokens or found.special_predictions  # labels are lacking too
        self.fingerprint: str = storage.sha256_of([*decided, self.vocabulary.unk] if lacking else decided)
        splits = {
            "train": {"documents": sum(len(epoch.examples.lengths) for epoch in self.epochs)},
            "valid": {"documents": 0},
        }
        self.manifest: dict[str, Any] = {"splits": splits, "sources": self.record.get("sources", [])}

    def _open(self, number: int, path: str) -> Epoch:
        if path.endswith(".json"):
            words, own = (self.vocabulary, self.tokenizer_folder), bool(self.record)
            examples, made = _converted(self.location, number, path, *words, strict=own)
            self.findings += Findings(**made["findings"])
            if (self.record.get("sha256") or {}).get(f"epoch_{number}", made["sha256"]) != made["sha256"]:
                raise StoreError("is not what was written (its sha256 differs)", where=path, fix=EPOCH_AGAIN)
            return Epoch(path, examples, made["sha256"], (made["folder"], made["arrays"]))
        examples = array_epoch(path, self.location, number)
        sha256 = (self.record.get("sha256") or {}).get(f"epoch_{number}")
        if not isinstance(sha256, str):
            what = f"has no checksum of {os.path.basename(path)}"
            raise StoreError(what, where=os.path.join(self.location, RECORD), fix=EPOCH_AGAIN)
        return Epoch(path, examples, sha256)

    @cached_property
    def starts(self) -> list[int]:
        """[epochs + 1]: the number of each epoch's first example among all."""
        return [0, *itertools.accumulate(len(epoch.examples.lengths) for epoch in self.epochs)]

    def column(self, name: str) -> Any:
        """An array of `Examples` over all epochs, of those that have an entry for each example."""
        return np.concatenate([getattr(epoch.examples, name) for epoch in self.epochs]).astype(np.int64)

    def split(self, name: SplitName) -> Split:
        """Its examples as documents of ids with their masks; none are held out."""
        if name == "valid":
            return Split((), np.zeros(1, np.int64), np.zeros(0, np.int64), None)
        return self.runs("tokens", self.column("lengths"))

    def runs(self, name: str, sizes: Any) -> Split:
        """An array that has `sizes` entries for each example, as one long run."""
        shards = tuple(getattr(epoch.examples, name) for epoch in self.epochs)
        starts = np.array([0, *itertools.accumulate(map(len, shards))], np.int64)
        return Split(shards, starts, np.cumsum(sizes), None)

    def require_tokenizer(self, vocabulary: Vocabulary, where: str) -> None:
        """Raises `StoreError` if `vocabulary` (read from `where`) is not the one of these examples."""
        if vocabulary.fingerprint != self.vocabulary.fingerprint:
            what = f"has the tokenizer {self.vocabulary.fingerprint[:12]}, not {vocabulary.fingerprint[:12]} of {where}"
            raise StoreError(what, where=self.location, fix="pregenerate the text again with that tokenizer")

    def origin(self, split: SplitName, document: int) -> str:
        """`file:line` of an example; of a binary epoch, the number of the example in place of the line."""
        number = int(np.searchsorted(self.starts, document, side="right")) - 1
        return f"{self.epochs[number].path}:{document - self.starts[number] + 1}"

    def verify(self) -> None:
        """Reads every byte. Raises `StoreError` when a file is not what it was when it was opened first or written."""
        for epoch in self.epochs:
            found = arrays_sha256(epoch.path) if epoch.arrays is None else storage.sha256_of_file(epoch.path)
            if found != epoch.sha256:
                raise StoreError("is not what was written (its sha256 differs)", where=epoch.path, fix=EPOCH_AGAIN)
            if epoch.arrays is not None and arrays_sha256(epoch.arrays[0]) != epoch.arrays[1]:
                what = f"holds other arrays than were made of {epoch.path} (their sha256 differs)"
                raise StoreError(what, where=epoch.arrays[0], fix="delete that folder: it is made again")

    def warnings(self) -> list[str]:
        """What is wrong in the examples, and how to repair it."""
        options = self.record.get("options") or self.record.get("repaired") or {"do_whole_word_mask": True}
        wrong = self.findings.wrong(self.vocabulary.mask_token, whole_words=options["do_whole_word_mask"])
        repair = f"`maskwright data pregenerate --repair {self.location} --bert_model {self.tokenizer_folder} "
        repair += "--output_dir FOLDER` repairs what can be; training takes the examples as they are"
        more = [repair] if wrong and not self.record else []
        return [*(f"{self.location}: {sentence}" for sentence in wrong), *more]


def _record(folder: str, vocabulary: Vocabulary) -> dict[str, Any]:
    """What `data pregenerate` wrote of itself; empty for the original script's folders."""
    path = os.path.join(folder, RECORD)
    if not os.path.exists(path):
        return {}
    record = storage.read_json(path)
    if not isinstance(record, dict) or record.get("finished") is not True:
        fix = "run the same `maskwright data pregenerate` again: it continues"
        raise StoreError("its generation never finished", where=folder, fix=fix)
    if record.get("tokenizer") != vocabulary.fingerprint:
        what = "its tokenizer is not the one that its examples were made with"
        raise StoreError(what, where=os.path.join(folder, TOKENIZER), fix="put that tokenizer back")
    return record


# ---- JSON to arrays --------------------------------------------------------------------------------------------------


def _converted(
    folder: str, number: int, path: str, vocabulary: Vocabulary, tokenizer: str, *, strict: bool
) -> tuple[Examples, dict[str, Any]]:
    """The arrays of a JSON epoch, and the record of how they were made and in which `folder`. Raises `StoreError`."""
    status = os.stat(path)
    wanted = {
        "format": FORMAT,
        "bytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "tokenizer": vocabulary.fingerprint,
        "special": [vocabulary.unk, storage.sha256_of(sorted(vocabulary.special))],
    }
    base = _cache_of(folder)
    place = os.path.join(base, f"epoch_{number}-{vocabulary.fingerprint[:12]}")
    while True:
        if (found := _made(place)) and {key: found.get(key) for key in wanted} == wanted:
            return map_arrays(place), found | {"folder": place}
        try:
            with storage.locked(f"{place}.lock", remove=False):
                if (found := _made(place)) is None or {key: found.get(key) for key in wanted} != wanted:
                    say(f"reading {path} into {place}")
                    _convert(folder, number, place, Reader(vocabulary, tokenizer, strict=strict), wanted)
        except Locked:  # another process makes them
            time.sleep(WAIT_SECONDS)


def _cache_of(folder: str) -> str:
    beside = os.path.join(folder, ".maskwright")
    try:
        os.makedirs(beside, exist_ok=True)
        if os.access(beside, os.W_OK):
            return beside
    except OSError:
        pass
    place = storage.cache_folder("pregenerated", storage.sha256_of(os.path.abspath(folder))[:16])
    storage.make_folder(place)
    return place


def _made(place: str) -> dict[str, Any] | None:
    path = os.path.join(place, "record.json")
    try:
        record = storage.read_json(path) if os.path.exists(path) else None
    except InputError:
        return None
    return record if isinstance(record, dict) else None


def _convert(folder: str, number: int, place: str, reader: Reader, wanted: dict[str, Any]) -> None:
    temporary = f"{place}.tmp-{os.getpid()}"
    for left in glob.glob(f"{glob.escape(place)}.tmp-*"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    try:
        with ArrayFolder(temporary, reader.vocabulary.size) as arrays:
            for some, _ in reader.json_epoch(folder, number):
                arrays.write(some)
        sha256 = storage.sha256_of_file(os.path.join(folder, f"epoch_{number}.json"))
        record = {**wanted, "sha256": sha256, "arrays": arrays_sha256(temporary), "findings": asdict(reader.findings)}
        storage.write_json(os.path.join(temporary, "record.json"), record)
        shutil.rmtree(place, ignore_errors=True)
        os.rename(temporary, place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
