"""What happened to a run, as ticks on its curves and in words."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from maskwright.core.console import human_seconds, several
from maskwright.report.curves import Tick
from maskwright.report.run import RecordedRun

OVER = {"done": "The run ended", "stopped": "The run stopped", "failed": "The run failed"}
MOST = 200
"""Lines that are listed."""


def ticks(run: RecordedRun) -> list[Tick]:
    """Saves, further starts, spikes and rollbacks."""
    found = [Tick(line["step"], "saved", f"saved at step {line['step']:,}") for line in run.at("saved")]
    for number, line in enumerate(run.at("started")):
        if number:
            found.append(Tick(line["step"], "started", f"attempt {line.get('attempt')} from step {line['step']:,}"))
    for line in run.at("spiked"):
        found.append(Tick(line["step"], "spiked", f"spike at step {line['step']:,}: loss {_loss(line)}"))
    for line in run.at("rolled back"):
        back = f"from step {line['step']:,} back to {line.get('to')}"
        found.append(Tick(line["step"], "rolled-back", back))
    return found


def in_words(run: RecordedRun) -> list[str]:
    """In the order of time; without saves, which are counted."""
    found, before, place = [], None, ""
    for line in run.history:
        event = line.get("event")
        if event == "started" and before is not None and before.get("event") != "ended":
            silent = human_seconds(max(0.0, _time(line) - _time(before)))
            found.append(f"After step {before['step']:,} the process was gone without a word, for {silent}.")
        said = _sentence(line, first=before is None, again=place == (place := _place(line) or place))
        found += [f"{_clock(line)} {said}"] if said else []
        before = line
    found += _gone(run, before)
    found += [f"Changed at step {one['step']}: {', '.join(map(str, one['keys']))}." for one in run.look.changes]
    if len(found) > MOST:
        found = [*found[:MOST], f"… and {len(found) - MOST:,} more (history.jsonl)."]
    return found


def _gone(run: RecordedRun, last: Mapping[str, Any] | None) -> list[str]:
    """Of a run that nobody has started again since its process was killed. `last`: the last line of its history."""
    if run.look.state != "lost" or (last is not None and last.get("event") == "ended"):
        return []
    which = f"a process ({run.look.why})" if len(run.look.ranks) > 1 else "the process"
    heard = run.look.status.heartbeat if run.look.status else _time(last or {})
    since = f", last heard of at {_at(heard)}" if heard else ""
    return [f"After step {run.step:,} {which} was gone without a word{since}, and nobody has started it again."]


def _place(line: Mapping[str, Any]) -> str:
    """Where a start was, and what computes, which also says in how many processes; empty for other lines."""
    if line.get("event") != "started":
        return ""
    return f"on {line.get('host')} ({line.get('engine')})"


def _sentence(line: Mapping[str, Any], *, first: bool, again: bool) -> str:
    """`again`: whether a start was where the one before was."""
    step, event = f"{line['step']:,}", line.get("event")
    if event == "started":
        where = "on the same machine" if again else _place(line)
        return f"Started {where}." if first else f"Attempt {line.get('attempt')} went on from step {step}, {where}."
    if event == "spiked":
        return f"The loss spiked at step {step}, to {_loss(line)}."
    if event == "rolled back":
        return f"At step {step} the run went back to step {line.get('to')}, and left out the data since then."
    if event == "ended":
        code = f" (exit {line.get('exit')})" if line.get("exit") else ""
        message = str(line.get("message") or "").rstrip(".")
        why = f": {message}" if message else ""
        return f"{OVER.get(str(line.get('phase')), 'It ended')} at step {step}{code}{why}."
    return ""


def _time(line: Mapping[str, Any]) -> float:
    value = line.get("time")
    return float(value) if isinstance(value, int | float) else 0.0


def _clock(line: Mapping[str, Any]) -> str:
    return f"{_at(_time(line))}:"


def _at(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds)) + " UTC"


def _loss(line: Mapping[str, Any]) -> str:
    value = line.get("loss")
    return f"{value:.3f}" if isinstance(value, int | float) else "unknown"


def kills(run: RecordedRun) -> int:
    """Starts that followed no last word."""
    lines = [line for line in run.history if line.get("event") in ("started", "ended")]
    return sum(
        after.get("event") == "started" == before.get("event") for before, after in zip(lines, lines[1:], strict=False)
    )


def summary(run: RecordedRun) -> str:
    """In one line: how often what happened."""
    if not run.history:
        return "This run has no history.jsonl: its saves, restarts and spikes are not known."
    restarts, killed = max(0, len(run.at("started")) - 1), kills(run)
    whose = "" if restarts == 1 else "each " if killed == restarts else f"{killed} "
    after = f" ({whose}after {'kills' if 1 < killed < restarts else 'a kill'})" if killed else ""
    counts = [
        several(len(run.at("saved")), "save"),
        several(restarts, "restart") + after,
        several(len(run.at("spiked")), "spike"),
        several(len(run.at("rolled back")), "rollback"),
    ]
    return ", ".join(counts) + "."
