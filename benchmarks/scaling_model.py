"""A model of an update's time on many GPUs: communication from cited figures, against an assumed speed of computing.

    python benchmarks/scaling_model.py                                  with assumed shares of the GPU's peak
    python benchmarks/scaling_model.py --tokens-per-second 700000 --size base     with your own, measured on one GPU

A projection: one H100 has trained alone, and several GPUs never have. What it holds:
- time of a collective operation = steps x latency + bytes / bandwidth (alpha-beta), for rings as in NCCL's own tuning
  model;
- 32 MiB groups are sent while the backward pass of the last micro-batch computes. The last group, which holds the
  embeddings, leaves when that has ended. Then each GPU updates its share, and all gather the new weights in bf16
  (`engines/torch/weights.py`);
- gradients are summed inside each node first, and then between GPUs of one number (`engines/torch/levels.py`): each
  GPU sends an eighth of its gradient over its own share of the network. The two do not overlap here;
- all processes tell each other weights and wishes over gloo in each step, hop by hop around a ring
  (https://github.com/pytorch/gloo/blob/19f1d3ac8e3120faad559f474d0ceddec5d03ee7/gloo/allgather.cc), while the GPUs
  compute.
What it leaves out: stragglers, congestion, loading, saving, slower computing of small micro-batches.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, replace

from maskwright.config.pretraining import ModelSection
from maskwright.model.config import ModelConfig, model_config, training_flops
from maskwright.model.hf.names import count_parameters

GPUS_A_NODE = 8
SPECIFICATIONS = (
    "https://github.com/stas00/ml-engineering/blob/7bc7c3054eb93c277a4755c597ae0864d77a63f1/"
    "insights/when-to-upgrade-gpus/README.md"
)
PEAK_FLOPS = 989e12
"""Dense bf16 of an H100 or H200 SXM (`SPECIFICATIONS`)."""
MEMORY_BYTES_PER_SECOND = 4.8e12
"""Of an H200 (`SPECIFICATIONS`)."""
LINK_SHARE = 0.8
"""Of a line rate that NCCL reaches: 370 of NVLink's 450 GB/s, "with the protocol overhead (~20%)"
(https://github.com/NVIDIA/nccl-tests/issues/212); 320 of 400 GB/s over 8 x 400 Gb/s a node
(https://github.com/NVIDIA/nccl/issues/1221)."""
GROUP_BYTES = 32 << 20
OPTIMIZER_BYTES = 30
"""Of memory traffic a parameter: AdamW reads weight, gradient and two moments, writes three of them, and the bf16
copy."""
MESSAGES_AT_ONCE = 8
"""Of an all-to-all, in flight from one GPU: an assumption."""
HOP_SECONDS = 50e-6
"""Of a small message from host to host over TCP: an assumption. Within a zone of a cloud a round trip takes 100 us and
more (https://evan-jones.appspot.com/network-latencies-2021.html)."""


@dataclass(frozen=True)
class Network:
    """Rates in bytes a second and one direction; latencies in seconds, from NCCL's tuning model:
    https://github.com/NVIDIA/nccl/blob/b6475625fbcaa2c3c0e50eed2fa1255d7514d4a2/src/graph/tuning.cc (`baseLat` and
    `hwLat` of rings with the Simple protocol)."""

    name: str
    node_bytes_per_second: float
    """All network cards of a node together."""
    nvlink_bytes_per_second: float = 450e9
    """NVLink 4: 900 GB/s both ways (https://github.com/mlcommons/inference_results_v4.1, closed/NVIDIA/systems,
    H200-SXM-141GBx8_TRT_MaxQ.json)."""
    link_share: float = LINK_SHARE
    start_seconds: float = 8.4e-6
    ring_inside_seconds: float = 3.4e-6
    ring_across_seconds: float = 14.0e-6
    gpus_a_node: int = GPUS_A_NODE
    hop_seconds: float = HOP_SECONDS

    def nodes(self, gpus: int) -> int:
        return -(-gpus // self.gpus_a_node)

    def bandwidth(self, gpus: int) -> float:
        """Of a ring over all GPUs, which leaves each node through all of its cards."""
        across = self.node_bytes_per_second if self.nodes(gpus) > 1 else math.inf
        return self.link_share * min(self.nvlink_bytes_per_second, across)


# 100GbE, 200 Gb/s (NDR200, 200GbE) and 400 Gb/s (NDR, 400GbE) a card:
# https://docs.nvidia.com/networking/display/ConnectX7VPI/Introduction. Eight cards a node, one for each GPU, as in
# NVIDIA's DGX H100 User Guide, table 6; one card a node is what a plain machine of a cloud or a laboratory has.
NETWORKS = {
    "8x400": Network("8 x 400 Gb/s a node (NDR InfiniBand or 400GbE)", 8 * 50e9),
    "8x200": Network("8 x 200 Gb/s a node (HDR or NDR200 InfiniBand or 200GbE)", 8 * 25e9),
    "1x400": Network("1 x 400 Gb/s a node", 50e9),
    "1x100": Network("1 x 100 Gb/s a node (100GbE)", 12.5e9),
}


# ---- collective operations ------------------------------------------------------------------------------------------


def ring_seconds(network: Network, gpus: int, size: float) -> float:
    """All-reduce of `size` bytes: each GPU sends 2 (W - 1) / W of them, in 2 (W - 1) steps."""
    if gpus == 1:
        return 0.0
    steps, across = 2 * (gpus - 1), 2 * network.nodes(gpus) if network.nodes(gpus) > 1 else 0
    latency = (steps - across) * network.ring_inside_seconds + across * network.ring_across_seconds
    return network.start_seconds + latency + 2 * (gpus - 1) / gpus * size / network.bandwidth(gpus)


def half_ring_seconds(network: Network, gpus: int, size: float) -> float:
    """All-gather into `size` bytes, or reduce-scatter of them: half of an all-reduce. NCCL has no tree for them."""
    if gpus == 1:
        return 0.0
    return network.start_seconds + (ring_seconds(network, gpus, size) - network.start_seconds) / 2


def all_to_all_seconds(network: Network, gpus: int, size: float) -> float:
    """Each GPU of a node sends 1 / 8 of `size` bytes to each other one over NVLink. Then each node sends its sum to
    each other one, in eighths over each GPU's share of the cards."""
    here, nodes = min(gpus, network.gpus_a_node), network.nodes(gpus)
    own_share = network.node_bytes_per_second / network.gpus_a_node
    levels = (
        (here, size, network.nvlink_bytes_per_second, network.ring_inside_seconds),
        (nodes, size / here, own_share, network.ring_across_seconds),
    )
    seconds = 0.0
    for members, sent, rate, latency in levels:
        if members > 1:
            seconds += network.start_seconds + (members - 1) / MESSAGES_AT_ONCE * latency
            seconds += sent * (members - 1) / members / (network.link_share * rate)
    return seconds


# ---- an update ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """`flops_per_second`: of one GPU, model FLOPs. `row_flops`, `parameters` and `last_parameters` (of the last group)
    are of the model."""

    row_flops: float
    parameters: float
    last_parameters: float
    batch_rows: int
    flops_per_second: float
    most_rows_at_once: int = 64

    def rows_at_once(self, gpus: int) -> int:
        """Of a micro-batch: as many as there are for each GPU, up to the most that it takes."""
        return max(1, min(self.most_rows_at_once, self.batch_rows // gpus))

    def micro_batches(self, gpus: int) -> int:
        """Of each GPU."""
        return max(1, self.batch_rows // gpus // self.rows_at_once(gpus))

    def compute_seconds(self, gpus: int) -> float:
        return self.batch_rows / gpus * self.row_flops / self.flops_per_second

    def last_backward_seconds(self, gpus: int) -> float:
        """A backward pass is two thirds of a micro-batch."""
        return 2 / 3 * self.compute_seconds(gpus) / self.micro_batches(gpus)


def job_of(size: str, batch_rows: int, flops_per_second: float, *, vocab_size: int = 50265, seq_len: int = 512) -> Job:
    """Full rows of one segment each, masked at 15 %."""
    model = model_config(ModelSection.model_validate({"size": size}), vocab_size, seq_len)
    embeddings = model.padded_vocab_size * model.hidden_size
    return Job(
        row_flops=row_flops(model, seq_len),
        parameters=count_parameters(model),
        last_parameters=embeddings,
        batch_rows=batch_rows,
        flops_per_second=flops_per_second,
    )


def row_flops(model: ModelConfig, seq_len: int) -> float:
    return training_flops(model, seq_len, seq_len**2, 0.15 * seq_len)


def update_bytes(job: Job, gpus: int) -> float:
    """That each process sends in an update: fp32 gradients and bf16 weights."""
    return (gpus - 1) / gpus * job.parameters * (4 + 2)


def _groups(size: float) -> int:
    return max(1, round(size / GROUP_BYTES))


def exposed_seconds(network: Network, job: Job, gpus: int) -> float:
    """Of what is sent in an update: what no computing hides."""
    if gpus == 1:
        return 0.0
    last = 4 * job.last_parameters
    body = 4 * job.parameters - last
    groups, window = _groups(body), job.last_backward_seconds(gpus)
    hidden = groups * all_to_all_seconds(network, gpus, body / groups)
    gathered = half_ring_seconds(network, gpus, 2 * job.parameters)
    return max(0.0, hidden - window) + all_to_all_seconds(network, gpus, last) + gathered


def memory_seconds(job: Job, gpus: int) -> float:
    """The optimizer, and copies and sums of gradients."""
    gradient = 8.0 * job.parameters  # read and written once
    optimizer = (OPTIMIZER_BYTES / gpus + (4 if gpus > 1 else 0)) * job.parameters  # put in place what was gathered
    sums = (job.micro_batches(gpus) / 2 + (3 if gpus > 1 else 0)) * gradient
    return (optimizer + sums) / MEMORY_BYTES_PER_SECOND


def exchange_seconds(network: Network, gpus: int) -> float:
    """The hosts' exchange in a step (`TorchEngine.exchange`); they run ahead of the GPUs."""
    return (gpus - 1) * network.hop_seconds


def step_seconds(network: Network, job: Job, gpus: int) -> float:
    device = job.compute_seconds(gpus) + exposed_seconds(network, job, gpus) + memory_seconds(job, gpus)
    return max(device, exchange_seconds(network, gpus))


def efficiency(network: Network, job: Job, gpus: int) -> float:
    """Of `gpus` against one: 1 where twice the GPUs take half of the time."""
    return step_seconds(network, job, 1) / gpus / step_seconds(network, job, gpus)


# ---- tables ---------------------------------------------------------------------------------------------------------

COUNTS = (8, 16, 32, 64, 128, 256, 512, 1024)


def table(network: Network, size: str, rows: int, speeds: dict[str, float]) -> list[str]:
    """A row for each number of GPUs; for each speed the step's time and the efficiency."""
    jobs = {name: job_of(size, rows, flops_per_second) for name, flops_per_second in speeds.items()}
    lines = [f"| GPUs | rows each | {' | '.join(jobs)} |", "|---|---|" + "---|" * len(jobs)]
    for gpus in (count for count in COUNTS if count <= rows):
        cells = [
            f"{step_seconds(network, job, gpus) * 1e3:,.0f} ms, {efficiency(network, job, gpus):.0%}"
            for job in jobs.values()
        ]
        lines.append(f"| {gpus:,} | {rows // gpus:,} | {' | '.join(cells)} |")
    return lines


def tables(
    sizes: list[str], keys: list[str], rows: list[int], speeds: dict[str, float], link_share: float = LINK_SHARE
) -> list[str]:
    found = []
    for key in keys:
        network = replace(NETWORKS[key], link_share=link_share)
        for size in sizes:
            for count in rows:
                found += [f"**{size}, {count:,} rows of 512 in a batch, {network.name}**", ""]
                found += [*table(network, size, count, speeds), ""]
    return found


def shares(given: list[float]) -> dict[str, float]:
    return {f"{share:.0%}": share * PEAK_FLOPS for share in given}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", nargs="+", default=["base", "large"])
    parser.add_argument("--batch-rows", nargs="+", type=int, default=[2048, 8192])
    parser.add_argument("--network", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--share", nargs="+", type=float, default=[0.3, 0.5], help="of the GPU's peak; an assumption")
    parser.add_argument("--tokens-per-second", type=float, help="that one GPU was measured at, in place of --share")
    parser.add_argument("--link-share", type=float, default=LINK_SHARE, help="of the links' rates that NCCL reaches")
    arguments = parser.parse_args()
    print("A projection: several GPUs have never run this. Times of a step, and efficiency against one GPU.\n")
    for size in arguments.size:
        speeds = shares(arguments.share)
        if arguments.tokens_per_second:
            row = job_of(size, 1, 1.0).row_flops
            rate = arguments.tokens_per_second
            speeds = {f"at {rate:,.0f} tokens/s": rate / 512 * row}
        print("\n".join(tables([size], arguments.network, arguments.batch_rows, speeds, arguments.link_share)))


if __name__ == "__main__":
    main()
