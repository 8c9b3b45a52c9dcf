"""The findings of `maskwright data audit`, as a page."""

from __future__ import annotations

from collections.abc import Mapping

from maskwright.core.console import human_bytes, several
from maskwright.report import document, words
from maskwright.report.document import Bars, Block, Folded, Paragraph, ReportSection
from maskwright.report.frame import ReportTable
from maskwright.text.audit import MOJIBAKE, Audit, Finding
from maskwright.text.layout import LAYOUTS

TITLE = "Audit of a text"
MOST_BARS = 20
PREPARE = "data prepare"


def write_page(path: str, result: Audit) -> None:
    document.write(path, TITLE, sections(result))


def sections(result: Audit) -> list[ReportSection]:
    read = f"{several(result.documents, 'document')} in {several(result.files, 'file')}"
    what = f"{read} ({LAYOUTS.get(result.layout, 'records')}): {human_bytes(result.bytes)} of text."
    scripts = {name: 100 * share for name, share in result.scripts.items()}
    languages = dict([*result.languages.items()][:MOST_BARS])
    judged = f"The first {several(sum(result.languages.values()), 'document')}, as py3langid judges them."
    fertility = _fertility(result.tokens_per_word)
    kept = [Paragraph("In the documents that stay."), *_findings(result.changed)]
    findings = _findings(result.findings)
    if MOJIBAKE not in result.findings:
        findings.append(Paragraph("Documents with mojibake are not counted without ftfy."))
    sections: list[tuple[str, list[Block]]] = [
        ("", [Paragraph(what)]),
        ("What cleaning leaves out", _left_out(result) if result.left_out else []),
        ("What cleaning changes", kept if result.changed else []),
        ("Lengths", [Bars(_lengths(result.lengths), "document")]),
        ("Scripts", _bars(scripts, "%", "Share of the letters at the documents' beginnings.")),
        ("Languages", _bars(languages, "document", judged)),
        ("Fertility of the tokenizer", [Bars(fertility, "document")] if fertility else []),
        ("Findings", findings),
    ]
    return [ReportSection(heading, tuple(blocks)) for heading, blocks in sections if blocks]


def _left_out(result: Audit) -> list[Block]:
    counts = {name: finding.count for name, finding in result.left_out.items()}
    total = sum(counts.values())
    share = total / max(result.documents, 1)
    same = "with the same options leaves out the same. Each document is counted under the first rule that it breaks."
    return [
        Paragraph(same, lead=f"{total:,} of {result.documents:,} documents ({share:.1%}).", command=PREPARE),
        Bars(dict([*counts.items()][:MOST_BARS]), "document"),
        *_findings(result.left_out_together()),
    ]


def _lengths(lengths: Mapping[int, int]) -> dict[str, int]:
    if not lengths:
        return {}
    counts, size = {}, min(lengths)
    while size <= max(lengths):
        counts[words.span(size // 2, size - 1, "character")] = lengths.get(size, 0)
        size *= 2
    return counts


def _bars(values: Mapping[str, float], unit: str, note: str) -> list[Block]:
    return [Bars(values, unit), Paragraph(note, faint=True)] if values else []


def _fertility(tokens_per_word: Mapping[float, int]) -> dict[str, int]:
    shown = {f"{value:.1f} tokens per word": count for value, count in sorted(tokens_per_word.items())}
    if len(shown) <= MOST_BARS:
        return shown
    whole: dict[str, int] = {}  # whole numbers: one bar each
    for value, count in sorted(tokens_per_word.items()):
        name = f"{int(value)} to {int(value) + 1} tokens per word" if value < MOST_BARS else f"{MOST_BARS} and more"
        whole[name] = whole.get(name, 0) + count
    return whole


def _findings(findings: Mapping[str, Finding]) -> list[Block]:
    blocks: list[Block] = []
    for name, finding in findings.items():
        if not finding.count:
            blocks.append(Paragraph(f"{name}: none"))
            continue
        blocks.append(Paragraph(f"{finding.prepare}.", lead=f"{name}: {finding.count:,}.", command=PREPARE))
        if rows := tuple((example,) for example in finding.examples):
            blocks.append(Folded("Examples", (ReportTable(f"The first {len(rows)}: {name}", ("where",), rows),)))
    return blocks
