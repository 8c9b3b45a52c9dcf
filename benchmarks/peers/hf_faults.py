"""Hugging Face Trainer for `faults.py`: a masked-LM run as run_mlm makes it, in a process of its own.

    python hf_faults.py STORE --to FOLDER --steps 40 --save-every 10 [--stop-after 20] [--init-from MODEL]
    python hf_faults.py STORE --to FOLDER --steps 40 --save-every 10 --resume [CHECKPOINT]

`TrainingArguments()` and `RobertaConfig()` as they are (fp32, dropout 0.1), but for the numbers of steps and rows, a
log line at each step and, where it is given, the learning rate. Masks are drawn by its own collator, per batch.
`FOLDER/metrics.jsonl` gets each step's numbers, stderr the step that training began at. Nothing is caught: it ends as
Trainer does.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import transformers
from hf_trainer import Rows, group_texts, model_of, tokenizer_of
from transformers import (
    DataCollatorForLanguageModeling,
    RobertaForMaskedLM,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from maskwright.config.pretraining import ModelSection
from maskwright.data.store import TokenStore

SEED = 0


class Watch(TrainerCallback):
    """Writes down what Trainer logs, and stops after `stop_after` steps."""

    def __init__(self, metrics: Path, stop_after: int | None) -> None:
        self.metrics, self.stop_after = metrics, stop_after

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        print(f"continuing at step {state.global_step}", file=sys.stderr)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        control.should_training_stop = control.should_training_stop or state.global_step == self.stop_after

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: dict[str, Any], **_: Any) -> None:
        if "loss" in logs:
            with self.metrics.open("a") as file:
                file.write(json.dumps({"step": state.global_step, **logs}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--size", default="nano")
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--save-every", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, default=TrainingArguments.learning_rate)
    parser.add_argument("--stop-after", type=int)
    parser.add_argument("--init-from")
    parser.add_argument("--resume", nargs="?", const=True)
    options = parser.parse_args()
    store = TokenStore(options.store)
    transformers.set_seed(SEED)
    if options.init_from:
        model = RobertaForMaskedLM.from_pretrained(options.init_from)
    else:
        model = model_of(
            store, ModelSection(size=options.size, hidden_dropout=0.1, attention_dropout=0.1), options.seq_len
        )
    options.to.mkdir(exist_ok=True)
    Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(options.to),
            per_device_train_batch_size=options.rows,
            max_steps=options.steps,
            save_steps=options.save_every,
            learning_rate=options.learning_rate,
            logging_steps=1,
            seed=SEED,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=Rows(group_texts(store, options.seq_len), store.vocabulary.special),
        data_collator=DataCollatorForLanguageModeling(tokenizer_of(store), mlm_probability=0.15),
        callbacks=[Watch(options.to / "metrics.jsonl", options.stop_after)],
    ).train(resume_from_checkpoint=options.resume)


if __name__ == "__main__":
    main()
