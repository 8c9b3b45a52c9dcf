"""The timed part of the speedrun, and the steps after it: export, judgement, record.

Any program may race that trains a model from a seed and the track's store: ours, and the peers of benchmarks/.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from record import (
    RECIPE,
    RECORD,
    SeedResult,
    SpeedrunRecord,
    kind_of,
    other_kind,
    read_record,
    require_same,
    write_record,
)
from text import SpeedrunText
from tracks import JUDGED_ROW, JUDGED_ROWS, Track

from maskwright.config.pretraining import EngineSection, read_config
from maskwright.config.recipes import find_config
from maskwright.config.settings import in_flow
from maskwright.core import storage
from maskwright.core.console import say
from maskwright.core.errors import InputError, MaskwrightError, stopped
from maskwright.core.secrets import redact
from maskwright.machine import hardware
from maskwright.processes import child
from maskwright.report.run import read as read_run
from maskwright.run.directory import RunDirectory
from maskwright.tasks.export.hugging_face import export
from maskwright.tasks.measure.blimp import blimp
from maskwright.tasks.measure.held_out import evaluate_sources
from maskwright.tasks.models.load import load_model
from maskwright.tasks.pretrain.prepare import prepare_run
from maskwright.tasks.start.engine import environment

MOST_LINES = 200
"""Log lines of a seed that a record keeps, evenly spaced."""
GPUS = ("H100", "H200")


class TrainingProgram(Protocol):
    name: str
    recipe: bytes
    """Its recipe, for the record."""
    identity: str
    """Digest of the settings that decide the numbers; the seeds follow from it."""

    def train(self, seed: int, text: SpeedrunText, run: str) -> None:
        """On the clock: the model is saved and synced when it returns."""
        ...

    def finish(self, run: str, model: str) -> str:
        """Off the clock: leaves a Hugging Face folder in `model`. Returns the engine's description, for the record."""
        ...

    def metrics(self, run: str) -> list[str]:
        """Log lines, as JSON."""
        ...


@dataclass(frozen=True)
class Entry:
    """A record's own description."""

    name: str
    by: str
    seeds: int
    target: float


class Maskwright:
    """`maskwright pretrain` with a recipe. Raises `InputError` for a recipe that is not allowed."""

    name = "maskwright"

    def __init__(self, track: Track, recipe: str, text: SpeedrunText) -> None:
        self.track = track
        self._file = find_config(recipe)
        config = read_config(recipe, self._overrides(0, text))
        places = {key: place for key, place in config.locations.items() if key != "data.store"}
        places["checkpoint.copy_to"] = config.checkpoint.copy_to
        if named := [key for key, place in places.items() if place is not None]:
            fix = "leave it out: a recipe begins from random weights, and reads the track's text alone"
            raise InputError(f"sets {named[0]}", where=recipe, fix=fix)
        ready = prepare_run(config)
        if (longest := ready.model.max_seq_len) < JUDGED_ROW:
            fix = f"set model.max_seq_len: {JUDGED_ROW}, which may be longer than data.seq_len"
            raise InputError(f"takes {longest} tokens, and rows of {JUDGED_ROW} are judged", where=recipe, fix=fix)
        with storage.open_binary(self._file) as file:
            self.recipe = redact(file.read().decode()).encode()
        self.identity = config.digest()

    def _overrides(self, seed: int, text: SpeedrunText) -> list[str]:
        keys = {"data.store": text.store.location, "seed": seed, **self.track.keys}
        return [f"{key}={in_flow(value)}" for key, value in keys.items()]

    def train(self, seed: int, text: SpeedrunText, run: str) -> None:
        overrides = [word for override in self._overrides(seed, text) for word in ("--set", override)]
        code = child.run(["pretrain", self._file, "--run", run, *overrides])
        if kind := stopped(code):
            raise kind("the same command continues, and begins this seed again")
        if code:
            raise MaskwrightError(f"seed {seed} ended with exit code {code}; its own message is above", where=run)

    def finish(self, run: str, model: str) -> str:
        RunDirectory(run).require()
        export(load_model(run), model)
        return engine_of(run)

    def metrics(self, run: str) -> list[str]:
        return [json.dumps(line) for line in RunDirectory(run).read_metrics()]


def engine_of(run: str) -> str:
    """The engine's description by the run's last start."""
    return str(read_run(run).at("started")[-1].get("engine"))


def seeds_of(track: Track, identity: str, number: int) -> list[int]:
    """The seeds of a recipe, which its author cannot choose: they follow from its digest."""
    first = int(storage.sha256_of([track.name, identity])[:6], 16)
    return list(range(first, first + number))


def race(
    track: Track, text: SpeedrunText, program: TrainingProgram, entry: Entry, to: str, work: str
) -> SpeedrunRecord:
    """Trains and judges every seed, and writes the record after each one. The same call continues it, and only
    one may run at a time. Raises kinds of `InputError` before training."""
    seeds = seeds_of(track, program.identity, entry.seeds)
    facts = environment()
    facts["hardware"].pop("host")
    record = SpeedrunRecord(
        format=1,
        track=track.name,
        name=entry.name,
        by=entry.by,
        date=datetime.date.today().isoformat(),
        program=program.name,
        metric=track.metric,
        target=entry.target,
        seeds=seeds,
        results=[],
        recipe_sha256=hashlib.sha256(program.recipe).hexdigest(),
        fingerprints=text.fingerprints,
        environment=facts,
        kind={},
    )
    runs = os.path.join(work, "runs", f"{track.name}-{program.identity[:12]}")
    storage.make_folder(to)
    record = _begun(record, program, to)
    for seed in record.seeds[len(record.results) :]:
        say(f"{track.name}: seed {seed}, {len(record.results) + 1} of {len(record.seeds)}")
        result, kind, lines = one_seed(track, text, program, seed, os.path.join(runs, f"seed-{seed}"))
        with storage.atomic_writer(os.path.join(to, f"metrics-{seed}.jsonl")) as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
        record = record.model_copy(update={"results": [*record.results, result], "kind": kind})
        write_record(to, record)
    return record


def _begun(record: SpeedrunRecord, program: TrainingProgram, to: str) -> SpeedrunRecord:
    """The record in `to`, if it is of this recipe; else a new one."""
    if os.path.exists(os.path.join(to, RECORD)):
        earlier = read_record(to)
        fields = ("track", "name", "by", "program", "target", "seeds", "recipe_sha256")
        if any(getattr(earlier, key) != getattr(record, key) for key in fields):
            raise InputError("holds another record", where=to, fix="choose another --to")
        fix = "choose another --to, or another --work"
        require_same(record.fingerprints, earlier.fingerprints, to, fix)
        now = kind_of(environment(), engine=earlier.kind.get("engine"))
        left = 0 < len(earlier.results) < len(earlier.seeds)
        if left and (differences := other_kind(earlier.kind, now)):
            fix = "continue it there, or choose another --to, since a record is of one kind of machine"
            raise InputError(f"was begun on {', '.join(differences)}", where=to, fix=fix)
        return earlier
    if os.listdir(to):
        raise InputError("is not empty, and holds no record", where=to, fix="choose another --to")
    with storage.atomic_writer(os.path.join(to, RECIPE)) as file:
        file.write(program.recipe)
    write_record(to, record)
    return record


def one_seed(
    track: Track, text: SpeedrunText, program: TrainingProgram, seed: int, run: str
) -> tuple[SeedResult, dict[str, str], list[str]]:
    """(result, kind, log lines) of a run from its beginning."""
    model = f"{run}-model"
    for folder in (run, model):
        shutil.rmtree(folder, ignore_errors=True)
    storage.make_folder(os.path.dirname(run))
    with _lent(track):
        began = time.monotonic()
        program.train(seed, text, run)
        seconds = time.monotonic() - began
    engine = program.finish(run, model)
    value, more_metrics = judged(track, text, model)
    lines = program.metrics(run)
    stride = -(-len(lines) // MOST_LINES)
    digest = storage.sha256_of_file(os.path.join(model, "model.safetensors"))
    result = SeedResult(seed=seed, seconds=round(seconds, 3), value=value, more=more_metrics, weights_sha256=digest)
    return result, kind_of(environment(), engine=engine), lines[:: stride or 1]


@contextmanager
def _lent(track: Track) -> Iterator[None]:
    """Gives the training process the hardware of the track."""
    if track.cores:
        with confined_to(track.cores):
            yield
        return
    if hardware.cuda_devices() != 1:
        raise InputError(f"the track {track.name} is for one GPU", fix="set CUDA_VISIBLE_DEVICES to one that is here")
    import torch

    gpu = torch.cuda.get_device_name()
    if not any(name in gpu for name in GPUS):
        raise InputError(f"the track {track.name} is not for {gpu}", fix=f"take one {' or '.join(GPUS)}")
    yield


@contextmanager
def confined_to(cores: int) -> Iterator[None]:
    """Inside, this process and those that it starts run on `cores` physical cores. Raises `InputError` for fewer."""
    allowed = hardware.usable_cpus()
    physical = hardware.physical_cores(allowed, "/sys/devices/system/cpu")
    if len(physical) < cores:
        what = f"this machine lends {len(physical)} physical cores, and {cores} are needed"
        raise InputError(what, fix="take a larger one")
    os.sched_setaffinity(0, physical[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def judged(track: Track, text: SpeedrunText, model: str) -> tuple[float, dict[str, float]]:
    """(the value that counts, other metrics), in fp32, on text that no training process has access to."""
    trained, engine = load_model(model), EngineSection(device="cpu" if track.cores else "cuda", dtype="fp32")
    stores = {"judged": text.judged}
    evaluated = evaluate_sources(trained, stores, seq_len=JUDGED_ROW, max_rows=JUDGED_ROWS, engine=engine)
    scores = evaluated.sources["judged"]
    if text.pairs is None:
        return scores.loss, {"accuracy": scores.accuracy}
    pairs = blimp(trained, text.pairs, engine=engine)
    return pairs.overall.sums, {"means": pairs.overall.means, "loss": scores.loss}
