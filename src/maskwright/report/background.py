"""The origin of a run: its data, its lineage, and its machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from maskwright.core.console import human_bytes, human_count, several
from maskwright.report import words
from maskwright.report.configuration import as_typed, shown
from maskwright.report.document import Bars, Block, Facts, Listing, Paragraph
from maskwright.report.frame import ReportTable
from maskwright.report.run import RecordedRun
from maskwright.run.record import ancestors, describe

MOST_LABELS = 30
SHOWN_LANGUAGE = 0.01
"""Languages with a larger share of the documents are named."""
COUNTED = {
    "read": "documents read",
    "kept": "kept",
    "duplicates": "left out as exact duplicates",
    "too_short": "left out as too short",
    "too_long": "left out as too long",
}

# ---- data ----------------------------------------------------------------------------------------------------------


def data(run: RecordedRun) -> list[Block]:
    card = run.card
    if not card:
        where = f"This run has no data.json. It trained on {run.record.train.location}." if run.record else ""
        return [Paragraph(where or "The run has no data card.")]
    if card.get("kind") == "labelled":
        return _labelled(card)
    blocks: list[Block] = []
    for source in card.get("sources", []):
        blocks += _source(source)
    return blocks


def in_short(card: Mapping[str, Any]) -> list[str]:
    """A line for each source of text and each unigram baseline, as model cards have them."""
    lines = []
    for source in card.get("sources") or []:
        train, valid = (source["splits"][side] for side in ("train", "valid"))
        suffix = f" of {source['name']}" if source.get("name") else ""
        repeats = (source.get("counts") or {}).get("duplicates")
        left_out = f"; {several(repeats, 'repeat')} left out" if repeats else ""
        lines.append(
            f"text{suffix}: {several(train['documents'], 'document')}, {human_count(train['tokens'])} tokens, and "
            f"{several(valid['documents'], 'document')} held out{left_out}"
        )
        if source.get("languages"):
            lines.append(f"languages{suffix}: {_languages(source)}")
    for name, baseline in (card.get("unigram") or {}).items():
        suffix = f" of {name}" if name else ""
        figures = f"{baseline['loss']:.4f}, accuracy {baseline['accuracy']:.2%}"
        lines.append(f"held-out loss{suffix} of guessing by frequency alone: {figures}")
    return lines


def _source(source: Mapping[str, Any]) -> list[Block]:
    splits, name = source.get("splits", {}), source.get("name") or "The store"
    rows = [("Where", str(source.get("location")))]
    for split, title in (("train", "Training text"), ("valid", "Held out")):
        totals = splits.get(split) or {}
        rows.append(
            (title, f"{several(totals.get('documents', 0), 'document')}, {human_count(totals.get('tokens', 0))} tokens")
        )
    if languages := _languages(source):
        rows.append(("Languages", languages))
    counts = source.get("counts") or {}
    rows += [(title.capitalize(), f"{counts[key]:,}") for key, title in COUNTED.items() if counts.get(key)]
    files, count = source.get("files") or [], source.get("file_count", 0)
    if command := as_typed(source):
        rows.append(("Prepared with", command))
    elif options := source.get("options"):
        options_text = [f"{key}: {shown(value)}" for key, value in options.items() if value is not None]
        rows.append(("Prepared with", "; ".join(options_text)))
    more = f" and {count - len(files):,} more" if count > len(files) else ""
    rows.append(("Files", f"{', '.join(map(str, files))}{more}"))
    rows.append(("Fingerprint", str(source.get("fingerprint"))))
    blocks: list[Block] = [Facts((("Source", name), *rows) if source.get("name") else tuple(rows))]
    for key, heading in (("left_out", "What cleaning left out"), ("changed", "What cleaning changed")):
        if counts.get(key):
            table_rows = tuple((str(rule), f"{count_of_rule:,}") for rule, count_of_rule in counts[key].items())
            blocks.append(ReportTable(heading, ("rule", "documents" if key == "left_out" else "times"), table_rows))
    return [*blocks, *_lengths(source.get("documents_by_tokens") or {}, "document")]


def _languages(source: Mapping[str, Any]) -> str:
    """Shares of languages; empty if they were not counted, and for text without languages, such as DNA."""
    counts = source.get("languages") or {}
    if not (total := sum(counts.values())):
        return ""
    shares = {name: count / total for name, count in counts.items() if count > SHOWN_LANGUAGE * total}
    shares |= {"other": other} if (other := 1.0 - sum(shares.values())) > 1e-9 else {}
    text = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    return f"{text} (of {total:,} evenly spaced documents, as py3langid judges their beginnings)"


def _lengths(counts: Mapping[str, int], unit: str) -> list[Block]:
    if not counts:
        return []
    values = {words.span(int(size) // 2, int(size) - 1, "token"): count for size, count in counts.items()}
    return [Bars(values, unit, f"Lengths of {unit}s")]


def _labelled(card: Mapping[str, Any]) -> list[Block]:
    sizes = card.get("examples") or {}
    blocks: list[Block] = [
        Facts(tuple((split.capitalize(), several(count, "example")) for split, count in sizes.items()))
    ]
    labels: Mapping[str, Mapping[str, int]] = card.get("labels") or {}
    if train := labels.get("train"):
        rows = tuple(
            (label, *(f"{labels[split].get(label, 0):,}" for split in labels)) for label in [*train][:MOST_LABELS]
        )
        more = f"; {len(train) - MOST_LABELS} more are left out" if len(train) > MOST_LABELS else ""
        blocks.append(ReportTable(f"Examples of each label{more}", ("label", *labels), rows))
    notes = [str(note) for note in [*(card.get("findings") or []), *(card.get("notes") or [])]]
    blocks += [Listing(tuple(notes))] if notes else []
    return [*blocks, *_lengths(card.get("examples_by_tokens") or {}, "training example")]


# ---- lineage and machine -------------------------------------------------------------------------------------------


def lineage(run: RecordedRun) -> list[Block]:
    began_from = run.record.began_from if run.record else None
    lines = [f"This run {line}." if number == 0 else f"{line}." for number, line in enumerate(describe(began_from))]
    _, folder = ancestors(began_from)
    if folder:
        lines += [f"Base weights {name}: sha256 {digest}." for name, digest in folder.sha256s.items()]
    return [Listing(tuple(lines or ["The run began with random weights."]))]


def environment(run: RecordedRun) -> list[Block]:
    record, hardware = run.environment, run.environment.get("hardware") or {}
    if not record:
        return [Paragraph("The run has no environment.json.")]
    packages = ", ".join(f"{name} {version}" for name, version in (record.get("packages") or {}).items())
    engines = sorted({str(line["engine"]) for line in run.at("started") if line.get("engine")})
    memory = hardware.get("memory_bytes")
    source = f", source sha256 {digest[:12]}" if (digest := str(record.get("source_sha256") or "")) else ""
    rows = [
        ("maskwright", f"{record.get('maskwright')}, revision {record.get('revision') or 'not known'}{source}"),
        ("Packages", packages),
        ("Engine", "; ".join(engines)),
        ("Machine", f"{hardware.get('cpu')}, {_cores(hardware.get('cores'))}" if hardware else ""),
        ("Memory", human_bytes(memory) if isinstance(memory, int | float) else ""),
        ("System", f"{hardware.get('platform')}, Python {hardware.get('python')}" if hardware else ""),
    ]
    return [Facts(tuple((term, value) for term, value in rows if value))]


def _cores(count: object) -> str:
    return several(count, "core") if isinstance(count, int) else "cores unknown"
