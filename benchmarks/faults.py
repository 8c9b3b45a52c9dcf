"""The same four faults on Hugging Face Trainer and on maskwright, and the result of each.

    python benchmarks/faults.py [--work FOLDER]        a few minutes on one core

truncated   the weights file of the newest checkpoint is cut in half; resume
disk_full   a save fails because no file may grow beyond 1.5 times the weights (RLIMIT_FSIZE: the same on every Unix and
            without mounting, unlike a small file system; so weights fit and optimizer state does not); resume without
            that limit
nan_weight  both begin from one Hugging Face folder with one NaN weight
resume      stopped halfway and resumed, against never stopped: dropout and dynamic masking on, fp32, one CPU process

Both train a two-layer RoBERTa of 128 dimensions on the same generated text, each as its user would: Trainer with the
defaults of `TrainingArguments` (`peers/hf_faults.py`), and `maskwright pretrain`. Each attempt is a process of its own.
Exit codes, messages, logged losses and weights on disk go to `results/faults.json`; the words of the table are made
from them in `faults_table.py`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from common import HERE, store_of, write_result
from faults_table import table
from safetensors.numpy import load_file, save_file

from maskwright.core.console import say

STEPS, SAVE_EVERY, STOP_AFTER = 40, 10, 20
SEQ_LEN, ROWS, VOCABULARY = 64, 8, 800
WEIGHTS = "model.safetensors"
POISONED = "roberta.encoder.layer.0.attention.self.query.weight"
SETTING = {
    "steps": STEPS,
    "save_every_steps": SAVE_EVERY,
    "stopped_after": STOP_AFTER,
    "rows": ROWS,
    "seq_len": SEQ_LEN,
    "size": "nano",
    "poisoned": POISONED,
}
Record = dict[str, Any]


class Side(Protocol):
    name: str

    def command(self, run: Path, *, stop_after: int | None, init_from: Path | None, resume: str | None) -> list[str]:
        """Starts or, with `resume`, continues `run`; `resume` is "newest" or a checkpoint's folder."""

    def checkpoint(self, run: Path, step: int) -> Path: ...


class HuggingFace:
    name = "hf_trainer"

    def __init__(self, store: str, steps: int = STEPS, *, learning_rate: float | None = None) -> None:
        self.store, self.steps, self.learning_rate = store, steps, learning_rate

    def command(self, run: Path, *, stop_after: int | None, init_from: Path | None, resume: str | None) -> list[str]:
        command = [sys.executable, str(HERE / "peers" / "hf_faults.py"), self.store, "--to", str(run)]
        command += ["--size", "nano", "--seq-len", str(SEQ_LEN), "--rows", str(ROWS)]
        command += ["--steps", str(self.steps), "--save-every", str(SAVE_EVERY)]
        if self.learning_rate:
            command += ["--learning-rate", str(self.learning_rate)]
        if stop_after:
            command += ["--stop-after", str(stop_after)]
        if init_from:
            command += ["--init-from", str(init_from)]
        if resume:
            command += ["--resume"] if resume == "newest" else ["--resume", resume]
        return command

    def checkpoint(self, run: Path, step: int) -> Path:
        return run / f"checkpoint-{step}"


class Maskwright:
    name = "maskwright"

    def __init__(self, store: str, config: Path, steps: int = STEPS, *, learning_rate: float | None = None) -> None:
        self.config = config
        # JSON is YAML. Dropout and precision are as on the other side.
        values: dict[str, dict[str, Any]] = {
            "data": {"store": store, "seq_len": SEQ_LEN},
            "model": {"size": "nano", "hidden_dropout": 0.1, "attention_dropout": 0.1},
            "schedule": {"steps": steps},
            "batch": {"micro_batch_rows": ROWS},
            "engine": {"device": "cpu", "dtype": "fp32"},
            "checkpoint": {"save_every_steps": SAVE_EVERY},
            "logging": {"every_steps": 1},
        }
        if learning_rate:
            values["optimizer"] = {"learning_rate": learning_rate}
        config.write_text(json.dumps(values, indent=1))

    def command(self, run: Path, *, stop_after: int | None, init_from: Path | None, resume: str | None) -> list[str]:
        command = [sys.executable, "-m", "maskwright", "pretrain", str(self.config), "--run", str(run)]
        if stop_after:
            command += ["--stop-after-steps", str(stop_after)]
        if init_from:
            command += ["--set", f"model.init_from={init_from}"]
        return command  # it continues by itself; no older checkpoint can be named

    def checkpoint(self, run: Path, step: int) -> Path:
        return run / "checkpoints" / f"step-{step:08d}"


def attempt(side: Side, run: Path, *, file_limit: int | None = None, **options: Any) -> Record:
    """One process, and its traces outside."""
    defaults: dict[str, Any] = {"stop_after": None, "init_from": None, "resume": None}
    command = side.command(run, **{**defaults, **options})

    def limit() -> None:
        if file_limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))

    # Python ignores SIGXFSZ, so that a write beyond the limit fails as on a full disk.
    result = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parent, preexec_fn=limit, check=False)
    log = run.with_name(f"{run.name}.log")
    with log.open("a") as file:
        file.write(f"$ {' '.join(command)}\n{result.stdout}{result.stderr}exit {result.returncode}\n\n")
    begins = re.findall(r"continuing at step ([\d,]+)", result.stderr)
    seen = {
        "exit": result.returncode,
        "error": first_line_of_error(result.stderr, run) if result.returncode else None,
        "began_at": int(begins[-1].replace(",", "")) if begins else 0,
        "names_the_file": WEIGHTS in result.stderr,
        "warnings": [short(line, run) for line in result.stderr.splitlines() if line.startswith("warning:")],
        "last_step": max(losses(run), default=0),
    }
    say(f"{side.name}, {run.name}: {json.dumps(seen)}")
    return seen


def first_line_of_error(stderr: str, run: Path) -> str:
    """Message of the exception that ended the process, or our own."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(error|stopped): |[\w.]*(Error|Exception)\b", line)]
    return short((errors or lines or ["nothing was said"])[-1], run)


def short(line: str, run: Path) -> str:
    """Without the folder that holds the runs."""
    return line.replace(f"{run.parent}{os.sep}", "").strip()


def metrics(run: Path) -> list[Record]:
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def losses(run: Path) -> dict[int, float]:
    """By step; the later one of a step that was computed twice."""
    return {line["step"]: line["loss"] for line in metrics(run) if "loss" in line}


def weights(side: Side, run: Path, step: int = STEPS) -> dict[str, np.ndarray] | None:
    path = side.checkpoint(run, step) / WEIGHTS
    return load_file(path) if path.exists() else None


def digest(folder: Path) -> str:
    """Of every file's name and bytes."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        total.update(f"{path.relative_to(folder)}\0".encode() + (path.read_bytes() if path.is_file() else b""))
    return total.hexdigest()


def compare(side: Side, straight: Path, other: Path, after: int, last: int = STEPS) -> Record:
    """Losses of the steps behind `after` and final weights of two runs that end at `last`, by bits."""
    one, two = losses(straight), losses(other)
    steps = range(after + 1, last + 1)
    different = [step for step in steps if one.get(step) != two.get(step)]
    both = [step for step in steps if step in one and step in two]
    found: Record = {
        "steps_compared": len(both),
        "first_different_step": different[0] if different else None,
        "different_steps": len(different),
        "largest_loss_difference": max((abs(one[step] - two[step]) for step in both), default=None),
    }
    before, now = weights(side, straight, last), weights(side, other, last)
    if before is not None and now is not None:
        unequal = [name for name in before if before[name].tobytes() != now[name].tobytes()]
        found["tensors"], found["different_tensors"] = len(before), len(unequal)
        found["largest_weight_difference"] = max(float(np.abs(before[name] - now[name]).max()) for name in before)
    return found


def resume(side: Side, run: Path, straight: Path, whole_step: int) -> Record:
    """Resumes as a user does; if that fails, once more from the whole checkpoint by its name, if possible."""
    seen = attempt(side, run, resume="newest")
    if seen["exit"] == 0:
        return seen | {"against_straight": compare(side, straight, run, seen["began_at"])}
    if isinstance(side, HuggingFace):
        seen["by_name"] = attempt(side, run, resume=str(side.checkpoint(run, whole_step)))
    return seen


def truncated(side: Side, stopped: Path, straight: Path) -> Record:
    run = copy(stopped, "truncated")
    file = side.checkpoint(run, STOP_AFTER) / WEIGHTS
    os.truncate(file, file.stat().st_size // 2)
    return {"resume": resume(side, run, straight, STOP_AFTER - SAVE_EVERY)}


def disk_full(side: Side, stopped: Path, straight: Path) -> Record:
    run = copy(stopped, "disk_full")
    good, failing = side.checkpoint(run, STOP_AFTER), side.checkpoint(run, STOP_AFTER + SAVE_EVERY)
    before, limit = digest(good), int(1.5 * (good / WEIGHTS).stat().st_size)
    save = attempt(side, run, resume="newest", file_limit=limit)
    left = sorted(path.name for path in failing.iterdir()) if failing.exists() else None
    return {
        "file_limit_bytes": limit,
        "save": save,
        "left_of_the_failed_save": left,
        "checkpoint_before_intact": digest(good) == before,
        "resume": resume(side, run, straight, STOP_AFTER),
    }


def nan_weight(side: Side, work: Path, model: Path) -> Record:
    run = work / side.name / "nan_weight"
    seen = attempt(side, run, init_from=model)
    last = weights(side, run)
    logged = [str(line[key]) for line in metrics(run) for key in ("loss", "valid_loss") if key in line]
    return {
        "run": seen,
        "logged_losses": {value: logged.count(value) for value in sorted(set(logged))},
        "not_finite_grad_norms": sum(not math.isfinite(line.get("grad_norm", 0.0)) for line in metrics(run)),
        "checkpoints": [step for step in range(0, STEPS + 1, SAVE_EVERY) if side.checkpoint(run, step).exists()],
        "tensors": None if last is None else len(last),
        "tensors_with_nan": None if last is None else sum(bool(np.isnan(array).any()) for array in last.values()),
    }


def exact_resume(side: Side, stopped: Path, straight: Path) -> Record:
    again = straight.with_name("again")
    require(attempt(side, again), 0)
    seen = resume(side, copy(stopped, "resumed"), straight, STOP_AFTER)
    epoch = next(line["epoch"] for line in metrics(stopped) if line["step"] == STOP_AFTER and "epoch" in line)
    return {"stopped_at_epoch": epoch, "straight_twice": compare(side, straight, again, 0), "resume": seen}


def copy(run: Path, name: str) -> Path:
    return Path(shutil.copytree(run, run.with_name(name)))


def require(seen: Record, *codes: int) -> Record:
    """An undisturbed run must end well; otherwise the results mean nothing."""
    if seen["exit"] not in codes:
        raise SystemExit(f"a run without a fault ended with exit code {seen['exit']}: {seen['error']}")
    return seen


def poisoned_model(straight: Path, side: Side, folder: Path) -> Path:
    """A Hugging Face folder, as Trainer saves it, with one NaN among its weights."""
    source = side.checkpoint(straight, SAVE_EVERY)
    folder.mkdir()
    shutil.copy(source / "config.json", folder)
    parameters = load_file(source / WEIGHTS)
    parameters[POISONED][0, 0] = np.nan
    save_file(parameters, folder / WEIGHTS, {"format": "pt"})
    return folder


def generated_text(path: Path) -> str:
    """600 documents of three sentences of invented words, some words far more frequent than others."""
    draw = random.Random(0)
    words = ["".join(draw.choice("bdfgklmnprstv") + draw.choice("aeiou") for _ in range(n)) for n in (1, 2, 3) * 200]
    frequency = [1 / (rank + 1) for rank in range(len(words))]
    sentences = (" ".join(draw.choices(words, frequency, k=draw.randint(6, 14))) + "." for _ in range(1800))
    path.write_text("".join(f"{next(sentences)}\n{next(sentences)}\n{next(sentences)}\n\n" for _ in range(600)))
    return str(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, help="new or empty folder for the runs and their logs; kept when given")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = (arguments.work or Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        store = store_of([generated_text(work / "text.txt")], str(work), VOCABULARY)
        sides: list[Side] = [HuggingFace(store), Maskwright(store, work / "run.yaml")]
        for side in sides:
            (work / side.name).mkdir()
            require(attempt(side, work / side.name / "straight"), 0)
            require(attempt(side, work / side.name / "stopped", stop_after=STOP_AFTER), 0, 75)
        model = poisoned_model(work / sides[0].name / "straight", sides[0], work / "poisoned")
        faults: dict[str, dict[str, Record]] = {}
        for side in sides:
            runs = work / side.name / "stopped", work / side.name / "straight"
            faults.setdefault("truncated", {})[side.name] = truncated(side, *runs)
            faults.setdefault("disk_full", {})[side.name] = disk_full(side, *runs)
            faults.setdefault("nan_weight", {})[side.name] = nan_weight(side, work, model)
            faults.setdefault("resume", {})[side.name] = exact_resume(side, *runs)
    write_result("faults", {}, setting=SETTING, faults=faults)
    print("\n".join(table({"setting": SETTING, "faults": faults})))


if __name__ == "__main__":
    main()
