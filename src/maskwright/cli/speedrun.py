"""The commands of the speedrun, and the one that reproduces a run."""

from __future__ import annotations

from typing import Literal

from maskwright.cli.manual import command
from maskwright.cli.options import AsJson, app, print_result


@command(app, "speedrun")
def speedrun(
    track: str,
    recipe: str | None = None,
    to: str = "record",
    text: list[str] | None = None,
    layout: Literal["auto", "file", "sentences", "lines"] = "auto",
    blimp: str | None = None,
    work: str = "speedrun",
    seeds: int | None = None,
    target: float | None = None,
    name: str = "",
    by: str = "anonymous",
    as_json: AsJson = False,
) -> None:
    """Train a recipe by the clock of a track, judge every seed, and write a record.

    TRACK: minute, ten, hour, gpu or own.
    RECIPE: YAML of a run; without it, the text is prepared and the rules are shown.
    --to PATH: Folder of the record; the same command goes on with it.
    --text PATH: Text of the track, where --work does not hold it yet: for the books, the folder of their repository.
    --layout: A document of plain text is a file, the sentences between blank lines, or a line; auto decides.
    --blimp PATH: BLiMP's .jsonl files, for the tracks that it judges.
    --work PATH: Folder for the prepared text, the runs and their models.
    --seeds N: Seeds to train, all of which count. Default: the least that the track takes.
    --target LOSS: Held-out loss to get below; only for the track own.
    --name WORDS: What is new in the recipe, for the table.
    --by NAME: Whose record it is, for the table.
    """
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


@command(app, "reproduce")
def reproduce(
    what: str,
    to: str = "reproduced",
    check: bool = False,
    seeds: int = 1,
    store: str | None = None,
    text: list[str] | None = None,
    blimp: str | None = None,
    work: str = "speedrun",
    as_json: AsJson = False,
) -> None:
    """Train a run or a record again, and compare: bit by bit on a machine of the same kind, else by the spread.

    what RECORD|RUN|REPORT: Folder of a record of the speedrun, run directory, or page that `maskwright report` wrote.

    --to PATH: Folder that does not exist yet, for what is trained again.
    --check: Compare fingerprints and kinds of machines only, and train nothing.
    --seeds 1≤N: Runs to train: the first seeds of a record; more seeds of a run, to see their spread.
    --store PATH: Token store of a run, where it is not at its old place.
    --text PATH: Text of the track, where --work does not hold it yet: for the books, the folder of their repository.
    --layout: A document of plain text is a file, the sentences between blank lines, or a line; auto decides.
    --blimp PATH: BLiMP's .jsonl files, for the tracks that it judges.
    --work PATH: Folder for the prepared text, the runs and their models.
    """
    from dataclasses import asdict

    from maskwright.prove.reproduce import TextPaths, reproduce, require_reproduced

    reproduction = reproduce(what, to, TextPaths(store, text or [], blimp, work), seeds=seeds, check=check)
    print_result(reproduction.report(), asdict(reproduction), as_json)
    require_reproduced(reproduction)
