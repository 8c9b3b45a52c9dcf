"""`data prepare` on one core: CPU seconds of each phase, and of the driver alone.

    python benchmarks/parts.py --text books.txt --tokenizer data/tokenizer --megabytes 500

The text is made larger as in `data.py`, cut into pages of about 2 kB, and laid into files. Each phase's share is the
time of its parts in this process; the rest is the driver's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Generator
from typing import Any

import numpy as np
from common import write_result
from data import larger

from maskwright.core.console import Progress
from maskwright.processes.runner import Runner

PAGE_BYTES = 2_000


class Timed(Runner):
    """Computes parts one after the other, and counts the CPU seconds of each phase."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds, self.parts = defaultdict[str, float](float), Counter[str]()

    def run(self, work: Any, parts: Any, sizes: Any, bar: Progress) -> Generator[tuple[int, Any]]:
        for number, part in parts:
            begin = time.process_time()
            result = work(part)
            self.seconds[bar.label] += time.process_time() - begin
            self.parts[bar.label] += 1
            yield number, result


def pages(text: str, folder: str, files: int) -> int:
    """Lays `text` into files of pages with blank lines between them. Returns how many pages there are."""
    size, count, page = os.path.getsize(text) // files + 1, 0, 0
    with open(text, "rb") as lines:
        for number in range(files):
            written = 0
            with open(f"{folder}/{number:05}.txt", "wb") as out:
                while written < size and (line := lines.readline()):
                    if line.strip():
                        written, page = written + out.write(line), page + len(line)
                    if page >= PAGE_BYTES:
                        written, page, count = written + out.write(b"\n"), 0, count + 1
    return count


def measure(folder: str, tokenizer: str, store: str, options: dict[str, Any]) -> dict[str, Any]:
    from maskwright.data.prepare.driver import prepare
    from maskwright.data.prepare.request import PrepareOptions, Request
    from maskwright.text.cleaning.steps import CleaningOptions
    from maskwright.text.sources import Sources

    cleaning = CleaningOptions(**options) if options else None

    def request(place: str) -> Request:
        sources = Sources([folder], layout="sentences")
        return Request(sources, tokenizer, place, PrepareOptions(shard_tokens=16_000_000), "auto", None, cleaning)

    runner, begin = Timed(), time.process_time()
    made = prepare(request(store), runner)
    whole = time.process_time() - begin
    size = sum(record["bytes"] for shard in made.shards for record in shard["files"].values())
    shutil.rmtree(store)
    return {
        "cpu_seconds": dict(runner.seconds),
        "parts": dict(runner.parts),
        "driver_cpu_seconds": whole - sum(runner.seconds.values()),
        "store_bytes": size,
        "documents": made.manifest["counts"]["read"],
        "tokens": sum(split["tokens"] for split in made.manifest["splits"].values()),
    }


def driver_alone(folder: str, notes: int = 2_000) -> dict[str, float]:
    """CPU seconds of the driver's work that grows: a note for each part."""
    from maskwright.text.parts.columns import Columns, written

    for number in range(notes):
        with written(f"{folder}/note-{number}") as writer:
            writer.note = {"documents": number, "names": ["a reason"] * 30, "files": [{"sha256": "a" * 64}]}
    begin = time.process_time()
    found = [Columns(f"{folder}/note-{number}").note for number in range(notes)]
    read = time.process_time() - begin
    shutil.rmtree(folder)
    return {"notes_per_cpu_second": len(found) / read}


def search_alone(folder: str, parts: int = 200, pages_each: int = 100_000, bands: int = 9) -> dict[str, float]:
    """CPU seconds of a search as in a large text: a few hundred keys of each part in each of its ranges."""
    from maskwright.text.parts.columns import written
    from maskwright.text.parts.duplicates import FindRepeats, KeyRuns

    rng, columns = np.random.default_rng(1), [f"band-{number:03}" for number in range(bands)]
    for number in range(parts):
        with written(f"{folder}/{number}") as writer:
            for name in columns:
                runs = KeyRuns(writer, name)
                runs.add(rng.integers(1, 1 << 63, (pages_each, 2)).astype("<u8") * np.uint64(2))
                runs.close()
    work = FindRepeats(tuple(f"{folder}/{number}" for number in range(parts)), tuple(columns), 512)
    begin = time.process_time()
    for number in range(4):
        work((number, f"{folder}/found-{number}"))
    seconds = time.process_time() - begin
    shutil.rmtree(folder)
    return {
        "keys_of_a_part_in_a_range": pages_each / 512,
        "seconds_each_part_range_and_column": seconds / (4 * parts * bands),
        "keys_per_cpu_second": 4 * parts * bands * pages_each / 512 / seconds,
    }


def ratios(found: dict[str, dict[str, Any]], megabytes: int) -> dict[str, float]:
    rates = {}
    for name, one in found.items():
        for phase, seconds in one["cpu_seconds"].items():
            rates[f"{name}_{phase.replace(' ', '_')}_megabytes_per_cpu_second"] = megabytes / seconds
        whole = sum(one["cpu_seconds"].values()) + one["driver_cpu_seconds"]
        rates[f"{name}_megabytes_per_cpu_second"] = megabytes / whole
        rates[f"{name}_driver_share"] = one["driver_cpu_seconds"] / whole
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", required=True, help="one plain text file, one sentence per line, blank lines between")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--part-megabytes", type=int, default=32)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    from maskwright.text.parts import cut

    cut.PART_BYTES = (arguments.part_megabytes * 1_000_000,) * 2
    with tempfile.TemporaryDirectory() as work:
        os.mkdir(f"{work}/text")
        larger(arguments.text, arguments.megabytes, f"{work}/large.txt")
        count = pages(f"{work}/large.txt", f"{work}/text", arguments.files)
        os.unlink(f"{work}/large.txt")
        found = {
            name: measure(f"{work}/text", arguments.tokenizer, f"{work}/{name}", options)
            for name, options in {"exact": {}, "exact_and_near": {"near_duplicates": 0.8}}.items()
        }
    rates = ratios(found, arguments.megabytes)
    driver = driver_alone(tempfile.mkdtemp())
    search = search_alone(tempfile.mkdtemp())
    print(json.dumps(rates | {"pages": count}, indent=1))
    write_result("parts", rates, megabytes=arguments.megabytes, pages=count, driver=driver, search=search, **found)


if __name__ == "__main__":
    main()
