"""Our client plays a real OpenEnv server's environment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentgym.clients.client import connect
from agentgym.clients.gym import RemoteVectorEnv
from agentgym.errors import EnvironmentCrashed, EpisodeLost


def test_episodes_cuts_and_failures(openenv_server):
    async def main() -> None:
        async with connect(openenv_server, spec={"max_turns": 5}) as env:
            assert (env.spec.id, env.spec.max_turns) == ("Echo", 5)
            session = env.session()
            assert (await session.reset(seed=4)).observation == "ready 4"
            steps = [await session.step(word) for word in "abc"]
            assert [step.observation for step in steps] == ["you said a", "you said b", "you said c"]
            assert [(step.reward, step.terminated) for step in steps] == [(0.0, False), (0.0, False), (1.0, True)]
            await session.reset()
            await session.step("a")
            await dropped(session)
            assert (await session.step("b")).info == {"turn": 2}
            refused = await session.step({"name": "act", "arguments": {"nonsense": 1}})
            assert refused.info == {"valid_action": False}
            assert "text: Field required" in refused.observation
            with pytest.raises(EnvironmentCrashed, match="as asked"):
                await session.step("please raise")
            with pytest.raises(EpisodeLost):
                await session.step("x")

    async def dropped(session: Any) -> None:
        await session._socket.close()

    asyncio.run(main())


def test_a_vector(openenv_server):
    env = RemoteVectorEnv(openenv_server, 4)
    observations, _ = env.reset(seed=7)
    assert observations == ("ready 7", "ready 8", "ready 9", "ready 10")
    assert env.step(["a", "b", "c", "d"])[0] == ("you said a", "you said b", "you said c", "you said d")
    env.close()
