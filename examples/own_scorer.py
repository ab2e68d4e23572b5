"""A scorer of one's own: `agentgym credit score pairs.jsonl --scorer own_scorer:nearer`."""

from collections.abc import Sequence

from agentgym import registry
from agentgym.evaluation.action_values import ActionValues

MOVES = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}


def nearer(state: ActionValues) -> Sequence[float]:
    """Minus the distance to the goal after each action, as if there were no holes: FrozenLake's goal is the corner."""
    rows = state.state.splitlines()
    last = len(rows) - 1
    row, column = next((r, line.index("@")) for r, line in enumerate(rows) if "@" in line)
    scores = []
    for action in state.actions:
        down, right = MOVES[action]
        ahead = (min(max(row + down, 0), last), min(max(column + right, 0), last))
        scores.append(float(sum(ahead) - 2 * last))
    return scores


if __name__ == "__main__":
    env = registry.make("frozenlake")
    state = env.action_values("test", [0])[0]  # type: ignore[attr-defined]
    print(state.state)
    for action, q, score in zip(state.actions, state.q, nearer(state), strict=True):
        print(f"{action:5}  Q {q:.3f}  score {score:g}")
