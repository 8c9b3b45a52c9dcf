"""What an audit finds in one part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from maskwright.text.audit import EXAMPLES, Audit, examine, new_findings, note_fault, show
from maskwright.text.document import Document, Fault
from maskwright.text.kept import Kept
from maskwright.text.parts.columns import ColumnWriter, Note
from maskwright.text.parts.cut import Part
from maskwright.text.parts.keys import write_keys

AS_READ = "as-read"
"""The keys of documents before cleaning."""


class AuditedPart:
    def __init__(self, kept: Kept) -> None:
        self.kept = kept
        self.result = Audit(0, "", findings=new_findings())
        self.scripts = Counter[str]()
        self.examples: dict[str, list[str]] = {}
        self.keys: list[bytes] = []
        self.origins: list[tuple[str, int]] = []

    def note(self, fault: Fault) -> None:
        note_fault(self.result.findings, fault)

    def leave_out(self, document: Document, reason: str, detail: str) -> None:
        show(self.examples, reason, document, detail)

    def add(self, batch: Sequence[Document]) -> None:
        for document in batch:
            examine(document, self.result, self.scripts)
            self.keys.append(self.kept.key(document.utf8))
            self.origins.append((document.source, document.line))

    def write(self, writer: ColumnWriter, part: Part, first: int) -> None:
        """Adds columns of the documents from number `first` on, which say where each begins: `file` (its place in the
        part's files) and `line`. The part's note says what was found so far."""
        keys = np.frombuffer(b"".join(self.keys), "<u8").reshape(-1, 2)
        write_keys(writer, AS_READ, first, keys[:, 0], keys[:, 1])
        place = {name: number for number, name in enumerate(part.files)}
        writer.append("file", np.array([place[name] for name, _ in self.origins], "<u4"))
        writer.append("line", np.array([line for _, line in self.origins], "<u8"))
        self.keys, self.origins = [], []
        audit = {**asdict(self.result), "lengths": [*self.result.lengths.items()]}
        writer.note |= {"audit": audit, "scripts": dict(self.scripts), "examples": self.examples}


def add_part(result: Audit, note: Note) -> None:
    """Adds what a part's note says, after those of the parts before it."""
    found = note["audit"]
    for name in ("documents", "characters", "bytes"):
        setattr(result, name, getattr(result, name) + found[name])
    if found["sentences"] is not None:
        result.sentences = (result.sentences or 0) + found["sentences"]
    shortest = [result.shortest_document_characters, found["shortest_document_characters"]]
    result.shortest_document_characters = min((one for one in shortest if one is not None), default=None)
    result.longest_document_characters = max(result.longest_document_characters, found["longest_document_characters"])
    for size, count in found["lengths"]:
        result.lengths[size] = result.lengths.get(size, 0) + count
    for name, finding in found["findings"].items():
        result.findings[name].add_all(finding["count"], finding["examples"])


def add_examples(shown: dict[str, list[str]], found: dict[str, list[str]]) -> None:
    for name, examples in found.items():
        shown[name] = [*shown.get(name, []), *examples][:EXAMPLES]
