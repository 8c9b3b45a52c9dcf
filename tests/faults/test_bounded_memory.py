"""What the commands on text hold does not grow with it: each reads ten times as much text under a limit that leaves
no room for the text, nor for a number for each document."""

import json
import os
import subprocess
import sys

import pytest

CHILD = """
import json, resource, sys

from maskwright.cli.main import run
from maskwright.core import storage
from maskwright.data.prepare import encode
from maskwright.text import audit, sample, word_counts
from maskwright.text.parts import cut, duplicates, judge

# All that is held at once, a hundredth or less of it, so that a text of a few megabytes is a large one.
audit.SAMPLE_TEXTS = 20
cut.PART_BYTES = (200_000, 400_000)
duplicates.RUN_DOCUMENTS = encode.RUN_DOCUMENTS = 2_000
duplicates.KEYS_AT_ONCE = 1 << 12
encode.BATCH_CHARACTERS = judge.BATCH_CHARACTERS = 50_000
sample.RANKS, storage.READ_BYTES = 1 << 14, 1 << 16
sample.MEASURED_CHARACTERS = word_counts.MOST_CHARACTERS = 50_000
word_counts.PENDING_CHARACTERS, word_counts.PENDING_PARTS = 50_000, 2_000

first, second, spare = json.loads(sys.argv[1])
assert run(first) == 0
with open("/proc/self/status") as file:
    held = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData:"))
resource.setrlimit(resource.RLIMIT_DATA, (held + spare, held + spare))
sys.exit(run(second))
"""
SMALL, LARGE = 6_000, 90_000
SPARE_BYTES = 4_000_000
READ = ["--layout", "lines"]
SAMPLED = ["--max-bytes", "200000"]
COMMANDS = {
    "audit": ["data", "audit", "{text}", *READ, "--workers", "1"],
    "train": ["tokenizer", "train", "{text}", "--to", "{to}", "--vocab-size", "500", *READ, *SAMPLED],
    "extend": ["tokenizer", "extend", "{tokenizer}", "{text}", "--to", "{to}", "--tokens", "50", *READ, *SAMPLED],
    "prepare": [
        *["data", "prepare", "{text}", "--to", "{to}", "--tokenizer", "{tokenizer}", *READ, "--workers", "1"],
        *["--shard-tokens", "50000", "--valid-fraction", "0.01"],
    ],
}
WORDS = ("The", "dog", "that", "saw", "a", "stone", "near", "one", "bridge", "was", "not", "what", "we", "had", "lost")


def made_text(path, documents, *, new_words):
    """A document a line, each with a number of its own, which is a word or one of the same ten for each digit."""
    with open(path, "w", encoding="utf-8") as file:
        for number in range(documents):
            turn = number % len(WORDS)
            own = f"{number * 7919 % 1000003:07d}"
            named = own if new_words else " ".join(own)
            file.write(f"{named} {' '.join([*WORDS[turn:], *WORDS[:turn]])}.\n")
    return str(path)


@pytest.mark.skipif(sys.platform != "linux", reason="reads what is held from /proc")
@pytest.mark.parametrize("name", COMMANDS)
def test_more_text_takes_no_more_memory(name, tokenizer, tmp_path):
    commands = []
    for size in (SMALL, LARGE):
        # gigatoken remembers all words, for which a process makes way for another after 4 GB (`processes/runner.py`).
        values = {
            "text": made_text(tmp_path / f"{size}.txt", size, new_words=name != "prepare"),
            "to": str(tmp_path / f"made-{size}"),
            "tokenizer": tokenizer,
        }
        commands.append([word.format(**values) for word in COMMANDS[name]])
    threads = {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps([*commands, SPARE_BYTES])],
        env=os.environ | threads,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
