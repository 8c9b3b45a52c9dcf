"""How time and memory grow with the text: audit, tokenizer, prepare, and the start of a run on the result.

    python benchmarks/slopes.py --text books.txt --gigabytes 1 4 16 --work FOLDER

The text is made larger as in `data.py`, cut into pages of about 2 kB, and laid into files of 256 MB. Each command is
one of the command line, with two workers. Seconds are CPU seconds of all its processes; memory is the most that they
held together (PSS, looked at every fifth of a second). A run is of a RoBERTa with rows of 512 tokens: opened, planned
for the first time and again, and its first batch.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from typing import Any

from common import write_result
from data import larger
from parts import pages

FILE_BYTES, WORKERS = 256_000_000, 2
START = """
import json, sys, time
from maskwright.config.pretraining import build_config
from maskwright.data.loader import Loader
from maskwright.data.store import TokenStore
seconds, clock = {}, time.process_time
def lap(name):
    global begin
    seconds[name], begin = clock() - begin, clock()
begin = clock()
store = TokenStore(sys.argv[1])
lap("open")
values = {"data": {"store": sys.argv[1], "seq_len": 512}, "model": {"size": "base"}, "schedule": {"steps": 10}}
loader = Loader(build_config(values, "slopes"), store)
lap("plan")
batch = loader.batch(5, 0)
lap("first_batch")
print(json.dumps(seconds))
"""


class Memory(threading.Thread):
    """The most that the processes of a session held together, in bytes."""

    def __init__(self, session: int) -> None:
        super().__init__(daemon=True)
        self.session, self.most, self.over = session, 0, threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.2):
            held = 0
            for place in glob.glob("/proc/[0-9]*"):
                try:
                    with open(f"{place}/stat") as file:
                        if int(file.read().rpartition(")")[2].split()[3]) != self.session:
                            continue
                    with open(f"{place}/smaps_rollup") as file:
                        held += next(int(line.split()[1]) for line in file if line.startswith("Pss:")) * 1024
                except (OSError, StopIteration, ValueError):
                    continue
            self.most = max(self.most, held)


def measured(command: list[str], environment: dict[str, str]) -> tuple[dict[str, float], str]:
    """CPU seconds, wall seconds and bytes of memory, and what the command printed."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment
    )
    watch = Memory(process.pid)
    watch.start()
    out, err = process.communicate()
    watch.over.set()
    watch.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}\n{err[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    seconds = {"cpu_seconds": round(cpu, 2), "wall_seconds": round(time.perf_counter() - began, 2)}
    return {**seconds, "memory_bytes": watch.most}, out


def of_size(text: str, gigabytes: float, work: str, tokenizer: str | None) -> tuple[dict[str, Any], str]:
    folder, whole = f"{work}/text", f"{work}/whole.txt"
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(folder)
    size = int(gigabytes * 1e9)
    larger(text, size // 1_000_000, whole)
    documents = pages(whole, folder, max(1, size // FILE_BYTES))
    os.remove(whole)
    environment = os.environ | {"MASKWRIGHT_CACHE": f"{work}/cache"}
    command = [sys.executable, "-m", "maskwright"]
    shape, workers = ["--layout", "sentences"], ["--workers", str(WORKERS)]
    found: dict[str, Any] = {"documents": documents}
    found["audit"], _ = measured([*command, "data", "audit", folder, *shape, *workers], environment)
    made = f"{work}/tokenizer"
    train = [*command, "tokenizer", "train", folder, "--to", made, "--vocab-size", "32768", *shape]
    found["tokenizer"], _ = measured(train, environment)
    tokenizer = tokenizer or shutil.copytree(made, f"{os.path.dirname(work)}/tokenizer", dirs_exist_ok=True)
    store = f"{work}/store"
    prepare = [*command, "data", "prepare", folder, "--to", store, "--tokenizer", tokenizer, *shape, *workers]
    found["prepare"], _ = measured([*prepare, "--valid-fraction", "0.001"], environment)
    for name in ("first start", "later start"):
        found[name], out = measured([sys.executable, "-c", START, store], environment)
        found[name] |= {part: round(seconds, 3) for part, seconds in json.loads(out).items()}
    with open(f"{store}/manifest.json") as file:
        manifest = json.load(file)
    found["tokens"] = manifest["splits"]["train"]["tokens"]
    found["shards"] = sum(shard["split"] == "train" for shard in manifest["shards"])
    shutil.rmtree(work)
    return found, tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True)
    parser.add_argument("--gigabytes", nargs="+", type=float, default=[1.0, 4.0, 16.0])
    parser.add_argument("--work", required=True)
    arguments = parser.parse_args()
    found, tokenizer = {}, None
    for gigabytes in arguments.gigabytes:
        size = f"{gigabytes:g}"
        found[size], tokenizer = of_size(arguments.text, gigabytes, f"{arguments.work}/{size}", tokenizer)
        print(size, json.dumps(found[size]), flush=True)
        least = found[f"{arguments.gigabytes[0]:g}"]
        ratios = {
            f"{part}_memory_growth": found[size][part]["memory_bytes"] / least[part]["memory_bytes"]
            for part in ("audit", "tokenizer", "prepare")
        }
        write_result("slopes", ratios, gigabytes=found)


if __name__ == "__main__":
    main()
