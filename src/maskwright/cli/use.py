"""The commands that put a trained model to use."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from maskwright.cli.options import AsJson, Device, EncodingOfFile, Model, app, print_result

Text = Annotated[
    list[str] | None,
    typer.Option(
        "--text",
        metavar="COLUMN",
        help="Column of the text, or its number from 0 in a file without a header line; several are joined by a "
        "space. When not given, it is the run's own, or one of GLUE's names.",
    ),
]
MaxSeqLen = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Tokens of a text that the model reads. When not given, as many as in its fine-tuning, or all "
        "that it takes where that is not known.",
        min=8,
    ),
]
SkipBadInput = Annotated[
    Literal["error", "skip"],
    typer.Option("--on-bad-input", help="Records that cannot be read: stop, or leave them out and name them."),
]


@app.command("predict")
def predict(
    model: Model,
    source: Annotated[
        str,
        typer.Option(
            "--input",
            metavar="FILE",
            help="Texts to read: .csv, .tsv, .jsonl, .parquet, .txt with a text a line; CoNLL columns for words, "
            "SQuAD's .json for questions.",
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            metavar="FILE",
            help="File to write: .jsonl, .csv, .tsv or .parquet; .conll for words; .json for questions, with an answer "
            "for each id, as SQuAD's script reads it.",
        ),
    ],
    text: Text = None,
    text_pair: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of a pair's second text, or of a question's context.")
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Write the probability of every label too.")
    ] = False,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=0.999,
            metavar="P",
            help="Where a text may have several labels: those with a probability above it. When not given, as in "
            "training, where 0.5 is the default.",
        ),
    ] = None,
    no_answer: Annotated[
        bool | None,
        typer.Option(
            "--no-answer/--always-answer",
            help="Whether questions may have no answer, as in SQuAD 2, and then get an empty text. When not given, as "
            "in training; a folder that does not tell always answers.",
        ),
    ] = None,
    max_seq_len: MaxSeqLen = None,
    on_bad_input: SkipBadInput = "error",
    encoding: EncodingOfFile = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Write what a fine-tuned model says of each text: labels, numbers, tags or answers."""
    from maskwright.tasks.models.load import load_model
    from maskwright.tasks.use import predict as task

    options = task.TextOptions(tuple(text or ()), text_pair, (), max_seq_len, on_bad_input == "skip", encoding=encoding)
    trained = load_model(model) if threshold is None else load_model(model).with_threshold(threshold)
    written = task.predict(
        trained, source, output, options=options, device=device, probabilities=probabilities, may_be_none=no_answer
    )
    if as_json:
        print_result("", {"output": output, "predictions": written}, True)


@app.command("embed")
def embed(
    model: Model,
    source: Annotated[
        str,
        typer.Option(
            "--input", metavar="FILE", help="Texts to read: .csv, .tsv, .jsonl, .parquet, or .txt with a text a line."
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output", metavar="FILE", help="File to write: .npy for the vectors alone, .parquet beside the texts."
        ),
    ],
    text: Text = None,
    max_seq_len: MaxSeqLen = None,
    on_bad_input: SkipBadInput = "error",
    encoding: EncodingOfFile = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Write a vector for each text: the mean of its tokens' last hidden states."""
    from maskwright.tasks.models.load import load_model
    from maskwright.tasks.use import embed as task
    from maskwright.tasks.use.predict import TextOptions

    options = TextOptions(tuple(text or ()), None, (), max_seq_len, on_bad_input == "skip", encoding=encoding)
    count, width = task.embed(load_model(model, bare=True), source, output, options=options, device=device)
    if as_json:
        print_result("", {"output": output, "vectors": count, "width": width}, True)
