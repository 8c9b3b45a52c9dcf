"""`maskwright pretrain`: masked-LM training from a configuration, from scratch, continued or resumed."""

from __future__ import annotations

from functools import partial

from maskwright.core.config import RunConfig
from maskwright.tasks import preflight, train
from maskwright.tasks.preflight import PretrainRun
from maskwright.tasks.prepared import Prepare
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
    """See `train_run`. `begin_from`: RUN or RUN@STEP, whose checkpoint a new run begins with, its optimizer's state
    included unless `fresh_optimizer`."""
    prepare = _prepare(config, run, begin_from, fresh_optimizer)
    train.train_run(config, run, prepare, config_file=config_file, stop_request=stop_request)


def dry_run(
    config: RunConfig, run: str, begin_from: str | None = None, *, fresh_optimizer: bool = False
) -> PretrainRun:
    """See `train.dry_run`."""
    found = train.dry_run(config, run, _prepare(config, run, begin_from, fresh_optimizer))
    assert isinstance(found, PretrainRun)
    return found


def _prepare(config: RunConfig, run: str, begin_from: str | None, fresh_optimizer: bool) -> Prepare:
    preflight.require_from(begin_from, fresh_optimizer=fresh_optimizer)
    return partial(preflight.prepare_child, config, run, begin_from=begin_from, fresh_optimizer=fresh_optimizer)
