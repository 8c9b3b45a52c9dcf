"""A tokenizer's kind, special ids, word starts and fingerprint, read from its JSON files without a library."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from maskwright.core import storage
from maskwright.core.errors import TokenizerError
from maskwright.core.hub import how_to_get
from maskwright.text.special_tokens import CONFIG_FILES, FLAGS, SAVE_AGAIN, declared_tokens, special_tokens
from maskwright.text.vocabulary_files import (
    SENTENCEPIECE_ENDING,
    create_from,
    files_of,
    require_added_tokens_agree,
    require_settings_agree,
)

Kind = Literal["byte_level_bpe", "wordpiece", "unigram", "sentencepiece_bpe", "words"]
TRAIN_ONE = "train one with `maskwright tokenizer train`"
LARGEST_VOCABULARY = 2**22
"""Four times the largest in use. Tables have this size, so an absurd id would exhaust memory."""
DEEPEST = 100
"""Steps inside steps; real tokenizers have one or two."""
# Byte-level BPE writes these bytes as visible stand-ins: space, tab, line feed, carriage return.
WHITE_SPACE_BYTES = ("Ġ", "ĉ", "Ċ", "č")
BYTES = frozenset(f"<0x{byte:02X}>" for byte in range(256))
"""Tokens with which BPE and Unigram with ▁ encode characters without a token."""
# The same four among these.
BYTE_TOKENS_OF_WHITE_SPACE = ("<0x20>", "<0x09>", "<0x0A>", "<0x0D>")
KINDS = "the kinds are byte-level BPE, WordPiece, whole words (WordLevel), and Unigram or BPE with ▁ for spaces; train "
KINDS += "one with `maskwright tokenizer train`"


@dataclass(frozen=True)
class Vocabulary:
    """The meaning of a tokenizer's ids."""

    kind: Kind
    size: int
    """Number of ids."""
    bos: int
    """Begins a row: `<s>`, `[CLS]`, `<bos>`."""
    pad: int
    eos: int
    """Ends a row: `</s>`, `[SEP]`, `<eos>`."""
    unk: int | None
    """None for a tokenizer that encodes everything, or drops the rest."""
    mask: int
    mask_token: str
    """The mask in text: `<mask>`, `[MASK]`."""
    special: frozenset[int]
    """Ids that are never predicted, masked or drawn: the five above and `additional`."""
    additional: frozenset[int]
    """Special ids without one of the five roles: placeholders, markers and separators that the tokenizer's files
    declare. In a text they are tokens, as with `transformers`; tokens of the five roles are encoded as text."""
    additional_sha256: str
    """Digest of the rules by which these are found in a text; empty without any."""
    word_start: tuple[bool, ...]
    """Per id, whether it begins a word; see `_begins_word`."""
    byte_length: tuple[int, ...]
    """Per id, its bytes of text; -1 for the five roles, and for all ids if text is normalized or loses white space."""
    fingerprint: str
    """sha256 of tokens, merges and splitting rules, except for `additional`. Equal for files that give equal ids, in
    any notation."""

    @property
    def roles_sha256(self) -> str:
        """Digest of the ids of the five roles, which other files next to the same `tokenizer.json` may change."""
        has_role = sorted(self.special - self.additional)
        return storage.sha256_of([self.bos, self.pad, self.eos, self.unk, self.mask, has_role])

    @property
    def rules_record(self) -> dict[str, str]:
        """The rules of special tokens that the fingerprint leaves out, as entries of a record: `roles_sha256`, and
        `additional_sha256` if there are `additional` tokens."""
        additional = {"additional_sha256": self.additional_sha256} if self.additional else {}
        return {"roles_sha256": self.roles_sha256, **additional}


def has_tokenizer(folder: str) -> bool:
    """Whether `tokenizer_file` finds or creates one for a folder."""
    return os.path.isfile(os.path.join(folder, "tokenizer.json")) or bool(files_of(folder))


def tokenizer_file(location: str) -> str:
    """The path of the `tokenizer.json`: in the folder `location`, `location` itself, or created in the cache from an
    older folder's files or a SentencePiece model. Raises `TokenizerError` if there is none."""
    path = os.path.join(location, "tokenizer.json") if os.path.isdir(location) else location
    if not os.path.exists(location):
        raise TokenizerError("no such folder", where=location, fix=how_to_get(location))
    if not os.path.isfile(path) and (names := files_of(location)):
        return create_from(location, names)
    if path == location and location.endswith(SENTENCEPIECE_ENDING):
        return create_from(os.path.dirname(location), (os.path.basename(location),))
    if not os.path.isfile(path):
        fix = f"{TRAIN_ONE}, or have `transformers` write it: {SAVE_AGAIN}"
        raise TokenizerError("has no tokenizer.json", where=location, fix=fix)
    return path


def read_vocabulary(location: str) -> Vocabulary:
    """Reads the folder of a fast tokenizer, or its `tokenizer.json` alone. Raises `TokenizerError`."""
    return read_tokenizer(location)[1]


def read_tokenizer(location: str) -> tuple[dict[str, Any], Vocabulary]:
    """(the file's content, not to be changed; its vocabulary). Raises `TokenizerError`.

    The last files are cached while they do not change, since reading 50,000 tokens takes a quarter of a second.
    """
    path = tokenizer_file(location)
    folder = location if os.path.isdir(location) else None
    beside = [os.path.join(location, name) for name in CONFIG_FILES] if folder else []
    status = [os.stat(name) for name in [path, *beside] if os.path.exists(name)]
    return _read(path, folder, tuple((file.st_mtime_ns, file.st_size, file.st_ino) for file in status))


def token_ids(location: str) -> dict[str, int]:
    """Tokens and ids of a tokenizer, added ones included. Raises `TokenizerError`."""
    content = read_tokenizer(location)[0]
    added = {token["content"]: token["id"] for token in content.get("added_tokens") or []}
    return _pieces(content["model"], tokenizer_file(location)) | added


def token_strings(location: str) -> list[str]:
    """The token of each id, as in the tokenizer's files; empty for an id without one."""
    strings = [""] * read_vocabulary(location).size
    for token, index in token_ids(location).items():
        strings[index] = token
    return strings


@lru_cache(maxsize=2)
def _read(path: str, folder: str | None, _: tuple[tuple[int, ...], ...]) -> tuple[dict[str, Any], Vocabulary]:
    content = storage.read_json(path)
    try:
        return content, _vocabulary_of(content, path, folder)
    except RecursionError:
        raise TokenizerError("is nested too deeply", where=path, fix=TRAIN_ONE) from None


def _vocabulary_of(content: Any, path: str, folder: str | None) -> Vocabulary:
    kind, mark = _kind(content, path)
    model = content["model"]
    if model.get("dropout"):
        raise TokenizerError("has BPE dropout, so ids differ each time", where=path, fix="set it to null")
    added = content.get("added_tokens") or []
    if not _are(added, dict) or not all("id" in token and isinstance(token.get("content"), str) for token in added):
        raise TokenizerError("has an added token without id or content", where=path, fix=TRAIN_ONE)
    merges = model.get("merges") or []
    if not _are(merges, str | list) or not all(
        isinstance(pair, str) or (_are(pair, str) and len(pair) == 2) for pair in merges
    ):
        raise TokenizerError("has merges that are not pairs of tokens", where=path, fix=TRAIN_ONE)
    tokens = _pieces(model, path) | {token["content"]: token["id"] for token in added}
    if not all(type(index) is int and 0 <= index < LARGEST_VOCABULARY for index in tokens.values()):
        raise TokenizerError("has an id that is not a small whole number", where=path, fix=TRAIN_ONE)
    if mark and not any(token.startswith(mark) for token in tokens):
        raise TokenizerError(f"writes spaces as {mark}, but no token begins with it", where=path, fix=TRAIN_ONE)
    if folder:
        require_settings_agree(content, folder)
        require_added_tokens_agree(tokens, folder)
    token_of = special_tokens(content, tokens, path, folder)
    roles = {role: tokens[name] for role, name in token_of.items()}
    unk = _unknown_id(model, tokens, path)
    has_role = frozenset([*roles.values(), *([] if unk is None else [unk])])
    marked = has_role | {token["id"] for token in added if token.get("special")}
    declared = declared_tokens(tokens, folder) if folder else {}
    special = marked | {tokens[token] for token in declared}
    found = [entry for entry in _entries(added, declared, tokens) if entry["id"] not in has_role]
    size = max(tokens.values()) + 1
    starts, lengths = [False] * size, [-1] * size
    counted = kind == "byte_level_bpe" and not content.get("normalizer")
    for token, index in tokens.items():
        starts[index] = _begins_word(token, kind, mark, model)
        if counted and index not in special:
            lengths[index] = len(token)  # each character stands for one byte
    for entry in found:
        starts[entry["id"]] |= kind != "byte_level_bpe" or entry["content"][:1].isspace()
        lengths[entry["id"]] = len(entry["content"].encode()) if counted else -1
    return Vocabulary(
        kind=kind,
        size=size,
        bos=roles["bos"],
        pad=roles["pad"],
        eos=roles["eos"],
        unk=roles.get("unk") if unk is None else unk,
        mask=roles["mask"],
        mask_token=token_of["mask"],
        special=special,
        additional=special - has_role,
        additional_sha256=_sha256_of_rules([entry for entry in found if entry["id"] in special]),
        word_start=tuple(starts),
        byte_length=tuple(lengths),
        fingerprint=_fingerprint(content, kind, tokens, marked),
    )


def _kind(content: Any, path: str) -> tuple[Kind, str | None]:
    """(kind, character for a space in tokens of Unigram and SentencePiece's BPE). Raises `TokenizerError` for any other
    kind."""
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict):
        raise TokenizerError("has no model", where=path, fix=TRAIN_ONE)
    name = model.get("type") or _type_of(model)
    all_steps = [*steps(content.get("pre_tokenizer")), *steps(content.get("normalizer"))]
    if name == "WordPiece":
        return "wordpiece", None
    if name == "WordLevel":
        return "words", None
    if name == "BPE" and any(step.get("type") == "ByteLevel" for step in all_steps):
        return "byte_level_bpe", None
    mark = next(filter(None, map(_space_mark, all_steps)), None)
    if name in ("BPE", "Unigram") and mark:
        return "unigram" if name == "Unigram" else "sentencepiece_bpe", mark
    what = f"is a {name} tokenizer"
    what += " that neither splits text into bytes nor writes spaces as ▁" if name in ("BPE", "Unigram") else ""
    raise TokenizerError(what, where=path, fix=KINDS)


def _type_of(model: dict[str, Any]) -> str:
    """The type of a model of an older file, which does not name it."""
    if "merges" in model:
        return "BPE"
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "WordPiece" if "max_input_chars_per_word" in model else "nameless"


def _space_mark(step: dict[str, Any]) -> str | None:
    if step.get("type") == "Metaspace":
        return str(step.get("replacement") or "▁")
    from_space = step.get("type") == "Replace" and step.get("pattern") == {"String": " "}
    return str(step["content"]) if from_space and step.get("content") else None


def _begins_word(token: str, kind: Kind, mark: str | None, model: dict[str, Any]) -> bool:
    """Whole words: all. WordPiece: all but continuations (`##`). Unigram and SentencePiece's BPE: tokens with a leading
    ▁. These are the words of `transformers`' `word_ids()`, except for Gemma's tokenizer, to which a text is one word.

    Byte-level BPE: tokens with leading white space, so a word includes the punctuation that follows it. `word_ids()`
    has punctuation, digits and contractions apart.
    """
    if kind == "words":
        return True
    if kind == "wordpiece":
        return not token.startswith(str(model.get("continuing_subword_prefix") or "##"))
    if kind == "byte_level_bpe":
        return token.startswith(WHITE_SPACE_BYTES)
    return token.startswith(mark or "▁") or token in BYTE_TOKENS_OF_WHITE_SPACE


def _pieces(model: dict[str, Any], path: str) -> dict[str, int]:
    """Tokens and ids. Unigram's vocabulary is a list of (token, score), whose indices are the ids."""
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        return dict(vocab)
    pairs = vocab if isinstance(vocab, list) and _are(vocab, list) else [[]]
    if not all(len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], int | float) for pair in pairs):
        raise TokenizerError("has a vocabulary that is not tokens and their scores", where=path, fix=TRAIN_ONE)
    return {pair[0]: index for index, pair in enumerate(pairs)}


def _unknown_id(model: dict[str, Any], tokens: dict[str, int], path: str) -> int | None:
    """The id of text without a token, by any name; None if the model has none."""
    named = model.get("unk_token")
    unknown = model.get("unk_id") if isinstance(model.get("vocab"), list) else tokens.get(str(named)) if named else None
    if unknown is None and named:
        what = f"its unk_token {named} is not in the vocabulary"
        raise TokenizerError(what, where=path, fix="add it, or set it to null")
    if unknown is not None and unknown not in tokens.values():
        raise TokenizerError(f"its unk_id {unknown} is not in the vocabulary", where=path, fix=TRAIN_ONE)
    return unknown


def _are(values: Any, kind: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)


def steps(step: Any, depth: int = 0) -> list[dict[str, Any]]:
    """A pre-tokenizer, normalizer or decoder and those inside it. Raises `RecursionError` beyond `DEEPEST`."""
    # Python's own limit is unreliable, since torch's compiler changes it.
    if depth > DEEPEST:
        raise RecursionError
    if not isinstance(step, dict):
        return []
    parts = step.get("pretokenizers") or step.get("normalizers") or step.get("decoders")
    inner = [deeper for part in parts for deeper in steps(part, depth + 1)] if isinstance(parts, list) else []
    return [step, *inner]


def added_tokens(location: str) -> list[dict[str, Any]]:
    """Entries of all added tokens of a tokenizer, with tokens that only the files next to `tokenizer.json` declare."""
    listed = read_tokenizer(location)[0].get("added_tokens") or []
    tokens = token_ids(location)
    return _entries(listed, declared_tokens(tokens, location) if os.path.isdir(location) else {}, tokens)


def tokens_in_text(location: str) -> list[dict[str, Any]]:
    """Entries of the added tokens that a text can become: all that have none of the five roles."""
    vocabulary = read_vocabulary(location)
    has_role = vocabulary.special - vocabulary.additional
    return [token for token in added_tokens(location) if token["id"] not in has_role]


def _entries(
    listed: list[dict[str, Any]], declared: dict[str, dict[str, Any]], tokens: dict[str, int]
) -> list[dict[str, Any]]:
    names = {token["content"] for token in listed}
    return [*listed, *({**entry, "id": tokens[name]} for name, entry in declared.items() if name not in names)]


def merges_of(model: dict[str, Any]) -> list[tuple[str, str]]:
    """The merges of a BPE, none of another model. The left part has no space if a file writes both as one text."""
    merges = [pair.partition(" ")[::2] if isinstance(pair, str) else pair for pair in model.get("merges") or []]
    return [(left, right) for left, right in merges]


def prepends_space(content: dict[str, Any]) -> bool:
    """Whether the tokenizer puts a space before each text, even before another space, as in Llama 1 and 2."""
    return any(step.get("type") == "Prepend" for step in steps(content.get("normalizer")))


# ---- fingerprint ---------------------------------------------------------------------------------------------------


def _fingerprint(content: dict[str, Any], kind: Kind, tokens: dict[str, int], special: frozenset[int]) -> str:
    model, rules = content["model"], [sorted(tokens.items()), *_rules(content, special)]
    if kind != "byte_level_bpe":
        scores = model["vocab"] if isinstance(model["vocab"], list) else None
        rules += [kind, scores, model.get("unk_id"), model.get("max_input_chars_per_word") or 100]
    return storage.sha256_of(rules)


def _rules(content: dict[str, Any], special: frozenset[int]) -> list[Any]:
    """Everything else that decides ids, in one notation, since libraries write the same behaviour differently."""
    model = content["model"]
    # Absent, null, false and "" mean the same in these.
    switches = ("unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback")
    behaviour = [model.get(name) or None for name in (*switches, "ignore_merges")]
    ordinary = [token for token in content.get("added_tokens") or [] if token["id"] not in special]
    return [
        [*map(" ".join, merges_of(model))],
        behaviour,
        _places(ordinary),
        _canonical(content.get("pre_tokenizer")),
        _canonical(content.get("normalizer")),
    ]


def _places(added: list[dict[str, Any]]) -> list[list[Any]]:
    """Everything that decides where added tokens are found in a text."""
    return sorted([token["content"], *(bool(token.get(flag)) for flag in FLAGS)] for token in added)


def _sha256_of_rules(additional: list[dict[str, Any]]) -> str:
    return storage.sha256_of(_places(additional)) if additional else ""


def _canonical(step: Any) -> Any:
    """A normalizer or pre-tokenizer with explicit defaults, and without options that cannot change ids."""
    if isinstance(step, list):
        return [_canonical(part) for part in step]
    if not isinstance(step, dict):
        return step
    if step.get("type") == "Sequence" and not (step.get("pretokenizers") or step.get("normalizers")):
        return None
    spelt: dict[str, Any] = {}
    left_out = {"trim_offsets"}
    if step.get("type") == "ByteLevel":
        spelt = {"add_prefix_space": True, "use_regex": True}
    elif step.get("type") == "Metaspace":  # from before it had schemes
        scheme = "always" if step.get("add_prefix_space", True) else "never"
        spelt, left_out = {"prepend_scheme": scheme, "split": True}, left_out | {"add_prefix_space", "str_rep"}
    return spelt | {key: _canonical(value) for key, value in step.items() if key not in left_out}
