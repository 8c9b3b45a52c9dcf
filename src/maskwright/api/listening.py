"""Calls a user's functions during a run, by polling the files that it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from maskwright.core.console import warn
from maskwright.core.errors import InputError
from maskwright.core.folder import Folder
from maskwright.run.directory import RunDirectory, step_folder, whole_steps
from maskwright.run.grown import METRICS, Grown

OnLog = Callable[[dict[str, Any]], object]
"""Called with a line of `Run.metrics`."""
OnSave = Callable[[int, str], object]
"""Called with the step and the location of a checkpoint."""


class Listener:
    """Calls back for news of a run: `hear` reports the lines and checkpoints since its last call, or since the listener
    was made. Raises `InputError` for anything that cannot be called."""

    def __init__(self, run: str, on_log: OnLog | None, on_evaluate: OnLog | None, on_save: OnSave | None) -> None:
        for name, function in {"on_log": on_log, "on_evaluate": on_evaluate, "on_save": on_save}.items():
            if function is not None and not callable(function):
                raise InputError(
                    f"{function!r:.40} cannot be called", where=name, fix=f"give a function, as {name}=print"
                )
        self.directory = RunDirectory(run)
        self.on_log, self.on_evaluate, self.on_save = on_log, on_evaluate, on_save
        self.failed = set[str]()
        self.lines = Grown(Folder(self.directory.location), METRICS)
        self.heard = {*self._lines()}
        self.saved = {*whole_steps(self.directory.checkpoints)}

    def hear(self) -> None:
        if self.on_log is not None or self.on_evaluate is not None:
            for line in self._lines():
                if line not in self.heard:  # each contains the time
                    self.heard.add(line)
                    self._tell(line)
        if self.on_save is not None:
            for step in whole_steps(self.directory.checkpoints):
                if step not in self.saved:
                    self.saved.add(step)
                    folder = self.directory.path("checkpoints", step_folder(step))
                    self._call("on_save", self.on_save, step, folder)

    def _lines(self) -> list[str]:
        """The complete lines that were added, or all of a file that a continued run has rewritten."""
        blocks = [block.decode(errors="replace") for block in self.lines.news() if block]
        return [line for block in blocks for line in block.split("\n")[:-1]]

    def _tell(self, line: str) -> None:
        try:
            record = json.loads(line)
        except ValueError:
            return
        evaluated = any(key.startswith("valid_") for key in record)
        function = self.on_evaluate if evaluated else self.on_log
        if function is not None:
            self._call("on_evaluate" if evaluated else "on_log", function, record)

    def _call(self, name: str, function: Callable[..., object], *arguments: Any) -> None:
        try:
            function(*arguments)
        except (Exception, SystemExit) as error:  # the user's own; KeyboardInterrupt ends the run
            if name not in self.failed:
                self.failed.add(name)
                warn(f"{name} raised {type(error).__name__}: {error}; the run continues, and so do the calls")
