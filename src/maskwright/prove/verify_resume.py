"""`maskwright verify-resume`: a user's own job, killed at random moments, against the same job without kills.

Both run as processes of their own, by the same command that a user types. Weights, optimizer state, each line of
metrics except its times, and the results of a fine-tuning run must be equal bit for bit. A loss that is equal at each
step means equal rows and masks.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from maskwright.config.finetuning import FinetuneConfig, build_finetune_config
from maskwright.config.pretraining import OF_ONE_RUN, RunConfig, build_config
from maskwright.config.recipes import Kind
from maskwright.config.settings import put
from maskwright.core import storage
from maskwright.core.console import progress, say
from maskwright.core.errors import InputError, VerificationError
from maskwright.engines.choose import choose_device
from maskwright.processes.child import python_module
from maskwright.run.directory import RESULTS, RunDirectory, Status
from maskwright.tasks.finetune.prepare import prepare_finetuning, with_its_splits
from maskwright.tasks.pretrain.prepare import prepare_run
from maskwright.tasks.start.prepared import Prepared
from maskwright.training import checkpoint

TIMES = {"time", "tokens_per_second", "examples_per_second", "matmul_share", "matmul_share_with_muon"}
TIMES |= {"cpu_share", "memory_share", "gpu_share", "gpu_memory_share"}
"""Keys of a log line that depend on a clock or on other programs, and so may differ."""
HELD_OUT_ROWS = 64


@dataclass
class ResumeVerdict:
    steps: int
    kills: list[int]
    """Finished steps when the process was killed."""
    tensors: int
    metric_lines: int
    result_files: int
    """Scores and predictions of a fine-tuning run."""
    steps_computed_again: int
    differences: list[str]
    """Empty if everything is equal."""

    def report(self) -> str:
        again = f"{self.steps_computed_again:,} steps computed again"
        lines = [f"{self.steps:,} steps; killed with SIGKILL after {', '.join(map(str, self.kills))}; {again}"]
        if self.differences:
            return "\n".join([*lines, "NOT exact:", *(f"  {difference}" for difference in self.differences)])
        results = f", and {self.result_files} files of results" if self.result_files else ""
        lines.append(
            f"exact: {self.tensors:,} tensors of weights and optimizer state and {self.metric_lines:,} lines of "
            f"metrics{results} are bit-identical"
        )
        return "\n".join(lines)


def shortened(config: RunConfig | FinetuneConfig, steps: int) -> RunConfig | FinetuneConfig:
    """The same run with `steps` steps: the schedule's phases shrink with it, every step is logged, and saves are
    frequent and at odd places, so that kills hit all of them. It does not end earlier (patience)."""
    if isinstance(config, FinetuneConfig):
        ready: Prepared = prepare_finetuning(with_its_splits(config), RunDirectory(""))
    else:
        ready = prepare_run(config)
    values = ready.config.model_dump()
    schedule = values["schedule"]
    share = steps / schedule["steps"]
    schedule["steps"] = steps
    schedule["warmup_steps"] = min(round(schedule["warmup_steps"] * share), steps // 2)
    if schedule["decay_steps"] is not None:
        schedule["decay_steps"] = max(1, min(round(schedule["decay_steps"] * share), steps // 2 - 1))
    if not isinstance(ready.config, FinetuneConfig):
        values["phases"] = _shrunk(ready.config, share)
    values["checkpoint"] |= {"save_every_steps": max(1, steps // 8 - 1), "save_every_seconds": None}
    finetunes = isinstance(config, FinetuneConfig)
    values["evaluation"] |= {"every_steps": max(2, steps // 4), "patience": None}
    values["evaluation"] |= {} if finetunes else {"max_rows": HELD_OUT_ROWS}
    values["logging"] |= {"every_steps": 1}
    if values["engine"]["compile"] == "auto":  # the long run decides, not the short one
        values["engine"]["compile"] = "on" if _compiles(ready) else "off"
    for key, value in OF_ONE_RUN.items():
        put(values, key, value, "verify-resume")
    build = build_finetune_config if finetunes else build_config
    return build(values, "verify-resume")


def _compiles(ready: Prepared) -> bool:
    """Whether the run compiles its layers (torch) or all of it (JAX)."""
    engine = ready.config.engine
    if engine.kind == "jax":
        return True
    from maskwright.engines.torch.prepare import choose_compile

    return choose_compile(engine.compile, choose_device(engine), ready.flops)


def _shrunk(config: RunConfig, share: float) -> list[dict[str, Any]]:
    """The phases of a run with this share of its steps; each keeps at least one."""
    phases: list[dict[str, Any]] = []
    for phase, stage in zip(config.phases, config.stages, strict=False):
        end = max(round(stage.end * share), len(phases) + 1)
        phases.append(phase.model_dump() | {"until_share": None, "until_step": end})
    return phases


def verify_resume(
    config: RunConfig | FinetuneConfig, *, steps: int, kills: int, seed: int, work: str | None = None
) -> ResumeVerdict:
    """Runs the job twice, kills one of the runs, and compares. Raises `InputError` for too few steps,
    `VerificationError` if a run fails by itself. The runs are deleted if everything is equal, else kept and named."""
    if steps < 8 or kills < 1:
        raise InputError("verify-resume needs at least 8 steps and 1 kill", fix="raise --steps or --kills")
    folder = work or tempfile.mkdtemp(prefix="maskwright-verify-resume-")
    storage.make_folder(folder)
    file = os.path.join(folder, "config.yaml")
    storage.write_json(file, shortened(config, steps).model_dump())  # JSON is YAML
    verb: Kind = "finetune" if isinstance(config, FinetuneConfig) else "pretrain"
    straight, killed = (RunDirectory(os.path.join(folder, name)) for name in ("straight", "killed"))
    for directory in (straight, killed):
        if os.path.exists(directory.location):
            raise InputError("already exists", where=directory.location, fix="give --to a new folder")
    generator = random.Random(seed)
    with progress("verify-resume", 2 * steps, "steps") as bar:
        _to_the_end(verb, file, straight)
        bar.advance(steps)
        killed_after, again = [], 0
        times = [record["time"] for record in straight.read_metrics() if "loss" in record]
        pause = 3.0 * (times[-1] - times[0]) / max(len(times) - 1, 1)
        # The first of several kills comes before any step, so that one hits the start; a single kill after saved steps.
        first = 0 if kills > 1 else generator.randrange(steps // 4, steps // 2)
        for moment in [first, *sorted(generator.sample(range(1, steps), min(kills, steps) - 1))]:
            reached = _killed(verb, file, killed, moment, generator.random() * pause)
            if reached is None:
                break  # it was done before it could be killed
            again += reached - killed.newest_step()
            killed_after.append(reached)
            bar.advance(0, note=f"killed after step {reached}")
        if len(killed_after) < min(kills, 2):
            raise VerificationError("the run was over before it could be killed", fix="raise --steps")
        _to_the_end(verb, file, killed)
        bar.advance(steps)
    tensors, lines, differences = compare(straight, killed)
    results, different = compare_results(straight, killed)
    verdict = ResumeVerdict(steps, killed_after, tensors, lines, results, again, differences + different)
    if verdict.differences:
        say(f"both runs are kept in {folder}")
    elif work is None:
        shutil.rmtree(folder)
    return verdict


def start_run(verb: Kind, file: str, directory: RunDirectory) -> subprocess.Popen[bytes]:
    """Starts the run by the command that a user types. Its output goes to a log next to the folder."""
    with open(f"{directory.location}.log", "ab") as log:
        command = python_module("maskwright", verb, file, "--run", directory.location)
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _to_the_end(verb: Kind, file: str, directory: RunDirectory) -> None:
    process = start_run(verb, file, directory)
    try:
        code = process.wait()
    finally:
        process.kill()
    if code:
        raise VerificationError(f"the run ended with exit code {code}", where=f"{directory.location}.log")


def _killed(verb: Kind, file: str, directory: RunDirectory, moment: int, seconds: float) -> int | None:
    """Starts the run, kills it `seconds` after it has finished step `moment`, and returns the step that it had reached;
    None if it ended by itself before."""
    before = directory.read_status()
    process = start_run(verb, file, directory)
    try:
        while process.poll() is None and not _trains(directory, before, moment):
            time.sleep(0.002)
        if process.poll() is None:
            time.sleep(seconds)
    finally:
        process.send_signal(signal.SIGKILL)
        code = process.wait()
    if code not in (0, -signal.SIGKILL):
        raise VerificationError(f"the run ended with exit code {code}", where=f"{directory.location}.log")
    return _last_step(directory) if code else None


def _trains(directory: RunDirectory, before: Status | None, moment: int) -> bool:
    """Whether this start of the run, not the one before it, has finished step `moment`."""
    status = directory.read_status()
    if status is None or (before and status.pid == before.pid):
        return False
    return moment == 0 or (status.phase != "starting" and _last_step(directory) >= moment)


def _last_step(directory: RunDirectory) -> int:
    return max((record["step"] for record in directory.read_metrics()), default=0)


def compare(straight: RunDirectory, killed: RunDirectory) -> tuple[int, int, list[str]]:
    """(tensors compared, lines of metrics compared, differences)."""
    differences: list[str] = []
    sides = []
    for directory in (straight, killed):
        loaded = checkpoint.load_newest(directory.checkpoints, set_aside=False)
        if loaded is None:
            raise VerificationError("left no checkpoint", where=directory.location)
        state = loaded[0]
        tensors = {f"weight {name}": array for name, array in state.parameters.items()}
        for kind, named in state.moments.items():
            tensors |= {f"{kind} {name}": array for name, array in named.items()}
        lines = [{k: v for k, v in record.items() if k not in TIMES} for record in directory.read_metrics()]
        sides.append((state.step, tensors, lines))
    (step, tensors, lines), (other_step, other_tensors, other_lines) = sides
    if step != other_step or set(tensors) != set(other_tensors):
        differences.append(f"one ended at step {step} with {len(tensors)} tensors, the other at {other_step}")
    different = [name for name in tensors if not _equal(tensors[name], other_tensors.get(name))]
    if different:
        differences.append(f"{len(different)} of {len(tensors)} tensors, the first {different[0]}")
    for line, other_line in zip(lines, other_lines, strict=False):
        if json.dumps(line) != json.dumps(other_line):
            differences.append(f"metrics at step {line['step']}: {json.dumps(line)} and {json.dumps(other_line)}")
            break
    if len(lines) != len(other_lines):
        differences.append(f"{len(lines)} lines of metrics and {len(other_lines)}")
    return len(tensors), len(lines), differences


def compare_results(straight: RunDirectory, killed: RunDirectory) -> tuple[int, list[str]]:
    """(files compared, differences) of the scores and predictions at the end of a fine-tuning run."""
    sides = [
        {path.name: path.read_bytes() for name in (RESULTS, "predictions-*.json") for path in Path(folder).glob(name)}
        for folder in (straight.location, killed.location)
    ]
    names = sorted(set().union(*sides))
    return len(names), [f"{name} differs" for name in names if sides[0].get(name) != sides[1].get(name)]


def _equal(array: np.ndarray, other: np.ndarray | None) -> bool:
    """Compares bits: NaN equals itself, and -0.0 is not 0.0."""
    return other is not None and array.shape == other.shape and array.tobytes() == other.tobytes()
