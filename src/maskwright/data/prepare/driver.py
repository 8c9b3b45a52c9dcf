"""Phases of `data prepare`, each computed part by part, by one process or many machines:

    cut      large files    where documents end, so that a file is several parts
    encode   each part      its shards, the keys of its documents' ids, its files' checksums
    find     key ranges     repeats of ids, over all parts
    finish   some parts     parts with repeats, written again without them

Then the shards of all parts get their final names. With cleaning a part is read twice, as duplicates of cleaned text
are dropped before they are encoded: `judge` (drop codes, keys of the text, checksums) and `find` come first. The cuts
follow from the text alone, so the bytes of the store do not depend on the machines.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

import numpy as np

from maskwright import __version__
from maskwright.core import extras
from maskwright.core.console import human_bytes, progress, say, several, warn
from maskwright.core.splits import are_apart, splits_of
from maskwright.data import passages, store
from maskwright.data.prepare.encode import SAMPLE_CHARACTERS, SAMPLE_DOCUMENTS, Encode, EncodeCleaned, Target, tools
from maskwright.data.prepare.folder import PARTS, VERSION, finish_once, held, is_finished, remove_parts
from maskwright.data.prepare.request import PrepareCounts, Request
from maskwright.data.prepare.shards import Form, give_names, without_repeats
from maskwright.processes.runner import Runner
from maskwright.text.cleaning.limits import DUPLICATE, KEEP, NAMES, TOO_LONG, TOO_SHORT, DropTotals
from maskwright.text.cleaning.steps import CleaningOptions, apply_cleaning
from maskwright.text.document import Fault
from maskwright.text.encoder import verified
from maskwright.text.marks import warn_of_dropped_marks
from maskwright.text.notation import KMERS, OVERLAP, together, warn_of_notations, without_effect
from maskwright.text.parts.columns import Note
from maskwright.text.parts.cut import Part, cut, digest_of, split
from maskwright.text.parts.duplicates import IDS, Resolved, are_searched, find_exact, repeated_counts, resolve
from maskwright.text.parts.judge import Judge
from maskwright.text.parts.phase import compute, paths_of
from maskwright.text.sequences import misread
from maskwright.text.sources import say_without_text
from maskwright.text.spacing import spacing_of
from maskwright.text.tokenizer import load_tokenizer
from maskwright.text.tokenizer_faults import warn_of_faults
from maskwright.text.unknown import MANY, require_known
from maskwright.text.vocabulary import read_vocabulary, token_strings

MANY_PASSAGES, SAMPLE_TOKENS = 0.25, 256  # 0.09 of docstrings are shared, 0.5 to 1 of overlapping windows
Computed = Sequence[tuple[str, Note]]
"""(file, note) of each part."""


def prepare(request: Request, runner: Runner | None = None) -> store.TokenStore:
    """Writes the store and returns it opened; a finished store is checked. `runner`: None for this process. The same
    call in other processes, on this machine or others that see the folder, shares the work.

    Raises `InputError` (exit 2) for bad text, with the first error in the order of reading, and for a folder with other
    content. Finished parts stay, and the same call continues from them."""
    return _Preparation(request, runner or Runner()).run()


class _Preparation:
    def __init__(self, request: Request, runner: Runner) -> None:
        self.request, self.runner = request, runner
        self.folder = os.path.abspath(request.folder)
        self.work = os.path.join(self.folder, PARTS)
        self.parts = cut(request.all_sources, request.held_out)
        self.cleaning = request.cleaning or CleaningOptions()
        _ = request.file_number  # raises for a file on both sides

    def run(self) -> store.TokenStore:
        if is_finished(self.folder):
            return self._finished()
        files = [name for sources in self.request.all_sources for name in sources.files]
        with held(self.request.folder, self.runner, files, self._digest()):
            if is_finished(self.folder):  # another process has finished it just now
                return self._finished()
            warn_of_faults(self.request.tokenizer)
            self._say_spacing()
            self.parts = split(self.runner, self.work, self.parts)
            words = load_tokenizer(self.request.tokenizer, special_tokens_are_text=True, adds_spaces=False)
            warn_of_dropped_marks(self.request.tokenizer, words.normalizer, self._texts())
            besides = without_effect(read_vocabulary(self.request.tokenizer).kind, words.normalizer)
            if spacing_of(self.request.tokenizer):  # said of the tokenizer
                besides.add(KMERS)
            self._warn_of_disk()
            self._warn_of_other_splits()
            if self.request.cleaning:
                judged = self._judge()
                self.encoder = self._verified(self._kept(self._resolve(judged)))
                encoded = self._encode_cleaned(judged)
            else:
                self.encoder = self._verified(self._texts())
                judged = encoded = self._encode()
            warned = self._say_of_records(judged, besides)
            self._judge_unknown(encoded)
            self._write(judged, encoded, OVERLAP in warned)
        remove_parts(self.folder)
        return store.TokenStore(self.request.folder)

    def _finished(self) -> store.TokenStore:
        """The finished store. Raises `InputError` if it has other text or options."""
        sizes = dict(enumerate(self._sizes()))
        with progress("hash", sum(sizes.values()), "bytes") as bar:
            files = dict(self.runner.run(Part.records, enumerate(self.parts), sizes, bar))
        origin = self._origin([files[part_idx] for part_idx in range(len(self.parts))])
        finished = self.request.writer(origin).finished()
        assert finished is not None
        remove_parts(self.folder)
        return finished

    def _origin(self, records: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """The files' records in the manifest's order: held-out files last."""
        ordered = sorted(zip(self.parts, records, strict=True), key=lambda pair: pair[0].held_out)
        return [record for _, of_part in ordered for record in of_part]

    def _texts(self) -> Iterator[str]:
        return (document.text for part in self.parts for document in part.open())

    def _sizes(self) -> list[int]:
        return [part.bytes for part in self.parts]

    def _warn_of_disk(self) -> None:
        """Warns if the disk has less room than the store may take."""
        # A token stands for about 4 bytes of text and takes 2 or 4. Ends and keys take up to 0.3 bytes for each.
        width = np.dtype(store.token_dtype(read_vocabulary(self.request.tokenizer).size)).itemsize
        needed, free = sum(self._sizes()) * (width / 4 + 0.3), shutil.disk_usage(self.folder).free
        if needed > free:
            line = f"about {human_bytes(needed)} of disk are needed for the store, but {human_bytes(free)} are free"
            warn(f"{line} at {self.request.folder}")

    def _warn_of_other_splits(self) -> None:
        """Warns that files with names of validation or test, next to files for training, are all trained on."""
        splits = splits_of(self.request.sources.files)
        others = [name for name, split in splits.items() if split in ("validation", "test")]
        if are_apart([*splits.values()]):
            named = f"{len(others):,} of {several(len(splits), 'file')}, the first {others[0]}"
            warn(
                f"named for validation or test: {named}. Their text goes into training like the "
                "others. To leave it out, name the training files alone; to hold files out, use --valid-files"
            )

    def _judge_unknown(self, encoded: Computed) -> None:
        """Prints how many tokens are unknown and why, as a warning if they are many. Repeats of documents in other
        parts are included. Raises `StoreError` if most tokens are unknown."""
        unknown, tokens = (sum(note[name] for _, note in encoded) for name in ("unknown", "tokens"))
        if not unknown:
            return
        where, word, why, fix = next(note["first_unknown"] for _, note in encoded if note["first_unknown"])
        example = f"{word} at {where} {why}"
        require_known(unknown, tokens, self.request.tokenizer, example, fix)
        line = f"{unknown:,} of {tokens:,} tokens are unknown to the tokenizer; {example}"
        if unknown >= MANY * tokens:
            warn(f"{line}: {fix}")
        else:
            say(line)

    def _say_spacing(self) -> None:
        """Notes that sequences get spaces, and the effect of overlapping k-mers."""
        tokenizer = self.request.tokenizer
        if spacing := spacing_of(tokenizer):
            say(f"{tokenizer}: has {spacing}, so it gets sequences with spaces between them")
            if spacing.k > 1:
                line = "overlapping k-mers reveal a masked token in their neighbours, so that masks teach little"
                say(f"{line}. For tokens without overlap: `maskwright tokenizer train --kind kmer`")

    def _say_of_records(self, judged: Computed, besides: set[str]) -> list[str]:
        """Prints how many records have no text and how many are data or markup, for the training text and the held-out
        text. Returns the notations that it warned of."""
        warned = list[str]()
        for sources in self.request.all_sources:
            notes = [
                note
                for part, (_, note) in zip(self.parts, judged, strict=True)
                if part.held_out == (sources is self.request.held_out)
            ]
            say_without_text(
                sources,
                sum(note["documents"] for note in notes),
                sum(note["without_text"][0] for note in notes),
                next((place for note in notes for place in note["without_text"][1]), ""),
            )
            noted, documents = together(note["notations"] for note in notes), sum(note["documents"] for note in notes)
            # Without a share, whole files are held out, or nothing.
            apart = set[str]() if self.request.options.valid_fraction else {OVERLAP}
            warned += warn_of_notations(documents, noted, besides | apart)
        return warned

    # ---- the phases ------------------------------------------------------------------------------------------

    def _judge(self) -> Computed:
        limits, record = self.request.limits, self.request.cleaning_record
        digests = [digest_of(VERSION, part.identity(), record, asdict(limits)) for part in self.parts]
        return self._computed("judge", Judge(self.cleaning, digest_of(record), limits), self.parts, digests)

    def _resolve(self, judged: Computed) -> Resolved:
        self.resolved = resolve(self.runner, self.work, judged, self.parts, self.cleaning, self.request.limits)
        return self.resolved

    def _encode_cleaned(self, judged: Computed) -> Computed:
        everything = digest_of([os.path.basename(path) for path, _ in judged])
        digests = [digest_of(everything, self._decided(), part.number) for part in self.parts]
        work = EncodeCleaned(self.resolved, self.cleaning, self._target())
        return self._computed("encode", work, self._numbered(), digests)

    def _encode(self) -> Computed:
        limits = self.request.limits
        decided = [VERSION, asdict(limits), self._decided()]
        digests = [digest_of(part.identity(), self.request.file_number[part.files[0]], decided) for part in self.parts]
        return self._computed("encode", Encode(limits, self._target()), self._numbered(), digests)

    def _computed(self, phase: str, work: Any, tasks: Sequence[Any], digests: Sequence[str]) -> Computed:
        paths = paths_of(self.work, phase, digests)
        if done := sum(map(os.path.exists, paths)):
            say(f"continuing with {done:,} of {len(paths):,} parts {phase}d")
        notes = compute(self.runner, work, [*zip(tasks, paths, strict=True)], phase, self._sizes())
        for part, note in zip(self.parts, notes, strict=True):
            sources = self.request.held_out if part.held_out else self.request.sources
            assert sources is not None
            for fault in note.get("faults", ()):
                sources.report(Fault(*fault))
        return [*zip(paths, notes, strict=True)]

    def _numbered(self) -> list[tuple[Part, int]]:
        """(part, number of its first file)"""
        return [(part, self.request.file_number[part.files[0]]) for part in self.parts]

    def _digest(self) -> str:
        """Digest of everything that decides the parts' files. Commands share the work if their digests are equal."""
        request, installed = self.request, [extras.installed(name) for name in ("gigatoken", "tokenizers")]
        identities = [part.identity() for part in self.parts]
        words = read_vocabulary(request.tokenizer)
        vocabulary = [words.fingerprint, words.rules_record]
        options = [asdict(request.options), request.cleaning_record, request.encoder]
        return digest_of(__version__, VERSION, identities, vocabulary, options, installed)

    def _decided(self) -> list[Any]:
        """JSON values that decide the ids, splits and shards of kept documents."""
        vocabulary, keyed = read_vocabulary(self.request.tokenizer), are_searched(self.parts, self.request.limits)
        decided = [
            vocabulary.fingerprint,
            self.request.options.valid_fraction,
            keyed,
            asdict(self._form()),
            self.encoder,
        ]
        return [*decided, *vocabulary.rules_record.values()]

    def _form(self) -> Form:
        dtype = store.token_dtype(read_vocabulary(self.request.tokenizer).size)
        return Form(dtype, self.request.with_sentences, self.request.options.shard_tokens)

    def _target(self) -> Target:
        request = self.request
        names = os.path.abspath(request.tokenizer), request.tokenizer, request.encoder, self.encoder
        keyed = are_searched(self.parts, request.limits)
        return Target(*names, request.options.valid_fraction, keyed, self._form())

    def _verified(self, texts: Iterator[str]) -> str:
        """The name of the encoder for all parts: the fast one if its ids equal the reference encoder's."""
        request = self.request
        encoders, _, _ = tools(os.path.abspath(request.tokenizer), request.encoder)
        referee = encoders["tokenizers"]
        fast = next((encoder for encoder in encoders.values() if encoder is not referee), None)
        if fast is None:
            return referee.name
        samples = [text[:SAMPLE_CHARACTERS] for text in islice(texts, SAMPLE_DOCUMENTS)]
        return verified(fast, referee, samples, request.tokenizer, request.encoder).name

    def _kept(self, resolved: Resolved) -> Iterator[str]:
        for part in self.parts:
            codes = resolved.codes(part.number)
            if (codes == KEEP).any():
                for document, code in zip(part.open(), codes, strict=False):
                    if code == KEEP:
                        yield apply_cleaning(document, self.cleaning, Counter()).text

    def _write(self, judged: Computed, encoded: Computed, is_overlap_known: bool) -> None:
        origin = self._origin([note["files"] for _, note in judged])
        writer = self.request.writer(origin)
        paths, documents = tuple(path for path, _ in encoded), sum(note["encoded"] for _, note in encoded)
        repeats = find_exact(self.runner, self.work, paths, IDS, documents, self.parts, self.request.limits)
        notes = without_repeats(self.runner, self.work, encoded, repeats, self._form())
        for part in self.parts:
            part.require_unchanged()
        counts = self._counts(judged, encoded, int(repeated_counts(repeats, len(paths)).sum()))

        def finish() -> None:
            give_names(writer, self.work, notes, self._form())
            self.request.finish(writer, counts, self.encoder)
            finished = store.TokenStore(self.request.folder)
            _warn_of_letters(finished)
            if not is_overlap_known:
                _warn_of_passages(finished, self.request.held_out is not None)

        finish_once(self.folder, self.runner, finish)

    def _counts(self, judged: Computed, encoded: Computed, repeats: int) -> PrepareCounts:
        """`repeats`: documents that were dropped for their ids."""
        totals, changes = DropTotals(), Counter[str]()
        for part, ((_, note), (_, end)) in enumerate(zip(judged, encoded, strict=True)):
            if self.request.cleaning:
                totals.add(note["names"], self.resolved.counts(part, len(note["names"])))
            else:
                totals.add(NAMES, note["dropped"])
            changes.update(end.get("changes", {}))
        empty = sum(note["empty"] for _, note in encoded)
        return PrepareCounts(
            read=totals.documents,
            kept=totals.of(KEEP) - empty - repeats,
            empty=empty,
            without_text=sum(note["without_text"][0] for _, note in judged),
            duplicates=totals.of(DUPLICATE) + repeats,
            too_short=totals.of(TOO_SHORT),
            too_long=totals.of(TOO_LONG),
            left_out=totals.by_cleaning() if self.request.cleaning else {},
            changed=dict(sorted(changes.items())),
        )


def _warn_of_letters(finished: store.TokenStore) -> None:
    """Warns if a tokenizer of letters reads sequences of another kind, by the beginnings of documents."""
    names = token_strings(finished.tokenizer_folder)
    sides = [finished.split("train").sampled(), finished.split("valid").sampled()]
    sample = [
        ids for side in sides for ids in side.beginnings(SAMPLE_TOKENS, max(1, side.documents // SAMPLE_DOCUMENTS))
    ]
    ids, counts = np.unique(np.concatenate([np.zeros(0, np.int32), *sample]), return_counts=True)
    counted = Counter(dict(zip([names[index] for index in ids], counts.tolist(), strict=True)))
    if wrong := misread(finished.tokenizer_folder, counted):
        warn(f"{finished.location}: {wrong}")


def _warn_of_passages(finished: store.TokenStore, are_files: bool) -> None:
    """Warns if much of the held-out text is trained on too, in documents that are not equal. `are_files`: the held-out
    text is of files of its own."""
    if (share := passages.also_trained_on(finished)) > MANY_PASSAGES:
        hold_out = "name other files as --valid-files" if are_files else "hold files out with --valid-files"
        warn(
            f"{share:.0%} of the held-out passages of {passages.PASSAGE} tokens are in the training text too, as in "
            "windows that overlap, near copies or boilerplate, so that the held-out loss is lower than on new text: "
            f"cut without overlap, leave copies out with --near-duplicates 0.8, or {hold_out}"
        )
