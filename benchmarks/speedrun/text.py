"""A track's text: divided once into a part for training and a part for judging, which recipes never see."""

from __future__ import annotations

import glob
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from record import require_same
from tracks import (
    ALPHA,
    AUTHORS,
    BOOKS,
    CHOSEN_BY,
    COMMIT,
    JUDGED,
    JUDGED_ROW,
    JUDGED_ROWS,
    PAIRS,
    REPOSITORY,
    VOCAB_SIZE,
    Track,
)

from maskwright.core import storage
from maskwright.core.console import say
from maskwright.core.errors import InputError
from maskwright.data.prepare.driver import prepare
from maskwright.data.prepare.request import PrepareOptions, Request
from maskwright.data.store import TokenStore
from maskwright.tasks.measure.blimp import read_pairs
from maskwright.text.dedup import is_held_out, text_key
from maskwright.text.sources import Sources
from maskwright.text.tokenizer import train_tokenizer

FILES = "files.json"
"""Names and hashes of the files that the text was made of."""
GET_BOOKS = f"git clone {REPOSITORY} && git -C {os.path.basename(REPOSITORY)} checkout {COMMIT}"
GET_PAIRS = "git clone https://github.com/alexwarstadt/blimp, and give --blimp blimp/data"


@dataclass(frozen=True)
class SpeedrunText:
    """The stores of a track. A recipe trains on `store`, and may choose by its held-out documents. `judged` has other
    documents, and no training process gets its location."""

    store: TokenStore
    judged: TokenStore
    pairs: str | None
    """BLiMP's location, for a track that is judged by it."""
    pairs_sha256: str

    @property
    def fingerprints(self) -> dict[str, str]:
        digests = {"store": self.store.fingerprint, "judged": self.judged.fingerprint}
        digests |= {"tokenizer": self.store.vocabulary.fingerprint}
        return digests | ({"pairs": self.pairs_sha256} if self.pairs else {})


def open_text(track: Track, work: str, locations: Sequence[str], *, pairs: str | None = None) -> SpeedrunText:
    """Prepares the text below `work` unless that is done. Raises `InputError` if the text is not the track's, or is not
    of these files."""
    folder = os.path.join(storage.require_local(work), track.text)
    if os.path.exists(folder):
        _require_made_of(track, folder, locations)
    else:
        if not locations:
            fix = (
                f"give --text with the folder that this makes: {GET_BOOKS}" if track.text == "books" else "give --text"
            )
            raise InputError("holds no prepared text of this track", where=work, fix=fix)
        _prepare(folder, _sources(track, locations))
    store, judged = (TokenStore(os.path.join(folder, name)) for name in ("store", "judged"))
    digest = ""
    if track.metric == "blimp":
        if pairs is None:
            raise InputError(f"the track {track.name} is judged by BLiMP", where="--blimp", fix=GET_PAIRS)
        digest = pairs_sha256(pairs)
        require_same({"pairs": digest}, {"pairs": PAIRS}, pairs, GET_PAIRS)
    text = SpeedrunText(store, judged, pairs if track.metric == "blimp" else None, digest)
    if track.text == "books":
        fix = f"remove the folder, and give --text with what this makes: {GET_BOOKS}"
        require_same(text.fingerprints, BOOKS, folder, fix)
    return text


def _require_made_of(track: Track, folder: str, locations: Sequence[str]) -> None:
    """Raises `InputError` if the prepared text is of other files than those that are given."""
    record = storage.read_json(os.path.join(folder, FILES))
    made_of = record if isinstance(record, dict) else {}
    if locations and made_of.get("files") != _files(_sources(track, locations)):
        fix = "leave --text out to take it, or choose another --work"
        raise InputError("holds the prepared text of other files", where=folder, fix=fix)


def pairs_sha256(location: str) -> str:
    """sha256 of minimal pairs, however they are divided into files."""
    return storage.sha256_of(sorted([pair.paradigm, pair.good, pair.bad] for pair in read_pairs(location)))


def _sources(track: Track, locations: Sequence[str]) -> Sources:
    if track.text == "own":
        return Sources(list(locations))
    if len(locations) > 1:
        raise InputError("needs one folder, the repository's", where="--text", fix=f"give what this makes: {GET_BOOKS}")
    books = [os.path.join(glob.escape(os.path.join(locations[0], name)), "**", "*.md") for name in AUTHORS]
    if lacking := [name for name in AUTHORS if not os.path.isdir(os.path.join(locations[0], name))]:
        raise InputError(f"has no folder {lacking[0]}", where=locations[0], fix=f"give what this makes: {GET_BOOKS}")
    return Sources(books, layout="file")


def _files(sources: Sources) -> list[list[str]]:
    """[name, sha256] of each file."""
    return [[os.path.basename(name), storage.sha256_of_file(name)] for name in sources.files]


def _prepare(folder: str, sources: Sources) -> None:
    """Prepares the stores and the tokenizer."""
    part = f"{folder}.unfinished"
    shutil.rmtree(part, ignore_errors=True)
    storage.make_folder(part)
    _write(part, sources)
    os.rename(part, folder)


def _write(part: str, sources: Sources) -> None:
    """Writes the stores and the tokenizer; the latter too without the documents for judging."""
    divided = {kind: os.path.join(part, f"{kind}.jsonl") for kind in ("store", "judged")}
    counts = _divide(sources, divided)
    if not all(counts.values()):
        what = f"{sum(counts.values()):,} documents are too few to hold some out by their hash"
        raise InputError(what, where=sources.files[0], fix="give more text")
    say(f"{counts['store']:,} documents to train on; {counts['judged']:,} to be judged by")
    tokenizer = os.path.join(part, "tokenizer")
    train_tokenizer(Sources([divided["store"]]), tokenizer, vocab_size=VOCAB_SIZE)
    for kind, share in (("store", CHOSEN_BY), ("judged", 1.0)):
        options = PrepareOptions(valid_fraction=share)
        prepare(Request(Sources([divided[kind]]), tokenizer, os.path.join(part, kind), options))
        os.unlink(divided[kind])
    storage.write_json(os.path.join(part, FILES), {"files": _files(sources)})


def _divide(sources: Sources, files: dict[str, str]) -> dict[str, int]:
    """Writes each document to one of the files, by the hash of its text. Returns the counts."""
    counts = dict.fromkeys(files, 0)
    with open(files["store"], "wb") as store, open(files["judged"], "wb") as judged:
        for document in sources:
            kind = "judged" if is_held_out(text_key(document.utf8), JUDGED) else "store"
            record = json.dumps({"text": document.text}, ensure_ascii=False).encode() + b"\n"
            (judged if kind == "judged" else store).write(record)
            counts[kind] += 1
    return counts


def rules(track: Track, text: SpeedrunText) -> str:
    """The track in words, with the fingerprints that a record must have."""
    lines = [
        f"{track.name}: {track.what}",
        f"  {track.aim}, with p < {ALPHA:g} over at least {track.least_seeds} seeds",
        f"  vocabulary of {VOCAB_SIZE:,}; judged on at most {JUDGED_ROWS:,} rows of {JUDGED_ROW} tokens",
    ]
    for name, store in (("store", text.store), ("judged", text.judged)):
        splits = store.manifest["splits"]
        sizes = ", ".join(f"{splits[side]['tokens']:,} {side}" for side in ("train", "valid") if splits[side]["tokens"])
        lines.append(f"  {name}: {store.location}, {sizes} tokens")
    return "\n".join(
        [*lines, *(f"  fingerprint of {name}: {fingerprint}" for name, fingerprint in text.fingerprints.items())]
    )
