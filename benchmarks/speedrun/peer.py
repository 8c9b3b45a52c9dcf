"""Record 0 of a track of the speedrun: run_mlm's recipe under Hugging Face Trainer, by the same clock and judge.

    python benchmarks/speedrun/peer.py minute --text classic-books-markdown --to DATE-run-mlm \
        --size mini --rows 16 --learning-rate 1e-3 --steps 2000

The clock runs from before its process starts until its model folder is saved and synced. Rows are made from the store's
ids, so it tokenizes nothing. `--model` has other keys of our model section, such as the architecture. It needs
accelerate, which the product does not.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from race import Entry, race
from record import in_words
from text import SpeedrunText, open_text
from tracks import TRACKS

from maskwright.core import storage
from maskwright.core.errors import MaskwrightError

SCRIPT = "peers/hf_trainer.py"
HERE = Path(__file__).resolve().parents[1]


class HuggingFace:
    name = f"benchmarks/{SCRIPT}"

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.recipe = f"# Options of {self.name}; benchmarks/speedrun_peer.py starts it.\n".encode()
        self.recipe += yaml.safe_dump(settings, sort_keys=False).encode()
        self.identity = storage.sha256_of([self.name, settings])
        self._said = ""

    def train(self, seed: int, text: SpeedrunText, run: str) -> None:
        options = {**self.settings, "seed": seed, "to": run}
        words = [word for key, value in options.items() if value is not False for word in self._word(key, value)]
        command = [sys.executable, str(HERE / SCRIPT), text.store.location, *words]
        result = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if result.returncode:
            raise MaskwrightError(f"seed {seed} ended with exit code {result.returncode}", where=SCRIPT)
        self._said = result.stdout.strip().splitlines()[-1]
        with open(os.path.join(run, "model.safetensors"), "rb") as file:
            os.fsync(file.fileno())
        storage.sync_folder(run)

    @staticmethod
    def _word(key: str, value: Any) -> list[str]:
        return [f"--{key}"] if value is True else [f"--{key}", str(value)]

    def finish(self, run: str, model: str) -> str:
        shutil.copytree(run, model)
        return f"Hugging Face Trainer, {self.settings}"

    def metrics(self, run: str) -> list[str]:
        return [self._said]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("track", choices=list(TRACKS))
    parser.add_argument("--text", nargs="*", default=[])
    parser.add_argument("--work", default="speedrun")
    parser.add_argument("--to", required=True)
    parser.add_argument("--blimp")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--target", type=float)
    parser.add_argument("--name", default="run_mlm's recipe, Hugging Face Trainer")
    parser.add_argument("--by", default="maskwright")
    parser.add_argument("--size", default="mini")
    parser.add_argument("--model", default="{}")
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--no-compile", action="store_true")
    given = parser.parse_args()
    track = TRACKS[given.track]
    text = open_text(track, given.work, given.text, pairs=given.blimp)
    names = ("size", "model", "seq_len", "rows", "steps", "learning_rate", "no_compile")
    settings = {name.replace("_", "-"): getattr(given, name) for name in names}
    target = given.target if track.target is None else track.target
    entry = Entry(given.name, given.by, given.seeds or track.least_seeds, target)
    record = race(track, text, HuggingFace(settings), entry, given.to, given.work)
    print(in_words(record))


if __name__ == "__main__":
    main()
