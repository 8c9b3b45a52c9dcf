"""How a folder of `sentence-transformers` makes a text's vector: by the modules that its `modules.json` lists."""

from __future__ import annotations

import os
from functools import partial

from maskwright.core import storage
from maskwright.core.console import warn
from maskwright.core.errors import InputError
from maskwright.model.config import ModelConfig
from maskwright.text.tokenizer import load_tokenizer

MODULES, FIRST, CONFIG = "modules.json", "sentence_bert_config.json", "tokenizer_config.json"
PROMPTS = "config_sentence_transformers.json"
"""The class of a folder, and the words that the model wants before texts, by name."""
DENSE = "SentenceTransformer"
SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"
MEAN, FIRST_TOKEN = ("mean", "pooling_mode_mean_tokens"), ("cls", "pooling_mode_cls_token")
"""Values and, before version 6, keys of a pooling's settings."""
_read = partial(storage.read_json_or, None)


def pooling_of(folder: str) -> tuple[bool, bool]:
    """(whether a vector is the state of the first token, instead of the mean over all; whether it is divided by its
    length), by the modules of a folder. Raises `InputError` for modules that do more, and for a folder of another
    class, such as a CrossEncoder, whose pairs get scores and no vectors."""
    kinds = {str(one.get("type")).rpartition(".")[2]: str(one.get("path")) for one in _read(folder, MODULES) or ()}
    pooling = ("Pooling" in kinds and _read(folder, kinds["Pooling"], "config.json")) or {}
    on = [key for key, value in pooling.items() if key.startswith("pooling_mode_") and value is True]
    modes, first = [pooling["pooling_mode"]] if "pooling_mode" in pooling else on, _read(folder, FIRST) or {}
    more = [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]
    without = pooling.get("include_prompt") is False and any(prompts_of(folder)[0].values())
    more += ["pooling without prompts"] if without else []
    more += [f"pooling by {' and '.join(map(str, modes))}"] if modes and modes[0] not in (*MEAN, *FIRST_TOKEN) else []
    if size := (_read(folder, PROMPTS) or {}).get("truncate_dim"):
        more.append(f"their first {size} numbers (truncate_dim)")
    if first.get("do_lower_case"):
        normalizer = load_tokenizer(folder, special_tokens_are_text=True).normalizer
        more += ["lower case"] if normalizer is None or "A" in normalizer.normalize_str("A") else []
    kind = _class_of(folder)
    if more or len(modes) > 1 or kind != DENSE:
        what = f"makes vectors by {', '.join(more or modes)}, which only sentence-transformers computes"
        what = what if kind == DENSE else f"is a {kind} of sentence-transformers, which makes no vector of a text"
        fix = f"use {kind} of sentence-transformers; or, for means of the last hidden states, remove {MODULES}"
        raise InputError(what, where=folder, fix=fix)
    return bool(modes) and modes[0] in FIRST_TOKEN, "Normalize" in kinds


def warn_if_untold(folder: str) -> None:
    """Warns of a snapshot in the Hub's cache that others downloaded without asking for `modules.json`, of whose absence
    `huggingface_hub` leaves a mark."""
    snapshots, commit = os.path.split(folder)
    marks = os.path.join(os.path.dirname(snapshots), ".no_exist", commit)
    if os.path.basename(snapshots) == "snapshots" and not any(
        os.path.exists(os.path.join(place, MODULES)) for place in (folder, marks)
    ):
        line = f"{folder}: its vectors are means, since the cache does not show whether the model has a {MODULES}"
        warn(f"{line}; to ask the Hub, delete this folder and run the command again")


def prompts_of(folder: str) -> tuple[dict[str, str], str | None]:
    """(the words before a text, by the name of the prompt; the name that texts get by default)"""
    config = _read(folder, PROMPTS) or {}
    prompts = {name: words for name, words in (config.get("prompts") or {}).items() if words is not None}
    return prompts, config.get("default_prompt_name")


def similarity_of(folder: str) -> str:
    """The function of two vectors that the folder was made for: `cosine`, or another such as `dot`."""
    return str((_read(folder, PROMPTS) or {}).get("similarity_fn_name") or "cosine")


def prompt_of(folder: str, name: str | None) -> str:
    """The words before a text, by the prompt `name` or else the default one. Warns if none of the prompts is
    chosen. Raises `InputError` for a name that the folder lacks."""
    prompts, default = prompts_of(folder)
    listed = ", ".join(f"{key} ({words!r})" for key, words in prompts.items())
    chosen = default if name is None else name
    if chosen is None:
        if any(prompts.values()):
            warn(f"{folder}: texts get none of its prompts, {listed}; choose one with --prompt, or prompt in Python")
        return ""
    if chosen not in prompts:
        fix = f"choose one of {listed}" if prompts else "leave it out"
        raise InputError(f"has no prompt {chosen!r}", where=folder, fix=fix)
    return prompts[chosen]


def warn_of_modules(where: str, folder: str) -> None:
    """Warns that a model made from the folder gets other vectors, unless the modules take the mean."""
    try:
        if _class_of(folder) != DENSE or not pooling_of(folder)[0]:
            return
    except InputError:
        pass
    line = f"{where}: its {MODULES} makes other vectors than the mean, which `embed` and exports of the new model use"
    warn(f"{line}; to keep these vectors, copy {MODULES} and the folders that it names into the folder that is written")


def activation_of(folder: str) -> str | None:
    """The class of torch that makes a score of a CrossEncoder's number, if its folder names one: in the files of
    version 5, 4 or earlier."""
    config = _read(folder, "config.json") or {}
    of_version_4 = config.get("sentence_transformers") or {}
    before = of_version_4.get("activation_fn") or config.get("sbert_ce_default_activation_function")
    return (_read(folder, PROMPTS) or {}).get("activation_fn") or before


def _class_of(folder: str) -> str:
    """The class of `sentence-transformers` that loads the folder; the dense one for others' folders."""
    is_theirs = os.path.isfile(os.path.join(folder, MODULES))
    return str((is_theirs and (_read(folder, PROMPTS) or {}).get("model_type")) or DENSE)


def longest_text(folder: str, config: ModelConfig) -> int | None:
    """Tokens of a text that the modules or, without modules, the tokenizer's files allow; None if they set no limit."""
    of_modules = _read(folder, FIRST) if _read(folder, MODULES) is not None else None
    limits = (of_modules or {}).get("max_seq_length"), (_read(folder, CONFIG) or {}).get("model_max_length")
    limit = next((limit for limit in limits if isinstance(limit, int)), None)
    return None if limit is None else min(limit, config.max_seq_len)
