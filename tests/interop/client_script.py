"""OpenEnv's own client against a server: run by an interpreter that has the `openenv` package.

    python client_script.py URL

Prints one line for each thing that happened; the test compares them with what our environment does.
"""

import asyncio
import json
import sys

from openenv.core import GenericEnvClient


async def one(url: str, task: int) -> list[object]:
    async with GenericEnvClient(base_url=url) as client:
        records = []
        result = await client.reset(seed=3, split="train", index=task, episode_id=f"mine-{task}")
        records.append([result.observation["text"], result.reward, result.done])
        while not result.done:
            word = result.observation["text"].rsplit(" ", 1)[-1]
            result = await client.step({"text": word})
            records.append([result.observation["text"], result.reward, result.done])
        state = await client.state()
        records.append([state["episode_id"], state["step_count"]])
        try:
            await client.step({"no_such_field": 1})
        except RuntimeError as error:
            records.append(str(error).partition("(code: ")[2].rstrip(")"))
        try:
            await client.step({"text": "after the end"})
        except RuntimeError as error:
            records.append(str(error).partition("(code: ")[2].rstrip(")"))
        again = await client.reset(split="train", index=task, episode_id=f"mine-{task}")
        records.append([again.observation["text"], again.done])
        return records


async def main() -> None:
    print(json.dumps(await asyncio.gather(*(one(sys.argv[1], task) for task in range(4)))))


asyncio.run(main())
