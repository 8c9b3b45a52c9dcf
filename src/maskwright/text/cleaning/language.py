"""The language of a text, by py3langid (the `clean` extra), whose wheel contains the model: no download."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from maskwright.core.errors import InputError

SAMPLE_CHARACTERS = 300
"""Characters from a text's beginning, and from its middle, that are classified. A whole text takes a second per MB."""
STEP = "language: "
"""Prefix of the drop reason of a document in another language."""
SHOWN_LANGUAGES = 8


def merge_languages(left_out: Mapping[str, int]) -> dict[str, int]:
    """Documents by drop reason, with all languages as one reason that lists them, since a large corpus has dozens."""
    others = {name.removeprefix(STEP): count for name, count in left_out.items() if name.startswith(STEP)}
    merged = {name: count for name, count in left_out.items() if not name.startswith(STEP)}
    if others:
        shown = [f"{name} {count:,}" for name, count in [*others.items()][:SHOWN_LANGUAGES]]
        rest = [f"{len(others) - len(shown)} more languages"] if len(others) > len(shown) else []
        merged[STEP + ", ".join(shown + rest)] = sum(others.values())
    return dict(sorted(merged.items(), key=lambda item: -item[1]))


def language_of(text: str) -> tuple[str, float]:
    """(ISO 639 code, probability from 0 to 1)"""
    middle = len(text) // 2
    sample = text[:SAMPLE_CHARACTERS]
    if middle > SAMPLE_CHARACTERS:
        sample += " " + text[middle : middle + SAMPLE_CHARACTERS]
    name, probability = _model().classify(sample)
    return str(name), float(probability)


def require_languages(codes: tuple[str, ...]) -> None:
    """Raises `InputError` for a code that the model lacks."""
    known = _model().labels
    for code in codes:
        if code not in known:
            fix = f"use two-letter codes: {', '.join(sorted(known))}"
            raise InputError(f"--language {code} is not a language of py3langid", fix=fix)


@cache
def _model() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
