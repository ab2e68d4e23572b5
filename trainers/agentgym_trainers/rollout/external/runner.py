"""A Runner whose episodes are programs that know the policy as an OpenAI or Anthropic base URL.

    for each episode    command, with OPENAI_..., ANTHROPIC_... and AGENTGYM_... in its environment
    its calls           sampled by the trainer's own engine, recorded token by token
    its reward          POST $AGENTGYM_EPISODE/finish {"reward": 1.0}

A program that fails, hangs or never tells its reward is infrastructure's failure: recorded, played again, never scored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentgym.rollouts.policy import EpisodeSpec, Policy
from agentgym.rollouts.program import command_words, last_line, program_variables
from agentgym.rollouts.runner import EpisodePrefix, Runner
from agentgym.rollouts.trajectory import StopReason, Trajectory
from agentgym_trainers.monitoring.wait_tracker import PROGRAM, TrackedPolicy, WaitTracker, name_of
from agentgym_trainers.rollout.concurrency import gather_or_cancel
from agentgym_trainers.rollout.external.serving import PolicyServer, Serving
from agentgym_trainers.rollout.policy import TokenPolicy


@dataclass(frozen=True, kw_only=True)
class ExternalAgentRunner(Runner):
    """A Runner whose episodes are played by programs, with the token policy of the run."""

    command: str
    """The program and its arguments."""
    env: str
    """The environment as the recipe names it, with its arguments; that of an episode is its id."""
    logs: Path
    """Folder for the output of programs that failed."""
    server: PolicyServer = field(default_factory=PolicyServer)

    async def run(
        self, policy: Policy, episodes: Sequence[EpisodeSpec], pasts: Sequence[EpisodePrefix] | None = None
    ) -> list[Trajectory]:
        """One trajectory an episode, in order. Raises ConfigError where there is no such program."""
        watch = WaitTracker()
        if isinstance(policy, TrackedPolicy):
            policy, watch = policy.policy, policy.watch
        if not isinstance(policy, TokenPolicy) or pasts is not None:
            return await Runner.run(self, policy, episodes, pasts)
        async with self.server.serve(policy, self.concurrency, 2 * self.limits.episode_s) as serving:
            player, seats = _Player(self, serving, policy), asyncio.Semaphore(self.concurrency)

            async def tried(episode: EpisodeSpec) -> Trajectory:
                async with seats:
                    watch.now_for(name_of(episode), PROGRAM)
                    try:
                        return await player.play(episode)
                    finally:
                        watch.now_for(name_of(episode), None)

            return await gather_or_cancel(tried(episode) for episode in episodes)


@dataclass(frozen=True)
class _Player:
    runner: ExternalAgentRunner
    serving: Serving
    policy: TokenPolicy

    async def play(self, episode: EpisodeSpec) -> Trajectory:
        """Play an episode, again where it failed."""
        for _ in range(self.runner.retries):
            played = await self._try(episode)
            if not played.stop.is_failure:
                return played
        return await self._try(episode)

    async def _try(self, episode: EpisodeSpec) -> Trajectory:
        """Run the program once."""
        runner, recorder = self.runner, self.serving.recorder
        name = f"task-{episode.task}-seed-{episode.seed}-attempt-{episode.attempt}"
        log, limit_s = runner.logs / f"{name}.log", runner.limits.episode_s
        runner.logs.mkdir(parents=True, exist_ok=True)
        recorded = recorder.open(name, episode, episode.rng(*self.policy.salt))
        try:
            with log.open("wb") as output:
                named = episode._replace(env=runner.env)
                variables = program_variables(named, f"{self.serving.url}/episodes/{name}", self.serving.key)
                code = await self.serving.programs.run(command_words(runner.command), variables, output, limit_s)
        finally:
            recorder.forget(name)
        if code == 0 and recorded.trajectory is not None:
            log.unlink()
            return recorded.trajectory
        reason = f"POST $AGENTGYM_EPISODE/finish was not asked; its output is in {log}"
        if code is None:
            reason = f"it took longer than {limit_s:g} s; its output is in {log}"
        elif code:
            reason = f"it ended with status {code}: {last_line(log)}"
        stop = StopReason.DEADLINE if code is None else StopReason.ENVIRONMENT_FAILED
        return Trajectory(**episode._asdict(), turns=(), stop=stop, error=f"{runner.command}: {reason}")
