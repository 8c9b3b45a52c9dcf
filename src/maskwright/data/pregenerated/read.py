"""JSON epochs to arrays, with what is wrong in them."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from maskwright.core import storage
from maskwright.core.console import progress
from maskwright.core.errors import StoreError
from maskwright.data.masking import Masker
from maskwright.data.pregenerated.examples import EPOCH_AGAIN, Examples, map_arrays, read_line, read_metrics
from maskwright.data.pregenerated.findings import Findings, examine
from maskwright.text.vocabulary import Vocabulary, token_strings

BLOCK_EXAMPLES = 2_000


class Reader:
    """Reads epochs with one tokenizer. `findings` counts what has been read so far. `strict`: what `data pregenerate`
    wrote, in which a token that the tokenizer lacks, or a byte order mark, is damage."""

    def __init__(self, vocabulary: Vocabulary, tokenizer: str, *, strict: bool = False) -> None:
        self.strict = strict
        self.vocabulary, self.masker, self.tokenizer = vocabulary, Masker.of(vocabulary), tokenizer
        self.ids = {token: index for index, token in enumerate(token_strings(tokenizer)) if token}
        self.findings = Findings()

    def json_epoch(self, folder: str, epoch: int) -> Iterator[tuple[Examples, NDArray[np.bool_]]]:
        """Blocks of examples, and which of their tokens are not in the vocabulary. Raises `StoreError` with the line
        of an example that is none, and when there are not as many as the metrics say."""
        path = os.path.join(folder, f"epoch_{epoch}.json")
        expected, _ = read_metrics(folder, epoch)
        number, lines = 0, list[bytes]()
        with storage.open_binary(path) as file, progress("read", os.path.getsize(path), "bytes") as bar:
            for number, line in enumerate(file, 1):
                lines.append(line)
                bar.advance(len(line))
                if len(lines) == BLOCK_EXAMPLES:
                    yield self._block(lines, path, number - len(lines) + 1)
                    lines = []
            if lines:
                yield self._block(lines, path, number - len(lines) + 1)
        if number != expected:
            what = f"has {number:,} examples, its metrics file says {expected:,}"
            raise StoreError(what, where=path, fix="copy both files again, or generate the epoch again")

    def _block(self, lines: list[bytes], path: str, first: int) -> tuple[Examples, NDArray[np.bool_]]:
        get, unk = self.ids.get, self.vocabulary.unk
        tokens, labels, positions = list[int](), list[int](), list[int]()
        sizes = list[tuple[int, int, bool, int]]()
        if self.strict and first == 1 and lines[0].startswith(codecs.BOM_UTF8):
            raise StoreError("begins with a byte order mark (BOM)", where=f"{path}:1", fix=EPOCH_AGAIN)
        for number, line in enumerate(lines, first):
            try:
                strings, first_segment, other, places, answers = read_line(line)
            except ValueError as error:
                raise StoreError(str(error), where=f"{path}:{number}", fix=EPOCH_AGAIN) from None
            tokens += [get(token, -1) for token in strings]
            labels += [get(token, -1) for token in answers]
            positions += places
            sizes.append((len(strings), first_segment, other, len(places)))
        ids, true = np.array(tokens, np.int32), np.array(labels, np.int32)
        length, first_segment_, random_next, predictions = (np.array(one, np.int64) for one in zip(*sizes, strict=True))
        unknown = ids < 0
        if self.strict and (unknown.any() or (true < 0).any()):
            self._raise_unknown(lines, path, first)
        if (unknown.any() or (true < 0).any()) and unk is None:
            fix = "give the tokenizer that made them"
            raise StoreError("has tokens that are not in the vocabulary", where=f"{path}:{first}", fix=fix)
        ids[unknown], true[true < 0] = unk or 0, unk or 0
        some = Examples(ids, length, first_segment_, random_next, np.array(positions, np.int64), true, predictions)
        self.count(some, unknown)
        return some, unknown

    def _raise_unknown(self, lines: list[bytes], path: str, first: int) -> NoReturn:
        named = ((number, read_line(line)) for number, line in enumerate(lines, first))
        all_of = ((number, token) for number, (tokens, _, _, _, labels) in named for token in (*tokens, *labels))
        number, token = next((number, token) for number, token in all_of if token not in self.ids)
        raise StoreError(f"has {token!r:.60}, which is no token", where=f"{path}:{number}", fix=EPOCH_AGAIN)

    def count(self, some: Examples, unknown: NDArray[np.bool_]) -> None:
        """`unknown` [t]: which tokens are not in the vocabulary."""
        self.findings += examine(some, unknown, self.masker, self.vocabulary.bos, self.vocabulary.eos)


def epochs_of(folder: str) -> dict[int, str]:
    """{number: path} of a folder's epochs, each a .json file or a folder of arrays. Raises `StoreError` when there are
    none, one is missing between others, or is there twice."""
    found: dict[int, str] = {}
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        match = re.fullmatch(r"epoch_(0|[1-9][0-9]{0,8})(\.json)?", name)
        if match is None:
            continue
        number = int(match[1])
        if number in found:
            what = f"has epoch {number} as {os.path.basename(found[number])} and as {name}"
            raise StoreError(what, where=folder, fix="delete one of them")
        found[number] = os.path.join(folder, name)
    if not found:
        fix = "make one: `maskwright data pregenerate --train_corpus TEXT --bert_model FOLDER --output_dir FOLDER`"
        raise StoreError("holds no epoch_0.json, so it is not pregenerated data", where=folder, fix=fix)
    if missing := [number for number in range(max(found)) if number not in found]:
        raise StoreError(f"lacks epoch {missing[0]}", where=folder, fix="copy it too, or number the others from 0")
    return dict(sorted(found.items()))


def array_epoch(path: str, folder: str, epoch: int) -> Examples:
    """The mapped arrays of a binary epoch. Raises `StoreError` unless it is as long as its metrics say."""
    some, expected = map_arrays(path), read_metrics(folder, epoch)[0]
    if len(some.lengths) != expected:
        what = f"has {len(some.lengths):,} examples, its metrics file says {expected:,}"
        raise StoreError(what, where=path, fix="copy both again, or generate the epoch again")
    return some
