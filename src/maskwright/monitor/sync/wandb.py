"""Weights & Biases. Its own variables decide where: WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE, WANDB_API_KEY, …"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from maskwright.monitor.sync.service import PROJECT, About, MetricsLine, Outcome

STEP = "train/global_step"
"""The Trainer's name of the axis."""


class Wandb:
    def __init__(self, about: About, run_id: str | None) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # crash reports to W&B's makers
        os.environ.setdefault("WANDB_DIR", about.folder)
        import wandb

        settings = wandb.Settings(
            silent=True,
            console="off",
            host=os.environ.get("WANDB_HOST", ""),  # otherwise it would be this machine's name
            # These describe this process, which does not train: the command line, the host, its hardware and load, the
            # installed packages, the git remote, and the script.
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_disable_stats=True,
            x_save_requirements=False,
            disable_git=True,
            disable_code=True,
            save_code=False,
        )
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            name=os.environ.get("WANDB_NAME") or about.name,
            id=run_id,
            resume="allow" if run_id else None,
            settings=settings,
        )
        self._run.config.update(about.config, allow_val_change=True)
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP, step_sync=True)

    @property
    def run_id(self) -> str:
        return str(self._run.id)

    def send(self, lines: Sequence[MetricsLine]) -> None:
        for line in lines:
            self._run.log({**line.values, STEP: line.step})

    def finish(self, outcome: Outcome) -> None:
        if outcome == "stopped":
            self._run.mark_preempting()
        self._run.finish(exit_code=0 if outcome == "done" else 1)
