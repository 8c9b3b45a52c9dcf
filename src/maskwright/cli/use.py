"""The commands that put a trained model to use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from maskwright.cli.manual import command
from maskwright.cli.options import AsJson, Device, EncodingOfFile, Model, app, print_result

if TYPE_CHECKING:
    from maskwright.tasks.use.predict import TextOptions


@dataclass(frozen=True)
class Texts:
    """Texts to read, and what is made of them.

    source --input FILE: Texts to read: .csv, .tsv, .jsonl, .parquet, or .txt with a text a line.
    --text COLUMN: Column of the text, or its number from 0 in a file without a header line; several are joined by a
        space. When not given, it is the run's own, or one of GLUE's names.
    --max-seq-len 8≤N: Tokens of a text that the model reads. When not given, as many as in its fine-tuning, or all that
        it takes where that is not known.
    --on-bad-input: Records that cannot be read: stop, or leave them out and name them.
    """

    source: str
    text: tuple[str, ...] = ()
    max_seq_len: int | None = None
    on_bad_input: Literal["error", "skip"] = "error"
    encoding: EncodingOfFile = None
    device: Device = "auto"

    def options(self, text_pair: str | None = None) -> TextOptions:
        from maskwright.tasks.use.predict import TextOptions

        skip = self.on_bad_input == "skip"
        return TextOptions(self.text, text_pair, (), self.max_seq_len, skip, encoding=self.encoding)


@command(app, "predict")
def predict(
    model: Model,
    texts: Texts,
    output: str,
    text_pair: str | None = None,
    probabilities: bool = False,
    threshold: float | None = None,
    no_answer: bool | None = None,
    as_json: AsJson = False,
) -> None:
    """Write what a fine-tuned model says of each text: labels, numbers, tags or answers. It reads CoNLL columns for
    words and SQuAD's .json for questions too.

    --output FILE: File to write: .jsonl, .csv, .tsv or .parquet; .conll for words; .json for questions, with an answer
        for each id, as SQuAD's script reads it.
    --text-pair COLUMN: Column of a pair's second text, or of a question's context.
    --probabilities: Write the probability of every label too.
    --threshold 0.001≤P≤0.999: Where a text may have several labels: those with a probability above it. When not given,
        as in training, where 0.5 is the default.
    --no-answer/--always-answer: Whether questions may have no answer, as in SQuAD 2, and then get an empty text. When
        not given, as in training; a folder that does not say so always answers.
    """
    from maskwright.tasks.models.load import load_model
    from maskwright.tasks.use import predict as task

    trained = load_model(model) if threshold is None else load_model(model).with_threshold(threshold)
    how: Any = {"device": texts.device, "probabilities": probabilities, "may_be_none": no_answer}
    written = task.predict(trained, texts.source, output, options=texts.options(text_pair), **how)
    if as_json:
        print_result("", {"output": output, "predictions": written}, True)


@command(app, "embed")
def embed(model: Model, texts: Texts, output: str, as_json: AsJson = False) -> None:
    """Write a vector for each text: the mean of its tokens' last hidden states.

    --output FILE: File to write: .npy for the vectors alone, .parquet beside the texts.
    """
    from maskwright.tasks.models.load import load_model
    from maskwright.tasks.use import embed as task

    trained = load_model(model, bare=True)
    count, width = task.embed(trained, texts.source, output, options=texts.options(), device=texts.device)
    if as_json:
        print_result("", {"output": output, "vectors": count, "width": width}, True)
