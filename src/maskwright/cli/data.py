"""The commands on text, tokenizers and token stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from maskwright.cli.manual import ManualEntry, Without, command
from maskwright.cli.options import (
    AsJson,
    MaxBytes,
    SourceFiles,
    Store,
    To,
    Workers,
    data_app,
    print_result,
    tokenizer_app,
)
from maskwright.core.console import say
from maskwright.tasks.store import Cleaning, Kept, TextReading, prepare_store, runner_of

if TYPE_CHECKING:
    from maskwright.text.extend import Extension
    from maskwright.text.trim import Trimming
    from maskwright.text.vocabulary import Vocabulary

TokenizerFolder = Annotated[
    str, ManualEntry("TOKENIZER", "Tokenizer folder, or hf://OWNER/NAME@REVISION of a model on the Hub.")
]
ReadAlike = Annotated[TextReading, Without(frozenset({"letters"}))]
Change = TypeVar("Change", "Extension", "Trimming")
"""What was done to a tokenizer."""

# ---- tokenizers ----------------------------------------------------------------------------------------------------


@command(tokenizer_app, "train")
def tokenizer_train(
    src: SourceFiles,
    to: To,
    vocab_size: int = 50265,
    kind: Literal["bpe", "wordpiece", "unigram", "words", "characters", "kmer"] = "bpe",
    alphabet: Literal["dna", "protein"] | None = None,
    kmer: int = 6,
    min_frequency: int = 2,
    lowercase: bool = False,
    max_bytes: MaxBytes = 1_000_000_000,
    reading: ReadAlike = TextReading(),
    as_json: AsJson = False,
) -> None:
    """Train a tokenizer like the ones of RoBERTa, BERT or XLM-R, or make one of letters.

    --vocab-size N (--kind bpe|wordpiece|unigram|words): Number of tokens, including special tokens.
    --kind: bpe: byte-level, as in RoBERTa. wordpiece: words and their continuations, as in BERT. unigram: the likeliest
        pieces, as in XLM-R. words: whole words between spaces, such as items or log IDs. characters: single characters.
        kmer: --kmer letters of DNA or proteins each.
    --alphabet (--kind characters|kmer): Letters of the sequences, including ambiguous ones. Default: as in the text.
    --kmer K (--kind kmer): Letters in a token.
    --min-frequency 1≤N (--kind bpe|wordpiece|words): How often a pair must occur to be merged, or a word to become a
        token.
    --lowercase (--kind wordpiece): Lowercase the text and strip accents.
    """
    from maskwright.text.sequences import make_tokenizer
    from maskwright.text.tokenizer import train_tokenizer

    sources = reading.open(src)
    if kind == "characters" or kind == "kmer":
        vocabulary = make_tokenizer(sources, to, kind, alphabet, kmer, max_bytes)
    else:
        learned = {"vocab_size": vocab_size, "min_frequency": min_frequency, "max_bytes": max_bytes}
        vocabulary = train_tokenizer(sources, to, kind=kind, lowercase=lowercase, **learned)
    say(
        f"{to}: {vocabulary.size:,} tokens, {vocabulary.mask_token} is {vocabulary.mask}, fingerprint "
        f"{vocabulary.fingerprint[:16]}"
    )
    print_result(None, {"folder": to, **_tokenizer_fields(vocabulary)}, as_json)


def _tokenizer_fields(vocabulary: Vocabulary) -> dict[str, Any]:
    return {
        "vocab_size": vocabulary.size,
        "fingerprint": vocabulary.fingerprint,
        "mask_token": vocabulary.mask_token,
        "mask_token_id": vocabulary.mask,
    }


@command(tokenizer_app, "extend")
def tokenizer_extend(
    tokenizer: TokenizerFolder,
    src: SourceFiles,
    tokens: int,
    to: To,
    model: str | None = None,
    min_frequency: int = 2,
    max_bytes: MaxBytes = 1_000_000_000,
    reading: ReadAlike = TextReading(),
    as_json: AsJson = False,
) -> None:
    """Add the tokens that shorten your text most to a tokenizer. Existing token IDs do not change.

    --tokens 1≤N: Number of tokens to add.
    --model MODEL: Model that uses this tokenizer. --to then becomes a model folder, in which the embedding of a new
        token is the mean of its old pieces' embeddings.
    --min-frequency 1≤N: How often a new token must occur in the text.
    """
    from maskwright.text.extend import extend_tokenizer, report

    def extend(location: str, folder: str) -> tuple[Extension, Vocabulary]:
        learned = {"tokens": tokens, "min_frequency": min_frequency, "max_bytes": max_bytes}
        return extend_tokenizer(location, reading.open(src), folder, **learned)

    extension, after, proof, value = _changed(tokenizer, model, to, extend)
    print_result(report(extension, after, to) + proof, value | {"new_tokens": extension.tokens}, as_json)


@command(tokenizer_app, "trim")
def tokenizer_trim(
    tokenizer: TokenizerFolder,
    src: SourceFiles,
    to: To,
    model: str | None = None,
    min_frequency: int = 1,
    vocab_size: int | None = None,
    max_bytes: MaxBytes = 1_000_000_000,
    reading: ReadAlike = TextReading(),
    as_json: AsJson = False,
) -> None:
    """Remove tokens that your text does not use. Text made of the remaining tokens is split as before. IDs change.

    --model MODEL: Model that uses this tokenizer. --to then becomes a model folder with the embeddings of the remaining
        tokens.
    --min-frequency 1≤N: How often a token must occur in the text to be kept.
    --vocab-size N: Maximum number of tokens to keep, the most frequent first. Default: keep all that occur.
    """
    from maskwright.text.trim import report, trim_tokenizer

    def trim(location: str, folder: str) -> tuple[Trimming, Vocabulary]:
        wanted: Any = {"min_frequency": min_frequency, "vocab_size": vocab_size, "max_bytes": max_bytes}
        return trim_tokenizer(location, reading.open(src), folder, **wanted)

    trimming, after, proof, value = _changed(tokenizer, model, to, trim)
    print_result(report(trimming, after, to) + proof, value | {"removed_tokens": trimming.removed}, as_json)


def _changed(
    tokenizer: str, model: str | None, to: str, change: Callable[[str, str], tuple[Change, Vocabulary]]
) -> tuple[Change, Vocabulary, str, dict[str, Any]]:
    """Writes the changed tokenizer, or the `model` with it, to the folder `to`. Returns what changed, the vocabulary, a
    line on the model's logits ("" without a model), and what --json prints of either change."""
    import tempfile

    from maskwright.tasks.models.hub import local
    from maskwright.text.vocabulary import read_vocabulary

    location, proof = local(tokenizer, weights=False), ""
    difference: float | None = None
    if model is None:
        made, after = change(location, to)
    else:
        from maskwright.tasks.export.resize import resized  # which imports torch

        with tempfile.TemporaryDirectory() as folder:
            new = f"{folder}/tokenizer"
            made, after = change(location, new)
            difference = resized(model, read_vocabulary(location), after, made, new, to)
        proof = f"\n{to}: max |Δlogit| {difference:.3g} against transformers in fp32"
    before, now = made.fertility
    value = {
        "folder": to,
        **_tokenizer_fields(after),
        "held_out_documents": made.documents,
        "fertility": {"before": before, "after": now},
        "largest_logit_difference": difference,
    }
    return made, after, proof, value


@command(tokenizer_app, "inspect")
def tokenizer_inspect(
    tokenizer: TokenizerFolder,
    src: SourceFiles,
    reading: Annotated[TextReading, Without(frozenset({"letters", "on_bad_input"}))] = TextReading(),
    as_json: AsJson = False,
) -> None:
    """Show tokens per word, bytes per token, unknown tokens and samples for your text."""
    from maskwright.tasks.models.hub import local
    from maskwright.text.tokenizer import inspect_tokenizer, inspection_report
    from maskwright.text.tokenizer_faults import warn_of_faults

    folder = local(tokenizer, weights=False)
    warn_of_faults(folder)
    result = inspect_tokenizer(folder, reading.open(src))
    print_result(inspection_report(result), asdict(result), as_json)


# ---- data ----------------------------------------------------------------------------------------------------------


@command(data_app, "audit")
def data_audit(
    src: SourceFiles,
    reading: Annotated[TextReading, Without(frozenset({"on_bad_input"}))] = TextReading(),
    tokenizer: str | None = None,
    cleaning: Cleaning = Cleaning(),
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Count documents, faults, duplicates and scripts, and show what `data prepare` will do about each. With cleaning
    options, also count and show what each step would drop. Does not change the text.

    --tokenizer PATH: Tokenizer folder, to show its tokens per word on the text.
    """
    from maskwright.tasks.models.hub import local
    from maskwright.text.audit import audit, report

    rules = cleaning.options()
    read = {name: value for name, value in asdict(reading).items() if name != "on_bad_input"}
    tokenizer = tokenizer and local(tokenizer, weights=False)
    with runner_of(workers) as runner:
        result = audit(src, runner, tokenizer=tokenizer, cleaning=rules, **read)
    print_result(report(result), asdict(result), as_json)


@command(data_app, "prepare")
def data_prepare(
    context: typer.Context,
    src: SourceFiles,
    tokenizer: str,
    to: To,
    kept: Kept = Kept(),
    reading: TextReading = TextReading(),
    cleaning: Cleaning = Cleaning(),
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Encode documents into a token store. After a stop, the same command continues.

    --tokenizer PATH: Tokenizer folder, or hf://OWNER/NAME@REVISION of a model on the Hub.
    """
    from maskwright.data.prepare.report import report

    ready = prepare_store(src, tokenizer, to, kept, reading, cleaning, workers=workers, command=context.obj or ())
    print_result(report(ready.location, ready.manifest), ready.manifest, as_json)


@command(data_app, "inspect")
def data_inspect(store: str, as_json: AsJson = False) -> None:
    """Show what a token store contains and where it came from. Of a store in a bucket, only the manifest is read.

    STORE: Token store folder, or the URL of one in a bucket.
    """
    from maskwright.core.storage import is_url
    from maskwright.data.prepare.report import came_from, report
    from maskwright.data.remote import remote_manifest
    from maskwright.data.store import TokenStore

    manifest = remote_manifest(store) if is_url(store) else TokenStore(store).manifest
    print_result(f"{report(store, manifest)}\n{came_from(manifest)}", manifest, as_json)


@command(data_app, "verify")
def data_verify(store: Store, as_json: AsJson = False) -> None:
    """Read every byte of a token store, and compare it with the manifest."""
    from maskwright.data.store import TokenStore

    ready = TokenStore(store)
    ready.verify()
    report = f"{store}: every hash matches, fingerprint {ready.fingerprint[:16]}"
    print_result(report, {"store": store, "fingerprint": ready.fingerprint}, as_json)
