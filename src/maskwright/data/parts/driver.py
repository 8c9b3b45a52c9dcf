"""`data prepare` in parts: what the driver alone does between the phases, and the order of the phases.

    cut      large files    where documents end, so that a file is several parts
    judge    each part      why each document goes, and its keys; the files' checksums
    find     ranges of keys exact and near duplicates, over all parts
    encode   each part      ids of the documents that stay
    write    each block     its shards, joined from what the parts hold

The store has the bytes that `prepare` gives.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

import numpy as np

from maskwright.core.console import human_bytes, say, warn
from maskwright.core.runner import Runner
from maskwright.data import prepare as preparing
from maskwright.data import store
from maskwright.data.parts.encode import Block, Encode, Piece
from maskwright.data.parts.folder import VERSION, held, paths_of, write_blocks
from maskwright.data.prepare import SAMPLE_CHARACTERS, SAMPLE_DOCUMENTS, Counts, Request
from maskwright.data.writer import PARTS
from maskwright.text.cleaning import survey
from maskwright.text.cleaning.steps import CleaningOptions, changed
from maskwright.text.cleaning.survey import DUPLICATE, STAYS, TOO_LONG, TOO_SHORT
from maskwright.text.document import Fault
from maskwright.text.encoder import EncoderName, open_encoder, proven
from maskwright.text.parts.columns import Columns, Note
from maskwright.text.parts.cut import Part, cut, digest_of, split
from maskwright.text.parts.judge import Judge
from maskwright.text.parts.phase import compute
from maskwright.text.parts.repeats import Resolved
from maskwright.text.parts.search import resolve
from maskwright.text.tokenizer import copy_tokenizer
from maskwright.text.vocabulary import read_vocabulary


def prepare_in_parts(request: Request, runner: Runner) -> store.TokenStore:
    """Writes the store and returns it opened. The text, the store's folder and the tokenizer's have to be seen by all
    machines that compute. Raises `InputError` as `prepare` does; the fault that comes first in the order of reading."""
    return _Driver(request, runner).run()


def file_records(part: Part) -> list[dict[str, Any]]:
    return part.records()


class _Driver:
    def __init__(self, request: Request, runner: Runner) -> None:
        self.request, self.runner = request, runner
        self.folder = os.path.abspath(request.folder)
        self.work = os.path.join(self.folder, PARTS)
        self.parts = cut(request.all_sources, request.held_out)
        self.cleaning = request.cleaning or CleaningOptions()
        _ = request.file_number  # refuses a file on both sides

    def run(self) -> store.TokenStore:
        if os.path.exists(os.path.join(self.folder, "manifest.json")):
            return self._finished()
        files = [name for one in self.request.all_sources for name in one.files]
        with held(self.request.folder, self.runner, files):
            self.parts = split(self.runner, self.work, self.parts)
            judged = self._judge()
            resolved = resolve(self.runner, self.work, judged, self.parts, self.cleaning, self.request.limits)
            encoded, encoder = self._encode(judged, resolved)
            self._write(judged, encoded, encoder)
        shutil.rmtree(self.work, ignore_errors=True)
        return store.TokenStore(self.request.folder)

    def _finished(self) -> store.TokenStore:
        """The store that is there. Raises `InputError` if it is of other text or options."""
        self.runner.require_seen(self.folder, [name for part in self.parts for name in part.files])
        found: dict[int, list[dict[str, Any]]] = dict(self.runner.run(file_records, self.parts, "hash", self._sizes()))
        origin = self._origin([found[number] for number in range(len(self.parts))])
        ready = self.request.writer(origin).finished()
        assert ready is not None
        shutil.rmtree(self.work, ignore_errors=True)
        return ready

    def _origin(self, records: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """The files' fingerprints in the manifest's order: held-out files last."""
        ordered = sorted(zip(self.parts, records, strict=True), key=lambda pair: pair[0].held_out)
        return [record for _, own in ordered for record in own]

    def _sizes(self) -> list[int]:
        return [part.bytes for part in self.parts]

    # ---- the phases ------------------------------------------------------------------------------------------

    def _judge(self) -> Sequence[tuple[str, Note]]:
        limits, record = self.request.limits, self.request.cleaning_record
        digests = [digest_of(VERSION, part.identity(), record, asdict(limits)) for part in self.parts]
        paths = paths_of(self.work, "judge", digests)
        if done := sum(map(os.path.exists, paths)):
            say(f"continuing with {done:,} of {len(paths):,} parts judged")
        work = Judge(self.cleaning, digest_of(record), limits)
        notes = compute(self.runner, work, [*zip(self.parts, paths, strict=True)], "judge", self._sizes())
        for part, note in zip(self.parts, notes, strict=True):
            sources = self.request.held_out if part.held_out else self.request.sources
            assert sources is not None
            for fault in note["faults"]:
                sources.tell(Fault(*fault))
        self._say_room(sum(note["bytes"] for note in notes))
        return [*zip(paths, notes, strict=True)]

    def _say_room(self, utf8_bytes: int) -> None:
        """A token of about 4 bytes of text takes 2 or 4: in its part, and in the store before the parts go. Ends of
        sentences and documents take up to a fifth of the text."""
        width = np.dtype(store.token_dtype(read_vocabulary(self.request.tokenizer).size)).itemsize
        needed, free = utf8_bytes * (width / 2 + 0.2), shutil.disk_usage(self.folder).free
        line = f"about {human_bytes(needed)} of disk are needed for parts and store, {human_bytes(free)} are free"
        (say if needed < free else warn)(f"{line} at {self.request.folder}")

    def _encode(self, judged: Sequence[tuple[str, Note]], resolved: Resolved) -> tuple[list[tuple[str, Note]], str]:
        request = self.request
        tokenizer = os.path.join(self.work, "tokenizer")
        if not os.path.exists(tokenizer):
            copy_tokenizer(request.tokenizer, tokenizer)
        encoder = self._proven(resolved)
        vocabulary = read_vocabulary(request.tokenizer)
        everything = digest_of([os.path.basename(path) for path, _ in judged])
        options = request.options
        decided = [everything, vocabulary.fingerprint, options.valid_fraction, options.keep_duplicates, encoder]
        paths = paths_of(self.work, "encode", [digest_of(*decided, part.number) for part in self.parts])
        work = Encode(
            resolved,
            request.cleaning,
            request.options.valid_fraction,
            request.kept,
            tokenizer,
            request.tokenizer,
            encoder,
            store.token_dtype(vocabulary.size),
            request.with_sentences,
        )
        numbered = [(part, request.file_number[part.files[0]]) for part in self.parts]
        notes = compute(self.runner, work, [*zip(numbered, paths, strict=True)], "encode", self._sizes())
        return [*zip(paths, notes, strict=True)], encoder

    def _proven(self, resolved: Resolved) -> EncoderName:
        """The encoder that all parts take: the fast one if it gives the slow one's ids on the text's beginning."""
        request = self.request
        encoder, referee = open_encoder(request.tokenizer, request.encoder)
        if referee is not encoder:
            samples = [*islice(self._staying(resolved), SAMPLE_DOCUMENTS)]
            encoder = proven(encoder, referee, samples, request.tokenizer, request.encoder)
        return "gigatoken" if encoder.name == "gigatoken" else "tokenizers"

    def _staying(self, resolved: Resolved) -> Iterator[str]:
        for part in self.parts:
            codes = resolved.codes(part.number)
            if (codes == STAYS).any():
                for document, code in zip(part.open(), codes, strict=False):
                    if code == STAYS:
                        yield changed(document, self.cleaning, Counter()).text[:SAMPLE_CHARACTERS]

    def _write(self, judged: Sequence[tuple[str, Note]], encoded: Sequence[tuple[str, Note]], encoder: str) -> None:
        writer = self.request.writer(self._origin([note["files"] for _, note in judged]))
        files = tuple(path for path, _ in encoded)
        blocks = [*blocks_of(files, self.request.options.shard_tokens)]
        write_blocks(self.runner, writer, self.work, files, blocks)
        for one in self.request.all_sources:
            one.require_unchanged()
        origin = self._origin([note["files"] for _, note in judged])
        self.request.finish(writer, self._counts(judged, encoded), origin, encoder)

    def _counts(self, judged: Sequence[tuple[str, Note]], encoded: Sequence[tuple[str, Note]]) -> Counts:
        reasons, changes = survey.Reasons(), Counter[str]()
        found = Counter[int]()
        for (_, note), (_, end) in zip(judged, encoded, strict=True):
            for code, count in enumerate(end["codes"]):
                found[reasons.code(note["names"][code])] += count
            changes.update(end["changes"])
        empty = sum(end["empty"] for _, end in encoded)
        totals = np.array([found[code] for code in range(len(reasons.names))])
        left_out = survey.by_cleaning(survey.ranked(reasons.names, totals)) if self.request.cleaning else {}
        return Counts(
            read=int(totals.sum()),
            kept=found[STAYS] - empty,
            empty=empty,
            duplicates=found[DUPLICATE],
            too_short=found[TOO_SHORT],
            too_long=found[TOO_LONG],
            left_out=left_out,
            changed=dict(sorted(changes.items())),
        )


def blocks_of(encoded: Sequence[str], shard_tokens: int) -> Iterator[Block]:
    """The blocks that `prepare` would write: one ends with the batch of documents after which it has `shard_tokens`."""
    number = tokens = characters = 0
    pieces: list[Piece] = []
    for part, path in enumerate(encoded):
        file = Columns(path)
        letters = np.concatenate([[0], np.cumsum(file.column("characters"), dtype=np.int64)])
        ids = np.concatenate([[0], np.cumsum(file.column("tokens"), dtype=np.int64)])
        first, done = 0, 0  # the first document that is in no block yet, and the first that is in no batch
        while True:
            wanted = letters[done] + preparing.ENCODE_CHARACTERS - characters
            end = int(np.searchsorted(letters, wanted))
            if end >= len(letters):
                break
            tokens, characters, done = tokens + int(ids[end] - ids[done]), 0, end
            if tokens >= shard_tokens:
                yield Block(number, (*pieces, (part, first, end)), tokens)
                number, tokens, first, pieces = number + 1, 0, end, []
        characters += int(letters[-1] - letters[done])
        tokens += int(ids[-1] - ids[done])
        if first < len(letters) - 1:
            pieces.append((part, first, len(letters) - 1))
    if tokens:
        yield Block(number, tuple(pieces), tokens)
