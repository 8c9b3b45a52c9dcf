"""The bucket folder that the shared disk is filled from: its files, and whether a run can read any of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from os.path import basename

from maskwright.cloud.google.rest import Google, bucket_folder
from maskwright.core import formats
from maskwright.core.errors import InputError

MOST_NAMES, MOST_STORES = 20_000, 50
"""A corpus may have millions of files; the first ones show its kind."""
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class BucketFile:
    """`name` is relative to the folder; the bucket has the crc32c of every file, also of one composed of parts."""

    name: str
    size: int
    crc32c: str
    generation: str


def files(google: Google, source: str, *, ending: str = "") -> Iterator[BucketFile]:
    """Raises `CloudError` if the bucket does not exist, or may not be read."""
    bucket, _, folder = source.removeprefix("gs://").rstrip("/").partition("/")
    prefix = f"{folder}/" if folder else ""
    fields, pattern = "items(name,size,crc32c,generation),nextPageToken", f"{prefix}**{ending}"
    query = {"prefix": prefix, "fields": fields, "matchGlob": pattern if ending else None}
    for item in google.pages("storage", f"b/{bucket}/o", "items", body=None, **query):
        name = str(item["name"]).removeprefix(prefix)
        if name and not name.endswith("/"):  # the console marks a folder by a final /
            yield BucketFile(name, int(item["size"]), item["crc32c"], str(item["generation"]))


def stores(google: Google, source: str) -> list[str]:
    """Folders with a token store; "" is the source itself. After the first manifests, each counts as a store's."""
    names = [file.name for file in files(google, source, ending=MANIFEST)]
    names = [name for name in names if basename(name) == MANIFEST]
    root = bucket_folder(source)
    of_stores = [name for n, name in enumerate(names) if n >= MOST_STORES or "dtype" in (root.get_json(name) or {})]
    return [name.removesuffix(MANIFEST).rstrip("/") for name in of_stores]


def unreadable(google: Google, source: str) -> InputError | None:
    """The error for a folder without token stores from which no run can read; None if one can."""
    names = [file.name for file in islice(files(google, source), MOST_NAMES)]
    if any(map(_is_readable, names)):
        return None
    if not names:
        fix = "correct disk.source, or copy the stores there: `maskwright data push STORE --to gs://…`"
        return InputError("has no files", where=source, fix=fix)
    what = f"holds no data that a run can read, only {', '.join(names[:3])}{', …' if names[3:] else ''}"
    fix = "make a token store of text with `maskwright data prepare`"
    if foreign := next((name for name in names if basename(name) in formats.SIGNS or formats.by_ending([name])), None):
        what = f"holds token ids of another tool ({foreign}), which runs cannot read"
        fix = "convert them with `maskwright data convert FOLDER --tokenizer TOKENIZER --to STORE`"
    fix += f", and upload it with `data push STORE --to {source}-stores`; or copy the folder with --anyway"
    return InputError(what, where=source, fix=fix)


def _is_readable(name: str) -> bool:
    """Whether it belongs to data that runs read, other than token stores: Arrow files, pregenerated epochs, labelled
    examples and models."""
    pregenerated = formats.SIGNS.get(basename(name)) == "pregenerated"
    return pregenerated or name.endswith((".arrow", "model.safetensors")) or formats.is_labelled(name)
