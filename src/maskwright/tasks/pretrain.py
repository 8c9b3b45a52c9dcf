"""`maskwright pretrain`: masked-LM training from a configuration, from scratch, continued or resumed."""

from __future__ import annotations

from maskwright.core.config import RunConfig
from maskwright.tasks import preflight
from maskwright.tasks.train import train_run
from maskwright.training.stop import StopRequest


def pretrain(
    config: RunConfig, run: str, *, config_file: str | None = None, stop_request: StopRequest | None = None
) -> None:
    """See `train_run`."""
    train_run(
        config,
        run,
        lambda before: preflight.prepare_run(config, before),
        config_file=config_file,
        stop_request=stop_request,
    )
