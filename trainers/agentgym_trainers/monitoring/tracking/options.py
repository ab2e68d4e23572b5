"""Options of [tracking]."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

TrackerName = Literal["tensorboard", "wandb", "mlflow", "trackio"]


class TrackingOptions(BaseModel):
    """Experiment trackers that receive a run's metrics, configuration and a sample of its episodes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trackers: tuple[TrackerName, ...] = ("tensorboard",)
    """Any of "tensorboard", "wandb", "mlflow" and "trackio". metrics.jsonl is always written."""
    project: str = Field(default="agentgym", min_length=1)
    """Project of W&B and Trackio, experiment of MLflow."""
    episodes: int = Field(default=4, ge=0)
    """Episodes of each step that the trackers show as a table, but for TensorBoard, which has none."""
    offline: bool = False
    """Keep W&B's records in the run's folder, for `wandb sync` to send later. MLflow and Trackio write to this machine
    unless MLFLOW_TRACKING_URI or TRACKIO_SPACE_ID says otherwise."""
