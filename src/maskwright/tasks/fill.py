"""`maskwright fill`: what a model would write for each `<mask>` in a sentence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from maskwright.core.errors import InputError
from maskwright.model.torch.networks import build
from maskwright.tasks.models import TrainedModel
from maskwright.text.tokenizer import load_tokenizer


@dataclass(frozen=True)
class Guess:
    token: str
    probability: float


def fill(model: TrainedModel, text: str, *, top: int = 5) -> list[list[Guess]]:
    """For each `<mask>`, the `top` likeliest tokens. Raises `InputError` for a text without one, or too long."""
    tokenizer = load_tokenizer(model.tokenizer_folder, special_tokens_are_text=False)
    words = model.vocabulary
    ids = [words.bos, *tokenizer.encode(text, add_special_tokens=False).ids, words.eos]
    masked = [place for place, index in enumerate(ids) if index == words.mask]
    if not masked:
        raise InputError(f"no <mask> in '{text}'", fix="write <mask> where a token is to be guessed")
    if len(ids) > model.config.max_seq_len:
        raise InputError(
            f"the text has {len(ids)} tokens, the model takes {model.config.max_seq_len}", fix="shorten it"
        )
    network = build(model.config, model.parameters)
    row = torch.tensor([ids])
    with torch.no_grad():
        logits = network(row, torch.arange(len(ids))[None], torch.ones_like(row), torch.tensor(masked))
    # Only ids that the tokenizer can write: the matrix is padded, and some tokens are no text.
    logits = logits[:, : words.size]
    logits[:, sorted(words.special)] = -np.inf
    chances = torch.softmax(logits, -1)
    values, indices = chances.topk(min(top, words.size))
    return [
        [
            Guess(tokenizer.decode([index]), value)
            for index, value in zip(index_row.tolist(), value_row.tolist(), strict=True)
        ]
        for index_row, value_row in zip(indices, values, strict=True)
    ]
