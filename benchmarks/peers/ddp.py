"""The peer of `scaling.py`: torch's DistributedDataParallel around the same network, on the same batches.

    WORLD_SIZE=2 RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29400 … python ddp.py STORE

As in its documentation: fp32 weights under bf16 autocast, `no_sync` for all micro-batches but the last, gradients as
views of its buckets, fused AdamW. It keeps freed memory as ours does, which helps it too. Prints one JSON line.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1]))
from scaling_common import Clock, leave, options

from maskwright.config.pretraining import build_config
from maskwright.data.batch import Batch
from maskwright.data.loader import Loader
from maskwright.data.store import TokenStore
from maskwright.engines.torch.prepare import choose_dtype
from maskwright.engines.torch.processes import connect
from maskwright.machine import hardware
from maskwright.model.config import NEVER_PREDICTED, model_config
from maskwright.model.initial import initial_parameters
from maskwright.model.torch.heads import loss_sum
from maskwright.model.torch.networks import assign, make_network


def main() -> None:
    arguments = options()
    run = build_config(
        {
            "data": {"store": arguments.store, "seq_len": arguments.seq_len},
            "model": {"size": arguments.size},
            "schedule": {"steps": 1_000_000},
            "batch": {"micro_batch_rows": arguments.rows, "virtual_workers": arguments.virtual_workers},
            "engine": {"device": "cpu"},
        },
        "benchmark",
    )
    store = TokenStore(arguments.store)
    shape = model_config(run.model, store.vocabulary.size, arguments.seq_len)
    loader = Loader(run, store)
    processes = connect(run.engine, "cpu")  # finds the others on the loopback interface; not timed
    torch.set_num_threads(1)
    hardware.keep_freed_memory()
    network = make_network(shape)
    assign(dict(network.named_parameters()), initial_parameters(shape, 0), shape, NEVER_PREDICTED)
    several = processes.world_size > 1
    model = DistributedDataParallel(network, gradient_as_bucket_view=True) if several else network
    options_ = run.optimizer
    optimizer = torch.optim.AdamW(
        network.parameters(),
        lr=1e-4,
        betas=(options_.beta1, options_.beta2),
        eps=options_.eps,
        weight_decay=options_.weight_decay,
        fused=True,
    )
    dtype = choose_dtype("auto", "cpu")
    each = arguments.virtual_workers // processes.world_size
    workers = range(processes.rank * each, (processes.rank + 1) * each)
    network.train()

    def update(batches: list[Batch]) -> None:
        weight = torch.as_tensor(sum(batch.predicted for batch in batches))
        if several:
            dist.all_reduce(weight)
        optimizer.zero_grad(set_to_none=True)
        for batch in batches:
            last = batch is batches[-1]
            with model.no_sync() if isinstance(model, DistributedDataParallel) and not last else nullcontext():
                with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
                    logits = model(*map(tensor, (batch.input_ids, batch.position_ids)), *rest(batch))
                    loss = loss_sum("masked_lm", logits, tensor(batch.labels).long(), tensor(batch.weights))
                # DistributedDataParallel takes the mean over processes; this is a sum over all, divided once
                (loss * (processes.world_size / weight)).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), options_.max_grad_norm or float("inf"))
        optimizer.step()

    clock = Clock(arguments.steps)
    for step in range(arguments.steps):
        batches = loader.batches(step, virtual_workers=workers)
        update(batches)
        clock(sum(batch.text_tokens for batch in batches) * processes.world_size)
    print(json.dumps(clock.report()))
    leave(processes)


def tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array)


def rest(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    return tensor(batch.segment_ids), tensor(batch.predict_index)


if __name__ == "__main__":
    main()
