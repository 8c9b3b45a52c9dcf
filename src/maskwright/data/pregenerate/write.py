"""Sequences to masked examples, and epochs of them on disk: see `data.foreign.pregenerated` for the files."""

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

from maskwright.core import storage
from maskwright.core.masking import Masking
from maskwright.data.foreign.pregenerated import KEYS, RECORD, epochs_of, sha256_of_epoch
from maskwright.data.foreign.static_masks import ARRAYS, Examples
from maskwright.data.masking import LONGEST_GROUP_TOKENS, Masker, mask_rows
from maskwright.data.pregenerate.sequences import PregenerateOptions, Unmasked
from maskwright.data.store import token_dtype
from maskwright.text.parts.columns import Columns, ColumnWriter, Note
from maskwright.text.vocabulary import read_vocabulary, token_strings


class Form:
    """How examples are masked and spelt, with one tokenizer."""

    def __init__(self, tokenizer: str, options: PregenerateOptions) -> None:
        self.words, self.options = read_vocabulary(tokenizer), options
        self.masker = Masker.of(self.words)
        self.spelt = token_strings(tokenizer)
        ids = np.dtype(token_dtype(self.words.size)).newbyteorder("<").str
        small = {"random_next": "|u1", "positions": "<u2", "predictions": "<u2", "tokens": ids, "labels": ids}
        self.dtypes = dict.fromkeys(ARRAYS, "<u4") | small

    def masked(self, some: Sequence[Unmasked], T: int, most: int, epoch: int) -> Examples:
        """The number of predictions is that which is wanted: exactly of tokens, on average of words. No sequence has
        more than `most`; one that would have none gets one, if any word fits. `T`: most tokens of a sequence."""
        lengths, first_segment, random_next, rows, wanted = (
            np.array(column) for column in zip(*((len(one.ids), *one[1:]) for one in some), strict=True)
        )
        M, is_text = len(some), np.arange(T) < lengths[:, None]
        ids = np.full((M, T), self.words.pad, np.int32)
        ids[is_text] = np.concatenate([one.ids for one in some])
        segments = np.where(is_text, 1 + (np.arange(T) >= first_segment[:, None]), 0).astype(np.int32)
        masking = Masking(kind="whole_word" if self.options.do_whole_word_mask else "token")
        slots = min(T, most + LONGEST_GROUP_TOKENS[masking.kind])
        shown, is_predicted, budgets = ids.copy(), np.zeros((M, T), bool), np.minimum(wanted, most)

        def mask(chosen: NDArray[np.intp]) -> None:
            named = {"epochs": np.full(len(chosen), epoch), "rows": rows[chosen], "budgets": budgets[chosen]}
            found, index, _, weights = mask_rows(
                self.masker, ids[chosen], segments[chosen], masking, seed=self.options.seed, slots=slots, **named
            )
            places = np.zeros(found.size, bool)
            places[index[weights > 0]] = True
            shown[chosen], is_predicted[chosen] = found, places.reshape(found.shape)

        mask(np.arange(M))
        while len(chosen := np.flatnonzero(~is_predicted.any(1) & (budgets < most))):
            budgets[chosen] += 1
            mask(chosen)
        while len(chosen := np.flatnonzero(is_predicted.sum(1) > most)):
            budgets[chosen] -= 1
            mask(chosen)
        positions, counts = np.nonzero(is_predicted)[1], is_predicted.sum(1)
        return Examples(shown[is_text], lengths, first_segment, random_next, positions, ids[is_predicted], counts)

    def append(self, file: ColumnWriter, some: Examples) -> None:
        """Adds examples to a part of an epoch."""
        if self.options.format == "json":
            file.append("lines", np.frombuffer(self._lines(some), np.uint8))
        else:
            for name, dtype in self.dtypes.items():
                file.append(name, getattr(some, name).astype(dtype))

    def _lines(self, some: Examples) -> bytes:
        out, begin, first = [], 0, 0
        tokens, labels = ([self.spelt[index] for index in ids.tolist()] for ids in (some.tokens, some.labels))
        columns = (some.lengths, some.first_segment, some.random_next > 0, some.predictions)
        for length, own, random_next, count in zip(*(column.tolist() for column in columns), strict=True):
            end, last = begin + length, first + count
            segments, positions = [0] * own + [1] * (length - own), some.positions[first:last].tolist()
            values = (tokens[begin:end], segments, random_next, positions, labels[first:last])
            out.append(json.dumps(dict(zip(KEYS, values, strict=True))))
            begin, first = end, last
        return "\n".join([*out, ""]).encode()

    def write_epoch(self, folder: str, epoch: int, parts: Sequence[str], notes: Sequence[Note], longest: int) -> int:
        """Joins the files of its parts into `epoch_N.json` or `epoch_N/`, and deletes them. Its metrics, which are
        written last, tell that it is whole. Returns the number of examples, which the notes have."""
        path, files = os.path.join(folder, f"epoch_{epoch}"), [*map(Columns, parts)]
        if self.options.format == "json":
            _join(files, "lines", f"{path}.json", b"")
        else:
            temporary = f"{parts[0]}-arrays"
            storage.make_folder(temporary)
            for name, dtype in self.dtypes.items():
                head = {"descr": dtype, "fortran_order": False, "shape": (sum(part.count(name) for part in files),)}
                np.lib.format.write_array_header_1_0(header := io.BytesIO(), head)
                _join(files, name, os.path.join(temporary, f"{name}.npy"), header.getvalue())
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
    """Writes the record of a folder whose epochs are all there."""
    sums = {os.path.basename(path).removesuffix(".json"): sha256_of_epoch(path) for path in epochs_of(folder)}
    versions = {"maskwright": importlib.metadata.version("maskwright"), "numpy": np.__version__}
    storage.write_json(os.path.join(folder, RECORD), {**record, "versions": versions, "sha256": sums, "finished": True})
