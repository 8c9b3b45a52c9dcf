"""The peer: Hugging Face Trainer on the same examples, in a process of its own. Prints one JSON line.

    python hf_finetune.py MODEL TRAIN.csv --text text --label category --examples 32 --steps 30

As run_glue.py has it: dynamic padding to the longest of the batch, 128 tokens at most, bf16, the model's own dropout.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from typing import Any

import torch
import transformers
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class Clock(TrainerCallback):
    """When each step ended, and the processor time until then."""

    def __init__(self) -> None:
        self.ends: list[tuple[float, float]] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append((time.perf_counter(), time.process_time()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("train")
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--label", required=True)
    parser.add_argument("--examples", type=int, default=32)
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    transformers.set_seed(0)
    with open(arguments.train, newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    if arguments.label.isdigit():
        texts, label = [int(name) for name in arguments.text], int(arguments.label)
    else:
        header = rows.pop(0)
        texts, label = [header.index(name) for name in arguments.text], header.index(arguments.label)
    number = {name: at for at, name in enumerate(sorted({row[label] for row in rows}))}
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    encoded = tokenizer([" ".join(row[at] for at in texts) for row in rows], truncation=True, max_length=128)
    examples = [
        {"input_ids": ids, "attention_mask": mask, "labels": number[row[label]]}
        for ids, mask, row in zip(encoded["input_ids"], encoded["attention_mask"], rows, strict=True)
    ]
    model = AutoModelForSequenceClassification.from_pretrained(arguments.model, num_labels=len(number))
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=arguments.examples,
                max_steps=arguments.steps,
                report_to=[],
                save_strategy="no",
                logging_steps=10**6,
                disable_tqdm=True,
                bf16=True,
                use_cpu=not torch.cuda.is_available(),
            ),
            train_dataset=examples,
            data_collator=DataCollatorWithPadding(tokenizer),
            callbacks=[clock],
        ).train()
    kept = clock.ends[arguments.steps // 4 - 1 :]
    seconds = [after[0] - before[0] for before, after in zip(kept, kept[1:], strict=False)]
    wall, used = kept[-1][0] - kept[0][0], kept[-1][1] - kept[0][1]
    result = {
        "step_seconds": statistics.median(seconds),
        "examples_per_second": arguments.examples / statistics.median(seconds),
        "cpu_share": used / wall / len(os.sched_getaffinity(0)),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
