"""trackio. Its own variables decide where: TRACKIO_PROJECT, TRACKIO_DIR, TRACKIO_SPACE_ID, TRACKIO_SERVER_URL."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from typing import Any

from maskwright.monitor.forward.service import PROJECT, About, MetricsLine, Outcome

ELSEWHERE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
"""Without them trackio writes a database on this machine."""


def begin(about: About, run_id: str | None) -> Trackio:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    if not any(os.environ.get(name) for name in ELSEWHERE):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # it would ask the Hub for the name of the token's owner
    return Trackio(about, run_id)


class Trackio:
    def __init__(self, about: About, run_id: str | None) -> None:
        import trackio

        # trackio identifies a run by its name, and two run directories may have the same name.
        self.run_id = run_id or f"{about.name}-{secrets.token_hex(3)}"
        self._run: Any = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT") or PROJECT,
            name=self.run_id,
            resume="allow",
            private=True,  # otherwise a Space that it creates would be public
            config=about.config,
            embed=False,
            auto_log_gpu=False,  # both would measure this process, not the one that trains
            auto_log_cpu=False,
        )

    def send(self, lines: Sequence[MetricsLine]) -> None:
        for line in lines:
            self._run.log({**line.values, "train/global_step": line.step}, step=line.step)

    def finish(self, outcome: Outcome) -> None:
        self._run.finish()
