"""A `tokenizer.json` created from older files, as the class of `transformers` does it: `vocab.json` and `merges.txt`
are RoBERTa's byte-level BPE, `vocab.txt` is BERT's WordPiece, or ESM's letters of proteins, and a SentencePiece model
is DeBERTa v2's and v3's Unigram if it has `[CLS]`, else a Unigram or BPE with the ids of XLM-R's class.

It lies in `storage.cache_folder("tokenizers")`, next to copies of the configuration. The folder itself does not change.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
from collections.abc import Collection
from typing import Any

from maskwright.core import storage
from maskwright.core.console import say
from maskwright.core.errors import TokenizerError
from maskwright.text.sentencepiece_model import SentencePieceModel, read_model
from maskwright.text.special_tokens import BERT, CONFIG_FILES, ROBERTA, SAVE_AGAIN, config_files, keyed

BPE_FILES, WORDPIECE_FILES = ("vocab.json", "merges.txt"), ("vocab.txt",)
SENTENCEPIECE_ENDING = ".model"
SENTENCEPIECE = ("sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model")
ADDED = "added_tokens.json"
DEFAULTS = {kind: keyed(names) for kind, names in (("BPE", ROBERTA), ("WordPiece", BERT), ("Unigram", BERT))} | {
    "ESM": {f"{key}_token": f"<{key}>" for key in ("cls", "pad", "eos", "unk", "mask")}
}
"""The classes' special tokens, unless the files next to it name others."""
ESM_FRAME, UNKNOWN_RUN = ("cls_token", "eos_token"), "\ufffd"
ANY_CLASS = ("", "PreTrainedTokenizer", "TokenizersBackend")
CLASSES = {
    BPE_FILES: "Roberta GPT2 Bart Blenderbot Deberta LED LayoutLMv3 Longformer Luke MarkupLM",
    WORDPIECE_FILES: "Bert ConvBert DistilBert Electra Esm Funnel LayoutLM Lxmert MPNet MobileBert SqueezeBert",
}
"""Classes of `transformers` that cut text by these files alone, without `Tokenizer`. Others find words first, such as
`BertJapaneseTokenizer` by MeCab, or write merges otherwise, such as `HerbertTokenizer`."""

BERT_SETTINGS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""Settings of BERT's classes, and their names in the normalizer of a `tokenizer.json`."""
UNSET: dict[tuple[str, ...], dict[str, Any]] = {
    WORDPIECE_FILES: {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True},
    BPE_FILES: {"add_prefix_space": False},
}
"""Settings of the classes of `CLASSES` that `tokenizer_config.json` leaves out."""


def files_among(names: Collection[str]) -> tuple[str, ...]:
    """The names from which a `tokenizer.json` can be created; empty if some are absent."""
    models = ((name,) for name in SENTENCEPIECE)
    return next((files for files in (BPE_FILES, WORDPIECE_FILES, *models) if set(files) <= set(names)), ())


def files_of(folder: str) -> tuple[str, ...]:
    """`files_among` the names in a folder."""
    return files_among(os.listdir(folder)) if os.path.isdir(folder) else ()


def create_from(folder: str, names: tuple[str, ...]) -> str:
    """Creates the `tokenizer.json` unless it exists, and returns its path. Raises `TokenizerError` for ambiguous
    files, and for a class that does more than they say."""
    config = _config_beside(folder)
    is_esm = names == WORDPIECE_FILES and _is_esm(folder, config)
    _require_class(folder, names, config)
    if not is_esm:
        _require_nothing_added(folder)
    beside = [name for name in (*CONFIG_FILES, ADDED) if os.path.isfile(os.path.join(folder, name))]
    is_sentencepiece = names[0].endswith(SENTENCEPIECE_ENDING)
    of_model = ["config.json"] if is_sentencepiece and os.path.isfile(os.path.join(folder, "config.json")) else []
    sums = [[name, storage.sha256_of_file(os.path.join(folder, name))] for name in (*names, *beside, *of_model)]
    cached = storage.cache_folder("tokenizers", storage.sha256_of(sums)[:16])
    path = os.path.join(cached, "tokenizer.json")
    if os.path.isfile(path):
        return path
    if is_sentencepiece:
        content = _sentencepiece(folder, names[0], config)
    else:
        content = _esm(folder, config) if is_esm else _of_class(folder, names, config)
    content = {"version": "1.0", "truncation": None, "padding": None, **content}
    storage.make_folder(cached)
    # The slow class of ESM reads the vocabulary; the others read `tokenizer.json` alone.
    for name in (*(names if is_esm else ()), *beside):
        shutil.copyfile(os.path.join(folder, name), os.path.join(cached, name))
    if is_sentencepiece:
        storage.write_json(os.path.join(cached, CONFIG_FILES[0]), config | _class_of_any(content))
    with storage.atomic_writer(path) as file:  # last, since it makes the folder whole
        file.write(json.dumps(content, ensure_ascii=False).encode())
    lowered = ", which lowers the case" if (content["normalizer"] or {}).get("lowercase") else ""
    say(f"{folder}: has no tokenizer.json, so one is created from {' and '.join(names)}{lowered}")
    return path


def _require_class(folder: str, names: tuple[str, ...], config: dict[str, Any]) -> None:
    named = config.get("tokenizer_class") or _of_model(folder).get("tokenizer_class") or ""
    kind, known = str(named).removesuffix("Fast"), [f"{name}Tokenizer" for name in CLASSES.get(names, "").split()]
    if not known or kind in (*ANY_CLASS, *known):
        return
    what = f"has no tokenizer.json, and its {kind} cuts a text by more than {' and '.join(names)}"
    fix = "save it with a tokenizer.json, by a transformers that writes one for this class; or use another model"
    if kind == "BertJapaneseTokenizer" and config.get("subword_tokenizer_type", "wordpiece") == "wordpiece":
        fix = "put spaces between the words of your text as this class finds them, and set tokenizer_class to "
        fix += f"BertTokenizer and tokenize_chinese_chars to false in its {CONFIG_FILES[0]}"
    raise TokenizerError(what, where=folder, fix=fix)


def require_settings_agree(content: dict[str, Any], folder: str) -> None:
    """Raises `TokenizerError` if BERT's or RoBERTa's class in `transformers`, which replaces the normalizer or the
    prefix space of a `tokenizer.json` by its own settings, would read a text otherwise than that file."""
    names: tuple[str, ...]
    normalizer, cut = (content.get(step) for step in ("normalizer", "pre_tokenizer"))
    if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer":
        names, step = WORDPIECE_FILES, "normalizer"
        settings: dict[str, Any] = {key: normalizer.get(name) for key, name in BERT_SETTINGS.items()}
    elif isinstance(cut, dict) and cut.get("type") == "ByteLevel":
        names, step, settings = BPE_FILES, "pre_tokenizer", {"add_prefix_space": bool(cut.get("add_prefix_space"))}
    else:
        return
    config = _config_beside(folder)
    named = config.get("tokenizer_class")
    kind = str(named or _of_model(folder).get("model_type")).lower().removesuffix("fast").removesuffix("tokenizer")
    given = {key: config[key] for key in settings if key in config}
    if kind in CLASSES[names].lower().split() and (named or given):
        written = UNSET[names] | given
        if _effect(written) != _effect(settings):
            path = os.path.join(folder, CONFIG_FILES[0])
            what = f"{json.dumps(written)} for {named or kind}, by which transformers reads a text, contradict the "
            fix = f"if tokenizer.json is right, write {json.dumps(settings)} there; else {SAVE_AGAIN}"
            raise TokenizerError(f"{what}{step} of tokenizer.json", where=path, fix=fix)


def require_added_tokens_agree(tokens: dict[str, int], folder: str) -> None:
    """Raises `TokenizerError` for a token that `transformers` adds from other files than `tokenizer.json`."""
    decoder, added = _config_beside(folder).get("added_tokens_decoder"), storage.read_json_or({}, folder, ADDED)
    entries = decoder.items() if isinstance(decoder, dict) else ()
    listed = [
        (str(entry.get("content")), index, CONFIG_FILES[0]) for index, entry in entries if isinstance(entry, dict)
    ]
    listed += [(token, index, ADDED) for token, index in added.items()] if isinstance(added, dict) else []
    for token, index, name in listed:
        if str(tokens.get(token)) != str(index):
            what = f"gives {token!r} the id {index}, tokenizer.json {tokens.get(token, 'has no such token')}"
            raise TokenizerError(what, where=os.path.join(folder, name), fix=SAVE_AGAIN)


def _effect(settings: dict[str, Any]) -> dict[str, Any]:
    strips = settings.get("strip_accents")
    return settings | {"strip_accents": settings.get("do_lower_case") if strips is None else strips}


def _of_model(folder: str) -> dict[str, Any]:
    """The model's `config.json`; empty without one."""
    values = storage.read_json_or({}, folder, "config.json")
    return values if isinstance(values, dict) else {}


def _require_nothing_added(folder: str) -> None:
    added = os.path.join(folder, ADDED)
    tokens = storage.read_json_or({}, added)
    if tokens and not (os.path.isfile(os.path.join(folder, "spm.model")) and [*tokens] == [BERT["mask"]]):
        raise TokenizerError("has tokens of its own, but no tokenizer.json", where=added, fix=SAVE_AGAIN)


def _config_beside(folder: str) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for _, content in reversed([*config_files(folder)]):
        config |= content
    return config


def _special(config: dict[str, Any], vocab: dict[str, int], kind: str, path: str) -> dict[str, str]:
    """{key: token} of special tokens in the vocabulary. Raises `TokenizerError` without tokens to frame a text."""
    named_tokens = {key: config.get(key) or token for key, token in DEFAULTS[kind].items()}
    tokens = {key: token["content"] if isinstance(token, dict) else token for key, token in named_tokens.items()}
    for key in ESM_FRAME if kind == "ESM" else ("cls_token", "sep_token"):
        if config.get(key, "") is None:
            what, fix = f"has {key}: null, so transformers would not frame a text", f'write "{tokens[key]}" there'
            raise TokenizerError(what, where=os.path.join(os.path.dirname(path), CONFIG_FILES[0]), fix=fix)
        if tokens[key] not in vocab:
            what = f"has no {tokens[key]}, which frames a text"
            raise TokenizerError(what, where=path, fix=f"use the files of a masked language model; or {SAVE_AGAIN}")
    return {key: token for key, token in tokens.items() if token in vocab}


def _added(
    special: dict[str, str], vocab: dict[str, int], *, mask_takes_space: bool, ordinary: Collection[str] = ()
) -> list[dict[str, Any]]:
    flags = {"single_word": False, "rstrip": False, "normalized": False}
    mask = special.get("mask_token")
    return [
        {"id": vocab[token], "content": token, "lstrip": mask_takes_space and token == mask, **flags}
        | {"special": token not in ordinary}
        for token in sorted(set(special.values()), key=vocab.__getitem__)
    ]


def _of_class(folder: str, names: tuple[str, ...], config: dict[str, Any]) -> dict[str, Any]:
    """As `RobertaTokenizer` and `BertTokenizer` of `transformers` make it."""
    from transformers import BertTokenizer, RobertaTokenizer

    is_bpe, path = names == BPE_FILES, os.path.join(folder, names[0])
    vocab = storage.read_json(path) if is_bpe else _listed(path)
    if not isinstance(vocab, dict):
        raise TokenizerError("is not tokens and their ids", where=path, fix="copy it again")
    special = _special(config, vocab, "BPE" if is_bpe else "WordPiece", path)
    # Explicit, since the classes' own defaults vary: BERT's keeps the case in 5.0.
    settings = {"add_prefix_space": False} if is_bpe else {"do_lower_case": True}
    try:
        kind = RobertaTokenizer if is_bpe else BertTokenizer
        made = kind.from_pretrained(folder, **{key: config.get(key, value) for key, value in settings.items()})
    except Exception as error:  # the libraries raise bare ones
        what = f"{' and '.join(names)} cannot be read: {error}"
        raise TokenizerError(what, where=folder, fix="copy the files again") from None
    content: dict[str, Any] = json.loads(made.backend_tokenizer.to_str())
    # The class gives new ids to special tokens that the vocabulary lacks, and its mask excludes the space before it.
    return content | {"added_tokens": _added(special, vocab, mask_takes_space=is_bpe)}


def _listed(path: str) -> dict[str, int]:
    """Tokens and ids of a `vocab.txt`."""
    lines = lines_of(path)
    vocab = {token: index for index, token in enumerate(lines)}
    if len(vocab) != len(lines):
        repeated = next(token for index, token in enumerate(lines) if vocab[token] != index)
        raise TokenizerError(f"has {repeated[:40]!r} twice", where=path, fix="copy it again")
    return vocab


def _is_esm(folder: str, config: dict[str, Any]) -> bool:
    """Whether the files name `EsmTokenizer`, or name no class and have its special tokens."""
    if kind := config.get("tokenizer_class"):
        return str(kind) == "EsmTokenizer"
    return {*DEFAULTS["ESM"].values()} <= {*lines_of(os.path.join(folder, "vocab.txt"))}


def _esm(folder: str, config: dict[str, Any]) -> dict[str, Any]:
    """As `EsmTokenizer`: each token of the file, and each added one, is found anywhere in a text, white space is
    dropped, and the rest between two tokens or spaces is one unknown token."""
    path = os.path.join(folder, "vocab.txt")
    vocab = _listed(path) | storage.read_json_or({}, folder, ADDED)
    special = _special(config, vocab, "ESM", path)
    begin, end = (special[key] for key in ESM_FRAME)
    letters = "".join(re.escape(token) for token in vocab if len(token) == 1)
    longer = {f"token_{index}": token for token, index in vocab.items() if len(token) > 1}
    ordinary = {*longer.values()} - {*special.values()}
    added = _added(special | longer, vocab, mask_takes_space=False, ordinary=ordinary)
    replaced = [(f"[^{letters}\\s]+", UNKNOWN_RUN), ("\\s", "")]
    steps = [{"type": "Replace", "pattern": {"Regex": pattern}, "content": text} for pattern, text in replaced]
    return {
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(?m:.)"}, "behavior": "Isolated", "invert": False},
        "post_processor": {"type": "BertProcessing", "sep": [end, vocab[end]], "cls": [begin, vocab[begin]]},
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordPiece", "unk_token": special.get("unk_token"), "vocab": vocab}
        | {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
    }


def _sentencepiece(folder: str, name: str, config: dict[str, Any]) -> dict[str, Any]:
    """As SentencePiece normalizes and cuts a text."""
    path = os.path.join(folder, name)
    model = read_model(path)
    is_deberta = any(piece == BERT["bos"] for piece, _ in model.pieces)
    if is_deberta and (model.is_bpe or model.byte_fallback):
        raise TokenizerError("is not a Unigram model, as DeBERTa's are", where=path, fix=SAVE_AGAIN)
    vocab, ids_of_model, special, frame = (_debertas if is_deberta else _xlm_rs)(model, folder, path, config)
    of_user = {piece: piece for piece in model.user_defined if piece not in special.values() and not is_deberta}
    steps: list[dict[str, Any]] = [{"type": "Lowercase"}] if config.get("do_lower_case") else []
    steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
    if model.charsmap:
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(model.charsmap).decode()})
    steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    crosses = any("▁" in piece[1:] for piece, _ in model.pieces if piece not in model.user_defined)
    spaces = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": not crosses}
    added = _added(special | of_user, vocab, mask_takes_space=not is_deberta, ordinary={*of_user.values()})
    if of_user:  # found after the spaces are written, so that none is put behind them
        added = [token | {"normalized": token["content"] in of_user} for token in added]
        alone = "|".join(map(re.escape, of_user))
        replaced = [({"Regex": rf"\A(?!(?:{alone})?\z)"}, "▁"), ({"String": " "}, "▁")]
        steps += [{"type": "Replace", "pattern": pattern, "content": text} for pattern, text in replaced]
        spaces["prepend_scheme"] = "never"
    punctuation = [{"type": "Punctuation", "behavior": "Isolated"}] if config.get("split_by_punct") else []
    return {
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*punctuation, spaces]},
        "post_processor": _template(*frame, vocab, types=is_deberta),
        "decoder": spaces,
        "model": ids_of_model,
    }


def _template(begin: str, end: str, vocab: dict[str, int], *, types: bool) -> dict[str, Any]:
    """`types`: BERT's `[CLS] a [SEP] b [SEP]` with token types, else RoBERTa's `<s> a </s></s> b </s>`."""

    def token(name: str, type_id: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": type_id}}

    second = int(types)
    single = [token(begin, 0), {"Sequence": {"id": "A", "type_id": 0}}, token(end, 0)]
    pair = [*single, *([] if types else [token(end, 0)]), {"Sequence": {"id": "B", "type_id": second}}]
    framed = {name: {"id": name, "ids": [vocab[name]], "tokens": [name]} for name in (begin, end)}
    return {"type": "TemplateProcessing", "single": single, "pair": [*pair, token(end, second)]} | {
        "special_tokens": framed
    }


Parts = tuple[dict[str, int], dict[str, Any], dict[str, str], tuple[str, str]]
"""(ids of all tokens, the model of `tokenizer.json`, special tokens by key, tokens that frame a text)"""


def _debertas(model: SentencePieceModel, folder: str, path: str, config: dict[str, Any]) -> Parts:
    """As DeBERTa was trained: SentencePiece's own normalization, and a mask after its pieces. `DebertaV2Tokenizer` of
    `transformers` 5 normalizes to NFC alone, so that characters such as ½ or full-width letters are unknown to it."""
    pieces = [[piece, score] for piece, score in model.pieces]
    vocab = {piece: index for index, (piece, _) in enumerate(model.pieces)}
    vocab.setdefault(BERT["mask"], len(pieces))
    special = _special(config, vocab, "Unigram", path)
    unigram = {"type": "Unigram", "unk_id": model.unknown, "vocab": pieces, "byte_fallback": False}
    return vocab, unigram, special, (special["cls_token"], special["sep_token"])


def _xlm_rs(model: SentencePieceModel, folder: str, path: str, config: dict[str, Any]) -> Parts:
    """As XLM-R's class: its four special tokens, the model's pieces but for those that no text becomes, and a mask."""
    kind = str(config.get("tokenizer_class") or _of_model(folder).get("model_type") or "xlm-roberta")
    if not kind.lower().replace("-", "").startswith("xlmroberta"):
        fix = "save the folder with a tokenizer.json, by a transformers that has its class; or, for a new model, give "
        fix += "the file in a folder of its own"
        raise TokenizerError(f"belongs to {kind}, whose class gives ids of its own", where=path, fix=fix)
    first = [ROBERTA[role] for role in ("bos", "pad", "eos", "unk")]
    left_out = {*first, ROBERTA["mask"]}
    kept = [
        (piece, score)
        for index, (piece, score) in enumerate(model.pieces)
        if index not in model.control and index != model.unknown and piece not in left_out
    ]
    vocab = {piece: index for index, piece in enumerate([*first, *(piece for piece, _ in kept)])}
    fallback = {"byte_fallback": model.byte_fallback}
    if model.is_bpe:
        merges = model.merges({piece: vocab[piece] for piece, _ in kept})
        content: dict[str, Any] = {"type": "BPE", "vocab": dict(vocab), "merges": merges, "unk_token": ROBERTA["unk"]}
        content |= {"fuse_unk": True, "dropout": None, **fallback}
    else:
        pieces = [*([token, 0.0] for token in first), *([piece, score] for piece, score in kept)]
        content = {"type": "Unigram", "unk_id": vocab[ROBERTA["unk"]], "vocab": pieces, **fallback}
    vocab[ROBERTA["mask"]] = len(vocab)
    special = keyed(ROBERTA)
    return vocab, content, special, (ROBERTA["bos"], ROBERTA["eos"])


def _class_of_any(content: dict[str, Any]) -> dict[str, Any]:
    """Entries of `tokenizer_config.json` with which `transformers` reads the `tokenizer.json` unchanged, since its
    class for DeBERTa uses the pieces alone, and normalizes by rules of its own."""
    tokens = {token["content"] for token in content["added_tokens"]}
    named = {key: token for key, token in DEFAULTS["BPE"].items() if token in tokens}  # one of the two has its tokens
    named |= {key: token for key, token in DEFAULTS["Unigram"].items() if token in tokens}
    return {"tokenizer_class": "PreTrainedTokenizerFast", **named}


def lines_of(path: str) -> list[str]:
    """The lines of a `vocab.txt` or `merges.txt`. Raises `TokenizerError` for bytes that are not UTF-8."""
    with storage.open_binary(path) as file:
        content = file.read()
    try:
        return content.decode().replace("\r\n", "\n").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"byte {error.start + 1:,} is not UTF-8", where=path, fix="copy it again") from None
