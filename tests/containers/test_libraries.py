"""The images of environments that stand on a library: every one is solved in a container that is locked down."""

from __future__ import annotations

import asyncio

import pytest

from agentgym.clients.client import connect

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(
    ("place", "family", "envs"),
    [
        ("synthetic/search", "search", ["search"]),
        pytest.param(
            "benchmarks",
            "adapters",
            ["kitchen-textworld", "babyai", "reasoning-gym", "scienceworld", "textarena-hanoi", "textworld"],
            marks=pytest.mark.every,  # compiles for minutes
        ),
    ],
)
def test_its_solver_solves_a_task_of_each_over_http(images, run, kit, place, family, envs):
    folder = kit.root / "environments" / "agentgym_environments" / place
    image = kit.build(folder, f"localhost/agentgym/{family}", "--build-arg", f"BASE={images('base')}")
    container = run(image, *envs, options=("--init", "--memory", "2g", "--tmpfs", "/tmp:exec"))

    async def solve(env: str) -> bool:
        async with connect(f"{container.url}/envs/{env}", timeout_s=120) as client:
            session = client.session()
            step = await session.reset(seed=0, options={"split": "train", "task": 0})
            while not (step.terminated or step.truncated):
                step = await session.step(await session.solver())
            await session.close()
            return step.info["success"]

    assert {env: asyncio.run(solve(env)) for env in envs} == dict.fromkeys(envs, True)
