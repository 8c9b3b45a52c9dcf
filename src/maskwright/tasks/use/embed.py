"""`maskwright embed`: a vector for each text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from maskwright.config.finetuning import Task
from maskwright.core.console import progress, say, several
from maskwright.core.errors import InputError
from maskwright.labels.encode import encode
from maskwright.labels.example import Example
from maskwright.labels.rows import Packer, in_order, prediction_batches
from maskwright.labels.write import require_writable, write_vectors
from maskwright.tasks.finetune.objective import PREDICTION_TOKENS
from maskwright.tasks.models.load import TrainedModel
from maskwright.tasks.use.predict import EXAMPLES_AT_ONCE, TextOptions, read_texts, row_length, say_what_was_cut

TEXTS = Task()
"""How texts are read and encoded, whatever the model has learned to say of them."""


def embed(
    model: TrainedModel, source: str, output: str, *, given: TextOptions, device: str = "auto"
) -> tuple[int, int]:
    """Writes fp32 vectors in the order of the texts, and returns how many, and of how many numbers."""
    require_writable(output, (".npy", ".parquet"))
    examples, data = read_texts(model, TEXTS, source, given)
    if examples[0].text_pair is not None:
        raise InputError("has two texts", where=source, fix="name the column of one with --text")
    length = row_length(model, TEXTS, data, given.spelt)
    found = vectors(model, examples, length, device, "--device")
    write_vectors(output, found, [{"line": one.line, "text": one.text} for one in examples])
    say(f"{output}: {several(found.shape[0], 'vector')} of {found.shape[1]} numbers")
    return found.shape[0], found.shape[1]


def vectors(
    model: TrainedModel, examples: Sequence[Example], max_seq_len: int, device: str = "auto", option: str = "device"
) -> NDArray[np.float32]:
    """[examples, D]: means of the last hidden states, those of special tokens included. How many texts were cut is
    said. `option`: how the user names a device."""
    from maskwright.engines.torch.pooling import mean_pooler
    from maskwright.engines.torch.prepare import choose_device

    pool, parts, cut = mean_pooler(model.config, model.parameters, choose_device(device, option)), [], 0
    with progress("embed", len(examples), "texts") as bar:
        for first in range(0, len(examples), EXAMPLES_AT_ONCE):
            some = examples[first : first + EXAMPLES_AT_ONCE]
            encoded = encode(some, model.tokenizer_folder, TEXTS, (), max_seq_len, labelled=False)
            packer = Packer.of(encoded, TEXTS.kind, model.config.pad_token_id)
            batches = prediction_batches(packer, max(1, PREDICTION_TOKENS // packer.T))
            parts.append(in_order(packer, batches, np.concatenate([pool(one.batch) for one in batches])))
            cut += encoded.cut
            bar.advance(len(some))
    say_what_was_cut(cut, max_seq_len)
    return np.concatenate(parts)
