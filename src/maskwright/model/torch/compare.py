"""This model beside the one that `transformers` makes of an exported folder."""

from __future__ import annotations

import numpy as np
import torch

from maskwright.model.config import SEQUENCE_TASKS, ModelConfig
from maskwright.model.hf.config import class_name
from maskwright.model.hf.names import Parameters
from maskwright.model.torch.networks import build


@torch.no_grad()
def largest_difference(config: ModelConfig, parameters: Parameters, folder: str) -> float:
    """Largest difference of any logit from what `folder`'s own class in `transformers` says, in fp32; NaN stays NaN.

    The rows are random ids at two lengths, the longer ones with padding.
    """
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    theirs = (
        getattr(transformers, class_name(config))
        .from_pretrained(folder, attn_implementation="eager", local_files_only=True, dtype=torch.float32)
        .eval()
    )
    ours, generator = build(config, parameters), np.random.default_rng(0)
    differences = []
    for length in (min(24, config.max_seq_len), min(128, config.max_seq_len)):
        ids = torch.from_numpy(generator.integers(5, config.vocab_size, (2, length)))
        real = torch.ones_like(ids)
        real[1, length // 2 :] = 0
        ids[real == 0] = config.pad_token_id
        positions = torch.arange(length).expand(2, length)
        # Without position ids: transformers finds them itself, as in users' calls.
        expected = theirs(ids, attention_mask=real)
        # Padding's own outputs mean nothing and may differ.
        places = torch.tensor([0, length]) if config.task in SEQUENCE_TASKS else real.flatten().nonzero()[:, 0]
        found = ours(ids, positions, real, places)
        if config.task == "question_answering":
            logits = torch.stack([expected.start_logits, expected.end_logits], -1)
        else:
            logits = expected.logits
        if config.task not in SEQUENCE_TASKS:
            logits = logits.flatten(0, 1)[places]
        differences.append((found[:, : logits.shape[-1]] - logits).abs().max())
    return float(torch.stack(differences).max())
