"""Packing, masking and batching on one core, against Hugging Face's collator.

    python benchmarks/loader.py --text 'corpus/*.txt'

Millions of tokens per CPU-second in batches of 64 rows of 512, random rows of the store.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from functools import partial

from common import alternate, medians, process, store_of, write_result

ROWS, SEQ_LEN = 64, 512


def run_side(side: str, location: str) -> dict[str, float]:
    from maskwright.data.store import TokenStore
    from maskwright.machine import hardware

    store = TokenStore(location)
    if side.startswith("hf"):
        sys.path.insert(0, os.path.join(os.path.dirname(__file__), "peers"))
        import torch
        from hf_trainer import Rows, group_texts
        from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

        torch.set_num_threads(1)
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=f"{store.tokenizer_folder}/tokenizer.json", mask_token="<mask>", pad_token="<pad>"
        )
        collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
        rows = Rows(group_texts(store, SEQ_LEN), store.vocabulary.special)
        count = 40

        def batch(number: int) -> int:
            chosen = torch.randint(0, len(rows), (ROWS,)).tolist()
            return collator([rows[row] for row in chosen])["input_ids"].numel()
    else:
        from maskwright.config.pretraining import build_config
        from maskwright.data.loader import Loader

        hardware.keep_freed_memory()  # as the engine does before the first batch
        config = {
            "data": {"store": location, "seq_len": SEQ_LEN},
            "masking": {"kind": side.removeprefix("maskwright_")},
            "schedule": {"steps": 1_000_000},
            "batch": {"micro_batch_rows": ROWS},
        }
        loader = Loader(build_config(config, "benchmark"), store)
        count = 600

        def batch(number: int) -> int:
            return loader.batch(number, 0).text_tokens

    batch(0)
    begin = time.process_time()
    tokens = sum(batch(number) for number in range(count))
    return {"megatokens_per_cpu_second": tokens / (time.process_time() - begin) / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", nargs="+")
    parser.add_argument("--work")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(run_side(arguments.side, arguments.store)))
        return
    store = store_of(arguments.text, arguments.work or tempfile.mkdtemp(), 50265)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    names = ("maskwright_token", "hf_token", "maskwright_whole_word", "maskwright_span")
    sides = {name: partial(process, "loader.py", "--side", name, "--store", store) for name in names}
    results = alternate(sides, arguments.rounds)
    rates = medians(results, "megatokens_per_cpu_second")
    write_result(
        "loader",
        {
            "megatokens_per_cpu_second": rates["maskwright_token"]["median"],
            "over_hf_collator": rates["maskwright_token"]["median"] / rates["hf_token"]["median"],
        },
        megatokens_per_cpu_second=rates,
        rounds=results,
    )


if __name__ == "__main__":
    main()
