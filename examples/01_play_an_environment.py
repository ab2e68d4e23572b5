"""Play an environment in this process, by its scripted solver and by a script of your own, and look at what was
recorded."""

import asyncio

from agentgym import EpisodeSpec, Limits, LocalSession, PromptFormat, Trajectory, make, rollout
from agentgym.rollouts.policy import Policy, ScriptedPolicy, SolverPolicy, TurnContext


def follow_the_key(ask: TurnContext) -> str:
    """A policy is a function of what is seen: "key north east door east" names the ways to the key."""
    words = str(ask.step.observation).split()
    if words[1] == "here":
        return "take" if words[0] == "key" else "open"
    goal = "door" if words[0] == "have" else "key"
    way = words[words.index(goal) + 1]
    return "open" if way == "here" else f"go {way}"


async def play(policy: Policy, episode: EpisodeSpec) -> Trajectory:
    session = LocalSession(make(episode.env))
    trajectory = await rollout(session, policy.actor(episode), PromptFormat(), episode, Limits())
    await session.close()
    return trajectory


def show(name: str, trajectory: Trajectory) -> None:
    print(f"\n{name}: success={trajectory.success} score={trajectory.score:g} ({trajectory.stop})")
    for turn in trajectory.turns:
        print(
            f"  {turn.index}  {turn.observation:34} > {turn.reply:10}  reward {turn.reward:g}  state {turn.state_key}"
        )
    print(f"     {trajectory.final_observation}")


async def main() -> None:
    episode = EpisodeSpec("keydoor", split="test", task=2, seed=0)
    show("solver", await play(SolverPolicy(), episode))
    show("a script", await play(ScriptedPolicy(follow_the_key), episode))
    show("a stubborn one", await play(ScriptedPolicy(["go north"]), episode))


if __name__ == "__main__":
    asyncio.run(main())
