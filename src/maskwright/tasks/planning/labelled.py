"""What a fine-tuning computes: counted from its own batches, some of which stand for all."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from maskwright.data.batch import Batch
from maskwright.model.config import ModelConfig, training_flops
from maskwright.tasks.finetune.prepare import FinetuneRun
from maskwright.tasks.planning.steps import program_of

SEEN_STEPS, SEEN_EXAMPLES = 64, 8192
"""Spread over the run: so many steps, but no more than have so many examples, and no fewer than four."""
MOST_JUDGED = 4096
"""Validation examples that are packed: 8,000 take 1.2 s, and the time grows with the square of their number."""


@dataclass(frozen=True)
class LabelledWork:
    few: FinetuneRun
    """With every n-th example alone of those that it is judged by, where they are many."""
    flops: float
    """Of an update, on average, padding included."""
    alike: tuple[int, ...]
    """Steps with the most frequent shapes."""
    of_alike: float
    """FLOPs of the first of those."""
    programs: int
    """How many different ones there are."""
    evaluated: float
    """Batches of the validation split, as often as it is judged; the test split counts by its number of examples."""
    evaluated_flops: float
    """Of all of them: forward passes are a third of a step."""


def work_of_labelled(ready: FinetuneRun) -> LabelledWork:
    """Rows are counted as they are packed, since padding is computed too."""
    config, model = ready.config, ready.model
    few, n = _thinned(ready)
    most = min(SEEN_STEPS, max(4, SEEN_EXAMPLES // ready.train.per_step))
    steps = sorted({config.steps * part // most for part in range(most)})
    everybody = range(config.batch.virtual_workers)
    seen = [(step, ready.train.batches(step, everybody)) for step in steps]
    flops = {step: sum(_flops(model, batch) for batch in batches) for step, batches in seen}
    programs = {step: program_of(batches) for step, batches in seen}
    common, _ = Counter(programs.values()).most_common(1)[0]
    alike = tuple(step for step in steps if programs[step] == common)
    evaluated = n * _evaluated(few)
    each = _flops(model, few.validation.packed[0].batch) / 3.0 if few.validation else 0.0
    return LabelledWork(
        few,
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
    few = replace(data, validation=data.validation[::n], test=data.test[::n])
    return (ready, 1) if n == 1 else (replace(ready, dataset=few), n)


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
