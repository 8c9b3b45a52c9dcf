"""The parts of a text: runs of whole files, in the order of reading, with all that a worker needs to read one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from maskwright.core import storage
from maskwright.text.compression import changed_while_read, stamp_of
from maskwright.text.document import Fault
from maskwright.text.layout import Layout
from maskwright.text.records import Letters
from maskwright.text.sources import OnBadInput, Sources, file_record

PARTS_AT_LEAST = 2_048
"""Into so many parts a large text is cut: some for each worker, so that a slow one is not waited for long."""
PART_BYTES = (32_000_000, 512_000_000)
"""The least and the most of a part, as files lie on disk; a larger file is a part of its own."""


@dataclass(frozen=True)
class Part:
    """Some files that follow each other in the order of reading."""

    number: int
    files: tuple[str, ...]
    sizes: tuple[int, ...]
    """Bytes of each file."""
    stamps: tuple[tuple[int, int] | None, ...]
    """Of each file: see `stamp_of`."""
    held_out: bool
    """Whether they are of the held-out files."""
    layout: Layout
    text_column: str
    on_bad_input: OnBadInput
    letters: Letters

    @property
    def bytes(self) -> int:
        return sum(self.sizes)

    def open(self, on_fault: Callable[[Fault], None] | None = None) -> Sources:
        """Its documents. Raises `SourceError` where a file is not what it was when the text was cut."""
        sources = Sources(
            [*self.files],
            layout=self.layout,
            text_column=self.text_column,
            on_bad_input=self.on_bad_input,
            on_fault=on_fault,
            letters=self.letters,
        )
        self.require_unchanged()
        return sources

    def require_unchanged(self) -> None:
        for name, stamp in zip(self.files, self.stamps, strict=True):
            if stamp_of(name) != stamp:
                raise changed_while_read(name)

    def records(self) -> list[dict[str, Any]]:
        """Of each file, for the store's manifest."""
        return [file_record(name, size) for name, size in zip(self.files, self.sizes, strict=True)]

    def identity(self) -> list[Any]:
        """What decides its documents, as far as that can be told without reading them."""
        files = zip(self.files, self.sizes, self.stamps, strict=True)
        versions = [[name, size, stamp or file_record(name, size)["version"]] for name, size, stamp in files]
        return [versions, self.held_out, self.layout, self.text_column, self.on_bad_input, self.letters]


def cut(all_sources: Sequence[Sources], held_out: Sources | None = None) -> list[Part]:
    """The parts of all files, in the order of reading. They depend on the files' sizes alone."""
    total = sum(sum(one.sizes) for one in all_sources)
    least, most = PART_BYTES
    wanted = min(max(total // PARTS_AT_LEAST, least), most)
    parts: list[Part] = []
    for sources in all_sources:
        begin = size = 0
        for end, bytes_ in enumerate(sources.sizes, 1):
            size += bytes_
            if size >= wanted or end == len(sources.files):
                parts.append(_part(sources, begin, end, len(parts), held_out=sources is held_out))
                begin, size = end, 0
    return parts


def _part(sources: Sources, begin: int, end: int, number: int, *, held_out: bool) -> Part:
    return Part(
        number,
        tuple(sources.files[begin:end]),
        tuple(sources.sizes[begin:end]),
        tuple(sources.stamps[begin:end]),
        held_out,
        sources.layout,
        sources.text_column,
        sources.on_bad_input,
        sources.letters,
    )


def digest_of(*decided_by: Any) -> str:
    """A short name for what is decided by values of JSON."""
    return storage.sha256_of([*decided_by])[:20]
