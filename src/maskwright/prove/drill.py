"""`maskwright drill`: a tiny copy of a user's job suffers one fault after the other, and must still end with the
numbers of the same job left alone."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass, field

from maskwright.config.pretraining import RunConfig, build_config
from maskwright.core.console import say
from maskwright.core.errors import InputError, MaskwrightError, StoppedEarly
from maskwright.prove import drill_run
from maskwright.prove.verify_resume import shortened

STEPS, ROW = 24, 64


@dataclass
class Drills:
    folder: str
    results: list[tuple[str, str, bool]] = field(default_factory=list)
    """(fault, outcome, whether that is right) of each drill."""

    def meet(self, fault: str, drill: Callable[[], str]) -> None:
        """Runs `drill`, which returns the outcome, and raises `AssertionError` or `MaskwrightError` if it is wrong."""
        begin = time.monotonic()
        try:
            with redirect_stderr(io.StringIO()):  # hundreds of warnings are expected here
                seen, good = drill(), True
        except StoppedEarly:
            raise
        except (AssertionError, MaskwrightError, OSError, RuntimeError) as error:
            seen, good = " ".join(str(error).split()) or type(error).__name__, False
        self.results.append((fault, seen, good))
        say(f"{'passed' if good else 'FAILED'}  {fault}: {seen}  ({time.monotonic() - begin:.1f} s)")

    @property
    def failed(self) -> int:
        return sum(not good for _, _, good in self.results)

    def report(self) -> str:
        width = max(len(fault) for fault, _, _ in self.results)
        lines = [f"{'passed' if good else 'FAILED'}  {fault:<{width}}  {seen}" for fault, seen, good in self.results]
        lines.append(f"{len(self.results) - self.failed} passed, {self.failed} failed")
        return "\n".join(lines)


def tiny(config: RunConfig) -> RunConfig:
    """A small and short run with the same packing, masking, architecture, optimizer, dropout and precision, in one
    process, where the faults are. The store stays the user's own."""
    values = shortened(config, STEPS).model_dump()
    shape = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_seq_len", "init_from")
    values["model"] |= {"size": "nano", **dict.fromkeys(shape)}
    values["data"]["seq_len"] = min(values["data"]["seq_len"], ROW)
    for phase in values["phases"]:
        phase["seq_len"] = phase["seq_len"] and min(phase["seq_len"], ROW)
    lengths = [values["data"]["seq_len"], *(phase["seq_len"] or 0 for phase in values["phases"])]
    values["model"]["max_seq_len"] = max(lengths)
    V = values["batch"]["virtual_workers"]
    fewest = min(V, 4) if config.engine.kind == "torch" else config.engine.devices or V
    values["batch"] = {"micro_batch_rows": min(values["batch"]["micro_batch_rows"], 4), "virtual_workers": fewest}
    if config.engine.kind == "torch":
        values["engine"]["devices"] = 1
    values["checkpoint"] |= {"keep": 3, "keep_every_steps": None}
    values["health"]["on_spike"] = "warn"
    return build_config(values, "drill")


def drill(config: RunConfig, *, work: str | None = None) -> Drills:
    """Runs all drills. Raises `InputError` if `work` is not new, or if the run reads no token store to damage. The runs
    are deleted if all drills passed, and otherwise kept and named."""
    drill_run.store_of(config)
    folder = work or tempfile.mkdtemp(prefix="maskwright-drill-")
    if work and os.path.exists(work) and os.listdir(work):
        raise InputError("is not empty", where=work, fix="give --work a new folder")
    drills = Drills(folder)
    for fault, action in drill_run.drills(folder, tiny(config)):
        drills.meet(fault, action)
    if drills.failed:
        say(f"everything is kept in {folder}")
    elif work is None:
        shutil.rmtree(folder)
    return drills
