"""`maskwright text audit`: what is in a corpus, and what `data prepare` will do about each oddity."""

from __future__ import annotations

import re
import tempfile
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from maskwright.core import extras
from maskwright.core.console import human_bytes, human_count, progress, say
from maskwright.core.secrets import redact
from maskwright.text.cleaning.language import STEP, together
from maskwright.text.compression import changed_while_read
from maskwright.text.dedup import Duplicates
from maskwright.text.document import Document, Fault
from maskwright.text.kept import Kept, kept_by
from maskwright.text.layout import LAYOUTS, Layout, share_held_out, smaller
from maskwright.text.records import SEQUENCE_ENDINGS, Letters
from maskwright.text.sources import Sources, file_kind

if TYPE_CHECKING:
    from maskwright.text.cleaning.steps import CleaningOptions
    from maskwright.text.cleaning.survey import Outcome

CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f]")
SPECIAL = re.compile(r"<s>|</s>|<pad>|<unk>|<mask>|<bos>|<eos>|\[(?:CLS|SEP|PAD|UNK|MASK)\]")
LONG_LINE_CHARACTERS = 100_000
EXAMPLES = 5
SCRIPT_SAMPLE_CHARACTERS = 400
SAMPLE_DOCUMENTS, SAMPLE_CHARACTERS = 2_000, 10_000
"""What languages and a tokenizer are looked at on: the beginnings of the first documents."""
EXAMPLE_CHARACTERS = 120
REPEATED = "exact duplicate documents"


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

    def add_all(self, count: int, examples: list[str]) -> None:
        """So many more, of which these are the first."""
        self.count += count
        self.examples = [*self.examples, *examples][:EXAMPLES]


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
    lengths: dict[int, int] = field(default_factory=dict)
    """Documents by characters: under n are those with n / 2 to n - 1, where n is a power of two."""
    languages: dict[str, int] = field(default_factory=dict)
    """Documents by language, of the first `SAMPLE_DOCUMENTS`; empty where py3langid is not installed."""
    tokens_per_word: dict[float, int] = field(default_factory=dict)
    """Documents by tokens per word, rounded to tenths, of the same; empty without a tokenizer."""
    layouts: dict[Layout, int] = field(default_factory=dict)
    """Documents that each layout would give in what was looked at to choose one; empty where none was chosen."""
    left_out: dict[str, Finding] = field(default_factory=dict)
    """What cleaning leaves out, by rule; each document under the first one that it breaks."""
    changed: dict[str, Finding] = field(default_factory=dict)
    """What cleaning changes in the documents that stay: personal data by kind, and lines that C4's rules leave out."""

    def left_out_together(self) -> dict[str, Finding]:
        """`left_out` with all languages as one."""
        found = {}
        for name, count in together({name: one.count for name, one in self.left_out.items()}).items():
            alike = name.startswith(STEP)
            ones = [one for rule, one in self.left_out.items() if (rule.startswith(STEP) if alike else rule == name)]
            found[name] = Finding(count, ones[0].prepare, [text for one in ones for text in one.examples][:EXAMPLES])
        return found


def new_findings() -> dict[str, Finding]:
    return {
        "encoding faults": Finding(0, "stops with file:line:column, unless --on-bad-input replace or skip"),
        "files in another encoding": Finding(0, "stops with the command that converts it, unless --on-bad-input skip"),
        "broken records": Finding(0, "stops with file:line, unless --on-bad-input skip"),
        "empty files": Finding(0, "stops, unless --on-bad-input skip"),
        "files of another kind": Finding(0, "leaves them out"),
        REPEATED: Finding(0, "keeps the first of each, unless --keep-duplicates"),
        "documents with control characters": Finding(0, "keeps them as they are: byte-level BPE can spell them"),
        "lines over 100,000 characters": Finding(0, "keeps them: long documents are cut into rows when training"),
        "documents with literal special tokens": Finding(0, "keeps them as text: they never become special ids"),
    }


def audit(
    patterns: list[str],
    *,
    layout: Layout = "auto",
    text_column: str = "text",
    tokenizer: str | None = None,
    cleaning: CleaningOptions | None = None,
    workers: int = 1,
    letters: Letters = "upper",
) -> Audit:
    """Reads every document once, and once more for `cleaning`, which `workers` processes do. Raises `SourceError` only
    where reading cannot go on (damaged archive, no column)."""
    sources, result = begun(patterns, layout, text_column, letters)
    kept = kept_by(tokenizer)
    duplicates, scripts, samples = Duplicates(), Counter[str](), list[str]()
    with progress("audit", sum(sources.sizes), "bytes") as bar:
        for document in sources:
            examine(document, result, scripts)
            if not duplicates.is_new(kept.key(document.utf8)):
                result.findings[REPEATED].add(f"{document.source}:{document.line}")
            if result.documents <= SAMPLE_DOCUMENTS:
                samples.append(document.text[:SAMPLE_CHARACTERS])
            bar.advance(sources.bytes_read - bar.done)
    look_at(samples, result, tokenizer, sources)
    if cleaning and cleaning.any:
        again = Sources(patterns, layout=sources.layout, text_column=text_column, on_bad_input="skip", letters=letters)
        _clean(again, cleaning, workers, result, kept)
    result.scripts = shares(scripts)
    return result


def begun(patterns: list[str], layout: Layout, text_column: str, letters: Letters) -> tuple[Sources, Audit]:
    """The text, and an audit that hears of its faults while it is read. Faulty lines are not among the documents."""
    findings = new_findings()
    # `skip` reports every kind of fault and reads on.
    sources = Sources(
        patterns,
        layout=layout,
        text_column=text_column,
        on_bad_input="skip",
        on_fault=partial(note_fault, findings),
        letters=letters,
    )
    if sources.guess is not None:
        say(str(sources.guess))
    for name in sources.ignored_files:
        findings["files of another kind"].add(name)
    layout_used = sources.layout if sources.has_plain_text else "records"
    return sources, Audit(
        len(sources.files), layout_used, findings=findings, layouts=sources.guess.documents if sources.guess else {}
    )


def note_fault(findings: dict[str, Finding], fault: Fault) -> None:
    named = {"encoding": "encoding faults", "record": "broken records", "empty_file": "empty files"}
    named["other_encoding"] = "files in another encoding"
    findings[named[fault.kind]].add(f"{fault.where}: {fault.what}")


def shares(scripts: Counter[str]) -> dict[str, float]:
    letters = sum(scripts.values())
    return {name: round(count / letters, 4) for name, count in scripts.most_common(8)} if letters else {}


def look_at(samples: list[str], result: Audit, tokenizer: str | None, sources: Sources) -> None:
    if all(file_kind(name) in SEQUENCE_ENDINGS for name in sources.files):
        samples = []  # DNA and proteins have neither languages nor words
    if extras.installed("py3langid"):
        from maskwright.text.cleaning.language import language_of

        result.languages = dict(Counter(language_of(text)[0] for text in samples).most_common())
    if tokenizer:
        from maskwright.text.tokenizer import load_tokenizer

        encoded = load_tokenizer(tokenizer, special_tokens_are_text=True).encode_batch_fast(
            samples, add_special_tokens=False
        )
        sizes = [
            round(len(one.ids) / count, 1)
            for one, text in zip(encoded, samples, strict=True)
            if (count := len(text.split()))
        ]
        result.tokens_per_word = dict(sorted(Counter(sizes).items()))


def _clean(sources: Sources, cleaning: CleaningOptions, workers: int, result: Audit, kept: Kept) -> None:
    from maskwright.text.cleaning.survey import NEAR_DUPLICATE, Limits, survey

    examples: dict[str, list[str]] = {}

    def note(document: Document, reason: str, detail: str) -> None:
        show(examples, reason, document, detail)

    with tempfile.TemporaryDirectory() as folder:
        outcome = survey([sources], cleaning, Limits(compared=kept), folder, "audit", workers=workers, on_left_out=note)
    pairs = outcome.near[:EXAMPLES]
    wanted = {number for pair in pairs for number in pair}
    places = _read_again(sources, cleaning, outcome, wanted, result)
    for later, earlier in pairs:
        first = places[earlier]
        show(examples, outcome.names[NEAR_DUPLICATE], places[later], f"like {redact(first.source)}:{first.line}")
    result.left_out = left_out(outcome.by_cleaning(), examples)


def show(examples: dict[str, list[str]], reason: str, document: Document, detail: str) -> None:
    """Adds a document that is left out to the first ones of its reason."""
    if len(shown := examples.setdefault(reason, [])) < EXAMPLES:
        where = redact(f"{document.source}:{document.line}") + (f" ({detail})" if detail else "")
        shown.append(f"{where}: {' '.join(document.text[:EXAMPLE_CHARACTERS].split())}")


def left_out(counts: dict[str, int], examples: dict[str, list[str]]) -> dict[str, Finding]:
    done = "leaves them out with the same options"
    return {name: Finding(count, done, examples.get(name, [])) for name, count in counts.items()}


def _read_again(
    sources: Sources, cleaning: CleaningOptions, outcome: Outcome, wanted: set[int], result: Audit
) -> dict[int, Document]:
    """The documents with the numbers `wanted`. Notes in `result` what changes in those that stay."""
    from maskwright.text.cleaning.survey import STAYS

    shown, places = Changes(cleaning), dict[int, Document]()
    for number, document in enumerate(sources) if wanted or shown.kinds else ():
        if number in wanted:
            places[number] = document
        if number == len(outcome.codes):
            raise changed_while_read(document.source)
        if shown.kinds and outcome.codes[number] == STAYS:
            shown.add(document)
        if not shown.kinds and number == max(wanted):
            break
    result.changed = shown.findings()
    return places


class Changes:
    """What cleaning changes in documents that stay."""

    def __init__(self, cleaning: CleaningOptions) -> None:
        from maskwright.text.cleaning.steps import C4_LINES

        self.cleaning = cleaning
        self.kinds = [*cleaning.masked, *([C4_LINES] if "c4" in cleaning.filters else [])]
        self.counts = Counter[str]()
        self.examples: dict[str, list[str]] = {kind: [] for kind in self.kinds}

    def add(self, document: Document) -> None:
        from maskwright.text.cleaning.steps import changed

        where = redact(f"{document.source}:{document.line}")

        def note(kind: str, what: str) -> None:
            if len(self.examples[kind]) < EXAMPLES:
                self.examples[kind].append(f"{where}: {' '.join(what[:EXAMPLE_CHARACTERS].split())}")

        changed(document, self.cleaning, self.counts, note)

    def findings(self) -> dict[str, Finding]:
        names = dict(zip(("email", "ip", "phone"), ("email addresses", "IP addresses", "phone numbers"), strict=True))
        masks, lines = "masks them with the same options", "leaves them out with the same options"
        return {
            names.get(kind, kind): Finding(self.counts[kind], masks if kind in names else lines, self.examples[kind])
            for kind in self.kinds
        }


def examine(document: Document, result: Audit, scripts: Counter[str]) -> None:
    """Counts all but whether the document is there twice."""
    text, where = document.text, f"{document.source}:{document.line}"
    result.documents += 1
    result.characters += len(text)
    result.bytes += len(document.utf8)
    if document.has_sentences:
        result.sentences = (result.sentences or 0) + len(document.parts)
    shortest = result.shortest_document_characters
    result.shortest_document_characters = len(text) if shortest is None else min(shortest, len(text))
    size = 1 << len(text).bit_length()
    result.lengths[size] = result.lengths.get(size, 0) + 1
    result.longest_document_characters = max(result.longest_document_characters, len(text))
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
        fixes = ["take more text", *smaller(result.layout, result.layouts, result.documents)]
        fixes.append(f"prepare with --valid-fraction {share_held_out(result.documents):.2g}")
        lines.append(
            "warning: so few documents may leave none held out, and `data prepare` then stops: " + ", or ".join(fixes)
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
        count = sum(result.tokens_per_word.values())
        mean = sum(value * number for value, number in result.tokens_per_word.items()) / count
        lines.append(f"tokens per word: {mean:.2f}, the mean of the first {count:,} documents")
    for name, finding in result.findings.items():
        lines.append(f"{name}: {finding.count:,}" + (f"  -> prepare {finding.prepare}" if finding.count else ""))
        lines += [f"    {example}" for example in finding.examples]
    for name, finding in (*result.left_out_together().items(), *result.changed.items()):
        lines.append(
            f"cleaning ({name}): {finding.count:,}" + (f"  -> prepare {finding.prepare}" if finding.count else "")
        )
        lines += [f"    {example}" for example in finding.examples]
    return "\n".join(lines)
