"""Names of models on the Hugging Face Hub. Nothing here reaches the network; `tasks/models/hub.py` does."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from maskwright.core.errors import InputError

PREFIX = "hf://"
NAME = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
OWNERS = {
    **dict.fromkeys(("roberta-base", "roberta-large", "xlm-roberta-base", "xlm-roberta-large"), "FacebookAI"),
    **dict.fromkeys(
        (f"bert-{size}-{case}" for size in ("base", "large") for case in ("uncased", "cased")), "google-bert"
    ),
    **dict.fromkeys(("bert-base-multilingual-cased", "bert-base-multilingual-uncased"), "google-bert"),
    **dict.fromkeys(("bert-base-chinese", "bert-base-german-cased"), "google-bert"),
    **dict.fromkeys(("distilroberta-base", "distilbert-base-uncased", "distilbert-base-cased"), "distilbert"),
    "distilbert-base-multilingual-cased": "distilbert",
    **dict.fromkeys((f"deberta-v3-{size}" for size in ("xsmall", "small", "base", "large")), "microsoft"),
    **dict.fromkeys(("mdeberta-v3-base", "deberta-v2-xlarge", "deberta-v2-xxlarge"), "microsoft"),
    **dict.fromkeys(("camembert-base", "camembert-large"), "almanach"),
    **dict.fromkeys(("ModernBERT-base", "ModernBERT-large"), "answerdotai"),
    **dict.fromkeys(("mmBERT-small", "mmBERT-base"), "jhu-clsp"),
    **dict.fromkeys((f"ettin-encoder-{size}" for size in ("17m", "32m", "68m", "150m", "400m", "1b")), "jhu-clsp"),
}
"""Owners on the Hub of models with common short names."""

DATA_OWNERS = {"ag_news": "fancyzhx", "glue": "nyu-mll", "imdb": "stanfordnlp", "snli": "stanfordnlp"}
DATA_OWNERS |= {"sst2": "stanfordnlp", "squad": "rajpurkar", "squad_v2": "rajpurkar"}
"""Owners on the Hub of data sets with common short names."""


@dataclass(frozen=True)
class Address:
    """`hf://OWNER/NAME`, or `hf://OWNER/NAME@REVISION`."""

    name: str
    revision: str | None = None
    """A branch, a tag or a commit; None for the newest commit of `main`."""

    def __str__(self) -> str:
        return f"{PREFIX}{self.name}" + (f"@{self.revision}" if self.revision else "")

    @property
    def is_commit(self) -> bool:
        return re.fullmatch(r"[0-9a-f]{40}", self.revision or "") is not None


def is_hub(location: str | None) -> bool:
    return location is not None and location.startswith(PREFIX)


def read_address(location: str) -> Address:
    """Parses the address of a model. Raises `InputError` for anything else."""
    match = re.fullmatch(rf"{PREFIX}({NAME})(?:@([\w][\w./-]*))?", location)
    if match is None or ".." in location:
        short = location.removeprefix(PREFIX).partition("@")[0]
        known = f", here {PREFIX}{full_name(short)}" if short in OWNERS else ""
        fix = f"write {PREFIX}OWNER/NAME or {PREFIX}OWNER/NAME@REVISION{known}"
        raise InputError("is not the address of a model on the Hugging Face Hub", where=location, fix=fix)
    return Address(*match.groups())


def require_name(name: str, where: str) -> None:
    """Raises `InputError` at `where` unless the name is OWNER/NAME."""
    if re.fullmatch(NAME, name) is None:
        raise InputError(f"{name!r:.80} is not OWNER/NAME", where=where, fix="write it as my-team/my-encoder")


def full_name(short: str | None) -> str | None:
    """OWNER/NAME of a model with the common short name; None for others."""
    return f"{OWNERS[short]}/{short}" if short in OWNERS else None


def as_location(name: str, revision: str | None = None) -> str:
    """The address of a model with that name on the Hub; a path, or anything else, stays as it is."""
    full = full_name(name) or name
    owner = full.partition("/")[0]
    if os.path.exists(name) or re.fullmatch(NAME, full) is None or owner == "models" or os.path.isdir(owner):
        return name
    return str(Address(full, None if revision == "main" else revision))


def how_to_get(name: str) -> str:
    """The advice for a missing folder, which is often a model's name on the Hub."""
    owner, _, short = name.rpartition("/")
    if owner == "models" and short in OWNERS:  # as recipes name it
        full = full_name(short)
        return f"fetch it: `hf download {full} --local-dir {name}`; or give {PREFIX}{full}"
    is_local = name != short and (owner == "models" or os.path.isdir(owner))
    if is_local or re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) is None:
        return "correct the path"
    full = name if "/" in name else full_name(name) or f"OWNER/{name}"
    return f"give {PREFIX}{full} for the model on the Hugging Face Hub, or correct the path"


def as_pinned(location: str, recorded: str | None) -> str | None:
    """`location` with the commit of `recorded`, or with its own; None unless both name one model of the Hub."""
    if recorded is None or not (is_hub(location) and is_hub(recorded)):
        return None
    address, kept = read_address(location), read_address(recorded)
    if kept.name != address.name:
        return None
    return location if address.is_commit else str(kept)
