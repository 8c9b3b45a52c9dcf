"""The run directory: all files that a run writes and monitoring reads. `docs/run-directory.md` is the contract.

One process writes. It holds `lock` and `lease.json` as long as it lives, so a second run on the folder is refused, and
a killed run leaves nothing to clean up.
"""

from __future__ import annotations

import json
import os
import platform
import re
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from maskwright.core import records, storage
from maskwright.core.errors import InputError, MaskwrightError
from maskwright.core.folder import Folder
from maskwright.core.secrets import redact
from maskwright.run.heartbeat import read_local
from maskwright.run.record import CONFIG, RunRecord, parse

Request = Literal["stop", "checkpoint"]
Phase = Literal["starting", "training", "evaluating", "saving", "done", "stopped", "failed"]
Event = Literal["started", "saved", "spiked", "ended"]
HISTORY, DATA_CARD = "history.jsonl", "data.json"
RESULTS = "results.json"
"""The file that a fine-tuned run ends with: the step of its best checkpoint, and scores."""
MANIFEST = "MANIFEST.json"
"""A checkpoint's last file: a folder without it is not a checkpoint."""
ENDED = "ended.json"
"""Next to the copies of a run: `ENDED_FILES` at its end, since the last evaluation comes after the last save."""
ENDED_FILES = ("metrics.jsonl", RESULTS)
SEARCH = "retrieval.json"
"""The configuration of a training for search, whose folder is no run directory."""


@dataclass
class Status:
    """`status.json`, which each write replaces."""

    phase: Phase = "starting"
    step: int = 0
    """Finished optimizer updates."""
    of: int = 0
    """Updates in the whole run."""
    began: int = 0
    """Updates that earlier starts had finished."""
    tokens: int = 0
    loss: float | None = None
    tokens_per_second: float | None = None
    examples_per_second: float | None = None
    """Only of fine-tuning."""
    busy: dict[str, float] = field(default_factory=dict)
    """Shares of the machine in use, as of the last log line: see `machine.usage`."""
    eta_seconds: float | None = None
    skipped_updates: int = 0
    """Updates that overflowed fp16 and were left out, as of the last log line."""
    attempt: int = 1
    saved: bool = False
    """Whether this start or an earlier one has saved a checkpoint."""
    heartbeat: float = 0.0
    """Unix seconds of the last write."""
    host: str = field(default_factory=platform.node)
    pid: int = field(default_factory=os.getpid)
    message: str = ""
    exit: int | None = None
    reason: str = ""
    """`StopReason` of a run that stopped early."""


class RunDirectory:
    """Names and small records of one run folder. Locations are local paths."""

    def __init__(self, location: str) -> None:
        self.location = os.path.abspath(storage.require_local(location))

    def path(self, *parts: str) -> str:
        return os.path.join(self.location, *parts)

    @property
    def checkpoints(self) -> str:
        return self.path("checkpoints")

    @property
    def config(self) -> str:
        return self.path(CONFIG)

    @property
    def metrics(self) -> str:
        return self.path("metrics.jsonl")

    def exists(self) -> bool:
        return os.path.exists(self.config)

    def require_fresh(self) -> None:
        """Raises `InputError` unless the folder is new, empty, or left by a start that never finished."""
        names = set(os.listdir(self.location)) if os.path.isdir(self.location) else set()
        known = {"config.yaml"}
        if "lock" in names:  # of an earlier start
            known |= {"lock", "lease.json", "tokenizer", "environment.json", "processes"}
            known |= {"status.json", "log.txt", "starts.json", HISTORY}
        foreign = sorted(name for name in names - known if not storage.is_temporary(name))
        if foreign:
            fix = "give --run a new folder"
            raise InputError(f"is not a run directory, but holds {foreign[0]}", where=self.location, fix=fix)

    def require(self) -> None:
        if not self.exists():
            fix = "give the folder that `maskwright pretrain … --run` wrote"
            what = f"is not a run directory (no {CONFIG})"
            what = what if os.path.isdir(self.location) else "is not there"
            if any(map(os.path.exists, (self.path("starts.json"), self.path("status.json")))):
                what, fix = "is a run that was interrupted before it began", "start its command again, which begins it"
            raise InputError(what, where=self.location, fix=fix)

    def read_record(self) -> RunRecord:
        """Raises `InputError` without a record, and for another version's."""
        self.require()
        written = Folder(self.location).get_json("environment.json") or {}
        return parse(storage.read_json(self.config), self.config, str(written.get("maskwright") or ""))

    def write_record(self, record: RunRecord) -> None:
        storage.write_json(self.config, record.to_json())

    def chosen(self, record: RunRecord) -> int | None:
        """The step of its model; None before its first checkpoint."""
        return record.chosen(self.read_metrics(), whole_steps(self.checkpoints))

    def has_ended(self, record: RunRecord) -> bool:
        steps = whole_steps(self.checkpoints)
        return record.has_ended(self.read_metrics(), steps, has_results=os.path.exists(self.path(RESULTS)))

    def newest_step(self) -> int:
        """The step of its newest whole checkpoint, 0 if there is none."""
        return max(whole_steps(self.checkpoints), default=0)

    # ---- status ----------------------------------------------------------------------------------------------

    def write_status(self, status: Status) -> None:
        status.heartbeat = time.time()
        content = json.dumps(asdict(status) | {"message": redact(status.message)}, indent=1)
        # A status is only a hint: a full disk or lost folder raises where it matters. It is stale after seconds, and
        # syncing every few steps would slow small models.
        with suppress(OSError), storage.atomic_writer(self.path("status.json"), sync=False) as file:
            file.write(content.encode())

    def read_status(self) -> Status | None:
        """None if it is absent, or empty after a power cut, since a status is only a hint."""
        return records.read(Status, read_local(self.path("status.json")))

    # ---- requests --------------------------------------------------------------------------------------------

    def leave_request(self, request: Request) -> None:
        self.require()
        storage.write_json(self.path("request.json"), {"request": request, "time": time.time()})

    def take_request(self) -> Request | None:
        """The request that was left, which is then removed."""
        path = self.path("request.json")
        if not os.path.isfile(path):
            return None
        try:
            content = storage.read_json(path)
        except InputError:
            content = None
        with suppress(FileNotFoundError):  # `maskwright stop` may have withdrawn it
            os.unlink(path)
        request = content.get("request") if isinstance(content, dict) else None
        return request if request in ("stop", "checkpoint") else None

    # ---- metrics ---------------------------------------------------------------------------------------------

    def append_metrics(self, record: dict[str, Any]) -> None:
        try:
            with open(self.metrics, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            what = f"cannot be written: {error.strerror or error}; the checkpoints are untouched"
            fix = "free disk space or allow writing, and start the same command again"
            raise MaskwrightError(what, where=self.metrics, fix=fix) from None

    def read_metrics(self) -> list[dict[str, Any]]:
        """Every complete line; a line that a kill or a power cut left broken is skipped."""
        if not os.path.exists(self.metrics):
            return []
        with open(self.metrics, encoding="utf-8", errors="replace") as file:
            return read_lines(file.read())

    def drop_metrics_after(self, step: int) -> int:
        """Drops the lines of steps that a resumed run computes again. Returns how many."""
        records = self.read_metrics()
        kept = [record for record in records if record["step"] <= step]
        with storage.atomic_writer(self.metrics) as file:
            file.write("".join(json.dumps(record) + "\n" for record in kept).encode())
        return len(records) - len(kept)

    # ---- data and history ----------------------------------------------------------------------------------

    def read_data_card(self) -> dict[str, Any] | None:
        """`data.json`; None before it is written."""
        card = storage.read_json_or(None, self.path(DATA_CARD))
        return card if isinstance(card, dict) else None

    def append_history(self, event: Event, step: int, **more: Any) -> None:
        """Appends an event to `history.jsonl`, whose lines are never dropped, unlike the lines of metrics."""
        facts = {name: redact(value) if isinstance(value, str) else value for name, value in more.items()}
        record = {"time": round(time.time(), 3), "event": event, "step": step, **facts}
        with suppress(OSError), open(self.path(HISTORY), "a", encoding="utf-8") as file:  # as for the log
            file.write(json.dumps(record) + "\n")

    # ---- log -------------------------------------------------------------------------------------------------

    def log(self, message: str) -> None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        # A message may quote the name of a file, which need not be UTF-8.
        with suppress(OSError), open(self.path("log.txt"), "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{stamp}  {redact(message)}\n")


def read_lines(text: str) -> list[dict[str, Any]]:
    """The records of `metrics.jsonl` or `history.jsonl`; a line that a kill or a power cut left broken is skipped."""
    records = []
    for line in text.split("\n")[:-1]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            records.append(record)
    return records


def step_folder(step: int) -> str:
    return f"step-{step:08d}"


def step_of(folder: str) -> int | None:
    match = re.fullmatch(r"step-(\d{8,})", folder)
    return int(match.group(1)) if match else None


def whole_steps(folder: Folder | str, inside: str = "") -> list[int]:
    """Steps of the checkpoints with a manifest in a folder, ascending. `inside`: path of the checkpoints in it, with a
    slash at its end."""
    folder = Folder(folder) if isinstance(folder, str) else folder
    steps = [step_of(os.path.basename(os.path.dirname(path))) for path in folder.glob(f"{inside}step-*/{MANIFEST}")]
    return sorted(step for step in steps if step is not None)


def ended_files(copies: Folder, step: int) -> dict[str, str]:
    """The text of each file that a run left behind at its end, by the copies of its checkpoints. None for a run that
    continues, or whose newest checkpoint is of another `step`."""
    ended = copies.get_json(ENDED) or {}
    files = ended.get("files")
    if ended.get("step") != step or not isinstance(files, dict):
        return {}
    return {name: text for name, text in files.items() if name in ENDED_FILES and isinstance(text, str)}
