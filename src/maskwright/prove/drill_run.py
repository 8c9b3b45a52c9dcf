"""Drills of full commands: a run suffers one fault after the other, in processes of its own, by the commands that a
user types."""

from __future__ import annotations

import glob
import json
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from maskwright.config.pretraining import RunConfig
from maskwright.config.settings import in_flow
from maskwright.core import storage
from maskwright.core.errors import InputError
from maskwright.data.store import TokenStore
from maskwright.processes.child import python_module
from maskwright.prove.verify_resume import compare
from maskwright.run.directory import RunDirectory, step_folder
from maskwright.text.tokenizer import load_tokenizer
from maskwright.training import checkpoint

GRACE_SECONDS, LONG_ENOUGH_SECONDS = 1.0, 120.0
DOCUMENTS = 200
LOOP = "maskwright.training.loop"
SAVE = "maskwright.training.checkpoint:_write"
ENGINES = {"torch": "maskwright.engines.torch.engine:TorchEngine", "jax": "maskwright.engines.jax.engine:JaxEngine"}
STEP = {"torch": f"{ENGINES['torch']}._accumulate", "jax": f"{ENGINES['jax']}.step"}
"""The call that computes an update or a part of it, by `engine.kind`."""


def phases(kind: str) -> Iterator[tuple[str, str, int]]:
    """Yields (phase, the call in which SIGTERM comes, number of that call)."""
    yield "reading the configuration's data", "maskwright.tasks.pretrain.prepare:prepare_run", 1
    yield "start", "maskwright.tasks.start.train:make_job", 1
    yield "a step", STEP[kind], 3
    yield "validation", f"{ENGINES[kind]}.evaluate", 1
    yield "a save", SAVE, 1


def store_of(config: RunConfig) -> str:
    """The token store whose copy the drills damage; the first one of a mixture."""
    data = config.data
    stores = [data.store] if data.format == "store" and data.store else []
    stores += [source.store for _, source in sorted((data.mixture or {}).items()) if source.format == "store"]
    if not stores:
        fix = "verify-resume takes any format; or `maskwright data convert` makes a token store of it"
        raise InputError("drills damage a copy of a token store, and this run reads none", where="data.format", fix=fix)
    return stores[0]


class _DrillFolder:
    """A folder with the tiny configuration, its undisturbed run and the run that suffers the faults."""

    def __init__(self, folder: str, config: RunConfig) -> None:
        storage.make_folder(folder)
        self.folder, self.config = folder, config
        self.store = TokenStore(store_of(config))
        self.step = STEP[config.engine.kind]
        self.straight, self.bothered = (RunDirectory(os.path.join(folder, n)) for n in ("straight", "bothered"))
        self.file = os.path.join(folder, "config.yaml")
        storage.write_json(self.file, config.model_dump())  # JSON is YAML

    def call(self, *arguments: str, fault: dict[str, Any] | None = None, file_limit: int | None = None) -> Ended:
        process = self.start(*arguments, fault=fault, file_limit=file_limit)
        try:
            _, errors = process.communicate(timeout=LONG_ENOUGH_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            _, errors = process.communicate()
            raise AssertionError(f"did not end within {LONG_ENOUGH_SECONDS:g} seconds: {_last_line(errors)}") from None
        finally:
            process.kill()
        return Ended(process.returncode, errors)

    def start(
        self, *arguments: str, fault: dict[str, Any] | None = None, file_limit: int | None = None
    ) -> subprocess.Popen[str]:
        command = ["maskwright.prove.injection", json.dumps(fault)] if fault else ["maskwright"]
        limits = (file_limit, file_limit) if file_limit else None
        return subprocess.Popen(
            python_module(*command, *arguments),
            env={**os.environ, "WORLD_SIZE": "1"},  # no supervisor: the fault is in this process, also on a GPU
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits)) if limits else None,
        )

    def train(self, run: RunDirectory, *arguments: str, **fault: Any) -> Ended:
        return self.call(*self.pretrain(run, *arguments), **fault)

    def pretrain(self, run: RunDirectory, *arguments: str) -> tuple[str, ...]:
        return ("pretrain", self.file, "--run", run.location, *arguments)

    def newest(self) -> int:
        return max(checkpoint.whole_steps(self.bothered.checkpoints), default=-1)


class Ended(NamedTuple):
    code: int
    errors: str

    def require(self, code: int, *words: str) -> str:
        """Checks its exit code and that its output has these words. Returns the exit code as text."""
        last = _last_line(self.errors)
        assert self.code == code, f"exit code {self.code}, not {code}: {last}"
        assert "Traceback" not in self.errors, "a traceback"
        for word in words:
            assert word in self.errors, f"did not say '{word}': {last}"
        return f"exit {code}"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["(nothing said)"])[-1][:300]


def drills(folder: str, config: RunConfig) -> Iterator[tuple[str, Callable[[], str]]]:
    place = _DrillFolder(folder, config)
    yield "the job left alone", lambda: place.train(place.straight).require(0)
    for phase, call, number in phases(config.engine.kind):
        if phase == "validation" and not place.store.split("valid").documents:
            continue
        yield f"SIGTERM in {phase}", partial(_terminated, place, call, number, "terminate")
    yield "SIGTERM twice in a save", partial(_terminated, place, SAVE, 1, "terminate_twice")
    yield "SIGTERM in a step that does not end", partial(_hung, place)
    yield "kill -9 in a save", partial(_killed, place)
    yield "a second run on the folder", partial(_second, place)
    yield "disk full in a save", partial(_full_disk, place)
    yield "newest checkpoint damaged", partial(_damaged, place)
    yield "NaN weight in the checkpoint", partial(_nan, place)
    yield "shard cut, and one with another byte", partial(_bad_shards, place)
    yield "clock stepped back by an hour", partial(_clock_back, place)
    yield "tracker down", partial(_tracker_down, place)
    yield "all of this, against the job left alone", partial(_same_numbers, place)
    yield "SIGTERM in export", partial(_export, place)
    yield "SIGTERM in data prepare", partial(_prepare, place)


def _terminated(place: _DrillFolder, call: str, number: int, do: str) -> str:
    before = place.newest()
    ended = place.train(place.bothered, fault={"call": call, "number": number, "do": do})
    seen = ended.require(75)
    assert place.newest() >= before, f"the newest checkpoint was {before}, is {place.newest()}"
    return f"{seen}, newest checkpoint {place.newest()}"


def _hung(place: _DrillFolder) -> str:
    before = place.newest()
    process = _hanging(place, 2, "--set", f"checkpoint.grace_seconds={GRACE_SECONDS}")
    try:
        begin = time.monotonic()
        process.terminate()
        _, errors = process.communicate(timeout=LONG_ENOUGH_SECONDS)
        seconds = time.monotonic() - begin
    finally:
        process.kill()
    Ended(process.returncode, errors).require(75, "grace period")
    assert place.newest() >= before
    assert seconds < GRACE_SECONDS + 5.0, f"it took {seconds:.1f} seconds"
    return f"exit 75 after {seconds:.1f} s with a grace period of {GRACE_SECONDS:g} s"


def _hanging(place: _DrillFolder, number: int, *arguments: str) -> subprocess.Popen[str]:
    """Starts the run, and returns once it hangs in the engine's call `number`."""
    sign = os.path.join(place.folder, "hangs")
    with suppress(FileNotFoundError):
        os.unlink(sign)
    fault = {"call": place.step, "number": number, "do": "hang", "sign": sign}
    process = place.start(*place.pretrain(place.bothered, *arguments), fault=fault)
    end = time.monotonic() + LONG_ENOUGH_SECONDS
    while process.poll() is None and time.monotonic() < end:
        if os.path.exists(sign):
            return process
        time.sleep(0.02)
    process.kill()
    raise AssertionError(f"the run did not come to that step: {_last_line(process.communicate()[1])}")


def _killed(place: _DrillFolder) -> str:
    before = place.newest()
    fault = {"call": SAVE, "number": 2, "do": "kill"}
    ended = place.train(place.bothered, fault=fault)
    assert ended.code == -9, f"exit code {ended.code}"
    assert place.newest() >= before
    return f"newest checkpoint {place.newest()}"


def _second(place: _DrillFolder) -> str:
    first = _hanging(place, 2)  # the dry run before step 1 makes the first call
    try:
        seen = place.train(place.bothered).require(2, f"in use by process {first.pid}")
    finally:
        first.kill()
        first.communicate()
    return f"{seen}, and the first, killed with -9, leaves nothing to wait for"


def _full_disk(place: _DrillFolder) -> str:
    before = place.newest()
    newest = os.path.join(place.bothered.checkpoints, step_folder(before), checkpoint.FILES[0])
    ended = place.train(place.bothered, file_limit=os.path.getsize(newest) // 2)
    seen = ended.require(1, "cannot be written", "untouched")
    assert place.newest() == before
    return f"{seen}, newest checkpoint still {before}"


def _damaged(place: _DrillFolder) -> str:
    before = place.newest()
    file = os.path.join(place.bothered.checkpoints, step_folder(before), checkpoint.FILES[0])
    os.truncate(file, os.path.getsize(file) // 2)
    ended = place.train(place.bothered, "--stop-after-steps", "1")
    seen = ended.require(76, step_folder(before), "using the checkpoint before")
    return f"{seen}, named, the checkpoint before used"


def _nan(place: _DrillFolder) -> str:
    """Damages a copy of the run, whose manifest agrees with it."""
    run = RunDirectory(os.path.join(place.folder, "nan"))
    shutil.copytree(place.bothered.location, run.location, ignore=shutil.ignore_patterns("lock", "lease.json"))
    loaded = checkpoint.load_newest(run.checkpoints, set_aside=False)
    assert loaded is not None
    state, record = loaded
    next(array for name, array in state.parameters.items() if name.endswith("bias"))[0] = np.nan
    shutil.rmtree(run.checkpoints)
    checkpoint.save(run.checkpoints, state, record, keep=1)
    seen = place.train(run).require(3, "not finite")
    assert checkpoint.whole_steps(run.checkpoints) == [state.step], "something was saved"
    return f"{seen}, before an update, nothing saved"


def _bad_shards(place: _DrillFolder) -> str:
    """Damages one file in a copy of the store, whose other files are links."""
    copy = os.path.join(place.folder, "store")
    shutil.copytree(os.path.abspath(place.store.location), copy, copy_function=os.symlink)
    shard = sorted(glob.glob(os.path.join(copy, "train-*.tokens.*")))[0]
    target = os.path.realpath(shard)
    os.unlink(shard)
    shutil.copyfile(target, shard)
    with open(shard, "r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))
    place.call("data", "verify", copy).require(2, os.path.basename(shard))
    os.truncate(shard, os.path.getsize(shard) - 2)
    run = os.path.join(place.folder, "not-begun")
    mixture = place.config.data.model_dump()["mixture"]
    override = f"data.store={in_flow(copy)}"
    if mixture is not None:
        first = next(name for name, source in mixture.items() if source["format"] == "store")
        override = f"data.mixture={in_flow(mixture | {first: mixture[first] | {'store': copy}})}"
    seen = place.call("pretrain", place.file, "--run", run, "--set", override).require(2, os.path.basename(shard))
    assert not os.path.exists(run), "a run directory was made"
    return f"{seen}, the file named, nothing begun"


def _clock_back(place: _DrillFolder) -> str:
    fault = {"call": f"{LOOP}:_log", "number": 2, "do": "clock_back"}
    return place.train(place.bothered, "--stop-after-steps", "4", fault=fault).require(76)


def _tracker_down(place: _DrillFolder) -> str:
    """Puts a file in place of TensorBoard's folder."""
    with open(place.bothered.path("events"), "w", encoding="utf-8"):
        pass
    ended = place.train(place.bothered, "--set", "logging.report_to=[tensorboard]")
    return f"{ended.require(0, 'events cannot be written')}; trained to the end"


def _same_numbers(place: _DrillFolder) -> str:
    tensors, lines, differences = compare(place.straight, place.bothered)
    assert not differences, "; ".join(differences)
    return f"{tensors} tensors and {lines} lines of metrics are bit-identical"


def _export(place: _DrillFolder) -> str:
    to = os.path.join(place.folder, "exported")
    before = set(os.listdir(place.folder))
    fault = {"call": "maskwright.tasks.export.hugging_face:verify", "number": 1, "do": "terminate"}
    seen = place.call("export", place.straight.location, "--to", to, fault=fault).require(75)
    assert set(os.listdir(place.folder)) == before, f"left {set(os.listdir(place.folder)) - before}"
    place.call("export", place.straight.location, "--to", to).require(0)
    return f"{seen}, nothing half left, and the next export is good"


def _prepare(place: _DrillFolder) -> str:
    """Prepares text of some of the store's own documents, decoded."""
    text, to = (os.path.join(place.folder, name) for name in ("text.txt", "prepared"))
    split = place.store.split("train")
    tokenizer = load_tokenizer(place.store.tokenizer_folder, special_tokens_are_text=False)
    with open(text, "w", encoding="utf-8") as file:
        for ids in islice(split.beginnings(1 << 20), DOCUMENTS):
            file.write(" ".join(tokenizer.decode(ids.tolist()).split()) + "\n")
    tokenizer_folder = place.store.tokenizer_folder
    how = ("--layout", "lines", "--valid-fraction", "0")  # so few may hold none out
    arguments = ("data", "prepare", text, "--tokenizer", tokenizer_folder, *how, "--to", to)
    fault = {"call": "maskwright.data.prepare.encode:encode_documents", "number": 1, "do": "terminate"}
    seen = place.call(*arguments, fault=fault).require(75)
    assert not os.path.exists(os.path.join(to, "manifest.json")), "what was cut looks like a store"
    place.call(*arguments).require(0)
    place.call("data", "verify", to).require(0)
    return f"{seen}, and the same command makes the store"
