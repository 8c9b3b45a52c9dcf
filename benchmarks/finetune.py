"""Fine-tuning against Hugging Face Trainer at equal settings, on texts of many lengths: examples a second, memory.

    python benchmarks/finetune.py banking77-mini --tokenizer FOLDER --data FOLDER     also ag-news-mini, banking77-base

`FOLDER` of the data holds banking77/train.csv and ag_news/test.csv; the tokenizer's folder, a byte-level
tokenizer.json. The encoder is a RoBERTa with random weights: speed does not depend on them. Both sides compute with the
dropout of RoBERTa, 32 examples a step of at most 128 tokens, in bf16 or, on a CPU that multiplies it faster, fp32.

`--memory-gib 2` finds instead the largest number of examples a step whose peak resident memory is not above that, to
within a sixteenth. All of them are in one forward and backward pass. Both sides could also accumulate gradients
(`batch.virtual_workers`, `gradient_accumulation_steps`), and then any number fits.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from common import alternate, medians, process, write_result

from maskwright.config.pretraining import ModelSection
from maskwright.core.console import say
from maskwright.machine.hardware import memory_bytes
from maskwright.model.config import model_config
from maskwright.model.hf.config import to_hf_config
from maskwright.model.initial import initial_parameters
from maskwright.text.tokenizer import copy_tokenizer
from maskwright.text.vocabulary import read_vocabulary
from maskwright.training.tensor_file import write_tensors

#        size, file, text columns, label column, steps
ROWS = {
    "banking77-mini": ("mini", "banking77/train.csv", ("text",), "category", 48),
    "ag-news-mini": ("mini", "ag_news/test.csv", ("1", "2"), "0", 40),
    "banking77-base": ("base", "banking77/train.csv", ("text",), "category", 12),
}


def make_model(size: str, tokenizer: str, folder: str) -> str:
    shape = replace(
        model_config(ModelSection.model_validate({"size": size}), read_vocabulary(tokenizer).size, 128),
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )
    copy_tokenizer(tokenizer, folder)
    write_tensors(os.path.join(folder, "model.safetensors"), initial_parameters(shape, 0), {"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(to_hf_config(shape), file)
    return folder


def largest(peak_memory: Callable[[int], int], limit: int) -> int:
    """Examples a step whose peak is within `limit`: by doubling from 8, then by bisection to within a sixteenth."""
    fits, above = 0, 8
    while peak_memory(above) <= limit:
        fits, above = above, 2 * above
    while above - fits > max(1, fits // 16):
        middle = (fits + above) // 2
        fits, above = (middle, above) if peak_memory(middle) <= limit else (fits, middle)
    return fits


def write_largest(row: str, gib: float, scripts: dict[str, str], words: tuple[str, ...]) -> None:
    found: dict[str, int] = {}
    limit = int(gib * 2**30)
    peaks: dict[str, dict[int, int]] = {name: {} for name in scripts}
    for name, script in scripts.items():

        def peak_memory(examples: int, name: str = name, script: str = script) -> int:
            # After some ten steps of rows of other shapes, the peak stops growing.
            result = process(script, *words, "--steps", 12, "--examples", examples, "--memory-limit", limit)
            peaks[name][examples] = result["peak_memory_bytes"]
            say(f"{name}: {examples} examples a step take {result['peak_memory_bytes'] / 2**30:.2f} GiB")
            return peaks[name][examples]

        found[name] = largest(peak_memory, limit)
    over = found["maskwright"] / max(found["hf_trainer"], 1)
    write_result(f"finetune-{row}-memory", {"over_hf_trainer": over, **found}, memory_gib=gib, peak_memory_bytes=peaks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory-gib", type=float)
    arguments = parser.parse_args()
    size, file, text, label, steps = ROWS[arguments.row]
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(size, arguments.tokenizer, os.path.join(folder, "model"))
        words = (model, os.path.join(arguments.data, file), "--text", *text, "--label", label)
        scripts = {"maskwright": "ours_finetune.py", "hf_trainer": "peers/hf_finetune.py"}
        if arguments.memory_gib is not None:
            return write_largest(arguments.row, arguments.memory_gib, scripts, words)
        sides = {name: partial(process, script, *words, "--steps", steps) for name, script in scripts.items()}
        results = alternate(sides, arguments.rounds)
    rates = medians(results, "examples_per_second")
    memory = medians(results, "peak_memory_bytes")
    print("| | examples/s | CPU | memory |\n|---|---|---|---|")
    for name in sides:
        share, used = medians(results, "cpu_share")[name]["median"], memory[name]["median"]
        print(f"| {name} | {rates[name]['median']:.1f} | {share:.0%} | {used / memory_bytes():.1%} |")
    write_result(
        f"{'gpu-' if torch.cuda.is_available() else ''}finetune-{arguments.row}",
        {
            "over_hf_trainer": rates["maskwright"]["median"] / rates["hf_trainer"]["median"],
            "memory_of_hf_trainer": memory["maskwright"]["median"] / memory["hf_trainer"]["median"],
        },
        examples_per_second=rates,
        peak_memory_bytes=memory,
        rounds=results,
    )


if __name__ == "__main__":
    main()
