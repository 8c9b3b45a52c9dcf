"""Time of a step elsewhere: three terms, calibrated with the one GPU and the CPU that we measured.

    seconds = products / (0.70 x peak) + attention / (0.16 x peak) + bytes / bandwidth

On an H100, a step of base (128 rows of 512 tokens, bf16, compiled) took 0.114 to 0.116 s; 45 % of its kernels were
products, 21 % attention, 4.9 % log-softmax, and 29 % moved memory (docs/experiments.md, 2026-11-22). On a CPU the share
of measured matrix multiplication is known by width (benchmarks/results/cpu-*.json). Everything else is a projection.
A step takes no less than the launches of its kernels, which small models wait for.
"""

from __future__ import annotations

from typing import NamedTuple

from maskwright.core.console import several
from maskwright.tasks.planning.devices import Place
from maskwright.tasks.planning.interval import Interval
from maskwright.tasks.planning.work import Work

PRODUCT_SHARE = 0.70
"""Of the peak: 35.7 TFLOP of products in 45 % of 0.115 s."""
ATTENTION_SHARE = 0.155
"""Of the peak: 3.7 TFLOP in 21 % of 0.115 s."""
TRAFFIC_BYTES = 179.0
"""Of memory traffic for each token, layer and unit of width: activations, norms, copies, in 28 % of 0.115 s."""
LOGIT_BYTES = 38.0
"""For each logit: 4.9 % of 0.115 s."""
OPTIMIZER_BYTES = 30.0
"""A parameter: AdamW reads weight, gradient and two moments, writes three of them, and the bf16 copy."""
LAUNCH_SECONDS, STEP_SECONDS = 0.4e-3, 2e-3
"""For the kernels of a layer, forward and backward, in each micro-batch; for the rest of a step on the host. Assumed:
some sixty kernels at six microseconds. Not measured."""
JAX_SHARE = 0.49
"""Of torch's speed, on the one GPU where JAX was timed too: 278,150 of 566,981 tokens/s."""
CPU_SHARES = ((256, 0.516), (512, 0.669), (768, 0.707))
"""Width, and the share of measured matrix multiplication that training reaches on a CPU."""
TOGETHER = 0.95
"""Of perfect, for several devices of one machine or slice: docs/scaling.md projects 98 % for a machine of 8 GPUs."""


class Band(NamedTuple):
    """Factors of the projected speed, and why they are as wide."""

    low: float
    high: float
    why: str


def rate(work: Work, place: Place) -> tuple[Interval, str]:
    """Tokens a second, and what it was projected from."""
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


def device_seconds(work: Work, place: Place) -> float:
    device, width = place.device, work.model.hidden_size
    computing = work.product_flops / PRODUCT_SHARE + work.attention_flops / ATTENTION_SHARE
    moved = TRAFFIC_BYTES * work.tokens * work.model.num_hidden_layers * width
    moved += LOGIT_BYTES * work.predicted * work.model.vocab_size
    shared = computing / device.flops_per_second + moved / device.bytes_per_second
    seconds = shared / place.count + OPTIMIZER_BYTES * work.parameters / device.bytes_per_second
    micro_batches = max(1.0, work.config.batch.virtual_workers / place.count)
    return max(seconds, STEP_SECONDS + LAUNCH_SECONDS * work.model.num_hidden_layers * micro_batches)


def cpu_share(width: int) -> float:
    """In a straight line between the measured widths; below the least in proportion, as fixed costs take over."""
    (least, share), *_ = CPU_SHARES
    if width <= least:
        return share * width / least
    for (low, below), (high, above) in zip(CPU_SHARES, CPU_SHARES[1:], strict=False):
        if width <= high:
            return below + (above - below) * (width - low) / (high - low)
    return CPU_SHARES[-1][1]


def band_of(work: Work, place: Place) -> Band:
    """Judged, not measured: wider, the further a place is from what was measured."""
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
    if device.name == "h100" and place.count == 1:
        return Band(0.75, 1.15, "calibrated with base on one H100")
    if device.name in ("h100", "h200"):
        return Band(0.65, 1.2, "calibrated with base on one H100")
    return Band(0.5, 1.25, "calibrated on another GPU, an H100")


def evaluation_seconds(work: Work, tokens_per_second: Interval) -> Interval:
    """All of the run's: a forward pass is a third of a step."""
    return tokens_per_second.over(work.evaluations * work.evaluation_tokens / 3.0)
