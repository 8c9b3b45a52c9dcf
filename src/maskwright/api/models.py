"""A loaded model: fill masks, predict labels, embed texts, export."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from maskwright.api.given import Device, Dtype, Location, checked, location, shown
from maskwright.config.finetuning import LabelledData, labelled_data
from maskwright.config.settings import Count
from maskwright.core.errors import InputError
from maskwright.engines.base import Engine
from maskwright.labels.annotations import in_words
from maskwright.labels.example import Example
from maskwright.tasks.export.sentence_transformers import Kind, export_as
from maskwright.tasks.models.load import TrainedModel, load_model
from maskwright.tasks.use import embed, fill, predict
from maskwright.tasks.use.fill import Guess

Given = str | Sequence[str] | tuple[str, str]
"""A text, the words of one that is tagged, or two texts: a pair, or a question and its context."""


@dataclass(frozen=True)
class Model:
    """See `load`."""

    trained: TrainedModel
    device: str = "auto"
    dtype: str = "fp32"

    def __repr__(self) -> str:
        return f"Model({self.trained.location!r}, task={self.task!r})"

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of a fine-tuned model, if it has any."""
        return self.trained.labels

    @property
    def task(self) -> str:
        """`masked_lm`, or the fine-tuned task, such as `single_label_classification`."""
        return self.trained.task.kind if self.trained.task else "masked_lm"

    @checked
    def fill(self, text: str, *, top: Count = 5) -> list[list[Guess]]:
        """For each mask of the text, in the tokenizer's form (`<mask>`, `[MASK]`), the likeliest tokens with their
        probabilities. Raises `InputError` unless it is a single text, with a mask, and not too long."""
        return fill.fill(self.whole, text, top=top)

    @checked
    def embed(
        self,
        texts: Sequence[str],
        *,
        prompt: str | None = None,
        max_seq_len: Annotated[int, Field(ge=8)] | None = None,
    ) -> NDArray[np.float32]:
        """[texts, D] fp32: for each text the mean of its tokens' last hidden states, or in a folder of
        sentence-transformers what its modules make. `prompt`: one of that folder's prompts by name, such as `query`,
        to put before each text; default: the folder's own default. `max_seq_len`: tokens of a text that the model
        reads; default: as in its fine-tuning or those modules, else the model's maximum. The number of texts that were
        cut is printed on stderr."""
        length = predict.row_length(self.trained, embed.TEXTS, self._data(max_seq_len))
        return embed.vectors(self.trained, _examples(texts, "single"), length, self.device, prompt, self.dtype)

    @checked
    def predict(
        self,
        texts: Sequence[Given],
        *,
        probabilities: bool = False,
        max_seq_len: Annotated[int, Field(ge=8)] | None = None,
    ) -> list[dict[str, Any]]:
        """A fine-tuned model's prediction for each text, in their order: the records of `maskwright predict` (docs/
        export.md#predict-and-embed), such as `{"text": …, "label": …, "score": …}`.

        A text is a string, a pair (text, text) or (question, context), or the words of one to tag; a string is
        split at white space and punctuation. The number of texts that were cut is printed on stderr. Raises
        `InputError` for a model that has learned no task, a question without its context, and for probabilities of a
        model without them."""
        task = self.trained.require_task()
        kinds = {"token_classification": "words", "question_answering": "question"}
        examples = _examples(texts, kinds.get(task.kind, "text"))
        if probabilities:
            predict.require_probabilities(self.trained)
        length = predict.row_length(self.trained, task, self._data(max_seq_len))
        none = self.trained.may_be_none or False
        answers, _ = predict.ask(self._engine, self.trained, examples, length, may_be_none=none)
        records = predict.records(self.trained, examples, answers, probabilities=probabilities)
        return [{key: value for key, value in record.items() if key not in ("line", "id")} for record in records]

    @checked
    def export(
        self,
        to: Location,
        *,
        onnx: bool = False,
        sentence_transformers: Kind | None = None,
        relevant: str | None = None,
    ) -> str:
        """See `Run.export`."""
        folder = location(to)
        model = self.trained if sentence_transformers == "dense" else self.whole
        export_as(sentence_transformers, model, folder, relevant=relevant, onnx=onnx)
        return folder

    @cached_property
    def whole(self) -> TrainedModel:
        """The model with its head. Raises `ModelError` for a folder that holds an encoder alone, which is enough to
        embed."""
        return self.trained if self.trained.run or self.trained.task else load_model(self.trained.location)

    @cached_property
    def _engine(self) -> Engine:
        return predict.engine_for(self.trained, self.device, self.dtype)

    def _data(self, max_seq_len: int | None) -> LabelledData:
        wanted = self.trained.max_seq_len if max_seq_len is None else max_seq_len
        return labelled_data("texts", train="", max_seq_len=wanted)


@checked
def load(model: Location, *, device: Device = "auto", dtype: Dtype = "fp32") -> Model:
    """The model of a run (its best or newest checkpoint), of a folder that `transformers` reads, or
    `hf://OWNER/NAME@REVISION`. `device`: `cpu`, `cuda`, or `auto`, the best there is. `dtype`: the precision of
    `predict` and `embed`; `bf16` and, on a GPU, `fp16` may be faster than `fp32`.

    Raises `InputError`, `ModelError` or `CheckpointError` without a usable model."""
    return Model(load_model(location(model), bare=True), device, dtype)


def _examples(given: Sequence[Given], kind: str) -> list[Example]:
    """`given` may be a column of a data frame. `kind`: words, question, text, which may be a pair, or single, which may
    not. Raises `InputError` for anything but a sequence of such texts."""
    if isinstance(given, str | Mapping | set) or hasattr(given, "columns") or not isinstance(given, Iterable):
        fix = "give a list, even of one text, or a column of a table"
        raise InputError(f"{shown(given)} is no list of texts", where="texts", fix=fix)
    texts = list(given)
    if not texts:
        raise InputError("the list is empty", where="texts", fix="give a list of texts, even of one")
    examples = []
    for number, text in enumerate(texts, start=1):
        where = f"texts:{number}"
        is_single = isinstance(text, str | Mapping | set) or not isinstance(text, Iterable)
        parts: list[Any] = [text] if is_single else [*text]
        if any(not isinstance(part, str) for part in parts):
            raise InputError(f"{shown(text)} is no text", where=where, fix="give strings")
        if any(not part.strip() for part in parts):
            raise InputError("is empty" if len(parts) < 2 else "has an empty part", where=where, fix="remove it")
        if kind == "words":
            example = Example("texts", number)
            words = replace(example, words=tuple(parts))
            examples.append(in_words(example, text) if isinstance(text, str) else words)
        elif kind == "question" and len(parts) != 2:
            raise InputError("is not a question with its context", where=where, fix="give both, in a tuple")
        elif len(parts) > (1 if kind == "single" else 2) or not parts:
            fix = "give one text" + (", or two in a tuple" if kind == "text" else "")
            raise InputError(f"has {len(parts)} parts", where=where, fix=fix)
        else:
            examples.append(Example("texts", number, text=parts[0], text_pair=parts[1] if len(parts) == 2 else None))
    return examples
