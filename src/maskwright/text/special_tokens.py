"""Special tokens by role (begin, end, padding, mask, unknown), read from the tokenizer, never prescribed.

A role's token is named by `tokenizer_config.json` or `special_tokens_map.json`, else by the template of
`tokenizer.json`, else it is a well-known name among the tokens, as in the classes of `transformers`. A name that
contradicts the template is refused, since `transformers` frames texts by the template.

Other special tokens are declared: placeholders, entity markers, separators.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from maskwright.core import storage
from maskwright.core.errors import TokenizerError

ROBERTA = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
BERT = {"pad": "[PAD]", "unk": "[UNK]", "bos": "[CLS]", "eos": "[SEP]", "mask": "[MASK]"}
CONFIG_FILES = ("tokenizer_config.json", "special_tokens_map.json")
DECLARING = ("additional_special_tokens", "extra_special_tokens")
"""Keys of those files that declare tokens without a role, in a list, or in an object by names of their own."""
KEYS = {
    "bos": ("cls_token", "bos_token"),
    "pad": ("pad_token",),
    "eos": ("sep_token", "eos_token"),
    "unk": ("unk_token",),
    "mask": ("mask_token",),
}
"""Keys of those files by role, the preferred one first: rows are `[CLS] … [SEP]` where there are both."""


def keyed(names: dict[str, str]) -> dict[str, str]:
    """Tokens by role, such as `BERT`, by the preferred keys of those files."""
    return {keys[0]: names[role] for role, keys in KEYS.items()}


WELL_KNOWN = {
    "bos": ("<s>", "[CLS]", "<cls>", "<bos>"),
    "pad": ("<pad>", "[PAD]"),
    "eos": ("</s>", "[SEP]", "<sep>", "<eos>"),
    "unk": ("<unk>", "[UNK]"),
    "mask": ("<mask>", "[MASK]"),
}
FLAGS = ("lstrip", "rstrip", "single_word", "normalized")
"""Keys of an added token that decide where it is found in a text."""
PURPOSE = {"bos": "begins a row", "pad": "fills rows", "eos": "ends a row", "mask": "hides a token"}
SAVE_AGAIN = "save the folder again with `AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)`"
Frame = tuple[str, str]


def special_tokens(content: dict[str, Any], tokens: dict[str, int], path: str, folder: str | None) -> dict[str, str]:
    """{role: token} for the `content` of a `tokenizer.json`. Only `unk` may be absent. Raises `TokenizerError`.

    `tokens`: all tokens and their ids. `folder`: of the files next to it; None for a file alone.
    """
    configured = _configured(folder) if folder else {}
    frame = _frame(content.get("post_processor"), tokens, path)
    added = {token["content"] for token in content.get("added_tokens") or []}
    token_of = {}
    for role, keys in KEYS.items():
        names = [configured[key] for key in keys if key in configured]
        in_template = frame[("bos", "eos").index(role)] if frame and role in ("bos", "eos") else None
        if in_template is not None and names and in_template not in names:
            what = f"its template puts {in_template}, but {keys[0]} is {names[0]}"
            fix = "make tokenizer_config.json and the post_processor of tokenizer.json agree"
            raise TokenizerError(what, where=path, fix=fix)
        token = in_template or (names[0] if names else _well_known(role, tokens, added, path))
        if token is not None and token not in tokens:
            raise TokenizerError(f"its {keys[0]} {token} is not in the vocabulary", where=path, fix=SAVE_AGAIN)
        if token is not None:
            token_of[role] = token
        elif role != "unk":
            raise _missing(role, path)
    if shared := [role for role, token in token_of.items() if token == token_of["mask"] and role != "mask"]:
        what = f"its mask_token {token_of['mask']} is also its {KEYS[shared[0]][0]}"
        raise TokenizerError(what, where=path, fix="name a token of its own in tokenizer_config.json")
    return token_of


def _missing(role: str, path: str) -> TokenizerError:
    key = KEYS[role][0]
    fix = (
        f'add one with `tokenizer = AutoTokenizer.from_pretrained(FOLDER); tokenizer.add_special_tokens({{"{key}": '
        f'"{WELL_KNOWN[role][0]}"}}); tokenizer.save_pretrained(FOLDER)`, or name it in tokenizer_config.json; a model '
        "that has no row for it grows by `model.resize_token_embeddings(len(tokenizer))`"
    )
    return TokenizerError(f"has no {key}, which {PURPOSE[role]}", where=path, fix=fix)


def _well_known(role: str, tokens: dict[str, int], added: set[str], path: str) -> str | None:
    # Added tokens go first: Gemma's vocabulary has `<s>` and `</s>` too, for HTML.
    present = [name for name in WELL_KNOWN[role] if name in tokens]
    names = [name for name in present if name in added] or present
    if len(names) > 1 and role != "unk":  # which the model itself names
        fix = f'name it in tokenizer_config.json: {{"{KEYS[role][0]}": "{names[0]}"}}'
        raise TokenizerError(f"has {' and '.join(names)} for one role", where=path, fix=fix)
    return names[0] if names else None


def declared_tokens(tokens: dict[str, int], folder: str) -> dict[str, dict[str, Any]]:
    """{token: entry as in `added_tokens`, without id} of all special tokens that the files next to `tokenizer.json`
    name, in any role. Raises `TokenizerError` for a token without an id."""
    declared: dict[str, dict[str, Any]] = {}
    for path, content in config_files(folder):
        listed = [(key, value) for key in DECLARING for value in _values(content.get(key))]
        named = [(key, value) for key, value in content.items() if key.endswith("_token")]
        for key, value in [*listed, *named]:
            entry = value if isinstance(value, dict) else {"content": value}
            token = entry.get("content")
            if isinstance(token, str) and token in tokens:
                flags = {flag: bool(entry.get(flag)) for flag in FLAGS}
                declared.setdefault(token, {"content": token, **flags, "special": True})
            elif key in DECLARING:
                what = f"{key} has {str(token)[:60]}, which is not in the vocabulary"
                raise TokenizerError(what, where=path, fix=SAVE_AGAIN)
    return declared


def _values(value: Any) -> list[Any]:
    """The tokens of a list, or of an object by names; none for anything else."""
    return [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []


def config_files(folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(path, content) of the files next to `tokenizer.json`. Raises `TokenizerError` for a file that is no object."""
    for path in (os.path.join(folder, name) for name in CONFIG_FILES):
        if os.path.isfile(path):
            content = storage.read_json(path)
            if not isinstance(content, dict):
                raise TokenizerError("is not a JSON object", where=path, fix=SAVE_AGAIN)
            yield path, content


def longest_of(tokens: Iterable[str]) -> re.Pattern[str]:
    """Finds the longest token at a position, as the library does: `<s>NOTUSED` is not `<s>`. Without tokens, it matches
    nowhere."""
    longest_first = "|".join(["(?!)", *map(re.escape, sorted(tokens, key=len, reverse=True))])
    return re.compile(f"(?:{longest_first})")


def letters_of(location: str) -> str | None:
    """The pattern of a token, such as `[ACGT]{6}|.`, of a folder that `sequences` wrote; None for any other."""
    configured = (content.get("letters") for _, content in config_files(location))
    return next((letters for letters in configured if isinstance(letters, str)), None)


def _configured(folder: str) -> dict[str, str]:
    """{key: token} of the files next to `tokenizer.json`. Raises `TokenizerError` if they disagree."""
    tokens: dict[str, str] = {}
    for path, content in config_files(folder):
        for key in (key for keys in KEYS.values() for key in keys):
            value = content.get(key)
            token = value.get("content") if isinstance(value, dict) else value
            if token is None:
                continue
            if not isinstance(token, str):
                raise TokenizerError(f"{key} is not a token", where=path, fix=SAVE_AGAIN)
            if tokens.setdefault(key, token) != token:
                what = f"{key} is {token} here, but {tokens[key]} in {CONFIG_FILES[0]}"
                raise TokenizerError(what, where=path, fix="make the two files agree")
    return tokens


def _frame(post_processor: Any, tokens: dict[str, int], path: str) -> Frame | None:
    """The template's tokens before and after a single text; None without a template."""
    try:
        template = _template(post_processor)
        is_known = [pair is None or tokens.get(pair[0]) == pair[1] for pair in template]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError):
        raise TokenizerError("has a post_processor that cannot be read", where=path, fix=SAVE_AGAIN) from None
    if not template:
        return None
    text_idx = template.index(None) if None in template else 0
    before, after = template[:text_idx], template[text_idx + 1 :]
    if len(before) != 1 or len(after) != 1 or before[0] is None or after[0] is None:
        text = " ".join("TEXT" if pair is None else pair[0] for pair in template)
        what = f"its template turns a text into '{text}', which is not one token before and one after it"
        fix = (
            "set a template with `tokenizers.processors.TemplateProcessing` as `tokenizer.backend_tokenizer."
            "post_processor`, and save the folder again"
        )
        raise TokenizerError(what, where=path, fix=fix)
    for (token, index), agrees in ((before[0], is_known[0]), (after[0], is_known[-1])):
        if not agrees:
            what = f"its template gives {token} the id {index}, but its vocabulary {tokens.get(token, 'none')}"
            raise TokenizerError(what, where=path, fix=SAVE_AGAIN)
    return before[0][0], after[0][0]


def _template(step: Any) -> list[tuple[str, int] | None]:
    """(token, id) of each special token that a post-processor puts around a single text, and None for the text."""
    kind = step.get("type") if isinstance(step, dict) else None
    if kind == "Sequence":
        return next((template for part in step["processors"] if (template := _template(part))), [])
    if kind in ("BertProcessing", "RobertaProcessing"):
        (begin, first), (end, last) = step["cls"], step["sep"]
        return [(begin, first), None, (end, last)]
    if kind != "TemplateProcessing":
        return []
    tokens: list[tuple[str, int] | None] = []
    for part in step["single"]:
        if "SpecialToken" not in part:
            tokens.append(None)
        else:
            token = step["special_tokens"][part["SpecialToken"]["id"]]
            tokens += zip(token["tokens"], token["ids"], strict=True)
    return tokens if any(tokens) else []
