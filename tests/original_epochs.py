"""A folder as pytorch-transformers' `pregenerate_training_data.py` makes it for RoBERTa, with its faults."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

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


def write_folder(
    folder: Path, texts: Sequence[str], tokenizer: str, max_seq_len: int, examples: int | None = None
) -> Path:
    """The folder of two epochs that the script makes of `texts`, cut into `examples` or all: masks are `[MASK]`, which
    RoBERTa lacks, a special token is drawn, an example claims text of another document, and there is no tokenizer."""
    folder.mkdir()
    words = Tokenizer.from_file(f"{tokenizer}/tokenizer.json")
    start, end = words.encode("").tokens
    room, cut = max_seq_len - 2, list[list[str]]()
    for text in texts:
        tokens = [words.id_to_token(token) for token in words.encode(text, add_special_tokens=False).ids]
        cut += [tokens[begin : begin + room] for begin in range(0, len(tokens), room)]
    for epoch in range(2):
        made = []
        for number, piece in enumerate(cut[:examples]):
            tokens = [start, *piece, end]
            places = [place for place in range(1, len(tokens) - 1) if place % 5 == 1]
            labels = [tokens[place] for place in places]
            for place in places:
                tokens[place] = "[MASK]" if (place + epoch) % 2 else tokens[place]
            tokens[places[0]] = start if number == 0 else tokens[places[0]]
            made.append((tokens, [0] * len(tokens), number < 5, places, labels))
        write_epoch(folder, epoch, made, max_seq_len)
    return folder
