"""What `data prepare` makes of a text, document by document and with everything in memory."""

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from maskwright.data.encode import encode_documents
from maskwright.data.prepare.request import Request
from maskwright.data.store import TokenStore, token_dtype
from maskwright.text.cleaning.contamination import read_evaluations
from maskwright.text.cleaning.steps import Cleaner, CleaningOptions, apply_cleaning
from maskwright.text.dedup import is_held_out, text_key
from maskwright.text.document import Document
from maskwright.text.encoder import TokenizersEncoder
from maskwright.text.vocabulary import read_vocabulary

Kept = tuple[Document, list[int], list[int]]
"""(document, ids, tokens of each sentence)"""
ROLES = ("tokens", "documents", "sentences", "origins")


@dataclass
class Expected:
    shards: list[tuple[str, dict[str, list[int]]]] = field(default_factory=list)
    """(split, numbers by role) in the order of the manifest."""
    counts: Counter[str] = field(default_factory=Counter)


def expected(request: Request) -> Expected:
    options, cleaning = request.options, request.cleaning or CleaningOptions()
    files = cleaning.evaluation_files
    cleaner = Cleaner(cleaning, read_evaluations(files, cleaning.contamination_words) if files else None)
    encoder = TokenizersEncoder(request.tokenizer)
    dtype = token_dtype(read_vocabulary(request.tokenizer).size)
    byte_length = np.array(read_vocabulary(request.tokenizer).byte_length, np.int32)
    found, seen, held = Expected(), set[bytes](), set[bytes]()
    bands = [set[int]() for _ in range(200)]
    for sources in request.all_sources:
        held_out = sources is request.held_out
        sides: dict[str, list[Kept]] = {"train": [], "valid": []}
        found.counts["without_text"] += sum(_blank_records(name) for name in sources.files if ".jsonl" in name)
        for document in sources:
            found.counts["read"] += 1
            length = len(document.text)
            if length < options.min_characters or (options.max_characters and length > options.max_characters):
                found.counts["too_short" if length < options.min_characters else "too_long"] += 1
                continue
            judged = cleaner.judge([document])
            if judged.reasons[0]:
                found.counts["left_out"] += 1
                continue
            key, near = judged.keys[0, :2].tobytes(), judged.keys[0, 2:].tolist()
            repeated = key in (seen if not options.keep_duplicates else () if held_out else held)
            alike = any(one and one in band for one, band in zip(near, bands, strict=False))
            seen.add(key)
            held |= {key} if held_out else set()
            for one, band in zip(near, bands, strict=False):
                band.add(one)
            if repeated or alike:
                found.counts["duplicates" if repeated else "left_out"] += 1
                continue
            clean = apply_cleaning(document, cleaning, Counter())
            encoded = encode_documents(encoder, [clean], byte_length)
            if not len(encoded.ids):
                found.counts["empty"] += 1
                continue
            key = text_key(encoded.ids.astype(dtype).tobytes())
            repeated = key in (seen if not options.keep_duplicates else () if held_out else held)
            seen.add(key)
            held |= {key} if held_out else set()
            if repeated:
                found.counts["duplicates"] += 1
                continue
            found.counts["kept"] += 1
            valid = held_out or is_held_out(key, options.valid_fraction)
            sentences = [size for size in encoded.sentence_sizes.tolist() if size]
            sides["valid" if valid else "train"].append((clean, encoded.ids.tolist(), sentences))
        for split, documents in sides.items():
            found.shards += [(split, _shard(part, request)) for part in _cut(documents, options.shard_tokens)]
    return found


def _cut(documents: list[Kept], shard_tokens: int) -> Iterator[list[Kept]]:
    shard: list[Kept] = []
    for document in documents:
        shard.append(document)
        if sum(len(ids) for _, ids, _ in shard) >= shard_tokens:
            yield shard
            shard = []
    if shard:
        yield shard


def _blank_records(name: str) -> int:
    with gzip.open(name, "rt") if name.endswith(".gz") else open(name) as file:
        return sum(not json.loads(line)["text"].strip() for line in file if line.strip())


def _shard(documents: list[Kept], request: Request) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {role: [] for role in ROLES}
    for document, ids, sentences in documents:
        numbers["tokens"] += ids
        numbers["documents"].append(len(numbers["tokens"]))
        for size in sentences:
            numbers["sentences"].append(size + (numbers["sentences"] or [0])[-1])
        numbers["origins"] += [request.file_number[document.source], document.line]
    if not request.with_sentences:
        del numbers["sentences"]
    return numbers


def contents(store: TokenStore) -> list[tuple[str, dict[str, list[int]]]]:
    """The same of a store's files."""

    def numbers(record: dict[str, Any]) -> list[int]:
        bits = record["name"].rpartition(".u")[2]
        return [int(one) for one in np.fromfile(Path(store.location, record["name"]), f"<u{int(bits) // 8}")]

    return [
        (shard["split"], {role: numbers(record) for role, record in shard["files"].items()}) for shard in store.shards
    ]
