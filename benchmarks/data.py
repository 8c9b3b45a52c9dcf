"""Near duplicates on one core: from text with one sentence per line to the remaining text.

    python benchmarks/data.py --text books.txt --tokenizer data/tokenizer

Megabytes of text per CPU-second, compared with `datatrove` (its four steps of MinHash, with our words: its own splitter
needs a model) and `datasets` with `datasketch` (`map` for the signatures, then a loop over an index), each in a process
of its own on one core, with the same shingles and as many minima. Ours also tokenizes and writes the store; the others
write JSON lines. Start-up is measured on little text and subtracted on every side. `--sizes` measures how time and
memory grow.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from common import alternate, medians, process, write_result

SHARE, MINIMA, SHINGLE = 0.8, 128, 5
SIDES = ("prepare", "exact_and_near", "datatrove", "datasets")


def run_side(side: str, text: str, tokenizer: str) -> dict[str, float]:
    """CPU seconds, documents kept and memory of one side; what it imports is imported before the clock starts."""
    with tempfile.TemporaryDirectory() as folder:
        run = {"datatrove": datatrove_side, "datasets": datasets_side}.get(side, our_side)
        work = run(text, folder, tokenizer, side)
        begin = time.process_time()
        kept = work()
        seconds = time.process_time() - begin
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"cpu_seconds": seconds, "documents": kept, "mebibytes": memory}


def our_side(text: str, folder: str, tokenizer: str, side: str) -> Any:
    import awkward  # noqa: F401
    import gigatoken  # noqa: F401
    import rensa  # noqa: F401

    from maskwright.data.prepare.driver import prepare
    from maskwright.data.prepare.request import PrepareOptions, Request
    from maskwright.text.cleaning.steps import CleaningOptions
    from maskwright.text.sources import Sources

    cleaning = CleaningOptions(near_duplicates=SHARE) if side == "exact_and_near" else None

    def work() -> int:
        ready = prepare(
            Request(
                Sources([text]),
                tokenizer,
                f"{folder}/store",
                PrepareOptions(valid_fraction=0.0),
                "gigatoken",
                cleaning=cleaning,
            )
        )
        return int(ready.manifest["counts"]["kept"])

    return work


def datatrove_side(text: str, folder: str, tokenizer: str, side: str) -> Any:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import minhash
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter

    class Words:
        def word_tokenize(self, text: str) -> list[str]:
            return text.split()

    minhash.load_word_tokenizer = lambda language: Words()
    config = minhash.MinhashConfig(n_grams=SHINGLE, num_buckets=9, hashes_per_bucket=13)  # as ours for a share of 0.8
    source = f"{folder}/in"
    os.mkdir(source)
    documents_as_json(text, f"{source}/a.jsonl")

    def work() -> int:
        steps: list[list[Any]] = [
            [JsonlReader(source), minhash.MinhashDedupSignature(f"{folder}/signatures", config=config)],
            [minhash.MinhashDedupBuckets(f"{folder}/signatures", f"{folder}/buckets", config=config)],
            [minhash.MinhashDedupCluster(f"{folder}/buckets", f"{folder}/remove", config=config)],
            [
                JsonlReader(source),
                minhash.MinhashDedupFilter(f"{folder}/remove"),
                JsonlWriter(f"{folder}/out", compression=None),
            ],
        ]
        for number, step in enumerate(steps):
            tasks = config.num_buckets if number == 1 else 1
            LocalPipelineExecutor(step, tasks=tasks, workers=1, logging_dir=f"{folder}/logs{number}").run()
        with open(f"{folder}/out/00000.jsonl", encoding="utf-8") as file:
            return sum(1 for _ in file)

    return work


def datasets_side(text: str, folder: str, tokenizer: str, side: str) -> Any:
    import datasets
    import datasketch

    datasets.disable_progress_bars()
    documents_as_json(text, f"{folder}/a.jsonl")

    def signature(row: dict[str, Any]) -> dict[str, Any]:
        words = row["text"].lower().split()
        sketch = datasketch.MinHash(MINIMA)
        grams = {" ".join(words[place : place + SHINGLE]) for place in range(len(words) - SHINGLE + 1)}
        sketch.update_batch([gram.encode() for gram in grams])
        return {"signature": sketch.hashvalues}

    def work() -> int:
        raw = datasets.load_dataset("json", data_files=f"{folder}/a.jsonl", split="train", cache_dir=folder)
        signed = raw.map(signature)
        index = datasketch.MinHashLSH(SHARE, MINIMA)
        kept = []
        for number, row in enumerate(signed.select_columns(["signature"])):
            sketch = datasketch.MinHash(MINIMA, hashvalues=row["signature"], scheme="affine32")
            if not index.query(sketch):
                kept.append(number)
            index.insert(number, sketch)
        raw.select(kept).to_json(f"{folder}/out.jsonl")
        return len(kept)

    return work


def documents_as_json(text: str, path: str) -> None:
    with open(text, encoding="utf-8") as file, open(path, "w", encoding="utf-8") as out:
        for number, document in enumerate(file.read().split("\n\n")):
            if document.strip():
                out.write(json.dumps({"text": document.strip().replace("\n", " "), "id": str(number)}) + "\n")


def larger(text: str, megabytes: int, path: str) -> None:
    """The text again and again up to that size. Every word of a copy but the first has a letter more, so that none is
    like another."""
    with open(text, "rb") as file:
        content = file.read()
    written = copy = 0
    with open(path, "wb") as out:
        while written < megabytes * 1e6:
            mark = b" " + b"".join(bytes([97 + int(digit)]) for digit in str(copy)) if copy else b" "
            part = content.replace(b" ", mark)[: int(megabytes * 1e6) - written]
            written += out.write(part + b"\n\n")
            copy += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", required=True, help="one plain text file, one sentence per line, blank lines between")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="*", default=[], help="megabytes")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(run_side(arguments.side, arguments.text, arguments.tokenizer)))
        return
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_DATASETS_OFFLINE": "1"}
    work = tempfile.mkdtemp()
    with open(arguments.text, "rb") as file:
        content = file.read()
    few = f"{work}/few.txt"
    Path(few).write_bytes(b"\n\n".join(content[:200_000].split(b"\n\n")[:4]) + b"\n")

    def measure(side: str, text: str) -> dict[str, float]:
        options = ["--tokenizer", arguments.tokenizer, "--side", side, "--text"]
        start = process("data.py", *options, few)["cpu_seconds"]
        found = process("data.py", *options, text)
        megabytes = os.path.getsize(text) / 1e6
        return {**found, "megabytes_per_cpu_second": megabytes / (found["cpu_seconds"] - start), "start_seconds": start}

    results = alternate({side: partial(measure, side, arguments.text) for side in SIDES}, arguments.rounds)
    growth = {}
    for size in arguments.sizes:
        larger(arguments.text, size, f"{work}/large.txt")
        growth[size] = {side: measure(side, f"{work}/large.txt") for side in SIDES[:2]}
        print(json.dumps({size: growth[size]}), flush=True)
    shutil.rmtree(work)
    rates = medians(results, "megabytes_per_cpu_second")
    ours = rates["exact_and_near"]["median"]
    write_result(
        "data",
        {
            "near_duplicates_megabytes_per_cpu_second": ours,
            "near_duplicates_over_datatrove": ours / rates["datatrove"]["median"],
            "near_duplicates_over_datasets": ours / rates["datasets"]["median"],
        },
        megabytes_per_cpu_second=rates,
        growth=growth,
        rounds=results,
    )


if __name__ == "__main__":
    main()
