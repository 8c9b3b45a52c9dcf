"""Checks a store's `manifest.json` against itself: shapes, names, counts, sizes, totals.

Only the manifest is read here; `TokenStore` checks the files against it. File names have one fixed form, so none leads
out of the folder.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from maskwright.core import storage
from maskwright.core.errors import InputError, StoreError
from maskwright.core.secrets import redact

FORMAT = 2
SOURCES, FIRST_SOURCES = "sources.jsonl", 10
"""The file next to the manifest that lists each file of the text, and the number of them that the manifest names too,
since each process reads the manifest at each opening, and a text may be five million files."""
NAME = r"^(train|valid)-[0-9]{5,9}\.(tokens|documents|sentences|origins)\.u(16|32|64)$"
COPY_AGAIN = "copy the store again, or prepare again"
Count = Annotated[int, Field(ge=1, lt=2**62)]
Total = Annotated[int, Field(ge=0, lt=2**62)]
Role = Literal["tokens", "documents", "sentences", "origins"]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class _File(_Record):
    name: Annotated[str, Field(pattern=NAME)]
    bytes: Count
    sha256: Sha256
    crc32: Annotated[int, Field(ge=0, lt=2**32)]


class _Shard(_Record):
    split: Literal["train", "valid"]
    tokens: Count
    documents: Count
    sentences: Count | None = None
    files: dict[Role, _File]


class _Totals(_Record):
    tokens: Total
    documents: Total
    sentences: Total


class _Tokenizer(_Record):
    fingerprint: Sha256
    vocab_size: Count
    additional_sha256: Sha256 | None = None
    """`Vocabulary.additional_sha256`; None without any. In older stores, it shows how these were encoded."""
    roles_sha256: Sha256 | None = None
    """`Vocabulary.roles_sha256`; None in an older store, whose `tokenizer/` contains the roles."""


class _SourcesFile(_File):
    name: Literal["sources.jsonl"]


class _Sources(_Record):
    count: Total
    first: list[str]
    file: _SourcesFile


class _Manifest(_Record):
    format: int
    dtype: Literal["uint16", "uint32"]
    fingerprint: Sha256
    tokenizer: _Tokenizer
    shards: Annotated[list[_Shard], Field(min_length=1)]
    splits: dict[Literal["train", "valid"], _Totals]
    sources: _Sources | list[dict[str, Any]] = []
    passes: Count = 1
    """Passes over the same text that the store holds."""
    command: list[str] = []
    """Words behind `maskwright`, as they were typed."""


def typed(command: Sequence[str]) -> dict[str, Any]:
    """The optional key for the words that the user typed behind `maskwright`."""
    return {"command": [redact(word) for word in command]} if command else {}


def files_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The records of all files in the manifest: name, bytes, sha256 and crc32."""
    files = [record for shard in manifest["shards"] for record in shard["files"].values()]
    recorded = manifest.get("sources")
    return [*files, recorded["file"]] if isinstance(recorded, dict) else files


def write_sources(folder: str, sources: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Writes `SOURCES` and returns the manifest's record of it."""
    path = os.path.join(folder, SOURCES)
    with storage.atomic_writer(path) as file:
        file.writelines(json.dumps(source, ensure_ascii=False).encode() + b"\n" for source in sources)
    digest, first = storage.digest(path), [source["location"] for source in sources[:FIRST_SOURCES]]
    file_record = {"name": SOURCES, "bytes": digest.bytes, "sha256": digest.sha256, "crc32": digest.crc32}
    return {"count": len(sources), "first": first, "file": file_record}


def sources_of(manifest: dict[str, Any], folder: str) -> Iterator[dict[str, Any]]:
    """Each file of the text: location, bytes and other records of `prepare` or `convert`, in the order of the shards'
    origins. In older stores they are in the manifest."""
    recorded = manifest.get("sources", [])
    if isinstance(recorded, list):
        yield from recorded
        return
    with storage.open_binary(os.path.join(folder, SOURCES)) as file:
        yield from map(json.loads, file)


def sources_in(manifest: dict[str, Any]) -> tuple[int, list[str]]:
    """(number of files of the text, locations of the first), from the manifest alone."""
    recorded = manifest.get("sources", [])
    if isinstance(recorded, dict):
        return int(recorded["count"]), list(recorded["first"])
    return len(recorded), [str(source["location"]) for source in recorded[:FIRST_SOURCES]]


def is_shard_name(name: str) -> bool:
    return re.match(NAME, name) is not None


def fingerprint(dtype: str, tokenizer_fingerprint: str, shards: list[dict[str, Any]]) -> str:
    """Digest of everything that decides the ids and their order. The store's location and its sources do not count."""
    files = [
        [shard["split"], [file["sha256"] for role, file in shard["files"].items() if role != "origins"]]
        for shard in shards
    ]
    return storage.sha256_of([FORMAT, dtype, tokenizer_fingerprint, files])


def read_manifest(folder: str) -> dict[str, Any]:
    """Reads the manifest. Raises `StoreError` for an unfinished store, another format, or an edited one."""
    path = os.path.join(folder, "manifest.json")
    if storage.is_url(folder):
        raise StoreError(
            "a token store must be a local folder",
            where=folder,
            fix="download it with `maskwright data pull URL --to FOLDER`",
        )
    if not os.path.isfile(path):
        if os.path.exists(os.path.join(folder, "parts")):
            fix = "run the same `maskwright data prepare` or `data convert` again to continue"
            raise StoreError("its preparation never finished", where=folder, fix=fix)
        if os.path.exists(os.path.join(folder, "epoch_0_metrics.json")):
            fix = "train from it with data.format: pregenerated, or convert it with `maskwright data convert`"
            raise StoreError("holds pregenerated examples, and is not a token store", where=folder, fix=fix)
        other = "it is a file" if os.path.isfile(folder) else "there is no such folder"
        what = "it has no manifest.json" if os.path.isdir(folder) else other
        near = storage.near(folder, "manifest.json")
        fix = f"did you mean {near}? Else make" if near else "correct the path, or make"
        fix += " one: `maskwright data prepare TEXT --tokenizer FOLDER --to STORE`" + _other_tools(folder)
        raise StoreError(f"is not a token store: {what}", where=os.path.abspath(folder), fix=fix)
    try:
        manifest = storage.read_json(path)
    except InputError as error:
        raise StoreError(error.what, where=error.where, fix=COPY_AGAIN) from None
    return checked(manifest, path)


def checked(manifest: Any, path: str) -> dict[str, Any]:
    """`manifest`, read from `path`. Raises `StoreError` if it was edited, or has another format."""
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise StoreError("is not a store's manifest", where=path, fix=COPY_AGAIN)
    if manifest["format"] != FORMAT:
        fix = "use the maskwright that wrote it, or prepare again"
        raise StoreError(f"has format {str(manifest['format'])[:20]}, not this version's {FORMAT}", where=path, fix=fix)
    _require_shape(TypeAdapter(_Manifest), manifest, path)
    _require_agreement(manifest["shards"], manifest["dtype"], path)
    _require_totals(manifest, path)
    if manifest["fingerprint"] != fingerprint(
        manifest["dtype"], manifest["tokenizer"]["fingerprint"], manifest["shards"]
    ):
        raise StoreError("was changed after it was written (by its fingerprint)", where=path, fix=COPY_AGAIN)
    return manifest


OTHER_TOOLS = (".idx", ".parquet", ".mds", ".mds.zstd")


def _other_tools(folder: str) -> str:
    """The rest of a fix for a folder of another tool's ids; empty for any other folder."""
    names = [name for depth in ("*", "*/*") for name in glob.iglob(os.path.join(glob.escape(folder), depth))]
    if any(name.endswith(".arrow") for name in names):
        return "; for training on Arrow files of ids, set data.format=arrow"
    if any(name.endswith(OTHER_TOOLS) for name in names):
        return "; to convert another tool's ids, use `maskwright data convert`"
    return ""


def _require_shape(adapter: TypeAdapter[Any], value: Any, where: str) -> None:
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "it"
        shown = f", not {repr(first['input'])[:40]}" if not isinstance(first["input"], dict | list) else ""
        raise StoreError(f"{key}: {first['msg']}{shown}", where=where, fix=COPY_AGAIN) from None


def _require_agreement(shards: list[dict[str, Any]], dtype: str, where: str) -> None:
    """Raises `StoreError` if a shard's names, counts and sizes do not fit together."""
    names: set[str] = set()
    for shard_idx, shard in enumerate(shards):
        files, what = shard["files"], ""
        if not {"tokens", "documents", "origins"} <= set(files):
            what = "lacks the file of its tokens, documents or origins"
        for role, file in files.items():
            bits = 8 * np.dtype(dtype).itemsize if role == "tokens" else 64
            count = 2 * shard["documents"] if role == "origins" else shard.get(role) or 0
            if not file["name"].startswith(f"{shard['split']}-") or not file["name"].endswith(f".{role}.u{bits}"):
                what = f"{file['name']} is not a name for the {role} of a {shard['split']} shard in {dtype}"
            elif file["name"] in names:
                what = f"{file['name']} is listed twice"
            elif file["bytes"] != count * bits // 8:
                what = f"{file['name']} is recorded with {file['bytes']:,} bytes for {count:,} {role}"
            names.add(file["name"])
        if what:
            raise StoreError(f"shards.{shard_idx}: {what}", where=where, fix=COPY_AGAIN)


def _require_totals(manifest: dict[str, Any], where: str) -> None:
    for split in {shard["split"] for shard in manifest["shards"]} - {*manifest["splits"]}:
        raise StoreError(f"splits.{split} is missing, though it has shards", where=where, fix=COPY_AGAIN)
    for split, totals in manifest["splits"].items():
        for name in ("tokens", "documents", "sentences"):
            total = totals[name]
            sum_of_shards = sum(shard.get(name) or 0 for shard in manifest["shards"] if shard["split"] == split)
            if sum_of_shards != total:
                what = f"splits.{split}.{name} is {total:,}, but its shards have {sum_of_shards:,}"
                raise StoreError(what, where=where, fix=COPY_AGAIN)
