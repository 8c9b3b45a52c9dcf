"""`maskwright data audit`: the content of a corpus, and what `data prepare` will do about each oddity."""

from __future__ import annotations

import os
import re
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.core import extras
from maskwright.core.console import human_bytes, human_count, say
from maskwright.core.encodings import UTF8
from maskwright.core.secrets import redact
from maskwright.processes.runner import Runner
from maskwright.text.cleaning.language import STEP, merge_languages
from maskwright.text.cleaning.limits import KEEP, NAMES, NEAR_DUPLICATE, DropTotals, Limits
from maskwright.text.cleaning.steps import C4_LINES, CleaningOptions, apply_cleaning
from maskwright.text.compression import changed_while_read
from maskwright.text.dedup import document_keys, text_key
from maskwright.text.document import Document, Fault
from maskwright.text.encoder import Encoder, open_encoder
from maskwright.text.layout import LAYOUTS, Layout, finer_layouts, share_held_out
from maskwright.text.marks import SAMPLE_CHARACTERS, SAMPLE_TEXTS, warn_of_dropped_marks
from maskwright.text.notation import SEPARATOR, beginning_of, notation_of
from maskwright.text.parts.columns import Columns, ColumnWriter, Note, written
from maskwright.text.parts.cut import Part, cut, digest_of, split
from maskwright.text.parts.duplicates import KeyRuns, Resolved, find_repeats, repeated_in, resolve
from maskwright.text.parts.judge import Judge, read
from maskwright.text.parts.phase import compute, paths_of
from maskwright.text.records import SEQUENCE_ENDINGS, Letters
from maskwright.text.sources import Sources, file_kind
from maskwright.text.vocabulary import Vocabulary, read_vocabulary

CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f]")
LONG_LINE_CHARACTERS = 100_000
EXAMPLES = 5
SCRIPT_SAMPLE_CHARACTERS = 400
EXAMPLE_CHARACTERS = 120
REPEATED = "exact duplicate documents"
NOTATION = "documents that may not be plain text"
SEPARATORS = "documents that are a separator line"
AS_READ = "as-read"
"""Key column of documents before cleaning."""


@dataclass
class Finding:
    """One oddity: its count, its first places, and what `data prepare` does about it."""

    count: int
    prepare: str
    examples: list[str] = field(default_factory=list)

    def add(self, where: str) -> None:
        self.count += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(redact(where))

    def add_all(self, count: int, examples: list[str]) -> None:
        """Adds a part's count and its first examples."""
        self.count += count
        self.examples = [*self.examples, *map(redact, examples)][:EXAMPLES]


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
    """Share of letters by Unicode script, sampled from each document's beginning."""
    findings: dict[str, Finding] = field(default_factory=dict)
    languages: dict[str, int] = field(default_factory=dict)
    """Documents by language, of the first `SAMPLE_TEXTS`; empty if py3langid is not installed."""
    tokens_per_word: float | None = None
    """The mean over the documents of that sample; None without a tokenizer, and for DNA and proteins."""
    layouts: dict[Layout, int] = field(default_factory=dict)
    """Documents that each layout would give in the sampled files; empty if the layout was not guessed."""
    left_out: dict[str, Finding] = field(default_factory=dict)
    """Documents that cleaning drops, by the first rule that each breaks."""
    changed: dict[str, Finding] = field(default_factory=dict)
    """Changes of cleaning in kept documents: personal data by kind, and lines that C4's rules drop."""

    def left_out_together(self) -> dict[str, Finding]:
        """`left_out` with all languages as one."""
        languages = [finding for rule, finding in self.left_out.items() if rule.startswith(STEP)]
        examples = [text for finding in languages for text in finding.examples][:EXAMPLES]
        counts = merge_languages({rule: finding.count for rule, finding in self.left_out.items()})
        return {
            rule: Finding(count, languages[0].prepare, examples) if rule.startswith(STEP) else self.left_out[rule]
            for rule, count in counts.items()
        }


def new_findings() -> dict[str, Finding]:
    return {
        "encoding faults": Finding(0, "stops with file:line:column, unless --on-bad-input replace or skip"),
        "files in another encoding": Finding(0, "stops with the --encoding that reads it, unless --on-bad-input skip"),
        "broken records": Finding(0, "stops with file:line, unless --on-bad-input skip"),
        "records without text": Finding(0, "leaves them out; stops at a missing column, unless --on-bad-input skip"),
        "empty files": Finding(0, "stops, unless --on-bad-input skip"),
        "files of another kind": Finding(0, "leaves them out"),
        SEPARATORS: Finding(0, "keeps one of each kind; put blank lines in their place, and give --layout sentences"),
        REPEATED: Finding(0, "keeps the first of each, unless --keep-duplicates"),
        NOTATION: Finding(0, "keeps brackets, tags and marks as text, with a warning if there are many"),
        "documents with control characters": Finding(0, "keeps them, since byte-level BPE can encode them"),
        "lines over 100,000 characters": Finding(0, "keeps them; training cuts long documents into rows"),
    }


def audit(
    patterns: list[str],
    runner: Runner | None = None,
    *,
    layout: Layout = "auto",
    text_column: str = "text",
    tokenizer: str | None = None,
    cleaning: CleaningOptions | None = None,
    letters: Letters = "upper",
    encoding: str = UTF8,
) -> Audit:
    """Examines the text, and what `cleaning` would drop and change in it. `runner`: None for this process. Raises
    `SourceError` for a damaged archive or a missing column."""
    with tempfile.TemporaryDirectory(prefix="maskwright-audit-") as work:
        sources, result = _open_sources(patterns, layout, text_column, letters, encoding)
        compared = "their ids" if tokenizer else "their text; with --tokenizer, by their ids"
        result.findings[REPEATED].prepare += f" (compared here by {compared})"
        return _Audit(runner or Runner(), work, tokenizer, cleaning or CleaningOptions(), sources, result).run()


@dataclass
class _Audit:
    runner: Runner
    folder: str
    tokenizer: str | None
    cleaning: CleaningOptions
    sources: Sources
    result: Audit

    def run(self) -> Audit:
        self.parts = split(self.runner, self.folder, cut([self.sources]))
        tokenizer = os.path.abspath(self.tokenizer) if self.tokenizer else None
        judge = Judge(self.cleaning, digest_of(self.cleaning.record()), Limits())
        judged = self._computed("audit", Examine(judge, tokenizer))
        paths = tuple(path for path, _ in judged)
        scripts = Counter[str]()
        for _, note in judged:
            _add_part(self.result, note)
            scripts.update(note["scripts"])
        self._count_repeated(paths)
        samples = [*islice(chain.from_iterable(part.open() for part in self.parts), SAMPLE_TEXTS)]
        add_samples(samples, self.result, self.tokenizer, self.sources)
        if self.cleaning.any:
            self._clean(judged)
        self.result.scripts = _shares(scripts)
        return self.result

    def _computed(self, phase: str, work: Any) -> list[tuple[str, Note]]:
        """The file of each part and its note."""
        digests = [digest_of(part.identity()) for part in self.parts]
        paths, sizes = paths_of(self.folder, phase, digests), [part.bytes for part in self.parts]
        notes = compute(self.runner, work, [*zip(self.parts, paths, strict=True)], phase, sizes)
        return [*zip(paths, notes, strict=True)]

    def _count_repeated(self, judged: tuple[str, ...]) -> None:
        repeat_paths = find_repeats(self.runner, self.folder, judged, (AS_READ,), self.result.documents, None)
        examples: list[str] = []
        for part in range(len(judged)):
            if len(examples) < EXAMPLES:
                document_idxs = np.sort(repeated_in(repeat_paths, part)["place"])[: EXAMPLES - len(examples)]
                examples += [self._location(judged, part, int(document_idx)) for document_idx in document_idxs]
        count = sum(Columns(path).note["repeated"] for path in repeat_paths)
        self.result.findings[REPEATED].add_all(count, examples)

    def _location(self, judged: Sequence[str], part: int, document_idx: int) -> str:
        columns = Columns(judged[part])
        name = self.parts[part].files[int(columns.column("file", document_idx, document_idx + 1)[0])]
        return redact(f"{name}:{int(columns.column('line', document_idx, document_idx + 1)[0])}")

    def _clean(self, judged: list[tuple[str, Note]]) -> None:
        paths = tuple(path for path, _ in judged)
        resolved = resolve(self.runner, self.folder, judged, self.parts, self.cleaning, Limits())
        reviews = self._computed("look", Review(self.cleaning, resolved))
        totals, examples, changes = DropTotals(), dict[str, list[str]](), Changes(self.cleaning)
        near = list[tuple[int, list[int]]]()
        for part, ((_, note), (_, review)) in enumerate(zip(judged, reviews, strict=True)):
            totals.add(note["names"], resolved.counts(part, len(note["names"])))
            near += [(part, pair) for pair in review["near"]]
            _add_examples(examples, note["examples"])
            changes.counts.update(review["changes"])
            _add_examples(changes.examples, review["examples"])
        for part, (document_idx, first_part, first) in near[:EXAMPLES]:
            document = next(islice(self.parts[part].open(), document_idx, None))
            detail = f"like {self._location(paths, first_part, first)}"
            _show(examples, NAMES[NEAR_DUPLICATE], document, document.text, detail)
        consequence = "leaves them out with the same options"
        counts = totals.by_cleaning().items()
        self.result.left_out = {name: Finding(count, consequence, examples.get(name, [])) for name, count in counts}
        self.result.changed = changes.findings()


# ---- one part ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Examine:
    """Pass 1 over a part: the judge's columns, the key of each document as it was read, its place (`file`, an index in
    the part, and `line`), and the findings in the note."""

    judge: Judge
    tokenizer: str | None
    """The tokenizer whose ids are compared; None to compare texts."""

    def __call__(self, task: tuple[Part, str]) -> Note:
        part, path = task
        with written(path) as writer:
            self._examine(part, writer)
        return writer.note

    def _examine(self, part: Part, writer: ColumnWriter) -> None:
        result, scripts = Audit(0, "", findings=new_findings()), Counter[str]()
        examples = dict[str, list[str]]()
        runs, places = KeyRuns(writer, AS_READ), [np.zeros((0, 2), "<u8")]
        file_idx = {name: index for index, name in enumerate(part.files)}
        for judged in self.judge.batches(part, writer, partial(_note_fault, result.findings)):
            for document in judged.documents:
                examine(document, result, scripts)
            for document, reason, detail in judged.dropped:
                _show(examples, reason, document, document.text, detail)
            runs.add(self._keys(judged.documents))
            here = [(file_idx[document.source], document.line) for document in judged.documents]
            places.append(np.array(here, "<u8"))
        runs.close()
        for column, numbers in zip(("file", "line"), np.concatenate(places).T, strict=True):
            writer.append(column, numbers)
        writer.note |= {"audit": asdict(result), "scripts": dict(scripts), "examples": examples}

    def _keys(self, documents: list[Document]) -> NDArray[np.uint64]:
        """[documents, 2]: dedup keys."""
        if self.tokenizer is None:
            return np.frombuffer(b"".join(text_key(document.utf8) for document in documents), "<u8").reshape(-1, 2)
        encoder = _encoder(self.tokenizer, read_vocabulary(self.tokenizer))
        ids, sizes = encoder.encode([document.text for document in documents])
        ends = np.cumsum(sizes)
        # A text without ids is no document, and so no duplicate.
        return np.where(sizes[:, None], document_keys(ids, ends - sizes, ends), np.uint64(0))


@lru_cache(maxsize=1)
def _encoder(tokenizer: str, vocabulary: Vocabulary) -> Encoder:
    """Cached for the process's next part while the tokenizer's files do not change."""
    return open_encoder(tokenizer)[0]


def _add_part(result: Audit, note: Note) -> None:
    """Adds a part's note. Parts come in the order of reading."""
    part = note["audit"]
    for name in ("documents", "characters", "bytes"):
        setattr(result, name, getattr(result, name) + part[name])
    if part["sentences"] is not None:
        result.sentences = (result.sentences or 0) + part["sentences"]
    shortest = [result.shortest_document_characters, part["shortest_document_characters"]]
    result.shortest_document_characters = min((length for length in shortest if length is not None), default=None)
    result.longest_document_characters = max(result.longest_document_characters, part["longest_document_characters"])
    result.findings["records without text"].add_all(*note["without_text"])
    for name, finding in part["findings"].items():
        result.findings[name].add_all(finding["count"], finding["examples"])


def _add_examples(examples: dict[str, list[str]], added: dict[str, list[str]]) -> None:
    for name, texts in added.items():
        examples[name] = [*examples.get(name, []), *texts][:EXAMPLES]


@dataclass(frozen=True)
class Review:
    """Pass 2 over a part: the changes of cleaning in kept documents, and the first near duplicates."""

    cleaning: CleaningOptions
    resolved: Resolved

    def __call__(self, task: tuple[Part, str]) -> Note:
        part, path = task
        changes, codes = Changes(self.cleaning), self.resolved.codes(part.number)
        for document_idx, document in enumerate(read(part.open())) if changes.kinds else ():
            if document_idx == len(codes):
                raise changed_while_read(document.source)
            if codes[document_idx] == KEEP:
                changes.add(document)
        with written(path) as writer:
            near = self._near(part.number, codes)
            writer.note = {"near": near, "changes": dict(changes.counts), "examples": changes.examples}
        return writer.note

    def _near(self, part: int, codes: NDArray[np.uint16]) -> list[list[int]]:
        """The first near duplicates: [index in the part, part and index of the earlier document that it resembles]."""
        rows = repeated_in(self.resolved.near, part)
        rows = np.sort(rows[codes[rows["place"]] == NEAR_DUPLICATE], order=["place", "part", "first"])
        _, begins = np.unique(rows["place"], return_index=True)
        return [list(map(int, row)) for row in rows[begins[:EXAMPLES]]]


def _open_sources(
    patterns: list[str], layout: Layout, text_column: str, letters: Letters, encoding: str
) -> tuple[Sources, Audit]:
    """The text, and an audit to which its faults are added while it is read. Faulty lines are not documents."""
    findings = new_findings()
    # `skip` reports every kind of fault and reads on.
    sources = Sources(
        patterns,
        layout=layout,
        text_column=text_column,
        on_bad_input="skip",
        on_fault=partial(_note_fault, findings),
        letters=letters,
        encoding=encoding,
    )
    for sentence in sources.notes:
        say(sentence)
    for name in sources.ignored_files:
        findings["files of another kind"].add(name)
    layout_used = sources.layout if sources.has_plain_text else "records"
    return sources, Audit(
        len(sources.files), layout_used, findings=findings, layouts=sources.guess.documents if sources.guess else {}
    )


def _note_fault(findings: dict[str, Finding], fault: Fault) -> None:
    names = {"encoding": "encoding faults", "record": "broken records", "empty_file": "empty files"}
    names["other_encoding"] = "files in another encoding"
    findings[names[fault.kind]].add(f"{fault.where}: {fault.what}")


def _shares(scripts: Counter[str]) -> dict[str, float]:
    letters = sum(scripts.values())
    return {name: round(count / letters, 4) for name, count in scripts.most_common(8)} if letters else {}


def add_samples(documents: list[Document], result: Audit, tokenizer: str | None, sources: Sources) -> None:
    """Adds the languages of sampled documents' beginnings, and with a tokenizer their tokens per word and the documents
    with unknown tokens. DNA and proteins have neither languages nor words."""
    texts = [document.text[:SAMPLE_CHARACTERS] for document in documents]
    is_language = not all(file_kind(name) in SEQUENCE_ENDINGS for name in sources.files)
    if extras.installed("py3langid"):
        from maskwright.text.cleaning.language import language_of

        languages = Counter(language_of(text)[0] for text in texts) if is_language else Counter[str]()
        result.languages = dict(languages.most_common())
    if tokenizer and texts:
        from maskwright.text.tokenizer import load_tokenizer
        from maskwright.text.tokenizer_faults import warn_of_faults

        warn_of_faults(tokenizer)
        loaded = load_tokenizer(tokenizer, special_tokens_are_text=True)
        warn_of_dropped_marks(tokenizer, loaded.normalizer, texts)
        found, sizes = _encoder(tokenizer, read_vocabulary(tokenizer)).encode(texts)
        ids = np.split(found, np.cumsum(sizes)[:-1])
        pairs = [(len(of_text), len(text.split())) for of_text, text in zip(ids, texts, strict=True)]
        if ratios := [count / words for count, words in pairs if is_language and words]:
            result.tokens_per_word = round(sum(ratios) / len(ratios), 3)
        _add_unknown(documents, texts, ids, result, tokenizer)


def _add_unknown(
    documents: list[Document], texts: list[str], ids: list[NDArray[Any]], result: Audit, tokenizer: str
) -> None:
    from maskwright.text.unknown import MOST, first_unknown

    unk = read_vocabulary(tokenizer).unk
    counts = [int(np.count_nonzero(of_text == unk)) for of_text in ids]
    unknown, tokens = sum(counts), sum(map(len, ids))
    what = "stops" if unknown > MOST * tokens else "keeps them, with a warning if they are many"
    finding = Finding(0, f"{what}: {unknown:,} of {tokens:,} tokens are unknown")
    for document, text, count in zip(documents, texts, counts, strict=True):
        if count:
            shown = first_unknown(tokenizer, text) if finding.count < EXAMPLES else None
            finding.add(f"{document.source}:{document.line}: {f'{shown.word} {shown.why}' if shown else ''}")
    result.findings[f"documents with unknown tokens, of the first {len(documents):,}"] = finding


def _show(examples: dict[str, list[str]], name: str, document: Document, text: str, detail: str = "") -> None:
    """Adds a document to the first examples of `name`, with the beginning of `text`."""
    if len(shown := examples.setdefault(name, [])) < EXAMPLES:
        where = redact(f"{document.source}:{document.line}") + (f" ({detail})" if detail else "")
        shown.append(f"{where}: {' '.join(text[:EXAMPLE_CHARACTERS].split())}")


class Changes:
    """Counts and examples of changes that cleaning makes in kept documents."""

    def __init__(self, cleaning: CleaningOptions) -> None:
        self.cleaning = cleaning
        self.kinds = [*cleaning.masked, *([C4_LINES] if "c4" in cleaning.filters else [])]
        self.counts = Counter[str]()
        self.examples: dict[str, list[str]] = {kind: [] for kind in self.kinds}

    def add(self, document: Document) -> None:
        apply_cleaning(
            document, self.cleaning, self.counts, lambda kind, what: _show(self.examples, kind, document, what)
        )

    def findings(self) -> dict[str, Finding]:
        names = dict(zip(("email", "ip", "phone"), ("email addresses", "IP addresses", "phone numbers"), strict=True))
        does = {C4_LINES: "leaves them out"}
        return {
            names.get(kind, kind): Finding(
                self.counts[kind], f"{does.get(kind, 'masks them')} with the same options", self.examples[kind]
            )
            for kind in self.kinds
        }


def examine(document: Document, result: Audit, scripts: Counter[str]) -> None:
    """Adds one document to the audit. Duplicates are counted later, over all parts."""
    text, where = document.text, f"{document.source}:{document.line}"
    result.documents += 1
    result.characters += len(text)
    result.bytes += len(document.utf8)
    if document.has_sentences:
        result.sentences = (result.sentences or 0) + len(document.parts)
    shortest = result.shortest_document_characters
    result.shortest_document_characters = len(text) if shortest is None else min(shortest, len(text))
    result.longest_document_characters = max(result.longest_document_characters, len(text))
    if kind := notation_of(document):
        name, shown = (SEPARATORS, where) if kind == SEPARATOR else (NOTATION, f"{where} ({kind})")
        result.findings[name].add(beginning_of(shown, text))
    if match := CONTROL.search(text):
        code = f"U+{ord(match.group()):04X}"
        result.findings["documents with control characters"].add(f"{where}: {code}")
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
    """The audit as text for a person."""
    lines = [
        f"documents: {human_count(result.documents)}, files: {result.files} ({LAYOUTS.get(result.layout, 'records')}), "
        f"{human_bytes(result.bytes)} of text, {human_count(result.characters)} characters"
    ]
    if result.documents < 300:  # of so few, 1 % is none in one corpus of twenty: 0.99^300 is 0.05
        fixes = ["add more text", *finer_layouts(result.layout, result.layouts, result.documents)]
        fixes.append(f"prepare with --valid-fraction {share_held_out(result.documents):.2g} or --valid-files FILE")
        lines.append(
            "warning: so few documents may leave none held out, and stop `data prepare`. Fix: " + ", or ".join(fixes)
        )
    if result.documents:
        lines.append(
            f"document length: {result.shortest_document_characters:,} to {result.longest_document_characters:,} "
            f"characters, mean {result.characters / result.documents:,.0f}"
        )
    if result.sentences is not None:
        lines.append(f"sentences: {human_count(result.sentences)}")
    scripts = ", ".join(f"{name} {share:.1%}" for name, share in result.scripts.items())
    lines.append(f"scripts: {scripts or 'none: no letters'}")
    if result.languages:
        shown = ", ".join(f"{name} {count:,}" for name, count in [*result.languages.items()][:8])
        lines.append(f"languages of the first {sum(result.languages.values()):,} documents: {shown}")
    if result.tokens_per_word:
        count = min(result.documents, SAMPLE_TEXTS)
        lines.append(f"tokens per word: {result.tokens_per_word:.2f}, the mean of the first {count:,} documents")
    for name, finding in result.findings.items():
        lines.append(f"{name}: {finding.count:,}" + (f"  -> prepare {finding.prepare}" if finding.count else ""))
        lines += [f"    {example}" for example in finding.examples]
    for name, finding in (*result.left_out_together().items(), *result.changed.items()):
        lines.append(
            f"cleaning ({name}): {finding.count:,}" + (f"  -> prepare {finding.prepare}" if finding.count else "")
        )
        lines += [f"    {example}" for example in finding.examples]
    return "\n".join(lines)
