"""A signal of one's own: a recipe names it as [signals."own_signal:task_mean"], and nothing of AgentGym is edited."""

import asyncio
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from pydantic import BaseModel

from agentgym_trainers.recipe import resolve
from agentgym_trainers.run import run
from agentgym_trainers.signals.base import Signal, SignalContext, SignalDependencies, SignalKind


class TaskMeanOptions(BaseModel):
    """What each task has returned so far, on average: the simplest value of a task."""

    initial: float = 0.5
    """The value of a task that was never played."""


class TaskMean(Signal):
    def __init__(self, options: TaskMeanOptions, parts: SignalDependencies) -> None:
        self.options = options
        self.returns: dict[int, list[float]] = defaultdict(list)

    async def annotate(self, context: SignalContext) -> dict[str, np.ndarray]:
        means = {task: float(np.mean(returns)) for task, returns in self.returns.items()}
        return {"inst_value_M": np.array([means.get(t.task, self.options.initial) for t in context.trajectories])}

    async def fit(self, context: SignalContext) -> dict[str, float]:
        for trajectory, total in zip(context.trajectories, context.batch.return_M.tolist(), strict=True):
            self.returns[trajectory.task].append(total)
        return {"tasks": float(len(self.returns))}

    def state_dict(self) -> dict[str, Any]:
        return {"returns": dict(self.returns)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.returns = defaultdict(list, state["returns"])


task_mean = SignalKind(TaskMeanOptions, TaskMean, provides=frozenset({"inst_value_M"}))

if __name__ == "__main__":
    chosen = ["signals.own_signal:task_mean.initial=0.3", "select.kind=instruction", "select.fraction=0.5"]
    small = ["run.steps=2", "rollout.groups=4", "rollout.group_size=2", "eval.tasks=0", "sft="]
    config = resolve("grpo", ["env.serve=false", "rollout.max_length=900", *chosen, *small])
    with TemporaryDirectory() as folder:
        asyncio.run(run(config, Path(folder) / "run"))
        for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines():
            tasks = line.split('"own_signal:task_mean/tasks": ')[1].split(",")[0].rstrip("}")
            print(f"tasks that have a mean: {float(tasks):g}")
