"""The commands that put a trained model to use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from maskwright.cli.manual import command
from maskwright.cli.options import AsJson, Device, DtypeOfUse, EncodingOfFile, Model, app, print_result

if TYPE_CHECKING:
    from maskwright.tasks.use.predict import TextOptions


@dataclass(frozen=True)
class Texts:
    """Texts to read, and what is made of them.

    source --input FILE: Texts: .csv, .tsv, .jsonl, .parquet, FASTA, or .txt with one text per line.
    text --text-column COLUMN: Column of the text, or its number from 0 in a file without a header line; several are
        joined by a space. Default: as in the run, or as GLUE names it.
    --max-seq-len 8≤N: Maximum tokens per text. Default: as in fine-tuning, else the tokenizer's or the model's maximum.
    --on-bad-input: At a record that cannot be read: stop, or skip and report it.
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
    dtype: DtypeOfUse = "fp32",
    as_json: AsJson = False,
) -> None:
    """Write a fine-tuned model's prediction for each text: labels, numbers, tags or answers. Also reads CoNLL columns
    (tags) and SQuAD's .json (questions).

    output --to FILE: File to write: .jsonl, .csv, .tsv or .parquet; .conll for tags; .json for questions, with the
        answer to each id, as SQuAD's script reads it.
    --text-pair COLUMN: Column of a pair's second text, or of a question's context.
    --probabilities: Also write the probability of every label.
    --threshold 0.001≤P≤0.999: For several labels per text, write the labels with a probability above this. Default: as
        in training (0.5 unless set).
    --no-answer/--always-answer: Whether questions may be unanswerable, as in SQuAD 2; their answer is empty. Default:
        as in training; if the folder does not record it, always answer.
    """
    from maskwright.tasks.models.load import load_model
    from maskwright.tasks.use import predict as task

    trained = load_model(model) if threshold is None else load_model(model).with_threshold(threshold)
    how: Any = {"device": texts.device, "dtype": dtype, "probabilities": probabilities, "may_be_none": no_answer}
    written = task.predict(trained, texts.source, output, options=texts.options(text_pair), **how)
    print_result(None, {"output": output, "predictions": written}, as_json)


@command(app, "embed")
def embed(
    model: Model,
    texts: Texts,
    output: str,
    prompt: str | None = None,
    dtype: DtypeOfUse = "fp32",
    as_json: AsJson = False,
) -> None:
    """Write a vector for each text: the mean of its tokens' last hidden states, unless modules.json takes the first's.

    output --to FILE: File to write: .npy for the vectors alone, .parquet for vectors and texts.
    prompt --prompt NAME: Prompt of a folder of sentence-transformers to put before each text, such as query. Default:
        the folder's default_prompt_name, else none.
    """
    from maskwright.tasks.models.load import load_model
    from maskwright.tasks.use import embed as task

    trained = load_model(model, bare=True)
    how: Any = {"prompt": prompt, "device": texts.device, "dtype": dtype}
    count, width = task.embed(trained, texts.source, output, options=texts.options(), **how)
    print_result(None, {"output": output, "vectors": count, "width": width}, as_json)
