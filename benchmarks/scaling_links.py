"""Speed of sending between otherwise idle processes: all-reduces of fp32, over gloo.

    WORLD_SIZE=2 RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29400 … python scaling_links.py

Prints one JSON line: the least seconds by bytes.
"""

from __future__ import annotations

import json
import time

import torch
import torch.distributed as dist
from scaling_common import leave

from maskwright.config.pretraining import EngineSection
from maskwright.engines.torch.processes import connect

SIZES = [1 << power for power in (10, 14, 18, 20, 22, 24, 25, 26)]


def main() -> None:
    processes = connect(EngineSection(device="cpu"), "cpu")
    torch.set_num_threads(1)
    found = {}
    for size in SIZES:
        tensor = torch.ones(size // 4)
        seconds = []
        for _ in range(12 if size >= 1 << 22 else 100):
            begin = time.perf_counter()
            dist.all_reduce(tensor)
            seconds.append(time.perf_counter() - begin)
            tensor.fill_(1.0)
        found[str(size)] = min(seconds)
    print(json.dumps({"all_reduce_seconds": found}))
    leave(processes)


if __name__ == "__main__":
    main()
