"""The commands that prove a run: kill and continue it, break its surroundings, compute a step again."""

from __future__ import annotations

from dataclasses import asdict

from maskwright.cli.manual import command
from maskwright.cli.options import AsJson, Config, Finetune, Set, app, print_result


@command(app, "verify-resume")
def verify_resume(
    config: Config,
    steps: int = 60,
    kills: int = 5,
    seed: int = 0,
    work: str | None = None,
    finetune: Finetune = False,
    set_: Set = None,
    as_json: AsJson = False,
) -> None:
    """Prove on your own job that a killed run continues bit for bit. One of two runs is killed with SIGKILL.

    --steps N: Steps of the short copy that is run twice.
    --kills N: How many times the second run is killed.
    --seed N: Random seed for the moments of the kills.
    --work PATH: Folder for both runs. Default: a temporary one.
    """
    from maskwright.config.finetuning import read_finetune_config
    from maskwright.config.pretraining import read_config
    from maskwright.core.errors import VerificationError
    from maskwright.prove import verify_resume as task

    run_config = (read_finetune_config if finetune else read_config)(config, set_)
    verdict = task.verify_resume(run_config, steps=steps, kills=kills, seed=seed, work=work)
    print_result(verdict.report(), asdict(verdict), as_json)
    if verdict.differences:
        raise VerificationError("the killed run did not end as the other did")


@command(app, "drill")
def drill(
    config: Config,
    work: str | None = None,
    set_: Set = None,
    as_json: AsJson = False,
) -> None:
    """Rehearse crashes, signals and full disks on a tiny copy of your job, and report which it survives.

    --work PATH: Folder for the runs. Default: a temporary one.
    """
    from maskwright.config.pretraining import read_config
    from maskwright.core.errors import VerificationError
    from maskwright.prove import drill as task

    drills = task.drill(read_config(config, set_), work=work)
    print_result(drills.report(), asdict(drills), as_json)
    if drills.failed:
        raise VerificationError(f"{drills.failed} of {len(drills.results)} drills failed")


@command(app, "replay")
def replay(
    run: str,
    step: int,
    as_json: AsJson = False,
) -> None:
    """Compute one step of a run again, and name the documents of its batch. The run stays as it is.

    RUN: Run directory.
    --step 0≤N: Step to compute again; the first is 0.
    """
    from maskwright.prove import replay as task

    result = task.replay(run, step)
    print_result(result.report(), asdict(result), as_json)
