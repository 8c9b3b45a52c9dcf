"""The options of cleaning, which `data prepare` and `text audit` share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

Filters = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="NAMES",
        help="Rules by which documents are left out: gopher, c4, or MODULE:FUNCTION of yours, which takes a text and "
        "returns True to keep it, or False or a reason to leave it out. Commas separate names; the option may be "
        "repeated.",
    ),
]
Languages = Annotated[
    list[str] | None,
    typer.Option(
        "--language", metavar="CODES", help="Languages of the documents that are kept, such as en,de (ISO 639-1 codes)."
    ),
]
LanguageProbability = Annotated[
    float, typer.Option(metavar="SHARE", help="The lowest probability that a document is in a language of --language.")
]
NearDuplicates = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="Only the first is kept of documents that share about so many of their five-word sequences (Jaccard "
        "similarity), such as 0.8. Held-out files come first.",
    ),
]
Decontaminate = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="Evaluation file: documents that hold an example of it are left out. The option may be repeated.",
    ),
]
DecontaminateWords = Annotated[
    int, typer.Option(metavar="N", help="Words in a row that a document and an example share when it holds it.")
]
MaskPii = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KINDS", help="Personal data that placeholders replace: email, ip, phone, separated by commas."
    ),
]
FixMojibake = Annotated[
    bool,
    typer.Option(
        "--fix-mojibake",
        help="Mend text that was decoded by a wrong encoding (cafÃ© becomes café), by ftfy.fix_encoding.",
    ),
]


def cleaning_options(
    filters: list[str] | None,
    languages: list[str] | None,
    language_probability: float,
    near_duplicates: float | None,
    decontaminate: list[str] | None,
    decontaminate_words: int,
    mask_pii: list[str] | None,
    fix_mojibake: bool,
) -> Any:
    """`CleaningOptions`; None if there is nothing to clean, so that numpy is not needed."""
    if not (filters or languages or near_duplicates is not None or decontaminate or mask_pii or fix_mojibake):
        return None
    from maskwright.text.cleaning.steps import CleaningOptions

    return CleaningOptions(
        _parted(filters),
        _parted(languages),
        language_probability,
        near_duplicates,
        tuple(decontaminate or ()),
        decontaminate_words,
        _parted(mask_pii),
        fix_mojibake,
    )


def _parted(values: list[str] | None) -> tuple[str, ...]:
    return tuple(part.strip() for value in values or () for part in value.split(",") if part.strip())
