"""`maskwright data pregenerate`, with the names of pytorch-transformers' script, with underscores or hyphens."""

from __future__ import annotations

from typing import Annotated

from maskwright.cli.manual import Without, command
from maskwright.cli.options import AsJson, data_app, print_result
from maskwright.core import storage
from maskwright.core.console import say
from maskwright.tasks.store import TextReading


@command(data_app, "pregenerate", hidden=True)
def data_pregenerate(
    train_corpus: str,
    bert_model: str,
    output_dir: str,
    epochs_to_generate: int = 3,
    max_seq_len: int = 128,
    short_seq_prob: float = 0.1,
    masked_lm_prob: float = 0.15,
    max_predictions_per_seq: int = 20,
    do_whole_word_mask: bool = False,
    do_next_sent_prediction: bool = False,
    num_workers: int = 1,
    reduce_memory: bool = False,
    seed: int = 0,
    reading: Annotated[TextReading, Without(frozenset({"letters"}))] = TextReading(layout="sentences"),
    as_json: AsJson = False,
) -> None:
    """Write epochs of examples with static masks, in the format of pytorch-transformers' script.

    --train_corpus,--train-corpus GLOB: Text: a file, a folder, a glob in quotes or a URL.
    --bert_model,--bert-model PATH: Tokenizer folder, or hf://OWNER/NAME@REVISION of a model on the Hub.
    --output_dir,--output-dir,--output DIR: Folder to write.
    --epochs_to_generate,--epochs-to-generate N: Epochs to write: passes over all text, each with new masks.
    --max_seq_len,--max-seq-len N: Maximum tokens in an example, including special tokens.
    --short_seq_prob,--short-seq-prob SHARE: Share of documents to cut to a shorter length.
    --masked_lm_prob,--masked-lm-prob SHARE: Share of an example's tokens to predict.
    --max_predictions_per_seq,--max-predictions-per-seq N: Maximum predictions in an example.
    --do_whole_word_mask,--do-whole-word-mask: Mask whole words, as the tokenizer spells them.
    --do_next_sent_prediction,--do-next-sent-prediction: Write pairs of segments, half of them from two documents.
        `pretrain` predicts only masked tokens.
    --num_workers,--num-workers 1≤N: Processes; any number writes the same files.
    --reduce_memory,--reduce-memory: No effect: memory is always bounded.
    --seed N: Random seed.
    """
    from maskwright.data.pregenerate.generate import pregenerate
    from maskwright.data.pregenerate.sequences import PregenerateOptions
    from maskwright.tasks.models.hub import local

    storage.require_local(output_dir)
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
    sources = reading.open([train_corpus])
    if do_next_sent_prediction:
        say("pretrain predicts only masked tokens; is_random_next is for other trainers")
    examples = pregenerate(sources, tokenizer, output_dir, options, workers=num_workers)
    lines = [
        f"{output_dir}: {len(examples)} epochs of {', '.join(f'{count:,}' for count in examples)} examples",
        f"train from it with --set data.store={output_dir} --set data.format=pregenerated",
    ]
    print_result("\n".join(lines), {"folder": output_dir, "examples": examples}, as_json)
