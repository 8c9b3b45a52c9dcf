"""Token ids of one part's documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from maskwright.core import extras
from maskwright.core.errors import InputError, TokenizerError
from maskwright.data import store
from maskwright.data.encode import Encoded, encode_documents, without_empty
from maskwright.data.prepare.blocks import EMPTY, SPLITS
from maskwright.text.cleaning.limits import KEEP
from maskwright.text.cleaning.steps import CleaningOptions, apply_cleaning
from maskwright.text.compression import changed_while_read
from maskwright.text.dedup import held_out
from maskwright.text.document import Document
from maskwright.text.encoder import Encoder, EncoderName, open_encoder, require_equal
from maskwright.text.parts.columns import ColumnWriter, Note, written
from maskwright.text.parts.cut import Part
from maskwright.text.parts.duplicates import RUN_DOCUMENTS, Resolved
from maskwright.text.parts.judge import Judge, Judging, read
from maskwright.text.parts.phase import fault_note
from maskwright.text.text_form import TextForm
from maskwright.text.unknown import first_unknown
from maskwright.text.vocabulary import Vocabulary, read_vocabulary

BATCH_CHARACTERS = 4_000_000
"""Text per call to the tokenizer: enough to keep its threads busy, little enough for a laptop."""
SAMPLE_DOCUMENTS, SAMPLE_CHARACTERS = 32, 500
"""Beginnings of the first documents on which a fast encoder is compared with the reference one: 5 milliseconds. In each
batch, they are compared on the beginning of its first document."""


@dataclass(frozen=True)
class Target:
    """All that decides the ids and the split of a document."""

    tokenizer: str
    """Its absolute path."""
    tokenizer_name: str
    """The tokenizer as the user named it, for errors."""
    encoder_name: EncoderName
    encoder: str
    """Name of the encoder that was chosen for all parts."""
    dtype: str
    with_sentences: bool
    valid_fraction: float
    compared: TextForm
    """The form of a text that decides its split."""


@dataclass(frozen=True)
class JudgeAndEncode:
    """Judges and encodes a part that is not cleaned, in one reading. Documents within the limits are encoded, but for
    repeats within the part. Repeats of other parts are found afterwards."""

    judge: Judge
    target: Target

    def __call__(self, task: tuple[tuple[Part, int], str]) -> Note:
        (part, first_file), path = task
        try:
            with written(path) as writer:
                judging = Judging(self.judge, part, writer)
                _Encoding(self.target, part, first_file, writer).run(self._kept(judging))
                writer.note["files"] = part.records()
                part.require_unchanged()
                return writer.note
        except InputError as error:
            return fault_note(error)

    def _kept(self, judging: Judging) -> Iterator[tuple[int, Document, int]]:
        first_idx, seen = 0, set[bytes]()
        for batch, codes, keys in judging.batches():
            key_bytes, first_halves = keys[:, :2].tobytes(), keys[:, 0].tolist()
            for index in np.flatnonzero(codes == KEEP).tolist():
                key = key_bytes[16 * index : 16 * index + 16]
                if self.judge.limits.keep_duplicates or key not in seen:
                    yield first_idx + index, batch[index], first_halves[index]
                    seen.add(key)
            first_idx += len(batch)
            if len(seen) > RUN_DOCUMENTS:
                seen.clear()


@dataclass(frozen=True)
class Encode:
    """Encodes the kept documents of a cleaned part, which is read again."""

    resolved: Resolved
    cleaning: CleaningOptions
    target: Target

    def __call__(self, task: tuple[tuple[Part, int], str]) -> Note:
        (part, first_file), path = task
        changes = Counter[str]()
        try:
            with written(path) as writer:
                _Encoding(self.target, part, first_file, writer).run(self._kept(part, changes))
                writer.note["changes"] = dict(changes)
                return writer.note
        except InputError as error:
            return fault_note(error)

    def _kept(self, part: Part, changes: Counter[str]) -> Iterator[tuple[int, Document, int]]:
        codes = self.resolved.codes(part.number)
        number = -1
        for number, document in enumerate(read(part.open())):
            if number == len(codes):
                raise changed_while_read(document.source)
            if codes[number] == KEEP:
                clean = apply_cleaning(document, self.cleaning, changes)
                yield number, clean, int.from_bytes(self.target.compared.key(clean.utf8)[:8], "little")
        if number + 1 < len(codes):
            raise changed_while_read(part.files[-1])
        part.require_unchanged()


class _Encoding:
    """Writes the columns of `EncodedParts`."""

    def __init__(self, target: Target, part: Part, first_file: int, writer: ColumnWriter) -> None:
        self.target, self.part, self.writer = target, part, writer
        self.file_number = {name: first_file + index for index, name in enumerate(part.files)}
        self.tools = tools(target.tokenizer, target.encoder_name)
        vocabulary = read_vocabulary(target.tokenizer)
        self.unknown = None if vocabulary.kind == "byte_level_bpe" else vocabulary.unk  # which spells every byte

    def run(self, documents: Iterator[tuple[int, Document, int]]) -> None:
        """`documents`: (number in the part, document, first half of its dedup key)."""
        self._begin()
        batch: list[tuple[int, Document, int]] = []
        characters = 0
        for entry in documents:
            batch.append(entry)
            characters += entry[1].characters
            if characters >= BATCH_CHARACTERS:
                self._encode(batch)
                batch, characters = [], 0
        self._encode(batch)

    def _begin(self) -> None:
        """Creates every column, even where nothing is kept."""
        self.writer.note |= {"unknown": 0, "tokens": 0, "first_unknown": []}
        dtypes = {"documents": "<u4", "tokens": "<u8", "sentences": "<u8", "valid": "u1"}
        for split in SPLITS:
            dtypes |= {f"{split}.ids": self.target.dtype, f"{split}.sentences": "<u4", f"{split}.origins": "<u8"}
        for column, dtype in dtypes.items():
            self.writer.append(column, np.zeros(0, dtype))

    def _encode(self, batch: list[tuple[int, Document, int]]) -> None:
        if not batch:
            return
        encoders, byte_length, special = self.tools
        encoder, referee = encoders.get(self.target.encoder), encoders["tokenizers"]
        if encoder is None:
            raise extras.missing("gigatoken", "--encoder")
        if referee is not encoder:
            require_equal(encoder, referee, [batch[0][1].text[:SAMPLE_CHARACTERS]], self.target.tokenizer_name)
        share = 1.0 if self.part.held_out else self.target.valid_fraction
        side = held_out(np.array([key for _, _, key in batch], np.uint64), share).astype("u1")
        tokens, sentences = np.zeros(len(batch), "<u8"), np.zeros(len(batch), "<u8")
        for split, idxs in zip(SPLITS, (np.flatnonzero(side == 0), np.flatnonzero(side)), strict=True):
            if not len(idxs):
                continue
            documents = [batch[index][1] for index in idxs]
            encoded = encode_documents(encoder, documents, byte_length)
            _require_text(encoded, special, self.target.tokenizer_name)
            tokens[idxs] = encoded.document_sizes
            self._count_unknown(encoded, documents)
            self.writer.note["tokens"] += len(encoded.ids)
            encoded, keep = without_empty(encoded, documents)
            side[idxs[~keep]] = EMPTY
            documents = [batch[index][1] for index in idxs[keep]]
            sentences[idxs[keep]] = [len(document.parts) for document in documents]
            origins = [(self.file_number[document.source], document.line) for document in documents]
            self.writer.append(f"{split}.ids", encoded.ids.astype(self.target.dtype, copy=False))
            self.writer.append(f"{split}.origins", np.array(origins, "<u8").reshape(-1))
            if self.target.with_sentences:
                self.writer.append(f"{split}.sentences", encoded.sentence_sizes.astype("<u4"))
        self.writer.append("documents", np.array([number for number, _, _ in batch], "<u4"))
        self.writer.append("tokens", tokens)
        self.writer.append("sentences", sentences)
        self.writer.append("valid", side)

    def _count_unknown(self, encoded: Encoded, documents: list[Document]) -> None:
        """Counts unknown tokens; says why of the part's first one."""
        if self.unknown is None or not len(token_idxs := np.flatnonzero(encoded.ids == self.unknown)):
            return
        self.writer.note["unknown"] += len(token_idxs)
        if not self.writer.note["first_unknown"]:
            ends = np.cumsum(encoded.document_sizes)
            document = documents[int(np.searchsorted(ends, token_idxs[0], side="right"))]
            if unknown := first_unknown(self.target.tokenizer, document.text):
                self.writer.note["first_unknown"] = [f"{document.source}:{document.line}", *unknown]


def _require_text(encoded: Encoded, special: NDArray[np.bool_], tokenizer: str) -> None:
    """Raises `TokenizerError` for special ids in a text. `special` [vocabulary]: whether an id is special."""
    if store.special_in(encoded.ids, special) is not None:
        fix = "mark its special tokens as special"
        raise TokenizerError("turned text into special ids", where=tokenizer, fix=fix)


Tools = tuple[dict[str, Encoder], NDArray[np.int32], NDArray[np.bool_]]


def tools(tokenizer: str, name: EncoderName) -> Tools:
    """(encoder and reference encoder by name; [vocabulary] bytes of each id; [vocabulary] whether it is special),
    cached for the process's next part, while the tokenizer's files stay as they are."""
    return _tools(tokenizer, name, read_vocabulary(tokenizer))


@lru_cache(maxsize=1)
def _tools(tokenizer: str, name: EncoderName, vocabulary: Vocabulary) -> Tools:
    encoders = {encoder.name: encoder for encoder in open_encoder(tokenizer, name)}
    return encoders, np.array(vocabulary.byte_length, np.int32), store.special_table(vocabulary)
