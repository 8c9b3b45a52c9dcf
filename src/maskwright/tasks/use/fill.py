"""`maskwright fill`: the tokens that a model predicts for each mask in a sentence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from maskwright.core.errors import InputError
from maskwright.model.torch.networks import logits_at
from maskwright.tasks.models.load import TrainedModel
from maskwright.text.tokenizer import load_tokenizer


@dataclass(frozen=True)
class Guess:
    token: str
    probability: float


def fill(model: TrainedModel, text: str, *, top: int = 5) -> list[list[Guess]]:
    """For each mask, the `top` likeliest tokens. A mask is written as the model's tokenizer writes it: `<mask>`,
    `[MASK]`. Raises `InputError` for a text without one, or too long."""
    model.require_masked_lm()
    tokenizer = load_tokenizer(model.tokenizer_folder, special_tokens_are_text=False)
    words = model.vocabulary
    ids = [words.bos, *tokenizer.encode(text, add_special_tokens=False).ids, words.eos]
    masked = [position for position, index in enumerate(ids) if index == words.mask]
    if not masked:
        mask = words.mask_token
        raise InputError(f"no {mask} in '{text}'", fix=f"write {mask} in place of a token to predict")
    if len(ids) > model.config.max_seq_len:
        raise InputError(
            f"the text has {len(ids)} tokens, but {model.location} reads {model.config.max_seq_len}", fix="shorten it"
        )
    # Only ids that the tokenizer can write: the vocabulary may be padded, and special tokens are not text.
    logits = logits_at(model.config, model.parameters, ids, masked)[:, : words.size]
    logits[:, sorted(words.special)] = -np.inf
    chances = np.exp(logits - logits.max(-1, keepdims=True))
    chances /= chances.sum(-1, keepdims=True)
    likeliest = np.argsort(-chances, axis=-1, kind="stable")[:, :top]
    return [
        [Guess(tokenizer.decode([index]), float(row[index])) for index in indices.tolist()]
        for row, indices in zip(chances, likeliest, strict=True)
    ]
