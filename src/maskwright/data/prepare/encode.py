"""Token ids of one part's documents: its shards, and the keys of its documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from maskwright.core import extras
from maskwright.core.errors import TokenizerError
from maskwright.data import store
from maskwright.data.encode import Encoded, encode_documents
from maskwright.data.prepare.shards import SIDE, Documents, Form, PartWriter, part_written
from maskwright.text.cleaning.limits import DUPLICATE, KEEP, NAMES, Limits
from maskwright.text.cleaning.steps import CleaningOptions, apply_cleaning
from maskwright.text.compression import changed_while_read
from maskwright.text.dedup import document_keys, held_out, text_key
from maskwright.text.document import Document
from maskwright.text.encoder import Encoder, EncoderName, open_encoder, require_equal
from maskwright.text.parts.columns import Note
from maskwright.text.parts.cut import Part
from maskwright.text.parts.duplicates import IDS, RUN_DOCUMENTS, KeyRuns, Resolved
from maskwright.text.parts.judge import PartReader, batches, read
from maskwright.text.unknown import first_unknown
from maskwright.text.vocabulary import Vocabulary, read_vocabulary

BATCH_CHARACTERS = 4_000_000
"""Text per call to the tokenizer: enough to keep its threads busy, and little enough for a laptop."""
SAMPLE_DOCUMENTS, SAMPLE_CHARACTERS = 32, 500
"""Beginnings of the first documents, on which a fast encoder is compared with the reference encoder in 5 milliseconds.
In each batch, both are compared on the beginning of its first document."""


@dataclass(frozen=True)
class Target:
    """The settings that decide the ids and the split of a document, and the shards."""

    tokenizer: str
    """Its absolute path."""
    tokenizer_name: str
    """The tokenizer as the user named it, for errors."""
    encoder_name: EncoderName
    encoder: str
    """Name of the encoder that was chosen for all parts."""
    valid_fraction: float
    keyed: bool
    """Whether repeats are searched for by keys of ids."""
    form: Form


@dataclass(frozen=True)
class Encode:
    """Encodes a part that is not cleaned. Documents within the limits are encoded, except copies of a text within the
    part. Other repeats are found afterwards, by their ids."""

    limits: Limits
    target: Target

    def __call__(self, task: tuple[tuple[Part, int], str]) -> Note:
        (part, first_file), path = task
        reading, counts = PartReader(part), [0] * len(NAMES)
        with part_written(path, self.target.form) as writer:
            _Encoding(self.target, part, first_file, writer).run(self._kept(reading, counts))
            writer.columns.note |= {**reading.note(), "dropped": counts}
        return writer.columns.note

    def _kept(self, reading: PartReader, counts: list[int]) -> Iterator[Document]:
        seen = set[bytes]()
        for document in reading:
            code = self.limits.code(document)
            if code == KEEP and not self.limits.keep_duplicates:
                if (key := text_key(document.utf8)) in seen:
                    code = DUPLICATE
                elif len(seen) == RUN_DOCUMENTS:
                    seen = {key}
                else:
                    seen.add(key)
            counts[code] += 1
            if code == KEEP:
                yield document


@dataclass(frozen=True)
class EncodeCleaned:
    """Encodes the kept documents of a part that was judged, which is read again."""

    resolved: Resolved
    cleaning: CleaningOptions
    target: Target

    def __call__(self, task: tuple[tuple[Part, int], str]) -> Note:
        (part, first_file), path = task
        changes = Counter[str]()
        with part_written(path, self.target.form) as writer:
            _Encoding(self.target, part, first_file, writer).run(self._kept(part, changes))
            writer.columns.note["changes"] = dict(changes)
        return writer.columns.note

    def _kept(self, part: Part, changes: Counter[str]) -> Iterator[Document]:
        codes = self.resolved.codes(part.number)
        number = -1
        for number, document in enumerate(read(part.open())):
            if number == len(codes):
                raise changed_while_read(document.source)
            if codes[number] == KEEP:
                yield apply_cleaning(document, self.cleaning, changes)
        if number + 1 < len(codes):
            raise changed_while_read(part.files[-1])
        part.require_unchanged()


class _Encoding:
    """Writes a part's documents, and in its note the counts of those without ids and of unknown tokens."""

    def __init__(self, target: Target, part: Part, first_file: int, writer: PartWriter) -> None:
        self.target, self.part, self.writer, self.note = target, part, writer, writer.columns.note
        self.note |= {"unknown": 0, "tokens": 0, "first_unknown": [], "encoded": 0, "empty": 0}
        self.file_number = {name: first_file + index for index, name in enumerate(part.files)}
        self.tools = tools(target.tokenizer, target.encoder_name)
        self.unknown = read_vocabulary(target.tokenizer).unk

    def run(self, documents: Iterator[Document]) -> None:
        runs, sides = KeyRuns(self.writer.columns, IDS), [np.zeros(0, "u1")]
        for batch in batches(documents, BATCH_CHARACTERS):
            encoded, kept = self._encoded(batch)
            ends = np.cumsum(encoded.sizes)
            keys = document_keys(encoded.ids, ends - encoded.sizes, ends)
            decides = keys[:, 0] if self.part.group_column is None else _group_keys(batch)[kept]
            is_valid = held_out(decides, 1.0 if self.part.held_out else self.target.valid_fraction)
            self.writer.add(encoded, is_valid)
            if self.target.keyed:
                runs.add(keys)
                sides.append(is_valid.astype("u1"))
        if self.target.keyed:
            runs.close()
            self.writer.columns.append(SIDE, np.concatenate(sides))

    def _encoded(self, batch: list[Document]) -> tuple[Documents, NDArray[np.bool_]]:
        """(the documents that have ids; [batch] which do)."""
        encoders, byte_length, special = self.tools
        encoder, referee = encoders.get(self.target.encoder), encoders["tokenizers"]
        if encoder is None:
            raise extras.missing("gigatoken", "--encoder")
        if referee is not encoder:
            require_equal(encoder, referee, [batch[0].text[:SAMPLE_CHARACTERS]], self.target.tokenizer_name)
        encoded = encode_documents(encoder, batch, byte_length)
        _require_text(encoded, special, self.target.tokenizer_name)
        self._count_unknown(encoded, batch)
        keep = encoded.document_sizes > 0
        self.note["tokens"] += len(encoded.ids)
        self.note["encoded"] += int(keep.sum())
        self.note["empty"] += int((~keep).sum())
        sentences = encoded.sentence_sizes[encoded.sentence_sizes > 0] if self.target.form.with_sentences else None
        origins = [(self.file_number[document.source], document.line) for document in batch]
        ids = encoded.ids.astype(self.target.form.dtype, copy=False)
        return Documents(ids, encoded.document_sizes[keep], sentences, np.array(origins, "<u8")[keep]), keep

    def _count_unknown(self, encoded: Encoded, documents: list[Document]) -> None:
        """Counts unknown tokens, with the reason for the part's first one."""
        if self.unknown is None or not len(token_idxs := np.flatnonzero(encoded.ids == self.unknown)):
            return
        self.note["unknown"] += len(token_idxs)
        if not self.note["first_unknown"]:
            ends = np.cumsum(encoded.document_sizes)
            document = documents[int(np.searchsorted(ends, token_idxs[0], side="right"))]
            if unknown := first_unknown(self.target.tokenizer, document.text):
                self.note["first_unknown"] = [f"{document.source}:{document.line}", *unknown]


def _group_keys(documents: list[Document]) -> NDArray[np.uint64]:
    """[documents]: 8 bytes of each group's key, as `held_out` takes them."""
    keys = b"".join(text_key(document.group.encode(errors="surrogatepass"))[:8] for document in documents)
    return np.frombuffer(keys, "<u8")


def _require_text(encoded: Encoded, special: NDArray[np.bool_], tokenizer: str) -> None:
    """Raises `TokenizerError` for special ids in a text. `special` [vocabulary]: whether an id is special."""
    if store.special_in(encoded.ids, special) is not None:
        fix = "mark its special tokens as special"
        raise TokenizerError("turned text into special ids", where=tokenizer, fix=fix)


Tools = tuple[dict[str, Encoder], NDArray[np.int32], NDArray[np.bool_]]


def tools(tokenizer: str, name: EncoderName) -> Tools:
    """(encoder and reference encoder by name; [vocabulary] bytes of each id; [vocabulary] whether it is special),
    cached for the process's next part while the tokenizer's files do not change."""
    return _tools(tokenizer, name, read_vocabulary(tokenizer))


@lru_cache(maxsize=1)
def _tools(tokenizer: str, name: EncoderName, vocabulary: Vocabulary) -> Tools:
    encoders = {encoder.name: encoder for encoder in open_encoder(tokenizer, name)}
    return encoders, np.array(vocabulary.byte_length, np.int32), store.special_table(vocabulary)
