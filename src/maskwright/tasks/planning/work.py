"""The FLOPs, the memory and the checkpoints of a run, counted from its configuration: the same on any device."""

from __future__ import annotations

from dataclasses import dataclass

from maskwright.config.pretraining import RunConfig
from maskwright.data.masking import slots_per_row
from maskwright.data.mixture import MixedRows
from maskwright.model.config import ModelConfig
from maskwright.model.hf.names import count_parameters
from maskwright.tasks.pretrain.prepare import PretrainRun
from maskwright.tasks.start.capacity import checkpoint_bytes, state

SAMPLED_STEPS = 8
"""Steps whose rows are counted to know the work of a run."""
HEAD_BYTES = 8
"""Bytes beside each logit while a micro-batch is computed: its log-probability and its gradient in fp32. The logit
itself comes on top, in the precision of the products."""
ROW_BYTES_PER_WIDTH = 32
"""Bytes that are kept for the backward pass of a layer, per token and unit of width, in 16 bits and without dropout:
formula 1 of Korthikanti et al. 2022 (arXiv:2205.05198) less the two masks of dropout."""
PROCESS_BYTES = 500_000_000
"""Bytes of Python and torch themselves."""


@dataclass(frozen=True)
class Work:
    """The work of a run: numbers are those of an update of all devices, unless something else is said."""

    config: RunConfig
    model: ModelConfig
    steps: int
    tokens: float
    """Text and frame tokens, as a log line counts them."""
    predicted: float
    pairs: float
    """(query, key) pairs inside segments."""
    parameters: int
    text_tokens: int | None
    """Tokens of the training documents of the store, or of all sources of a mixture; None where the store is absent.
    Documents that a store of pregenerated epochs holds several times count once."""
    epochs: float | None
    held_out_rows: int

    @property
    def product_flops(self) -> float:
        """FLOPs of matrix products with weights; attention is apart."""
        return self.model.product_flops(self.tokens, self.predicted)

    @property
    def attention_flops(self) -> float:
        return self.model.attention_flops(self.tokens, self.pairs)

    @property
    def flops(self) -> float:
        """Model FLOPs, as `training_flops` counts them."""
        return self.product_flops + self.attention_flops

    @property
    def checkpoint_bytes(self) -> int:
        return checkpoint_bytes(self.config, self.model)

    @property
    def evaluations(self) -> int:
        """Evaluations of the run: at the start, every `evaluation.every_steps`, and at the end."""
        if not self.held_out_rows:
            return 0
        every = self.config.evaluation.every_steps
        return 2 + ((self.steps - 1) // every if every else 0)

    @property
    def evaluation_tokens(self) -> float:
        return float(self.held_out_rows * self.config.data.seq_len)

    def saves(self, seconds: float) -> int:
        """Saves of a run that lasts `seconds`: by the clock or by steps, and one at the end."""
        options = self.config.checkpoint
        by_clock = int(seconds / options.save_every_seconds) if options.save_every_seconds else 0
        by_steps = (self.steps - 1) // options.save_every_steps if options.save_every_steps else 0
        return max(by_clock, by_steps) + 1


def work_of(ready: PretrainRun) -> Work:
    """The work of a run whose store is present: rows are as full as they are. Eight steps, spread over the run, stand
    for all; in a run with phases, as many over all of them, and one of each at least."""
    config, steps, loader = ready.config, ready.config.steps, ready.loader
    tokens = predicted = pairs = 0.0
    sources = loader.rows.sources if isinstance(loader.rows, MixedRows) else [loader.rows]
    each = max(1, SAMPLED_STEPS // len(config.stages))
    for stage in config.stages:
        length = stage.end - stage.begin
        sampled = {stage.begin + length * part // each for part in range(each)}
        weight = length / steps / len(sampled)
        for step in sampled:
            counted, counted_pairs = loader.work(step)
            tokens += weight * counted
            predicted += weight * counted * stage.config.masking.rate
            pairs += weight * counted_pairs
    return Work(
        config,
        ready.model,
        steps,
        tokens,
        predicted,
        pairs,
        count_parameters(ready.model),
        sum(rows.split.tokens for rows in sources) // loader.passes,
        loader.epoch(steps),
        len(ready.held_out) * config.evaluation.max_rows,  # a small store has fewer
    )


def work_without_store(config: RunConfig, model: ModelConfig) -> Work:
    """The work of a run without its store, as if each row were full, and one document. `config` has
    `schedule.steps`."""
    stages = config.stages
    tokens = sum(stage.tokens for stage in stages) / config.steps
    predicted = sum(stage.tokens * stage.config.masking.rate for stage in stages) / config.steps
    pairs = float(sum(stage.tokens * stage.config.data.seq_len for stage in stages)) / config.steps
    parameters, rows = count_parameters(model), config.evaluation.max_rows
    return Work(config, model, config.steps, tokens, predicted, pairs, parameters, None, None, rows)


def memory(
    work: Work, devices: int, *, low_precision: bool, plain_attention: bool, processes: bool
) -> dict[str, float]:
    """Bytes on each of `devices`, by part. `low_precision`: it computes in 16 bits. `plain_attention`: the softmax of
    each head is kept, as on a CPU in bf16. `processes`: Python, torch and the copy of the state that is being saved lie
    in the same memory.

    Compilers and allocators need less or more: a quarter either way covers the peaks in
    docs/experiments-archive.md.
    """
    config, model = work.config, work.model
    kinds = [stage.config for stage in config.stages]  # the largest micro-batch of any phase
    row_tokens = max(kind.batch.micro_batch_rows * kind.data.seq_len for kind in kinds)
    size = 2 if low_precision else 4
    layer = row_tokens * model.hidden_size * ROW_BYTES_PER_WIDTH * size / 2
    if plain_attention or model.facts.relative:
        layer += row_tokens * config.longest_row * model.num_attention_heads * size
    if config.engine.activation_checkpointing == "on":
        activations = model.num_hidden_layers * row_tokens * model.hidden_size * size + layer
    else:
        activations = model.num_hidden_layers * layer
    predictions = max(
        kind.batch.micro_batch_rows * slots_per_row(kind.masking.kind, kind.masking.rate, kind.data.seq_len)
        for kind in kinds
    )
    return {
        **state(config, model, devices, low_precision=low_precision),
        "activations": activations,
        "logits": float(predictions * model.padded_vocab_size * (HEAD_BYTES + size)),
        **({"a copy for saving": float(work.checkpoint_bytes), "process": float(PROCESS_BYTES)} if processes else {}),
    }
