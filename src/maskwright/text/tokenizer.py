"""Byte-level BPE in RoBERTa's layout: train, load, inspect.

Ids: 0 `<s>`, 1 `<pad>`, 2 `</s>`, 3 `<unk>`, then 256 bytes and merges, last `<mask>` (which takes the space before
it).
The saved folder loads in `tokenizers`, `transformers.AutoTokenizer` and `RobertaTokenizerFast` with equal ids.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from maskwright.core import storage
from maskwright.core.console import progress, say, warn
from maskwright.core.errors import InputError, SourceError, TokenizerError
from maskwright.text.sources import Sources
from maskwright.text.vocabulary import SPECIAL_TOKENS, Vocabulary, read_tokenizer, read_vocabulary, tokenizer_file

FIRST_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]
SMALLEST_VOCABULARY = len(FIRST_TOKENS) + 256 + 1


def train_tokenizer(sources: Sources, folder: str, *, vocab_size: int = 50265, min_frequency: int = 2) -> Vocabulary:
    """Trains on every document and writes the folder. The same text gives the same files.

    Raises `InputError` for a vocabulary smaller than bytes and special tokens, `SourceError` for a corpus without text.
    """
    if vocab_size < SMALLEST_VOCABULARY:
        raise InputError(
            f"--vocab-size {vocab_size} is too small",
            fix=f"{SMALLEST_VOCABULARY} is the least: 256 bytes, 5 specials",
        )
    if os.path.exists(os.path.join(folder, "tokenizer.json")):
        raise InputError("already holds a tokenizer", where=folder, fix="choose another --to, or delete it first")
    with storage.new_folder(folder):
        _train(sources, folder, vocab_size, min_frequency)
    return read_vocabulary(folder)


def _train(sources: Sources, folder: str, vocab_size: int, min_frequency: int) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        min_frequency=min_frequency,
        special_tokens=FIRST_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    counted = 0

    def texts() -> Iterator[str]:
        nonlocal counted
        with progress("tokenizer", sum(sources.sizes), "bytes") as bar:
            for document in sources:
                counted += 1
                yield document.text
                bar.advance(sources.bytes_read - bar.done)
        if counted:
            say("merging …")

    tokenizer.train_from_iterator(texts(), trainer)
    if not counted:
        raise SourceError("holds no documents", where=sources.files[0], fix="check the files and --layout")
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False, special=True)])
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    if tokenizer.get_vocab_size() < vocab_size:
        warn(
            f"the text supports {tokenizer.get_vocab_size():,} tokens, not {vocab_size:,}: no other pair occurs "
            f"{min_frequency} times"
        )
    _save(tokenizer, folder)


def _save(tokenizer: Any, folder: str) -> None:
    content = json.loads(tokenizer.to_str())
    merges = [m if isinstance(m, str) else " ".join(m) for m in content["model"]["merges"]]
    ids = dict(sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]))
    roles = {"bos": "bos", "eos": "eos", "cls": "bos", "sep": "eos", "unk": "unk", "pad": "pad"}
    special: dict[str, Any] = {f"{theirs}_token": SPECIAL_TOKENS[ours] for theirs, ours in roles.items()}
    mask = {"content": "<mask>", "lstrip": True, "rstrip": False, "single_word": False, "normalized": False}
    config = {
        "tokenizer_class": "RobertaTokenizer",
        **special,
        "mask_token": {**mask, "__type": "AddedToken"},
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
    }
    files = {
        "vocab.json": json.dumps(ids, ensure_ascii=False),
        "merges.txt": "\n".join(["#version: 0.2", *merges]) + "\n",
        "tokenizer_config.json": json.dumps(config, indent=2),
        "special_tokens_map.json": json.dumps({**special, "mask_token": mask}, indent=2),
        "tokenizer.json": json.dumps(content, indent=2, ensure_ascii=False),
    }
    for name, text in files.items():  # tokenizer.json last: with it, the folder is whole
        with storage.atomic_writer(os.path.join(folder, name)) as file:
            file.write(text.encode())


def load_tokenizer(location: str, *, special_tokens_are_text: bool) -> Any:
    """A `tokenizers.Tokenizer`. `special_tokens_are_text`: `<mask>` in a corpus is spelt out, never the mask id.

    Not through AutoTokenizer, which may rebuild the pipeline from the model's class and change ids.
    """
    from tokenizers import Tokenizer

    path = tokenizer_file(location)
    content, _ = read_tokenizer(location)
    added = content.get("added_tokens") or []
    # The library spells out only tokens that are marked special; a hand-written file may have forgotten to.
    marked = [
        {**token, "special": token.get("special") or token["content"] in SPECIAL_TOKENS.values()} for token in added
    ]
    try:
        if marked == added:
            tokenizer = Tokenizer.from_file(path)
        else:
            tokenizer = Tokenizer.from_str(json.dumps({**content, "added_tokens": marked}))
    except Exception as error:  # the library raises bare Exception
        fix = "restore the file, or train one with `maskwright tokenizer train`"
        raise TokenizerError(f"cannot be loaded: {error}", where=path, fix=fix) from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = special_tokens_are_text
    return tokenizer


def copy_tokenizer(source: str, folder: str) -> None:
    """Copies the files that make up a tokenizer; `source` is a folder or a tokenizer.json."""
    names = ["tokenizer.json"]
    path = tokenizer_file(source)
    if os.path.isdir(source):
        names += ["vocab.json", "merges.txt", "tokenizer_config.json", "special_tokens_map.json"]
    storage.make_folder(folder)
    if os.path.samefile(os.path.dirname(os.path.abspath(path)), folder):  # a run that begins again has it already
        return
    for name in names:
        origin = os.path.join(os.path.dirname(path), name) if name != "tokenizer.json" else path
        if os.path.exists(origin):
            shutil.copyfile(origin, os.path.join(folder, name))


@dataclass
class Inspection:
    """How a tokenizer does on a text. Fertility: tokens a whitespace-separated word; 1.0 would be a word a token."""

    vocabulary: int
    documents: int
    words: int
    bytes: int
    tokens: int
    fertility: float
    bytes_per_token: float
    unknown_tokens: int
    unused_tokens: int
    """Ids that this text never used."""
    samples: list[list[str]]


def inspect_tokenizer(location: str, sources: Sources, *, max_bytes: int = 20_000_000) -> Inspection:
    """Encodes up to `max_bytes` of text. Raises `SourceError` for a corpus without text."""
    vocabulary = read_vocabulary(location)
    tokenizer = load_tokenizer(location, special_tokens_are_text=True)
    words = size = documents = unknown = tokens = 0
    used: set[int] = set()
    samples: list[list[str]] = []
    for document in sources:
        ids = tokenizer.encode(document.text, add_special_tokens=False).ids
        documents += 1
        words += len(document.text.split())
        size += len(document.text.encode("utf-8", "surrogatepass"))
        tokens += len(ids)
        unknown += ids.count(vocabulary.unk)
        used.update(ids)
        if len(samples) < 3:
            samples.append([tokenizer.decode([index]) for index in ids[:24]])
        if size >= max_bytes:
            break
    if not tokens:
        raise SourceError("holds no documents", where=sources.files[0], fix="check the files and --layout")
    return Inspection(
        vocabulary=vocabulary.size,
        documents=documents,
        words=words,
        bytes=size,
        tokens=tokens,
        fertility=round(tokens / max(words, 1), 3),
        bytes_per_token=round(size / tokens, 3),
        unknown_tokens=unknown,
        unused_tokens=vocabulary.size - len(used | vocabulary.special),
        samples=samples,
    )


def inspection_report(result: Inspection) -> str:
    lines = [
        f"vocabulary {result.vocabulary:,}; on {result.documents:,} documents, {result.bytes:,} bytes:",
        f"fertility {result.fertility:.3f} tokens a word, {result.bytes_per_token:.2f} bytes a token",
        f"unknown tokens {result.unknown_tokens:,}; vocabulary never used here {result.unused_tokens:,}",
    ]
    lines += ["  " + "|".join(piece.replace("\n", "\\n") for piece in sample) for sample in result.samples]
    return "\n".join(lines)
