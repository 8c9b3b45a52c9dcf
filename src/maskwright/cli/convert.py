"""`maskwright data convert`: the stores of other tools, in and out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from maskwright.cli.options import AsJson, To, data_app, print_result
from maskwright.cli.workers import Workers, runner_of
from maskwright.core.errors import InputError

Format = Literal[
    "arrow",
    "datasets",
    "parquet",
    "megatron",
    "fairseq",
    "mds",
    "datatrove",
    "npy",
    "bin",
    "pregenerated",
]

Special = Annotated[
    Literal["refuse", "strip", "remove"],
    typer.Option(
        help="Begin, end, padding and mask tokens in the documents: stop, leave out those around each document, or "
        "leave out all. They are counted, and so are other special tokens, which stay."
    ),
]
Written = Literal["arrow", "datasets", "parquet", "megatron"]


@data_app.command("convert")
def data_convert(
    context: typer.Context,
    src: Annotated[
        list[str], typer.Argument(metavar="SRC", help="Folders or files of one store, in the order of its documents.")
    ],
    to: To,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Folder of the tokenizer that made the ids, or hf://OWNER/NAME@REVISION; needed without --to-format.",
        ),
    ] = None,
    to_format: Annotated[
        Written | None,
        typer.Option(help="Write the token store SRC in this format instead."),
    ] = None,
    from_: Annotated[
        Format | None,
        typer.Option("--from", help="Format of SRC. Default: as the files show."),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Column of the ids. Default: input_ids, tokens, token_ids or ids."),
    ] = None,
    dtype: Annotated[
        Literal["uint8", "uint16", "int16", "uint32", "int32", "int64"] | None,
        typer.Option(
            help="Type of ids in files that do not say it. Default: uint16 for up to 65,536 tokens, else uint32."
        ),
    ] = None,
    token_offset: Annotated[int, typer.Option(metavar="N", help="Number to add to each stored id.")] = 0,
    document_end: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", help="Token between documents, or its id, in formats without their ends."),
    ] = None,
    special_tokens: Special = "refuse",
    encoder: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="GPT-2's encoder.json, for a fairseq dictionary of numbers."),
    ] = None,
    valid_fraction: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Share of documents to hold out, by a hash of their ids. By name instead, where "
            "files are named train and valid or test, or all are named valid or test.",
        ),
    ] = 0.01,
    shard_tokens: Annotated[int, typer.Option(metavar="N", help="Tokens in a shard, roughly.")] = 64_000_000,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Turn the token ids of another tool into a token store, or a store into theirs."""
    from maskwright.data.convert import Conversion, ConvertOptions, convert
    from maskwright.data.prepare.report import report
    from maskwright.tasks.models.hub import local

    if to_format is not None:
        if tokenizer is not None or from_ is not None or workers is not None:
            fix = "leave out --tokenizer, --from and --workers: the store has its own tokenizer and format"
            raise InputError("--to-format goes with one token store", fix=fix)
        _write_out(src, to, to_format, as_json)
        return
    if tokenizer is None:
        fix = "give --tokenizer FOLDER, the one that made the ids: ids mean nothing without it"
        raise InputError("--tokenizer is needed", fix=fix)
    options = ConvertOptions(valid_fraction, special_tokens, token_offset, shard_tokens)
    reading: Any = {"kind": from_, "column": column, "dtype": dtype, "document_end": document_end, "encoder": encoder}
    conversion = Conversion(src, local(tokenizer, weights=False), to, options, command=context.obj or (), **reading)
    with runner_of(workers) as runner:
        ready = convert(conversion, runner)
    print_result(report(ready.location, ready.manifest), ready.manifest, as_json)


def _write_out(src: list[str], to: str, to_format: Written, as_json: bool) -> None:
    from maskwright.data.foreign.write import write_out
    from maskwright.data.store import TokenStore

    if len(src) != 1:
        raise InputError(f"--to-format goes with one token store, not {len(src)}", fix="write them one by one")
    written = write_out(TokenStore(src[0]), to, to_format)
    print_result(f"{to}: {sum(written.values()):,} documents as {to_format}", {"documents": written}, as_json)
