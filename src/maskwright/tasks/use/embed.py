"""`maskwright embed`: a vector for each text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from maskwright.config.finetuning import Task
from maskwright.core.console import progress, say, several, warn
from maskwright.core.errors import InputError
from maskwright.labels.encode import encode, what_is_cut, what_is_unknown
from maskwright.labels.example import Example
from maskwright.labels.rows import Packer, in_order, prediction_batches
from maskwright.labels.write import require_writable, write_vectors
from maskwright.tasks.models.load import TrainedModel
from maskwright.tasks.models.modules import pooling_of, prompt_of, warn_if_untold
from maskwright.tasks.use.predict import EXAMPLES_AT_ONCE, TextOptions, read_texts, row_length

TEXTS = Task()
"""Texts are read and encoded as for this task, with any model."""


def embed(
    model: TrainedModel,
    source: str,
    output: str,
    *,
    options: TextOptions,
    prompt: str | None = None,
    device: str = "auto",
    dtype: str = "fp32",
) -> tuple[int, int]:
    """Writes fp32 vectors in the order of the texts. Returns (number of vectors, numbers in each)."""
    require_writable(output, (".npy", ".parquet"))
    examples, data = read_texts(model, TEXTS, source, options)
    if examples[0].text_pair is not None:
        raise InputError("has two texts", where=source, fix="name the column of one as data.text")
    length = row_length(model, TEXTS, data)
    embeddings = vectors(model, examples, length, device, prompt, dtype)
    write_vectors(output, embeddings, [{"line": example.line, "text": example.text} for example in examples])
    say(f"{output}: {several(embeddings.shape[0], 'vector')} of {embeddings.shape[1]} numbers")
    return embeddings.shape[0], embeddings.shape[1]


def vectors(
    model: TrainedModel,
    examples: Sequence[Example],
    max_seq_len: int,
    device: str = "auto",
    prompt: str | None = None,
    dtype: str = "fp32",
) -> NDArray[np.float32]:
    """fp32 [examples, D], by `pooling_of` and `prompt_of` of the model's folder, computed in `dtype`. Warns of texts
    that were cut or have unknown tokens."""
    from maskwright.engines.torch.pooling import pooler
    from maskwright.engines.torch.prepare import choose_device

    (of_first_token, normalized), parts, cut = pooling_of(model.tokenizer_folder), [], 0
    strange = list[Example]()
    before = prompt_of(model.tokenizer_folder, prompt)
    warn_if_untold(model.tokenizer_folder)
    pool = pooler(model.config, model.parameters, choose_device(device, "device"), of_first_token, dtype)
    with progress("embed", len(examples), "texts") as bar:
        for first in range(0, len(examples), EXAMPLES_AT_ONCE):
            chunk = [replace(one, text=before + one.text) for one in examples[first : first + EXAMPLES_AT_ONCE]]
            encoded = encode(chunk, model.tokenizer_folder, TEXTS, (), max_seq_len, labelled=False)
            packer = Packer.of(encoded, TEXTS.kind, model.config.pad_token_id)
            batches = prediction_batches(packer)
            parts.append(in_order(packer, batches, np.concatenate([pool(packed.batch) for packed in batches])))
            cut += encoded.cut
            strange += [chunk[index] for index in encoded.examples_with(model.vocabulary.unk)]
            bar.advance(len(chunk))
    if cut:
        warn(what_is_cut(cut, max_seq_len))
    if strange:
        warn(what_is_unknown(model.tokenizer_folder, strange, len(examples)))
    found = np.concatenate(parts)
    return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12) if normalized else found
