"""The image of the web environments: MiniWoB++ and the shop, a browser in a container that is locked down."""

from __future__ import annotations

import asyncio

import pytest

from agentgym.clients.client import EnvClient

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]


def test_pages_are_solved_in_a_container_that_is_locked_down(images, kit, run):
    images("base")
    folder = kit.root / "environments/agentgym_environments/backends/browser"
    image = kit.build(folder, "localhost/agentgym/web")
    room = ("--memory", "1g", "--pids-limit", "512", "--init", "--network", "bridge")
    container = run(image, "miniwob-easy", "shop-browser", options=room)

    async def play(env: str) -> list[float]:
        rewards = []
        async with EnvClient(f"{container.url}/envs/{env}", timeout_s=120) as client:
            session = client.session()
            for task in (0, 1, 2):
                step = await session.reset(seed=0, options={"split": "test", "task": task})
                while not (step.terminated or step.truncated):
                    step = await session.step(await session.solver())
                rewards.append(step.reward)
            await session.close()
        return rewards

    assert asyncio.run(play("miniwob-easy")) == [1.0, 1.0, 1.0]
    assert asyncio.run(play("shop-browser")) == [1.0, 1.0, 1.0]
    processes = kit.docker("top", container.name, "-eo", "pid,user,comm")
    assert "chromium" in processes or "headless" in processes
    assert kit.docker("exec", container.name, "id", "--user") == "10001"
