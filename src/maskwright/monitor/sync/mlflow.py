"""MLflow. Its own variables decide where: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_ID, MLFLOW_EXPERIMENT_NAME, …

Names are the Trainer's in MLflow, which has no prefix for training: `loss`, `eval_loss`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from maskwright.monitor.sync.service import PROJECT, About, MetricsLine, Outcome

PARAMS_AT_ONCE, METRICS_AT_ONCE = 100, 1000
"""MLflow's limits for one request."""
STATUS = {"done": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


class MLflow:
    def __init__(self, about: About, run_id: str | None) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        # The forwarder tries again by itself; by default MLflow waits for minutes in each call.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
        from mlflow import MlflowClient

        # The client alone: mlflow.start_run would add the user, the script and the git commit.
        self._client: Any = MlflowClient()
        if run_id is None:
            place = os.environ.get("MLFLOW_EXPERIMENT_ID") or self._experiment()
            run_id = str(self._client.create_run(place, run_name=about.name).info.run_id)
        else:
            self._client.update_run(run_id, "RUNNING")
        self.run_id = run_id
        # It is sent before the first lines, not here, so that the id of the new run is known if that fails.
        self._config = about.config

    def _experiment(self) -> str:
        """The id of the experiment of that name, which may be new."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        experiment = self._client.get_experiment_by_name(name)
        return str(experiment.experiment_id if experiment else self._client.create_experiment(name))

    def _describe(self) -> None:
        """Logs the configuration. MLflow parameters are set once, so a run keeps its first start's."""
        from mlflow.entities import Param

        known = self._client.get_run(self.run_id).data.params if self._config else {}
        params = [Param(key, str(value)) for key, value in self._config.items() if key not in known]
        for start in range(0, len(params), PARAMS_AT_ONCE):
            self._client.log_batch(self.run_id, params=params[start : start + PARAMS_AT_ONCE])
        self._config = {}

    def send(self, lines: Sequence[MetricsLine]) -> None:
        from mlflow.entities import Metric

        self._describe()
        metrics = [
            Metric(_name(name), value, int(line.time * 1000), line.step)
            for line in lines
            for name, value in line.values.items()
        ]
        for start in range(0, len(metrics), METRICS_AT_ONCE):
            self._client.log_batch(self.run_id, metrics=metrics[start : start + METRICS_AT_ONCE])

    def finish(self, outcome: Outcome) -> None:
        self._describe()
        self._client.set_terminated(self.run_id, STATUS[outcome])


def _name(name: str) -> str:
    """MLflow's name of a metric. MLflow refuses other characters, which the name of a held-out set may contain."""
    plain = name.removeprefix("train/").replace("eval/", "eval_", 1)
    return re.sub(r"[^\w\-. :/]", "_", plain)
