"""`maskwright predict`: a fine-tuned model's predictions for texts, in their order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from maskwright.config.finetuning import LABELLED, LabelledData, Task, default_row, labelled_data
from maskwright.config.pretraining import EngineSection, Optimizer
from maskwright.core import storage
from maskwright.core.console import progress, say, several, warn
from maskwright.core.encodings import UTF8
from maskwright.core.errors import InputError
from maskwright.engines.base import Engine, TrainState
from maskwright.engines.choose import make_engine
from maskwright.labels.annotations import spans_in
from maskwright.labels.encode import EncodedRows, what_is_cut, what_is_unknown, without_long_questions
from maskwright.labels.example import Example, Reading, Skipped
from maskwright.labels.metrics import NO_LABEL, Predictions, decode
from maskwright.labels.read import read_examples
from maskwright.labels.rows import Packer, in_order, prediction_batches
from maskwright.labels.spans import mark_spans
from maskwright.labels.write import COLUMNS, WRITTEN, require_writable, write_conll, write_records
from maskwright.model.initial import bias_of_outputs
from maskwright.tasks.finetune.objective import encoded_for
from maskwright.tasks.models.load import TrainedModel
from maskwright.tasks.models.modules import IDENTITY, activation_of

ANSWERS = ".json"
"""The ending of files for SQuAD's evaluation script: {id: answer}."""
EXAMPLES_AT_ONCE = 2048
"""Examples that are sorted by length and packed together; more would only need more memory."""


@dataclass(frozen=True)
class TextOptions:
    """How to read the texts. Options that are left out come from the run's configuration."""

    text: Sequence[str] = ()
    text_pair: str | None = None
    label: Sequence[str] = ()
    max_seq_len: int | None = None
    skip_bad_input: bool = False
    encoding: str | None = None


def read_texts(
    model: TrainedModel, task: Task, location: str, options: TextOptions
) -> tuple[list[Example], LabelledData]:
    """The texts of a file, and how it was read. Prints automatic decisions, and warns of skipped records. Raises
    `InputError` with file and line."""
    data = data_of(model, location, options)
    reading = Reading(data, task, labelled=False)
    examples = read_examples(location, reading)
    for sentence in reading.notes:
        say(sentence)
    warn_of(reading.skipped)
    return examples, data


def warn_of(skipped: Sequence[Skipped]) -> None:
    for one in skipped[:10]:
        warn(f"{one.where} is left out: {one.what}")
    if len(skipped) > 10:
        warn(f"{len(skipped):,} records are left out")


def that_fit(model: TrainedModel, examples: list[Example], max_seq_len: int, data: LabelledData) -> list[Example]:
    """All examples or, if `data.on_bad_input` is skip, those without questions that are too long for a row, with a
    warning. Raises `InputError` if none is left."""
    if data.on_bad_input == "error":
        return examples
    task = _in_rows(model, max_seq_len)
    kept, skipped = without_long_questions(examples, model.tokenizer_folder, task, max_seq_len)
    warn_of(skipped)
    return kept


def _in_rows(model: TrainedModel, max_seq_len: int) -> Task:
    """The model's task. In rows shorter than the model's own, windows overlap less."""
    task = model.require_task()
    if max_seq_len == model.max_seq_len:
        return task
    return task.model_copy(update={"doc_stride": min(task.doc_stride, max_seq_len // 3)})


def data_of(model: TrainedModel, location: str, options: TextOptions, *, labelled: bool = False) -> LabelledData:
    """How to read a file: by the user's options, else by the run's. Raises `InputError` kinds for columns that do not
    fit together."""
    run = model.run.finetuning.data if model.run and model.run.kind == "finetune" else None
    text = [_column(name) for name in options.text] or (run and run.text)
    pair = options.text_pair if options.text else options.text_pair or (run and run.text_pair)
    if text is None and pair is not None:
        raise InputError("data.text_pair is given without data.text", fix="name both columns, or neither")
    return labelled_data(
        location,
        train=location,
        text=text,
        text_pair=_column(pair) if isinstance(pair, str) else pair,
        label=([_column(name) for name in options.label] or (run and run.label)) if labelled else None,
        max_seq_len=options.max_seq_len or model.max_seq_len,
        on_bad_input="skip" if options.skip_bad_input else "error",
        encoding=options.encoding or (run.encoding if run else UTF8),
    )


def _column(name: str) -> str | int:
    return int(name) if name.isascii() and name.isdigit() else name


def row_length(model: TrainedModel, task: Task, data: LabelledData) -> int:
    """Tokens that a text may have: as in training or, if that is unknown, as many as the model can read."""
    most = model.config.max_seq_len
    if data.max_seq_len is not None and data.max_seq_len > most:
        what = f"rows of {data.max_seq_len:,} tokens were requested, but the model reads {most:,}"
        raise InputError(what, where=model.location, fix=f"set data.max_seq_len to {most} or less")
    return data.max_seq_len or (min(most, default_row(task)) if task.kind == "question_answering" else most)


def engine_for(model: TrainedModel, device: str, dtype: Any = "fp32") -> Engine:
    """An engine that holds the model's weights. In fp32, its numbers equal the exported folder's in `transformers`. A
    model of numbers gets their mean, its bias, from `_logits`: in bf16, years near 2007 would be 2008."""
    from maskwright.engines.torch.prepare import choose_device

    chosen: Any = choose_device(device, "device")
    engine = make_engine(model.config, Optimizer(), EngineSection(device=chosen, dtype=dtype), seed=0)
    parameters = dict(model.parameters)
    if model.config.task == "regression":
        name = bias_of_outputs(parameters)
        parameters[name] = np.zeros_like(parameters[name])
    engine.write(TrainState(0, parameters))
    return engine


def ask(
    engine: Engine,
    model: TrainedModel,
    examples: Sequence[Example],
    max_seq_len: int,
    *,
    may_be_none: bool | None = None,
) -> tuple[Predictions, int]:
    """Predictions in the order of `examples`, and the number of texts (for words: of words) that were cut, with a
    warning of these, and of unknown tokens. `may_be_none`: see `decode`."""
    task = _in_rows(model, max_seq_len)
    odd = next((one for one in examples if model.pairs not in (None, one.text_pair is not None)), None)
    if odd is not None:
        what, fix = "is one text", "give both texts, or name both columns as data.text and data.text_pair"
        if odd.text_pair is not None:
            what, fix = "is a pair of texts", "give one text each, or name one column as data.text"
        raise InputError(f"{what}, unlike the training examples of {model.location}", where=odd.where, fix=fix)
    if (activation := activation_of(model.tokenizer_folder) or IDENTITY) != IDENTITY:
        say(f"{model.location}: scores are its numbers; CrossEncoder gives the {activation.rpartition('.')[2]} of them")
    if may_be_none is None:
        may_be_none = not all(example.answers for example in examples)
    parts, cut, strange = [], 0, list[Example]()
    with progress("predict", len(examples), "examples") as bar:
        for first in range(0, len(examples), EXAMPLES_AT_ONCE):
            chunk = examples[first : first + EXAMPLES_AT_ONCE]
            folder, labels = model.tokenizer_folder, model.labels
            encoded = encoded_for(model.config, chunk, folder, task, labels, max_seq_len, labelled=False)
            logits = _logits(engine, model, encoded)
            parts.append(decode(task, encoded, chunk, logits, model.labels, may_be_none=may_be_none))
            cut += encoded.cut
            strange += [chunk[index] for index in encoded.examples_with(model.vocabulary.unk)]
            bar.advance(len(chunk))
    if cut:
        warn(what_is_cut(cut, max_seq_len, words=task.kind == "token_classification"))
    if strange:
        warn(what_is_unknown(model.tokenizer_folder, strange, len(examples)))
    return _joined(parts), cut


def _logits(engine: Engine, model: TrainedModel, encoded: EncodedRows) -> Any:
    kind = model.require_task().kind
    packer = Packer.of(encoded, kind, model.config.pad_token_id)
    batches = prediction_batches(packer)
    logits = in_order(packer, batches, engine.predict([packed.batch for packed in batches]))
    return logits + model.parameters[bias_of_outputs(model.parameters)] if kind == "regression" else logits


def _joined(parts: Sequence[Predictions]) -> Predictions:
    outcomes = tuple(outcome for part in parts for outcome in part.outcomes)
    shares = [part.probabilities for part in parts if part.probabilities is not None]
    words, first = [], 0
    for part in parts:
        if part.words is not None:
            words.append(part.words + np.array([first, 0], np.int32))
        first += len(part.outcomes)
    return Predictions(
        outcomes,
        np.concatenate(shares) if shares else None,
        np.concatenate(words) if words else None,
    )


# ---- to a file ---------------------------------------------------------------------------------------------------


def predict(
    model: TrainedModel,
    source: str,
    output: str,
    *,
    options: TextOptions,
    device: str = "auto",
    dtype: str = "fp32",
    probabilities: bool = False,
    may_be_none: bool | None = None,
) -> int:
    """Writes `output`, a record for each text in its order, and returns their number. `may_be_none`: whether a
    question may have no answer. The default is as in training; if that is unknown, each has one."""
    task = model.require_task()
    words, asks = task.kind == "token_classification", task.kind == "question_answering"
    kinds = [*WRITTEN, ANSWERS] if asks else [*WRITTEN]
    if words:
        kinds = [kind for kind in (*WRITTEN, *COLUMNS[:2]) if kind != ".csv"]
    require_writable(output, kinds)
    if may_be_none is not None and not asks:
        option = "--no-answer" if may_be_none else "--always-answer"
        raise InputError(f"{option} is for questions, not for {task.kind}", where=model.location, fix="leave it out")
    if probabilities:
        require_probabilities(model)
    if os.path.exists(output) and os.path.exists(source) and os.path.samefile(source, output):
        raise InputError("is also the input", where=output, fix="give --to another name")
    examples, data = read_texts(model, task, source, options)
    length = row_length(model, task, data)
    examples = that_fit(model, examples, length, data)
    if os.path.splitext(output)[1].lower() == ANSWERS:
        _require_ids(examples)
    engine = engine_for(model, device, dtype)
    none = model.may_be_none or False if may_be_none is None else may_be_none
    predictions, _ = ask(engine, model, examples, length, may_be_none=none)
    if words and os.path.splitext(output)[1].lower() in COLUMNS:
        tags = [[_name(model, tag) for tag in outcome] for outcome in predictions.outcomes]
        sentences = zip(examples, tags, strict=True)
        write_conll(output, [[*zip(example.words, row, strict=True)] for example, row in sentences])
    elif os.path.splitext(output)[1].lower() == ANSWERS:
        answers = zip(examples, predictions.outcomes, strict=True)
        storage.write_json(output, {question.key: answer for question, answer in answers})
    else:
        write_records(output, records(model, examples, predictions, probabilities=probabilities), task.separator)
    say(f"{output}: {several(len(examples), 'prediction')} of {model.location} ({engine.description})")
    return len(examples)


def require_probabilities(model: TrainedModel) -> None:
    """Raises `InputError` for a model that predicts numbers or answers."""
    kind = model.require_task().kind
    if kind not in LABELLED:
        raise InputError(f"{kind} has no probabilities", where=model.location, fix="do not ask for them")


def _require_ids(examples: Sequence[Example]) -> None:
    """Raises `InputError` unless each question has an id of its own."""
    first: dict[str, Example] = {}
    for question in examples:
        if not question.key or first.setdefault(question.key, question) is not question:
            same = first.get(question.key, question)
            what = f"has the id of {same.counted} {same.line}, {question.key!r}" if question.key else "has no id"
            fix = "give each question its own `id`, or let --to end in .jsonl"
            raise InputError(f"{what}, under which its answer would be written", where=question.where, fix=fix)


def _name(model: TrainedModel, label: int) -> str:
    return "" if label == NO_LABEL else model.labels[label]


def records(
    model: TrainedModel, examples: Sequence[Example], predictions: Predictions, *, probabilities: bool
) -> list[dict[str, Any]]:
    """The record of each example: its line, its text, and the prediction. For texts that were cut into words, spans
    too, by characters."""
    kind, shares = model.require_task().kind, predictions.probabilities
    with_spans = mark_spans(model.labels) and all(example.text for example in examples)
    rows_of, words = np.arange(len(examples) + 1), predictions.words
    if words is not None:
        rows_of = np.searchsorted(words[:, 0], rows_of)
    results = []
    for number, (example, outcome) in enumerate(zip(examples, predictions.outcomes, strict=True)):
        rows = None if shares is None else shares[rows_of[number] : rows_of[number + 1]]
        record: dict[str, Any] = {"line": example.line, **_shown(example, kind)}
        if kind == "question_answering":
            record["answer"] = outcome
        elif kind == "regression":
            record["score"] = outcome
        elif kind == "token_classification":
            record["tags"] = [_name(model, tag) for tag in outcome]
            if with_spans:
                record["spans"] = spans_in(example.text, record["tags"])
            assert rows is not None and words is not None
            # Words that were cut, or that the tokenizer drops, have no row.
            by_word = dict(zip(words[rows_of[number] : rows_of[number + 1], 1].tolist(), rows, strict=True))
            of_words = [by_word.get(word) for word in range(len(example.words))]
            record["scores"] = [None if row is None else _rounded(row.max()) for row in of_words]
            if probabilities:
                record["probabilities"] = [None if row is None else _by_label(model, row) for row in of_words]
        else:
            assert rows is not None
            several = kind == "multi_label_classification"
            record["label"] = [model.labels[label] for label in outcome] if several else model.labels[outcome]
            record["score"] = [_rounded(rows[0, label]) for label in outcome] if several else _rounded(rows[0, outcome])
            if probabilities:
                record["probability"] = _by_label(model, rows[0])
        results.append(record)
    return results


def _shown(example: Example, kind: str) -> dict[str, Any]:
    if kind == "token_classification":
        return {"words": [*example.words]}
    if kind == "question_answering":
        return {"id": example.key, "question": example.text}
    return {"text": example.text} | ({} if example.text_pair is None else {"text_pair": example.text_pair})


def _by_label(model: TrainedModel, shares: Any) -> dict[str, float]:
    return {label: _rounded(share) for label, share in zip(model.labels, shares, strict=True)}


def _rounded(share: Any) -> float:
    return round(float(share), 6)
