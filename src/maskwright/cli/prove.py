"""The commands that prove a run: kill and continue it, compute a step again, train it again."""

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


@command(app, "replay")
def replay(run: str, step: int, as_json: AsJson = False) -> None:
    """Recompute one step of a run, and list the documents of its batch. Does not change the run.

    RUN: Run directory.
    --step 0≤N: Step to recompute, from 0.
    """
    from maskwright.prove import replay as task

    result = task.replay(run, step)
    print_result(result.report(), asdict(result), as_json)


@command(app, "reproduce")
def reproduce(
    what: str,
    to: str = "reproduced",
    check: bool = False,
    seeds: int = 1,
    store: str | None = None,
    as_json: AsJson = False,
) -> None:
    """Train a run again, and compare: bit by bit on the same kind of machine, else by the spread of losses.

    what RUN: Run directory, or its URL.
    --to PATH: Folder for the new runs; must not exist yet.
    --check: Only compare fingerprints and kinds of machines, without training.
    --seeds 1≤N (no --check): Number of runs to train, each with another seed, to measure the spread.
    --store PATH: Token store of the run, if it has moved.
    """
    from maskwright.prove.reproduce import reproduce, require_reproduced

    reproduction = reproduce(what, to, store=store, seeds=seeds, check=check)
    print_result(reproduction.report(), asdict(reproduction), as_json)
    require_reproduced(reproduction)
