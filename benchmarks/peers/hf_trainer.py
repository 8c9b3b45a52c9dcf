"""The peer: Hugging Face Trainer on the same rows, in a process of its own. Prints one JSON line.

    python hf_trainer.py STORE --size base --seq-len 512 --rows 8 --steps 8 [--defaults]          tokens/s
    python hf_trainer.py STORE --size mini --seq-len 128 --rows 32 --seconds 480 --to FOLDER …    a trained model

Its best settings are bf16 (fp32 on a CPU that multiplies it faster), no dropout, SDPA, torch.compile; `--defaults` is
what `TrainingArguments()` and `RobertaConfig()` give (fp32, dropout 0.1, eager). Its rows are what run_mlm's
group_texts makes of the store's own training documents: framed, joined, cut at the row length; masks come from its own
collator, per batch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import (
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

sys.path.insert(0, str(Path(__file__).parents[1]))

from timing import Steps, peak_memory_bytes

from maskwright.config.pretraining import ModelSection
from maskwright.data.store import TokenStore
from maskwright.machine import hardware
from maskwright.model.config import model_config
from maskwright.model.hf.config import to_hf_config


def group_texts(store: TokenStore, seq_len: int) -> np.ndarray:
    """[rows, seq_len] of the training documents, each framed by <s> and </s>, joined and cut."""
    split, ids = store.split("train"), store.vocabulary
    pieces = []
    for shard_idx, shard in enumerate(split.shards):
        starts, document_ends = shard.documents_at()
        lengths = document_ends - starts
        ones = np.ones_like(lengths)
        pieces.append(split.gather(shard_idx, starts, lengths, ones, ones))
        ends = np.cumsum(lengths + 2)
        pieces[-1][ends - lengths - 2], pieces[-1][ends - 1] = ids.bos, ids.eos
    stream = np.concatenate(pieces)
    return stream[: len(stream) // seq_len * seq_len].reshape(-1, seq_len)


class Rows(torch.utils.data.Dataset):
    """With the mask of special tokens made once, which the collator would else make for each batch in Python."""

    def __init__(self, rows: np.ndarray, special: frozenset[int]) -> None:
        self.rows = torch.from_numpy(rows.astype(np.int64))
        self.special = torch.from_numpy(np.isin(rows, sorted(special)).astype(np.int64))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.rows[index], "special_tokens_mask": self.special[index]}


class Clock(Steps, TrainerCallback):
    """From the end of each group of steps to the end of the next."""

    def __init__(self, together: int) -> None:
        super().__init__(together, torch.cuda.synchronize if torch.cuda.is_available() else lambda: None)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.end_step()


def model_of(store: TokenStore, model: ModelSection, seq_len: int, **dropout: float) -> transformers.PreTrainedModel:
    """Of the shape that our side has, with weights that transformers draws."""
    shape = model_config(model, store.vocabulary.size, seq_len)
    values = to_hf_config(shape) | dropout
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    return transformers.AutoModelForMaskedLM.from_config(config)


def tokenizer_of(store: TokenStore) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_file=f"{store.tokenizer_folder}/tokenizer.json",
        bos_token="<s>", cls_token="<s>", eos_token="</s>", sep_token="</s>", pad_token="<pad>", unk_token="<unk>",
        mask_token="<mask>",
    )  # fmt: skip


def train(arguments: argparse.Namespace, steps: int, store: TokenStore, rows: np.ndarray) -> tuple[Clock, Any]:
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1} if arguments.defaults else {}
    transformers.set_seed(arguments.seed)
    model = model_of(
        store, ModelSection(size=arguments.size, **json.loads(arguments.model)), arguments.seq_len, **dropout
    )
    recipe: dict[str, Any] = {}
    if not arguments.defaults:
        recipe = {
            "bf16": arguments.dtype == "auto" and (torch.cuda.is_available() or hardware.cpu_multiplies_bf16_faster()),
            "torch_compile": not arguments.no_compile,
            "learning_rate": arguments.learning_rate,
            "warmup_steps": int(0.06 * steps),
            "weight_decay": 0.01,
            "adam_beta2": 0.98,
            "adam_epsilon": 1e-6,
        }
    clock = Clock(arguments.together)
    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=arguments.rows,
                max_steps=steps,
                seed=arguments.seed,
                report_to=[],
                save_strategy="no",
                logging_steps=10**6,
                disable_tqdm=True,
                use_cpu=not torch.cuda.is_available(),
                dataloader_num_workers=4 if torch.cuda.is_available() else 0,
                **recipe,
            ),
            train_dataset=Rows(rows, store.vocabulary.special),
            data_collator=DataCollatorForLanguageModeling(tokenizer_of(store), mlm_probability=0.15),
            callbacks=[clock],
        ).train()
    return clock, model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("--size", default="base")
    parser.add_argument("--model", default="{}", help="JSON: other keys of the model section")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--dtype", choices=("auto", "fp32"), default="auto")
    parser.add_argument("--together", type=int, default=1)
    parser.add_argument("--defaults", action="store_true")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--to")
    arguments = parser.parse_args()
    store = TokenStore(arguments.store)
    rows = group_texts(store, arguments.seq_len)
    steps = arguments.steps
    if arguments.seconds:
        # Fifteen steps, so that the real run's schedule ends on time; they also fill the compiler's cache.
        trial, _ = train(arguments, 15, store, rows)
        steps = int(arguments.seconds / statistics.median(trial.seconds[5:]))
    begin = time.perf_counter()
    clock, model = train(arguments, steps, store, rows)
    result = {
        "steps": steps,
        "step_seconds": clock.median,
        "tokens_per_second": arguments.rows * arguments.seq_len / clock.median,
        # Start-up and compilation left out, as if they cost nothing.
        "training_seconds": (sum(clock.seconds[1:]) + clock.median) * arguments.together,
        "peak_memory_bytes": peak_memory_bytes(),
        "wall_seconds": time.perf_counter() - begin,
    }
    if arguments.to:
        model.to(torch.float32).save_pretrained(arguments.to)
        PreTrainedTokenizerFast(tokenizer_file=f"{store.tokenizer_folder}/tokenizer.json").save_pretrained(arguments.to)
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
