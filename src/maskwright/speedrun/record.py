"""A record: the folder that says what was run, by which text, on what, and whether it holds.

    RECORD/
      recipe.yaml          as it was given
      record.json          the fields of `SpeedrunRecord`
      metrics-SEED.jsonl   the log lines of each seed, where the program that trained writes some

The verdict is not stored: `judge` computes it from the results each time it is asked.
"""

from __future__ import annotations

import math
import os
import statistics
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from maskwright.core import storage
from maskwright.core.errors import InputError
from maskwright.speedrun.tracks import ALPHA, TRACKS, Metric, Track, shown
from maskwright.verdict.statistics import t_above_p

RECORD, RECIPE = "record.json", "recipe.yaml"
RESTORE = "restore its files, or make the record again"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SeedResult(_Strict):
    """Of one seed."""

    seed: int
    seconds: float = Field(gt=0.0, allow_inf_nan=False)
    """From before the training process started until it had saved the model and ended."""
    value: float = Field(allow_inf_nan=False)
    """Held-out loss in nats a token, or the share of BLiMP's pairs."""
    more: dict[str, float]
    """What else was measured: accuracy, or BLiMP by means."""
    weights_sha256: str
    """Of the exported `model.safetensors`."""


class SpeedrunRecord(_Strict):
    format: Literal[1]
    track: str
    name: str
    by: str
    date: str
    program: str
    """What trained: maskwright, or the script of a peer."""
    metric: Metric
    target: float
    seeds: list[int] = Field(min_length=1)
    """All that were planned before the first began; each of them counts."""
    results: list[SeedResult]
    recipe_sha256: str
    fingerprints: dict[str, str]
    """Of the text: store, judged, tokenizer and, for BLiMP, pairs."""
    environment: dict[str, Any]
    kind: dict[str, str]
    """What decides the last bits: see `kind_of`."""

    @property
    def finished(self) -> bool:
        return [one.seed for one in self.results] == self.seeds


@dataclass(frozen=True)
class RecordVerdict:
    seeds: int
    seconds: float
    """Mean over all seeds."""
    value: float
    deviation: float
    """Sample standard deviation of the values."""
    p: float
    """One-sided, of Student's t-test: how likely such values are if their true mean is no better than the target."""
    holds: bool


def judge(record: SpeedrunRecord) -> RecordVerdict:
    """Of a finished record. Equal values, whose spread nobody knows, prove nothing."""
    values = [one.value for one in record.results]
    n, mean = len(values), statistics.mean(values)  # exact, so that equal values have no spread
    deviation = statistics.stdev(values) if n > 1 else 0.0
    better = record.target - mean if record.metric == "loss" else mean - record.target
    p = t_above_p(better / (deviation / math.sqrt(n)), n - 1) if deviation else 1.0
    seconds = sum(one.seconds for one in record.results) / n
    enough = n >= TRACKS[record.track].least_seeds
    return RecordVerdict(n, seconds, mean, deviation, p, p < ALPHA and enough)


def in_words(record: SpeedrunRecord) -> str:
    lines = [f"{record.track}: {record.name}, by {record.by}"]
    lines += [
        f"  seed {one.seed}: {one.seconds:.1f} s, {record.metric} {shown(record.metric, one.value)}"
        for one in record.results
    ]
    if not record.finished:
        return "\n".join([*lines, f"  {len(record.results)} of {len(record.seeds)} seeds; the same command goes on"])
    found = judge(record)
    than = "below" if record.metric == "loss" else "above"
    lines.append(
        f"  mean {found.seconds:.1f} s, {record.metric} "
        f"{shown(record.metric, found.value)} ± {shown(record.metric, found.deviation)} over {found.seeds} seeds"
    )
    target = f"{than} the target {shown(record.metric, record.target)}: p = {found.p:.2g}"
    least = TRACKS[record.track].least_seeds
    few = f", and {least} seeds are the least" if found.seeds < least else ""
    verdict = "holds" if found.holds else f"does not hold, p has to be below {ALPHA:g}{few}"
    return "\n".join([*lines, f"  {target}. The claim {verdict}"])


def write_record(folder: str, record: SpeedrunRecord) -> None:
    storage.write_json(os.path.join(folder, RECORD), record.model_dump())


def read_record(folder: str) -> SpeedrunRecord:
    """Raises `InputError` for what is no record, or was changed by hand."""
    path = os.path.join(folder, RECORD)
    try:
        record = SpeedrunRecord.model_validate(storage.read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise InputError(f"is no record: {key}: {first['msg']}", where=path, fix=RESTORE) from None
    track_named(record.track)
    if record.recipe_sha256 != recipe_sha256(folder):
        raise InputError("its recipe.yaml is not the recipe that was run", where=folder, fix=RESTORE)
    if record.results and [one.seed for one in record.results] != record.seeds[: len(record.results)]:
        raise InputError("its results are not those of its seeds", where=path, fix=RESTORE)
    return record


def recipe_sha256(folder: str) -> str:
    path = os.path.join(folder, RECIPE)
    if not os.path.isfile(path):
        raise InputError("has no recipe.yaml", where=folder, fix=RESTORE)
    return storage.sha256_of_file(path)


def track_named(name: str) -> Track:
    if name not in TRACKS:
        raise InputError("is no track of the speedrun", where=name, fix=f"give one of {', '.join(TRACKS)}")
    return TRACKS[name]


def kind_of(environment: dict[str, Any], **computed: object) -> dict[str, str]:
    """The processor, the versions and, in `computed`, how it was computed: runs that agree in these have to agree in
    every bit. What an older record lacks is left out."""
    hardware, packages = environment.get("hardware") or {}, environment.get("packages") or {}
    found = {"processor": hardware.get("cpu"), "instructions": hardware.get("instructions")}
    found |= {name: packages.get(name) for name in ("torch", "numpy", "jax", "transformers")}
    found |= {"maskwright": environment.get("maskwright"), **computed}
    return {name: str(value) for name, value in found.items() if value is not None}


def other_kind(one: dict[str, str], other: dict[str, str]) -> list[str]:
    """As in `torch 2.12.0, here 2.13.0`."""
    names = sorted({*one, *other})
    return [
        f"{name} {one.get(name, 'not known')}, here {other.get(name, 'not known')}"
        for name in names
        if one.get(name) != other.get(name)
    ]
