"""Sequences to masked examples and to epochs on disk, whose files `data.foreign.pregenerated` describes."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.config.masking import Masking
from maskwright.core import storage
from maskwright.data.foreign.pregenerated import KEYS, RECORD, epochs_of, sha256_of_epoch
from maskwright.data.foreign.static_masks import ARRAYS, StaticMasks
from maskwright.data.masking import LONGEST_GROUP_TOKENS, Masker, mask_rows
from maskwright.data.pregenerate.sequences import PregenerateOptions, Unmasked
from maskwright.data.store import token_dtype
from maskwright.text.parts.columns import Columns, ColumnWriter, Note
from maskwright.text.vocabulary import read_vocabulary, token_strings


class EpochWriter:
    """Masks sequences and writes epochs of them, with one tokenizer."""

    def __init__(self, tokenizer: str, options: PregenerateOptions) -> None:
        self.words, self.options = read_vocabulary(tokenizer), options
        self.masker = Masker.of(self.words)
        self.token_strings = token_strings(tokenizer)
        ids = np.dtype(token_dtype(self.words.size)).newbyteorder("<").str
        small = {"random_next": "|u1", "positions": "<u2", "predictions": "<u2", "tokens": ids, "labels": ids}
        self.dtypes = dict.fromkeys(ARRAYS, "<u4") | small

    def masked(self, sequences: Sequence[Unmasked], longest: int, limit: int, epoch: int) -> StaticMasks:
        """Masks each sequence with its number of predictions, on average for whole words. No sequence has more than
        `limit`, and one that would have none gets a word if one fits. `longest`: a bound of the sequences' tokens."""
        lengths, first_segment, random_next, rows, predictions = (
            np.array(column) for column in zip(*((len(ids), *rest) for ids, *rest in sequences), strict=True)
        )
        M, T = len(sequences), longest
        is_text = np.arange(T) < lengths[:, None]
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
        positions, counts = np.nonzero(is_predicted)[1], is_predicted.sum(1)
        return StaticMasks(shown[is_text], lengths, first_segment, random_next, positions, ids[is_predicted], counts)

    def append(self, file: ColumnWriter, examples: StaticMasks) -> None:
        """Adds examples to a part of an epoch."""
        if self.options.format == "json":
            file.append("lines", np.frombuffer(self._lines(examples), np.uint8))
        else:
            for name, dtype in self.dtypes.items():
                file.append(name, getattr(examples, name).astype(dtype))

    def _lines(self, examples: StaticMasks) -> bytes:
        lines, begin, first = [], 0, 0
        tokens, labels = (
            [self.token_strings[index] for index in ids.tolist()] for ids in (examples.tokens, examples.labels)
        )
        columns = (examples.lengths, examples.first_segment, examples.random_next > 0, examples.predictions)
        for length, first_segment, random_next, count in zip(*(column.tolist() for column in columns), strict=True):
            end, last = begin + length, first + count
            segment_ids = [0] * first_segment + [1] * (length - first_segment)
            positions = examples.positions[first:last].tolist()
            values = (tokens[begin:end], segment_ids, random_next, positions, labels[first:last])
            lines.append(json.dumps(dict(zip(KEYS, values, strict=True))))
            begin, first = end, last
        return "\n".join([*lines, ""]).encode()

    def write_epoch(self, folder: str, epoch: int, parts: Sequence[str], notes: Sequence[Note], longest: int) -> int:
        """Joins the parts into `epoch_N.json` or `epoch_N/`, deletes them, and returns the number of examples, by the
        notes. The metrics file comes last: with it, the epoch is complete."""
        path, columns = os.path.join(folder, f"epoch_{epoch}"), [*map(Columns, parts)]
        if self.options.format == "json":
            _join(columns, "lines", f"{path}.json", b"")
        else:
            temporary = f"{parts[0]}-arrays"
            storage.make_folder(temporary)
            for name, dtype in self.dtypes.items():
                head = {"descr": dtype, "fortran_order": False, "shape": (sum(part.count(name) for part in columns),)}
                np.lib.format.write_array_header_1_0(header := io.BytesIO(), head)
                _join(columns, name, os.path.join(temporary, f"{name}.npy"), header.getvalue())
            shutil.rmtree(path, ignore_errors=True)
            os.rename(temporary, path)
        examples = sum(note["examples"] for note in notes)
        with storage.atomic_writer(f"{path}_metrics.json") as file:
            file.write(json.dumps({"num_training_examples": examples, "max_seq_len": longest}).encode())
        for part in parts:
            os.unlink(part)
        return examples


def _join(parts: Sequence[Columns], column: str, path: str, header: bytes) -> None:
    with storage.atomic_writer(path) as file:
        file.write(header)
        for piece in (piece for part in parts for piece in part.pieces(column)):
            file.write(piece.view(np.uint8).data)


def finish(folder: str, record: dict[str, Any]) -> None:
    """Writes the record of a complete folder."""
    sums = {os.path.basename(path).removesuffix(".json"): sha256_of_epoch(path) for path in epochs_of(folder)}
    versions = {"maskwright": importlib.metadata.version("maskwright"), "numpy": np.__version__}
    storage.write_json(os.path.join(folder, RECORD), {**record, "versions": versions, "sha256": sums, "finished": True})
