"""Files as fairseq's and Megatron's builders write them."""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from maskwright.text.vocabulary import read_vocabulary, token_ids

Ids = NDArray[np.int64]


def write_index(path: Path, sequences: Sequence[Ids], members: list[int] | None, dtype: str = "<u2") -> None:
    """`.bin` and `.idx`: of Megatron with `members`, the sequences of each document; else of fairseq."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sizes = np.array([len(one) for one in sequences])
    path.with_suffix(".bin").write_bytes(np.concatenate(sequences).astype(dtype).tobytes())
    index = b"MMIDIDX\0\0" + struct.pack("<QBQ", 1, 8, len(sizes))
    if members is not None:
        index += struct.pack("<Q", len(members) + 1)
    index += sizes.astype("<i4").tobytes() + ((np.cumsum(sizes) - sizes) * 2).astype("<i8").tobytes()
    if members is not None:
        index += np.cumsum([0, *members]).astype("<i8").tobytes()
    path.with_suffix(".idx").write_bytes(index)


def write_fairseq(folder: Path, documents: Sequence[Sequence[Ids]], tokenizer: str, lacking: int | None = None) -> None:
    """Sentences of documents, with a dictionary in another order than the tokenizer's, a line a sentence and an empty
    line after each document. `lacking`: an id whose token the dictionary spells otherwise."""
    names = {index: name for name, index in token_ids(tokenizer).items()}
    special = read_vocabulary(tokenizer).special
    order = [index for index in sorted(names, reverse=True) if index not in special]
    folder.mkdir(parents=True)
    lines = [f"{'absent' if index == lacking else names[index]} 7" for index in order]
    (folder / "dict.txt").write_text("\n".join([*lines, "madeupword0000 0"]) + "\n", encoding="utf-8")
    theirs = {index: 4 + number for number, index in enumerate(order)}
    sequences: list[Ids] = []
    for sentences in documents:
        sequences += [np.array([*(theirs[int(index)] for index in one), 2]) for one in sentences] + [np.array([2])]
    write_index(folder / "train.idx", sequences, None)
