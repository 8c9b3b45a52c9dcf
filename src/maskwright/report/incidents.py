"""Events of a run, as ticks on its curves and in words."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from maskwright.core.console import human_seconds, several
from maskwright.report.curves import Tick
from maskwright.report.run import RecordedRun

OVER = {"done": "The run ended", "stopped": "The run stopped", "failed": "The run failed"}
MOST_LINES = 200
"""Lines that are listed, the last."""


def ticks(run: RecordedRun) -> list[Tick]:
    """Saves, further starts and spikes."""
    marks = [Tick(line["step"], "saved", f"saved at step {line['step']:,}") for line in run.at("saved")]
    for start_idx, line in enumerate(run.at("started")):
        if start_idx:
            marks.append(Tick(line["step"], "started", f"attempt {line.get('attempt')} from step {line['step']:,}"))
    for line in run.at("spiked"):
        marks.append(Tick(line["step"], "spiked", f"spike at step {line['step']:,}: loss {_loss(line)}"))
    return marks


def in_words(run: RecordedRun) -> list[str]:
    """Sentences on the events in order of time, without saves, which are counted."""
    lines, previous, place = [], None, ""
    for line in run.history:
        event = line.get("event")
        if event == "started" and previous is not None and previous.get("event") != "ended":
            silent = human_seconds(max(0.0, _time(line) - _time(previous)))
            lines.append(f"After step {previous['step']:,} the process disappeared without a message, for {silent}.")
        sentence = _sentence(line, first=previous is None, again=place == (place := _place(line) or place))
        lines += [f"{_clock(line)} {sentence}"] if sentence else []
        previous = line
    lines += _lost(run, previous)
    lines += [f"Changed at step {c.step}: {', '.join(c.keys)}." for c in run.report.changes]
    if len(lines) > MOST_LINES:
        lines = [f"{len(lines) - MOST_LINES:,} earlier ones are in history.jsonl.", *lines[-MOST_LINES:]]
    return lines


def _lost(run: RecordedRun, last: Mapping[str, Any] | None) -> list[str]:
    """A sentence for a run whose process was killed and not restarted. `last`: the last line of its history."""
    if run.report.state != "lost" or (last is not None and last.get("event") == "ended"):
        return []
    subject = f"a process ({run.report.why})" if len(run.report.ranks) > 1 else "the process"
    heartbeat = run.report.status.heartbeat if run.report.status else _time(last or {})
    since = f", last heartbeat at {_at(heartbeat)}" if heartbeat else ""
    return [f"After step {run.step:,} {subject} disappeared without a message{since}, and it was not started again."]


def _place(line: Mapping[str, Any]) -> str:
    """Host and engine of a start, the latter with the number of processes; empty for other lines."""
    if line.get("event") != "started":
        return ""
    return f"on {line.get('host')} ({line.get('engine')})"


def _sentence(line: Mapping[str, Any], *, first: bool, again: bool) -> str:
    """The sentence of a line of history. `again`: whether a start has the place of the previous one."""
    step, event = f"{line['step']:,}", line.get("event")
    if event == "started":
        where = "on the same machine" if again else _place(line)
        return f"Started {where}." if first else f"Attempt {line.get('attempt')} went on from step {step}, {where}."
    if event == "spiked":
        return f"The loss spiked at step {step}, to {_loss(line)}."
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
    """Starts after a process that wrote no end."""
    lines = [line for line in run.history if line.get("event") in ("started", "ended")]
    return sum(
        after.get("event") == "started" == before.get("event") for before, after in zip(lines, lines[1:], strict=False)
    )


def summary(run: RecordedRun) -> str:
    if not run.history:
        return "This run has no history.jsonl: its saves, restarts and spikes are unknown."
    restarts, killed = max(0, len(run.at("started")) - 1), kills(run)
    whose = "" if restarts == 1 else "each " if killed == restarts else f"{killed} "
    after = f" ({whose}after {'kills' if 1 < killed < restarts else 'a kill'})" if killed else ""
    counts = [
        several(len(run.at("saved")), "save"),
        several(restarts, "restart") + after,
        several(len(run.at("spiked")), "spike"),
    ]
    return ", ".join(counts) + "."
