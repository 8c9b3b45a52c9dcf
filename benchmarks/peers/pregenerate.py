"""The peer: allenai/tpu_pretrain's own `pregenerate_training_data.py`, run unchanged on one file, one epoch.

    git clone https://github.com/allenai/tpu_pretrain
    pip install pytorch_transformers==1.2.0 natsort

It asks its tokenizer from a server by name; here it gets the same class with the vocabulary of a local folder
(`vocab.json` and `merges.txt` are written from `tokenizer.json`).
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Callable


def prepare(script: str, text: str, tokenizer: str, folder: str) -> Callable[[], object]:
    """Imports what the script imports and returns what runs it, so that a clock can start in between."""
    from pytorch_transformers.tokenization_auto import AutoTokenizer
    from pytorch_transformers.tokenization_roberta import RobertaTokenizer

    with open(os.path.join(tokenizer, "tokenizer.json"), encoding="utf-8") as file:
        model = json.load(file)["model"]
    vocabulary, merges = os.path.join(folder, "vocab.json"), os.path.join(folder, "merges.txt")
    with open(vocabulary, "w", encoding="utf-8") as file:
        json.dump(model["vocab"], file)
    with open(merges, "w", encoding="utf-8") as file:
        pairs = (pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"])
        file.write("#version: 0.2\n" + "\n".join(pairs) + "\n")
    AutoTokenizer.from_pretrained = lambda name: RobertaTokenizer(vocabulary, merges)
    out = os.path.join(folder, "epochs")
    lengths = ["--max_seq_len", "512", "--max_predictions_per_seq", "77"]
    options = ["--bert_model", "roberta-base", "--epochs_to_generate", "1", *lengths]
    sys.argv = [script, "--train_corpus", text, "--output_dir", out, *options]
    return lambda: runpy.run_path(script, run_name="__main__")
