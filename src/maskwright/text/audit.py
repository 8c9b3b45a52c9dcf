"""`maskwright text audit`: what is in a corpus, and what `data prepare` will do about each oddity."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass, field

from maskwright.core.console import human_bytes, human_count, progress
from maskwright.core.secrets import redact
from maskwright.text.dedup import Duplicates, text_key
from maskwright.text.document import Document, Fault
from maskwright.text.layout import LAYOUTS, Layout
from maskwright.text.sources import Sources

CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f]")
SPECIAL = re.compile(r"<s>|</s>|<pad>|<unk>|<mask>|<bos>|<eos>|\[(?:CLS|SEP|PAD|UNK|MASK)\]")
LONG_LINE_CHARACTERS = 100_000
EXAMPLES = 5
SCRIPT_SAMPLE_CHARACTERS = 400


@dataclass
class Finding:
    """How often something was met, the first places, and what prepare does about it."""

    count: int
    prepare: str
    examples: list[str] = field(default_factory=list)

    def add(self, where: str) -> None:
        self.count += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(redact(where))


@dataclass
class Audit:
    files: int
    layout: str
    documents: int = 0
    characters: int = 0
    bytes: int = 0
    sentences: int | None = None
    shortest_document_characters: int | None = None
    longest_document_characters: int = 0
    scripts: dict[str, float] = field(default_factory=dict)
    """Share of the letters (sampled from each document's beginning) by Unicode script."""
    findings: dict[str, Finding] = field(default_factory=dict)


def _findings() -> dict[str, Finding]:
    return {
        "encoding faults": Finding(0, "stops with file:line:column, unless --on-bad-input replace or skip"),
        "broken records": Finding(0, "stops with file:line, unless --on-bad-input skip"),
        "empty files": Finding(0, "stops, unless --on-bad-input skip"),
        "files of another kind": Finding(0, "leaves them out"),
        "exact duplicate documents": Finding(0, "keeps the first of each, unless --keep-duplicates"),
        "documents with control characters": Finding(0, "keeps them as they are: byte-level BPE can spell them"),
        "lines over 100,000 characters": Finding(0, "keeps them: long documents are cut into rows when training"),
        "documents with literal special tokens": Finding(0, "keeps them as text: they never become special ids"),
    }


def audit(patterns: list[str], *, layout: Layout = "auto", text_column: str = "text") -> Audit:
    """Reads every document once. Raises `SourceError` only where reading cannot go on (damaged archive, no column)."""
    findings = _findings()
    named = {"encoding": "encoding faults", "record": "broken records", "empty_file": "empty files"}

    def note(fault: Fault) -> None:
        findings[named[fault.kind]].add(f"{fault.where}: {fault.what}")

    # `skip` reports every kind of fault and reads on; the faulty lines are then not among the counted documents.
    sources = Sources(patterns, layout=layout, text_column=text_column, on_bad_input="skip", on_fault=note)
    for name in sources.ignored_files:
        findings["files of another kind"].add(name)
    result = Audit(len(sources.files), sources.layout if sources.has_plain_text else "records", findings=findings)
    duplicates, scripts = Duplicates(), Counter[str]()
    with progress("audit", sum(sources.sizes), "bytes") as bar:
        for document in sources:
            _examine(document, result, duplicates, scripts)
            bar.advance(sources.bytes_read - bar.done)
    letters = sum(scripts.values())
    result.scripts = {name: round(count / letters, 4) for name, count in scripts.most_common(8)} if letters else {}
    return result


def _examine(document: Document, result: Audit, duplicates: Duplicates, scripts: Counter[str]) -> None:
    text, where = document.text, f"{document.source}:{document.line}"
    result.documents += 1
    result.characters += len(text)
    result.bytes += len(document.utf8)
    if document.has_sentences:
        result.sentences = (result.sentences or 0) + len(document.parts)
    shortest = result.shortest_document_characters
    result.shortest_document_characters = len(text) if shortest is None else min(shortest, len(text))
    result.longest_document_characters = max(result.longest_document_characters, len(text))
    if not duplicates.is_new(text_key(document.utf8)):
        result.findings["exact duplicate documents"].add(where)
    if match := CONTROL.search(text):
        code = f"U+{ord(match.group()):04X}"
        result.findings["documents with control characters"].add(f"{where}: {code}")
    if match := SPECIAL.search(text):
        result.findings["documents with literal special tokens"].add(f"{where}: {match.group()}")
    if len(text) > LONG_LINE_CHARACTERS:
        longest = max(map(len, document.parts if document.has_sentences else text.split("\n")))
        if longest > LONG_LINE_CHARACTERS:
            result.findings["lines over 100,000 characters"].add(f"{where}: {longest:,} characters")
    for character in text[:SCRIPT_SAMPLE_CHARACTERS]:
        if character.isalpha():
            scripts[script_of(character)] += 1


def script_of(character: str) -> str:
    """First word of the letter's Unicode name: LATIN, CYRILLIC, CJK, ARABIC … (the standard library has no scripts)."""
    if character < "\x80":
        return "Latin"
    return unicodedata.name(character, "UNKNOWN").split(" ", 1)[0].split("-", 1)[0].capitalize()


def report(result: Audit) -> str:
    """A page for a person."""
    lines = [
        f"documents: {human_count(result.documents)}, files: {result.files} ({LAYOUTS.get(result.layout, 'records')}), "
        f"{human_bytes(result.bytes)} of text, {human_count(result.characters)} characters"
    ]
    if result.documents < 300:  # one corpus in twenty then has none in prepare's 1 %: 0.99^300 is 0.05
        lines.append("warning: so few documents may leave none held out, and `data prepare` then stops")
    if result.documents:
        lines.append(
            f"document length: {result.shortest_document_characters:,} to {result.longest_document_characters:,} "
            f"characters, mean {result.characters / result.documents:,.0f}"
        )
    if result.sentences is not None:
        lines.append(f"sentences: {human_count(result.sentences)}")
    scripts = ", ".join(f"{name} {share:.1%}" for name, share in result.scripts.items())
    lines.append(f"scripts: {scripts or 'none: no letters'}")
    for name, finding in result.findings.items():
        lines.append(f"{name}: {finding.count:,}" + (f"  -> prepare {finding.prepare}" if finding.count else ""))
        lines += [f"    {example}" for example in finding.examples]
    return "\n".join(lines)
