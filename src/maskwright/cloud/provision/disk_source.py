"""The bucket folder that the shared disk is filled from: whether a run can read it, and where jobs will find it. Reads
only names and the manifests of token stores."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from maskwright.cloud.google.rest import Google
from maskwright.core import formats
from maskwright.core.errors import InputError
from maskwright.core.folder import Folder

MOST_NAMES, MOST_STORES = 20_000, 50
"""A corpus may have millions of files; the first ones show what it is."""
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class DiskSource:
    """Content of the folder. Names are relative to `disk.source`."""

    location: str
    stores: list[str]
    """Folders with a token store; "" is the source itself."""
    names: list[str]
    """Names of the first files."""

    @property
    def arrow(self) -> list[str]:
        """Folders of Arrow files, which a run reads with `data.format: arrow`."""
        return sorted({name.rpartition("/")[0] for name in self.names if name.endswith(".arrow")})

    @property
    def foreign(self) -> dict[str, str]:
        """Other tools' formats of token ids, each with a file that indicates it."""
        formats_found = {kind: name for name in self.names for kind in formats.by_ending([name])}
        formats_found |= dict([("megatron", name) for name in self.names if name.endswith(".idx")][:1])
        signs = ((name, formats.SIGNS.get(name.rpartition("/")[2])) for name in self.names)
        return formats_found | {kind: name for name, kind in signs if kind}

    def readable(self) -> list[str]:
        """A sentence for each kind of content that a run can read."""
        models = [name for name in self.names if name.rpartition("/")[2] == "model.safetensors"]
        signs = [name.rpartition("/")[::2] for name in self.names]
        epochs = [folder for folder, sign in signs if formats.SIGNS.get(sign) == "pregenerated"]
        labelled = [name for name in self.names if formats.is_labelled(name)]
        readable = {
            "token stores": [folder or "the folder itself" for folder in self.stores],
            "Arrow files, for data.format=arrow": [folder or "the folder itself" for folder in self.arrow],
            "pregenerated epochs, for data.format=pregenerated": [folder or "the folder itself" for folder in epochs],
            "examples to fine-tune on": labelled,
            "models": models,
        }
        return [
            f"{what}: {', '.join(names[:8])}{', …' if len(names) > 8 else ''}"
            for what, names in readable.items()
            if names
        ]


def read(google: Google, source: str) -> DiskSource:
    """Raises `MaskwrightError` if the bucket does not exist, or may not be read."""
    bucket, _, folder = source.removeprefix("gs://").rstrip("/").partition("/")
    prefix = f"{folder}/" if folder else ""

    def listed(pattern: str | None = None) -> list[str]:
        fields = "items(name),nextPageToken"
        objects = google.pages("storage", f"b/{bucket}/o", "items", prefix=prefix, fields=fields, matchGlob=pattern)
        names = (str(item["name"]).removeprefix(prefix) for item in islice(objects, MOST_NAMES))
        return [name for name in names if name and not name.endswith("/")]

    manifests = [name for name in listed(f"{prefix}**{MANIFEST}") if f"/{name}".endswith(f"/{MANIFEST}")]
    root = Folder(source)
    # After the first MOST_STORES, every manifest counts as a store's without being read.
    stores = [name for n, name in enumerate(manifests) if n >= MOST_STORES or "dtype" in (root.get_json(name) or {})]
    return DiskSource(source, [name.removesuffix(MANIFEST).rstrip("/") for name in stores], listed())


def require_readable(source: DiskSource) -> None:
    """Raises `InputError` if no run can read any of it."""
    if source.readable():
        return
    if not source.names:
        fix = "correct disk.source, or copy the stores there: `maskwright data push STORE --to gs://…`"
        raise InputError("has no files", where=source.location, fix=fix)
    if source.foreign:
        kind, name = next(reversed(source.foreign.items()))
        what = f"has token ids of another tool ({kind}: {name}), which runs cannot read"
        fix = "`maskwright data convert FOLDER --tokenizer TOKENIZER --to STORE` converts them to a store"
    else:
        what = f"has nothing that a run can read, only {', '.join(source.names[:3])}{', …' if source.names[3:] else ''}"
        fix = "`maskwright data prepare` makes a token store of text"
    fix += f", `data push STORE --to {source.location}-stores` uploads it; --anyway copies the folder as it is"
    raise InputError(what, where=source.location, fix=fix)
