"""Data preparation on one core: from text with one sentence per line to training data.

    python benchmarks/prepare.py --text books.txt --tokenizer data/tokenizer --pregenerate pregenerate_training_data.py

Megabytes of text per CPU-second (all threads), against `pregenerate_training_data.py` (see peers/pregenerate.py),
`datasets.map` and group_texts, and the bare `encode_batch_fast` of `tokenizers` in its fastest batches, each in its own
process on one core. Start-up is measured on an almost empty file and subtracted on every side.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Literal

from common import alternate, medians, process, write_result

RAW_BATCH = 100
"""Sentences: of 20,000, 2,000, 500 and 100 the fastest by a fifth."""
SIDES = ("maskwright_fast", "maskwright", "encode_batch_fast", "datasets_map", "pregenerate")


def run_side(side: str, text: str, tokenizer: str, script: str) -> dict[str, float]:
    """CPU seconds of one side on one file; everything that it imports is imported before the clock starts."""
    tokenizer_json = os.path.join(tokenizer, "tokenizer.json")
    with tempfile.TemporaryDirectory() as folder:
        if side.startswith("maskwright"):
            import awkward  # noqa: F401

            from maskwright.data.prepare.driver import prepare
            from maskwright.data.prepare.request import PrepareOptions, Request
            from maskwright.text.sources import Sources

            encoder: Literal["gigatoken", "tokenizers"] = "gigatoken" if side == "maskwright_fast" else "tokenizers"
            begin = time.process_time()
            prepare(
                Request(
                    Sources([text], layout="sentences"),
                    tokenizer,
                    f"{folder}/store",
                    PrepareOptions(valid_fraction=0.0),
                    encoder,
                )
            )
        elif side == "encode_batch_fast":
            from tokenizers import Tokenizer

            begin = time.process_time()
            whole = Tokenizer.from_file(tokenizer_json)
            with open(text, encoding="utf-8") as file:
                lines = [" " + line.strip() for line in file if line.strip()]
            for first in range(0, len(lines), RAW_BATCH):
                whole.encode_batch_fast(lines[first : first + RAW_BATCH], add_special_tokens=False)
        elif side == "datasets_map":
            import datasets
            from transformers import PreTrainedTokenizerFast

            datasets.disable_progress_bars()
            datasets.config.HF_DATASETS_CACHE = folder
            begin = time.process_time()
            slow = PreTrainedTokenizerFast(tokenizer_file=tokenizer_json)
            raw = datasets.load_dataset("text", data_files=text, split="train", cache_dir=folder)
            encoded = raw.map(
                lambda batch: slow(batch["text"], return_special_tokens_mask=True),
                batched=True,
                remove_columns=["text"],
            )
            encoded.map(group_texts, batched=True)
        else:
            sys.path.insert(0, os.path.join(os.path.dirname(__file__), "peers"))
            import pregenerate

            run = pregenerate.prepare(script, text, tokenizer, folder)
            begin = time.process_time()
            run()
        return {"cpu_seconds": time.process_time() - begin}


def group_texts(batch: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    """run_mlm's: all lines of the batch joined and cut at 512, the rest dropped."""
    joined = {key: list(itertools.chain.from_iterable(values)) for key, values in batch.items()}
    total = len(joined["input_ids"]) // 512 * 512
    return {key: [values[i : i + 512] for i in range(0, total, 512)] for key, values in joined.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", required=True, help="one plain text file with one sentence per line")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--pregenerate", required=True, help="allenai/tpu_pretrain's pregenerate_training_data.py")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(run_side(arguments.side, arguments.text, arguments.tokenizer, arguments.pregenerate)))
        return
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    work = tempfile.mkdtemp()
    with open(arguments.text, "rb") as file:
        content = file.read()
    few = b"\n\n".join(content[:2_000].split(b"\n")[:4]) + b"\n"  # documents of a line: one alone is refused there
    texts = {}
    for name, part in (("all", content), ("start", few)):
        texts[name] = os.path.join(work, f"{name}.txt")
        Path(texts[name]).write_bytes(part)

    def measure(side: str) -> dict[str, float]:
        options = ["--tokenizer", arguments.tokenizer, "--pregenerate", arguments.pregenerate, "--side", side, "--text"]
        start = process("prepare.py", *options, texts["start"])["cpu_seconds"]
        seconds = process("prepare.py", *options, texts["all"])["cpu_seconds"] - start
        size = os.path.getsize(texts["all"]) / 1e6
        return {"megabytes_per_cpu_second": size / seconds, "start_seconds": start}

    results = alternate({side: partial(measure, side) for side in SIDES}, arguments.rounds)
    shutil.rmtree(work)
    rates = medians(results, "megabytes_per_cpu_second")
    fast, plain = rates["maskwright_fast"]["median"], rates["maskwright"]["median"]
    write_result(
        "prepare",
        {
            "fast_over_pregenerate": fast / rates["pregenerate"]["median"],
            "fast_over_datasets_map": fast / rates["datasets_map"]["median"],
            "without_fast_over_encode_batch_fast": plain / rates["encode_batch_fast"]["median"],
        },
        megabytes_per_cpu_second=rates,
        start_seconds=medians(results, "start_seconds"),
        rounds=results,
    )


if __name__ == "__main__":
    main()
