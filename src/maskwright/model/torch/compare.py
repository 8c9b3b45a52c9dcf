"""This model beside the one that `transformers` makes of an exported folder: what each says of the same rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from maskwright.model.config import SEQUENCE_TASKS, ModelConfig
from maskwright.model.hf.config import class_name
from maskwright.model.hf.names import Parameters
from maskwright.model.torch.networks import build

Ids = NDArray[np.int64]
Speaker = Callable[[Ids, Ids, Ids], NDArray[np.float32]]
"""(ids, attention mask, token types: [M, T] each) -> fp32 logits: [M, C] of a task of whole texts, else [M, T, C]. C is
2 for questions, and the vocabulary for masked_lm. Those of padding mean nothing. A model without token types, which is
each but BERT, leaves them aside."""
ROWS = ((2, 24), (3, 128), (1, 512))
"""How many rows of how many tokens are compared, or of as many as the model takes."""


@dataclass(frozen=True)
class Reference:
    """Rows of random ids, of which every second one is half padding, and what `transformers` says of them in fp32."""

    input_ids: Ids
    attention_mask: Ids
    token_type_ids: Ids
    logits: NDArray[np.float32]


def our_model(config: ModelConfig, parameters: Parameters) -> Speaker:
    network, outputs = build(config, parameters), config.outputs

    @torch.inference_mode()
    def say(ids: Ids, mask: Ids, types: Ids) -> NDArray[np.float32]:
        M, T = ids.shape
        whole = config.task in SEQUENCE_TASKS
        places = torch.arange(0, M * T, T if whole else 1)
        positions = torch.arange(T) + config.token_type_stride * torch.from_numpy(types)
        found = network(torch.from_numpy(ids), positions, torch.from_numpy(mask), places)
        found = found[:, :outputs]
        return (found if whole else found.unflatten(0, (M, T))).numpy()

    return say


def their_model(config: ModelConfig, folder: str, attention: str | None = None) -> Speaker:
    """`folder`'s own class in `transformers`, in fp32 on the CPU. `attention`: its default when None."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    options: dict[str, Any] = {"local_files_only": True, "dtype": torch.float32, "attn_implementation": attention}
    model = getattr(transformers, class_name(config)).from_pretrained(folder, **options).eval()

    @torch.inference_mode()
    def say(ids: Ids, mask: Ids, types: Ids) -> NDArray[np.float32]:
        own = {"token_type_ids": torch.from_numpy(types)} if config.token_type_stride else {}
        # Without position ids: transformers finds them itself, as in users' calls.
        found = model(torch.from_numpy(ids), attention_mask=torch.from_numpy(mask), **own)
        if config.task == "question_answering":
            return torch.stack([found.start_logits, found.end_logits], -1).numpy()
        return found.logits.numpy()

    return say


def references(config: ModelConfig, folder: str) -> list[Reference]:
    """What `transformers` says of rows of several lengths (`ROWS`)."""
    theirs, generator = their_model(config, folder, "eager"), np.random.default_rng(0)
    made = []
    for rows, length in ROWS:
        length = min(length, config.max_seq_len)
        ids = generator.integers(5, config.vocab_size, (rows, length))
        mask = np.ones_like(ids)
        mask[1::2, length // 2 :] = 0
        ids[mask == 0] = config.pad_token_id
        types = np.broadcast_to((np.arange(length) > length // 3).astype(np.int64), ids.shape).copy()
        made.append(Reference(ids, mask, types, theirs(ids, mask, types)))
    return made


def largest_difference(say: Speaker, expected: Sequence[Reference]) -> float:
    """Largest difference of any logit, padding left out; NaN stays NaN."""
    differences = []
    for one in expected:
        difference = np.abs(say(one.input_ids, one.attention_mask, one.token_type_ids) - one.logits)
        differences.append((difference[one.attention_mask == 1] if difference.ndim == 3 else difference).max())
    return float(np.max(differences))


def threads() -> int:
    """What torch computes with on the CPU."""
    return torch.get_num_threads()
