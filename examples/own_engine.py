"""An engine of one's own, which counts what it is asked for: engine.kind = "own_engine:counting"."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from agentgym_trainers.config.registry import KindOptions
from agentgym_trainers.engines.base import Completion, EngineKind, EngineRoom, Sampling
from agentgym_trainers.engines.inprocess import InProcessConversation, InProcessEngine
from agentgym_trainers.recipe import resolve
from agentgym_trainers.run import run

SAMPLED: list[int] = []


class CountingOptions(KindOptions):
    """The in-process engine, with a count of the tokens of each reply."""

    kind: Literal["own_engine:counting"] = "own_engine:counting"


class CountingConversation(InProcessConversation):
    async def generate(self, prompt: Sequence[int], sampling: Sampling, **more: Any) -> Completion:
        completion = await super().generate(prompt, sampling, **more)
        SAMPLED.append(len(completion.ids))
        return completion


class CountingEngine(InProcessEngine):
    def open(self, rng: Any) -> InProcessConversation:
        conversation = super().open(rng)
        conversation.__class__ = CountingConversation
        return conversation


def build(options: CountingOptions, model: Any, tokenizer: Any, folder: Path, room: EngineRoom) -> CountingEngine:
    return CountingEngine(model, max_sequences=room.max_sequences, max_length=room.max_length, lockstep=room.lockstep)


counting = EngineKind(CountingOptions, build, repeatable=True)

if __name__ == "__main__":
    small = ["run.steps=1", "rollout.groups=2", "rollout.group_size=2", "eval.tasks=0", "sft="]
    config = resolve("grpo", ["env.serve=false", "rollout.max_length=900", "engine.kind=own_engine:counting", *small])
    with TemporaryDirectory() as folder:
        asyncio.run(run(config, Path(folder) / "run"))
    from own_engine import SAMPLED as counted  # the module that the recipe named; this one is __main__

    print(f"{len(counted)} replies, the longest of {max(counted)} tokens")
