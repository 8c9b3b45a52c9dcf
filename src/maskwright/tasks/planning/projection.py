"""The time of a step on another device: three terms, calibrated with the one GPU and the CPU that we measured.

    seconds = products / (0.73 x peak) + attention / (0.16 x peak) + bytes / bandwidth

On an H200, a step of base (128 rows of 512 tokens, bf16, compiled, exact) took 95.0 ms. Of the time of its kernels,
49 % were products, 24 % attention, 1.4 % the loss, 1.8 % the optimizer, and the rest moved memory
(docs/experiments-archive.md, 2026-11-26). On a CPU the share of measured matrix multiplication is known by width
(benchmarks/results/cpu-*.json). Everything else is a projection. A step lasts at least as long as its host's part of
it, for which small models wait.
"""

from __future__ import annotations

from typing import NamedTuple

from maskwright.core.console import several
from maskwright.tasks.planning.devices import DeviceCount
from maskwright.tasks.planning.interval import Interval
from maskwright.tasks.planning.work import Work

PRODUCT_SHARE = 0.734
"""Share of the peak in products: 33.9 TFLOP in 49.2 % of 95.0 ms."""
ATTENTION_SHARE = 0.16
"""Share of the peak in attention: 3.6 TFLOP in 24.2 % of 95.0 ms."""
TRAFFIC_BYTES = 178.0
"""Memory traffic for each token, layer and unit of width: activations, norms, copies, and gaps, in the remaining
time."""
LOGIT_BYTES = 13.0
"""Memory traffic for each logit: 1.37 ms."""
OPTIMIZER_BYTES = 66.0
"""Memory traffic for each parameter: norm, scale, AdamW and the bf16 copy, in 1.7 ms."""
STEP_SECONDS, MICRO_BATCH_SECONDS = 3.6e-3, 1e-3
"""Time of the host, where one call starts all kernels of a micro-batch, as CUDA graphs and JAX do: nano took 3.6 ms in
all, mini 3.9. The time of each further micro-batch is assumed."""
LAYER_SECONDS = 3.6e-3
"""Time of the host on top, for each layer of a micro-batch whose kernels it starts one by one. Without graphs, nano
took 11.6 ms beside the H200, mini 18.8."""
JAX_SHARE = 0.45
"""Share of torch's speed by this model, on an H100, where JAX reached 278,150 tokens/s."""
CPU_SHARES = ((256, 0.516), (512, 0.669), (768, 0.707))
"""Width, and the share of measured matrix multiplication that training reaches on a CPU."""
CPU_FLOPS_OF_A_CORE = 4.7e11
"""The shares hold up to the ceiling of a Zen 5 core. With AMX it is up to twice as high, but a step takes as long as on
Zen 5 (docs/experiments-archive.md, 2026-11-27): what is no product, and small products, are no faster."""
TOGETHER = 0.95
"""Share of perfect scaling over the devices of one machine or slice: docs/scaling.md projects 98 % for a machine of
8 GPUs."""


class Band(NamedTuple):
    """Factors of the projected speed, and the reason for their width."""

    low: float
    high: float
    why: str


def rate(work: Work, place: DeviceCount) -> tuple[Interval, str]:
    """Tokens a second, and the basis of the projection in words."""
    device = place.device
    if device.family == "cpu":
        share = cpu_share(work.model.hidden_size)
        speed = work.tokens * device.flops_per_second * place.count * share / work.flops
        what = (
            f"{several(place.count, 'core')} at {device.flops_per_second / 1e9:,.0f} GFLOP/s each, of which "
            f"{share:.0%} are used"
        )
    else:
        share = JAX_SHARE if device.family == "tpu" else 1.0
        share *= TOGETHER if place.count > 1 else 1.0
        speed = work.tokens / device_seconds(work, place) * share
        what = (
            f"{place.count} x {device.flops_per_second / 1e12:,.0f} TFLOP/s, {device.bytes_per_second / 1e9:,.0f} GB/s"
        )
    band = band_of(work, place)
    return Interval(speed * band.low, speed, speed * band.high), f"{what}; {band.why}"


def device_seconds(work: Work, place: DeviceCount) -> float:
    device, width = place.device, work.model.hidden_size
    computing = work.product_flops / PRODUCT_SHARE + work.attention_flops / ATTENTION_SHARE
    moved = TRAFFIC_BYTES * work.tokens * work.model.num_hidden_layers * width
    moved += LOGIT_BYTES * work.predicted * work.model.vocab_size
    shared = computing / device.flops_per_second + moved / device.bytes_per_second
    seconds = shared / place.count + OPTIMIZER_BYTES * work.parameters / device.bytes_per_second
    micro_batches = max(1.0, work.config.batch.virtual_workers / place.count)
    one_by_one = device.family == "gpu" and place.count > 1
    return max(seconds, host_seconds(work.model.num_hidden_layers, micro_batches, one_by_one=one_by_one))


def host_seconds(layers: int, micro_batches: float, *, one_by_one: bool) -> float:
    """The host's part of an update, however fast the devices are. `one_by_one`: the host starts the kernels of the last
    micro-batch one by one, as where GPUs send each other their gradients meanwhile."""
    return STEP_SECONDS + MICRO_BATCH_SECONDS * (micro_batches - 1.0) + LAYER_SECONDS * layers * one_by_one


def cpu_share(width: int) -> float:
    """The share of measured matrix multiplication: in a straight line between the measured widths; below the least in
    proportion, as fixed costs dominate there."""
    (least, share), *_ = CPU_SHARES
    if width <= least:
        return share * width / least
    for (low, below), (high, above) in zip(CPU_SHARES, CPU_SHARES[1:], strict=False):
        if width <= high:
            return below + (above - below) * (width - low) / (high - low)
    return CPU_SHARES[-1][1]


def band_of(work: Work, place: DeviceCount) -> Band:
    """The band, judged and not measured: the further a place is from the measured ones, the wider."""
    device, width = place.device, work.model.hidden_size
    if device.family == "cpu":
        if device.name == "cpu" and place.count == 2 and width >= CPU_SHARES[0][0]:
            return Band(0.8, 1.15, "calibrated on two such cores")
        return Band(0.4, 1.3, "never measured on so many cores, or so narrow a model")
    if device.family == "tpu":
        return Band(0.4, 2.0, "no TPU has run it")
    rows = work.config.batch.micro_batch_rows * work.config.data.seq_len
    if width < 512 or rows < 8192:
        return Band(0.2, 1.1, "a micro-batch or a model this small may leave most of a GPU idle")
    if device.name == "h200" and place.count == 1:
        return Band(0.75, 1.15, "calibrated with base on one H200")
    if device.name in ("h100", "h200"):
        return Band(0.65, 1.2, "calibrated with base on one H200")
    return Band(0.5, 1.25, "calibrated on another GPU, an H200")


def evaluation_seconds(work: Work, tokens_per_second: Interval) -> Interval:
    """The time of all evaluations of the run: a forward pass is a third of a step."""
    return tokens_per_second.over(work.evaluations * work.evaluation_tokens / 3.0)
