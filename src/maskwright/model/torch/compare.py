"""Compares this model with the class of `transformers` for an exported folder, by their logits on the same rows; a bare
encoder by its last hidden states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from maskwright.model.config import SEQUENCE_TASKS, ModelConfig
from maskwright.model.hf.config import class_name
from maskwright.model.hf.names import Parameters, has_head
from maskwright.model.torch.networks import build

Ids = NDArray[np.int64]
Speaker = Callable[[Ids, Ids, Ids], NDArray[np.float32]]
"""(ids, attention mask, token types: [M, T] each) -> fp32 logits: [M, C] of a task of whole texts, else [M, T, C]. C is
2 for questions, and the vocabulary for masked_lm. Logits of padding mean nothing. A model without token types, that is
every model except BERT, ignores them. A bare encoder gives its last hidden states, [M, T, D]."""
ROWS = ((2, 24), (3, 128), (1, 512))
"""(number of rows, their tokens) that are compared, shortened to the model's longest row."""
LARGEST_DIFFERENCE = 1e-4
"""The largest allowed difference of fp32 logits from `transformers`, in an export and an import."""


@dataclass(frozen=True)
class Reference:
    """Rows of random ids, every second one half padding, and the fp32 logits of `transformers` for them, or the last
    hidden states of a bare encoder."""

    input_ids: Ids
    attention_mask: Ids
    token_type_ids: Ids
    logits: NDArray[np.float32]


def our_model(config: ModelConfig, parameters: Parameters) -> Speaker:
    """The model of `parameters`; without a head, a bare encoder."""
    bare, outputs = not has_head(config, parameters), config.outputs
    network = build(config, parameters, bare=bare)

    @torch.inference_mode()
    def say(ids: Ids, mask: Ids, types: Ids) -> NDArray[np.float32]:
        M, T = ids.shape
        whole = config.task in SEQUENCE_TASKS
        places = torch.arange(0, M * T, T if whole else 1)
        positions = (torch.arange(T) + config.token_type_stride * torch.from_numpy(types)) * torch.from_numpy(mask)
        if bare:
            return network.encode(torch.from_numpy(ids), positions, torch.from_numpy(mask)).numpy()
        logits = network(torch.from_numpy(ids), positions, torch.from_numpy(mask), places)
        logits = logits[:, :outputs]
        return (logits if whole else logits.unflatten(0, (M, T))).numpy()

    return say


def their_model(config: ModelConfig, folder: str, attention: str | None = None, *, bare: bool = False) -> Speaker:
    """The folder's class in `transformers`, in fp32 on the CPU. `attention`: implementation; None for its default.
    `bare`: the folder holds an encoder without a head."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    options: dict[str, Any] = {"local_files_only": True, "dtype": torch.float32, "attn_implementation": attention}
    model = getattr(transformers, class_name(config, bare=bare)).from_pretrained(folder, **options).eval()

    @torch.inference_mode()
    def say(ids: Ids, mask: Ids, types: Ids) -> NDArray[np.float32]:
        types_argument = {"token_type_ids": torch.from_numpy(types)} if config.token_type_stride else {}
        # Without position ids: transformers computes them itself, as in users' calls.
        output = model(torch.from_numpy(ids), attention_mask=torch.from_numpy(mask), **types_argument)
        if bare:
            return output.last_hidden_state.numpy()
        if config.task == "question_answering":
            return torch.stack([output.start_logits, output.end_logits], -1).numpy()
        return output.logits.numpy()

    return say


def references(config: ModelConfig, folder: str, *, bare: bool = False) -> list[Reference]:
    """Logits of `transformers` for rows of several lengths (`ROWS`). `bare`: see `their_model`."""
    theirs, generator = their_model(config, folder, "eager", bare=bare), np.random.default_rng(0)
    result = []
    for rows, length in ROWS:
        length = min(length, config.max_seq_len)
        ids = generator.integers(5, config.vocab_size, (rows, length))
        ids[ids == config.pad_token_id] -= 1  # inside a text, their RoBERTa gives it the padding's position
        mask = np.ones_like(ids)
        mask[1::2, length // 2 :] = 0
        ids[mask == 0] = config.pad_token_id
        types = np.broadcast_to((np.arange(length) > length // 3).astype(np.int64), ids.shape).copy()
        result.append(Reference(ids, mask, types, theirs(ids, mask, types)))
    return result


def largest_difference(say: Speaker, expected: Sequence[Reference]) -> float:
    """Largest difference of any number, padding left out; NaN stays NaN. Single numbers that a model predicts, such as
    years or prices, count in tenths of the largest if that is above 10, since fp32 rounds them so much more coarsely.
    """
    differences = []
    for reference in expected:
        difference = np.abs(
            say(reference.input_ids, reference.attention_mask, reference.token_type_ids) - reference.logits
        )
        if difference.shape[1:] == (1,):
            difference = difference / max(1.0, float(np.abs(reference.logits).max()) / 10)
        differences.append((difference[reference.attention_mask == 1] if difference.ndim == 3 else difference).max())
    return float(np.max(differences))


def threads() -> int:
    """Number of threads with which torch computes on the CPU."""
    return torch.get_num_threads()
