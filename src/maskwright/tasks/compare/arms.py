"""The arms of a comparison: what their fine-tunings start from."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

from maskwright.core import storage
from maskwright.core.errors import InputError
from maskwright.core.hub import is_hub
from maskwright.tasks.models.hub import pinned

RANDOM = "random"


@dataclass(frozen=True)
class ArmStart:
    """One arm: what its fine-tunings start from."""

    name: str
    locations: tuple[str, ...]
    """A run or model folder for each pretraining run. For random weights, where shape and tokenizer are from."""
    random: bool = False

    def keys(self, number: int) -> list[str]:
        """`--set` for its pretraining run of that number."""
        weights = "random" if self.random else "pretrained"
        return [f"model.init_from={json.dumps(self.locations[number])}", f"model.weights={weights}"]


def read_starts(arms: Sequence[str], base: str | None) -> tuple[ArmStart, ...]:
    """From PATH, NAME=PATH, NAME=RUN1,RUN2,… and `random`; `base` is the name of the arm that comes first."""
    starts: list[ArmStart] = []
    named = [text for text in arms if text != RANDOM]
    for text in named:
        name, separator, places = text.partition("=")
        if not separator or "/" in name:
            name, places = os.path.basename(os.path.abspath(text)), text
            name = name.partition("@")[0] if is_hub(text) else name
        locations = places.split(",") if separator and places != text else [places]
        if not all(place.strip() for place in locations):
            raise InputError(f"{text!r} lacks a folder", where="MODEL", fix="write NAME=PATH, or NAME=RUN1,RUN2,…")
        starts.append(ArmStart(name, tuple(map(_place, locations))))
    if not starts:
        raise InputError("random alone is nothing to compare", where="MODEL", fix="name at least one model")
    if len(named) < len(arms) or base == RANDOM:
        place = arms.index(RANDOM) if RANDOM in arms else 0
        starts.insert(place, ArmStart(RANDOM, starts[0].locations, random=True))
    _refuse_twice(starts, arms)
    if base is not None:
        if base not in [start.name for start in starts]:
            fix = f"take random, or one of {', '.join(start.name for start in starts)}"
            raise InputError(f"{base} is not an arm of this comparison", where="--base", fix=fix)
        starts.sort(key=lambda start: start.name != base)
    if len(starts) < 2:
        fix = "name another model, or say --base random"
        raise InputError(f"{starts[0].name} alone is nothing to compare", where="MODEL", fix=fix)
    return tuple(starts)


def _place(location: str) -> str:
    """The same from any folder."""
    if is_hub(location):
        return pinned(location)
    return location.rstrip("/") if storage.is_url(location) else os.path.abspath(location)


def _refuse_twice(starts: Sequence[ArmStart], arms: Sequence[str]) -> None:
    seen: set[str] = {RANDOM} if arms.count(RANDOM) > 1 else set()
    for start in starts:
        if start.name in seen or (start.name == RANDOM and not start.random):
            fix = "name each arm once; NAME=PATH gives one another name"
            raise InputError(f"two arms are called {start.name}", where="MODEL", fix=fix)
        seen.add(start.name)
        if not start.name.strip() or start.name.startswith("."):
            raise InputError(f"{start.name!r} is not a name", where="MODEL", fix="write NAME=PATH")
    places: set[str] = set()
    for place in (place for start in starts if not start.random for place in start.locations):
        place = place if is_hub(place) or storage.is_url(place) else os.path.realpath(place)
        if place in places:
            fix = "name each once: runs with the same weights and seeds are the same, bit by bit"
            raise InputError("is named twice", where=place, fix=fix)
        places.add(place)
    if len({len(start.locations) > 1 for start in starts}) > 1:
        single = next(start.name for start in starts if len(start.locations) == 1)
        fix = "give every arm several (NAME=RUN1,RUN2,…), to ask about the recipe, or every arm one"
        raise InputError(f"{single} has one pretraining run where another arm has several", where="MODEL", fix=fix)
