"""The peer: Hugging Face Trainer on the same examples, in a process of its own. Prints one JSON line.

    python hf_finetune.py MODEL TRAIN.csv --text text --label category --examples 32 --steps 30

As in run_glue.py: dynamic padding to the longest of the batch, 128 tokens at most, the model's own dropout, and bf16
or, on a CPU that multiplies it faster, fp32.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from pathlib import Path
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

sys.path.insert(0, str(Path(__file__).parents[1]))

from finetune_side import Clock, arguments

from maskwright.machine import hardware


class Tick(TrainerCallback):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.clock.tick()


def main() -> None:
    given = arguments()
    transformers.set_seed(0)
    with open(given.train, newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    if given.label.isdigit():
        texts, label = [int(name) for name in given.text], int(given.label)
    else:
        header = rows.pop(0)
        texts, label = [header.index(name) for name in given.text], header.index(given.label)
    number = {name: at for at, name in enumerate(sorted({row[label] for row in rows}))}
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    encoded = tokenizer([" ".join(row[at] for at in texts) for row in rows], truncation=True, max_length=128)
    examples = [
        {"input_ids": ids, "attention_mask": mask, "labels": number[row[label]]}
        for ids, mask, row in zip(encoded["input_ids"], encoded["attention_mask"], rows, strict=True)
    ]
    model = AutoModelForSequenceClassification.from_pretrained(given.model, num_labels=len(number))
    clock = Clock(given)
    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=given.examples,
                max_steps=given.steps,
                report_to=[],
                save_strategy="no",
                logging_steps=10**6,
                disable_tqdm=True,
                bf16=torch.cuda.is_available() or hardware.cpu_multiplies_bf16_faster(),
                use_cpu=not torch.cuda.is_available(),
            ),
            train_dataset=examples,
            data_collator=DataCollatorWithPadding(tokenizer),
            callbacks=[Tick(clock)],
        ).train()
    clock.report()


if __name__ == "__main__":
    main()
