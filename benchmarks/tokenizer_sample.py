"""The loss of a tokenizer that learns from a part of the text.

    python benchmarks/tokenizer_sample.py --text 'books/*.txt'

Bytes a token on a tenth of the documents that is held out: of a tokenizer that learned from a tenth of the bytes of all
others (`--max-bytes`), as a share of what one of all of them has. A seed decides which documents are held out, and
which come first in the sample. The smaller the text for the vocabulary, the more is lost; `bytes_of_sample_per_token`
gives its size.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from typing import Any

from common import write_result

from maskwright.core.console import say
from maskwright.text import sample
from maskwright.text.sources import Sources
from maskwright.text.tokenizer import inspect_tokenizer, train_tokenizer

KINDS: list[tuple[Any, int]] = [("bpe", 8_000), ("bpe", 32_000), ("wordpiece", 8_000), ("unigram", 8_000)]


def ranked_by(seed: int) -> Callable[[bytes], int]:
    def rank(key: bytes) -> int:
        return int.from_bytes(hashlib.blake2b(key, key=bytes([seed]), digest_size=4).digest(), "little") % sample.RANKS

    return rank


def parted(text: list[str], folder: str, seed: int) -> tuple[str, str, int]:
    """Files of the documents to learn from and of those held out, and the bytes of the former."""
    learned, held_out = os.path.join(folder, f"learned-{seed}.jsonl"), os.path.join(folder, f"held-out-{seed}.jsonl")
    size = 0
    with open(learned, "w") as ours, open(held_out, "w") as others:
        for document in Sources(text):
            first = hashlib.blake2b(document.utf8, key=bytes([seed]), digest_size=1).digest()[0]
            (others if first < 26 else ours).write(json.dumps({"text": document.text}) + "\n")
            size += len(document.utf8) if first >= 26 else 0
    return learned, held_out, size


def measured(files: tuple[str, str, int], kind: Any, vocab_size: int) -> dict[str, float]:
    learned, held_out, size = files
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, max_bytes in (("all", size), ("tenth", size // 10)):
            place = os.path.join(folder, name)
            train_tokenizer(Sources([learned]), place, kind=kind, vocab_size=vocab_size, max_bytes=max_bytes)
            found[name] = inspect_tokenizer(place, Sources([held_out])).bytes_per_token
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seeds):
            files = parted(arguments.text, folder, seed)
            sample._rank = ranked_by(seed)  # type: ignore[assignment]
            for kind, vocab_size in KINDS:
                name = f"{kind}-{vocab_size}"
                row = results.setdefault(
                    name, {"bytes_of_sample_per_token": files[2] // 10 // vocab_size, "rounds": []}
                )
                row["rounds"].append(measured(files, kind, vocab_size))
                say(f"seed {seed}, {name}: {json.dumps(row['rounds'][-1])}")
    ratios = {
        name: statistics.mean(one["tenth"] / one["all"] for one in row["rounds"]) for name, row in results.items()
    }
    write_result("tokenizer-sample", ratios, results=results)


if __name__ == "__main__":
    main()
