"""`maskwright data pregenerate`, with the names of pytorch-transformers' script, underscores and hyphens alike."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from maskwright.cli.options import (
    AsJson,
    Encoding,
    Layout,
    OnBadInput,
    TextColumn,
    data_app,
    open_sources,
    print_result,
)
from maskwright.core import storage
from maskwright.core.console import say


def _named(name: str, *more: str, **described: Any) -> Any:
    return typer.Option(f"--{name}", f"--{name.replace('_', '-')}", *more, **described)


TrainCorpus = Annotated[
    str, _named("train_corpus", metavar="GLOB", help="Text: a file, a folder, a glob in quotes or a URL.")
]
BertModel = Annotated[
    str,
    _named("bert_model", metavar="PATH", help="Tokenizer folder, or hf://OWNER/NAME@REVISION of a model on the Hub."),
]
OutputDir = Annotated[
    str, _named("output_dir", "--output", metavar="DIR", help="Folder to write.", callback=storage.require_local)
]
Epochs = Annotated[
    int, _named("epochs_to_generate", metavar="N", help="Epochs to write, each a pass over all text with new masks.")
]
MaxSeqLen = Annotated[int, _named("max_seq_len", metavar="N", help="Longest example in tokens, special ones included.")]
ShortSeqProb = Annotated[
    float, _named("short_seq_prob", metavar="SHARE", help="Share of documents that are cut to a shorter length.")
]
MaskedLmProb = Annotated[
    float, _named("masked_lm_prob", metavar="SHARE", help="Share of an example's tokens to predict.")
]
MaxPredictions = Annotated[int, _named("max_predictions_per_seq", metavar="N", help="Most predictions in an example.")]
WholeWords = Annotated[bool, _named("do_whole_word_mask", help="Mask whole words, as the tokenizer spells them.")]
NextSentences = Annotated[
    bool,
    _named(
        "do_next_sent_prediction",
        help="Make pairs of segments, half of them of two documents. Training here predicts only masked tokens.",
    ),
]
Workers = Annotated[int, _named("num_workers", metavar="N", help="Processes; any number writes the same files.", min=1)]
ReduceMemory = Annotated[bool, _named("reduce_memory", help="Always so: memory is bounded, whatever the text's size.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Random seed.")]


@data_app.command("pregenerate")
def data_pregenerate(
    train_corpus: TrainCorpus,
    bert_model: BertModel,
    output_dir: OutputDir,
    epochs_to_generate: Epochs = 3,
    max_seq_len: MaxSeqLen = 128,
    short_seq_prob: ShortSeqProb = 0.1,
    masked_lm_prob: MaskedLmProb = 0.15,
    max_predictions_per_seq: MaxPredictions = 20,
    do_whole_word_mask: WholeWords = False,
    do_next_sent_prediction: NextSentences = False,
    num_workers: Workers = 1,
    reduce_memory: ReduceMemory = False,
    seed: Seed = 0,
    layout: Layout = "sentences",
    text_column: TextColumn = "text",
    on_bad_input: OnBadInput = "error",
    encoding: Encoding = "utf-8",
    as_json: AsJson = False,
) -> None:
    """Write epochs of examples with static masks, in the format of pytorch-transformers' script."""
    from maskwright.data.pregenerate.generate import pregenerate
    from maskwright.data.pregenerate.sequences import PregenerateOptions
    from maskwright.tasks.models.hub import local

    tokenizer = local(bert_model, weights=False)
    options = PregenerateOptions(
        epochs_to_generate=epochs_to_generate,
        max_seq_len=max_seq_len,
        short_seq_prob=short_seq_prob,
        masked_lm_prob=masked_lm_prob,
        max_predictions_per_seq=max_predictions_per_seq,
        do_whole_word_mask=do_whole_word_mask,
        do_next_sent_prediction=do_next_sent_prediction,
        seed=seed,
    )
    sources = open_sources([train_corpus], layout, text_column, on_bad_input=on_bad_input, encoding=encoding)
    if do_next_sent_prediction:
        say("pretrain predicts only masked tokens; is_random_next is for other trainers")
    examples = pregenerate(sources, tokenizer, output_dir, options, workers=num_workers)
    lines = [
        f"{output_dir}: {len(examples)} epochs of {', '.join(f'{count:,}' for count in examples)} examples",
        f"train from it with --set data.store={output_dir} --set data.format=pregenerated",
    ]
    print_result("\n".join(lines), {"folder": output_dir, "examples": examples}, as_json)
