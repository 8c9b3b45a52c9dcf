"""The arms of a comparison: the models from which their fine-tunings start."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from maskwright.config.settings import in_flow
from maskwright.core import storage
from maskwright.core.errors import InputError
from maskwright.core.hub import is_hub
from maskwright.tasks.models.hub import pinned

RANDOM, LINEAR, BM25 = "random", "linear", "bm25"
WITHOUT_TRANSFORMER = (LINEAR, BM25)
NAMED = (RANDOM, *WITHOUT_TRANSFORMER)
"""Arms without a model folder."""


@dataclass(frozen=True)
class ArmStart:
    """One arm: the models from which its fine-tunings start, or a method without a transformer."""

    name: str
    locations: tuple[str, ...]
    """A run or model folder for each pretraining run. For random weights, the source of shape and tokenizer. Empty for
    `fitted`."""
    random: bool = False
    fitted: bool = False
    """Whether it has no transformer: a linear model or BM25, by its name."""

    def keys(self, number: int) -> list[str]:
        """`--set` for its pretraining run of that number."""
        weights = "random" if self.random else "pretrained"
        return [f"model.init_from={in_flow(self.locations[number])}", f"model.weights={weights}"]


@dataclass(frozen=True)
class ArmTraining:
    """Settings of one arm's fine-tunings on a task that can differ between arms."""

    steps: int | None
    """For questions, it follows from the windows, whose number depends on the tokenizer. None for retrieval by epochs,
    where it follows from the questions that a seed holds out."""
    max_seq_len: int
    """Tokens of a row; without `data.max_seq_len`, as many as the model reads, up to a limit."""


def read_starts(arms: Sequence[str], base: str | None) -> tuple[ArmStart, ...]:
    """From PATH, NAME=PATH, NAME=RUN1,RUN2,…, `random`, `linear` and `bm25`; `base`, an arm or one
    more of these, is the first."""
    starts = [*map(_read_start, arms)]
    if base is not None and base not in [*arms, *(start.name for start in starts)]:
        if "/" in base or base in NAMED or os.path.isdir(base):
            starts.insert(0, _read_start(base))
            base = starts[0].name
    elif base is not None and base in arms:
        base = _read_start(base).name
    models = [start for start in starts if not start.random and not start.fitted]
    if not models:
        raise InputError(f"{' and '.join(arms)} alone cannot be compared", where="MODEL", fix="add a model")
    starts = [replace(start, locations=models[0].locations) if start.random else start for start in starts]
    _refuse_twice(starts)
    if base is not None:
        if base not in [start.name for start in starts]:
            fix = f"choose a model's folder, {', '.join(NAMED)}, or one of {', '.join(start.name for start in models)}"
            raise InputError(f"{base} is not an arm of this comparison", where="--base", fix=fix)
        starts.sort(key=lambda start: start.name != base)
    if len(starts) < 2:
        fix = "name another model, or add --base random or --base linear"
        raise InputError(f"{starts[0].name} alone cannot be compared", where="MODEL", fix=fix)
    return tuple(starts)


def _read_start(text: str) -> ArmStart:
    """Random weights get their locations later, from the first model."""
    if text in WITHOUT_TRANSFORMER:
        return ArmStart(text, (), fitted=True)
    if text == RANDOM:
        return ArmStart(RANDOM, (), random=True)
    name, separator, places = text.partition("=")
    if not separator or "/" in name:
        name, places = os.path.basename(os.path.abspath(text)), text
        name = name.partition("@")[0] if is_hub(text) else name
    locations = places.split(",") if separator and places != text else [places]
    if not all(place.strip() for place in locations):
        raise InputError(f"{text!r} lacks a folder", where="MODEL", fix="write NAME=PATH, or NAME=RUN1,RUN2,…")
    return ArmStart(name, tuple(map(_place, locations)))


def _place(location: str) -> str:
    """The same path from any folder."""
    if is_hub(location):
        return pinned(location)
    return location.rstrip("/") if storage.is_url(location) else os.path.abspath(location)


def _refuse_twice(starts: Sequence[ArmStart]) -> None:
    seen: set[str] = set()
    for start in starts:
        if start.name in seen:
            fix = "name each arm once; rename one with NAME=PATH"
            raise InputError(f"two arms are called {start.name}", where="MODEL", fix=fix)
        if start.name in NAMED and not start.random and not start.fitted:
            what = f"{start.name} is the name of an arm without a model folder"
            raise InputError(what, where="MODEL", fix="rename the folder's arm with NAME=PATH")
        seen.add(start.name)
        if not start.name.strip() or start.name.startswith("."):
            raise InputError(f"{start.name!r} is not a name", where="MODEL", fix="write NAME=PATH")
    places: set[str] = set()
    for place in (place for start in starts if not start.random for place in start.locations):
        place = place if is_hub(place) or storage.is_url(place) else os.path.realpath(place)
        if place in places:
            fix = "name each once, since runs with the same weights and seeds are equal, bit by bit"
            raise InputError("is named twice", where=place, fix=fix)
        places.add(place)
    several = {len(start.locations) > 1 for start in starts if not start.fitted}
    if True in several and (fitted := [start.name for start in starts if start.fitted]):
        what = f"{fitted[0]} has no pretraining runs, so it cannot be compared by recipe"
        raise InputError(what, where="MODEL", fix="name one run of each model, or leave it out")
    if len(several) > 1:
        single = next(start.name for start in starts if len(start.locations) == 1)
        fix = "give every arm several (NAME=RUN1,RUN2,…), to ask about the recipe, or every arm one"
        raise InputError(f"{single} has one pretraining run where another arm has several", where="MODEL", fix=fix)
