"""The commands that prove a run: kill and continue it, compute a step again, train it again."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from maskwright.cli.options import AsJson, Config, Finetune, Set, app, print_result


@app.command("verify-resume")
def verify_resume(
    config: Config,
    steps: Annotated[int, typer.Option(metavar="N", help="Steps of the short copy that is run twice.")] = 60,
    kills: Annotated[int, typer.Option(metavar="N", help="How many times the second run is killed.")] = 5,
    seed: Annotated[int, typer.Option(metavar="N", help="Random seed for the moments of the kills.")] = 0,
    work: Annotated[
        str | None, typer.Option(metavar="PATH", help="Folder for both runs. Default: a temporary one.")
    ] = None,
    finetune: Finetune = False,
    set_: Set = None,
    as_json: AsJson = False,
) -> None:
    """Prove that a run of your job on this machine, killed anywhere and started again, ends with the same bits."""
    from maskwright.config.finetuning import read_finetune_config
    from maskwright.config.pretraining import read_config
    from maskwright.core.errors import VerificationError
    from maskwright.prove import verify_resume as task

    run_config = (read_finetune_config if finetune else read_config)(config, set_)
    verdict = task.verify_resume(run_config, steps=steps, kills=kills, seed=seed, work=work)
    print_result(verdict.report(), asdict(verdict), as_json)
    if verdict.differences:
        raise VerificationError("the killed run did not end as the other did")


@app.command("replay")
def replay(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run directory.")],
    step: Annotated[int, typer.Option(metavar="N", help="Step to compute again; the first is 0.", min=0)],
    as_json: AsJson = False,
) -> None:
    """Compute one step of a run again, and name the documents of its batch. The run stays as it is."""
    from maskwright.prove import replay as task

    result = task.replay(run, step)
    print_result(result.report(), asdict(result), as_json)


@app.command("reproduce")
def reproduce(
    what: Annotated[
        str,
        typer.Argument(metavar="RUN", help="Run directory, or the URL of one."),
    ],
    to: Annotated[
        str, typer.Option("--to", metavar="PATH", help="Folder that does not exist yet, for what is trained again.")
    ] = "reproduced",
    check: Annotated[
        bool, typer.Option("--check", help="Compare fingerprints and kinds of machines only, and train nothing.")
    ] = False,
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Runs to train, each with another seed, to see their spread.",
            min=1,
        ),
    ] = 1,
    store: Annotated[
        str | None, typer.Option(metavar="PATH", help="Token store of a run, where it is not at its old place.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a run again, and compare: bit by bit on a machine of the same kind, else by the spread."""
    from dataclasses import asdict

    from maskwright.prove.reproduce import reproduce, require_reproduced

    reproduction = reproduce(what, to, store=store, seeds=seeds, check=check)
    print_result(reproduction.report(), asdict(reproduction), as_json)
    require_reproduced(reproduction)
