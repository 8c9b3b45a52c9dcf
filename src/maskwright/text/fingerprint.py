"""Which bytes a text was made of: the record of each file in a store's manifest."""

from __future__ import annotations

from typing import Any

from maskwright.core import storage
from maskwright.core.console import progress
from maskwright.core.secrets import redact
from maskwright.text.sources import Sources


def fingerprint(sources: Sources) -> list[dict[str, Any]]:
    """What a store's manifest says of each file."""
    records: list[dict[str, Any]] = []
    with progress("hash", sum(sources.sizes), "bytes") as bar:
        for name, size in zip(sources.files, sources.sizes, strict=True):
            records.append(file_record(name, size))
            bar.advance(size)
    return records


def file_record(name: str, size: int) -> dict[str, Any]:
    """Name, size and sha256; of a URL its version key, and its name without secrets."""
    if storage.is_url(name):
        filesystem, path = storage.filesystem(name)
        return {"location": redact(name), "bytes": size, "version": str(filesystem.ukey(path))}
    return {"location": name, "bytes": size, "sha256": storage.sha256_of_file(name)}
