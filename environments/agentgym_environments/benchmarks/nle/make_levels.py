"""Writes levels.txt: the draws on which the explorer reaches a staircase.

python -m agentgym_environments.benchmarks.nle.make_levels
"""

from __future__ import annotations

from pathlib import Path

from agentgym_environments.benchmarks.nle.env import NetHack

WANTED = {"train": 100, "validation": 20, "test": 20}
WITHIN = 150
"""Turns; the environment allows twice as many."""


def main() -> None:
    path = Path(__file__).with_name("levels.txt")
    path.write_text("", encoding="utf-8")
    env = NetHack()
    env.env_spec = env.env_spec.model_copy(update={"splits": dict.fromkeys(WANTED, 10**6)})
    lines = ["# Draws of task_random whose staircase the explorer reaches; made by make_levels.py with NLE 1.3.0."]
    for split, wanted in WANTED.items():
        won: list[int] = []
        draw = 0
        while len(won) < wanted:
            if solved(env, split, draw):
                won.append(draw)
            draw += 1
        lines.append(f"{split} {' '.join(map(str, won))}")
    env.close()
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def solved(env: NetHack, split: str, draw: int) -> bool:
    env.reset(options={"split": split, "task": draw})
    while not env.over and env.turn < WITHIN:
        env.step(env._explorer.next(env.view))
    return env.success


if __name__ == "__main__":
    main()
