"""Seconds and memory that a run needs on a device, from its work, which is counted from its configuration.

On GPUs and TPUs an update takes

    products / (0.73 x peak) + attention / (0.16 x peak) + bytes / bandwidth

On an H200, a step of base (128 rows of 512 tokens, bf16, compiled, exact) took 95.0 ms. Of the time of its kernels,
49 % were products, 24 % attention, 1.4 % the loss, 1.8 % the optimizer, and the rest moved memory
(records/experiments.md, 2026-11-26). A step lasts at least as long as the host's part of it, which limits small
models. For CPUs the same parts have other shares and times, fitted to measured steps (records/experiments.md,
2026-11-29). Everything else is a projection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from maskwright.config.finetuning import FinetuneConfig
from maskwright.config.pretraining import EngineSection, RunConfig
from maskwright.core.console import plain_number, several, time_unit
from maskwright.data.masking import slots_per_row
from maskwright.engines.muon import products_flops
from maskwright.machine.devices import Device, DeviceCount
from maskwright.machine.hardware import other_load
from maskwright.model.config import ModelConfig
from maskwright.model.hf.names import count_parameters
from maskwright.tasks.start.capacity import checkpoint_bytes, state

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
"""Additional time of the host for each layer of a micro-batch whose kernels it starts one by one. Without graphs, nano
took 11.6 ms on the H200's host, mini 18.8."""
JAX_SHARE = 0.45
"""Share of torch's speed by this model, on an H100, where JAX reached 278,150 tokens/s."""
TOGETHER = 0.95
"""Share of perfect scaling over the devices of one machine or slice. docs/many-processes.md projects 99 % for one of
8 GPUs."""
CPU_SHARES = {True: (0.82, 0.45, 0.85), False: (0.85, 0.8, 0.85)}
"""Shares of measured matrix multiplication in products with weights, in attention and in Muon's products: in 16 bits,
and in fp32."""
CPU_TOKEN_SECONDS, CPU_LOGIT_SECONDS, CPU_PARAMETER_SECONDS = 9e-9, 3.7e-9, 1e-9
"""Time of a core for everything but products: for each token, layer and unit of width; each logit; each parameter."""
CPU_LAYER_SECONDS, CPU_THREADS_LAYER_SECONDS = 2.8e-3, 4.5e-3
"""Time of the host for each layer, of a micro-batch and of Muon's update: with one thread, and with several, which wait
for each other."""
JAX_CPU_SHARE = 0.7
"""Share of torch's speed in fp32: 0.63 for mini, 0.77 for small (records/experiments.md, 2026-11-28)."""
CPU_SENT_SECONDS = 3e-9
"""Time for each parameter where processes send each other gradients and weights."""

ROW_BYTES_PER_WIDTH = 32
"""Bytes that are kept for the backward pass of a layer, per token and unit of width, in 16 bits and without dropout:
formula 1 of Korthikanti et al. 2022 (arXiv:2205.05198) less the two masks of dropout."""
HEAD_BYTES = 8
"""Additional bytes for each logit while a micro-batch is computed: its log-probability and its gradient in fp32. The
logit itself is in the precision of the products."""
CPU_POSITIONS = 256
"""Positions whose logits torch has in fp32 at once on a CPU (`model/torch/cross_entropy.py`)."""
PROCESS_BYTES = 500_000_000
"""Bytes of Python and torch themselves."""


@dataclass(frozen=True)
class Interval:
    """A number that is not known exactly, with its range."""

    low: float
    mid: float
    high: float

    def over(self, amount: float) -> Interval:
        """The time for `amount` at this rate. The fastest rate gives the lowest number."""
        return Interval(amount / self.high, amount / self.mid, amount / self.low)

    def times(self, factor: float) -> Interval:
        return Interval(self.low * factor, self.mid * factor, self.high * factor)

    def plus(self, amount: float) -> Interval:
        return Interval(self.low + amount, self.mid + amount, self.high + amount)

    def text(self, show: Callable[[float], str], unit: str = "") -> str:
        """The interval in words; the unit stands once."""
        return f"{show(self.mid)}{unit and f' {unit}'} ({show(self.low)} to {show(self.high)})"

    def time(self) -> str:
        """Seconds in words, in the unit that suits the middle: `5.4 days (4.5 to 8.3)`."""
        length, unit = time_unit(self.mid)
        return self.times(1 / length).text(plain_number, unit)


@dataclass(frozen=True)
class Work:
    """The work of a run, the same on any device. Unless stated otherwise, numbers are for one update on all devices."""

    config: RunConfig | FinetuneConfig
    """With its number of steps."""
    model: ModelConfig
    tokens: float
    """Text and frame tokens, as a log line counts them; in fine-tuning with the padding, which is computed too."""
    predicted: float
    """Predictions of masked-LM; 0 in fine-tuning, whose heads are small."""
    pairs: float
    """(query, key) pairs inside segments."""
    row_pairs: float
    """(query, key) pairs inside rows. A CPU computes all of them, and masks hide the pairs of two segments."""
    micro_batch: tuple[float, int, float]
    """(tokens, tokens of a row, predictions) of the largest micro-batch."""
    evaluated: float
    """Tokens of all evaluations of the run."""
    counted: bool = True
    """False if each row is assumed to be full, and one document."""

    @property
    def steps(self) -> int:
        return self.config.steps

    @property
    def parameters(self) -> int:
        return count_parameters(self.model)

    @property
    def product_flops(self) -> float:
        """FLOPs of matrix products with weights, without attention."""
        return self.model.product_flops(self.tokens, self.predicted)

    @property
    def attention_flops(self) -> float:
        return self.model.attention_flops(self.tokens, self.pairs)

    @property
    def flops(self) -> float:
        """Model FLOPs, as `training_flops` counts them, without Muon's."""
        return self.product_flops + self.attention_flops

    @property
    def muon_flops(self) -> float:
        """FLOPs of the products by which Muon makes an update."""
        return products_flops(self.model) if self.config.optimizer.kind == "muon" else 0.0

    def saves(self, seconds: float) -> int:
        """Saves of a run that lasts `seconds`: by the clock or by steps, and one at the end."""
        options = self.config.checkpoint
        by_clock = int(seconds / options.save_every_seconds) if options.save_every_seconds else 0
        by_steps = (self.steps - 1) // options.save_every_steps if options.save_every_steps else 0
        return max(by_clock, by_steps) + 1


def pretraining_work(
    config: RunConfig, model: ModelConfig, counts: tuple[float, float, float] | None = None, held_out: int | None = None
) -> Work:
    """`counts`: (tokens, predicted, pairs) of an update, by default for full rows of one document each. `held_out`:
    tokens of an evaluation, by default of `evaluation.max_rows`."""
    stages, steps = config.stages, config.steps
    full = (
        sum(stage.tokens for stage in stages) / steps,
        sum(stage.tokens * stage.config.masking.rate for stage in stages) / steps,
        float(sum(stage.tokens * stage.config.data.seq_len for stage in stages)) / steps,
    )
    shapes = [
        (kind.batch.micro_batch_rows, kind.data.seq_len, kind.masking.kind, kind.masking.rate)
        for kind in (stage.config for stage in stages)
    ]
    largest = (
        float(max(rows * tokens for rows, tokens, *_ in shapes)),
        config.longest_row,
        float(max(rows * slots_per_row(kind, rate, tokens) for rows, tokens, kind, rate in shapes)),
    )
    every = config.evaluation.every_steps
    evaluations = 2 + ((steps - 1) // every if every else 0)  # at the start and at the end too
    held_out = config.evaluation.max_rows * config.data.seq_len if held_out is None else held_out
    return Work(config, model, *(counts or full), full[2], largest, float(evaluations * held_out), counts is not None)


def finetuning_work(
    config: FinetuneConfig,
    model: ModelConfig,
    row: int,
    judged: tuple[float, float],
    counts: tuple[float, float, float] | None = None,
) -> Work:
    """`row`: tokens of the longest row. `judged`: tokens of the validation and of the test split. `counts`: (tokens,
    pairs, tokens of the largest micro-batch) of an update, by default for examples that fill their rows.

    Evaluation comes at each `every_steps`, at the end, and once more with the best checkpoint, which the test split
    judges too."""
    full = float(config.batch.examples * row)
    tokens, pairs, largest = counts or (full, full * row, full / config.batch.virtual_workers)
    every = config.evaluation.every_steps
    times = 2.0 + ((config.steps - 1) // every if every else 0)
    evaluated = times * judged[0] + judged[1]
    return Work(config, model, tokens, 0.0, pairs, pairs, (largest, row, 0.0), evaluated, counts is not None)


# ---- time -----------------------------------------------------------------------------------------------------------


def computes_in_16_bits(engine: EngineSection, place: DeviceCount) -> bool:
    """Whether products are in 16 bits. XLA's bf16 products are no faster on a CPU."""
    if engine.dtype == "auto":
        return place.device.low_precision and not (engine.kind == "jax" and place.device.family == "cpu")
    return engine.dtype != "fp32"


def seconds_of(work: Work, place: DeviceCount) -> tuple[float, float]:
    """(seconds of an update, seconds of all evaluations), in the middle of the band."""
    low = computes_in_16_bits(work.config.engine, place)
    return (_on_a_cpu if place.device.family == "cpu" else _on_accelerators)(work, place, low)


def _on_accelerators(work: Work, place: DeviceCount, low: bool) -> tuple[float, float]:
    device, model, engine = place.device, work.model, work.config.engine
    peak = device.flops_per_second if low else device.fp32_flops_per_second
    computing = work.product_flops / PRODUCT_SHARE + work.attention_flops / ATTENTION_SHARE
    moved = TRAFFIC_BYTES * work.tokens * model.num_hidden_layers * model.hidden_size
    moved += LOGIT_BYTES * work.predicted * model.vocab_size
    share = JAX_SHARE if device.family == "tpu" else 1.0
    share *= TOGETHER if place.count > 1 else 1.0
    passes = computing / peak + moved * (1 if low else 2) / device.bytes_per_second
    muon = work.muon_flops / PRODUCT_SHARE / peak / place.count
    rest = muon + OPTIMIZER_BYTES * work.parameters / device.bytes_per_second
    # Fine-tuning has too many shapes for graphs, and GPUs send each other their gradients meanwhile.
    graphs = isinstance(work.config, RunConfig) and place.count == 1
    one_by_one = device.family == "gpu" and engine.kind == "torch" and not graphs
    more = max(0.0, work.config.batch.virtual_workers / place.devices - 1.0)
    least = STEP_SECONDS + MICRO_BATCH_SECONDS * more + LAYER_SECONDS * model.num_hidden_layers * one_by_one
    passes /= place.count * share
    evaluation = passes / 3.0 * work.evaluated / work.tokens  # a forward pass is a third of both
    return max(passes + rest / share, least), evaluation


def _on_a_cpu(work: Work, place: DeviceCount, low: bool) -> tuple[float, float]:
    device, model = place.device, work.model
    cores = place.count * (JAX_CPU_SHARE if work.config.engine.kind == "jax" else 1.0)
    speed = cores * (device.flops_per_second if low else device.fp32_flops_per_second)
    products, attention, muon = CPU_SHARES[low]
    alone = place.count == place.processes
    layers = (CPU_LAYER_SECONDS if alone else CPU_THREADS_LAYER_SECONDS) * model.num_hidden_layers
    micro_batches = work.config.batch.virtual_workers / place.processes
    attention_flops = model.attention_flops(work.tokens, work.row_pairs)
    body = (work.product_flops / products + attention_flops / attention) / speed
    body += layers * micro_batches
    body += CPU_TOKEN_SECONDS * work.tokens * model.num_hidden_layers * model.hidden_size / cores
    head = CPU_LOGIT_SECONDS * work.predicted * model.vocab_size / cores
    update = CPU_PARAMETER_SECONDS * work.parameters / cores
    if work.muon_flops:
        update += work.muon_flops / muon / speed + layers / place.processes
    sent = CPU_SENT_SECONDS * work.parameters * (place.processes > 1)
    # A forward pass is a third of both, but losses and guesses take as long as a gradient.
    return body + head + update + sent, (body / 3.0 + head) * work.evaluated / work.tokens


def step_seconds(work: Work, place: DeviceCount) -> Interval:
    """An update, with its share of the evaluations."""
    step, evaluations = seconds_of(work, place)
    band, mid = band_of(work, place), step + evaluations / work.steps
    return Interval(mid / band.high, mid, mid / band.low)


def time_here(work: Work, place: DeviceCount | None, done: int = 0) -> str | None:
    """The time of the remaining steps in words, for the first lines of a run; None if no step is left. `place`: see
    `devices.here`."""
    left = work.steps - done
    if left <= 0:
        return None
    if place is None:
        return "time here: unknown, since no run was measured on such a device; `maskwright status` shows the time left"
    steps = several(left, "step") + " and their evaluations" * bool(work.evaluated)
    time = step_seconds(work, place).times(left).time()
    notes = [note for note in (precision_note(work.config.engine, place.device), other_load()) if note]
    return "; ".join([f"time here: about {time} for {steps}, projected", *notes])


def precision_note(engine: EngineSection, device: Device) -> str:
    """What `engine.dtype` costs on a device that is not made for it; else empty."""
    if device.family == "cpu" and engine.dtype == "fp16":
        return "fp16 is for GPUs: engine.dtype: auto takes bf16 or fp32 on a CPU, and is many times as fast"
    if device.name in ("t4", "v100") and engine.dtype != "fp32":
        return "it has no bf16, so it uses fp16 with loss scaling, and no FlashAttention over packed segments"
    return ""


def basis(work: Work, place: DeviceCount) -> str:
    """The inputs of a projection, in words."""
    device, low = place.device, computes_in_16_bits(work.config.engine, place)
    peak, why = device.flops_per_second if low else device.fp32_flops_per_second, band_of(work, place).why
    if device.family == "cpu":
        return f"{several(place.count, 'core')} at {peak / 1e9:,.0f} GFLOP/s each; {why}"
    return f"{place.count} x {peak / 1e12:,.4g} TFLOP/s, {device.bytes_per_second / 1e9:,.0f} GB/s; {why}"


class Band(NamedTuple):
    """Factors of the projected speed, and the reason for their width."""

    low: float
    high: float
    why: str


def band_of(work: Work, place: DeviceCount) -> Band:
    """The band for a place. The less the place resembles what was measured, the wider the band."""
    device, engine = place.device, work.config.engine
    low = computes_in_16_bits(engine, place)
    if device.family == "cpu":
        if engine.kind == "jax":
            return Band(0.6, 1.4, "JAX was measured in few runs")
        if place.count > 4:
            return Band(0.5, 1.25, "calibrated on two cores, never measured on so many")
        return Band(0.75, 1.25, "calibrated on such cores")
    if device.family == "tpu":
        return Band(0.4, 2.0, "no TPU has run it")
    if work.micro_batch[0] < 8192 or work.model.hidden_size < 512:
        return Band(0.2, 1.1, "a micro-batch or a model this small may leave most of a GPU idle")
    if device.watts is not None and device.watts < 100:
        return Band(0.3, 1.0, "never measured, and a card of so little power lowers its clock (arXiv:1903.07486)")
    if not low or isinstance(work.config, FinetuneConfig):
        return Band(0.4, 1.25, "calibrated with pretraining in bf16 by torch on an H200")
    if device.name == "h200" and place.count == 1:
        return Band(0.75, 1.15, "calibrated with base on one H200")
    if device.name in ("h100", "h200"):
        return Band(0.65, 1.2, "calibrated with base on one H200")
    return Band(0.5, 1.25, "calibrated on another GPU, an H200")


# ---- memory ---------------------------------------------------------------------------------------------------------


def memory(work: Work, place: DeviceCount) -> dict[str, float]:
    """Bytes on each device of the place, by part. On CPUs, bytes of each process, whose memory also holds Python, torch
    and the copy of the state that is being saved.

    Compilers and allocators need less or more: a quarter either way covers the peaks in records/experiments.md.
    """
    config, model, cpu = work.config, work.model, place.device.family == "cpu"
    low = computes_in_16_bits(config.engine, place)
    tokens, row, predictions = work.micro_batch
    size = 2 if low else 4
    in_fp32 = min(predictions, CPU_POSITIONS) if cpu and config.engine.kind == "torch" else predictions
    layer = tokens * model.hidden_size * ROW_BYTES_PER_WIDTH * size / 2
    if (cpu and low) or model.facts.relative:  # the softmax of each head is kept
        layer += tokens * row * model.num_attention_heads * size
    activations = model.num_hidden_layers * layer
    if config.engine.activation_checkpointing == "on":
        activations = model.num_hidden_layers * tokens * model.hidden_size * size + layer
    saved = {"a copy for saving": float(checkpoint_bytes(config, model)), "process": float(PROCESS_BYTES)}
    return {
        **state(config, model, place.devices, low_precision=low),
        "activations": activations,
        "logits": model.padded_vocab_size * (predictions * size + in_fp32 * HEAD_BYTES),
        **(saved if cpu else {}),
    }
