"""How many processes train together, on this machine and on others."""

from __future__ import annotations

import os
from dataclasses import dataclass

from maskwright.config.finetuning import FinetuneConfig
from maskwright.config.pretraining import RunConfig, require_devices, shared_out
from maskwright.core.console import warn
from maskwright.core.errors import ConfigError
from maskwright.launch.target import LaunchOptions
from maskwright.machine import hardware


@dataclass(frozen=True)
class WorkerGroup:
    processes: int
    """Number of processes on this machine."""
    nodes: int = 1
    node_rank: int = 0
    """Index of this machine among the nodes."""
    rendezvous: str | None = None
    """HOST:PORT of node 0."""
    takes_listener: bool = True
    """Whether process 0 accepts a listening socket; JAX opens its own."""
    on_tpu: bool = False
    """Whether it is the one process of a TPU host. It finds the other hosts of its slice by the machine's metadata, so
    only the launcher that started all hosts can restart them."""

    def rank(self, number: int) -> int:
        return self.node_rank * self.processes + number

    def variables(self, number: int, port: int) -> dict[str, str]:
        if self.on_tpu:
            return {"LOCAL_RANK": "0"}
        host, _, master_port = (self.rendezvous or f"127.0.0.1:{port}").rpartition(":")
        return {
            "MASTER_ADDR": host,
            "MASTER_PORT": master_port,
            "WORLD_SIZE": str(self.nodes * self.processes),
            "RANK": str(self.rank(number)),
            "LOCAL_WORLD_SIZE": str(self.processes),
            "LOCAL_RANK": str(number),
        }


def choose(
    config: RunConfig | FinetuneConfig, machines: LaunchOptions, *, gpus: int | None = None
) -> WorkerGroup | None:
    """The requested processes, else one for each GPU that torch is to use, else one. None if this process is to train
    by itself: alone on the CPU, or started by a launcher.

    Raises `ConfigError` if there are fewer GPUs than processes, or if the batch cannot be divided among them."""
    processes, nodes = machines.processes, machines.num_nodes or 1
    node_rank, rendezvous = machines.node_rank, machines.rendezvous
    if launched := [name for name in ("WORLD_SIZE", "LOCAL_RANK") if name in os.environ]:  # a TPU host lacks the first
        if processes is not None or nodes > 1:
            fix = f"leave out --processes and --num-nodes, or unset {' '.join(launched)}"
            raise ConfigError("conflicts with the launcher that started this process", where=launched[0], fix=fix)
        return None
    if nodes == 1 and (tasks := os.environ.get("SLURM_STEP_NUM_TASKS", "1")) != "1":
        warn(f"srun starts this command {tasks} times, and each trains a run of its own: for one run, see submit slurm")
    V, engine = config.batch.virtual_workers, config.engine
    gpus = hardware.cuda_devices() if gpus is None else gpus
    on_gpus = engine.kind == "torch" and engine.device != "cpu" and gpus > 0
    if not 0 <= node_rank < nodes:
        raise ConfigError(f"{node_rank} is not one of {nodes} nodes", where="--node-rank", fix="count the nodes from 0")
    if nodes > 1 and on_gpus and processes is None:
        fix = "give the same --processes on every machine"
        raise ConfigError("machines may have different numbers of GPUs", where="--processes", fix=fix)
    if nodes > 1 and not (rendezvous and rendezvous.rpartition(":")[2].isdigit() and rendezvous.rpartition(":")[0]):
        fix = "give the same HOST:PORT of node 0 on every machine; on a Ray cluster, use `maskwright submit ray`"
        raise ConfigError(f"{nodes} nodes need an address to meet at", where="--rendezvous", fix=fix)
    if engine.kind == "torch" and engine.devices and engine.devices % nodes == 0:
        processes = processes or engine.devices // nodes
    if processes is None and on_gpus:
        processes = max(count for count in range(1, gpus + 1) if V % (count * nodes) == 0 or count == 1)
        if processes < gpus:
            warn(
                f"computing on {processes} of {gpus} GPUs: batch.virtual_workers is {V}; a multiple of "
                f"{gpus * nodes} uses all"
            )
    processes = processes or 1
    if (on_gpus or engine.device == "cuda") and engine.kind == "torch" and processes > max(gpus, 1):
        what = f"{processes} GPUs were requested, and this machine has {gpus}"
        raise ConfigError(what, where="--processes", fix=f"give {max(gpus, 1)}, or set engine.device: cpu")
    total = nodes * processes
    if engine.kind == "torch":
        shared_out(V, total, "processes", config.batch.micro_batch_rows if isinstance(config, RunConfig) else None)
    require_devices(engine, total)
    torch, on_tpu = engine.kind == "torch", engine.kind == "jax" and engine.device in ("auto", "tpu") and total == 1
    if on_tpu and hardware.tpu_chips():
        return WorkerGroup(1, takes_listener=False, on_tpu=True)
    # One process gets a supervisor too if a driver may hang or a card be lost.
    if total == 1 and (engine.device == "cpu" or not gpus):
        return None
    return WorkerGroup(processes, nodes, node_rank, rendezvous if nodes > 1 else None, torch)
