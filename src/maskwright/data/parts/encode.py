"""The second reading of a part: its documents that stay, encoded; and the shards, joined from what parts hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.core.errors import InputError
from maskwright.data import store
from maskwright.data.encode import encode_documents, without_empty
from maskwright.data.prepare import SAMPLE_CHARACTERS, require_text
from maskwright.data.writer import write_shard
from maskwright.text.cleaning.steps import CleaningOptions, changed
from maskwright.text.cleaning.survey import STAYS
from maskwright.text.compression import changed_while_read
from maskwright.text.dedup import is_held_out
from maskwright.text.document import Document
from maskwright.text.encoder import Encoder, EncoderName, open_encoder, require_equal
from maskwright.text.kept import Kept
from maskwright.text.parts.columns import Columns, ColumnWriter, Note, written
from maskwright.text.parts.cut import Part
from maskwright.text.parts.phase import fault_note
from maskwright.text.parts.repeats import Resolved
from maskwright.text.vocabulary import read_vocabulary

BATCH_CHARACTERS = 2_000_000
SPLITS = ("train", "valid")
EMPTY = 2
"""In the place of a split's number."""


@dataclass(frozen=True)
class Encode:
    """Encodes the documents of a part that stay.

    Its columns, of each such document in the order of reading: `characters`, `tokens`, `sentences`, `valid` (1 where it
    is held out, `EMPTY` where it has no id). Of each split, one document after the other: `SPLIT.ids`,
    `SPLIT.sentences` (the ids in each), `SPLIT.origins` (the number of the file and the line)."""

    resolved: Resolved
    cleaning: CleaningOptions | None
    valid_fraction: float
    kept: Kept
    """What of a document decides about its side."""
    tokenizer: str
    """A copy in the folder of the parts, which all machines see."""
    named: str
    """The tokenizer as the user named it."""
    encoder: EncoderName
    dtype: str
    with_sentences: bool

    def __call__(self, task: tuple[tuple[Part, int], str]) -> Note:
        (part, first_file), path = task
        try:
            with written(path) as writer:
                _Encoding(self, part, first_file, writer).run()
                return writer.note
        except InputError as error:
            return fault_note(error)


@dataclass
class _Encoding:
    work: Encode
    part: Part
    first_file: int
    writer: ColumnWriter
    changes: Counter[str] = field(default_factory=Counter)
    empty: int = 0

    def run(self) -> None:
        work, codes = self.work, self.work.resolved.codes(self.part.number)
        self.file_number = {name: self.first_file + place for place, name in enumerate(self.part.files)}
        self.tools = _tools(work.tokenizer, work.encoder)
        self._begin()
        batch: list[tuple[bool, Document]] = []
        characters = read = 0
        for document in self.part.open():
            if read == len(codes):
                raise changed_while_read(document.source)
            read += 1
            if codes[read - 1] != STAYS:
                continue
            if work.cleaning:
                document = changed(document, work.cleaning, self.changes)
            held_out = self.part.held_out or is_held_out(work.kept.key(document.utf8), work.valid_fraction)
            batch.append((held_out, document))
            characters += document.characters
            if characters >= BATCH_CHARACTERS:
                self._encode(batch)
                batch, characters = [], 0
        self._encode(batch)
        if read < len(codes):
            raise changed_while_read(self.part.files[-1])
        self.part.require_unchanged()
        counts = np.bincount(codes, minlength=1).tolist()
        self.writer.note |= {"codes": counts, "changes": dict(self.changes), "empty": self.empty}

    def _begin(self) -> None:
        """Every column is there, also where nothing stays."""
        for name, kind in (("characters", "<u8"), ("tokens", "<u8"), ("sentences", "<u8"), ("valid", "u1")):
            self.writer.append(name, np.zeros(0, kind))
        for split in SPLITS:
            for name, kind in (("ids", self.work.dtype), ("sentences", "<u4"), ("origins", "<u8")):
                self.writer.append(f"{split}.{name}", np.zeros(0, kind))

    def _encode(self, batch: list[tuple[bool, Document]]) -> None:
        if not batch:
            return
        (encoder, referee), byte_length, special = self.tools
        if referee is not encoder:
            require_equal(encoder, referee, [batch[0][1].text[:SAMPLE_CHARACTERS]], self.work.named)
        valid = np.array([held_out for held_out, _ in batch], "u1")
        tokens, sentences = np.zeros(len(batch), "<u8"), np.zeros(len(batch), "<u8")
        for split, places in zip(SPLITS, (np.flatnonzero(valid == 0), np.flatnonzero(valid)), strict=True):
            if not len(places):
                continue
            documents = [batch[place][1] for place in places]
            encoded = encode_documents(encoder, documents, byte_length)
            require_text(encoded, special, self.work.named)
            tokens[places] = encoded.document_sizes
            encoded, some = without_empty(encoded, documents)
            valid[places[~some]] = EMPTY
            self.empty += len(places) - int(some.sum())
            documents = [batch[place][1] for place in places[some]]
            sentences[places[some]] = [len(document.parts) for document in documents]
            origins = [(self.file_number[document.source], document.line) for document in documents]
            self.writer.append(f"{split}.ids", encoded.ids.astype(self.work.dtype, copy=False))
            self.writer.append(f"{split}.origins", np.array(origins, "<u8").reshape(-1))
            if self.work.with_sentences:
                self.writer.append(f"{split}.sentences", encoded.sentence_sizes.astype("<u4"))
        self.writer.append("characters", np.array([document.characters for _, document in batch], "<u8"))
        self.writer.append("tokens", tokens)
        self.writer.append("sentences", sentences)
        self.writer.append("valid", valid)


@lru_cache(maxsize=1)
def _tools(
    tokenizer: str, encoder: EncoderName
) -> tuple[tuple[Encoder, Encoder], NDArray[np.int32], NDArray[np.bool_]]:
    """((encoder, the one to compare it with), bytes of each id, special ids), kept by a process for its next part."""
    vocabulary = read_vocabulary(tokenizer)
    return open_encoder(tokenizer, encoder), np.array(vocabulary.byte_length, np.int32), store.special_table(vocabulary)


Piece = tuple[int, int, int]
"""Number of a part, and the first and the last (exclusive) of its documents that stay."""


@dataclass(frozen=True)
class Block:
    """Documents that follow each other, whose shards are written at once."""

    number: int
    pieces: tuple[Piece, ...]
    tokens: int


@dataclass(frozen=True)
class WriteBlock:
    """Joins a block's shards from what its parts hold. Memory holds the ends of documents, never all ids."""

    folder: str
    encoded: tuple[str, ...]
    """What is noted of each part."""
    dtype: str
    with_sentences: bool

    def __call__(self, task: tuple[Block, str]) -> Note:
        block, path = task
        with written(path) as writer:
            shards = [self._shard(block, split) for split in SPLITS]
            writer.note = {"shards": [shard for shard in shards if shard]}
        return writer.note

    def _shard(self, block: Block, split: str) -> dict[str, Any] | None:
        ids, sizes, sentences, origins = [], [], [], []
        for part, begin, end in block.pieces:
            file = Columns(self.encoded[part])
            chosen = file.column("valid", 0, end) == SPLITS.index(split)
            before, inside = chosen[:begin], chosen[begin:]
            tokens, parts = file.column("tokens", 0, end), file.column("sentences", 0, end)
            first, own = int(tokens[:begin][before].sum()), tokens[begin:][inside]
            ids += file.pieces(f"{split}.ids", first, first + int(own.sum()))
            sizes.append(own)
            documents = int(before.sum())
            origins.append(file.column(f"{split}.origins", 2 * documents, 2 * (documents + len(own))))
            if self.with_sentences:
                spoken = int(parts[:begin][before].sum())
                count = int(parts[begin:][inside].sum())
                sentences.append(file.column(f"{split}.sentences", spoken, spoken + count))
        if not sum(map(len, ids)):
            return None
        place = (self.folder, split, block.number, self.dtype)
        return write_shard(place, ids, sizes, sentences if self.with_sentences else None, origins)
