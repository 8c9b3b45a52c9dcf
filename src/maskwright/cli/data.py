"""The commands on text, tokenizers and token stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from maskwright.cli.cleaning import (
    Decontaminate,
    DecontaminateWords,
    Filters,
    FixMojibake,
    LanguageProbability,
    Languages,
    MaskPii,
    NearDuplicates,
    cleaning_options,
)
from maskwright.cli.options import (
    AsJson,
    Encoding,
    Layout,
    Letters,
    MaxBytes,
    OnBadInput,
    SourceFiles,
    Store,
    TextColumn,
    To,
    data_app,
    open_sources,
    print_result,
    text_app,
    tokenizer_app,
)
from maskwright.cli.workers import Workers, runner_of
from maskwright.core import output
from maskwright.core.console import say
from maskwright.core.errors import InputError

if TYPE_CHECKING:
    from maskwright.text.extend import Extension
    from maskwright.text.trim import Trimming
    from maskwright.text.vocabulary import Vocabulary

TokenizerFolder = Annotated[
    str,
    typer.Argument(metavar="TOKENIZER", help="Tokenizer folder, or hf://OWNER/NAME@REVISION of a model on the Hub."),
]
Change = TypeVar("Change", "Extension", "Trimming")
"""What was done to a tokenizer."""

# ---- text ----------------------------------------------------------------------------------------------------------


@text_app.command("audit")
def text_audit(
    src: SourceFiles,
    layout: Layout = "auto",
    text_column: TextColumn = "text",
    tokenizer: Annotated[
        str | None, typer.Option(metavar="PATH", help="Tokenizer folder, to show its tokens per word on the text.")
    ] = None,
    encoding: Encoding = "utf-8",
    letters: Letters = "upper",
    filters: Filters = None,
    languages: Languages = None,
    language_probability: LanguageProbability = 0.5,
    near_duplicates: NearDuplicates = None,
    decontaminate: Decontaminate = None,
    decontaminate_words: DecontaminateWords = 13,
    mask_pii: MaskPii = None,
    fix_mojibake: FixMojibake = False,
    workers: Workers = None,
    parts: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Folder for what is found of each part, from which the same command continues, and in which it shares "
            "the work with other machines. Default: a temporary one.",
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="FILE", help="Write a page with plots and examples as well, .html."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Count documents, faults, duplicates and scripts, and say what `data prepare` will do about each. With the options
    of cleaning, also count and show what each step would leave out; no text is changed."""
    from maskwright.tasks.measure.audit_page import write_page
    from maskwright.tasks.models.hub import local
    from maskwright.text.audit import audit, report

    rules = filters, languages, language_probability, near_duplicates, decontaminate, decontaminate_words
    cleaning = cleaning_options(*rules, mask_pii, fix_mojibake)
    if to:
        output.require_ending(to, (".html",), f"--to {to}")
        output.require_place(to)
    tokenizer = tokenizer and local(tokenizer, weights=False)
    reading: Any = {
        "layout": layout,
        "text_column": text_column,
        "letters": letters,
        "encoding": encoding,
        "tokenizer": tokenizer,
        "cleaning": cleaning,
    }
    with runner_of(workers) as runner:
        result = audit(src, runner, parts, **reading)
    if to:
        write_page(to, result)
    print_result(report(result), asdict(result), as_json)


KINDS_THAT_TAKE = {
    "vocab_size": ("bpe", "wordpiece", "unigram", "words"),
    "alphabet": ("characters", "kmer"),
    "kmer": ("kmer",),
    "min_frequency": ("bpe", "wordpiece", "words"),
    "lowercase": ("wordpiece",),
}
"""Options of `tokenizer train` that not every kind has."""


@tokenizer_app.command("train")
def tokenizer_train(
    context: typer.Context,
    src: SourceFiles,
    to: To,
    vocab_size: Annotated[
        int,
        typer.Option(metavar="N", help="Number of tokens, special ones included; not for characters and kmer."),
    ] = 50265,
    kind: Annotated[
        Literal["bpe", "wordpiece", "unigram", "words", "characters", "kmer"],
        typer.Option(
            help="bpe: of bytes, as RoBERTa has it. wordpiece: words and their continuations, as BERT has it. "
            "unigram: the likeliest pieces, as XLM-R has it. words: whole words between spaces, such as items and log "
            "ids. characters: each by itself. kmer: --kmer letters of DNA or proteins each."
        ),
    ] = "bpe",
    alphabet: Annotated[
        Literal["dna", "protein"] | None,
        typer.Option(help="Letters of characters and kmer, with those for ambiguous places; else those of the text."),
    ] = None,
    kmer: Annotated[int, typer.Option(metavar="K", help="Letters of a token, only for kmer.")] = 6,
    min_frequency: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="How many times a pair must occur to be merged, or a word to be a token; only for bpe, wordpiece "
            "and words.",
            min=1,
        ),
    ] = 2,
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="Lower the case and strip accents; only for wordpiece.")
    ] = False,
    max_bytes: MaxBytes = 1_000_000_000,
    layout: Layout = "auto",
    text_column: TextColumn = "text",
    on_bad_input: OnBadInput = "error",
    encoding: Encoding = "utf-8",
    as_json: AsJson = False,
) -> None:
    """Train a tokenizer in the layout of RoBERTa, BERT or XLM-R, or make one of letters."""
    from maskwright.text.sequences import make_tokenizer
    from maskwright.text.tokenizer import train_tokenizer

    for name, kinds in KINDS_THAT_TAKE.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and kind not in kinds:
            fix = f"take --kind {' or '.join(kinds)}, or leave the option out"
            raise InputError(f"--{name.replace('_', '-')} is not for --kind {kind}", fix=fix)
    sources = open_sources(src, layout, text_column, on_bad_input=on_bad_input, encoding=encoding)
    if kind == "characters" or kind == "kmer":
        vocabulary = make_tokenizer(sources, to, kind, alphabet, kmer, max_bytes)
    else:
        vocabulary = train_tokenizer(
            sources,
            to,
            kind=kind,
            vocab_size=vocab_size,
            min_frequency=min_frequency,
            lowercase=lowercase,
            max_bytes=max_bytes,
        )
    say(
        f"{to}: {vocabulary.size:,} tokens, {vocabulary.mask_token} is {vocabulary.mask}, fingerprint "
        f"{vocabulary.fingerprint[:16]}"
    )
    if as_json:
        print_result("", {"folder": to, **_tokenizer_fields(vocabulary)}, True)


def _tokenizer_fields(vocabulary: Vocabulary) -> dict[str, Any]:
    """JSON fields of a new tokenizer."""
    return {
        "vocab_size": vocabulary.size,
        "fingerprint": vocabulary.fingerprint,
        "mask_token": vocabulary.mask_token,
        "mask_token_id": vocabulary.mask,
    }


@tokenizer_app.command("extend")
def tokenizer_extend(
    tokenizer: TokenizerFolder,
    src: SourceFiles,
    tokens: Annotated[int, typer.Option(metavar="N", help="Number of tokens to add.", min=1)],
    to: To,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Model with this tokenizer. --to is then a model folder, with rows for the new tokens that are the "
            "means of their old pieces' rows.",
        ),
    ] = None,
    min_frequency: Annotated[
        int, typer.Option(metavar="N", help="How often a new token must occur in the text.", min=1)
    ] = 2,
    max_bytes: MaxBytes = 1_000_000_000,
    layout: Layout = "auto",
    text_column: TextColumn = "text",
    on_bad_input: OnBadInput = "error",
    encoding: Encoding = "utf-8",
    as_json: AsJson = False,
) -> None:
    """Add tokens to a tokenizer, learned from a text by how many tokens they save. Old ids stay."""
    from maskwright.text.extend import extend_tokenizer, report

    def extend(location: str, folder: str) -> tuple[Extension, Vocabulary]:
        sources = open_sources(src, layout, text_column, on_bad_input=on_bad_input, encoding=encoding)
        return extend_tokenizer(
            location, sources, folder, tokens=tokens, min_frequency=min_frequency, max_bytes=max_bytes
        )

    extension, after, difference = _changed(tokenizer, model, to, extend)
    value = {"new_tokens": extension.tokens}
    _say_changed(report(extension, after, to), extension, after, difference, value, to, as_json)


@tokenizer_app.command("trim")
def tokenizer_trim(
    tokenizer: TokenizerFolder,
    src: SourceFiles,
    to: To,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Model with this tokenizer. --to is then a model folder, with the rows of the tokens that stay.",
        ),
    ] = None,
    min_frequency: Annotated[
        int, typer.Option(metavar="N", help="How often a token must occur in the text to stay.", min=1)
    ] = 1,
    vocab_size: Annotated[
        int | None,
        typer.Option(metavar="N", help="Most tokens to keep, the most frequent ones. Default: all that occur."),
    ] = None,
    max_bytes: MaxBytes = 1_000_000_000,
    layout: Layout = "auto",
    text_column: TextColumn = "text",
    on_bad_input: OnBadInput = "error",
    encoding: Encoding = "utf-8",
    as_json: AsJson = False,
) -> None:
    """Remove the tokens that a text does not use. A text of kept tokens is parted as before; ids are new."""
    from maskwright.text.trim import report, trim_tokenizer

    def trim(location: str, folder: str) -> tuple[Trimming, Vocabulary]:
        sources = open_sources(src, layout, text_column, on_bad_input=on_bad_input, encoding=encoding)
        wanted: Any = {"min_frequency": min_frequency, "vocab_size": vocab_size, "max_bytes": max_bytes}
        return trim_tokenizer(location, sources, folder, **wanted)

    trimming, after, difference = _changed(tokenizer, model, to, trim)
    value = {"removed_tokens": trimming.removed}
    _say_changed(report(trimming, after, to), trimming, after, difference, value, to, as_json)


def _changed(
    tokenizer: str,
    model: str | None,
    to: str,
    change: Callable[[str, str], tuple[Change, Vocabulary]],
) -> tuple[Change, Vocabulary, float | None]:
    """Writes the changed tokenizer, or the `model` with it, to the folder `to`. Returns what changed, the vocabulary,
    and the largest difference of a logit from transformers."""
    import tempfile

    from maskwright.tasks.models.hub import local
    from maskwright.text.vocabulary import read_vocabulary

    location = local(tokenizer, weights=False)
    if model is None:
        made, after = change(location, to)
        return made, after, None
    from maskwright.tasks.export.resize import resized  # which imports torch

    with tempfile.TemporaryDirectory() as folder:
        new = f"{folder}/tokenizer"
        made, after = change(location, new)
        return made, after, resized(model, read_vocabulary(location), after, made, new, to)


def _say_changed(
    text: str,
    made: Extension | Trimming,
    after: Vocabulary,
    difference: float | None,
    value: dict[str, Any],
    to: str,
    as_json: bool,
) -> None:
    proof = [] if difference is None else [f"{to}: max |Δlogit| {difference:.3g} against transformers in fp32"]
    before, now = made.fertility
    value = {
        "folder": to,
        **_tokenizer_fields(after),
        **value,
        "held_out_documents": made.documents,
        "fertility": {"before": before, "after": now},
        "largest_logit_difference": difference,
    }
    print_result("\n".join([text, *proof]), value, as_json)


@tokenizer_app.command("inspect")
def tokenizer_inspect(
    tokenizer: TokenizerFolder,
    src: SourceFiles,
    layout: Layout = "auto",
    text_column: TextColumn = "text",
    encoding: Encoding = "utf-8",
    as_json: AsJson = False,
) -> None:
    """Show tokens per word, bytes per token, unknown tokens and samples on a text."""
    from maskwright.tasks.models.hub import local
    from maskwright.text.tokenizer import inspect_tokenizer, inspection_report
    from maskwright.text.tokenizer_faults import warn_of_faults

    folder = local(tokenizer, weights=False)
    warn_of_faults(folder)
    result = inspect_tokenizer(folder, open_sources(src, layout, text_column, encoding=encoding))
    print_result(inspection_report(result), asdict(result), as_json)


# ---- data ----------------------------------------------------------------------------------------------------------


@data_app.command("prepare")
def data_prepare(
    context: typer.Context,
    src: SourceFiles,
    tokenizer: Annotated[
        str, typer.Option(metavar="PATH", help="Tokenizer folder, or hf://OWNER/NAME@REVISION of a model on the Hub.")
    ],
    to: To,
    valid_fraction: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Share of documents to hold out, by a hash of their ids; 1 makes a test set. Default: 0.01.",
        ),
    ] = None,
    valid_files: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SRC",
            help="Text to hold out in full instead of a share: a file, a folder, a glob in quotes or a URL; the option "
            "may be repeated. A document that it shares with SRC is left out of training.",
        ),
    ] = None,
    keep_duplicates: Annotated[bool, typer.Option("--keep-duplicates", help="Keep equal documents.")] = False,
    min_characters: Annotated[int, typer.Option(metavar="N", help="Leave out documents with fewer characters.")] = 1,
    max_characters: Annotated[
        int | None, typer.Option(metavar="N", help="Leave out documents with more characters.")
    ] = None,
    shard_tokens: Annotated[int, typer.Option(metavar="N", help="Tokens in a shard, roughly.")] = 64_000_000,
    layout: Layout = "auto",
    text_column: TextColumn = "text",
    on_bad_input: OnBadInput = "error",
    encoding: Encoding = "utf-8",
    letters: Letters = "upper",
    encoder: Annotated[
        Literal["auto", "tokenizers", "gigatoken"],
        typer.Option(
            help="Tokenizer library. auto takes gigatoken where it is installed: the same ids, many times as fast."
        ),
    ] = "auto",
    filters: Filters = None,
    languages: Languages = None,
    language_probability: LanguageProbability = 0.5,
    near_duplicates: NearDuplicates = None,
    decontaminate: Decontaminate = None,
    decontaminate_words: DecontaminateWords = 13,
    mask_pii: MaskPii = None,
    fix_mojibake: FixMojibake = False,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Encode documents into a token store. The same command continues after a stop."""
    from maskwright.data.prepare.driver import prepare
    from maskwright.data.prepare.report import report
    from maskwright.data.prepare.request import PrepareOptions, Request
    from maskwright.tasks.models.hub import local

    if valid_files and valid_fraction is not None:
        raise InputError("--valid-fraction and --valid-files both say what is held out", fix="give one of them")
    share = 0.0 if valid_files else 0.01 if valid_fraction is None else valid_fraction
    options = PrepareOptions(share, keep_duplicates, min_characters, max_characters, shard_tokens)
    reading: Any = {"on_bad_input": on_bad_input, "letters": letters, "encoding": encoding}
    sources, held_out = open_sources(src, layout, text_column, **reading), None
    if valid_files:
        layout_of_valid = sources.layout if sources.has_plain_text else layout
        held_out = open_sources(valid_files, layout_of_valid, text_column, **reading)
    rules = filters, languages, language_probability, near_duplicates, decontaminate, decontaminate_words
    cleaning = cleaning_options(*rules, mask_pii, fix_mojibake)
    tokenizer = local(tokenizer, weights=False)
    request = Request(sources, tokenizer, to, options, encoder, held_out, cleaning, context.obj or ())
    with runner_of(workers) as runner:
        ready = prepare(request, runner)
    print_result(report(ready.location, ready.manifest), ready.manifest, as_json)


@data_app.command("inspect")
def data_inspect(
    store: Annotated[str, typer.Argument(metavar="STORE", help="Token store folder, or the URL of one in a bucket.")],
    as_json: AsJson = False,
) -> None:
    """Show what a token store holds and where it came from. In a bucket, only its manifest is read."""
    from maskwright.core.storage import is_url
    from maskwright.data.prepare.report import came_from, report
    from maskwright.data.remote import remote_manifest
    from maskwright.data.store import TokenStore

    manifest = remote_manifest(store) if is_url(store) else TokenStore(store).manifest
    print_result(f"{report(store, manifest)}\n{came_from(manifest)}", manifest, as_json)


@data_app.command("verify")
def data_verify(store: Store, as_json: AsJson = False) -> None:
    """Read every byte of a token store and compare it with the manifest."""
    from maskwright.data.store import TokenStore

    ready = TokenStore(store)
    ready.verify()
    report = f"{store}: every hash is right, fingerprint {ready.fingerprint[:16]}"
    print_result(report, {"store": store, "fingerprint": ready.fingerprint}, as_json)
