"""`maskwright plan`: the estimates of a configuration in several places."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from maskwright.config.pretraining import RunConfig
from maskwright.core import storage
from maskwright.core.errors import ConfigError, InputError
from maskwright.machine.hardware import usable_memory_bytes
from maskwright.tasks.planning.enough import continuing, enough
from maskwright.tasks.planning.estimate import Estimate, head, here
from maskwright.tasks.planning.probe import SECONDS, probe
from maskwright.tasks.planning.slices import model_of
from maskwright.tasks.planning.work import Work, work_of, work_without_store
from maskwright.tasks.pretrain.prepare import PretrainRun, prepare_run


@dataclass(frozen=True)
class PlanReport:
    work: Work
    estimates: list[Estimate]

    @property
    def refused(self) -> bool:
        """Whether the run does not fit one of the places, or has to be set otherwise there."""
        return any(estimate.refused for estimate in self.estimates)

    def report(self) -> str:
        lines = head(self.work)
        lines += [f"data: {line}" for line in enough(self.work)]
        if start := continuing(self.work):
            lines.append(f"start: {start}")
        for estimate in self.estimates:
            lines += ["", *estimate.lines()]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        work = self.work
        return {
            "work": {
                "steps": work.steps,
                "tokens_per_step": work.tokens,
                "flops_per_step": work.flops,
                "parameters": work.parameters,
                "text_tokens": work.text_tokens,
                "epochs": work.epochs,
                "model": asdict(work.model),
            },
            "data": enough(work),
            "start": continuing(work),
            "places": [estimate.to_json() for estimate in self.estimates],
        }


def prepared(config: RunConfig, vocab_size: int | None, *, here: bool) -> tuple[Work, PretrainRun | None]:
    """The run's work. It is counted from the store or, with a `vocab_size` and no probe `here`, as if rows were full.
    Raises `InputError` without either."""
    stores = [config.data.store or "", *(source.store for source in (config.data.mixture or {}).values())]
    absent = [store for store in stores if store and not storage.is_url(store) and not os.path.isdir(store)]
    if vocab_size is None or here:
        if absent:
            fix = "prepare it, or give --vocab-size and a device as --on"
            raise InputError("is not here, so the vocabulary and the text are not known", where=absent[0], fix=fix)
        ready = prepare_run(config)
        return work_of(ready), ready
    if config.schedule.steps is None:
        fix = "give schedule.steps, or prepare the store"
        raise ConfigError("epochs of a store that is not here", where="schedule.epochs", fix=fix)
    return work_without_store(config, model_of(config, vocab_size)), None


def plan_here(work: Work, ready: PretrainRun, seconds: float = SECONDS) -> Estimate:
    return here(work, probe(ready, seconds), usable_memory_bytes())
