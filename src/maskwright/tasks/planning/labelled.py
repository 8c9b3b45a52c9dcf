"""The work of a fine-tuning, counted from its own batches, some of which stand for all."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from maskwright.data.batch import Batch
from maskwright.model.config import ModelConfig, training_flops
from maskwright.tasks.finetune.prepare import FinetuneRun
from maskwright.tasks.planning.steps import program_of

SEEN_STEPS, SEEN_EXAMPLES = 64, 8192
"""Limits of the steps that are counted, spread over the run: 64 steps, and 8,192 examples in them, but no fewer than
four steps."""
MOST_JUDGED = 4096
"""Validation examples that are packed: packing 8,000 lasts 1.2 s, and the time grows with the square of their
number."""


@dataclass(frozen=True)
class LabelledWork:
    thinned: FinetuneRun
    """The run, with every n-th validation and test example alone where there are many."""
    flops: float
    """FLOPs of an update, on average, padding included."""
    alike: tuple[int, ...]
    """Steps with the most frequent shapes."""
    of_alike: float
    """FLOPs of the first of those."""
    programs: int
    """Number of different programs."""
    evaluated: float
    """Batches of all evaluations of the validation split; the test split counts by its number of examples."""
    evaluated_flops: float
    """FLOPs of these batches: forward passes are a third of a step."""


def work_of_labelled(ready: FinetuneRun) -> LabelledWork:
    """Counts rows as they are packed, since padding is computed too."""
    config, model = ready.config, ready.model
    thinned, n = _thinned(ready)
    most = min(SEEN_STEPS, max(4, SEEN_EXAMPLES // ready.train.per_step))
    steps = sorted({config.steps * part // most for part in range(most)})
    every_worker = range(config.batch.virtual_workers)
    seen = [(step, ready.train.batches(step, every_worker)) for step in steps]
    flops = {step: sum(_flops(model, batch) for batch in batches) for step, batches in seen}
    programs = {step: program_of(batches) for step, batches in seen}
    common, _ = Counter(programs.values()).most_common(1)[0]
    alike = tuple(step for step in steps if programs[step] == common)
    evaluated = n * _evaluated(thinned)
    each = _flops(model, thinned.validation.packed[0].batch) / 3.0 if thinned.validation else 0.0
    return LabelledWork(
        thinned,
        sum(flops.values()) / len(flops),
        alike,
        flops[alike[0]],
        len(set(programs.values())),
        evaluated,
        evaluated * each,
    )


def _thinned(ready: FinetuneRun) -> tuple[FinetuneRun, int]:
    data = ready.dataset
    n = max(1, -(-len(data.validation) // MOST_JUDGED))
    dataset = replace(data, validation=data.validation[::n], test=data.test[::n])
    return (ready, 1) if n == 1 else (replace(ready, dataset=dataset), n)


def _evaluated(ready: FinetuneRun) -> float:
    if ready.validation is None:
        return 0.0
    every = ready.config.evaluation.every_steps
    times = 2.0 + ((ready.config.steps - 1) // every if every else 0)  # once more at the end, with the best checkpoint
    times += len(ready.dataset.test) / len(ready.validation.examples)
    return times * len(ready.validation.packed)


def _flops(model: ModelConfig, batch: Batch) -> float:
    M, T = batch.input_ids.shape
    return training_flops(model, M * T, M * T * T, 0.0)
