"""A record: the folder that documents a recipe, its text, its machine and its results.

    RECORD/
      recipe.yaml          as it was given
      record.json          the fields of `SpeedrunRecord`
      metrics-SEED.jsonl   the log lines of each seed, where the program that trained writes some

The verdict is not stored: `judge` computes it from the results each time.
"""

from __future__ import annotations

import math
import os
import statistics
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tracks import ALPHA, TRACKS, Metric, shown

from maskwright.core import storage
from maskwright.core.errors import InputError
from maskwright.verdict.statistics import t_above_p

RECORD, RECIPE = "record.json", "recipe.yaml"
RESTORE = "restore its files, or make the record again"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SeedResult(_Strict):
    """The result of one seed."""

    seed: int
    seconds: float = Field(gt=0.0, allow_inf_nan=False)
    """From before the training process started until it had saved the model and ended."""
    value: float = Field(allow_inf_nan=False)
    """Held-out loss in nats a token, or the share of BLiMP's pairs."""
    more: dict[str, float]
    """Other metrics: accuracy, or BLiMP by means."""
    weights_sha256: str
    """sha256 of the exported `model.safetensors`."""


class SpeedrunRecord(_Strict):
    format: Literal[1]
    track: str
    name: str
    by: str
    date: str
    program: str
    """The training program: maskwright, or the script of a peer."""
    metric: Metric
    target: float
    seeds: list[int] = Field(min_length=1)
    """All seeds, planned before the first began; each of them counts."""
    results: list[SeedResult]
    recipe_sha256: str
    fingerprints: dict[str, str]
    """Fingerprints of the text: store, judged, tokenizer and, for BLiMP, pairs."""
    environment: dict[str, Any]
    kind: dict[str, str]
    """The facts that decide the last bits: `kind_of`."""

    @property
    def finished(self) -> bool:
        return [result.seed for result in self.results] == self.seeds


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
    """The verdict on a finished record. Equal values, whose spread is unknown, prove nothing."""
    values = [result.value for result in record.results]
    n, mean = len(values), statistics.mean(values)  # exact, so that equal values have no spread
    deviation = statistics.stdev(values) if n > 1 else 0.0
    better = record.target - mean if record.metric == "loss" else mean - record.target
    p = t_above_p(better / (deviation / math.sqrt(n)), n - 1) if deviation else 1.0
    seconds = sum(result.seconds for result in record.results) / n
    enough = n >= TRACKS[record.track].least_seeds
    return RecordVerdict(n, seconds, mean, deviation, p, p < ALPHA and enough)


def in_words(record: SpeedrunRecord) -> str:
    lines = [f"{record.track}: {record.name}, by {record.by}"]
    lines += [
        f"  seed {result.seed}: {result.seconds:.1f} s, {record.metric} {shown(record.metric, result.value)}"
        for result in record.results
    ]
    if not record.finished:
        return "\n".join([*lines, f"  {len(record.results)} of {len(record.seeds)} seeds; the same command continues"])
    verdict = judge(record)
    than = "below" if record.metric == "loss" else "above"
    lines.append(
        f"  mean {verdict.seconds:.1f} s, {record.metric} "
        f"{shown(record.metric, verdict.value)} ± {shown(record.metric, verdict.deviation)} over {verdict.seeds} seeds"
    )
    target = f"{than} the target {shown(record.metric, record.target)}: p = {verdict.p:.2g}"
    least = TRACKS[record.track].least_seeds
    too_few = f", and {least} seeds are the least" if verdict.seeds < least else ""
    claim = "holds" if verdict.holds else f"does not hold, p must be below {ALPHA:g}{too_few}"
    return "\n".join([*lines, f"  {target}. The claim {claim}"])


def write_record(folder: str, record: SpeedrunRecord) -> None:
    storage.write_json(os.path.join(folder, RECORD), record.model_dump())


def read_record(folder: str) -> SpeedrunRecord:
    """Reads a record. Raises `InputError` if it is not one, or was changed by hand."""
    path = os.path.join(folder, RECORD)
    try:
        record = SpeedrunRecord.model_validate(storage.read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise InputError(f"is not a record: {key}: {first['msg']}", where=path, fix=RESTORE) from None
    if record.track not in TRACKS:
        raise InputError(f"is of {record.track}, which is no track", where=path, fix=RESTORE)
    if record.recipe_sha256 != recipe_sha256(folder):
        raise InputError("its recipe.yaml is not the recipe that was run", where=folder, fix=RESTORE)
    if record.results and [result.seed for result in record.results] != record.seeds[: len(record.results)]:
        raise InputError("its results do not match its seeds", where=path, fix=RESTORE)
    return record


def recipe_sha256(folder: str) -> str:
    path = os.path.join(folder, RECIPE)
    if not os.path.isfile(path):
        raise InputError("has no recipe.yaml", where=folder, fix=RESTORE)
    return storage.sha256_of_file(path)


def require_same(actual: dict[str, str], expected: dict[str, str], where: str, fix: str) -> None:
    """Raises `InputError` for the first fingerprint that differs."""
    for name, value in expected.items():
        if actual.get(name) != value:
            start = (actual.get(name) or "missing")[:16]
            raise InputError(f"its {name} has the fingerprint {start}, not {value[:16]}", where=where, fix=fix)


def kind_of(environment: dict[str, Any], **computed: object) -> dict[str, str]:
    """The processor, the versions and, in `computed`, the way of computing. Runs that agree in these must agree in
    every bit. Facts that an older record lacks are left out."""
    hardware, packages = environment.get("hardware") or {}, environment.get("packages") or {}
    facts = {"processor": hardware.get("cpu"), "instructions": hardware.get("instructions")}
    facts |= {name: packages.get(name) for name in ("torch", "numpy", "jax", "transformers")}
    facts |= {"maskwright": environment.get("maskwright"), **computed}
    return {name: str(value) for name, value in facts.items() if value is not None}


def other_kind(first: dict[str, str], second: dict[str, str]) -> list[str]:
    """The differences between two kinds, as in `torch 2.12.0, here 2.13.0`."""
    names = sorted({*first, *second})
    return [
        f"{name} {first.get(name, 'not known')}, here {second.get(name, 'not known')}"
        for name in names
        if first.get(name) != second.get(name)
    ]
