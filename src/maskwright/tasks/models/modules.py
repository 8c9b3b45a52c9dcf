"""How a folder of `sentence-transformers` makes a text's vector: by the modules that its `modules.json` lists."""

from __future__ import annotations

from functools import partial

from maskwright.core import storage
from maskwright.core.console import warn
from maskwright.core.errors import InputError
from maskwright.model.config import ModelConfig
from maskwright.text.tokenizer import load_tokenizer

MODULES, FIRST, CONFIG = "modules.json", "sentence_bert_config.json", "tokenizer_config.json"
PROMPTS = "config_sentence_transformers.json"
"""The words that a model puts before texts."""
MEAN, FIRST_TOKEN = ("mean", "pooling_mode_mean_tokens"), ("cls", "pooling_mode_cls_token")
"""Values and, before version 6, keys of a pooling's settings."""
_read = partial(storage.read_json_or, None)


def pooling_of(folder: str) -> tuple[bool, bool]:
    """(whether a vector is the state of the first token, instead of the mean over all; whether it is divided by its
    length), by the modules of a folder. Raises `InputError` for modules that do more."""
    kinds = {str(one.get("type")).rpartition(".")[2]: str(one.get("path")) for one in _read(folder, MODULES) or ()}
    pooling = ("Pooling" in kinds and _read(folder, kinds["Pooling"], "config.json")) or {}
    on = [key for key, value in pooling.items() if key.startswith("pooling_mode_") and value is True]
    modes, first = [pooling["pooling_mode"]] if "pooling_mode" in pooling else on, _read(folder, FIRST) or {}
    more = [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]
    more += [f"pooling by {' and '.join(map(str, modes))}"] if modes and modes[0] not in (*MEAN, *FIRST_TOKEN) else []
    if first.get("do_lower_case"):
        normalizer = load_tokenizer(folder, special_tokens_are_text=True).normalizer
        more += ["lower case"] if normalizer is None or "A" in normalizer.normalize_str("A") else []
    if more or len(modes) > 1:
        what = f"makes vectors by {', '.join(more or modes)}, which only sentence-transformers computes"
        fix = (
            f"use SentenceTransformer(FOLDER).encode(texts); or, for means of the last hidden states, remove {MODULES}"
        )
        raise InputError(what, where=folder, fix=fix)
    return bool(modes) and modes[0] in FIRST_TOKEN, "Normalize" in kinds


def warn_of_modules(where: str, folder: str) -> None:
    """Warns that a model made from the folder gets other vectors, unless the modules take the mean."""
    try:
        if not pooling_of(folder)[0]:
            return
    except InputError:
        pass
    line = f"{where}: its {MODULES} makes other vectors than the mean, which `embed` and exports of the new model use"
    warn(f"{line}; to keep these vectors, copy {MODULES} and the folders that it names into the folder that is written")


def longest_text(folder: str, config: ModelConfig) -> int | None:
    """Tokens of a text that the modules read; None if they set no limit."""
    if _read(folder, MODULES) is None:
        return None
    limits = (_read(folder, FIRST) or {}).get("max_seq_length"), (_read(folder, CONFIG) or {}).get("model_max_length")
    limit = next((limit for limit in limits if isinstance(limit, int)), None)
    return None if limit is None else min(limit, config.max_seq_len)
