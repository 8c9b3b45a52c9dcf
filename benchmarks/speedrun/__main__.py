"""The encoder speedrun: trains a recipe by the clock of a track, judges every seed, and writes a record.

    python benchmarks/speedrun minute my.yaml --to my-record --name 'Muon, short rows' --by 'your name'

Without a recipe, the text is prepared and the rules are shown. The same command continues a record.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from race import Entry, Maskwright, race
from record import in_words
from text import open_text, rules
from tracks import TRACKS

from maskwright.core.errors import MaskwrightError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("track", choices=list(TRACKS))
    parser.add_argument("recipe", nargs="?", help="YAML of a run")
    parser.add_argument("--to", default="record", help="folder of the record")
    parser.add_argument("--text", action="append", default=[], help="text of the track, until --work holds it")
    parser.add_argument("--blimp", help="BLiMP's .jsonl files, for the tracks that it judges")
    parser.add_argument("--work", default="speedrun", help="folder for the prepared text, the runs and their models")
    parser.add_argument("--seeds", type=int, help="seeds to train, which all count; default: the track's minimum")
    parser.add_argument("--target", type=float, help="held-out loss to get below, for the track own")
    parser.add_argument("--name", help="what is new in the recipe")
    parser.add_argument("--by", default="anonymous", help="whose record it is")
    given = parser.parse_args()
    track = TRACKS[given.track]
    if given.recipe and (given.target is None) == (track.target is None):
        parser.error("--target is for the track own, which needs it")
    text = open_text(track, given.work, given.text, pairs=given.blimp)
    if not given.recipe:
        print(rules(track, text))
        return
    target = given.target if track.target is None else track.target
    entry = Entry(given.name or Path(given.recipe).stem, given.by, given.seeds or track.least_seeds, target)
    record = race(track, text, Maskwright(track, given.recipe, text), entry, given.to, given.work)
    print(f"{in_words(record)}\n  the record is {given.to}")


if __name__ == "__main__":
    try:
        main()
    except MaskwrightError as error:
        sys.exit(f"error: {error}")
