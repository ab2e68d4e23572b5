"""Supervised warm-up: imitate the world's scripted expert, made imperfect on purpose."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from agentgym.errors import ConfigError
from agentgym.rollouts.policy import EpisodeSpec, ExpertPolicy
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Runner
from agentgym.rollouts.trajectory import Group, Trajectory
from agentgym.spec import EnvSpec
from agentgym_trainers.config.sections import SFTOptions
from agentgym_trainers.data.sequences import Row, collate
from agentgym_trainers.learner.learner import Learner
from agentgym_trainers.losses import token_weights
from agentgym_trainers.rollout.tokens import ChatTemplate, Transcript


async def demonstrate(runner: Runner, spec: EnvSpec, split: str, options: SFTOptions, seed: int) -> list[Trajectory]:
    """Episodes of the noisy expert on the split's tasks, over and over. Raises ConfigError where there is no expert."""
    if "expert" not in spec.capabilities:
        raise ConfigError(f"{spec.id} has no scripted expert to imitate: set sft=, and start from a trained model")
    tasks = spec.splits[split]
    episodes = [EpisodeSpec(spec.id, split, i % tasks, seed, i // tasks) for i in range(options.demonstrations)]
    return await runner.run(ExpertPolicy(options.noise, seed), episodes)


def corpus(spec: EnvSpec, harness: PromptFormat, demonstrations: Iterable[Trajectory]) -> list[str]:
    """The text that a tiny model's tokenizer is learned from: what stands between the template's special tokens."""
    texts = [f"system\n{harness.instructions(spec)}"]
    for trajectory in demonstrations:
        for turn in trajectory.turns:
            texts += [f"user\n{turn.observation}", f"assistant\n{turn.reply}", "\n"]
    return texts


def tokenise(trajectory: Trajectory, spec: EnvSpec, harness: PromptFormat, template: ChatTemplate) -> Trajectory:
    """The same episode with token branches, as if its replies had been sampled and stopped."""
    tools = harness.tools(spec)
    transcript = Transcript(template, template.stop_ids(), tools)
    histories: dict[int, list[tuple[Any, str]]] = {}
    turns = []
    for turn in trajectory.turns:
        history = histories.setdefault(turn.role, [])
        messages = harness.messages(spec, history, turn.observation)
        transcript.prompt(messages)
        ids = template.write(messages, turn.reply, tools)
        span, said = transcript.sampled(turn.index, ids, [0.0] * len(ids), [0] * len(ids))
        turns.append(replace(turn, reply=said, span=span))
        history.append((turn.observation, said))
    tokens = transcript.finish(None)
    return replace(trajectory, turns=tuple(turns), branches=tokens.branches, forks=tokens.forks)


def imitate(
    learner: Learner, demonstrations: Sequence[Trajectory], options: SFTOptions, seed: int
) -> Iterator[tuple[int, dict[str, float]]]:
    """Minimise the cross-entropy of the demonstrations' replies; yields (step, metrics) after each step."""
    batch, rows, _ = collate([Group((trajectory,)) for trajectory in demonstrations])
    by_trajectory: dict[int, list[Row]] = {}
    for row in rows:
        by_trajectory.setdefault(row.trajectory, []).append(row)
    rng = np.random.default_rng([seed, 2])
    order: list[int] = []
    for step in range(1, options.max_steps + 1):
        if len(order) < options.batch:
            order += rng.permutation(len(batch.group_M)).tolist()
        chosen, order = np.unique(order[: options.batch]), order[options.batch :]
        part, _, kept_A = batch.select(chosen)
        weights_A = np.zeros(len(batch.turn_A))
        weights_A[kept_A] = token_weights(part, "token_mean")
        yield step, learner.imitate([row for m in chosen.tolist() for row in by_trajectory[m]], weights_A)
