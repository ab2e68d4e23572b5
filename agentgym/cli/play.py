"""`agentgym play`."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from agentgym.cli.policy import GRAMMARS, close_policy, named_policy
from agentgym.errors import AgentGymError, UsageError


@click.command(short_help="Play an episode at the terminal, or watch a policy play it.")
@click.argument("env", metavar="ENV")
@click.option("--split", help="[default: the environment's first]")
@click.option("--task", default=0, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--policy", default="human", show_default=True, help="human, random, solver, a checkpoint's folder or a URL."
)
@click.option("--model", help="The model's name at a URL.")
@click.option(
    "--grammar",
    type=click.Choice(GRAMMARS),
    help="How a reply holds its action.  [default: the policy's, or auto: the environment's own]",
)
def play(env: str, grammar: Any, **options: Any) -> None:
    """Play one episode of an ENV at the terminal, or watch a policy play it.

    ENV is an id, "package.module:Class" or a URL.
    """
    asyncio.run(_play(env, grammar, **options))


async def _play(
    env: str, grammar: Any, split: str | None, task: int, seed: int, policy: str, model: str | None
) -> None:
    from agentgym.clients.client import connect
    from agentgym.rollouts.policy import EpisodeSpec
    from agentgym.rollouts.runner import Limits, rollout

    async with connect(env) as connection:
        splits = connection.spec.splits
        split = split or next(iter(splits))
        if split not in splits:
            raise UsageError(f"{env} has no split {split!r}; it has {', '.join(splits)}")
        if not 0 <= task < splits[split]:
            raise UsageError(f"{env} has tasks 0 to {splits[split] - 1} in {split!r}, not {task}")
        chosen, _, prompt_format = named_policy(policy, grammar, model=model)
        episode = EpisodeSpec(connection.spec.id, split, task, seed)
        session = connection.session()
        try:
            trajectory = await rollout(
                session, chosen.actor(episode), prompt_format, episode, Limits(episode_s=24 * 3600)
            )
        finally:
            await close_policy(chosen)
        await session.close()
    for turn in trajectory.turns if policy != "human" else ():
        click.echo(f"\n[turn {turn.index}] {turn.observation}\n> {turn.reply}")
    click.echo(f"\n{trajectory.final_observation}")
    verdict = "success" if trajectory.success else "no success"
    click.echo(f"{verdict}: score {trajectory.score:g} in {len(trajectory.turns)} turns ({trajectory.stop})")
    if trajectory.error:
        raise AgentGymError(trajectory.error)
