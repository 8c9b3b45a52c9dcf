"""`maskwright pretrain`: masked-LM training from a configuration, from scratch, continued or resumed."""

from __future__ import annotations

from maskwright.core.config import RunConfig
from maskwright.tasks import preflight
from maskwright.tasks.train import train_run
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
    preflight.require_from(begin_from, fresh_optimizer=fresh_optimizer)
    train_run(
        config,
        run,
        lambda before: preflight.prepare_child(config, run, before, begin_from, fresh_optimizer=fresh_optimizer),
        config_file=config_file,
        stop_request=stop_request,
    )
