"""Every task equally often: each epoch walks all tasks once in an order drawn from the seed."""

from __future__ import annotations

import numpy as np


class UniformTasks:
    def __init__(self, tasks: int, seed: int) -> None:
        """`tasks`: how many the split has."""
        self.tasks, self.seed, self.position = tasks, seed, 0

    def propose(self, n: int) -> list[tuple[int, int]]:
        """The next `n` (task, environment seed) pairs; a task's seed changes with the epoch."""
        chosen = []
        for position in range(self.position, self.position + n):
            epoch, place = divmod(position, self.tasks)
            order = np.random.default_rng([self.seed, epoch]).permutation(self.tasks)
            env_seed = int(np.random.default_rng([self.seed, epoch, place]).integers(2**31))
            chosen.append((int(order[place]), env_seed))
        self.position += n
        return chosen

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]
