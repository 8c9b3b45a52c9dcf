"""The parts of one training run, and its progress."""

from __future__ import annotations

from dataclasses import dataclass, field

from maskwright.config.finetuning import FinetuneConfig
from maskwright.config.pretraining import RunConfig, tokens_before
from maskwright.engines.base import Engine
from maskwright.engines.ceiling import Ceiling
from maskwright.machine.usage import Usage
from maskwright.model.config import ModelConfig
from maskwright.run.directory import RunDirectory, Status
from maskwright.run.record import RunRecord
from maskwright.training.beats import Beats
from maskwright.training.health import LossWatch
from maskwright.training.metrics import Counters, Speed
from maskwright.training.objective import Objective
from maskwright.training.saver import Saver


@dataclass
class Job:
    """The parts of one training run, and its progress."""

    config: RunConfig | FinetuneConfig
    model: ModelConfig
    directory: RunDirectory
    engine: Engine
    objective: Objective
    ceiling: Ceiling
    """Measured speed of plain matrix multiplication."""
    record: RunRecord | None
    """The run's record, repeated in each checkpoint's state.json. None except on rank 0."""
    saver: Saver | None
    """None except on rank 0, which alone writes."""
    watch: LossWatch
    beats: Beats
    step: int = 0
    """Finished updates."""
    evaluated: set[int] = field(default_factory=set)
    """Steps whose evaluation is in the metrics already, so that a restart neither repeats nor skips one."""
    counters: Counters = field(default_factory=Counters)
    speed: Speed = field(default_factory=Speed)
    usage: Usage = field(default_factory=Usage)
    status: Status = field(default_factory=Status)
    status_written: float = 0.0
    reported: float = 0.0

    @property
    def alone(self) -> bool:
        return self.engine.processes.world_size == 1

    @property
    def is_rank_0(self) -> bool:
        return self.engine.processes.rank == 0

    @property
    def steps(self) -> int:
        """Updates in the whole run."""
        return self.config.steps

    @property
    def left_for_done(self) -> float:
        """Ratio of remaining to finished tokens (of updates, without phases)."""
        if isinstance(self.config, RunConfig) and self.config.phases:
            done, whole = (tokens_before(self.config, step) for step in (self.step, self.steps))
        else:
            done, whole = self.step, self.steps
        return (whole - done) / max(done, 1)

    @property
    def ended(self) -> bool:
        """Whether all steps are done."""
        return self.step == self.steps or self.objective.best.settled
