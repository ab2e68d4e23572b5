"""An environment of your own: check that it keeps the contract, serve it, play it over HTTP. The environment is
guess_number.py."""

import asyncio

from guess_number import GuessNumber

from agentgym import connect
from agentgym.clients.server_process import server_process
from agentgym.conformance.run import check_env


async def play_over_http() -> None:
    with server_process(["guess_number:GuessNumber"]) as url:
        print(f"\nserved at {url}")
        async with connect(url) as env:
            session = env.session()
            step = await session.reset(options={"split": "test", "task": 1})
            while not (step.terminated or step.truncated):
                action = await session.solver()
                print(f"  {step.observation:22} > {action:4} progress {step.info['progress']:.2f}")
                step = await session.step(action)
            print(f"  {step.observation}, reward {step.reward:g}")


if __name__ == "__main__":
    for finding in check_env(GuessNumber):
        print(finding)
    asyncio.run(play_over_http())
