"""Stores of token ids on one core: other tools' formats read, converted and written.

    python benchmarks/formats.py --tokenizer FOLDER

Megabytes of ids (2 bytes each) per CPU-second, imports left out, on documents of 600 tokens in the mean whose lengths
have a geometric distribution. `from` makes a token store of a format, with a share held out by hash, checksums and a
sync of each file; `to` writes one. `open` opens Arrow shards for training once the store in the cache is made of them.
The files were written just before, so they are in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from common import alternate, medians, process, write_result

SIDES = (
    "open_arrow",
    "from_arrow",
    "from_megatron",
    "from_mds",
    "to_parquet",
)
MEAN_TOKENS, TOKENS = 600, 100_000_000


def make(folder: str, tokenizer: str, tokens: int) -> None:
    """One store in each format, of random ids."""
    from maskwright.data.convert import Conversion, ConvertOptions, convert
    from maskwright.data.store import special_table
    from maskwright.text.vocabulary import read_vocabulary

    vocabulary, generator = read_vocabulary(tokenizer), np.random.default_rng(0)
    ordinary = np.flatnonzero(~special_table(vocabulary)).astype(np.uint16)
    ids = ordinary[generator.integers(0, len(ordinary), tokens)]
    ends = np.cumsum(generator.geometric(1 / MEAN_TOKENS, tokens // 100))
    ends = np.append(ends[ends < tokens], tokens)
    write_arrow(Path(folder, "arrow"), ids, ends)
    write_megatron(Path(folder, "megatron"), ids, ends)
    convert(
        Conversion(
            [f"{folder}/megatron/text_document"], tokenizer, f"{folder}/store", ConvertOptions(valid_fraction=0.0)
        )
    )
    write_mds(Path(folder, "mds"), np.split(ids, ends[:-1]))


def write_arrow(folder: Path, ids: np.ndarray, ends: np.ndarray) -> None:
    """A record batch for each document."""
    import pyarrow as arrow

    folder.mkdir()
    whole = arrow.RecordBatch.from_arrays([arrow.array(ids)], ["tokens"])
    with arrow.OSFile(str(folder / "0.arrow"), "wb") as file, arrow.ipc.new_file(file, whole.schema) as writer:
        for begin, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
            writer.write_batch(whole.slice(begin, end - begin))


def write_megatron(folder: Path, ids: np.ndarray, ends: np.ndarray) -> None:
    """As `IndexedDatasetBuilder` does with uint16, whose code is 8."""
    folder.mkdir()
    ids.tofile(folder / "text_document.bin")
    sizes = np.diff(ends, prepend=0)
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(sizes), len(sizes) + 1) + sizes.astype("<i4").tobytes()
    index += (2 * (ends - sizes)).astype("<i8").tobytes() + np.arange(len(sizes) + 1, dtype="<i8").tobytes()
    (folder / "text_document.idx").write_bytes(index)


def write_mds(folder: Path, documents: list[np.ndarray]) -> None:
    """As `MDSWriter` does with a column of `ndarray:uint16`, in shards of 64 MiB, its default."""
    folder.mkdir()
    shards: list[dict[str, object]] = []
    waiting: list[bytes] = []
    size = 0
    for number, document in enumerate(documents):
        shape = struct.pack("<BH", 5, len(document)) if len(document) > 255 else bytes([4, len(document)])
        body = shape + document.tobytes()
        waiting.append(struct.pack("<I", len(body)) + body)
        size += len(waiting[-1])
        if size < 1 << 26 and number + 1 < len(documents):
            continue
        places = np.cumsum([8 + 4 * len(waiting), *map(len, waiting)]).astype("<u4").tobytes()
        name = f"shard.{len(shards):05d}.mds"
        content = struct.pack("<I", len(waiting)) + places + b"".join(waiting)
        (folder / name).write_bytes(content)
        columns = {"column_encodings": ["ndarray:uint16"], "column_names": ["input_ids"], "column_sizes": [None]}
        raw = {"basename": name, "bytes": len(content), "hashes": {}}
        shards.append(
            {**columns, "compression": None, "format": "mds", "raw_data": raw, "samples": len(waiting), "version": 2}
            | {"zip_data": None}
        )
        waiting, size = [], 0
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))


def run_side(side: str, folder: str, tokenizer: str) -> dict[str, float]:
    import pyarrow.parquet  # noqa: F401 - imported before the clock starts

    from maskwright.config.data import Arrow
    from maskwright.data.convert import Conversion, ConvertOptions, convert
    from maskwright.data.converted_store import open_arrow
    from maskwright.data.foreign.write import write_parquet
    from maskwright.data.store import TokenStore
    from maskwright.text.vocabulary import read_vocabulary

    read_vocabulary(tokenizer)
    way, _, kind = side.partition("_")
    place = f"{folder}/{'megatron/text_document' if kind == 'megatron' else kind}"
    with tempfile.TemporaryDirectory(dir=folder) as to:
        os.environ["MASKWRIGHT_CACHE"] = f"{to}/cache"
        if way == "open":
            open_arrow(place, Arrow(tokenizer=tokenizer))
        wall, cpu = time.perf_counter(), time.process_time()
        if way == "open":
            open_arrow(place, Arrow(tokenizer=tokenizer))
        elif way == "from":
            convert(Conversion([place], tokenizer, f"{to}/store", ConvertOptions(valid_fraction=0.01)))
        else:
            write_parquet(TokenStore(f"{folder}/store"), f"{to}/out")
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    size = os.path.getsize(f"{folder}/megatron/text_document.bin") / 1e6
    return {"megabytes_per_cpu_second": size / cpu, "megabytes_per_second": size / wall}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", required=True, help="of at most 65,536 tokens")
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(run_side(arguments.side, arguments.folder, arguments.tokenizer)))
        return
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    folder = tempfile.mkdtemp()
    try:
        make(folder, arguments.tokenizer, arguments.tokens)

        def measure(side: str) -> dict[str, float]:
            return process("formats.py", "--tokenizer", arguments.tokenizer, "--folder", folder, "--side", side)

        results = alternate({side: partial(measure, side) for side in SIDES}, arguments.rounds)
    finally:
        shutil.rmtree(folder)
    rates = medians(results, "megabytes_per_cpu_second")
    ratios = {side: rates[side]["median"] for side in SIDES}
    wall = medians(results, "megabytes_per_second")
    write_result("formats", ratios, megabytes_per_cpu_second=rates, megabytes_per_second=wall, tokens=arguments.tokens)


if __name__ == "__main__":
    main()
