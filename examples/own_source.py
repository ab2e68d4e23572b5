"""A source of one's own, which goes back to the tasks that were half solved: source.kind = "own_source:retries"."""

import asyncio
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from agentgym.rollouts.trajectory import Group
from agentgym_trainers.config.registry import KindOptions
from agentgym_trainers.recipe import resolve
from agentgym_trainers.rollout.sources.base import Collector, Source, SourceKind
from agentgym_trainers.run import run


class RetriesOptions(KindOptions):
    """New tasks, and those of the last step at which some attempts failed and others did not."""

    kind: Literal["own_source:retries"] = "own_source:retries"
    share: float = 0.5
    """Most of a step that may be tasks of the last one."""


class Retries(Source):
    def __init__(self, options: RetriesOptions) -> None:
        self.options = options
        self.again: list[tuple[int, int]] = []

    async def collect(self, trainer: Collector, groups: int) -> list[Group]:
        again = self.again[: int(self.options.share * groups)]
        played = await trainer.rollout_groups([*again, *trainer.curriculum.propose(groups - len(again))])
        self.again = [
            (group.trajectories[0].task, group.trajectories[0].seed)
            for group in played
            if 0 < sum(t.success for t in group.trajectories) < len(group.trajectories)
        ]
        return played

    def state_dict(self) -> dict[str, list[tuple[int, int]]]:
        return {"again": self.again}

    def load_state_dict(self, state: dict[str, list[tuple[int, int]]]) -> None:
        self.again = state["again"]


retries = SourceKind(RetriesOptions, Retries)

if __name__ == "__main__":
    small = ["run.steps=2", "rollout.groups=4", "rollout.group_size=2", "eval.tasks=0", "sft="]
    config = resolve(
        "grpo",
        ["env.serve=false", "rollout.max_length=900", "source.kind=own_source:retries", "source.share=0.25", *small],
    )
    with TemporaryDirectory() as folder:
        asyncio.run(run(config, Path(folder) / "run"))
        for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines():
            print(f"step {json.loads(line)['step']}: {json.loads(line)['rollout/turns']:.1f} turns an episode")
