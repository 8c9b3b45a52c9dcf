"""Tokenizers: train, load, copy, inspect. `transformers.AutoTokenizer` gives equal ids from each trained folder.

    kind        is for             ids
    bpe         RobertaTokenizer   0 `<s>`, 1 `<pad>`, 2 `</s>`, 3 `<unk>`, then 256 bytes and merges, last `<mask>`
    wordpiece   BertTokenizer      0 `[PAD]`, 1 `[UNK]`, 2 `[CLS]`, 3 `[SEP]`, 4 `[MASK]`, then characters and words
    unigram     XLMRobertaTokenizer   as bpe, with pieces by falling score instead of bytes and merges
    words       PreTrainedTokenizerFast   as wordpiece, then whole words, the most frequent first

`<mask>` includes the space before it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from maskwright.core import storage
from maskwright.core.console import say, several, warn
from maskwright.core.errors import InputError, MaskwrightError, SourceError, TokenizerError
from maskwright.core.library_errors import is_panic
from maskwright.text.dedup import is_held_out
from maskwright.text.marks import SAMPLE_CHARACTERS, SAMPLE_TEXTS, warn_of_dropped_marks
from maskwright.text.notation import without_effect
from maskwright.text.pieces import pieces
from maskwright.text.sample import HELD_OUT_SHARE, MAX_BYTES, Piece, learn_from
from maskwright.text.sources import Sources
from maskwright.text.spacing import Spacing, spacing_of
from maskwright.text.special_tokens import BERT, CONFIG_FILES, KEYS, ROBERTA, keyed
from maskwright.text.tokenizer_faults import unreachable_tokens
from maskwright.text.vocabulary import (
    TRAIN_ONE,
    Vocabulary,
    added_tokens,
    read_tokenizer,
    read_vocabulary,
    tokenizer_file,
)
from maskwright.text.vocabulary_files import SENTENCEPIECE
from maskwright.text.word_counts import WordCounts

TrainedKind = Literal["bpe", "wordpiece", "unigram", "words"]
FIRST_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]
SMALLEST_BPE = len(FIRST_TOKENS) + 256 + 1
LARGEST_ALPHABET = 1000
"""Limit of the characters in a WordPiece vocabulary, as in BERT's. Others become `[UNK]`."""
MANY_NEW_WORDS = 0.3
"""Share of unknown words in documents left out from which on there is a warning."""
LONGEST_WORD = 4192
"""Characters of a word from which pieces are learned, as SentencePiece's `max_sentence_length`. Time grows with the
square: 300,000 letters of DNA as one word took 118 s, cut 25 s."""
LINES_CHARACTERS = 100_000
"""Text per call to a trainer, which gets each word as often as it occurs."""
INSPECTED_BYTES = 20_000_000
MANY_NUMBERS = 0.3
"""Share of tokens with digits from which on there is a warning: 0.006 in RoBERTa's vocabulary, 0.98 in one of logs."""
FILES = (
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"),
    *("vocab.txt", *SENTENCEPIECE),
)
"""Files that may lie next to `tokenizer.json`."""


def train_tokenizer(
    sources: Sources,
    folder: str,
    *,
    kind: TrainedKind = "bpe",
    vocab_size: int = 50265,
    min_frequency: int = 2,
    lowercase: bool = False,
    max_bytes: int = MAX_BYTES,
) -> Vocabulary:
    """Trains on the text, or on a sample of `max_bytes` of a larger one, and writes the folder. The same documents give
    the same files. Raises `InputError` for a folder that is not empty and for a vocabulary that is too small,
    `SourceError` for a corpus without text."""
    if kind == "bpe":
        _require_room(vocab_size, SMALLEST_BPE, "256 bytes")
    if lowercase and kind != "wordpiece":
        fix = "use --kind wordpiece, or leave the option out"
        raise InputError(f"--lowercase is not for --kind {kind}", fix=fix)
    storage.require_empty(folder)
    normalizer, splitter = _steps(kind, lowercase)
    words, held_out = _count(sources, max_bytes, kind, normalizer, splitter, folder)
    say("merging …" if kind in ("bpe", "wordpiece") else f"choosing {'pieces' if kind == 'unigram' else 'words'} …")
    if kind == "bpe":
        tokenizer = _train_bpe(words, vocab_size, min_frequency)
    elif kind == "wordpiece":
        tokenizer = _train_wordpiece(words, vocab_size, min_frequency, splitter)
        tokenizer.normalizer = normalizer
    elif kind == "unigram":
        tokenizer = _train_unigram(words, vocab_size)
    else:
        tokenizer = _train_words(words, held_out, vocab_size, min_frequency)
    tokenizer.pre_tokenizer = splitter
    size = tokenizer.get_vocab_size()
    if size < vocab_size:
        noun = "word" if kind == "words" else "pair"
        reason = f": no other {noun} occurs {min_frequency} times" if kind != "unigram" else ""
        warn(f"the text supports {size:,} tokens, not {vocab_size:,}{reason}")
    # Byte-level letters include ² ³ ¹, of bytes in в, г and й: digits to `isdigit` alone.
    numbers = [token for token in tokenizer.get_vocab() if any(map(str.isdecimal, token))]
    if kind != "words" and len(numbers) > MANY_NUMBERS * size:
        longest = max(numbers, key=lambda token: (len(token), token))[-30:]
        line = f"{len(numbers):,} of {size:,} tokens have digits, such as {longest}, as if of ids or timestamps"
        fix = "replace these first, such as with sed -E 's/[0-9]+/0/g' (and prepare with --keep-duplicates)"
        warn(f"{line}: {fix}, or give a smaller --vocab-size")
    _save(tokenizer, folder, kind, lowercase)
    return read_vocabulary(folder)


def _require_room(vocab_size: int, least: int, what: str) -> None:
    if vocab_size < least:
        fix = f"use at least {least:,}: 5 special tokens and {what}"
        raise InputError(f"--vocab-size {vocab_size} is too small", fix=fix)


def _steps(kind: TrainedKind, lowercase: bool) -> tuple[Any, Any]:
    """(normalizer or None, pre-tokenizer). Unigram has none, since XLM-R's class drops all but its table."""
    from tokenizers import normalizers, pre_tokenizers

    if kind == "bpe":
        return None, pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind == "wordpiece":
        return normalizers.BertNormalizer(lowercase=lowercase), pre_tokenizers.BertPreTokenizer()
    if kind == "words":
        return None, pre_tokenizers.WhitespaceSplit()
    return None, pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])


def split_by(normalizer: Any, splitter: Any) -> Callable[[str], Iterator[str]]:
    """Returns the function that splits a text into words."""

    def words(text: str) -> Iterator[str]:
        return (word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text) if normalizer else text))

    return words


def _count(
    sources: Sources, max_bytes: int, kind: TrainedKind, normalizer: Any, splitter: Any, folder: str
) -> tuple[dict[str, int], dict[str, int]]:
    """Counts of all words; for whole words also those in a tenth of the documents."""

    def learn(pieces: Iterator[Piece]) -> tuple[dict[str, int], dict[str, int]]:
        counts, held_out = (WordCounts(split_by(normalizer, splitter), at_spaces=True) for _ in range(2))
        first: list[str] = []
        for piece in pieces:
            counts.add(piece.text)
            if kind == "words" and is_held_out(piece.document, HELD_OUT_SHARE):
                held_out.add(piece.text)
            if len(first) < SAMPLE_TEXTS:
                first.append(piece.text[:SAMPLE_CHARACTERS])
        words = counts.counted()
        warn_of_dropped_marks(folder, normalizer, first)
        return words, held_out.counted()

    return learn_from(sources, max_bytes, learn, without_effect(kind, normalizer))


def _train(tokenizer: Any, trainer: Any, words: dict[str, int]) -> None:
    """Trains on counts of words. The library accepts only texts, so each word is a line, as often as it occurs."""
    from tokenizers import pre_tokenizers

    def lines() -> Iterator[list[str]]:
        for word, count in words.items():
            line_words = 1 + LINES_CHARACTERS // len(word)
            yield [f"{word}\n" * min(count - begin, line_words) for begin in range(0, count, line_words)]

    tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit("\n")
    tokenizer.train_from_iterator(lines(), trainer)


def _train_bpe(words: dict[str, int], vocab_size: int, min_frequency: int) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        min_frequency=min_frequency,
        special_tokens=FIRST_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    _train(tokenizer, trainer, words)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False, special=True)])
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    return tokenizer


def _train_wordpiece(words: dict[str, int], vocab_size: int, min_frequency: int, splitter: Any) -> Any:
    from tokenizers import Tokenizer, decoders, models, trainers

    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    # The trainer gets the characters in a fixed order, since its own is a hash map's.
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    may_be_inside = {character for character in ranked if len(splitter.pre_tokenize_str(f"a{character}a")) == 1}
    least = len(BERT) + len(ranked) + len(may_be_inside)
    most = len(ranked) if least <= vocab_size < SMALLEST_BPE else min(LARGEST_ALPHABET, vocab_size // 4)
    if vocab_size < SMALLEST_BPE:
        letters = f"the text's {several(len(ranked), 'character')}, at the beginning of a word and inside one"
        letters = letters if least <= SMALLEST_BPE else f"some of {letters}, whose rarest become [UNK]"
        _require_room(vocab_size, min(least, SMALLEST_BPE), letters)
    alphabet = sorted(ranked[:most])
    if left_out := len(ranked) - len(alphabet):
        warn(f"{left_out:,} of the text's {len(ranked):,} characters, the rarest, become [UNK]")
    inside = [character for character in alphabet if character in may_be_inside]

    tokenizer = Tokenizer(models.WordPiece(unk_token=BERT["unk"]))
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=[*BERT.values(), *alphabet, *(f"##{character}" for character in inside)],
        limit_alphabet=0,
        show_progress=False,
    )
    _train(tokenizer, trainer, words)
    # Built again, since the trainer has marked the characters as special.
    tokenizer = wordpiece_of(tokenizer.get_vocab())
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


def _train_words(words: dict[str, int], held_out: dict[str, int], vocab_size: int, min_frequency: int) -> Any:
    from tokenizers import models

    _require_room(vocab_size, len(BERT) + 1, "one word")
    frequent = {word: count for word, count in words.items() if count >= min_frequency and word not in BERT.values()}
    chosen = sorted(frequent, key=lambda word: (-frequent[word], word))[: vocab_size - len(BERT)]
    known = {*chosen}
    if unknown := sum(count for word, count in words.items() if word not in known):
        say(f"{unknown / sum(words.values()):.2%} of the words in the text have no token and become {BERT['unk']}")
    new = sum(count for word, count in held_out.items() if word not in known or words[word] - count < min_frequency)
    if len(held_out) < len(words) and new > MANY_NEW_WORDS * sum(held_out.values()):
        share = new / sum(held_out.values())
        fix = "replace numbers and names first, or train one that splits words, with --kind bpe"
        warn(f"in new documents like these, {share:.1%} of the words would have no token: {fix}")
    vocab = {token: index for index, token in enumerate([*BERT.values(), *chosen])}
    return _framed(models.WordLevel(vocab, unk_token=BERT["unk"]), vocab)


def wordpiece_of(vocab: dict[str, int]) -> Any:
    """A WordPiece tokenizer with BERT's template and special tokens, which `vocab` must contain."""
    from tokenizers import models

    return _framed(models.WordPiece(vocab, unk_token=BERT["unk"]), vocab)


def _framed(model: Any, vocab: dict[str, int]) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens(list(BERT.values()))
    tokenizer.post_processor = template(*((BERT[role], vocab[BERT[role]]) for role in ("bos", "eos")))
    return tokenizer


def template(first: tuple[str, int], last: tuple[str, int]) -> Any:
    """`<s> a </s></s> b </s>` if rows end in `</s>`, as in RoBERTa, XLM-R and CamemBERT; else BERT's
    `[CLS] a [SEP] b [SEP]`. `first`, `last`: the tokens that frame a text, with their ids."""
    from tokenizers import processors

    single, end = [first[0], "$A", last[0]], last[0]
    second = [end, "$B", end] if end == "</s>" else ["$B:1", f"{end}:1"]
    return processors.TemplateProcessing(single=single, pair=[*single, *second], special_tokens=[first, last])


def _train_unigram(words: dict[str, int], vocab_size: int) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, trainers

    letters = len({*"".join(words)})
    _require_room(vocab_size, len(FIRST_TOKENS) + letters + 1, f"the text's {several(letters, 'character')}")
    tokenizer = Tokenizer(models.Unigram())
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size - 1, special_tokens=FIRST_TOKENS, unk_token="<unk>", show_progress=False
    )
    parts: Counter[str] = Counter()
    for word, count in words.items():
        for begin in range(0, len(word), LONGEST_WORD):
            parts[word[begin : begin + LONGEST_WORD]] += count
    _train(tokenizer, trainer, parts)
    pieces = json.loads(tokenizer.to_str())["model"]["vocab"]
    scored = [pair for pair in pieces if pair[0] not in (*FIRST_TOKENS, "<mask>")]  # a text may contain them
    ordered = _in_fixed_order(scored)
    too_many = len(ordered) - (vocab_size - len(FIRST_TOKENS) - 1)  # the library leaves more in a small vocabulary
    words_by_score = [piece for piece, _ in ordered if len(piece) > 1]
    left_out = {*words_by_score[-too_many:]} if too_many > 0 else set()
    kept = [(piece, score) for piece, score in ordered if piece not in left_out]
    tokenizer = Tokenizer(models.Unigram([*((token, 0.0) for token in FIRST_TOKENS), *kept], unk_id=3))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(FIRST_TOKENS)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False, special=True)])
    tokenizer.post_processor = template(("<s>", 0), ("</s>", 2))
    return tokenizer


def _in_fixed_order(scored: list[list[Any]]) -> list[tuple[str, float]]:
    """(piece, score) by falling score, the same each time."""
    # The library adds numbers in an order that varies, so scores are rounded. It gives rare characters the lowest
    # scores, 0.0001 apart, in the order of a hash map; here they get these scores in the characters' order.
    scores = {piece: round(score, 6) for piece, score in scored}
    low = min(scores.values(), default=0.0)
    steps = {piece: (score - low) / 1e-4 for piece, score in scores.items() if len(piece) == 1}
    rare = sorted(piece for piece, step in steps.items() if step < len(scored) and abs(step - round(step)) < 1e-3)
    scores |= zip(rare, sorted((scores[piece] for piece in rare), reverse=True), strict=True)
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))


def _save(tokenizer: Any, folder: str, kind: TrainedKind, lowercase: bool) -> None:
    names: dict[str, Any] = {key: ROBERTA[role] for role, keys in KEYS.items() for key in keys}
    mask = {"content": "<mask>", "lstrip": True, "rstrip": False, "single_word": False, "normalized": False}
    names["mask_token"] = {**mask, "__type": "AddedToken"}
    config: dict[str, Any] = {
        "bpe": {"tokenizer_class": "RobertaTokenizer", **names, "add_prefix_space": False},
        "unigram": {"tokenizer_class": "XLMRobertaTokenizer", **names},
        "wordpiece": {"tokenizer_class": "BertTokenizer", **keyed(BERT), "do_lower_case": lowercase}
        | {"strip_accents": None, "tokenize_chinese_chars": True},
        "words": {"tokenizer_class": "PreTrainedTokenizerFast", **keyed(BERT)},
    }[kind]
    write_tokenizer(folder, tokenizer, config)


def write_tokenizer(folder: str, tokenizer: Any, config: dict[str, Any]) -> None:
    """Writes `tokenizer.json`, and `config` next to it, in a new folder. `transformers` 5 reads no other file of a fast
    tokenizer."""
    config = {**config, "clean_up_tokenization_spaces": False}
    files = {"tokenizer_config.json": json.dumps(config, indent=2), "tokenizer.json": tokenizer.to_str(pretty=True)}
    with storage.replaced_folder(folder) as temporary:
        for name, text in files.items():
            with storage.atomic_writer(os.path.join(temporary, name)) as file:
                file.write(text.encode())


def load_tokenizer(location: str, *, special_tokens_are_text: bool, adds_spaces: bool = True) -> Any:
    """A `tokenizers.Tokenizer`. `special_tokens_are_text`: tokens of the five roles are encoded as text, so that
    `<mask>` in a corpus is never the mask id. Other special tokens are tokens (see `Vocabulary.additional`).
    `adds_spaces`: it spaces sequences itself (see `Spacing`), and so cannot be saved."""
    # Not through AutoTokenizer, which may rebuild the pipeline from the model's class and change ids.
    path = tokenizer_file(location)
    content, vocabulary = read_tokenizer(location)
    entries = added_tokens(location)
    if vocabulary.mask not in {token["id"] for token in entries}:
        mask = {"id": vocabulary.mask, "content": vocabulary.mask_token, "single_word": False, "lstrip": False}
        entries.append({**mask, "rstrip": False, "normalized": False})
    # The library encodes tokens that are marked special as text, and a hand-written file may lack the mark.
    special = vocabulary.special - vocabulary.additional if special_tokens_are_text else vocabulary.special
    added = [{**token, "special": token["id"] in special} for token in entries]
    loaded = {**content, "added_tokens": added}
    if special_tokens_are_text:
        loaded = _spelt_out(loaded, vocabulary)
    tokenizer = parsed(
        loaded, path, is_unchanged=loaded == content, spacing=spacing_of(location) if adds_spaces else None
    )
    tokenizer.encode_special_tokens = special_tokens_are_text
    return tokenizer


def parsed(content: dict[str, Any], path: str, *, is_unchanged: bool, spacing: Spacing | None) -> Any:
    """The `tokenizers.Tokenizer` of `content`, without padding and truncation. `is_unchanged`: the file `path` has
    exactly this content. `spacing`: of the sequences that it gets. Raises `TokenizerError`."""
    from tokenizers import Tokenizer, normalizers

    fix = f"restore the file, or {TRAIN_ONE}"
    try:
        with no_panic(path):
            tokenizer = Tokenizer.from_file(path) if is_unchanged else Tokenizer.from_str(json.dumps(content))
    except MaskwrightError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"cannot be loaded: {error}", where=path, fix=fix) from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if spacing:
        later = [tokenizer.normalizer] if tokenizer.normalizer else []
        tokenizer.normalizer = normalizers.Sequence([normalizers.Normalizer.custom(_Spaced(spacing)), *later])
    return tokenizer


@dataclass(frozen=True)
class _Spaced:
    """A normalizer for `tokenizers` that spaces sequences. Offsets are lost."""

    spacing: Spacing

    def normalize(self, text: Any) -> None:
        from tokenizers import Regex

        if (spaced := self.spacing.spaced(text.normalized)) != text.normalized:
            text.replace(Regex("(?m:.+)"), spaced)


@contextmanager
def no_panic(location: str) -> Iterator[None]:
    """Raises `TokenizerError` for a panic of the library's Rust side, which is no `Exception` and cannot be pickled."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        fix = "find the text, or train another tokenizer with `maskwright tokenizer train`"
        raise TokenizerError(f"the library fails: {error}", where=location, fix=fix) from None


def _spelt_out(content: dict[str, Any], vocabulary: Vocabulary) -> dict[str, Any]:
    """`content` in which tokens of the five roles are text for Unigram too."""
    # Unigram has special tokens among its pieces, with the best scores. A leading space makes these pieces unreachable,
    # since a text's spaces are ▁ by then, and whole words have none.
    if vocabulary.kind not in ("unigram", "words"):
        return content
    model, is_unigram = content["model"], vocabulary.kind == "unigram"
    has_role = vocabulary.special - vocabulary.additional
    ids = {piece: index for index, (piece, _) in enumerate(model["vocab"])} if is_unigram else model["vocab"]
    spelt = {piece: f" {piece}" if index in has_role else piece for piece, index in ids.items()}
    added = [{**token, "content": spelt.get(token["content"], token["content"])} for token in content["added_tokens"]]
    if is_unigram:
        changed: dict[str, Any] = {"vocab": [[spelt[piece], score] for piece, score in model["vocab"]]}
    else:
        words = {spelt[word]: index for word, index in ids.items()}
        changed = {"vocab": words, "unk_token": spelt.get(model["unk_token"], model["unk_token"])}
    return {**content, "model": {**model, **changed}, "added_tokens": added}


def copy_tokenizer(source: str, folder: str) -> None:
    """Copies the files that make up a tokenizer; `source` is a folder or a tokenizer.json."""
    path = tokenizer_file(source)
    names = ["tokenizer.json", *(FILES if os.path.isdir(source) else ())]
    storage.make_folder(folder)
    if os.path.samefile(os.path.dirname(os.path.abspath(path)), folder):  # a run that begins again already has it
        return
    for name in names:
        origin = os.path.join(os.path.dirname(path), name) if name != "tokenizer.json" else path
        if os.path.exists(origin):
            shutil.copyfile(origin, os.path.join(folder, name))


@contextmanager
def changed_copy(source: str, folder: str) -> Iterator[str]:
    """Yields a temporary folder with the configuration next to the `tokenizer.json` of `source`. It becomes `folder`
    when the caller has written the changed tokenizer, and is removed after an exception. Other files are left out,
    since they describe the old tokenizer, and `transformers` reads none of them."""
    with storage.replaced_folder(folder) as temporary:
        copy_tokenizer(source, temporary)
        for name in {*os.listdir(temporary)} - {*CONFIG_FILES, storage.FOLDER_LOCK}:
            os.unlink(os.path.join(temporary, name))
        yield temporary


@dataclass
class Inspection:
    """A tokenizer's figures on a text. Fertility: tokens per whitespace-separated word."""

    kind: str
    vocabulary: int
    mask_token: str
    documents: int
    words: int
    bytes: int
    tokens: int
    fertility: float
    bytes_per_token: float
    unknown_tokens: int
    unused_tokens: int
    """Ids that this text does not use."""
    unreachable_tokens: int
    """Tokens that no text can become: see `unreachable_tokens`."""
    samples: list[list[str]]


def inspect_tokenizer(location: str, sources: Sources) -> Inspection:
    """Encodes up to `INSPECTED_BYTES` of text. Raises `SourceError` for a corpus without text."""
    vocabulary = read_vocabulary(location)
    tokenizer = load_tokenizer(location, special_tokens_are_text=True)
    words = size = documents = unknown = tokens = 0
    used: set[int] = set()
    samples: list[list[str]] = []
    parts = ((at == 0, part) for document in sources for at, part in enumerate(pieces(document.text)))
    for is_first, part in parts:
        with no_panic(location):
            ids = tokenizer.encode(part, add_special_tokens=False).ids
        documents += is_first
        words += len(part.split())
        size += len(part.encode())
        tokens += len(ids)
        unknown += ids.count(vocabulary.unk)
        used.update(ids)
        if len(samples) < 3:
            samples.append([tokenizer.decode([index], skip_special_tokens=False) for index in ids[:24]])
        if size >= INSPECTED_BYTES:
            break
    if not tokens:
        raise SourceError("holds no documents", where=sources.files[0], fix="check the files and --layout")
    return Inspection(
        kind=vocabulary.kind.replace("_", " "),
        vocabulary=vocabulary.size,
        mask_token=vocabulary.mask_token,
        documents=documents,
        words=words,
        bytes=size,
        tokens=tokens,
        fertility=round(tokens / max(words, 1), 3),
        bytes_per_token=round(size / tokens, 3),
        unknown_tokens=unknown,
        unused_tokens=vocabulary.size - len(used | vocabulary.special),
        unreachable_tokens=len(unreachable_tokens(location)),
        samples=samples,
    )


def inspection_report(result: Inspection) -> str:
    lines = [
        f"{result.kind}, vocabulary {result.vocabulary:,}, mask {result.mask_token}",
        f"on {result.documents:,} documents, {result.bytes:,} bytes:",
        f"fertility {result.fertility:.3f} tokens a word, {result.bytes_per_token:.2f} bytes a token",
        f"unknown tokens {result.unknown_tokens:,}; vocabulary never used here {result.unused_tokens:,}"
        + (f", {result.unreachable_tokens:,} of them unreachable" if result.unreachable_tokens else ""),
    ]
    lines += ["  " + "|".join(piece.replace("\n", "\\n") for piece in sample) for sample in result.samples]
    return "\n".join(lines)
