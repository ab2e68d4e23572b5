"""Environments behind a URL as Gymnasium environments: one, and many in step, for any trainer that takes
Gymnasium's."""

import numpy as np

from agentgym.clients.gym import RemoteEnv, RemoteVectorEnv
from agentgym.clients.server_process import server_process


def one(url: str) -> None:
    with RemoteEnv(f"{url}/envs/wordle") as env:
        observation, info = env.reset(seed=0, options={"split": "test", "task": 3})
        over = False
        while not over:
            action = env.solver()
            print(f"  {observation.splitlines()[-1]:42} > {action}")
            observation, reward, terminated, truncated, info = env.step(action)
            over = terminated or truncated
        print(f"  {observation.splitlines()[-1]}, reward {reward:g}, success {info['success']}")


def many(url: str, envs: int = 8, steps: int = 200) -> None:
    """Random walks; an episode that ends is begun anew by the next step."""
    rng = np.random.default_rng(0)
    vector = RemoteVectorEnv(f"{url}/envs/keydoor", envs)
    actions = vector.single_action_space.actions
    vector.reset(seed=0)
    episodes, won = 0, 0.0
    for _ in range(steps):
        _, rewards, terminations, truncations, _ = vector.step(list(rng.choice(actions, size=envs)))
        episodes += int(np.sum(terminations | truncations))
        won += float(rewards.sum())
    vector.close()
    print(f"  {envs} sessions, {steps * envs} steps, {episodes} episodes, {won / episodes:.0%} of them won by chance")


if __name__ == "__main__":
    with server_process(["wordle", "keydoor"]) as url:
        print("one environment")
        one(url)
        print("a vector of them")
        many(url)
