"""`maskwright export --onnx`: ONNX files next to the exported weights: fp32, which is verified, and int8, which is
measured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnxruntime import quantization
from onnxruntime.quantization.shape_inference import quant_pre_process

from maskwright.core import storage
from maskwright.core.console import progress, several, warn
from maskwright.core.errors import InputError
from maskwright.data.loader import validation_batches
from maskwright.labels.dataset import read_dataset
from maskwright.labels.encode import WordTargets
from maskwright.labels.metrics import decode
from maskwright.labels.metrics import measure as scores_of
from maskwright.machine.hardware import cpu_name
from maskwright.model.config import ModelConfig
from maskwright.model.onnx import graph
from maskwright.model.torch.compare import Reference, Speaker, largest_difference, their_model, threads
from maskwright.tasks.finetune.objective import encoded_for
from maskwright.tasks.measure.held_out import MICRO_BATCH_ROWS, row_tokens
from maskwright.tasks.models.load import TrainedModel
from maskwright.tasks.models.runs import held_out_stores
from maskwright.tasks.use.predict import that_fit

FILE, INT8_FILE = "onnx/model.onnx", "onnx/model_int8.onnx"
"""The paths that `optimum` and transformers.js expect."""
FILES = (FILE, INT8_FILE)
MOST_TOKENS = 32_768
"""Tokens of text that three models read for a measurement."""
TEXTS_AT_ONCE, TOKENS_AT_ONCE = 16, 1024
Floats = NDArray[np.float32]


def write(model: TrainedModel, folder: str, expected: Sequence[Reference]) -> float:
    """Writes the fp32 file into `folder`, and returns the largest difference of a logit from `expected`."""
    storage.make_folder(os.path.join(folder, "onnx"))
    path = os.path.join(folder, FILE)
    graph.write(model.config, model.parameters, path)
    return largest_difference(speaker(model.config, path), expected)


def speaker(config: ModelConfig, path: str) -> Speaker:
    """onnxruntime on the CPU, with as many threads as torch has."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads()
    # Threads that wait for more work would slow the next model.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    output_names, input_names = graph.output_names(config), graph.input_names(config)

    def say(*inputs: NDArray[np.int64]) -> Floats:
        feed = dict(zip(input_names, inputs, strict=False))  # token types only for a model that has them
        outputs = session.run(output_names, feed)
        return outputs[0] if len(outputs) == 1 else np.stack(outputs, -1)

    return say


def quantize(folder: str) -> None:
    """Matrices and embeddings in int8, activations quantized dynamically.

    Weights take 7 of the 8 bits: on x86 CPUs without VNNI, onnxruntime adds two products of 8 bits in 16, which
    saturate. The eighth bit made no difference to scores, and weights in uint8, which are as safe, were slower
    (docs/export.md#in-onnx).
    """
    path = os.path.join(folder, INT8_FILE)
    quant_pre_process(os.path.join(folder, FILE), path, skip_optimization=True, skip_symbolic_shape=True)
    quantization.quantize_dynamic(
        path, path, op_types_to_quantize=["MatMul", "Gather"], per_channel=True, reduce_range=True
    )


# ---- texts to measure on -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """Texts, and the scores of a model on them."""

    texts: Sequence[NDArray[np.int64]]
    """int64 [2, T]: ids, without padding, and token types."""
    name: str
    keep: Callable[[int, Floats], NDArray[Any]]
    """(number of a text, logits [C] or [T, C]) -> the part that `score` needs."""
    score: Callable[[list[NDArray[Any]], list[NDArray[Any]]], dict[str, float]]
    """(the kept part of each text, the same of `transformers`) -> scores by name."""


def sample_for(model: TrainedModel, expected: Sequence[Reference]) -> Sample:
    """The run's own held-out data; without it, the rows that the logits were compared on."""
    try:
        if model.run and model.task:
            return labelled_sample(model)
        if model.run:
            return masked_sample(model)
    except InputError as error:
        warn(f"the files are compared on random ids, not on the run's own data: {error}")
    texts = [
        np.stack([ids[real == 1], types[real == 1]])
        for batch in expected
        for ids, real, types in zip(batch.input_ids, batch.attention_mask, batch.token_type_ids, strict=True)
    ]
    task = model.config.task
    meaning = "" if task == "regression" else " (same answers: the share that equals transformers')"

    def keep(_: int, logits: Floats) -> NDArray[Any]:
        if task in ("regression", "multi_label_classification"):
            return logits if task == "regression" else logits > 0
        return np.ravel(logits.argmax(0 if task == "question_answering" else -1))

    def score(ours: list[NDArray[Any]], theirs: list[NDArray[Any]]) -> dict[str, float]:
        our_values, their_values = np.concatenate(ours), np.concatenate(theirs)
        if task == "regression":
            return {"mean difference": float(np.abs(our_values - their_values).mean())}
        return {"same answers": float((our_values == their_values).mean())}

    return Sample(texts, f"{len(texts)} rows of random ids{meaning}", keep, score)


def labelled_sample(model: TrainedModel) -> Sample:
    """Examples of the run's validation split, evenly spaced. Raises `InputError`."""
    assert model.run is not None
    task, data = model.require_task(), model.run.finetuning.data
    dataset = read_dataset(data, task, model.run.finetuning.seed)
    model.run.train.require(dataset.fingerprint, "set of examples")
    examples = dataset.validation
    if not examples:
        raise InputError("holds no validation examples", where=data.train, fix="raise data.validation_fraction")
    length = model.max_seq_len or 0
    examples = that_fit(model, examples, length, data)

    def encoded_of(chosen: Sequence[Any]) -> Any:
        return encoded_for(model.config, chosen, model.tokenizer_folder, task, model.labels, length)

    examples = examples[:: -(-len(encoded_of(examples).ids) // MOST_TOKENS)]
    encoded = encoded_of(examples)
    targets = encoded.targets
    places = targets.offsets if isinstance(targets, WordTargets) else None

    def keep(number: int, logits: Floats) -> Floats:
        return logits if places is None else logits[targets.position[places[number] : places[number + 1]]]

    def score(kept: list[Floats], _: list[Floats]) -> dict[str, float]:
        outputs = np.stack(kept) if kept[0].ndim == 1 else np.concatenate(kept)
        return scores_of(task, model.labels, examples, decode(task, encoded, examples, outputs, model.labels))

    types = np.zeros_like(encoded.ids) if encoded.shift is None else encoded.shift // model.config.token_type_stride
    inputs = np.stack([encoded.ids, types]).astype(np.int64)
    texts = np.split(inputs, encoded.offsets[1:-1], axis=1)
    return Sample(texts, f"{len(examples):,} examples of the validation split", keep, score)


def masked_sample(model: TrainedModel) -> Sample:
    """Held-out rows of the run's store with 15 % of the tokens masked, a text for each segment. Raises `InputError`."""
    assert model.run is not None
    tokens = row_tokens(model)
    store = next(iter(held_out_stores(model.run).values()))
    batches = validation_batches(
        store,
        seq_len=tokens,
        packing=model.run.pretraining.data.packing,
        max_rows=max(1, MOST_TOKENS // tokens),
        micro_batch_rows=MICRO_BATCH_ROWS,
    )
    texts, places, labels = [], [], []
    for batch in batches:
        truth = np.full(batch.input_ids.size, -1)
        known = batch.weights > 0
        truth[batch.predict_index[known]] = batch.labels[known]
        rows = zip(batch.input_ids, batch.segment_ids, truth.reshape(batch.input_ids.shape), strict=True)
        for ids, segments, targets in rows:
            for segment in range(1, segments.max() + 1):
                in_segment = segments == segment
                positions = np.flatnonzero(targets[in_segment] >= 0)
                texts.append(np.stack([ids[in_segment], np.zeros_like(ids[in_segment])]).astype(np.int64))
                places.append(positions)
                labels.append(targets[in_segment][positions])

    def keep(number: int, logits: Floats) -> NDArray[np.float64]:
        exact, right = logits[places[number]].astype(np.float64), labels[number]
        highest = exact.max(-1, initial=-np.inf)
        of_label = exact[np.arange(len(right)), right]
        losses = np.log(np.exp(exact - highest[:, None]).sum(-1)) + highest - of_label
        return np.stack([losses, of_label == highest], -1)

    def score(kept: list[NDArray[Any]], _: list[NDArray[Any]]) -> dict[str, float]:
        loss, accuracy = np.concatenate(kept).mean(0)
        return {"loss": float(loss), "accuracy": float(accuracy)}

    predicted = sum(map(len, labels))
    return Sample(texts, f"{predicted:,} masked tokens of the run's held-out text", keep, score)


# ---- measuring ----------------------------------------------------------------------------------------------------


def measure(model: TrainedModel, folder: str, expected: Sequence[Reference], difference: float) -> list[str]:
    """Writes the int8 file, and returns lines of Markdown with the scores, size and speed of `transformers` and of both
    files. All three read the same batches in turns, so that other work on the machine slows all of them alike."""
    quantize(folder)
    sample = sample_for(model, expected)
    speakers = [their_model(model.config, folder), *(speaker(model.config, os.path.join(folder, f)) for f in FILES)]
    kept, seconds = _read(speakers, sample, model.config.pad_token_id)
    scores = [sample.score(outputs, kept[0]) for outputs in kept]
    inputs = graph.input_names(model.config)
    lines = [
        "## ONNX",
        "",
        f"`{FILE}` takes any number of texts of any length: {' and '.join(f'`{name}`' for name in inputs)}, as the "
        f"tokenizer gives them. Its logits in onnxruntime {onnxruntime.__version__} differ by at most {difference:.2g} "
        f"from transformers. `{INT8_FILE}` holds matrices and embeddings in int8 and quantizes activations "
        "as they come.",
        "",
        f"Measured on {sample.name}: up to {TEXTS_AT_ONCE} texts at once, sorted by length, "
        f"{several(threads(), 'thread')}, {cpu_name()}. transformers reads `model.safetensors`.",
        "",
        "| | MB | " + " | ".join(scores[0]) + " | texts/s |",
        "|---" * (len(scores[0]) + 3) + "|",
    ]
    for file, values, spent in zip(("model.safetensors", *FILES), scores, seconds, strict=True):
        cells = [f"{os.path.getsize(os.path.join(folder, file)) / 1e6:.1f}", *(f"{v:.4f}" for v in values.values())]
        lines.append(f"| {file} | " + " | ".join([*cells, f"{len(sample.texts) / spent:,.1f}"]) + " |")
    changes = ", ".join(f"{name} {scores[2][name] - scores[1][name]:+.4f}" for name in scores[0])
    faster = f"{seconds[1] / seconds[2]:.2f} times as fast as fp32 in onnxruntime, {seconds[0] / seconds[2]:.2f} times"
    return [*lines, "", f"int8 against fp32: {changes}; {faster} as fast as transformers.", ""]


def _read(speakers: Sequence[Speaker], sample: Sample, pad: int) -> tuple[list[list[NDArray[Any]]], list[float]]:
    """(kept parts of each text, seconds) of each model. A first batch, which allocates memory, is not timed."""
    lengths = np.array([text.shape[1] for text in sample.texts])
    waiting = np.argsort(-lengths, kind="stable").tolist()
    kept: list[list[Any]] = [[None] * len(lengths) for _ in speakers]
    seconds, warm = [0.0] * len(speakers), False
    with progress("measure", len(lengths), "texts") as bar:
        while waiting:
            longest = lengths[waiting[0]]
            numbers = waiting[: min(TEXTS_AT_ONCE, max(1, TOKENS_AT_ONCE // longest))]
            ids, types = np.full((len(numbers), longest), pad, np.int64), np.zeros((len(numbers), longest), np.int64)
            for row, number in enumerate(numbers):
                ids[row, : lengths[number]], types[row, : lengths[number]] = sample.texts[number]
            mask = (np.arange(longest) < lengths[numbers][:, None]).astype(np.int64)
            for reader, say in enumerate(speakers):
                if not warm:
                    say(ids, mask, types)
                began = time.perf_counter()
                logits = say(ids, mask, types)
                seconds[reader] += time.perf_counter() - began
                for row, number in enumerate(numbers):
                    of_text = logits[row] if logits.ndim == 2 else logits[row, : lengths[number]]
                    kept[reader][number] = sample.keep(number, of_text)
            warm, waiting = True, waiting[len(numbers) :]
            bar.advance(len(numbers))
    return kept, seconds
