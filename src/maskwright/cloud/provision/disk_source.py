"""The bucket folder that the shared disk is filled from: its files, and whether a run can read any of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from maskwright.cloud.google.rest import Google, bucket_folder
from maskwright.core import formats
from maskwright.core.errors import InputError

MOST_NAMES, MOST_STORES = 20_000, 50
"""A corpus may have millions of files; the first ones show what it is."""
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class BucketFile:
    """`name` is relative to the folder. `md5` is empty for a file that was composed of parts, `crc32c` never."""

    name: str
    size: int
    md5: str
    crc32c: str
    generation: str


def files(google: Google, source: str, *, ending: str = "") -> Iterator[BucketFile]:
    """Raises `CloudError` if the bucket does not exist, or may not be read."""
    bucket, _, folder = source.removeprefix("gs://").rstrip("/").partition("/")
    prefix = f"{folder}/" if folder else ""
    fields, pattern = "items(name,size,md5Hash,crc32c,generation),nextPageToken", f"{prefix}**{ending}"
    query = {"prefix": prefix, "fields": fields, "matchGlob": pattern if ending else None}
    for item in google.pages("storage", f"b/{bucket}/o", "items", body=None, **query):
        name = str(item["name"]).removeprefix(prefix)
        if name and not name.endswith("/"):  # the console marks a folder by a final /
            md5, crc32c = item.get("md5Hash", ""), item.get("crc32c", "")
            yield BucketFile(name, int(item["size"]), md5, crc32c, str(item["generation"]))


def stores(google: Google, source: str) -> list[str]:
    """Folders with a token store; "" is the source itself. After the first manifests, each counts as a store's."""
    names = [file.name for file in files(google, source, ending=MANIFEST)]
    names = [name for name in names if name.rpartition("/")[2] == MANIFEST]
    root = bucket_folder(source)
    of_stores = [name for n, name in enumerate(names) if n >= MOST_STORES or "dtype" in (root.get_json(name) or {})]
    return [name.removesuffix(MANIFEST).rstrip("/") for name in of_stores]


def first_names(google: Google, source: str) -> list[str]:
    return [file.name for file in islice(files(google, source), MOST_NAMES)]


def readable(names: Sequence[str], stores: Sequence[str]) -> list[str]:
    """A sentence for each kind of content that a run can read."""
    parts = [name.rpartition("/")[::2] for name in names]
    places = {
        "token stores": stores,
        "Arrow files, for data.format=arrow": sorted({folder for folder, name in parts if name.endswith(".arrow")}),
        "pregenerated epochs, for data.format=pregenerated": [
            folder for folder, name in parts if formats.SIGNS.get(name) == "pregenerated"
        ],
        "examples to fine-tune on": [name for name in names if formats.is_labelled(name)],
        "models": [name for name in names if name.rpartition("/")[2] == "model.safetensors"],
    }
    return [
        f"{what}: {', '.join(place or 'the folder itself' for place in found[:8])}{', …' if len(found) > 8 else ''}"
        for what, found in places.items()
        if found
    ]


def unreadable(source: str, names: Sequence[str]) -> InputError:
    """The error for a folder from which no run can read."""
    if not names:
        fix = "correct disk.source, or copy the stores there: `maskwright data push STORE --to gs://…`"
        return InputError("has no files", where=source, fix=fix)
    foreign = {kind: name for name in names for kind in formats.by_ending([name])}
    foreign |= dict([("megatron", name) for name in names if name.endswith(".idx")][:1])
    foreign |= {kind: name for name in names if (kind := formats.SIGNS.get(name.rpartition("/")[2]))}
    if foreign:
        kind, name = next(reversed(foreign.items()))
        what = f"has token ids of another tool ({kind}: {name}), which runs cannot read"
        fix = "`maskwright data convert FOLDER --tokenizer TOKENIZER --to STORE` converts them to a store"
    else:
        what = f"has nothing that a run can read, only {', '.join(names[:3])}{', …' if names[3:] else ''}"
        fix = "`maskwright data prepare` makes a token store of text"
    fix += f", `data push STORE --to {source}-stores` uploads it; --anyway copies the folder as it is"
    return InputError(what, where=source, fix=fix)
