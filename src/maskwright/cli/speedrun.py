"""The commands of the speedrun, and the one that reproduces a run."""

from __future__ import annotations

from typing import Annotated

import typer

from maskwright.cli.options import AsJson, Layout, app, print_result

Work = Annotated[
    str, typer.Option("--work", metavar="PATH", help="Folder for the prepared text, the runs and their models.")
]
TrackText = Annotated[
    list[str] | None,
    typer.Option(
        "--text",
        metavar="PATH",
        help="Text of the track, where --work does not hold it yet: for the books, the folder of their repository.",
    ),
]
Pairs = Annotated[
    str | None, typer.Option("--blimp", metavar="PATH", help="BLiMP's .jsonl files, for the tracks that it judges.")
]


@app.command("speedrun")
def speedrun(
    track: Annotated[str, typer.Argument(metavar="TRACK", help="minute, ten, hour, gpu or own.")],
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE", help="YAML of a run; without it, the text is prepared and the rules are shown."
        ),
    ] = None,
    to: Annotated[
        str, typer.Option("--to", metavar="PATH", help="Folder of the record; the same command goes on with it.")
    ] = "record",
    text: TrackText = None,
    layout: Layout = "auto",
    blimp: Pairs = None,
    work: Work = "speedrun",
    seeds: Annotated[
        int | None,
        typer.Option(metavar="N", help="Seeds to train, all of which count. Default: the least that the track takes."),
    ] = None,
    target: Annotated[
        float | None, typer.Option(metavar="LOSS", help="Held-out loss to get below; only for the track own.")
    ] = None,
    name: Annotated[str, typer.Option(metavar="WORDS", help="What is new in the recipe, for the table.")] = "",
    by: Annotated[str, typer.Option(metavar="NAME", help="Whose record it is, for the table.")] = "anonymous",
    as_json: AsJson = False,
) -> None:
    """Train a recipe by the clock of a track, judge every seed, and write a record."""
    import os
    from dataclasses import asdict

    from maskwright.core.errors import InputError
    from maskwright.speedrun.race import Entry, Maskwright, race
    from maskwright.speedrun.record import in_words, judge, track_named
    from maskwright.speedrun.text import open_text, rules

    chosen = track_named(track)
    if (target is None) == (chosen.target is None) and recipe is not None:
        what = "has no target of its own" if target is None else "has a target of its own"
        fix = "give --target LOSS" if target is None else "leave --target out"
        raise InputError(what, where=f"track {track}", fix=fix)
    number = chosen.least_seeds if seeds is None else seeds
    if number < 1:
        raise InputError(f"{number} is too few", where="--seeds", fix="give 1 or more")
    opened = open_text(chosen, work, text or [], pairs=blimp, layout=layout)
    if recipe is None:
        print_result(rules(chosen, opened), {"track": asdict(chosen), "fingerprints": opened.fingerprints}, as_json)
        return
    aim = chosen.target if target is None else target
    stem = os.path.splitext(os.path.basename(recipe))[0]
    record = race(
        *(chosen, opened, Maskwright(chosen, recipe, opened), Entry(name or stem, by, number, aim or 0.0), to, work)
    )
    value = record.model_dump() | {"verdict": asdict(judge(record))}
    print_result(f"{in_words(record)}\n  the record is {to}", value, as_json)


@app.command("reproduce")
def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RECORD|RUN|REPORT",
            help="Folder of a record of the speedrun, run directory, or page that `maskwright report` wrote.",
        ),
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
            help="Runs to train: the first seeds of a record; more seeds of a run, to see their spread.",
            min=1,
        ),
    ] = 1,
    store: Annotated[
        str | None, typer.Option(metavar="PATH", help="Token store of a run, where it is not at its old place.")
    ] = None,
    text: TrackText = None,
    blimp: Pairs = None,
    work: Work = "speedrun",
    as_json: AsJson = False,
) -> None:
    """Train a run or a record again, and compare: bit by bit on a machine of the same kind, else by the spread."""
    from dataclasses import asdict

    from maskwright.prove.reproduce import reproduce, require_reproduced

    reproduction = reproduce(what, to, store=store, seeds=seeds, check=check)
    print_result(reproduction.report(), asdict(reproduction), as_json)
    require_reproduced(reproduction)
