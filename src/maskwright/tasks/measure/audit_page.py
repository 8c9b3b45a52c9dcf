"""What `maskwright text audit` finds, as one HTML file."""

from __future__ import annotations

from collections.abc import Mapping

from maskwright.core import output
from maskwright.core.console import human_bytes, several
from maskwright.report import plots, words
from maskwright.report.frame import escaped, page, section, table
from maskwright.report.tables import ReportTable
from maskwright.text.audit import Audit, Finding
from maskwright.text.layout import LAYOUTS

MOST_BARS = 20


def write_page(path: str, result: Audit) -> None:
    with output.writer(path) as file:
        file.write(html(result).encode())


def html(result: Audit) -> str:
    parts = [
        f"<p>{several(result.documents, 'document')} in {several(result.files, 'file')} ("
        f"{escaped(LAYOUTS.get(result.layout, 'records'))}): {escaped(human_bytes(result.bytes))} of text.</p>",
        _left_out(result),
        _changed(result),
        section("Lengths", plots.bars(_lengths(result.lengths), "document")),
        _shares("Scripts", result.scripts, "Share of the letters at the documents' beginnings."),
        _languages(result.languages),
        _fertility(result.tokens_per_word),
        section("Findings", *(_finding(name, one) for name, one in result.findings.items())),
    ]
    return page("Audit of a text", parts)


def _left_out(result: Audit) -> str:
    if not result.left_out:
        return ""
    total = sum(finding.count for finding in result.left_out.values())
    share = total / max(result.documents, 1)
    counts = {name: finding.count for name, finding in result.left_out.items()}
    return section(
        "What cleaning leaves out",
        f"<p><b>{total:,} of {result.documents:,} documents ({share:.1%}).</b> Each is counted under the first rule "
        "that it breaks. <code>data prepare</code> with the same options leaves out the same.</p>",
        plots.bars(dict([*counts.items()][:MOST_BARS]), "document"),
        *(_finding(name, one) for name, one in result.left_out_together().items()),
    )


def _changed(result: Audit) -> str:
    if not result.changed:
        return ""
    note = "<p>In the documents that stay.</p>"
    return section("What cleaning changes", note, *(_finding(name, one) for name, one in result.changed.items()))


def _lengths(lengths: Mapping[int, int]) -> dict[str, int]:
    if not lengths:
        return {}
    found, size = {}, min(lengths)
    while size <= max(lengths):
        found[words.span(size // 2, size - 1, "character")] = lengths.get(size, 0)
        size *= 2
    return found


def _shares(heading: str, shares: Mapping[str, float], note: str) -> str:
    if not shares:
        return ""
    percents = {name: 100 * share for name, share in shares.items()}
    return section(heading, plots.bars(percents, "%"), f'<p class="faint">{escaped(note)}</p>')


def _languages(languages: Mapping[str, int]) -> str:
    if not languages:
        return ""
    note = f"The first {several(sum(languages.values()), 'document')}, as py3langid judges them."
    shown = dict([*languages.items()][:MOST_BARS])
    return section("Languages", plots.bars(shown, "document"), f'<p class="faint">{escaped(note)}</p>')


def _fertility(tokens_per_word: Mapping[float, int]) -> str:
    if not tokens_per_word:
        return ""
    shown = {f"{value:.1f} tokens per word": count for value, count in sorted(tokens_per_word.items())}
    if len(shown) > MOST_BARS:  # whole numbers: one bar each
        whole: dict[str, int] = {}
        for value, count in sorted(tokens_per_word.items()):
            name = f"{int(value)} to {int(value) + 1} tokens per word" if value < MOST_BARS else f"{MOST_BARS} and more"
            whole[name] = whole.get(name, 0) + count
        shown = whole
    return section("Fertility of the tokenizer", plots.bars(shown, "document"))


def _finding(name: str, finding: Finding) -> str:
    if not finding.count:
        return f"<p>{escaped(name)}: none</p>"
    line = f"<p><b>{escaped(name)}: {finding.count:,}</b>. <code>data prepare</code> {escaped(finding.prepare)}.</p>"
    if not finding.examples:
        return line
    rows = tuple((example,) for example in finding.examples)
    shown = table(ReportTable(f"The first {len(rows)}: {name}", ("where",), rows, words=1))
    return f"{line}<details><summary>Examples</summary>{shown}</details>"
