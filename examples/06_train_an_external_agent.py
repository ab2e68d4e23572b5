"""An agent that knows nothing but an OpenAI base URL is played and trained. This file is the agent, and trains it."""

import json
import os
import sys
import tempfile
from pathlib import Path

import httpx

import agentgym
from agentgym.cli.main import main as command_line

SMALL = [
    "env.name=oracle",  # three decisions; chance wins 3 of 16 episodes
    "env.serve=false",
    "run.steps=2",
    "rollout.groups=2",
    "rollout.group_size=4",
    "rollout.concurrency=4",
    "rollout.lockstep=false",  # programs come when they come
    *("model.tiny.hidden_size=32", "model.tiny.layers=1"),
    *("sft.demonstrations=64", "sft.noise=0.9", "sft.max_steps=30", "sft.stop_at_success="),
    "eval.split=train",
    "eval.tasks=0",  # held-out tasks are played by the trainer's own prompt format, not by the agent
]


def agent() -> None:
    """One episode. It could be any program in any language, with any environment."""
    variables, env, messages, rewards, over = os.environ, agentgym.make("oracle"), [], [], False
    client = httpx.Client(headers={"Authorization": f"Bearer {variables['OPENAI_API_KEY']}"}, timeout=60)
    task = {"split": variables["AGENTGYM_SPLIT"], "task": int(variables["AGENTGYM_TASK"])}
    observation, info = env.reset(seed=int(variables["AGENTGYM_SEED"]), options=task)
    while not over:
        messages.append({"role": "user", "content": observation})
        answer = client.post(f"{variables['OPENAI_BASE_URL']}/chat/completions", json={"messages": messages})
        messages.append(answer.raise_for_status().json()["choices"][0]["message"])
        observation, reward, terminated, truncated, info = env.step(messages[-1]["content"])
        rewards, over = [*rewards, reward], terminated or truncated
    ending = {"reward": rewards, "success": info["success"]}
    client.post(f"{variables['AGENTGYM_EPISODE']}/finish", json=ending).raise_for_status()


def train(folder: Path) -> None:
    source = ["source.kind=external_agent", f"source.command={sys.executable} {Path(__file__).resolve()}"]
    command_line(["train", "quickstart", *SMALL, *source, "--out", str(folder)])
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        if (metrics := json.loads(line))["phase"] == "rl":
            print(
                f"step {metrics['step']}: {metrics['rollout/turns']:.0f} turns, gap {metrics['policy/engine_gap']:.0e}"
            )


if __name__ == "__main__" and "AGENTGYM_EPISODE" in os.environ:
    agent()
elif __name__ == "__main__":
    with tempfile.TemporaryDirectory() as parent:
        train(Path(parent) / "run")
