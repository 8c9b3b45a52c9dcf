"""A folder as pytorch-transformers' `pregenerate_training_data.py` makes it for RoBERTa, with its faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from maskwright.data.foreign.pregenerated import KEYS


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def text_of(example: dict[str, Any]) -> list[str]:
    tokens = list(example["tokens"])
    for place, label in zip(example["masked_lm_positions"], example["masked_lm_labels"], strict=True):
        tokens[place] = label
    return tokens


def write_epoch(folder: Path, epoch: int, examples: list[tuple[Any, ...]], max_seq_len: int) -> None:
    """`examples`: values of `KEYS`."""
    made = [dict(zip(KEYS, example, strict=True)) for example in examples]
    (folder / f"epoch_{epoch}.json").write_text("".join(json.dumps(one) + "\n" for one in made))
    metrics = f'{{"num_training_examples": {len(made)}, "max_seq_len": {max_seq_len}}}'
    (folder / f"epoch_{epoch}_metrics.json").write_text(metrics)


def spoil(ours: Path, folder: Path, examples: int, max_seq_len: int, mask_every: int = 5) -> Path:
    """The first `examples` of each of two epochs that `data pregenerate` wrote, with `[MASK]` in them, single tokens of
    words, a special token drawn, text of another document appended; and no tokenizer."""
    folder.mkdir()
    for epoch in range(2):
        made = []
        for number, example in enumerate(lines(ours / f"epoch_{epoch}.json")[:examples]):
            tokens = text_of(example)
            places = list(range(1, len(tokens) - 1, mask_every))
            labels = [tokens[place] for place in places]
            for place in places:
                tokens[place] = "[MASK]" if place % 2 else tokens[place]
            tokens[places[0]] = "<pad>" if number == 0 else tokens[places[0]]
            made.append((tokens, [0] * len(tokens), number < 5, places, labels))
        write_epoch(folder, epoch, made, max_seq_len)
    return folder
