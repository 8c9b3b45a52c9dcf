"""Sequences to masked examples and to epochs on disk, whose files `data.foreign.pregenerated` describes."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.config.masking import Masking
from maskwright.core import storage
from maskwright.data.batch import Int32
from maskwright.data.foreign.pregenerated import KEYS, RECORD, epochs_of
from maskwright.data.masking import LONGEST_GROUP_TOKENS, Masker, mask_rows
from maskwright.data.pregenerate.sequences import PregenerateOptions, Unmasked
from maskwright.text.parts.columns import Columns, Note
from maskwright.text.vocabulary import read_vocabulary, token_strings


class EpochWriter:
    """Masks sequences and writes epochs of them, with one tokenizer."""

    def __init__(self, tokenizer: str, options: PregenerateOptions) -> None:
        self.words, self.options = read_vocabulary(tokenizer), options
        self.masker = Masker.of(self.words)
        self.token_strings = token_strings(tokenizer)

    def masked(self, sequences: Sequence[Unmasked], epoch: int) -> tuple[Int32, NDArray[np.bool_]]:
        """([M, T] ids with masks, [M, T] whether each is a prediction). Each sequence has its number of predictions, on
        average for whole words, but never more than `max_predictions_per_seq`; a sequence that would have none gets a
        word if one fits."""
        limit, M, T = self.options.max_predictions_per_seq, len(sequences), self.options.max_seq_len
        first_segment, rows, predictions = (
            np.array([getattr(sequence, name) for sequence in sequences])
            for name in ("first_segment", "row", "predictions")
        )
        is_text = np.arange(T) < np.array([len(sequence.ids) for sequence in sequences])[:, None]
        ids = np.full((M, T), self.words.pad, np.int32)
        ids[is_text] = np.concatenate([sequence.ids for sequence in sequences])
        segments = np.where(is_text, 1 + (np.arange(T) >= first_segment[:, None]), 0).astype(np.int32)
        masking = Masking(kind="whole_word" if self.options.do_whole_word_mask else "token")
        slots = min(T, limit + LONGEST_GROUP_TOKENS[masking.kind])
        shown, is_predicted, budgets = ids.copy(), np.zeros((M, T), bool), np.minimum(predictions, limit)

        def mask(row_idx: NDArray[np.intp]) -> None:
            row_arrays = {"epochs": np.full(len(row_idx), epoch), "rows": rows[row_idx], "budgets": budgets[row_idx]}
            masked, index, _, weights = mask_rows(
                self.masker, ids[row_idx], segments[row_idx], masking, seed=self.options.seed, slots=slots, **row_arrays
            )
            is_prediction = np.zeros(masked.size, bool)
            is_prediction[index[weights > 0]] = True
            shown[row_idx], is_predicted[row_idx] = masked, is_prediction.reshape(masked.shape)

        mask(np.arange(M))
        while len(row_idx := np.flatnonzero(~is_predicted.any(1) & (budgets < limit))):
            budgets[row_idx] += 1
            mask(row_idx)
        while len(row_idx := np.flatnonzero(is_predicted.sum(1) > limit)):  # by the word that crosses the budget
            budgets[row_idx] -= 1
            mask(row_idx)
        return shown, is_predicted

    def lines(self, sequences: Sequence[Unmasked], epoch: int) -> bytes:
        """The sequences' examples in JSON, a line each."""
        shown, is_predicted = self.masked(sequences, epoch)
        lines = []
        for sequence, row, is_prediction in zip(sequences, shown, is_predicted, strict=True):
            length, positions = len(sequence.ids), np.flatnonzero(is_prediction)
            tokens, labels = (
                [self.token_strings[index] for index in ids.tolist()] for ids in (row[:length], sequence.ids[positions])
            )
            segment_ids = [0] * sequence.first_segment + [1] * (length - sequence.first_segment)
            values = (tokens, segment_ids, bool(sequence.random_next), positions.tolist(), labels)
            lines.append(json.dumps(dict(zip(KEYS, values, strict=True))))
        return "\n".join([*lines, ""]).encode()

    def write_epoch(self, folder: str, epoch: int, parts: Sequence[str], notes: Sequence[Note]) -> int:
        """Joins the parts into `epoch_N.json`, deletes them, and returns the number of examples, by the notes. The
        metrics file comes last and completes the epoch."""
        path = os.path.join(folder, f"epoch_{epoch}")
        with storage.atomic_writer(f"{path}.json") as file:
            for piece in (piece for part in parts for piece in Columns(part).pieces("lines")):
                file.write(piece.data)
        metrics = {
            "num_training_examples": sum(note["examples"] for note in notes),
            "max_seq_len": self.options.max_seq_len,
        }
        with storage.atomic_writer(f"{path}_metrics.json") as file:
            file.write(json.dumps(metrics).encode())
        for part in parts:
            os.unlink(part)
        return metrics["num_training_examples"]


def finish(folder: str, record: dict[str, Any]) -> None:
    """Writes the record of a complete folder, and deletes what killed processes left in it."""
    for name in filter(storage.is_temporary, os.listdir(folder)):
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))
    sums = {os.path.basename(path).removesuffix(".json"): storage.sha256_of_file(path) for path in epochs_of(folder)}
    versions = {"maskwright": importlib.metadata.version("maskwright"), "numpy": np.__version__}
    storage.write_json(os.path.join(folder, RECORD), {**record, "versions": versions, "sha256": sums, "finished": True})
