"""`maskwright data convert`: the stores of other tools, in; and out, as Parquet."""

from __future__ import annotations

from typing import Any, Literal

import typer

from maskwright.cli.manual import command
from maskwright.cli.options import AsJson, To, data_app, print_result
from maskwright.core.errors import InputError
from maskwright.core.formats import Format
from maskwright.tasks.store import runner_of


@command(data_app, "convert")
def data_convert(
    context: typer.Context,
    src: list[str],
    to: To,
    tokenizer: str | None = None,
    to_format: Literal["parquet"] | None = None,
    from_format: Format | None = None,
    column: str | None = None,
    dtype: Literal["uint8", "uint16", "int16", "uint32", "int32", "int64"] | None = None,
    token_offset: int = 0,
    special_tokens: Literal["refuse", "strip", "remove"] = "refuse",
    encoder: str | None = None,
    valid_fraction: float = 0.01,
    shard_tokens: int = 64_000_000,
    workers: int | None = None,
    as_json: AsJson = False,
) -> None:
    """Turn another tool's token IDs into a token store, or a token store into Parquet.

    SRC: Folders or files of one store, in the order of its documents.
    --tokenizer PATH (no --to-format): Folder of the tokenizer that made the IDs, or hf://OWNER/NAME@REVISION.
        Required unless you give --to-format.
    --to-format parquet: Write the token store SRC as Parquet, with a column `input_ids`.
    --from-format (no --to-format): Format of SRC. Default: detected from the files.
    --column NAME (no --to-format): Column of the IDs. Default: input_ids, tokens, token_ids or ids.
    --dtype (no --to-format): Type of the IDs that MDS holds as plain bytes.
    --token-offset N (no --to-format): Number to add to each stored ID.
    --special-tokens (no --to-format): At begin, end, padding and mask tokens in the documents: stop, strip those around
        each document, or remove all. Other special tokens stay. All are counted.
    --encoder FILE (no --to-format): GPT-2's encoder.json, for a fairseq dictionary of numbers.
    --valid-fraction SHARE (no --to-format): Share of documents to hold out, by a hash of their IDs. If some files are
        named train and others valid or test, the latter are held out instead; so are all, if none is named train.
    --shard-tokens N (no --to-format): Approximate number of tokens in a shard.
    --workers 1≤N (no --to-format): Processes on this machine; any number gives the same result. Default: one for each
        core, as far as memory allows. To share the work, type the same command on other machines that see the folders.
    """
    from maskwright.data.convert import Conversion, ConvertOptions, convert
    from maskwright.data.prepare.report import report
    from maskwright.tasks.models.hub import local

    if to_format is not None:
        return _write_out(src, to, as_json)
    if tokenizer is None:
        raise InputError("--tokenizer is needed", fix="give --tokenizer FOLDER with the tokenizer that made the ids")
    options = ConvertOptions(valid_fraction, special_tokens, token_offset, shard_tokens)
    reading: Any = {"kind": from_format, "column": column, "dtype": dtype, "encoder": encoder}
    conversion = Conversion(src, local(tokenizer, weights=False), to, options, command=context.obj or (), **reading)
    with runner_of(workers) as runner:
        ready = convert(conversion, runner)
    print_result(report(ready.location, ready.manifest), ready.manifest, as_json)


def _write_out(src: list[str], to: str, as_json: bool) -> None:
    from maskwright.data.foreign.write import write_parquet
    from maskwright.data.store import TokenStore

    if len(src) != 1:
        raise InputError(f"--to-format needs one token store, not {len(src)}", fix="convert them one by one")
    written = write_parquet(TokenStore(src[0]), to)
    print_result(f"{to}: {sum(written.values()):,} documents as Parquet", {"documents": written}, as_json)
