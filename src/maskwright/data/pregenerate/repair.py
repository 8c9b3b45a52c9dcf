"""`maskwright data pregenerate --repair`: corrects the masks of another script's examples.

Labels give the text back. All masks of an example are drawn anew, about as many as it had: with the tokenizer's own
mask, ordinary tokens as replacements, no special tokens as labels, and whole words if asked for. Appended text of
another document stays, since nothing marks its begin.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from dataclasses import dataclass

import numpy as np

from maskwright.core import storage
from maskwright.core.errors import InputError, StoreError
from maskwright.data.foreign.pregenerated import TOKENIZER, Reader, epochs_of, read_metrics
from maskwright.data.foreign.static_masks import findings
from maskwright.data.pregenerate.generate import PARTS
from maskwright.data.pregenerate.sequences import PregenerateOptions, Unmasked
from maskwright.data.pregenerate.write import EpochWriter, finish
from maskwright.processes.runner import Runner
from maskwright.text.parts.columns import Note, written
from maskwright.text.parts.phase import compute, fault_note
from maskwright.text.tokenizer import copy_tokenizer
from maskwright.text.vocabulary import token_ids

LOCK = "pregenerate.lock"


@dataclass(frozen=True)
class RepairEpoch:
    """Writes the repaired examples of an epoch. The note has their number, and the findings before and after."""

    source: str
    tokenizer: str
    options: PregenerateOptions

    def __call__(self, task: tuple[int, str]) -> Note:
        try:
            return self._repair(*task)
        except InputError as error:
            return fault_note(error)

    def _repair(self, epoch: int, path: str) -> Note:
        writer = EpochWriter(self.tokenizer, self.options)
        reader = Reader(self.source, writer.words, token_ids(self.tokenizer))
        before, after, count = Counter[str](), Counter[str](), 0
        with written(path) as file:
            for examples, is_unknown in reader.examples(epoch):
                texts = np.split(examples.text(), examples.begins[1:])
                rows = count + np.arange(len(texts))
                columns = (examples.first_segment, examples.random_next, rows, examples.predictions)
                unmasked = [Unmasked(*row) for row in zip(texts, *(column.tolist() for column in columns), strict=True)]
                repaired = writer.masked(unmasked, int(examples.lengths.max()), int(examples.predictions.max()), epoch)
                before.update(findings(examples, is_unknown, writer.masker, writer.words))
                is_unknown[examples.places] = False  # the others stay
                after.update(findings(repaired, is_unknown, writer.masker, writer.words))
                writer.append(file, repaired)
                count += len(texts)
            file.note = {"examples": count, "before": before, "after": after}
        return file.note


def repair(
    source: str, tokenizer: str, folder: str, options: PregenerateOptions, *, workers: int = 1
) -> tuple[Counter[str], Counter[str]]:
    """Writes the repaired epochs. Returns the findings before and after. `options`: of which the seed, the format and
    whole words count. Raises `InputError` for a folder that is not empty, `StoreError` for another kind of source."""
    paths, parts = epochs_of(source), os.path.join(folder, PARTS)
    if binary := [path for path in paths if not path.endswith(".json")]:
        raise StoreError("is maskwright's own, which needs no repair", where=binary[0], fix="train from it as it is")
    with storage.new_folder(folder), storage.locked(os.path.join(folder, LOCK), remove=True), Runner(workers) as runner:
        if [name for name in os.listdir(folder) if name != LOCK]:
            raise InputError("is not empty", where=folder, fix="choose another folder")
        storage.make_folder(parts)
        writer = EpochWriter(tokenizer, options)
        try:
            tasks = [(epoch, os.path.join(parts, str(epoch))) for epoch in range(len(paths))]
            work, sizes = RepairEpoch(source, tokenizer, options), [*map(os.path.getsize, paths)]
            notes = compute(runner, work, tasks, "repair", sizes)
            for (epoch, path), note in zip(tasks, notes, strict=True):
                writer.write_epoch(folder, epoch, [path], [note], read_metrics(source, epoch)[1])
        finally:
            shutil.rmtree(parts, ignore_errors=True)
        copy_tokenizer(tokenizer, os.path.join(folder, TOKENIZER))
        repaired = {"do_whole_word_mask": options.do_whole_word_mask, "seed": options.seed}
        sources = [{"location": path} for path in paths]
        finish(folder, {"tokenizer": writer.words.fingerprint, "repaired": repaired, "sources": sources})
    before, after = (sum((Counter(note[name]) for note in notes), Counter[str]()) for name in ("before", "after"))
    return before, after
