"""What a run was made of: its data, what it came from, and where it ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from maskwright.core.console import human_bytes, human_count, several
from maskwright.report import words
from maskwright.report.configuration import as_typed, shown
from maskwright.report.document import Bars, Block, Facts, Listing, Paragraph
from maskwright.report.run import RecordedRun
from maskwright.report.tables import ReportTable
from maskwright.run.lineage import describe

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
        where = run.record.get("store")
        return [
            Paragraph(f"This run has no data.json. It trained on {where}." if where else "The run has no data card.")
        ]
    if card.get("kind") == "labelled":
        return _labelled(card)
    found: list[Block] = []
    for source in card.get("sources", []):
        found += _source(source)
    return found


def in_short(card: Mapping[str, Any]) -> list[str]:
    """A line for each source of text, and one for each unigram baseline, as a model card has them."""
    found = []
    for source in card.get("sources") or []:
        train, valid = (source["splits"][side] for side in ("train", "valid"))
        of = f" of {source['name']}" if source.get("name") else ""
        repeats = (source.get("counts") or {}).get("duplicates")
        left_out = f"; {several(repeats, 'repeat')} left out" if repeats else ""
        found.append(
            f"text{of}: {several(train['documents'], 'document')}, {human_count(train['tokens'])} tokens, and "
            f"{several(valid['documents'], 'document')} held out{left_out}"
        )
        if source.get("languages"):
            found.append(f"languages{of}: {_languages(source)}")
    for name, baseline in (card.get("unigram") or {}).items():
        of = f" of {name}" if name else ""
        guessed = f"{baseline['loss']:.4f}, accuracy {baseline['accuracy']:.2%}"
        found.append(f"held-out loss{of} of guessing by frequency alone: {guessed}")
    return found


def _source(source: Mapping[str, Any]) -> list[Block]:
    splits, name = source.get("splits", {}), source.get("name") or "The store"
    rows = [("Where", str(source.get("location")))]
    for split, said in (("train", "Training text"), ("valid", "Held out")):
        totals = splits.get(split) or {}
        rows.append(
            (said, f"{several(totals.get('documents', 0), 'document')}, {human_count(totals.get('tokens', 0))} tokens")
        )
    if told := _languages(source):
        rows.append(("Languages", told))
    counts = source.get("counts") or {}
    rows += [(said.capitalize(), f"{counts[key]:,}") for key, said in COUNTED.items() if counts.get(key)]
    files, count = source.get("files") or [], source.get("file_count", 0)
    if command := as_typed(source):
        rows.append(("Prepared with", command))
    elif options := source.get("options"):
        known = [f"{key}: {shown(value)}" for key, value in options.items() if value is not None]
        rows.append(("Prepared with", "; ".join(known)))
    more = f" and {count - len(files):,} more" if count > len(files) else ""
    rows.append(("Files", f"{', '.join(map(str, files))}{more}"))
    rows.append(("Fingerprint", str(source.get("fingerprint"))))
    found: list[Block] = [Facts((("Source", name), *rows) if source.get("name") else tuple(rows))]
    for key, heading in (("left_out", "What cleaning left out"), ("changed", "What cleaning changed")):
        if counts.get(key):
            listed = tuple((str(rule), f"{number:,}") for rule, number in counts[key].items())
            found.append(ReportTable(heading, ("rule", "documents" if key == "left_out" else "times"), listed))
    return [*found, *_lengths(source.get("documents_by_tokens") or {}, "document")]


def _languages(source: Mapping[str, Any]) -> str:
    """Empty where they were not counted, and where no language is to be told, as in DNA."""
    known = source.get("languages") or {}
    if not (total := sum(known.values())):
        return ""
    shares = {name: count / total for name, count in known.items() if count > SHOWN_LANGUAGE * total}
    shares |= {"other": other} if (other := 1.0 - sum(shares.values())) > 1e-9 else {}
    listed = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    return f"{listed} (of {total:,} evenly spaced documents, as py3langid judges their beginnings)"


def _lengths(counts: Mapping[str, int], of: str) -> list[Block]:
    if not counts:
        return []
    named = {words.span(int(size) // 2, int(size) - 1, "token"): count for size, count in counts.items()}
    return [Bars(named, of, f"Lengths of {of}s")]


def _labelled(card: Mapping[str, Any]) -> list[Block]:
    sizes = card.get("examples") or {}
    found: list[Block] = [
        Facts(tuple((split.capitalize(), several(count, "example")) for split, count in sizes.items()))
    ]
    labels: Mapping[str, Mapping[str, int]] = card.get("labels") or {}
    if train := labels.get("train"):
        rows = tuple(
            (label, *(f"{labels[split].get(label, 0):,}" for split in labels)) for label in [*train][:MOST_LABELS]
        )
        more = f"; {len(train) - MOST_LABELS} more are left out" if len(train) > MOST_LABELS else ""
        found.append(ReportTable(f"Examples of each label{more}", ("label", *labels), rows))
    notes = [str(one) for one in [*(card.get("findings") or []), *(card.get("notes") or [])]]
    found += [Listing(tuple(notes))] if notes else []
    return [*found, *_lengths(card.get("examples_by_tokens") or {}, "training example")]


# ---- where from, and where -----------------------------------------------------------------------------------------


def lineage(run: RecordedRun) -> list[Block]:
    lines = [f"This run {line}." if line.startswith("began") else f"{line}." for line in describe(run.look.lineage)]
    base = run.record.get("base")
    if isinstance(base, dict) and not lines:
        step = f", step {base['step']:,}" if isinstance(base.get("step"), int) else ""
        lines.append(f"The run began with the weights of {base.get('location')}{step}.")
    for name, digest in (run.record.get("base_weights") or {}).items():
        lines.append(f"Base weights {name}: sha256 {digest}.")
    if not lines:
        named = run.config.get("model.init_from")
        lines.append(f"The run began with the weights of {named}." if named else "The run began with random weights.")
    return [Listing(tuple(lines))]


def environment(run: RecordedRun) -> list[Block]:
    found, hardware = run.environment, run.environment.get("hardware") or {}
    if not found:
        return [Paragraph("The run has no environment.json.")]
    packages = ", ".join(f"{name} {version}" for name, version in (found.get("packages") or {}).items())
    engines = sorted({str(line["engine"]) for line in run.at("started") if line.get("engine")})
    memory = hardware.get("memory_bytes")
    rows = [
        ("maskwright", f"{found.get('maskwright')}, revision {found.get('revision') or 'not known'}"),
        ("Packages", packages),
        ("Engine", "; ".join(engines)),
        ("Machine", f"{hardware.get('cpu')}, {_cores(hardware.get('cores'))}" if hardware else ""),
        ("Memory", human_bytes(memory) if isinstance(memory, int | float) else ""),
        ("System", f"{hardware.get('platform')}, Python {hardware.get('python')}" if hardware else ""),
    ]
    return [Facts(tuple((term, said) for term, said in rows if said))]


def _cores(count: object) -> str:
    return several(count, "core") if isinstance(count, int) else "cores not known"
