"""What lies in the folder of a bucket that the shared disk is filled from: whether a run can read it, and where hosts
will find it. Only names are looked at, and of token stores their manifest."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from maskwright.cloud.environment import Disk
from maskwright.cloud.google.rest import Google
from maskwright.core import formats
from maskwright.core.errors import InputError
from maskwright.core.folder import Folder

MOST_NAMES, MOST_STORES = 20_000, 50
"""A corpus may have millions of files; the first ones tell what it is."""
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class DiskSource:
    """Names of files and folders are relative to `disk.source`."""

    location: str
    stores: list[str]
    """Folders with a token store; "" is the source itself."""
    names: list[str]
    """Of the first files."""

    @property
    def arrow(self) -> list[str]:
        """Folders whose Arrow files a run reads as they are, with `data.format: arrow`."""
        return sorted({name.rpartition("/")[0] for name in self.names if name.endswith(".arrow")})

    @property
    def foreign(self) -> dict[str, str]:
        """Files by the format of token ids that each is a sign of."""
        found = {kind: name for name in self.names for kind in formats.by_ending([name])}
        found |= dict([("megatron", name) for name in self.names if name.endswith(".idx")][:1])
        signs = ((name, formats.SIGNS.get(name.rpartition("/")[2])) for name in self.names)
        return found | {kind: name for name, kind in signs if kind}

    def readable(self) -> list[str]:
        """Sentences about what a run reads as it is."""
        models = [name for name in self.names if name.rpartition("/")[2] == "model.safetensors"]
        signs = [name.rpartition("/")[::2] for name in self.names]
        epochs = [folder for folder, sign in signs if formats.SIGNS.get(sign) == "pregenerated"]
        labelled = [name for name in self.names if formats.is_labelled(name)]
        found = {
            "token stores": [folder or "the folder itself" for folder in self.stores],
            "Arrow files, for data.format=arrow": [folder or "the folder itself" for folder in self.arrow],
            "pregenerated epochs, for data.format=pregenerated": [folder or "the folder itself" for folder in epochs],
            "examples to fine-tune on": labelled,
            "models": models,
        }
        return [
            f"{what}: {', '.join(names[:8])}{', …' if len(names) > 8 else ''}" for what, names in found.items() if names
        ]


def read(google: Google, disk: Disk) -> DiskSource:
    """Raises `MaskwrightError` where the bucket is not there, or may not be looked at."""
    bucket, _, folder = disk.source.removeprefix("gs://").rstrip("/").partition("/")
    prefix = f"{folder}/" if folder else ""

    def listed(pattern: str | None = None) -> list[str]:
        fields = "items(name),nextPageToken"
        found = google.pages("storage", f"b/{bucket}/o", "items", prefix=prefix, fields=fields, matchGlob=pattern)
        names = (str(one["name"]).removeprefix(prefix) for one in islice(found, MOST_NAMES))
        return [name for name in names if name and not name.endswith("/")]

    manifests = [name for name in listed(f"{prefix}**{MANIFEST}") if f"/{name}".endswith(f"/{MANIFEST}")]
    place = Folder(disk.source)
    # Behind so many that were read, each is taken for a store's.
    stores = [name for at, name in enumerate(manifests) if at >= MOST_STORES or "dtype" in (place.get_json(name) or {})]
    return DiskSource(disk.source, [name.removesuffix(MANIFEST).rstrip("/") for name in stores], listed())


def require_readable(source: DiskSource) -> None:
    """Raises `InputError` where no run can read anything of it."""
    if source.readable():
        return
    if not source.names:
        fix = "correct disk.source, or copy the stores there: `maskwright data push STORE --to gs://…`"
        raise InputError("holds no file", where=source.location, fix=fix)
    if source.foreign:
        kind, name = next(reversed(source.foreign.items()))
        what = f"holds token ids of another tool ({kind}: {name}), which runs do not read as they are"
        fix = "`maskwright data convert FOLDER --tokenizer TOKENIZER --to STORE` makes a store of them"
    else:
        what = f"holds nothing that a run reads, but {', '.join(source.names[:3])}{', …' if source.names[3:] else ''}"
        fix = "`maskwright data prepare` makes a token store of text"
    fix += f", `data push STORE --to {source.location}-stores` brings it there; --anyway copies the folder as it is"
    raise InputError(what, where=source.location, fix=fix)
