"""MLflow, by its client's API. The store is the one that MLFLOW_TRACKING_URI names, else MLflow's default."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentgym_trainers.monitoring.tracking.episodes import Rows
from agentgym_trainers.monitoring.tracking.tracker import TrackedRun

MAX_PARAMS = 100
"""Parameters in one request, MLflow's own limit."""
MAX_VALUE = 500
"""Characters of a parameter; config.json has all of them."""


class MlflowTracker:
    """A run of MLflow: metrics, parameters, config.json, and a table of episodes a step under episodes/."""

    def __init__(self, run: TrackedRun) -> None:
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]
        from mlflow.entities import Metric, Param  # pyright: ignore[reportMissingImports]

        self._client, self._metric = MlflowClient(), Metric
        if run.id is not None:
            self.id = run.id
            self._client.update_run(self.id, status="RUNNING")
            return
        project = run.options.project
        experiment = self._client.get_experiment_by_name(project)
        place = experiment.experiment_id if experiment is not None else self._client.create_experiment(project)
        self.id = self._client.create_run(place, run_name=run.name).info.run_id
        params = [Param(name, value[:MAX_VALUE]) for name, value in flat(run.config)]
        for first in range(0, len(params), MAX_PARAMS):
            self._client.log_batch(self.id, params=params[first : first + MAX_PARAMS])
        self._client.log_dict(self.id, dict(run.config), "config.json")

    def log(self, phase: str, step: int, metrics: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        self._client.log_batch(self.id, [self._metric(f"{phase}/{name}", x, now, step) for name, x in metrics.items()])

    def log_episodes(self, step: int, columns: Sequence[str], rows: Rows) -> None:
        table = json.dumps({"columns": list(columns), "data": rows}, ensure_ascii=False)  # as `mlflow.log_table` has it
        self._client.log_text(self.id, table, f"episodes/step-{step:06d}.json")

    def close(self, finished: bool) -> None:
        self._client.set_terminated(self.id, "FINISHED" if finished else "KILLED")


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(dotted name, JSON) of every option."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", json.dumps(value, ensure_ascii=False)
