"""`maskwright pretrain`: masked-LM training from a configuration, from scratch, continued or resumed."""

from __future__ import annotations

from functools import partial

from maskwright.config.pretraining import RunConfig
from maskwright.tasks.pretrain import prepare
from maskwright.tasks.pretrain.prepare import PretrainRun
from maskwright.tasks.start import lead
from maskwright.tasks.start.prepared import Prepare, TimeHere
from maskwright.training.stop import StopRequest


def pretrain(
    config: RunConfig,
    run: str,
    begin_from: str | None = None,
    *,
    fresh_optimizer: bool = False,
    config_file: str | None = None,
    stop_request: StopRequest | None = None,
    time_here: TimeHere | None = None,
) -> None:
    """See `train_run`. `begin_from`: RUN or RUN@STEP, whose checkpoint a new run begins with, its optimizer's state
    included unless `fresh_optimizer`."""
    prepare = _prepare(config, run, begin_from, fresh_optimizer)
    lead.train_run(config, run, prepare, config_file=config_file, stop_request=stop_request, time_here=time_here)


def dry_run(
    config: RunConfig, run: str, begin_from: str | None = None, *, fresh_optimizer: bool = False
) -> PretrainRun:
    """See `lead.dry_run`."""
    found = lead.dry_run(config, run, _prepare(config, run, begin_from, fresh_optimizer))
    assert isinstance(found, PretrainRun)
    return found


def _prepare(config: RunConfig, run: str, begin_from: str | None, fresh_optimizer: bool) -> Prepare:
    prepare.require_from(begin_from, fresh_optimizer=fresh_optimizer)
    return partial(prepare.prepare_child, config, run, begin_from=begin_from, fresh_optimizer=fresh_optimizer)
