"""The steps of cleaning, in order: drop reasons of documents, and changes in the kept ones.

First come the rules for single texts (language, quality, the user's own, contamination), and then the placeholders for
personal data, since these would hide an example that holds an address. Exact and near duplicates among the remaining
documents come last; see `text/parts`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from maskwright.core import extras, storage
from maskwright.core.errors import InputError
from maskwright.text.arrays import UInt64
from maskwright.text.cleaning import c4, gopher, language, near_duplicates
from maskwright.text.cleaning.contamination import NGRAM_WORDS, Contamination, EvaluationTexts
from maskwright.text.cleaning.personal_data import PLACEHOLDERS, OnChange, with_placeholders
from maskwright.text.dedup import text_key
from maskwright.text.document import Document

RULES = ("gopher", "c4")
C4_LINES = "lines that c4 leaves out"
RULES_VERSION = 4
"""Version of the rules. A store that an earlier version began is not continued."""
Hook = Callable[[str], Any]


@dataclass(frozen=True)
class CleaningOptions:
    """A step is skipped if its option is empty."""

    filters: tuple[str, ...] = ()
    """`gopher`, `c4`, or `module:function`, in the order of their use."""
    languages: tuple[str, ...] = ()
    language_probability: float = 0.5
    """Lowest probability of a language in `languages`."""
    near_duplicates: float | None = None
    """Lowest Jaccard similarity of near duplicates."""
    evaluation_files: tuple[str, ...] = ()
    contamination_words: int = NGRAM_WORDS
    masked: tuple[str, ...] = ()
    """Kinds of personal data: `email`, `ip`, `phone`."""

    def __post_init__(self) -> None:
        for name in self.filters:
            if name not in RULES and ":" not in name:
                fix = f"use {', '.join(RULES)}, or your own MODULE:FUNCTION"
                raise InputError(f"--filter {name} is unknown", fix=fix)
        for kind in self.masked:
            if kind not in PLACEHOLDERS:
                raise InputError(f"--mask-pii {kind} is unknown", fix=f"use {', '.join(PLACEHOLDERS)}")
        shares = {"--near-duplicates": self.near_duplicates, "--language-probability": self.language_probability}
        for name, value in shares.items():
            if value is not None and not 0.0 < value <= 1.0:
                fix = "give a share such as 0.8"
                raise InputError(f"{name} {value} is not above 0 and at most 1", fix=fix)
        if self.contamination_words < 5:
            fix = "give 5 or more, since fewer words in a row are shared by chance"
            raise InputError(f"--decontaminate-words {self.contamination_words} is too few", fix=fix)
        if self.near_duplicates:
            extras.require("rensa", "--near-duplicates")
        if self.languages:
            extras.require("py3langid", "--language")
            language.require_languages(self.languages)

    @property
    def any(self) -> bool:
        rules = self.filters or self.languages or self.near_duplicates or self.evaluation_files
        return bool(rules or self.masked)

    @property
    def packages(self) -> list[str]:
        """Packages on which drop reasons and duplicates depend."""
        used = {"rensa": self.near_duplicates, "py3langid": self.languages}
        return [name for name, option in used.items() if option]

    def record(self) -> dict[str, Any]:
        """The options, with hashes of files and versions of packages that decide drop reasons; for manifest and
        plan."""
        files = storage.expand([*self.evaluation_files])
        hooks = [name for name in self.filters if name not in RULES]
        return {
            **{key: value if not isinstance(value, tuple) else list(value) for key, value in asdict(self).items()},
            # A list, since files in several folders may have one name.
            "evaluation_files": sorted([os.path.basename(name), storage.sha256_of_file(name)] for name in files),
            "hooks": {name: storage.sha256_of_file(_file_of(name)) for name in hooks},
            "rules_version": RULES_VERSION,
            "versions": {name: importlib.metadata.version(name) for name in self.packages},
        }


@dataclass(frozen=True)
class CleaningDecisions:
    """Drop reasons and dedup keys of documents."""

    reasons: list[str]
    """[documents]: drop reasons as `STEP: RULE`; empty for a kept one."""
    keys: UInt64
    """[kept documents, 2 + bands]: dedup keys: two halves of the cleaned text's, then the near duplicates'."""
    details: list[str]
    """[documents]: details of the reason, such as the evaluation example in the document; mostly empty."""


class Cleaner:
    def __init__(self, options: CleaningOptions, evaluations: EvaluationTexts | None = None) -> None:
        """`evaluations`: read from the options' files, if any."""
        self.options = options
        self._hooks = {name: load_hook(name) for name in options.filters if name not in RULES}
        self._contamination = Contamination(evaluations) if evaluations else None

    def judge(self, documents: Sequence[Document]) -> CleaningDecisions:
        reasons, details = [""] * len(documents), [""] * len(documents)
        current = list(documents)
        if self.options.languages:
            self._languages(current, reasons, details)
        for name in self.options.filters:
            kept_idxs = [index for index, reason in enumerate(reasons) if not reason]
            self._filter(name, current, kept_idxs, reasons)
        if self._contamination:
            kept_idxs = [index for index, reason in enumerate(reasons) if not reason]
            examples = self._contamination.examples_in([current[index].utf8 for index in kept_idxs])
            for index, example in zip(kept_idxs, examples, strict=True):
                if example:
                    reasons[index], details[index] = "contamination: shares words with an evaluation example", example
        kept_idxs = [index for index, reason in enumerate(reasons) if not reason]
        texts = [current[index].utf8 for index in kept_idxs]
        if self.options.masked:
            texts = [with_placeholders(current[index], self.options.masked, Counter()).utf8 for index in kept_idxs]
        keys = np.frombuffer(b"".join(map(text_key, texts)), "<u8").reshape(len(texts), 2)
        if self.options.near_duplicates:
            keys = np.concatenate([keys, near_duplicates.band_keys(texts, self.options.near_duplicates)], axis=1)
        return CleaningDecisions(reasons, keys, details)

    def _languages(self, documents: list[Document], reasons: list[str], details: list[str]) -> None:
        for index, document in enumerate(documents):
            name, probability = language.language_of(document.text)
            if name not in self.options.languages:
                reasons[index] = f"{language.STEP}{name}"
            elif probability < self.options.language_probability:
                reasons[index] = f"{language.STEP}uncertain"
            details[index] = f"{name} {probability:.2f}" if reasons[index] else ""

    def _filter(self, name: str, documents: list[Document], kept_idxs: list[int], reasons: list[str]) -> None:
        if name == "gopher":
            for index in kept_idxs:
                fault = gopher.fault("\n".join(documents[index].parts))
                reasons[index] = f"gopher: {fault}" if fault else ""
        elif name == "c4":
            for index in kept_idxs:
                kept = c4.lines_kept(_lines(documents[index]))
                if isinstance(kept, str):
                    reasons[index] = f"c4: {kept}"
                else:
                    documents[index] = _with_lines(documents[index], kept)
        else:
            for index in kept_idxs:
                reasons[index] = _reason(name, self._hooks[name], documents[index])


def apply_cleaning(
    document: Document, options: CleaningOptions, counts: Counter[str], on_change: OnChange | None = None
) -> Document:
    """A kept document, changed for training. Adds C4's lines and kinds of personal data to `counts`."""
    if "c4" in options.filters:
        lines = _lines(document)
        kept = c4.lines_kept(lines)
        document = _with_lines(document, kept)
        counts[C4_LINES] += sum(1 for line in lines if line.strip()) - len(kept)
        if on_change:
            for line in c4.lines_left_out(lines, kept):
                on_change(C4_LINES, line)
    return with_placeholders(document, options.masked, counts, on_change)


def _lines(document: Document) -> Sequence[str]:
    return document.parts if document.has_sentences else document.text.split("\n")


def _with_lines(document: Document, lines: Sequence[str]) -> Document:
    parts = tuple(lines) if document.has_sentences else ("\n".join(lines),)
    return replace(document, parts=parts)


def _reason(name: str, hook: Hook, document: Document) -> str:
    """The drop reason by a hook's answer: True keeps the text, False drops it, a string is the reason to drop it."""
    location = f"on {document.source}:{document.line}"
    try:
        answer = hook(document.text)
    except Exception as error:  # the user's function may raise anything
        frame = traceback.extract_tb(error.__traceback__)[-1]
        what = f"failed {location}: {type(error).__name__}: {error}"
        fix = f"make the function handle this text too; it failed at {frame.filename}:{frame.lineno}"
        raise InputError(what, where=f"--filter {name}", fix=fix) from None
    if isinstance(answer, str) and answer:
        return f"{name}: {answer[:80]}"
    if not isinstance(answer, bool):
        fix = "return True to keep a text, or False or the reason to drop it"
        raise InputError(f"returned {answer!r:.40} {location}", where=f"--filter {name}", fix=fix)
    return "" if answer else f"{name}: left out"


def load_hook(name: str) -> Hook:
    """The function `MODULE:FUNCTION` of a module on Python's path or in the working directory. Raises `InputError`."""
    module_name, _, function = name.rpartition(":")
    try:
        sys.path.insert(0, os.getcwd())
        try:
            hook = getattr(importlib.import_module(module_name), function)
        finally:
            sys.path.remove(os.getcwd())
    except Exception as error:  # the user's module may raise anything
        fix = "give MODULE:FUNCTION, with the module in the working directory or on PYTHONPATH"
        raise InputError(f"cannot be imported: {error}", where=f"--filter {name}", fix=fix) from None
    if not callable(hook):
        raise InputError("is not a function", where=f"--filter {name}", fix="give MODULE:FUNCTION")
    return hook


def _file_of(name: str) -> str:
    """The path of a hook's file, for its hash in the store's record."""
    load_hook(name)
    return str(sys.modules[name.rpartition(":")[0]].__file__)
