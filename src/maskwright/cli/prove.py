"""`maskwright verify-resume`."""

from __future__ import annotations

from dataclasses import asdict

from maskwright.cli.manual import command
from maskwright.cli.options import AsJson, Config, Set, app, print_result


@command(app, "verify-resume")
def verify_resume(
    config: Config,
    steps: int = 60,
    kills: int = 5,
    seed: int = 0,
    to: str | None = None,
    set_: Set = None,
    as_json: AsJson = False,
) -> None:
    """Prove that your run on this machine, killed at any moment and started again, ends with the same weights, bit for
    bit.

    --steps N: Steps of the short copy of the run, which is trained twice.
    --kills N: How many times to kill the second training.
    --seed N: Random seed for the moments of the kills.
    --to PATH: Folder for both runs. Default: a temporary one.
    """
    from maskwright.config.finetuning import read_finetune_config
    from maskwright.config.pretraining import read_config
    from maskwright.config.retrieval import kind_of
    from maskwright.core.errors import VerificationError
    from maskwright.prove import verify_resume as task

    run_config = (read_finetune_config if kind_of(config, set_ or ()) == "finetune" else read_config)(config, set_)
    verdict = task.verify_resume(run_config, steps=steps, kills=kills, seed=seed, work=to)
    print_result(verdict.report(), asdict(verdict), as_json)
    if verdict.differences:
        raise VerificationError("the killed run did not end as the other did")
