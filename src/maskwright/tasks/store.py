"""From text to a token store, for the command and for Python. The docstrings of the classes are manuals of their
options (`cli/manual.py`)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from maskwright.core.console import say, warn
from maskwright.core.errors import InputError
from maskwright.machine.hardware import usable_cores, usable_memory_bytes
from maskwright.processes.runner import Runner

if TYPE_CHECKING:
    from maskwright.data.store import TokenStore
    from maskwright.text.cleaning.steps import CleaningOptions
    from maskwright.text.document import Fault
    from maskwright.text.sources import Sources

WORKER_BYTES = 1 << 30
"""Memory that a process may need, which bounds the default number of processes."""
SHOWN_FAULTS = 10


@dataclass(frozen=True)
class TextReading:
    """How to read raw text.

    --layout: What one document of plain text is: a file, the sentences between blank lines, or a line. auto detects it.
    --text-column NAME: Key or column that holds the text. For CSV without a header line, its number from 0.
    --on-bad-input: At undecodable bytes or files, broken records and empty files: stop, replace the bytes, or skip.
    --encoding NAME: Encoding of the text, such as cp1252, shift_jis or utf-16 (a name of Python's codecs).
    --letters: Letters of FASTA and FASTQ: upper makes capitals, keep changes nothing, plain makes capitals and cuts at
        any letter but A, C, G and T.
    """

    layout: Literal["auto", "file", "sentences", "lines"] = "auto"
    text_column: str = "text"
    on_bad_input: Literal["error", "replace", "skip"] = "error"
    encoding: str = "utf-8"
    letters: Literal["upper", "keep", "plain"] = "upper"

    def open(self, files: Sequence[str], **other: Any) -> Sources:
        """The text of some files. Notes on it and the first faults are shown. `other`: options in place of its own."""
        from maskwright.text.sources import Sources

        counter = itertools.count(1)

        def on_fault(fault: Fault) -> None:
            if (number := next(counter)) <= SHOWN_FAULTS:
                more = "; more are not shown, `data audit` counts them" if number == SHOWN_FAULTS else ""
                warn(f"{fault.where}: {fault.what}{more}")

        sources = Sources([*files], on_fault=on_fault, **asdict(self) | other)
        for sentence in sources.notes:
            say(sentence)
        return sources


@dataclass(frozen=True)
class Cleaning:
    """What is left out of raw text, and changed in it.

    --filter NAMES: Rules that drop documents: gopher, c4, or your own MODULE:FUNCTION, which takes a text and returns
        True to keep it, or False or a reason to drop it. Comma-separated and repeatable.
    --language CODES: Keep only documents in these languages, such as en,de (ISO 639-1 codes).
    --language-probability SHARE (--language): Minimum probability that a document is in one of these languages.
    --near-duplicates SHARE: Drop near-duplicates: documents whose five-word sequences overlap by at least this much
        (Jaccard similarity; try 0.8). The first one is kept; held-out files come first.
    --decontaminate FILE: Drop documents that contain an example of this evaluation file. Repeatable.
    --decontaminate-words N (--decontaminate): Drop a document that shares this many consecutive words with an
        evaluation example.
    --mask-pii KINDS: Replace personal data with placeholders: email, ip, phone (comma-separated).
    """

    filter: tuple[str, ...] = ()
    language: tuple[str, ...] = ()
    language_probability: float = 0.5
    near_duplicates: float | None = None
    decontaminate: tuple[str, ...] = ()
    decontaminate_words: int = 13
    mask_pii: tuple[str, ...] = ()

    def options(self) -> CleaningOptions | None:
        """None if there is nothing to clean, so that numpy is not needed."""
        steps = self.filter or self.language or self.near_duplicates is not None or self.decontaminate
        if not (steps or self.mask_pii):
            return None
        from maskwright.text.cleaning.steps import CleaningOptions

        return CleaningOptions(
            *(_parted(self.filter), _parted(self.language), self.language_probability, self.near_duplicates),
            *(self.decontaminate, self.decontaminate_words, _parted(self.mask_pii)),
        )


def _parted(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


@dataclass(frozen=True)
class Kept:
    """Which documents a store keeps, and how.

    --valid-fraction SHARE (no --valid-files): Share of documents to hold out, by a hash of their IDs; 1 makes a test
        set. Default: 0.01.
    --valid-files SRC: Text to hold out instead of a share: a file, a folder, a glob in quotes or a URL. Documents that
        are also in SRC are dropped from training. Repeatable.
    --group-column NAME (no --valid-files|--keep-duplicates): Column of what documents share, such as a patient. The
        hash of its value decides, so that all documents of a group are held out, or none.
    --keep-duplicates: Keep exact duplicates.
    --min-characters N: Drop documents with fewer characters.
    --max-characters N: Drop documents with more characters.
    --shard-tokens N: Approximate number of tokens in a shard.
    --encoder: Tokenizer library. auto uses gigatoken if it is installed: the same IDs, many times as fast.
    """

    valid_fraction: float | None = None
    valid_files: tuple[str, ...] = ()
    group_column: str | None = None
    keep_duplicates: bool = False
    min_characters: int = 1
    max_characters: int | None = None
    shard_tokens: int = 64_000_000
    encoder: Literal["auto", "tokenizers", "gigatoken"] = "auto"


def runner_of(workers: int | None) -> Runner:
    """A runner with that many processes of this machine, by default one for each core, as far as memory allows."""
    fitting = max(usable_memory_bytes() // WORKER_BYTES, 1)
    return Runner(workers or min(usable_cores(), fitting))


def prepare_store(
    text: Sequence[str],
    tokenizer: str,
    to: str,
    kept: Kept,
    reading: TextReading,
    cleaning: Cleaning,
    *,
    workers: int | None = None,
    command: Sequence[str] = (),
) -> TokenStore:
    """Encodes documents into the store `to`, or continues one that was stopped, on all cores or in `workers` processes.
    `command`: the words that the user typed, for the manifest. Raises `InputError`, and `SourceError` with file and
    line."""
    from maskwright.data.prepare.driver import prepare
    from maskwright.data.prepare.request import PrepareOptions, Request
    from maskwright.tasks.models.hub import local

    if kept.valid_files and kept.valid_fraction is not None:
        raise InputError("`valid_fraction` and `valid_files` both choose the held-out text", fix="give one of them")
    if kept.group_column and (kept.valid_files or kept.keep_duplicates):
        what = "`group_column` goes with neither `valid_files` nor `keep_duplicates`"
        why = "files are held out whole, and equal documents of two groups, if kept, could be on both sides"
        raise InputError(what, fix=f"leave it or them out: {why}")
    if kept.max_characters is not None and kept.max_characters < kept.min_characters:
        what = f"is {kept.max_characters}, below `min_characters`"
        raise InputError(what, where="max_characters", fix=f"give an integer ≥ {kept.min_characters}")
    share = 0.0 if kept.valid_files else 0.01 if kept.valid_fraction is None else kept.valid_fraction
    sizes = kept.keep_duplicates, kept.min_characters, kept.max_characters, kept.shard_tokens
    options, held_out = PrepareOptions(share, *sizes), None
    sources = reading.open(text, group_column=kept.group_column)
    if kept.valid_files:
        same = sources.layout if sources.has_plain_text else reading.layout
        held_out = reading.open(kept.valid_files, layout=same)
    rules, folder = cleaning.options(), local(tokenizer, weights=False)
    with runner_of(workers) as runner:
        return prepare(Request(sources, folder, to, options, kept.encoder, held_out, rules, command), runner)
