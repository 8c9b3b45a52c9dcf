"""`maskwright pretrain`: masked-LM training from a configuration, from scratch, continued or resumed."""

from __future__ import annotations

from maskwright.config.pretraining import RunConfig
from maskwright.tasks.pretrain.prepare import PretrainRun, prepare_run
from maskwright.tasks.start.opened import looked_at, opened
from maskwright.tasks.start.train import check, train
from maskwright.training.stop import StopRequest


def pretrain(
    config: RunConfig,
    run: str,
    begin_from: str | None = None,
    *,
    fresh_optimizer: bool = False,
    config_file: str | None = None,
    stop_request: StopRequest | None = None,
) -> None:
    """Begins or continues the run in the folder `run`. See `opened` and `train`.

    `begin_from`: RUN or RUN@STEP, whose checkpoint a new run begins with, its optimizer's state included unless
    `fresh_optimizer`."""
    with opened(config, run, stop_request) as start:
        ready = prepare_run(config, start.before, begin_from, fresh_optimizer=fresh_optimizer)
        train(start, ready, config_file=config_file)


def dry_run(
    config: RunConfig, run: str, begin_from: str | None = None, *, fresh_optimizer: bool = False
) -> PretrainRun:
    """The run that `pretrain` would train. Raises the errors of `check`."""
    start = looked_at(config, run)
    ready = prepare_run(config, start.before, begin_from, fresh_optimizer=fresh_optimizer)
    check(start, ready)
    return ready
