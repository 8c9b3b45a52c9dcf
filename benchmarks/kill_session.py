"""Two terminals, recorded: one run is left alone; the same run in the other is killed by `kill -9` and started again. A
third one compares the digests of their weights.

    python benchmarks/kill_session.py [--work FOLDER]        half a minute on two cores

`results/kill-session.json` gets each line that was typed or printed, with its second. `docs/site/figures` makes the
moving picture of it. A line is typed when the one before it has ended; `kill -9` as soon as the step of `KILL_AFTER` is
on the screen.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from common import store_of, write_result
from faults import ROWS, SEQ_LEN, VOCABULARY, generated_text

STEPS, JUDGE_EVERY, SAVE_EVERY, KILL_AFTER = 200, 50, 40, "step 100:"
WEIGHTS = f"checkpoints/*{STEPS}/model.safetensors"
ENDED = "\x01ended"
TYPING = 0.4
"""Seconds between the end of a command and the next one."""


class Terminal:
    """A bash whose lines are written down with their time since `start`, without the folder that holds the runs."""

    def __init__(self, title: str, folder: Path, environment: dict[str, str], start: float) -> None:
        self.title, self.folder, self.start = title, folder, start
        self.lines: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._ends = 0
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._bash.stdout
        for line in self._bash.stdout:
            with self._changed:
                if line.startswith(ENDED):
                    self._ends += 1
                else:
                    self._write_down(line.rstrip())
                self._changed.notify_all()

    def _write_down(self, text: str) -> None:
        text = text.replace(f"{self.folder}{os.sep}", "")
        self.lines.append({"at": round(time.monotonic() - self.start, 2), "text": text})

    def type(self, command: str, *, wait: bool = True) -> None:
        """Until the command has ended, unless it continues in the background."""
        time.sleep(TYPING)
        with self._changed:
            self._write_down(f"$ {command}")
            before = self._ends
        assert self._bash.stdin
        self._bash.stdin.write(f"{command}\n" + (f"printf '{ENDED}\\n'\n" if wait else ""))
        self._bash.stdin.flush()
        if wait:
            self._until(lambda: self._ends > before)

    def see(self, words: str) -> None:
        self._until(lambda: any(line["text"].startswith(words) for line in self.lines))

    def _until(self, condition: Any) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, 120):
                raise SystemExit("\n".join([f"{self.title}: nothing happens", *(one["text"] for one in self.lines)]))

    def close(self) -> None:
        assert self._bash.stdin
        self._bash.stdin.close()
        self._bash.wait()
        self._reader.join()


def left_alone(terminal: Terminal) -> None:
    terminal.type("maskwright pretrain run.yaml --run alone")


def killed(terminal: Terminal) -> None:
    terminal.type("maskwright pretrain run.yaml --run killed &", wait=False)
    terminal.see(KILL_AFTER)
    terminal.type("kill -9 $!; wait $!")
    terminal.type("maskwright pretrain run.yaml --run killed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, help="new or empty folder for the runs; kept when given")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = (arguments.work or Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        store_of([generated_text(work / "text.txt")], str(work), VOCABULARY, valid_fraction=0.25)
        (work / f"store-{VOCABULARY}").rename(work / "store")
        values = {
            "data": {"store": "store", "seq_len": SEQ_LEN},
            "model": {"size": "nano", "hidden_dropout": 0.1, "attention_dropout": 0.1},
            "optimizer": {"learning_rate": 2e-3},
            "schedule": {"steps": STEPS},
            "batch": {"micro_batch_rows": ROWS},
            "engine": {"device": "cpu", "threads": 1},
            "checkpoint": {"save_every_steps": SAVE_EVERY},
            "evaluation": {"every_steps": JUDGE_EVERY, "max_rows": 32},
        }
        (work / "run.yaml").write_text(json.dumps(values, indent=1))  # JSON is YAML
        paths = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
        place = work, os.environ | {"PATH": paths}, time.monotonic()
        terminals = [Terminal(title, *place) for title in ("left alone", "killed by kill -9")]
        threads = [
            threading.Thread(target=script, args=(terminal,))
            for script, terminal in zip((left_alone, killed), terminals, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        terminals.append(Terminal("the weights of both", *place))
        terminals[2].type(f"sha256sum {{alone,killed}}/{WEIGHTS} | cut -c-12,65-")
        for terminal in terminals:
            terminal.close()
        seconds = round(time.monotonic() - place[2], 2)
    digests = [line["text"].split()[0] for line in terminals[2].lines if not line["text"].startswith("$")]
    said = [line["text"] for line in terminals[1].lines]
    steps = [int(number.replace(",", "")) for number in re.findall(r"continuing at step ([\d,]+)", "\n".join(said))]
    if len(digests) != 2 or len(steps) != 1:
        raise SystemExit("\n".join(["the session did not go as it should have gone", *said]))
    write_result(
        "kill-session",
        {"digests_that_differ": len(set(digests)) - 1, "seconds": seconds, "continued_at_step": steps[0]},
        terminals=[{"title": terminal.title, "lines": terminal.lines} for terminal in terminals],
    )


if __name__ == "__main__":
    main()
